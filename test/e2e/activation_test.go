package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tierd/nbd/client"
)

// A manager is a service manager as far as sockets go: it takes in what the daemon asks
// it to keep, and passes that on to the next one.
type manager struct {
	t    *testing.T
	path string
	conn *net.UnixConn

	mu    sync.Mutex
	names []string
	files []*os.File
	ready bool
}

func newManager(s *site, t *testing.T) *manager {
	t.Helper()
	m := &manager{t: t, path: s.path("notify")}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	m.conn = conn
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.receive()
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
		m.drop()
	})
	return m
}

func (m *manager) receive() {
	for {
		b, oob := make([]byte, 4096), make([]byte, 256)
		n, oobn, _, _, err := m.conn.ReadMsgUnix(b, oob)
		if err != nil {
			return
		}
		var name string
		var store, remove bool
		m.mu.Lock()
		for line := range strings.SplitSeq(string(b[:n]), "\n") {
			store = store || line == "FDSTORE=1"
			remove = remove || line == "FDSTOREREMOVE=1"
			m.ready = m.ready || line == "READY=1"
			if v, ok := strings.CutPrefix(line, "FDNAME="); ok {
				name = v
			}
		}
		messages, _ := unix.ParseSocketControlMessage(oob[:oobn])
		for _, c := range messages {
			fds, _ := unix.ParseUnixRights(&c)
			for _, fd := range fds {
				if store {
					m.removeLocked(name)
					m.names = append(m.names, name)
					m.files = append(m.files, os.NewFile(uintptr(fd), name))
				}
			}
		}
		if remove {
			m.removeLocked(name)
		}
		m.mu.Unlock()
	}
}

// removeLocked forgets a file. A socket that is stored once more is the same one.
func (m *manager) removeLocked(name string) {
	for i, n := range m.names {
		if n == name {
			m.files[i].Close()
			m.names = append(m.names[:i], m.names[i+1:]...)
			m.files = append(m.files[:i], m.files[i+1:]...)
			return
		}
	}
}

func (m *manager) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.names) > 0 {
		m.removeLocked(m.names[0])
	}
}

func (m *manager) kept() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprint(len(m.names), " ", strings.Join(m.names, " "))
}

// launch starts tierd with what is kept, and with further sockets.
func (m *manager) launch(s *site, names []string, files []*os.File) *daemon {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock() // what comes late from the daemon before closes none of the files
	names = append(append([]string{}, m.names...), names...)
	files = append(append([]*os.File{}, m.files...), files...)
	m.ready = false
	script := fmt.Sprintf("export LISTEN_PID=$$ LISTEN_FDS=%d LISTEN_FDNAMES=%s; exec \"$@\"", len(files), strings.Join(names, ":"))
	return s.launchWith(func(cmd *exec.Cmd) {
		cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+m.path)
		cmd.ExtraFiles = files
	}, "bash", "-c", script, "bash")
}

func (m *manager) start(s *site, names []string, files []*os.File) *daemon {
	d := m.launch(s, names, files)
	s.await(d)
	return d
}

