package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tierd/nbd/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// startServer runs a server program that listens on a socket it is given in
// place of SOCKET, and returns the socket's path.
func startServer(t testing.TB, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(args[0]); err != nil {
		t.Skipf("%s is not installed", args[0])
	}
	dir, err := os.MkdirTemp("", "nbd") // a short path: a socket's is limited
	if err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(dir, "s")
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "SOCKET", sock)
	}
	cmd := exec.Command(args[0], args[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	})
	deadline := time.Now().Add(10 * time.Second)
	for {
		conn, err := net.Dial("unix", sock)
		if err == nil {
			_ = conn.Close()
			return sock
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen: %v %s", args[0], err, stderr.String())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func dial(t testing.TB, uri string) *Client {
	t.Helper()
	c, err := Dial(testContext(t), uri)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestParseURI(t *testing.T) {
	tests := []struct {
		uri  string
		want Address
		bad  string
	}{
		{"nbd+unix:///home?socket=/run/x", Address{Network: "unix", Host: "/run/x", Export: "home"}, ""},
		{"nbd+unix:///?socket=/run/x", Address{Network: "unix", Host: "/run/x", Export: ""}, ""},
		{"nbd+unix:///a%2fb%20c?socket=s", Address{Network: "unix", Host: "s", Export: "a/b c"}, ""},
		{"nbd://host/x/y", Address{Network: "tcp", Host: "host:10809", Export: "x/y"}, ""},
		{"nbd://[::1]:99", Address{Network: "tcp", Host: "[::1]:99", Export: ""}, ""},
		{"unix:/run/x", Address{Network: "unix", Host: "/run/x", Export: ""}, ""},
		{"unix:", Address{}, "path of the socket"},
		{"nbd+unix:///x", Address{}, "?socket=PATH"},
		{"nbd:///x", Address{}, "host is missing"},
		{"nbds://h/x", Address{Network: "tcp", Host: "h:10809", Export: "x", TLS: true, TLSName: "h"}, ""},
		{"nbds+unix:///x?socket=/s&tls-certificates=/c&tls-hostname=n", Address{Network: "unix", Host: "/s", Export: "x", TLS: true, Certificates: "/c", TLSName: "n"}, ""},
		{"http://h/x", Address{}, "want nbd[s]://"},
		{"nbd://h:x", Address{}, "parse NBD address"},
	}
	for _, tt := range tests {
		got, err := ParseURI(tt.uri)
		if got != tt.want || (err == nil) != (tt.bad == "") || err != nil && !strings.Contains(err.Error(), tt.bad) {
			t.Errorf("ParseURI(%q) = %+v, %v, want %+v and an error with %q", tt.uri, got, err, tt.want, tt.bad)
		}
	}
}

// TestServers runs the same operations against servers of other projects.
func TestServers(t *testing.T) {
	const size = 64 << 20
	newImage := func() string {
		image := filepath.Join(t.TempDir(), "image")
		if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size)); err != nil {
			t.Fatal(err)
		}
		return image
	}
	servers := map[string][]string{
		"nbdkit memory": {"nbdkit", "-f", "-U", "SOCKET", "memory", "64M"},
		"nbdkit file":   {"nbdkit", "-f", "-U", "SOCKET", "file", newImage()},
		"qemu-nbd":      {"qemu-nbd", "-k", "SOCKET", "-t", "-e", "8", "-f", "raw", "-x", "vol", "--discard=unmap", newImage()},
	}
	for name, args := range servers {
		t.Run(name, func(t *testing.T) {
			sock := startServer(t, args...)
			uri, export := "unix:"+sock, ""
			if name == "qemu-nbd" {
				export = "vol"
				uri = "nbd+unix:///vol?socket=" + sock
			}
			list, err := List(testContext(t), uri)
			if err != nil {
				t.Fatal(err)
			}
			if len(list) != 1 || list[0].Name != export {
				t.Errorf("List = %+v, want one export %q", list, export)
			}
			c := dial(t, uri)
			if got := c.Size(); got != size {
				t.Errorf("Size = %d, want %d", got, size)
			}
			exercise(t, c)
			if err := c.Disconnect(testContext(t)); err != nil {
				t.Error(err)
			}
			if err := c.ReadAt(make([]byte, 512), 0); !errors.Is(err, ErrDisconnected) {
				t.Errorf("read after Disconnect: %v", err)
			}
		})
	}
}

