package tiering_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/ondisk"
	"tierd/tiering/schedule"
)

// pieces counts the bytes that movers write to the slots of one backing: clients
// of these tests write less than a piece at a time.
type pieces struct {
	backing.Store
	written atomic.Int64
	from    int64
	flip    atomic.Bool // a bit of each piece
}

func (s *pieces) WriteAt(ctx context.Context, p []byte, off int64) error {
	if off >= s.from && s.from > 0 && len(p) >= ext {
		s.written.Add(int64(len(p)))
		if s.flip.Load() {
			p = append([]byte(nil), p...)
			p[len(p)/2] ^= 0x10
		}
	}
	return s.Store.WriteAt(ctx, p, off)
}

// newCounted makes an env whose stores are of type pieces.
func newCounted(t *testing.T, cfg model.Config, change func(*tiering.Options)) (*env, map[string]*pieces) {
	t.Helper()
	m := make(map[string]*pieces)
	e := newEnv(t, cfg, func(o *tiering.Options) {
		inner := o.OpenStore
		o.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
			st, err := inner(ctx, spec, create, readOnly)
			if err != nil {
				return nil, err
			}
			s := &pieces{Store: st}
			if sb, err := ondisk.ReadSuperblock(ctx, st); err == nil {
				s.from = sb.Layout.DataOffset
			}
			if !readOnly {
				m[spec.Path] = s
			}
			return s, nil
		}
		if change != nil {
			change(o)
		}
	})
	return e, m
}

// TestBudgetIsNeverExceeded counts what movers write to their targets, copies of
// changed pieces included, while clients change the extents.
func TestBudgetIsNeverExceeded(t *testing.T) {
	const size, limit = 4 * ext, 7*4*ext + 1000
	cfg := model.Config{ExtentSize: size, Slots: [][]int{{20}, {4}, {20}}, Volumes: []int64{20 * size}}
	e, m := newCounted(t, cfg, func(o *tiering.Options) {
		o.Relocation.Limits = schedule.Limits{PerCycle: limit}
		o.Relocation.Workers = 2
	})
	for i := range int64(20) {
		e.write("v0", i*size, block, byte(i+1))
	}
	e.flush("v0")
	if err := e.Pool.SetPolicy(ctx, "v0", "t2", false); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	v := e.volume("v0")
	wg.Go(func() {
		for i := int64(0); !stop.Load(); i++ {
			if err := v.WriteAt(ctx, []byte("change"), i%20*size+i*31%60*block+block, false); err != nil {
				t.Error(err)
				return
			}
		}
	})
	var before int64
	target := m[path(2, 0)]
	for cycle := 1; cycle <= 6; cycle++ {
		if _, err := e.Pool.RunCycle(ctx, true); err != nil {
			t.Fatal(err)
		}
		n := target.written.Load()
		if n-before > limit || n > int64(cycle)*limit {
			t.Errorf("cycle %d: %d bytes were written to targets, %d since the start; the budget is %d a cycle", cycle, n-before, n, int64(limit))
		}
		info := e.Pool.Relocation()
		if info.MovedBytes != n {
			t.Errorf("cycle %d: the pool counts %d bytes, %d were written", cycle, info.MovedBytes, n)
		}
		before = n
	}
	stop.Store(true)
	wg.Wait()
	if before == 0 {
		t.Error("nothing was moved")
	}
	if got := v.Info().Extents[2]; got < 6 {
		t.Errorf("%d extents have moved in 6 cycles with room for 6 each", got)
	}
	e.settle()
	for i := range int64(20) {
		e.expect("v0", i*size, block, byte(i+1))
	}
}

func TestHeadroomBarsPromotionsOnly(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{10}, {12}}, Volumes: []int64{20 * ext}}, func(o *tiering.Options) { o.Relocation.Headroom = 0.5 })
	if err := e.Pool.SetPolicy(ctx, "v0", "t1", false); err != nil {
		t.Fatal(err)
	}
	for i := range int64(10) {
		e.write("v0", i*ext, block, byte(i+1))
	}
	e.settle()
	total := e.Pool.Tiers()[0].Slots.Total
	n := int64(0)
	for i := range int64(10) {
		if moved, err := e.Pool.MoveExtent(ctx, "v0", i*ext, 0); moved && err == nil {
			n++
		} else if !strings.Contains(err.Error(), "target_full") {
			t.Errorf("move %d: %v, want target_full", i, err)
		}
		e.settle()
	}
	if want := total - total/2; n != want {
		t.Errorf("%d of %d slots took promotions, want %d", n, total, want)
	}
	if err := e.Pool.SetPolicy(ctx, "v0", "highest", false); err != nil {
		t.Fatal(err)
	}
	for i := int64(10); i < 10+total-n; i++ {
		e.write("v0", i*ext, block, byte(i+1))
		if got := e.tierOf("v0", i*ext); got != "t0" {
			t.Errorf("a new extent is on %s: headroom must not bar it from t0", got)
		}
	}
	e.settle()
}

