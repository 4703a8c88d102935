package load

import (
	"bufio"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"tierd/nbd/wire"
)

// memServer is a small NBD server over memory that can be made to misbehave.
type memServer struct {
	t    testing.TB
	sock string
	l    net.Listener

	mu    sync.Mutex
	data  []byte
	conns map[net.Conn]bool
	wg    sync.WaitGroup

	// Called under mu for each request; true leaves out what it would do to the
	// data, and errno is answered.
	hook func(r wire.Request, payload []byte) (skip bool, errno wire.Errno)
}

func startMem(t testing.TB, size int) *memServer {
	t.Helper()
	dir, err := os.MkdirTemp("", "nbd")
	if err != nil {
		t.Fatal(err)
	}
	s := &memServer{t: t, data: make([]byte, size), conns: map[net.Conn]bool{}, sock: filepath.Join(dir, "s")}
	s.start()
	t.Cleanup(func() {
		s.kill()
		_ = os.RemoveAll(dir)
	})
	return s
}

func (s *memServer) start() {
	l, err := net.Listen("unix", s.sock)
	if err != nil {
		s.t.Fatal(err)
	}
	s.l = l
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.conns[c] = true
			s.mu.Unlock()
			s.wg.Go(func() {
				s.serve(c)
				_ = c.Close()
				s.mu.Lock()
				delete(s.conns, c)
				s.mu.Unlock()
			})
		}
	})
}

// kill ends the server at once; the data stays.
func (s *memServer) kill() {
	_ = s.l.Close()
	s.hangUp()
	s.wg.Wait()
}

// hangUp closes all connections.
func (s *memServer) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.Close()
	}
}

func (s *memServer) uri() string { return "unix:" + s.sock }

func (s *memServer) serve(c net.Conn) {
	in, out := bufio.NewReader(c), bufio.NewWriter(c)
	read := func(n int) []byte {
		b := make([]byte, n)
		if _, err := io.ReadFull(in, b); err != nil {
			return nil
		}
		return b
	}
	g := make([]byte, wire.GreetingSize)
	wire.PutGreeting(g, wire.HandshakeFixedNewstyle|wire.HandshakeNoZeroes)
	_, _ = c.Write(g)
	read(wire.ClientFlagsSize)
	h := read(wire.OptionHeaderSize)
	if h == nil || read(int(wire.ParseOption(h).Length)) == nil {
		return
	}
	flags := wire.FlagHasFlags | wire.FlagSendFlush | wire.FlagSendFUA | wire.FlagSendTrim | wire.FlagSendWriteZeroes | wire.FlagCanMultiConn
	b := make([]byte, wire.OptionReplySize+wire.InfoExportSize+wire.OptionReplySize)
	wire.PutOptionReply(b, wire.OptGo, wire.RepInfo, wire.InfoExportSize)
	wire.PutExportInfo(b[wire.OptionReplySize:], uint64(len(s.data)), flags)
	wire.PutOptionReply(b[wire.OptionReplySize+wire.InfoExportSize:], wire.OptGo, wire.RepAck, 0)
	_, _ = c.Write(b)
	for {
		h := read(wire.RequestSize)
		if h == nil {
			return
		}
		r := wire.ParseRequest(h)
		var payload []byte
		if r.Type == wire.CmdWrite {
			if payload = read(int(r.Length)); payload == nil {
				return
			}
		}
		if r.Type == wire.CmdDisc {
			return
		}
		errno, body := s.do(r, payload)
		reply := make([]byte, wire.SimpleReplySize)
		wire.PutSimpleReply(reply, errno, r.Handle)
		_, _ = out.Write(reply)
		_, _ = out.Write(body)
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}

func (s *memServer) do(r wire.Request, payload []byte) (wire.Errno, []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var skip bool
	errno := wire.OK
	if s.hook != nil {
		skip, errno = s.hook(r, payload)
	}
	area := s.data[r.Offset : r.Offset+uint64(r.Length)]
	switch {
	case r.Type == wire.CmdRead && errno == wire.OK:
		return errno, append([]byte(nil), area...)
	case skip:
	case r.Type == wire.CmdWrite:
		copy(area, payload)
	case r.Type == wire.CmdTrim || r.Type == wire.CmdWriteZeroes:
		clear(area)
	}
	return errno, nil
}
