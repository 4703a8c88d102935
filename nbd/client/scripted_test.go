package client

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"tierd/nbd/wire"
)

// scripted is a server that a test plays by hand on one end of a socket pair.
type scripted struct {
	t    *testing.T
	conn net.Conn
}

// pair opens a Client whose server the test plays, and does the handshake.
func pair(t *testing.T, size uint64, flags uint16) (*Client, *scripted) {
	t.Helper()
	dir, err := os.MkdirTemp("", "nbd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type result struct {
		c   *Client
		err error
	}
	ch := make(chan result, 1)
	go func() {
		c, err := Dial(testContext(t), "unix:"+l.Addr().String())
		ch <- result{c, err}
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted{t: t, conn: conn}
	t.Cleanup(func() { _ = conn.Close() })
	s.handshake(size, flags)
	r := <-ch
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { _ = r.c.Close() })
	return r.c, s
}

func (s *scripted) read(n int) []byte {
	b := make([]byte, n)
	if _, err := io.ReadFull(s.conn, b); err != nil {
		s.t.Error(err)
	}
	return b
}

func (s *scripted) write(b []byte) {
	if _, err := s.conn.Write(b); err != nil {
		s.t.Error(err)
	}
}

func (s *scripted) handshake(size uint64, flags uint16) {
	g := make([]byte, wire.GreetingSize)
	wire.PutGreeting(g, wire.HandshakeFixedNewstyle|wire.HandshakeNoZeroes)
	s.write(g)
	s.read(wire.ClientFlagsSize)
	o := wire.ParseOption(s.read(wire.OptionHeaderSize))
	s.read(int(o.Length))
	b := make([]byte, wire.OptionReplySize+wire.InfoExportSize+wire.OptionReplySize)
	wire.PutOptionReply(b, wire.OptGo, wire.RepInfo, wire.InfoExportSize)
	wire.PutExportInfo(b[wire.OptionReplySize:], size, flags)
	wire.PutOptionReply(b[wire.OptionReplySize+wire.InfoExportSize:], wire.OptGo, wire.RepAck, 0)
	s.write(b)
}

func (s *scripted) request() wire.Request { return wire.ParseRequest(s.read(wire.RequestSize)) }

func (s *scripted) reply(cookie uint64, payload []byte) {
	b := make([]byte, wire.SimpleReplySize)
	wire.PutSimpleReply(b, wire.OK, cookie)
	s.write(append(b, payload...))
}

func TestRepliesInAnyOrder(t *testing.T) {
	c, s := pair(t, 1<<20, wire.FlagHasFlags)
	const n = 10
	done := make(chan int, n)
	reqs := make([]Request, n)
	for i := range reqs {
		reqs[i] = Request{Cmd: wire.CmdRead, Offset: int64(i) * 4096, Buf: make([]byte, 4096), Done: func(*Request) { done <- i }}
		if err := c.Queue(&reqs[i]); err != nil {
			t.Fatal(err)
		}
	}
	c.Kick()
	got := make([]wire.Request, n)
	for i := range got {
		got[i] = s.request()
	}
	for i := n - 1; i >= 0; i-- {
		s.reply(got[i].Handle, bytes.Repeat([]byte{byte(i)}, 4096))
	}
	for i := n - 1; i >= 0; i-- {
		if d := <-done; d != i {
			t.Errorf("request %d was done, want %d", d, i)
		}
		if reqs[i].Err != nil || reqs[i].Buf[4095] != byte(i) {
			t.Errorf("request %d: %v, %d", i, reqs[i].Err, reqs[i].Buf[4095])
		}
	}
}