func TestPauseAndResume(t *testing.T) {
	e, m := newCounted(t, model.Config{Slots: [][]int{{8}, {8}}}, nil)
	e.write("v0", 0, 4*ext-block, 1)
	e.flush("v0")
	written := func() int64 { return m[path(1, 0)].written.Load() }
	if err := e.Pool.SetPolicy(ctx, "v0", "lowest", false); err != nil {
		t.Fatal(err)
	}
	e.Pool.PauseRelocation()
	if pl, err := e.Pool.RunCycle(ctx, true); err == nil || len(pl.Moves) != 4 {
		t.Errorf("RunCycle while paused = %d moves, %v; want a plan of 4 and an error", len(pl.Moves), err)
	}
	if info := e.Pool.Relocation(); !info.Paused || info.Queued != 0 || written() != 0 {
		t.Errorf("paused: %v, queued %d, written %d", info.Paused, info.Queued, written())
	}
	e.Pool.ResumeRelocation()
	if _, err := e.Pool.RunCycle(ctx, true); err != nil {
		t.Fatal(err)
	}
	if got := e.volume("v0").Info().Extents[1]; got != 4 {
		t.Errorf("%d extents moved after resuming, want 4; skipped %v", got, e.Pool.Relocation().Skipped)
	}
	e.settle()
	e.expect("v0", 0, 4*ext-block, 1)
	if pl, err := e.Pool.RunCycle(ctx, true); err != nil || len(pl.Moves) != 0 {
		t.Errorf("another cycle: %d moves, %v, want none", len(pl.Moves), err)
	}
	e.Close()
	e.Check()
}

// TestMoveCancelled stops a move in the middle by a trim, a zeroing, the deletion
// of the volume, and lets overwrites and restarts pass by. The target's slot is
// given back each time.
func TestMoveCancelled(t *testing.T) {
	for _, tt := range []struct {
		name  string
		do    func(e *env) error
		moved bool
		want  byte
	}{
		{"trim", func(e *env) error { return e.volume("v0").Trim(ctx, 0, ext, false) }, false, 0},
		{"trim and flush", func(e *env) error { return e.volume("v0").Trim(ctx, 0, ext, true) }, false, 0},
		{"zeroes", func(e *env) error { return e.volume("v0").WriteZeroes(ctx, 0, 2*ext, false, false) }, false, 0},
		{"trim and write", func(e *env) error {
			e.trim("v0", 0, ext)
			e.write("v0", 0, ext, 7)
			return nil
		}, false, 7},
		{"overwrite", func(e *env) error { e.write("v0", 0, ext, 8); return nil }, true, 8},
		{"part of a trim", func(e *env) error { return e.volume("v0").Trim(ctx, 0, ext/2, false) }, true, 1},
		{"delete", func(e *env) error { return e.Pool.DeleteVolume(ctx, "v0", true, false) }, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t, model.Config{}, nil)
			e.write("v0", 0, ext, 1)
			e.flush("v0")
			e.settle()
			gate := make(chan struct{})
			data := e.superblock(path(1, 0)).Layout.DataOffset
			held := e.stores[path(1, 0)].Inject(faultstore.Fault{Ops: faultstore.Write, From: data, Times: 1, Wait: gate})
			type result struct {
				moved bool
				err   error
			}
			done := make(chan result)
			go func() {
				moved, err := e.Pool.MoveExtent(ctx, "v0", 0, 1)
				done <- result{moved, err}
			}()
			eventually(t, "the copy", func() bool { return held.Hits() == 1 })
			if pl, err := e.Pool.Locate("v0", 0); err != nil || !pl.Moving {
				t.Errorf("Locate = %+v, %v, want an extent that is moving", pl, err)
			}
			if _, err := e.Pool.MoveExtent(ctx, "v0", 0, 2); err == nil {
				t.Error("a second move of the extent was begun")
			}
			if err := tt.do(e); err != nil {
				t.Fatal(err)
			}
			close(gate)
			got := <-done
			if got.moved != tt.moved || (got.err == nil) != tt.moved {
				t.Errorf("MoveExtent = %v, %v, want %v", got.moved, got.err, tt.moved)
			}
			if tt.name == "delete" {
				eventually(t, "the volume to be forgotten", func() bool { return len(e.Pool.VolumeInfos()) == 1 })
			} else {
				e.expect("v0", 0, ext, tt.want)
			}
			e.settle()
			if tt.name != "delete" {
				e.expect("v0", 0, ext, tt.want)
			}
			e.Close()
			e.Check()
		})
	}
}

