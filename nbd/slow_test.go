package nbd

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"tierd/nbd/wire"
)

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestSlowRequests: what a worker does and an inline call that blocks are told of once,
// with their ages, and not any more when they have ended.
func TestSlowRequests(t *testing.T) {
	d := newMemDevice(1 << 20)
	gate := make(chan struct{})
	d.runGate = func(int64) <-chan struct{} { return gate }
	d.readGate = func(int64) <-chan struct{} { return gate }
	log := new(lockedBuffer)
	e := newMemExports().add(ExportInfo{Name: "a"}, d).add(ExportInfo{Name: "b"}, newMemDevice(1<<20))
	s, path := serve(t, Config{Exports: e, SlowRequest: 50 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	r := open(t, path, "a")
	open(t, path, "b").inSync()
	r.send(message(wire.CmdWrite, 0, 1, 512, 1, 1))                // inline, and blocks
	r.send(message(wire.CmdWrite, wire.CmdFlagFUA, 2, 1024, 1, 1)) // in a worker
	r.send(message(wire.CmdRead, 0, 3, 2048, 8))                   // a miss
	of := func() SlowStats {
		for _, v := range s.Slow() {
			if v.Export == "a" {
				return v
			}
			if v.Export == "b" && (v.Oldest > 0 || len(v.Counts) > 0) {
				t.Errorf("b has slow requests: %+v", v)
			}
		}
		return SlowStats{}
	}
	eventually(t, "all three are slow", func() bool {
		v := of()
		return v.Counts[wire.CmdWrite] == 2 && v.Counts[wire.CmdRead] == 1 && v.Oldest >= 50*time.Millisecond
	})
	time.Sleep(200 * time.Millisecond) // several looks later they count no more than once
	close(gate)
	for range 3 {
		if h := wire.ParseSimpleReply(r.recv(wire.SimpleReplySize)); h.Error != wire.OK {
			t.Errorf("%+v", h)
		} else if h.Handle == 3 {
			r.recv(8)
		}
	}
	eventually(t, "nothing is in flight", func() bool { return of().Oldest == 0 })
	if v := of(); v.Counts[wire.CmdWrite] != 2 || v.Counts[wire.CmdRead] != 1 {
		t.Errorf("counts: %v", v.Counts)
	}
	text := log.String()
	if n := strings.Count(text, "request takes long"); n < 1 || n > 3 { // one each 5 s, and none twice
		t.Errorf("%d lines about three requests that take long, want 1 in each 5 s:\n%s", n, text)
	}
	if n := strings.Count(text, "slow request ended"); n != 3 {
		t.Errorf("%d lines about ends, want 3:\n%s", n, text)
	}
}

// TestPendingIsEmptyInTheEnd: whatever way requests take, none stays in the list.
func TestPendingIsEmptyInTheEnd(t *testing.T) {
	d := newMemDevice(1 << 20)
	s, path := serveOne(t, d)
	r := open(t, path, "a")
	for round := range 50 {
		gate := make(chan struct{})
		var once sync.Once
		d.mu.Lock()
		d.runGate = func(int64) <-chan struct{} {
			once.Do(func() { time.AfterFunc(time.Duration(round%5)*watchTick/2, func() { close(gate) }) })
			return gate
		}
		d.mu.Unlock()
		for i := range 8 {
			r.send(message(wire.CmdWrite, uint16(i%2), uint64(i), uint64(i), 1, 1))
		}
		for range 8 {
			r.reply()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		eventually(t, "the list is empty", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.pending.first == nil && len(c.pending.returned) == 0
		})
	}
}
