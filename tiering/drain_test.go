package tiering_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering"
)

// drainConfig is a pool whose first tier has two backings.
var drainConfig = model.Config{Slots: [][]int{{8, 8}, {24}}, Volumes: []int64{12 * ext, 12 * ext}}

func (e *env) drain(ref string, action tiering.DrainAction, rate ...int64) {
	e.t.Helper()
	var r *int64
	if len(rate) > 0 {
		r = &rate[0]
	}
	if err := e.Pool.Drain(ctx, ref, action, r, false); err != nil {
		e.t.Fatalf("drain %s: %s: %v", ref, action, err)
	}
}

// backing describes the backing at a path.
func (e *env) backing(path string) tiering.BackingInfo {
	e.t.Helper()
	for _, b := range e.Pool.Backings() {
		if b.Path == path {
			return b
		}
	}
	e.t.Fatalf("there is no backing %s", path)
	return tiering.BackingInfo{}
}

// awaitDrain waits until the drain of a backing is in a state.
func (e *env) awaitDrain(path string, want tiering.DrainState) tiering.DrainInfo {
	e.t.Helper()
	var info tiering.DrainInfo
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(time.Millisecond) {
		if info = e.backing(path).Drain; info.State == want {
			return info
		}
		if time.Now().After(deadline) {
			e.t.Fatalf("drain of %s: %+v, want %s", path, info, want)
		}
	}
}

// populate writes n extents of a volume, each with bytes of its own, and flushes.
func (e *env) populate(name string, n int64, first byte) {
	e.t.Helper()
	for i := range n {
		e.write(name, i*ext, ext, first+byte(i))
	}
	e.flush(name)
}

func (e *env) expectFilled(name string, n int64, first byte) {
	e.t.Helper()
	for i := range n {
		e.expect(name, i*ext, ext, first+byte(i))
	}
}

