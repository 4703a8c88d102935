package backing_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"tierd/pkg/backing"
	"tierd/pkg/clock"
)

// call is an operation that runs against a fake clock.
type call struct{ done chan error }

func start(op func() error) call {
	c := call{make(chan error, 1)}
	go func() { c.done <- op() }()
	return c
}

// waiters yields until n sleeps hang on the clock.
func waiters(clk *clock.Fake, n int) {
	for clk.Waiters() != n {
		runtime.Gosched()
	}
}

func (c call) check(t *testing.T, what string, want bool) {
	t.Helper()
	select {
	case err := <-c.done:
		c.done <- err
		if !want || err != nil {
			t.Errorf("%s: done with %v, want done %v", what, err, want)
		}
	default:
		if want {
			if err := <-c.done; err != nil { // the clock has fired: it must end
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}

func newSimulated(t *testing.T, sim backing.Simulate) (*backing.Simulated, *clock.Fake) {
	clk := clock.NewFake(time.Unix(1000, 0))
	s := backing.NewSimulated(backing.NewMem(1<<20), sim, clk)
	t.Cleanup(func() { s.Close() })
	return s, clk
}

// TestSimulatedQueue: operations are served one by one, latencies overlap.
func TestSimulatedQueue(t *testing.T) {
	const ms = time.Millisecond
	s, clk := newSimulated(t, backing.Simulate{Latency: 5 * ms, IOPS: 100})
	p := make([]byte, 512)
	read := func() error { return s.ReadAt(ctx, p[:256], 0) }
	write := func() error { return s.WriteAt(ctx, p[256:], 0) }

	// Served from 0 to 10 and 10 to 20 ms, answered at 15 and 25 ms.
	first := start(read)
	waiters(clk, 1)
	second := start(write)
	waiters(clk, 2)
	sync := start(func() error { return s.Sync(ctx) })
	waiters(clk, 3)

	clk.Advance(14 * ms)
	first.check(t, "read at 14 ms", false)
	clk.Advance(1 * ms)
	first.check(t, "read at 15 ms", true)
	second.check(t, "write at 15 ms", false)
	clk.Advance(9 * ms)
	second.check(t, "write at 24 ms", false)
	sync.check(t, "sync at 24 ms", false)
	clk.Advance(1 * ms)
	second.check(t, "write at 25 ms", true)
	sync.check(t, "sync at 25 ms", true)

	// Nothing is written that a sync would wait for, and idle time is not saved up.
	if err := s.Sync(ctx); err != nil {
		t.Errorf("Sync = %v, want nil", err)
	}
	clk.Advance(time.Hour)
	third := start(read)
	waiters(clk, 1)
	clk.Advance(14 * ms)
	third.check(t, "read after an hour, 14 ms", false)
	clk.Advance(1 * ms)
	third.check(t, "read after an hour, 15 ms", true)
}

func TestSimulatedBandwidth(t *testing.T) {
	s, clk := newSimulated(t, backing.Simulate{Bandwidth: 1 << 20})
	c := start(func() error { return s.ReadAt(ctx, make([]byte, 512<<10), 0) })
	waiters(clk, 1)
	clk.Advance(499 * time.Millisecond)
	c.check(t, "half a second of bytes at 499 ms", false)
	clk.Advance(time.Millisecond)
	c.check(t, "half a second of bytes at 500 ms", true)
}

func TestSimulatedCancelAndCache(t *testing.T) {
	s, clk := newSimulated(t, backing.Simulate{Latency: time.Second})
	if s.TryReadAt(make([]byte, 1), 0) {
		t.Error("TryReadAt = true: a hit must be delayed too")
	}
	ctx, cancel := context.WithCancel(ctx)
	c := start(func() error { return s.ReadAt(ctx, make([]byte, 1), 0) })
	waiters(clk, 1)
	cancel()
	if err := <-c.done; !errors.Is(err, context.Canceled) {
		t.Errorf("ReadAt = %v, want Canceled", err)
	}
	for what, err := range map[string]error{"Zero": s.Zero(context.Background(), 0, 1<<20), "Discard": s.Discard(context.Background(), 0, 4096)} {
		if err != nil { // and they return without the clock moving
			t.Errorf("%s = %v, want nil", what, err)
		}
	}
}

// TestSimulatedFile: Open builds the wrapper, and never answers early.
func TestSimulatedFile(t *testing.T) {
	o := newOptions(t, 1<<20)
	o.Simulate = &backing.Simulate{Latency: 3 * time.Millisecond}
	s := mustOpen(t, o)
	if info := s.Info(); !info.Simulated || info.PageCacheReads || info.Path != o.Path {
		t.Errorf("Info = %+v, want simulated, without page cache reads, and the path", info)
	}
	began := time.Now()
	if err := s.ReadAt(ctx, make([]byte, 1), 0); err != nil {
		t.Fatal(err)
	}
	if got := time.Since(began); got < o.Simulate.Latency {
		t.Errorf("answered after %v, want at least %v", got, o.Simulate.Latency)
	}
}

// TestSimulatedSyncOfNothing syncs a disk that was never written: there is nothing
// to wait for.
func TestSimulatedSyncOfNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d := backing.NewSimulated(backing.NewMem(1<<20), backing.Simulate{Latency: time.Millisecond}, nil)
	defer d.Close()
	if err := d.Sync(ctx); err != nil {
		t.Errorf("got %v, want nil at once", err)
	}
}
