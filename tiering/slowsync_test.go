package tiering_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering"
)

// hang makes the syncs of a backing hang until the returned function is called.
func (e *env) hang(path string) (release func()) {
	gate := make(chan struct{})
	e.stores[path].Inject(faultstore.Fault{Ops: faultstore.Sync, Wait: gate})
	released := false
	release = func() {
		if !released {
			released = true
			close(gate)
		}
	}
	e.t.Cleanup(release)
	return release
}

// soon runs fn, which must not wait for a hanging backing.
func (e *env) soon(what string, fn func()) {
	e.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		e.t.Fatalf("%s waits for a backing that it has nothing to do with", what)
	}
}

// TestHangingSyncHoldsUpNobodyElse: while the syncs of one backing hang, volumes
// with nothing there flush, take and lose extents, and get clean slots; reads and
// writes of what is on it go on, too.
func TestHangingSyncHoldsUpNobodyElse(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{12}, {12}}}, nil)
	if err := e.Pool.SetPolicy(ctx, "v1", "t1", false); err != nil {
		t.Fatal(err)
	}
	e.write("v0", 0, 4*ext, 1)
	e.write("v1", 0, 4*ext, 2)
	e.settle()

	release := e.hang(path(1, 0))
	e.write("v1", 0, block, 3)
	e.write("v1", 5*ext, block, 3) // staged
	stuck := make(chan error, 1)
	go func() { stuck <- e.volume("v1").Flush(ctx) }()
	eventually(t, "the sync that hangs", func() bool { return e.stores[path(1, 0)].Count(faultstore.Sync) > 0 })

	clean := func() int64 { return e.Pool.Tiers()[0].Slots.Clean }
	before := clean()
	for i := range int64(3) {
		e.soon("flush of an overwrite", func() { e.write("v0", 0, block, byte(i+4)); e.flush("v0") })
		e.soon("flush of a new extent", func() { e.write("v0", (4+i)*ext, ext, 5); e.flush("v0") })
		e.soon("write with FUA", func() {
			if err := e.volume("v0").WriteAt(ctx, make([]byte, block), ext, true); err != nil {
				t.Error(err)
			}
		})
		e.soon("flush of a trim", func() { e.trim("v0", (4+i)*ext, ext); e.flush("v0") })
		e.soon("read", func() { e.expect("v1", 2*ext, block, 2) })
		e.soon("overwrite", func() { e.write("v1", 3*ext, block, 7) })
	}
	eventually(t, "the slots that were given back are clean", func() bool { return clean() == before })
	select {
	case err := <-stuck:
		t.Errorf("the flush of v1 returned %v while the sync hangs", err)
	default:
	}
	release()
	if err := <-stuck; err != nil {
		t.Error(err)
	}
	e.settle()
}

// TestClearsAreOrderedByExtent: a slot whose extent has an older entry on a backing
// that hangs is not used again before that entry is gone, for a rebuild would find
// it; the slots of others are.
func TestClearsAreOrderedByExtent(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{8}, {8}}}, nil)
	if err := e.Pool.SetPolicy(ctx, "v1", "t1", false); err != nil {
		t.Fatal(err)
	}
	e.write("v0", 0, 3*ext, 1)
	e.write("v1", 0, 2*ext, 2)
	e.settle()
	counts := func(tier int) (vacated int64) { return e.Pool.Tiers()[tier].Slots.Vacated }

	release := e.hang(path(1, 0))
	e.soon("a move away", func() {
		if moved, err := e.Pool.MoveExtent(ctx, "v1", 0, 0); err != nil || !moved {
			t.Errorf("MoveExtent = %v, %v", moved, err)
		}
	})
	if got := counts(1); got != 1 {
		t.Errorf("%d slots of the hanging backing are vacated, want the one whose clear hangs", got)
	}
	// The extent goes, and others of the same tier.
	e.soon("trims", func() {
		e.trim("v1", 0, ext)
		e.trim("v0", 0, 2*ext)
		e.flush("v1")
		e.flush("v0")
	})
	eventually(t, "the slots of v0 are clean", func() bool {
		c := e.Pool.Tiers()[0].Slots
		return c.Vacated+c.Free+c.Cleaning == 1
	})
	for range 20 {
		time.Sleep(time.Millisecond)
		if got := counts(0); got != 1 {
			t.Fatalf("%d slots are held back, want the one of the extent that was moved and trimmed", got)
		}
	}
	release()
	e.settle()
	if c := e.Pool.Tiers()[1].Slots; c.Used != 1 {
		t.Errorf("tier 1 has %+v, want 1 used", c)
	}
}

// TestFullLogWaitsForTheFirstRound: when the staged log is full, a first write
// waits for whatever round makes room, not for that of a volume on a backing whose
// syncs hang.
func TestFullLogWaitsForTheFirstRound(t *testing.T) {
	const extents = 900 // more records than the log has room for
	e := newEnv(t, model.Config{Slots: [][]int{{extents + 8}, {8}}, Volumes: []int64{extents * ext, 4 * ext}}, nil)
	if err := e.Pool.SetPolicy(ctx, "v1", "t1", false); err != nil {
		t.Fatal(err)
	}
	e.settle()
	for i := range int64(extents) {
		if i == extents/2 { // in the second half of the log
			release := e.hang(path(1, 0))
			defer release()
			e.write("v1", 0, block, 2)
		}
		e.soon("a first write", func() { e.write("v0", i*ext, block, 1) })
	}
	if got := waits(t, e.Pool)["staged_log"]; got == 0 {
		t.Error("the log was never full: the test shows nothing")
	}
}

// TestForegroundWaitsAreCounted: waits of requests are counted by what they waited
// for.
func TestForegroundWaitsAreCounted(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	release := e.hang(path(0, 0))
	var done = make(chan error, 2)
	go func() { done <- e.volume("v0").Flush(ctx) }()
	eventually(t, "the sync that hangs", func() bool { return e.stores[path(0, 0)].Count(faultstore.Sync) > 0 })
	writes := e.stores[path(0, 0)].Count(faultstore.Write)
	go func() { done <- e.volume("v0").WriteAt(ctx, make([]byte, block), 0, true) }()
	eventually(t, "the write", func() bool { return e.stores[path(0, 0)].Count(faultstore.Write) > writes })
	release()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := waits(t, e.Pool)["round"]; got < 2 {
		t.Errorf("%d waits for rounds are counted, want 2", got)
	}
	e.write("v0", 0, block, 1)
	if err := e.volume("v0").WriteAt(ctx, make([]byte, block), 0, true); err != nil {
		t.Error(err)
	}
	if got := waits(t, e.Pool)["sync"]; got != 1 {
		t.Errorf("%d waits for syncs are counted, want 1", got)
	}
}

// waits returns how often requests had to wait, by cause.
func waits(t *testing.T, p *tiering.Pool) map[string]uint64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(p.Collector())
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]uint64)
	for _, f := range families {
		if f.GetName() == "tierd_foreground_wait_seconds" {
			for _, m := range f.GetMetric() {
				counts[m.GetLabel()[0].GetValue()] = m.GetHistogram().GetSampleCount()
			}
		}
	}
	return counts
}
