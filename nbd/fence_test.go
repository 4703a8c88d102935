package nbd

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"tierd/nbd/wire"
)

// openAs is open for a client that says who it is; rep is the answer to GO.
func openAs(t testing.TB, path, name string, id byte, generation uint64) (r *raw, rep wire.Reply) {
	t.Helper()
	r = dial(t, path).hello(bothFlags)
	r.send(option(wire.OptClient, wire.AppendClient(nil, [16]byte{id}, generation)))
	if got := r.final(wire.OptClient); got != wire.RepAck {
		t.Fatalf("OptClient: got %s", wire.ReplyName(got))
	}
	return r, r.goExport(name)
}

func TestFencing(t *testing.T) {
	d := newMemDevice(1 << 20)
	e := newMemExports().add(ExportInfo{Name: "a"}, d).add(ExportInfo{Name: "b"}, newMemDevice(1<<20))
	s, path := serve(t, Config{Exports: e})
	must := func(what string, got, want wire.Reply) {
		t.Helper()
		if got != want {
			t.Errorf("%s: got %s, want %s", what, wire.ReplyName(got), wire.ReplyName(want))
		}
	}
	one, rep := openAs(t, path, "a", 1, 5)
	must("first", rep, wire.RepAck)
	other, rep := openAs(t, path, "a", 2, 1)
	must("another client", rep, wire.RepAck)
	elsewhere, rep := openAs(t, path, "b", 1, 1)
	must("another export", rep, wire.RepAck)
	two, rep := openAs(t, path, "a", 1, 5)
	must("the same generation", rep, wire.RepAck)
	late, rep := openAs(t, path, "a", 1, 4)
	must("an earlier generation", rep, wire.RepErrPolicy)
	late.send(option(wire.OptList, nil))
	must("it goes on", late.final(wire.OptList), wire.RepAck)
	anonymous := open(t, path, "a")
	next, rep := openAs(t, path, "a", 1, 6)
	must("the next generation", rep, wire.RepAck)
	one.closed()
	two.closed()
	for _, r := range []*raw{other, elsewhere, anonymous, next} {
		r.inSync()
	}
	next.nc.Close()
	eventually(t, "the last one is gone", func() bool { return s.Snapshot().Open == 4 })
	_, rep = openAs(t, path, "a", 1, 1)
	must("nobody is there any more", rep, wire.RepAck)

	r := dial(t, path).hello(bothFlags)
	for _, n := range []int{0, 16, 23, 25, 4096} {
		r.send(option(wire.OptClient, make([]byte, n)))
		must("malformed", r.final(wire.OptClient), wire.RepErrInvalid)
	}
}

// TestFencedRequestsAreNotBegun: what an earlier connection has not begun when GO is
// answered is never begun (H21). Its socket is not hung up, and what it has begun keeps
// its place in line.
func TestFencedRequestsAreNotBegun(t *testing.T) {
	d := newMemDevice(1 << 20)
	gate := make(chan struct{})
	var held atomic.Bool
	held.Store(true)
	d.runGate = func(off int64) <-chan struct{} {
		if off == 0 && held.Load() {
			return gate
		}
		return nil
	}
	s, path := serve(t, Config{Exports: newMemExports().add(ExportInfo{Name: "a"}, d), MaxInFlight: 1})
	s.pollEvery = time.Hour
	old, _ := openAs(t, path, "a", 1, 1)
	old.send(message(wire.CmdWrite, wire.CmdFlagFUA, 1, 0, 1, 'x')) // held, and ahead of all others
	old.send(message(wire.CmdWrite, wire.CmdFlagFUA, 2, 9, 1, 'o')) // not read yet
	eventually(t, "one is begun", func() bool { return d.begun.Load() == 1 })
	fresh, rep := openAs(t, path, "a", 1, 2)
	if rep != wire.RepAck {
		t.Fatalf("GO: got %s", wire.ReplyName(rep))
	}
	if got := d.begun.Load(); got != 1 {
		t.Fatalf("%d changes are begun, want 1", got)
	}
	fresh.send(message(wire.CmdWrite, wire.CmdFlagFUA, 3, 9, 1, 'n'))
	eventually(t, "the new one is begun", func() bool { return d.begun.Load() == 2 })
	held.Store(false)
	close(gate)
	fresh.want(3, wire.OK)
	eventually(t, "the old one has ended", func() bool { return s.Snapshot().Open == 1 })
	fresh.send(message(wire.CmdRead, 0, 4, 9, 1))
	fresh.wantData(4, []byte{'n'})
	if got := d.begun.Load(); got != 2 {
		t.Errorf("%d changes are begun, want 2", got)
	}
}