// TestDrainEmptiesABacking drains a backing under writes, and looks that nothing
// comes back to it and that progress is told in one direction.
func TestDrainEmptiesABacking(t *testing.T) {
	e := newEnv(t, drainConfig, nil)
	e.populate("v0", 12, 1)
	from := e.backing(path(0, 0))
	if from.Slots.Used == 0 {
		t.Fatalf("nothing on the backing to be drained: %+v", from.Slots)
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	v := e.volume("v1")
	wg.Go(func() {
		for i := int64(0); !stop.Load(); i++ {
			off := i % 4 * ext
			if err := v.WriteAt(ctx, []byte(strings.Repeat("x", block)), off, i%8 == 0); err != nil {
				t.Errorf("write beside the drain: %v", err)
				return
			}
			if i%16 == 7 {
				if err := v.Trim(ctx, off, ext, false); err != nil {
					t.Errorf("trim beside the drain: %v", err)
					return
				}
			}
		}
	})
	e.drain(path(0, 0), tiering.DrainStart)
	var last tiering.DrainInfo
	eventually(t, "the drain to end", func() bool {
		info := e.backing(path(0, 0)).Drain
		if info.Moved < last.Moved {
			t.Errorf("%d bytes moved, %d before", info.Moved, last.Moved)
		}
		last = info
		return info.State == tiering.DrainEmpty
	})
	stop.Store(true)
	wg.Wait()
	if last.Total != from.Slots.Used*ext || last.Moved != last.Total || last.Left != 0 || last.ETA != 0 {
		t.Errorf("at the end: %+v, of %d extents", last, from.Slots.Used)
	}
	e.settle2(path(0, 0))
	e.expectFilled("v0", 12, 1)
	e.trim("v1", 0, 12*ext)
	e.populate("v1", 12, 50)
	if n := e.backing(path(0, 0)).Slots.Used; n != 0 {
		t.Errorf("%d slots of a draining backing were given out", n)
	}
	e.Close()
	e.Check()
	e.Open()
	if info := e.backing(path(0, 0)); !info.Draining || info.Drain.State != tiering.DrainEmpty {
		t.Errorf("after a restart: %+v", info)
	}
	e.expectFilled("v0", 12, 1)
	e.expectFilled("v1", 12, 50)
}

// settle2 waits until a drained backing has nothing on its way.
func (e *env) settle2(path string) {
	e.t.Helper()
	for _, v := range e.Pool.Volumes() {
		if err := v.Flush(ctx); err != nil {
			e.t.Fatal(err)
		}
	}
	eventually(e.t, "vacated slots to become free", func() bool {
		c := e.backing(path).Slots
		return c.Used+c.Vacated == 0
	})
}

// TestDrainSurvives kills, and cuts the power of, a pool in the middle of a drain.
func TestDrainSurvives(t *testing.T) {
	for _, how := range []string{"close", "kill", "cut"} {
		t.Run(how, func(t *testing.T) {
			e := newEnv(t, drainConfig, nil)
			e.populate("v0", 12, 1)
			n := e.backing(path(0, 0)).Slots.Used
			e.drain(path(0, 0), tiering.DrainStart, ext) // an extent a second
			eventually(t, "the drain to begin", func() bool { return e.backing(path(0, 0)).Drain.Moved > 0 })
			switch how {
			case "close":
				e.Close()
			case "kill":
				e.Kill()
			case "cut":
				e.Cut(3, 0.5)
			}
			e.Open()
			info := e.backing(path(0, 0))
			if !info.Draining || info.Drain.Rate != ext || info.Drain.Total != n*ext {
				t.Errorf("after a %s: %+v", how, info.Drain)
			}
			e.drain(path(0, 0), tiering.DrainStart, 0)
			e.awaitDrain(path(0, 0), tiering.DrainEmpty)
			e.expectFilled("v0", 12, 1)
		})
	}
}

func TestDrainPauseAndCancel(t *testing.T) {
	e := newEnv(t, drainConfig, nil)
	e.populate("v0", 12, 1)
	e.drain(path(0, 0), tiering.DrainStart, ext)
	e.drain(path(0, 0), tiering.DrainPause)
	if s := e.backing(path(0, 0)).Drain.State; s != tiering.DrainPaused {
		t.Errorf("paused drain is %q", s)
	}
	e.Close()
	e.Open()
	if s := e.backing(path(0, 0)).Drain.State; s != tiering.DrainPaused {
		t.Errorf("paused drain is %q after a restart", s)
	}
	e.write("v1", 0, block, 9)
	left := e.backing(path(0, 0)).Slots.Used
	e.drain(path(0, 0), tiering.DrainCancel)
	if b := e.backing(path(0, 0)); b.Draining || b.Drain.State != tiering.DrainNone || b.Slots.Used != left {
		t.Errorf("after the cancel: %+v", b)
	}
	wantErr(t, "resume of a cancelled drain", e.Pool.Drain(ctx, path(0, 0), tiering.DrainResume, nil, false), tiering.ErrBusy)
	eventually(t, "clean slots after the cancel", func() bool { return e.backing(path(0, 0)).Slots.Clean > 0 })
	for i := range int64(12) { // it takes extents again
		e.write("v1", i*ext, block, 10)
	}
	if n := e.backing(path(0, 0)).Slots.Used; n <= left {
		t.Errorf("%d slots used after the cancel, %d before: %+v", n, left, e.Pool.Backings())
	}
	e.drain(path(0, 0), tiering.DrainStart)
	e.drain(path(0, 0), tiering.DrainPause)
	e.drain(path(0, 0), tiering.DrainResume)
	e.awaitDrain(path(0, 0), tiering.DrainEmpty)
	e.expectFilled("v0", 12, 1)
}

// TestDrainTellsWhatKeepsAnExtent makes each kind of extent that cannot move.
func TestDrainTellsWhatKeepsAnExtent(t *testing.T) {
	stuck := func(t *testing.T, e *env, p, reason, words string) {
		t.Helper()
		info := e.awaitDrain(p, tiering.DrainStuck)
		if info.Stuck[reason] == 0 || !strings.Contains(info.Example, words) || info.ETA >= 0 {
			t.Errorf("drain is stuck with %v, %q, want %s and %q", info.Stuck, info.Example, reason, words)
		}
		if n := strings.Count(e.logs.String(), "drain goes on later"); n != 1 {
			t.Errorf("it was logged %d times:\n%s", n, e.logs)
		}
	}
	t.Run("no room", func(t *testing.T) {
		e := newEnv(t, model.Config{Slots: [][]int{{8}, {4}}, Volumes: []int64{12 * ext}}, nil)
		n := e.backing(path(0, 0)).Slots.Total + e.backing(path(1, 0)).Slots.Total
		e.populate("v0", min(n-1, 12), 1)
		e.drain(path(0, 0), tiering.DrainStart)
		stuck(t, e, path(0, 0), "target_full", "no other backing has a free slot")
		e.trim("v0", 0, 12*ext) // makes room, and takes what is there away
		e.flush("v0")
		e.awaitDrain(path(0, 0), tiering.DrainEmpty)
	})
	t.Run("pinned", func(t *testing.T) {
		e := newEnv(t, model.Config{Slots: [][]int{{8}, {16}}, Volumes: []int64{4 * ext}}, nil)
		if err := e.Pool.SetPolicy(ctx, "v0", "t0", false); err != nil {
			t.Fatal(err)
		}
		e.populate("v0", 4, 1)
		e.drain(path(0, 0), tiering.DrainStart)
		stuck(t, e, path(0, 0), "pinned", "policy asks for tier t0")
		if err := e.Pool.SetPolicy(ctx, "v0", "auto", false); err != nil {
			t.Fatal(err)
		}
		e.awaitDrain(path(0, 0), tiering.DrainEmpty)
		e.expectFilled("v0", 4, 1)
	})
	t.Run("source error", func(t *testing.T) {
		e := newEnv(t, drainConfig, nil)
		e.populate("v0", 12, 1)
		e.stores[path(0, 0)].Inject(faultstore.Fault{Ops: faultstore.Read, Err: syscall.EIO})
		e.drain(path(0, 0), tiering.DrainStart)
		stuck(t, e, path(0, 0), "source_error", "input/output error")
		e.stores[path(0, 0)].Clear()
		e.awaitDrain(path(0, 0), tiering.DrainEmpty)
		e.expectFilled("v0", 12, 1)
	})
}

func TestDrainRefuses(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{8}}, Volumes: []int64{4 * ext}}, nil)
	wantErr(t, "drain of the only backing", e.Pool.Drain(ctx, path(0, 0), tiering.DrainStart, nil, false), tiering.ErrBusy)
	wantErr(t, "drain of none", e.Pool.Drain(ctx, "/nowhere", tiering.DrainStart, nil, false), tiering.ErrNotFound)
	minus := int64(-1)
	wantErr(t, "negative rate", e.Pool.Drain(ctx, path(0, 0), tiering.DrainStart, &minus, false), tiering.ErrInvalid)
	if e.backing(path(0, 0)).Draining {
		t.Error("a refused drain began")
	}
}