// TestHandOver: the sockets outlive the daemon. Who connects while it is away is served
// by the next one, after a stop and after a kill.
func TestHandOver(t *testing.T) {
	t.Parallel()
	s := newPool(t, layout{tiers: twoTiers(), volumes: "{name: v, size: 32MiB}"})
	m := newManager(s, t)
	d := m.start(s, nil, nil)
	eventually(t, "the sockets are kept", 0, func() bool { return strings.HasPrefix(m.kept(), "4 ") })
	tcp := d.tcp
	for _, end := range []func(){d.stop, func() { d.kill() }} {
		end()
		type outcome struct {
			what string
			err  error
		}
		outcomes := make(chan outcome, 2)
		for what, uri := range map[string]string{"unix": s.uri("v"), "tcp": "nbd://" + tcp + "/v"} {
			conn, err := net.Dial(map[string]string{"unix": "unix", "tcp": "tcp"}[what], map[string]string{"unix": s.nbd, "tcp": tcp}[what])
			if err != nil {
				t.Fatalf("%s: nobody listens while the daemon is away: %v", what, err)
			}
			conn.Close()
			go func() {
				c, err := client.Dial(t.Context(), uri)
				if err == nil {
					err = c.Close()
				}
				outcomes <- outcome{what, err}
			}()
		}
		time.Sleep(50 * time.Millisecond) // they may be waiting by then, or come later
		d = m.start(s, nil, nil)
		for range 2 {
			if o := <-outcomes; o.err != nil {
				t.Errorf("%s: who came while the daemon was away: %v", o.what, o.err)
			}
		}
		if d.tcp != tcp {
			t.Errorf("the port is %s, and was %s", d.tcp, tcp)
		}
	}

	// An address that the configuration has no more is given up.
	d.stop()
	s.edit(`, "tcp:127.0.0.1:0"`, "")
	d = m.start(s, nil, nil)
	eventually(t, "the socket is not kept any more", 0, func() bool { return strings.HasPrefix(m.kept(), "3 ") })
	if _, err := net.Dial("tcp", tcp); err == nil {
		t.Error("the old address still listens")
	}
	// A file that is gone is made anew.
	d.stop()
	if err := os.Remove(s.nbd); err != nil {
		t.Fatal(err)
	}
	d = m.start(s, nil, nil)
	s.dial("v").hangUp()
	d.stop()
}

// TestSocketActivation: sockets of units are used in the place of those of the
// configuration, by their names; a mistake of a unit is an error.
func TestSocketActivation(t *testing.T) {
	t.Parallel()
	s := newPool(t, layout{tiers: twoTiers(), volumes: "{name: v, size: 32MiB}"})
	m := newManager(s, t)
	file := func(l any, err error) *os.File {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		f, err := l.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	listen := func(network, address string) (net.Listener, *os.File) {
		l, err := net.Listen(network, address)
		f := file(l, err)
		t.Cleanup(func() { l.Close() })
		return l, f
	}
	one, oneFile := listen("unix", s.path("one"))
	two, twoFile := listen("tcp", "127.0.0.1:0")
	_, adminFile := listen("unix", s.path("adm"))
	_ = one
	d := m.launch(s, []string{"nbd", "nbd", "admin"}, []*os.File{oneFile, twoFile, adminFile})
	eventually(t, "it is ready", 0, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.ready })
	for _, uri := range []string{"nbd+unix:///v?socket=" + s.path("one"), "nbd://" + two.Addr().String() + "/v"} {
		c, err := client.Dial(t.Context(), uri)
		if err != nil {
			t.Fatalf("%s: %v", uri, err)
		}
		_ = c.Close()
	}
	if _, err := os.Stat(s.nbd); err == nil {
		t.Error("the socket of the configuration is there too")
	}
	if r := execute(t, s.dir, filepath.Join(*binDir, "tierctl"), "--socket", s.path("adm"), "pool", "status"); r.code != 0 {
		t.Errorf("admin socket: %s", r.stderr)
	}
	if !d.logged("nbd.listen is not used") {
		t.Error("it is not told that nbd.listen is not used")
	}
	d.stop()
	if _, err := net.Dial("unix", s.path("one")); err != nil {
		t.Errorf("the socket of a unit does not listen after the stop: %v", err)
	}

	datagram := file(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.path("dg"), Net: "unixgram"}))
	plain, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	deaf := os.NewFile(uintptr(fd), "deaf")
	defer deaf.Close()
	anywhere, anyFile := listen("tcp", "0.0.0.0:0")
	_ = anywhere
	for _, tc := range []struct {
		what, name string
		f          *os.File
		say        string
	}{
		{"a strange name", "web", oneFile, "must be nbd, admin or metrics"},
		{"a datagram socket", "nbd", datagram, "stream socket that listens"},
		{"one that does not listen", "nbd", deaf, "stream socket that listens"},
		{"no socket", "nbd", plain, "is no socket"},
		{"TCP for tierctl", "admin", twoFile, "cannot serve admin"},
		{"the world without TLS", "nbd", anyFile, "loopback"},
	} {
		d := m.launch(s, []string{tc.name}, []*os.File{tc.f})
		if code := d.wait(); code != 1 || !strings.Contains(d.log.String(), tc.say) {
			t.Errorf("%s: exit code %d, want 1 and %q:\n%s", tc.what, code, tc.say, d.log.String())
		}
	}
}