// TestFenceWaits: who may not wait for an earlier connection for longer is told so in
// time, and who is to end does not wait at all. Neither claims the export from then on.
func TestFenceWaits(t *testing.T) {
	s, _ := serveOne(t, newMemDevice(1<<20))
	pipe := func() *conn {
		server, client := net.Pipe()
		t.Cleanup(func() { client.Close() })
		c := newConn(s, server)
		t.Cleanup(c.kill)
		return c
	}
	old := pipe() // which never halts, since nobody serves it
	s.mu.Lock()
	s.conns[old] = struct{}{}
	s.mu.Unlock()
	defer s.remove(old)
	id := identity{generation: 1, given: true}
	if _, err := old.claim(id, "a"); err != nil {
		t.Fatal(err)
	}
	c := pipe()
	id.generation++
	if err := c.fence(id, "a", time.Millisecond); !errors.Is(err, errNotFenced) {
		t.Errorf("out of patience: got %v, want %v", err, errNotFenced)
	}
	c.stop()
	if err := c.fence(id, "a", time.Hour); !errors.Is(err, ErrShutdown) {
		t.Errorf("stopped: got %v, want %v", err, ErrShutdown)
	}
}

// TestRefusedExportIsNotClaimed: a client whose GO passes the fence and fails afterwards
// stands in nobody's way.
func TestRefusedExportIsNotClaimed(t *testing.T) {
	e := newMemExports().add(ExportInfo{Name: "a"}, newMemDevice(1<<20))
	s, path := serve(t, Config{Exports: e})
	setErr := func(err error) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.err = err
	}
	setErr(errors.New("cannot be opened"))
	if _, rep := openAs(t, path, "a", 1, 9); rep != wire.RepErrPlatform {
		t.Fatalf("GO: got %s, want %s", wire.ReplyName(rep), wire.ReplyName(wire.RepErrPlatform))
	}
	setErr(nil)
	if _, rep := openAs(t, path, "a", 1, 3); rep != wire.RepAck {
		t.Errorf("GO of an earlier generation: got %s, want %s", wire.ReplyName(rep), wire.ReplyName(wire.RepAck))
	}
	eventually(t, "it transmits", func() bool { return s.Snapshot().Transmitting == 1 })
}

// TestExportNameReasons: EXPORT_NAME has no error replies, so what the observer is told
// is all there is to know.
func TestExportNameReasons(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"missing", nil, ReasonNoExport},
		{"a", ErrForbidden, ReasonRefused},
		{"a", errors.New("cannot be opened"), ReasonRefused},
		{"a", ErrShutdown, ReasonShutdown},
	} {
		e := newMemExports().add(ExportInfo{Name: "a"}, newMemDevice(1<<20))
		e.err = c.err
		o := &countingObserver{}
		_, path := serve(t, Config{Exports: e, Observer: o})
		r := dial(t, path).hello(bothFlags)
		r.send(option(wire.OptExportName, []byte(c.name)))
		r.closed()
		eventually(t, "the reason is told", func() bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			return len(o.reasons) > 0
		})
		if o.reasons[c.want] != 1 {
			t.Errorf("%s, %v: got %v, want %s", c.name, c.err, o.reasons, c.want)
		}
	}
}
