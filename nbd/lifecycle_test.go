package nbd

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"tierd/nbd/wire"
)

// TestClientThatNeverReads: the server stops reading its requests, holds a
// bounded amount for it, serves others, and lets go when it is gone.
func TestClientThatNeverReads(t *testing.T) {
	for _, miss := range []bool{false, true} {
		d := newMemDevice(1 << 20)
		d.miss.Store(miss)
		e := newMemExports().add(ExportInfo{Name: "a"}, d)
		s, path := serve(t, Config{Exports: e, MaxInFlight: 16, MaxInFlightBytes: 4 << 20})
		r := open(t, path, "a")
		sent := make(chan int, 1)
		_ = r.nc.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		go func() {
			n := 0
			for {
				m, err := r.nc.Write(message(wire.CmdRead, 0, uint64(n), 0, 128<<10))
				n += m
				if err != nil {
					sent <- n
					return
				}
			}
		}()
		if n := <-sent; n > 4<<20 {
			t.Errorf("the server took %d bytes of requests from a client that reads nothing", n)
		}
		st := s.Snapshot()
		if st.InFlight > 16 || st.BudgetFree < s.cfg.MaxTotalBytes-(4<<20)-16*requestOverhead {
			t.Errorf("held for it: %+v", st)
		}
		open(t, path, "a").inSync()
		r.nc.Close()
		eventually(t, "it is let go", func() bool { return d.closes.Load() >= 1 && s.Snapshot().BudgetFree == s.cfg.MaxTotalBytes })
	}
}

// TestSlowReader takes its replies in small pieces, and gets all of them.
func TestSlowReader(t *testing.T) {
	for _, miss := range []bool{false, true} {
		d := newMemDevice(1 << 20)
		fill(d.data, 5)
		d.miss.Store(miss)
		_, path := serveOne(t, d)
		r := open(t, path, "a")
		const n, size = 40, 100 << 10
		go func() {
			for i := range n {
				_, _ = r.nc.Write(message(wire.CmdRead, 0, uint64(i), uint64(i), size))
			}
		}()
		seen := map[uint64]bool{}
		for range n {
			cookie, errno := r.reply()
			if seen[cookie] || errno != wire.OK {
				t.Fatalf("got cookie %d %s", cookie, wire.ErrnoName(errno))
			}
			seen[cookie] = true
			got := make([]byte, 0, size)
			for len(got) < size {
				runtime.Gosched()
				got = append(got, r.recv(min(7777, size-len(got)))...)
			}
			if !bytes.Equal(got, d.data[cookie:cookie+size]) {
				t.Fatalf("data of %d differ", cookie)
			}
		}
	}
}

// TestInFlightLimits: the server reads no further than its limits allow, and
// goes on when there is room again.
func TestInFlightLimits(t *testing.T) {
	d := newMemDevice(1 << 20)
	gate := make(chan struct{})
	d.miss.Store(true)
	d.readGate = func(int64) <-chan struct{} { return gate }
	e := newMemExports().add(ExportInfo{Name: "a"}, d)
	s, path := serve(t, Config{Exports: e, MaxInFlight: 8})
	r := open(t, path, "a")
	var script []byte
	for i := range 50 {
		script = append(script, message(wire.CmdRead, 0, uint64(i), 0, 512)...)
	}
	r.send(script)
	eventually(t, "the limit is reached", func() bool { return s.Snapshot().InFlight == 8 })
	time.AfterFunc(20*time.Millisecond, func() { close(gate) })
	for range 50 {
		if _, errno := r.reply(); errno != wire.OK {
			t.Fatal(wire.ErrnoName(errno))
		}
		r.recv(512)
	}
	if got := s.Snapshot().InFlight; got > 8 {
		t.Errorf("in flight: %d", got)
	}
}

// TestBudgetHeldByOneClient: small requests of another are served all the same,
// and a large one waits for room.
func TestBudgetHeldByOneClient(t *testing.T) {
	d := newMemDevice(34 << 20)
	gate := make(chan struct{})
	d.miss.Store(true)
	d.readGate = func(off int64) <-chan struct{} {
		if off == 0 {
			return gate
		}
		return nil
	}
	e := newMemExports().add(ExportInfo{Name: "a"}, d)
	s, path := serve(t, Config{Exports: e, MaxTotalBytes: 33 << 20})
	hog := open(t, path, "a")
	hog.send(message(wire.CmdRead, 0, 1, 0, wire.MaxPayload))
	eventually(t, "the budget is held", func() bool { return s.Snapshot().BudgetFree < 2<<20 })
	r := open(t, path, "a")
	for range 10 {
		r.send(message(wire.CmdRead, 0, 2, 1, 1<<20))
		r.want(2, wire.OK)
		r.recv(1 << 20)
	}
	r.send(message(wire.CmdRead, 0, 3, 1, 30<<20))
	eventually(t, "a large request waits", func() bool {
		s.budget.mu.Lock()
		defer s.budget.mu.Unlock()
		return s.budget.released != nil
	})
	close(gate)
	hog.want(1, wire.OK)
	hog.recv(wire.MaxPayload)
	r.want(3, wire.OK)
	r.recv(30 << 20)
}

