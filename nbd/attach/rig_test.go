package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tierd/nbd"
	"tierd/nbd/kernel"
	"tierd/nbd/wire"
)

const patience = 90 * time.Second

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// disk is a Device that reads as one byte.
type disk struct{ size int64 }

func (d disk) Size() int64 { return d.size }
func (d disk) TryRead(p []byte, _ int64) bool {
	for i := range p {
		p[i] = 7
	}
	return true
}
func (d disk) ReadAt(context.Context, []byte, int64) error            { return nil }
func (d disk) BeginWrite(int64, int64) nbd.Mutation                   { return nothing{} }
func (d disk) BeginTrim(int64, int64) nbd.Mutation                    { return nothing{} }
func (d disk) BeginWriteZeroes(int64, int64, bool, bool) nbd.Mutation { return nothing{} }
func (d disk) Span(_, n int64) nbd.Span                               { return nbd.Span{Len: n} }
func (d disk) Promote(context.Context, int64, int64) error            { return nil }
func (d disk) Flush(context.Context) error                            { return nil }
func (d disk) Close() error                                           { return nil }

type nothing struct{}

func (nothing) Run(context.Context, []byte, bool) error { return nil }

// exports is one volume.
type exports struct {
	volume, continuity string
	size               int64
}

func (e exports) List() []nbd.ExportInfo { return nil }
func (e exports) Info(string) (nbd.ExportInfo, error) {
	return nbd.ExportInfo{Name: "home", Size: e.size, Description: fmt.Sprintf("tierd volume %s continuity %s", e.volume, e.continuity)}, nil
}
func (e exports) Open(string) (nbd.Device, error) { return disk{e.size}, nil }

// A rig is a server that comes and goes, and a kernel that believes in its sockets.
type rig struct {
	t      *testing.T
	dir    string
	sock   string
	server *nbd.Server
	served chan error

	mu        sync.Mutex
	on        bool
	device    kernel.Device
	sockets   []int
	ignored   int // sockets for which there was no place
	reconfigs int
	deaths    chan uint32
	proof     func() error  // instead of the reads, if not nil
	failure   error         // of Reconfigure
	silent    bool          // it does not tell what the device serves, as before Linux 5.14
	asked     int           // how often Connected was called
	ended     chan struct{} // closed when the last Run has returned
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "at")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: dir, sock: filepath.Join(dir, "n"), deaths: make(chan uint32, 16)}
	if err := os.MkdirAll(filepath.Join(dir, "sys", "nbd3"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.stop()
		r.drop()
		os.RemoveAll(dir)
	})
	return r
}

func (r *rig) serve(e exports) {
	r.t.Helper()
	l, err := net.Listen("unix", r.sock)
	if err != nil {
		r.t.Fatal(err)
	}
	r.serveOn(l, nbd.Config{Exports: e})
}

func (r *rig) serveOn(l net.Listener, cfg nbd.Config) {
	r.server, r.served = nbd.NewServer(cfg), make(chan error, 1)
	go func(s *nbd.Server, served chan error) { served <- s.Serve(context.Background(), l) }(r.server, r.served)
}

func (r *rig) stop() {
	if r.server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.server.Shutdown(ctx); err != nil {
		r.t.Errorf("Shutdown: %v", err)
	}
	<-r.served
	r.server = nil
}

func (r *rig) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, fd := range r.sockets {
		unix.Close(fd)
	}
	r.sockets, r.on = nil, false
	for _, name := range []string{"pid", "backend"} {
		_ = os.Remove(r.sys(name))
	}
}

// sys is a file in which the kernel tells of the device.
func (r *rig) sys(name string) string { return filepath.Join(r.dir, "sys", "nbd3", name) }