// exercise compares an export with a copy in memory under concurrent use.
func exercise(t *testing.T, c *Client) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const workers = 8
	part := c.Size() / workers
	var wg sync.WaitGroup
	for w := range int64(workers) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(w)))
			shadow := make([]byte, 4<<20)
			base := w * part
			for i := range 150 {
				n := 512 * (1 + rng.Int64N(16))
				if i%10 == 0 {
					n = 512 * (1 + rng.Int64N(4096)) // up to 2 MiB: sent by reference
				}
				off := 512 * rng.Int64N((int64(len(shadow))-n)/512+1)
				p := shadow[off : off+n]
				var err error
				switch k := rng.IntN(10); {
				case k < 5:
					for j := range p {
						p[j] = byte(rng.Uint32())
					}
					err = c.WriteAt(p, base+off, k == 0)
				case k == 5:
					clear(p)
					err = c.WriteZeroes(base+off, n, true, false)
				case k == 6:
					err = c.Flush()
				default:
					got := make([]byte, n)
					if err = c.ReadAt(got, base+off); err == nil && !bytes.Equal(got, p) {
						err = errors.New("wrong data")
					}
				}
				if err != nil {
					t.Errorf("worker %d, operation %d at %d+%d: %v", w, i, off, n, err)
					return
				}
			}
			got := make([]byte, len(shadow))
			if err := c.ReadAt(got, base); err != nil || !bytes.Equal(got, shadow) {
				t.Errorf("worker %d: the whole differs (%v)", w, err)
			}
		})
	}
	wg.Wait()
	if err := c.Trim(0, 1<<20, false); err != nil {
		t.Error(err)
	}
	for _, err := range []error{
		c.ReadAt(make([]byte, 512), c.Size()), c.ReadAt(make([]byte, 512), -1), c.WriteAt(nil, 0, false), c.Trim(c.Size()-512, 1024, false),
	} {
		if !errors.Is(err, ErrRange) {
			t.Errorf("a range outside: %v, want ErrRange", err)
		}
	}
	if n := c.Outstanding(); n != 0 {
		t.Errorf("%d outstanding at rest", n)
	}
}

func TestErrorReplies(t *testing.T) {
	sock := startServer(t, "nbdkit", "-f", "-U", "SOCKET", "--filter=error", "memory", "1M", "error-pwrite=ENOSPC", "error-pwrite-rate=100%", "error-pread=EIO", "error-pread-rate=100%")
	c := dial(t, "unix:"+sock)
	if err := c.ReadAt(make([]byte, 4096), 0); !errors.Is(err, syscall.EIO) {
		t.Errorf("read: %v, want EIO", err)
	}
	if err := c.WriteAt(make([]byte, 4096), 0, false); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write: %v, want ENOSPC", err)
	}
	if err := c.Flush(); err != nil {
		t.Errorf("an answered error must leave the connection usable: %v", err)
	}
}

func TestUnknownExport(t *testing.T) {
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	sock := startServer(t, "qemu-nbd", "-k", "SOCKET", "-t", "-f", "raw", "-x", "vol", image)
	_, err := Dial(testContext(t), "nbd+unix:///other?socket="+sock)
	var refused *OptionError
	if !errors.As(err, &refused) || refused.Reply != wire.RepErrUnknown {
		t.Errorf("got %v, want a refusal with ERR_UNKNOWN", err)
	}
}

func TestDialGivesUp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		conn, err := l.Accept()
		if err == nil {
			cancel() // accepted, and never a word
			defer conn.Close()
			_, _ = conn.Read(make([]byte, 1))
		}
	}()
	if _, err := Dial(ctx, fmt.Sprintf("nbd://%s/x", l.Addr())); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
}