// TestDeadConnection has requests outstanding in every state when the server
// goes: sent, half answered, not sent for want of room.
func TestDeadConnection(t *testing.T) {
	endings := map[string]func(s *scripted, r wire.Request){
		"closed":         func(s *scripted, r wire.Request) {},
		"bad magic":      func(s *scripted, r wire.Request) { s.write(make([]byte, wire.SimpleReplySize)) },
		"wrong cookie":   func(s *scripted, r wire.Request) { s.reply(r.Handle+1<<32, nil) },
		"no such cookie": func(s *scripted, r wire.Request) { s.reply(1<<31, nil) },
		"in a payload":   func(s *scripted, r wire.Request) { s.reply(r.Handle, make([]byte, 100)) },
		"in a large one": func(s *scripted, r wire.Request) { s.reply(r.Handle, make([]byte, 1<<19)) },
	}
	for name, end := range endings {
		t.Run(name, func(t *testing.T) {
			c, s := pair(t, 1<<30, wire.FlagHasFlags)
			var lost atomic.Int32
			const n = 16
			done := make(chan struct{}, n)
			for i := range n {
				r := &Request{Cmd: wire.CmdRead, Buf: make([]byte, 1<<20)}
				if i > 0 {
					r.Cmd = wire.CmdWrite // 15 MiB do not fit into any socket
				}
				r.Done = func(r *Request) {
					if errors.Is(r.Err, ErrDisconnected) {
						lost.Add(1)
					}
					clear(r.Buf)
					done <- struct{}{}
				}
				if err := c.Submit(r); err != nil {
					t.Fatal(err)
				}
			}
			r := s.request()
			end(s, r)
			if name == "closed" || strings.HasPrefix(name, "in ") {
				_ = s.conn.Close()
			}
			for range n {
				<-done
			}
			if got := lost.Load(); got != n {
				t.Errorf("%d requests lost, want %d", got, n)
			}
			<-c.Dead()
			if err := c.Submit(&Request{Cmd: wire.CmdRead, Buf: make([]byte, 1), Done: func(*Request) { t.Error("called") }}); !errors.Is(err, ErrDisconnected) {
				t.Errorf("Submit afterwards: %v", err)
			}
		})
	}
}

// TestAnswersWhileSending plays a server that does not read on before its long
// answer is taken, while the client is in the middle of a batch larger than
// any socket: neither may wait for the other.
func TestAnswersWhileSending(t *testing.T) {
	c, s := pair(t, 1<<30, wire.FlagHasFlags)
	done := make(chan error, 3)
	tell := func(r *Request) { done <- r.Err }
	for _, r := range []*Request{
		{Cmd: wire.CmdWrite, Buf: make([]byte, copyMax+1), Done: tell},
		{Cmd: wire.CmdRead, Buf: make([]byte, 8<<20), Done: tell},
		{Cmd: wire.CmdWrite, Buf: make([]byte, 30<<20), Done: tell},
	} {
		if err := c.Queue(r); err != nil {
			t.Fatal(err)
		}
	}
	c.Kick()
	w1 := s.request()
	s.read(int(w1.Length))
	read := s.request()
	s.reply(w1.Handle, nil)
	s.reply(read.Handle, make([]byte, read.Length))
	w2 := s.request()
	s.read(int(w2.Length))
	s.reply(w2.Handle, nil)
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestUnsupported(t *testing.T) {
	c, _ := pair(t, 1<<20, wire.FlagHasFlags)
	for name, err := range map[string]error{
		"flush": c.Flush(), "trim": c.Trim(0, 512, false), "zeroes": c.WriteZeroes(0, 512, false, false),
		"fua": c.WriteAt(make([]byte, 512), 0, true),
	} {
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v, want ErrUnsupported", name, err)
		}
	}
}

// TestHandshakeFallback plays a server that knows EXPORT_NAME alone.
func TestHandshakeFallback(t *testing.T) {
	a, b := net.Pipe()
	s := &scripted{t: t, conn: b}
	var wg sync.WaitGroup
	wg.Go(func() {
		g := make([]byte, wire.GreetingSize)
		wire.PutGreeting(g, wire.HandshakeFixedNewstyle)
		s.write(g)
		s.read(wire.ClientFlagsSize)
		o := wire.ParseOption(s.read(wire.OptionHeaderSize))
		s.read(int(o.Length))
		r := make([]byte, wire.OptionReplySize)
		wire.PutOptionReply(r, wire.OptGo, wire.RepErrUnsup, 0)
		s.write(r)
		o = wire.ParseOption(s.read(wire.OptionHeaderSize))
		if name := string(s.read(int(o.Length))); o.ID != wire.OptExportName || name != "old" {
			t.Errorf("option %d %q, want EXPORT_NAME old", o.ID, name)
		}
		out := binary.BigEndian.AppendUint64(nil, 8192)
		out = binary.BigEndian.AppendUint16(out, wire.FlagHasFlags)
		s.write(append(out, make([]byte, wire.ExportNamePadding)...))
		r1 := s.request()
		s.read(4096)
		s.reply(r1.Handle, nil)
		r2 := s.request()
		s.reply(r2.Handle, bytes.Repeat([]byte{7}, 4096))
		_ = b.Close()
	})
	c, err := New(testContext(t), a, "old")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Size() != 8192 {
		t.Errorf("Size = %d, want 8192", c.Size())
	}
	p := make([]byte, 4096)
	if err := c.WriteAt(p, 0, false); err != nil {
		t.Error(err)
	}
	if err := c.ReadAt(p, 4096); err != nil || p[0] != 7 {
		t.Errorf("read %d, %v", p[0], err)
	}
	wg.Wait()
}
