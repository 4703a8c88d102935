package tiering_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
	"tierd/pkg/clock"
	"tierd/test/model"
	"tierd/tiering"
)

// armedTarget flips a bit of each large write from its first sync since it was
// armed, before which it calls then.
type armedTarget struct {
	backing.Store
	then  func()
	armed atomic.Bool
	flip  atomic.Bool
}

func (s *armedTarget) Sync(ctx context.Context) error {
	if s.armed.CompareAndSwap(true, false) {
		s.then()
		s.flip.Store(true)
	}
	return s.Store.Sync(ctx)
}

func (s *armedTarget) WriteAt(ctx context.Context, p []byte, off int64) error {
	if s.flip.Load() && len(p) >= 64<<10 {
		p = append([]byte(nil), p...)
		p[len(p)/2] ^= 0x10
	}
	return s.Store.WriteAt(ctx, p, off)
}

// TestPiecesThatAreCopiedAgainAreReadBack: a piece that a client writes to while
// the extent is copied is copied again, and that copy is read back like the first,
// be it in a pass of its own or in the exclusion.
func TestPiecesThatAreCopiedAgainAreReadBack(t *testing.T) {
	const piece, pieces = 128 << 10, 8
	const size = pieces * piece
	for _, again := range []int64{1, 4} { // up to two are copied in the exclusion
		target := new(armedTarget)
		e := newEnv(t, model.Config{ExtentSize: size, Slots: [][]int{{4}, {4}}, Volumes: []int64{4 * size}}, func(o *tiering.Options) {
			o.Relocation.Verify = true
			inner := o.OpenStore
			o.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
				st, err := inner(ctx, spec, create, readOnly)
				if err != nil || readOnly || spec.Path != path(1, 0) {
					return st, err
				}
				target.Store = st
				return target, nil
			}
		})
		e.write("v0", 0, size, 1)
		e.flush("v0")
		v := e.volume("v0")
		target.then = func() {
			for i := range again {
				if err := v.WriteAt(ctx, []byte{9}, i*piece, false); err != nil {
					t.Error(err)
				}
			}
		}
		target.armed.Store(true)
		moved, err := e.Pool.MoveExtent(ctx, "v0", 0, 1)
		if moved || err == nil || !strings.Contains(err.Error(), "differs from what was written") {
			t.Errorf("%d pieces copied again, wrongly: move = %v, %v", again, moved, err)
		}
		target.flip.Store(false)
		if got := e.tierOf("v0", 0); got != "t0" {
			t.Errorf("the extent is on %s", got)
		}
		for i := range again {
			e.expect("v0", i*piece, 1, 9)
			e.expect("v0", i*piece+1, piece-1, 1)
		}
		e.settle()
	}
}

// TestRanksChangeUnderAMove: a move goes to the tier that was meant when it was
// proposed, whatever rank that has by now.
func TestRanksChangeUnderAMove(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	e.flush("v0")
	e.Pool.PauseRelocation()
	var wg sync.WaitGroup
	wg.Go(func() {
		if moved, err := e.Pool.MoveExtent(ctx, "v0", 0, 2); !moved || err != nil {
			t.Errorf("move = %v, %v", moved, err)
		}
	})
	eventually(t, "the move under way", func() bool { return e.Pool.Relocation().InFlight == 1 })
	time.Sleep(10 * time.Millisecond) // it waits for the pause to end, or has yet to look where it goes
	e.add(tiering.AddOptions{Tier: "first", Before: "t0"}, 8)
	e.Pool.ResumeRelocation()
	wg.Wait()
	if got := e.tierOf("v0", 0); got != "t2" {
		t.Errorf("the extent is on %s, want t2", got)
	}
	e.expect("v0", 0, ext, 1)
	e.settle()
}

// TestHangingTargetLeavesMoversToOthers: moves onto a backing that hangs do not keep
// those of a plan waiting that have nothing to do with it.
func TestHangingTargetLeavesMoversToOthers(t *testing.T) {
	var now *clock.Fake
	e := newEnv(t, model.Config{Slots: [][]int{{8}, {8}, {8}}}, func(o *tiering.Options) {
		o.Relocation.Workers = 2
		fakeTime(&now)(o)
	})
	e.populate("v0", 3, 1)
	e.populate("v1", 3, 11)
	gate := make(chan struct{})
	hang := e.stores[path(1, 0)].Inject(faultstore.Fault{Ops: faultstore.Write, From: e.superblock(path(1, 0)).Layout.DataOffset, Wait: gate})
	var once sync.Once
	release := func() { once.Do(func() { close(gate) }) }
	t.Cleanup(release)
	cycle := func(volume, policy string) {
		if err := e.Pool.SetPolicy(ctx, volume, policy, false); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Pool.RunCycle(ctx, false); err != nil {
			t.Fatal(err)
		}
	}
	cycle("v0", "t1")
	eventually(t, "both movers to hang", func() bool { return hang.Hits() == 2 })
	cycle("v1", "t2")
	eventually(t, "the moves that need not hang", func() bool {
		now.Advance(time.Second)
		return e.volume("v1").Info().Extents[2] == 3
	})
	release()
	eventually(t, "the others", func() bool { now.Advance(time.Second); return e.Pool.Relocation().InFlight == 0 })
	e.expectFilled("v0", 3, 1)
	e.expectFilled("v1", 3, 11)
	e.settle()
	e.Close()
	e.Check()
}