// TestMoveSkipped: what cannot be moved is skipped for a reason, and is no error of
// the medium.
func TestMoveSkipped(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{4}, {6}, {6}}, Volumes: []int64{8 * ext, 8 * ext, 8 * ext}}, nil)
	for _, name := range []string{"v0", "v2"} {
		if err := e.Pool.SetPolicy(ctx, name, "t1", false); err != nil {
			t.Fatal(err)
		}
		e.write(name, 0, ext, 1)
		e.flush(name)
	}
	e.write("v1", 0, ext, 1)
	e.write("v0", 5*ext, ext, 1)
	if err := e.Pool.SetPolicy(ctx, "v0", "t0", false); err != nil {
		t.Fatal(err)
	}
	e.write("v0", 6*ext, ext, 1) // on t0, whose failure fails the volume
	e.stores[path(0, 0)].Inject(faultstore.Fault{Ops: faultstore.Sync, Times: 1, Err: syscall.EIO})
	wantErr(t, "flush", e.volume("v0").Flush(ctx), syscall.EIO)
	for _, tt := range []struct {
		volume string
		off    int64
		to     int
		why    string
	}{
		{"v0", 0, 2, "volume_failed"},
		{"v1", 0, 2, "backing_failed"},
		{"v2", 0, 0, "target_full"}, // no backing of t0 serves
	} {
		before := e.Pool.Relocation().Skipped[tt.why]
		moved, err := e.Pool.MoveExtent(ctx, tt.volume, tt.off, tt.to)
		if moved || err == nil || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("move of %s = %v, %v, want %s", tt.volume, moved, err, tt.why)
		}
		if got := e.Pool.Relocation().Skipped[tt.why]; got != before+1 {
			t.Errorf("%s was counted %d times, want once", tt.why, got-before)
		}
	}
	if moved, err := e.Pool.MoveExtent(ctx, "v2", 0, 2); !moved || err != nil {
		t.Errorf("move between serving tiers = %v, %v", moved, err)
	}
	// A plan leaves them alone.
	if err := e.Pool.SetPolicy(ctx, "v0", "lowest", false); err != nil {
		t.Fatal(err)
	}
	for _, m := range e.Pool.PlanNow().Moves {
		if m.Key.Volume == 1 {
			t.Errorf("the plan moves %v of a volume whose flushes fail", m.Key)
		}
	}
}

// TestVerifyFindsFlippedBit: with verification a copy that went wrong is noticed
// before the switch.
func TestVerifyFindsFlippedBit(t *testing.T) {
	e, m := newCounted(t, model.Config{ExtentSize: 4 * ext, Slots: [][]int{{4}, {4}}}, func(o *tiering.Options) { o.Relocation.Verify = true })
	e.write("v0", 0, ext/2, 1)
	e.write("v0", 4*ext-block, block, 2)
	e.flush("v0")
	m[path(1, 0)].flip.Store(true)
	moved, err := e.Pool.MoveExtent(ctx, "v0", 0, 1)
	if moved || err == nil || !strings.Contains(err.Error(), "differs from what was written") {
		t.Errorf("move over a backing that flips bits = %v, %v", moved, err)
	}
	if got := e.tierOf("v0", 0); got != "t0" {
		t.Errorf("the extent is on %s", got)
	}
	e.expect("v0", 0, ext/2, 1)
	e.expect("v0", 4*ext-block, block, 2)
	e.settle()
	m[path(1, 0)].flip.Store(false)
	if moved, err := e.Pool.MoveExtent(ctx, "v0", 0, 1); !moved || err != nil {
		t.Errorf("move over a good backing = %v, %v", moved, err)
	}
	e.expect("v0", 0, ext/2, 1)
	e.expect("v0", 4*ext-block, block, 2)
	e.settle()
}
