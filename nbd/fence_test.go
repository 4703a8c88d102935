package nbd

import (
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