// TestHangingRoundKeepsNoDrain: moves of a volume whose rounds hang await their
// commit in vain, and those of others go on.
func TestHangingRoundKeepsNoDrain(t *testing.T) {
	var now *clock.Fake
	e := newEnv(t, model.Config{Slots: [][]int{{100}, {1}, {200}}, Volumes: []int64{80 * ext, 8 * ext, 8 * ext, 8 * ext}}, fakeTime(&now))
	if err := e.Pool.SetPolicy(ctx, "v0", "t1", false); err != nil {
		t.Fatal(err)
	}
	e.write("v0", 79*ext, ext, 9)
	if got := e.tierOf("v0", 79*ext); got != "t1" {
		t.Fatalf("the extent is on %s", got)
	}
	if err := e.Pool.SetPolicy(ctx, "v0", "auto", false); err != nil {
		t.Fatal(err)
	}
	e.populate("v0", 75, 1)
	others := []string{"v1", "v2", "v3"}
	for _, name := range others {
		e.populate(name, 4, 21)
	}
	release := e.hang(path(1, 0))
	e.write("v0", 79*ext, block, 10) // its rounds hang from now on
	e.drain(path(0, 0), tiering.DrainStart)
	eventually(t, "the others to leave", func() bool {
		now.Advance(time.Second)
		for _, name := range others {
			if e.volume(name).Info().Extents[0] > 0 {
				return false
			}
		}
		return true
	})
	if n := e.volume("v0").Info().Extents[0]; n == 0 {
		t.Error("all moves of the volume whose rounds hang were made: the test shows nothing")
	}
	release()
	eventually(t, "the drain", func() bool { now.Advance(time.Second); return e.backing(path(0, 0)).Drain.State == tiering.DrainEmpty })
	e.expectFilled("v0", 75, 1)
	for _, name := range others {
		e.expectFilled(name, 4, 21)
	}
	e.Close()
	e.Check()
}

// TestFlightsDoNotWaitForEachOther: of two backings whose calls fail, one that
// hangs as well does not keep extents on the other.
func TestFlightsDoNotWaitForEachOther(t *testing.T) {
	var now *clock.Fake
	e := newEnv(t, model.Config{Slots: [][]int{{6, 6}, {24}}, Volumes: []int64{8 * ext}}, fakeTime(&now))
	e.populate("v0", 8, 1)
	on := make(map[string][]int64)
	for i := range int64(8) {
		pl, err := e.Pool.Locate("v0", i*ext)
		if err != nil {
			t.Fatal(err)
		}
		on[pl.Backing] = append(on[pl.Backing], i)
	}
	if len(on[path(0, 0)]) < 2 || len(on[path(0, 1)]) < 2 {
		t.Fatalf("extents are on %v", on)
	}
	gate := make(chan struct{})
	var once sync.Once
	release := func() { once.Do(func() { close(gate) }) }
	t.Cleanup(release)
	var hangs []*faultstore.Injection
	for _, p := range []string{path(0, 0), path(0, 1)} {
		bad := e.stores[p].Inject(faultstore.Fault{Ops: faultstore.Read, Times: 1, Err: syscall.EIO})
		wantErr(t, "read", e.volume("v0").ReadAt(ctx, make([]byte, block), on[p][0]*ext), syscall.EIO)
		bad.Disable()
		hangs = append(hangs, e.stores[p].Inject(faultstore.Fault{Ops: faultstore.Read, Wait: gate}))
	}
	eventually(t, "two flights", func() bool { now.Advance(time.Second); return hangs[0].Hits() > 0 && hangs[1].Hits() > 0 })
	release()
	eventually(t, "the flight", func() bool { now.Advance(time.Second); return e.volume("v0").Info().Extents[0] == 0 })
	e.expectFilled("v0", 8, 1)
	e.settle()
}