// TestDrainKeepsReservations: a drain that would take what is reserved for volumes is
// refused, as is the removal of an empty backing, and one that comes to it later
// stops before.
func TestDrainKeepsReservations(t *testing.T) {
	config := model.Config{Slots: [][]int{{8}, {8}}, Volumes: []int64{8 * ext, 8 * ext}}
	t.Run("refused", func(t *testing.T) {
		e := newEnv(t, config, nil)
		e.populate("v1", 4, 1)
		e.setSpace("v0", tiering.Space{Reservation: 5 * ext})
		for _, dryRun := range []bool{true, false} {
			err := e.Pool.Drain(ctx, path(0, 0), tiering.DrainStart, nil, dryRun)
			wantErr(t, "drain", err, tiering.ErrBusy)
			if err == nil || !strings.Contains(err.Error(), "reserved for volumes") {
				t.Errorf("the error does not say why: %v", err)
			}
		}
		if e.backing(path(0, 0)).Draining {
			t.Error("the backing takes no extents any more")
		}
		e.setSpace("v0", tiering.Space{Reservation: 4 * ext})
		e.drain(path(0, 0), tiering.DrainStart)
		e.awaitDrain(path(0, 0), tiering.DrainEmpty)
		if err := e.fill("v0", 0, 4); err != nil {
			t.Errorf("an extent within the reservation: %v", err)
		}
		e.expectFilled("v1", 4, 1)
	})
	t.Run("later", func(t *testing.T) {
		e := newEnv(t, config, nil)
		e.populate("v1", 4, 1)
		e.setSpace("v0", tiering.Space{Reservation: 2 * ext})
		e.Pool.PauseRelocation()
		e.drain(path(0, 0), tiering.DrainStart)
		e.awaitDrain(path(0, 0), tiering.DrainWaiting)
		for i := range int64(4) {
			e.write("v1", (4+i)*ext, ext, byte(5+i))
		}
		e.flush("v1")
		e.Pool.ResumeRelocation()
		info := e.awaitDrain(path(0, 0), tiering.DrainStuck)
		if info.Stuck["reserved"] != 2 || !strings.Contains(info.Example, "reserved for volumes") {
			t.Errorf("drain is stuck with %v, %q, want 2 reserved", info.Stuck, info.Example)
		}
		if err := e.fill("v0", 0, 2); err != nil {
			t.Errorf("an extent within the reservation: %v", err)
		}
		e.trim("v1", 4*ext, 4*ext)
		e.flush("v1")
		e.awaitDrain(path(0, 0), tiering.DrainEmpty)
		e.expectFilled("v1", 4, 1)
	})
	t.Run("removal", func(t *testing.T) {
		e := newEnv(t, config, nil)
		e.setSpace("v0", tiering.Space{Reservation: 8 * ext})
		e.setSpace("v1", tiering.Space{Reservation: ext})
		_, err := e.Pool.RemoveBacking(ctx, path(0, 0), false)
		wantErr(t, "removal", err, tiering.ErrBusy)
		e.setSpace("v1", tiering.Space{})
		if _, err := e.Pool.RemoveBacking(ctx, path(0, 0), false); err != nil {
			t.Error(err)
		}
	})
}
