package nbd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"tierd/nbd/wire"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

// serve starts a Server on a Unix socket, ended with the test.
func serve(t testing.TB, cfg Config) (*Server, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := serveOn(t, cfg, l)
	return s, path
}

// serveOn starts a Server on a listener, ended with the test.
func serveOn(t testing.TB, cfg Config, l net.Listener) *Server {
	t.Helper()
	s := NewServer(cfg)
	done := make(chan error, 1)
	go func() { done <- s.Serve(context.Background(), l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return s
}

func serveOne(t testing.TB, d Device) (*Server, string) {
	e := newMemExports().add(ExportInfo{Name: "a", Description: "first", PreferredBlock: 8192}, d)
	e.def = "a"
	return serve(t, Config{Exports: e})
}

// A raw is a client that speaks bytes.
type raw struct {
	t  testing.TB
	nc net.Conn
}

func dial(t testing.TB, path string) *raw {
	t.Helper()
	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(patience))
	return &raw{t, nc}
}

func (r *raw) send(b []byte) {
	r.t.Helper()
	if _, err := r.nc.Write(b); err != nil {
		r.t.Fatalf("send: %v", err)
	}
}

func (r *raw) recv(n int) []byte {
	r.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(r.nc, b); err != nil {
		r.t.Fatalf("receive %d bytes: %v", n, err)
	}
	return b
}

// closed checks that the server has closed, with nothing sent before.
func (r *raw) closed() {
	r.t.Helper()
	rest, err := io.ReadAll(r.nc)
	if errors.Is(err, errTimeout(err)) {
		r.t.Fatal("the connection is still open")
	}
	if len(rest) > 0 {
		r.t.Fatalf("got %x before the end, want nothing", rest)
	}
}

func errTimeout(err error) error {
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return err
	}
	return io.ErrNoProgress
}

// hello takes the greeting and sends the client's flags.
func (r *raw) hello(flags uint32) *raw {
	r.t.Helper()
	g := wire.ParseGreeting(r.recv(wire.GreetingSize))
	if g.OldstyleMagic != wire.GreetingMagic || g.OptionMagic != wire.OptionMagic {
		r.t.Fatalf("greeting: got %+v", g)
	}
	if want := wire.HandshakeFixedNewstyle | wire.HandshakeNoZeroes; g.HandshakeFlags != want {
		r.t.Fatalf("handshake flags: got %#x, want %#x", g.HandshakeFlags, want)
	}
	r.send([]byte{byte(flags >> 24), byte(flags >> 16), byte(flags >> 8), byte(flags)})
	return r
}

const bothFlags = wire.ClientFixedNewstyle | wire.ClientNoZeroes

func option(opt wire.Option, data []byte) []byte {
	b := make([]byte, wire.OptionHeaderSize)
	wire.PutOption(b, opt, uint32(len(data)))
	return append(b, data...)
}

type optReply struct {
	rep  wire.Reply
	data []byte
}

// answers returns the replies to an option, up to the final one.
func (r *raw) answers(opt wire.Option) (list []optReply) {
	r.t.Helper()
	for {
		h := wire.ParseOptionReply(r.recv(wire.OptionReplySize))
		if h.ReplyMagic != wire.OptionReplyMagic || h.ID != opt {
			r.t.Fatalf("option reply: got %+v, want one to option %d", h, opt)
		}
		list = append(list, optReply{h.Type, r.recv(int(h.Length))})
		if h.Type == wire.RepAck || wire.IsError(h.Type) {
			return list
		}
	}
}

// final returns the final reply to an option just sent.
func (r *raw) final(opt wire.Option) wire.Reply {
	r.t.Helper()
	list := r.answers(opt)
	return list[len(list)-1].rep
}

// open is a connection to an export, in the transmission phase.
func open(t testing.TB, path, name string) *raw {
	t.Helper()
	r := dial(t, path).hello(bothFlags)
	r.send(option(wire.OptGo, wire.AppendInfoRequest(nil, name)))
	if got := r.final(wire.OptGo); got != wire.RepAck {
		t.Fatalf("GO %q: got %s", name, wire.ReplyName(got))
	}
	return r
}

func message(cmd wire.Cmd, flags uint16, cookie, off uint64, n uint32, payload ...byte) []byte {
	b := make([]byte, wire.RequestSize)
	wire.PutRequest(b, flags, cmd, cookie, off, n)
	return append(b, payload...)
}

// reply receives a simple reply.
func (r *raw) reply() (cookie uint64, errno wire.Errno) {
	r.t.Helper()
	h := wire.ParseSimpleReply(r.recv(wire.SimpleReplySize))
	if h.ReplyMagic != wire.SimpleReplyMagic {
		r.t.Fatalf("reply magic: got %#x", h.ReplyMagic)
	}
	return h.Handle, h.Error
}

// want receives a reply that must be this one.
func (r *raw) want(cookie uint64, errno wire.Errno) {
	r.t.Helper()
	c, e := r.reply()
	if c != cookie || e != errno {
		r.t.Fatalf("reply: got cookie %d %s, want cookie %d %s", c, wire.ErrnoName(e), cookie, wire.ErrnoName(errno))
	}
}

// wantData receives a successful reply to a READ.
func (r *raw) wantData(cookie uint64, data []byte) {
	r.t.Helper()
	r.want(cookie, wire.OK)
	if got := r.recv(len(data)); !bytes.Equal(got, data) {
		r.t.Fatalf("data of cookie %d differ", cookie)
	}
}

// inSync checks that the connection still works.
func (r *raw) inSync() {
	r.t.Helper()
	r.send(message(wire.CmdRead, 0, 0xabcdef, 0, 1))
	r.want(0xabcdef, wire.OK)
	r.recv(1)
}

// eventually waits for what other goroutines are about to make true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

func fill(b []byte, seed byte) []byte {
	for i := range b {
		b[i] = byte(i)*7 + byte(i>>8)*3 + seed
	}
	return b
}