func TestConsume(t *testing.T) {
	o := outgoing{buf: []byte("abcdef"), refs: []ref{{at: 2, p: []byte("XY")}, {at: 2, p: []byte("Z")}, {at: 6, p: []byte("!")}}}
	const want = "abXYZcdef!"
	for step := 1; step <= len(want); step++ {
		o.load()
		var got []byte
		for len(o.segs) > 0 {
			flat := bytes.Join(o.segs, nil)
			n := min(step, len(flat))
			got = append(got, flat[:n]...)
			o.consume(n)
		}
		if string(got) != want {
			t.Errorf("in steps of %d: %q, want %q", step, got, want)
		}
	}
}

// FuzzHandshake lets any bytes answer the client's options.
func FuzzHandshake(f *testing.F) {
	g := make([]byte, wire.GreetingSize)
	wire.PutGreeting(g, wire.HandshakeFixedNewstyle)
	b := make([]byte, wire.OptionReplySize+wire.InfoExportSize+wire.OptionReplySize)
	wire.PutOptionReply(b, wire.OptGo, wire.RepInfo, wire.InfoExportSize)
	wire.PutExportInfo(b[wire.OptionReplySize:], 1<<20, 1)
	wire.PutOptionReply(b[wire.OptionReplySize+wire.InfoExportSize:], wire.OptGo, wire.RepAck, 0)
	f.Add(append(g, b...), true)
	srv := make([]byte, wire.OptionReplySize)
	data := wire.AppendServer(nil, "home", "text")
	wire.PutOptionReply(srv, wire.OptList, wire.RepServer, uint32(len(data)))
	f.Add(append(append(bytes.Clone(g), srv...), data...), false)
	f.Fuzz(func(t *testing.T, in []byte, open bool) {
		h := haggler{conn: &canned{Reader: bytes.NewReader(in)}}
		if h.greet() != nil {
			return
		}
		if open {
			if info, err := h.open("x"); err == nil && (int64(info.size) < 0 || info.blocks.MaximumBlockSize == 0) {
				t.Errorf("accepted %+v", info)
			}
		} else if list, err := h.list(); err == nil && len(list) > len(in) {
			t.Errorf("%d exports in %d bytes", len(list), len(in))
		}
	})
}

// canned is a connection that says what it was given.
type canned struct {
	net.Conn
	*bytes.Reader
}

func (c *canned) Read(p []byte) (int, error)  { return c.Reader.Read(p) }
func (c *canned) Write(p []byte) (int, error) { return len(p), nil }

func TestSlotsAreReused(t *testing.T) {
	sock := startServer(t, "nbdkit", "-f", "-U", "SOCKET", "memory", "1M")
	c := dial(t, "unix:"+sock)
	p := make([]byte, 4096)
	for range 100 {
		if err := c.ReadAt(p, 0); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(c.slots); got != 1 {
		t.Errorf("%d slots after requests one at a time, want 1", got)
	}
	if got, want := c.free, []uint32{0}; !reflect.DeepEqual(got, want) {
		t.Errorf("free slots %v, want %v", got, want)
	}
}

// BenchmarkRead reads 4 KiB at random with a queue on one connection, in the
// way the load generator does.
func BenchmarkRead(b *testing.B) {
	sock := startServer(b, "nbdkit", "-f", "-U", "SOCKET", "memory", "256M")
	for _, depth := range []int{1, 32} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			c := dial(b, "unix:"+sock)
			b.ReportAllocs()
			left := b.N
			var running atomic.Int32
			running.Store(int32(depth))
			end := make(chan struct{})
			rng := rand.New(rand.NewPCG(1, 1))
			next := func(r *Request) {
				if r.Err != nil {
					b.Error(r.Err)
				}
				if left <= 0 || r.Err != nil {
					if running.Add(-1) == 0 {
						close(end)
					}
					return
				}
				left--
				r.Offset = rng.Int64N(c.Size()/4096) * 4096
				if err := c.Queue(r); err != nil {
					b.Error(err)
				}
			}
			reqs := make([]Request, depth)
			left -= depth
			for i := range reqs {
				reqs[i] = Request{Cmd: wire.CmdRead, Buf: make([]byte, 4096), Done: next}
			}
			b.ResetTimer()
			for i := range reqs {
				if err := c.Queue(&reqs[i]); err != nil {
					b.Fatal(err)
				}
			}
			c.Kick()
			<-end
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "IOPS")
		})
	}
}