// tell has the kernel tell something of the device.
func (r *rig) tell(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(r.sys(name), []byte(text+"\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// stateDir is where Runs note the device.
func (r *rig) stateDir() string { return filepath.Join(r.dir, "state") }

// Connect is a Kernel's.
func (r *rig) Connect(d kernel.Device) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.on {
		return unix.EBUSY
	}
	r.on, r.device = true, d
	for _, fd := range d.Sockets {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		r.sockets = append(r.sockets, dup)
	}
	if !r.silent {
		if err := os.WriteFile(r.sys("backend"), []byte(d.Backend+"\n"), 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(r.sys("pid"), []byte("1\n"), 0o600)
}

// Reconfigure is a Kernel's: new sockets take the places of dead ones.
func (r *rig) Reconfigure(_ uint32, backend string, sockets []int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reconfigs++
	if r.failure != nil {
		return r.failure
	}
	if backend != r.device.Backend {
		return unix.EINVAL
	}
	for _, fd := range sockets {
		place := -1
		for i, old := range r.sockets {
			if (&link{fd: old}).dead() {
				place = i
				break
			}
		}
		if place < 0 {
			r.ignored++
			continue
		}
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		unix.Close(r.sockets[place])
		r.sockets[place] = dup
	}
	return nil
}

// Connected is a Kernel's.
func (r *rig) Connected(uint32) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	return r.on, nil
}

func (r *rig) setProof(proof func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proof = proof
}

// prove reads on each of the kernel's sockets, as requests of a file system would.
func (r *rig) prove(string) error {
	r.mu.Lock()
	proof := r.proof
	r.mu.Unlock()
	if proof != nil {
		return proof()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, fd := range r.sockets {
		b := make([]byte, wire.RequestSize)
		wire.PutRequest(b, 0, wire.CmdRead, 5, 0, 512)
		tv := unix.NsecToTimeval(int64(patience))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return err
		}
		if err := unix.Send(fd, b, unix.MSG_NOSIGNAL); err != nil {
			return err
		}
		reply := make([]byte, wire.SimpleReplySize+512)
		for got := 0; got < len(reply); {
			n, err := unix.Read(fd, reply[got:])
			if err != nil || n == 0 {
				return fmt.Errorf("read: %d, %w", n, errors.Join(err, io.ErrUnexpectedEOF))
			}
			got += n
		}
		if h := wire.ParseSimpleReply(reply); h.Error != 0 || reply[len(reply)-1] != 7 {
			return fmt.Errorf("reply %+v", h)
		}
	}
	return nil
}

// run starts a Run, and returns how to end it.
func (r *rig) run(uri string, connections int) (stop func() error, ready func() bool) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done, up, ended := make(chan error, 1), make(chan struct{}), make(chan struct{})
	r.ended = ended
	go func() {
		defer close(ended)
		done <- Run(ctx, r, Options{
			Device: "/dev/nbd3", URI: uri, Connections: connections, BlockSize: 4096, Timeout: time.Second, DeadTimeout: time.Minute,
			StateDir: r.stateDir(), Deaths: r.deaths, Logger: slog.New(slog.DiscardHandler),
			SysBlock: filepath.Join(r.dir, "sys"), Prove: r.prove,
		}, func() { close(up) })
	}()
	var once sync.Once
	var err error
	stop = func() error {
		once.Do(func() {
			cancel()
			err = <-done
		})
		return err
	}
	r.t.Cleanup(func() { _ = stop() })
	ready = func() bool {
		select {
		case <-up:
			return true
		case err = <-done:
			once.Do(cancel)
			return false
		case <-time.After(patience):
			r.t.Fatal("neither attached nor refused")
			return false
		}
	}
	return stop, ready
}

func (r *rig) uri() string { return "nbd+unix:///home?socket=" + r.sock }

func (r *rig) state() State {
	s, err := Load(r.stateDir(), "/dev/nbd3")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) await(p Phase, reconnects int) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%s after %d reconnects; it is %+v", p, reconnects, r.state()), func() bool {
		s := r.state()
		return s.Phase == p && s.Reconnects == reconnects
	})
}

var whole = exports{"v-1", "c-1", 1 << 20}