// TestShutdownWithHandshakesHalfOpen (CVE-2024-7409): clients that are somewhere in the
// handshake, and one that reads its replies a little at a time.
func TestShutdownWithHandshakesHalfOpen(t *testing.T) {
	ca := newCA(t)
	cert := ca.server()
	d := newMemDevice(32 << 20)
	s, path := serve(t, Config{Exports: newMemExports().add(ExportInfo{Name: "a"}, d), TLS: TLSAllow,
		TLSConfig: func() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{cert}} }})
	s.stallTime = patience
	for i := range 200 {
		r := dial(t, path)
		r.recv(wire.GreetingSize)
		switch i % 4 {
		case 1:
			r.send([]byte{0, 0, 0, 3, 'I', 'H'})
		case 2:
			r.send(append([]byte{0, 0, 0, 3}, option(wire.OptInfo, make([]byte, 1000))[:100]...))
		case 3:
			r.send(append([]byte{0, 0, 0, 3}, option(wire.OptStartTLS, nil)...))
			r.final(wire.OptStartTLS)
			r.send([]byte{0x16, 3, 1})
		}
	}
	slow := open(t, path, "a")
	slow.send(message(wire.CmdRead, 0, 1, 0, 32<<20))
	eventually(t, "the reply is under way", func() bool { return s.Snapshot().Requests == 1 })
	read := make(chan int)
	go func() {
		n, p := 0, make([]byte, 512<<10)
		for {
			m, err := slow.nc.Read(p)
			if n += m; err != nil {
				read <- n
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if st := s.Snapshot(); st.Open != 0 {
		t.Errorf("open: got %d", st.Open)
	}
	if got, want := <-read, wire.SimpleReplySize+32<<20; got != want {
		t.Errorf("the slow reader got %d bytes, want %d", got, want)
	}
	if _, err := net.Dial("unix", path); err == nil {
		t.Error("the listener is still open")
	}
}

func TestShutdownAnswersWhatIsInFlight(t *testing.T) {
	d := newMemDevice(1 << 20)
	gate := make(chan struct{})
	d.runGate = func(int64) <-chan struct{} { return gate }
	s, path := serveOne(t, d)
	r := open(t, path, "a")
	idle := open(t, path, "a")
	r.send(message(wire.CmdWrite, wire.CmdFlagFUA, 1, 0, 1, 1))
	eventually(t, "it is in flight", func() bool { return s.Snapshot().InFlight == 1 })
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(context.Background()) }()
	idle.closed()
	close(gate)
	r.want(1, wire.OK)
	r.closed()
	if err := <-done; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// TestShutdownWithStalledClients: whatever a client does not read or send, the others
// are answered, and the end is a good one.
func TestShutdownWithStalledClients(t *testing.T) {
	for _, miss := range []bool{false, true} { // replies of the leader, and of workers
		d := newMemDevice(33 << 20)
		d.miss.Store(miss)
		gate := make(chan struct{})
		d.runGate = func(int64) <-chan struct{} { return gate }
		s, path := serveOne(t, d)
		s.stallTime = 200 * time.Millisecond

		deaf := open(t, path, "a")
		for i := range 40 {
			deaf.send(message(wire.CmdRead, 0, uint64(i), 0, 1<<20))
		}
		small := open(t, path, "a")
		_ = small.nc.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		for i := range 1000 { // of replies that the leader writes
			if _, err := small.nc.Write(message(wire.CmdRead, 0, uint64(i), 0, 32<<10)); err != nil {
				break
			}
		}
		half := open(t, path, "a")
		half.send(message(wire.CmdWrite, 0, 1, 0, 1, 1)[:20])
		payload := open(t, path, "a")
		payload.send(message(wire.CmdWrite, wire.CmdFlagFUA, 7, 0, 1, 1))
		payload.send(message(wire.CmdWrite, 0, 8, 0, wire.MaxPayload))
		payload.send(make([]byte, 1<<20))
		eventually(t, "a write is in flight, and a client reads nothing", func() bool {
			st := s.Snapshot()
			return d.begun.Load() == 1 && st.InFlight >= 3
		})

		done := make(chan error, 1)
		go func() { done <- s.Shutdown(context.Background()) }()
		half.closed()
		eventually(t, "the clients that do not read are let go", func() bool { return s.Snapshot().Open == 1 })
		close(gate)
		payload.want(7, wire.OK)
		payload.closed()
		if err := <-done; err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	}
}

// TestShutdownCutsClientsAtLast: a client that takes its replies drop by drop is cut
// when the time is over, which is a good end as well.
func TestShutdownCutsClientsAtLast(t *testing.T) {
	d := newMemDevice(9 << 20)
	s, path := serveOne(t, d)
	deaf := open(t, path, "a")
	deaf.send(message(wire.CmdRead, 0, 1, 0, 8<<20)) // more than the socket holds
	s.stallTime, s.cutTime = time.Hour, patience
	eventually(t, "it is served", func() bool { return s.Snapshot().InFlight == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// TestShutdownAnswersESHUTDOWN: when the server can wait no longer, what has not had
// its turn is answered so.
func TestShutdownAnswersESHUTDOWN(t *testing.T) {
	d := newMemDevice(1 << 20)
	gate := make(chan struct{})
	d.runGate = func(int64) <-chan struct{} { return gate }
	s, path := serveOne(t, d)
	s.cutTime = patience
	r := open(t, path, "a")
	r.send(message(wire.CmdWrite, wire.CmdFlagFUA, 1, 0, 1, 1))
	r.send(message(wire.CmdWrite, wire.CmdFlagFUA, 2, 1, 1, 1))
	eventually(t, "both are in flight", func() bool { return d.begun.Load() == 2 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(ctx) }()
	eventually(t, "the connection is cut", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			return c.ctx.Err() != nil
		}
		return false
	})
	close(gate)
	for range 2 { // the device looks whether it is still wanted after the gate
		if _, errno := r.reply(); errno != wire.ESHUTDOWN {
			t.Errorf("got %s, want ESHUTDOWN", wire.ErrnoName(errno))
		}
	}
	r.closed()
	if err := <-done; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if got := d.dropped.Load(); got != 2 {
		t.Errorf("dropped: got %d, want 2", got)
	}
}

func TestShutdownIsCutShort(t *testing.T) {
	d := newMemDevice(1 << 20)
	gate := make(chan struct{})
	d.runGate = func(int64) <-chan struct{} { return gate }
	s, path := serveOne(t, d)
	r := open(t, path, "a")
	r.send(message(wire.CmdWrite, wire.CmdFlagFUA, 1, 0, 1, 1))
	r.send(message(wire.CmdWrite, wire.CmdFlagFUA, 2, 1, 1, 1))
	eventually(t, "both are in flight", func() bool { return d.begun.Load() == 2 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	close(gate)
	eventually(t, "the device is closed", func() bool { return d.closes.Load() == 1 })
	if got := d.dropped.Load(); got != 2 {
		t.Errorf("dropped: got %d, want 2", got)
	}
}

// A flakyListener fails now and then as accept does when files run out.
type flakyListener struct {
	net.Listener
	n   int
	end error
}

func (l *flakyListener) Accept() (net.Conn, error) {
	l.n++
	switch {
	case l.n%2 == 1:
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	case l.end != nil:
		return nil, l.end
	}
	return l.Listener.Accept()
}

func TestAcceptErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	inner, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(Config{Exports: threeExports()})
	defer s.Shutdown(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, &flakyListener{Listener: inner}) }()
	for range 3 {
		open(t, path, "a").inSync()
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Serve after cancel: %v", err)
	}

	broken := errors.New("broken")
	inner, err = net.Listen("unix", path+"2")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(context.Background(), &flakyListener{Listener: inner, end: broken}); !errors.Is(err, broken) {
		t.Errorf("Serve: got %v, want broken", err)
	}
}

func TestTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Skip("no loopback:", err)
	}
	s, _ := serve(t, Config{Exports: threeExports()})
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- s.Serve(ctx, l) }()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(patience))
	r := (&raw{t, nc}).hello(bothFlags)
	r.send(option(wire.OptGo, wire.AppendInfoRequest(nil, "a")))
	r.final(wire.OptGo)
	r.inSync()
	// The other listener serves too.
	if got := s.Connections(); len(got) != 1 || got[0].Export != "a" || got[0].Remote != nc.LocalAddr().String() {
		t.Errorf("Connections: got %+v", got)
	}
	r.send(message(wire.CmdDisc, 0, 0, 0, 0))
	if _, err := io.ReadAll(nc); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
