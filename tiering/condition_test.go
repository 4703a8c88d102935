package tiering_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
	"tierd/pkg/clock"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/ondisk"
)

// logged counts the lines of the log that have all of the words.
func (e *env) logged(words ...string) int {
	n := 0
next:
	for line := range strings.Lines(e.logs.String()) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue next
			}
		}
		n++
	}
	return n
}

// condition returns the condition of the backing of tier i.
func (e *env) condition(i int) tiering.Condition { return e.Pool.Backings()[i].State }

func (e *env) wantCondition(what string, i int, want tiering.Condition) {
	e.t.Helper()
	if b := e.Pool.Backings()[i]; b.State != want || (b.Why == "") != (want == tiering.ConditionOK) {
		e.t.Errorf("%s: backing of tier %d is %s (%q), want %s", what, i, b.State, b.Why, want)
	}
}

// fakeTime gives an env a clock of its own.
func fakeTime(c **clock.Fake) func(*tiering.Options) {
	return func(o *tiering.Options) {
		if *c == nil {
			*c = clock.NewFake(time.Unix(1_700_000_000, 0))
		}
		o.Clock = *c
	}
}

// advanceUntil moves the clock on until cond holds. Between two steps the pool has a
// second to do what the last one brought about, so that the clock does not run away
// from a machine that stalls.
func advanceUntil(t *testing.T, what string, now *clock.Fake, step time.Duration, cond func() bool) {
	t.Helper()
	var next time.Time
	eventually(t, what, func() bool {
		if time.Now().After(next) {
			now.Advance(step)
			next = time.Now().Add(time.Second)
		}
		return cond()
	})
}

// TestErrorsMakeSuspect: calls that fail are told to those who made them, and make
// their backing suspect for a time. New extents go elsewhere meanwhile.
func TestErrorsMakeSuspect(t *testing.T) {
	for _, tt := range []struct {
		op    faultstore.Op
		errno syscall.Errno
		quiet time.Duration
	}{
		{faultstore.Read, syscall.EIO, time.Hour},
		{faultstore.Write, syscall.EIO, time.Hour},
		{faultstore.Write, syscall.ENOSPC, 10 * time.Minute},
	} {
		t.Run(fmt.Sprint(tt.op, " ", tt.errno), func(t *testing.T) {
			var now *clock.Fake
			e := newEnv(t, model.Config{}, fakeTime(&now))
			e.write("v0", 0, ext, 1)
			e.flush("v0")
			e.wantCondition("healthy", 0, tiering.ConditionOK)
			s := e.stores[path(0, 0)]
			s.Inject(faultstore.Fault{Ops: tt.op, Err: tt.errno})
			for range 3 {
				if tt.op == faultstore.Read {
					wantErr(t, "read", e.volume("v0").ReadAt(ctx, make([]byte, block), 0), tt.errno)
				} else {
					wantErr(t, "write", e.volume("v0").WriteAt(ctx, []byte("x"), 0, false), tt.errno)
				}
			}
			e.wantCondition("after errors", 0, tiering.ConditionSuspect)
			if n := e.logged("backing is suspect", path(0, 0)); n != 1 {
				t.Errorf("%d lines of log for one change of state, want 1", n)
			}
			s.Clear()
			e.expect("v0", 0, ext, 1)
			e.write("v0", ext, ext, 2)
			if got := e.tierOf("v0", ext); got != "t1" {
				t.Errorf("a new extent is on tier %q, want t1", got)
			}
			e.flush("v0")

			// It is well again after some time, and then takes extents again.
			eventually(t, "watching", func() bool { now.Advance(time.Second); return e.condition(0) == tiering.ConditionSuspect })
			now.Advance(tt.quiet)
			eventually(t, "recovery", func() bool { now.Advance(time.Second); return e.condition(0) == tiering.ConditionOK })
			e.write("v0", 2*ext, ext, 3)
			if got := e.tierOf("v0", 2*ext); got != "t0" {
				t.Errorf("a new extent is on tier %q, want t0", got)
			}
			e.expect("v0", 0, ext, 1)
		})
	}
}

// An error that names its call is not told of with that name twice.
func TestErrorsNameTheirCallOnce(t *testing.T) {
	f := newFilePool(t)
	f.mustOpen()
	f.write(0, 1)
	if err := os.Truncate(f.path("a.img"), 1<<20); err != nil {
		t.Fatal(err)
	}
	v, err := f.pool.Volume("v")
	if err != nil {
		t.Fatal(err)
	}
	if err := v.ReadAt(ctx, make([]byte, ext), 0); err == nil {
		t.Fatal("a read behind the end succeeds")
	}
	if why := f.pool.Backings()[0].Why; !strings.Contains(why, "read "+f.path("a.img")) || strings.Contains(why, "read: ") {
		t.Errorf("why = %q", why)
	}
}

// TestSuspectIsBetterThanNothing: a suspect backing takes extents if no other can.
func TestSuspectIsBetterThanNothing(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{4}}}, nil)
	e.write("v0", 0, ext, 1)
	e.stores[path(0, 0)].Inject(faultstore.Fault{Ops: faultstore.Read, Times: 1, Err: syscall.EIO})
	wantErr(t, "read", e.volume("v0").ReadAt(ctx, make([]byte, block), 0), syscall.EIO)
	e.wantCondition("after an error", 0, tiering.ConditionSuspect)
	e.write("v0", ext, ext, 1)
	e.flush("v0")
}

// TestDeviceGone: an error that says that the medium is not there fails its
// backing, durably, before it is told.
func TestDeviceGone(t *testing.T) {
	for _, tt := range []struct {
		op  faultstore.Op
		err error
	}{{faultstore.Read, syscall.ENXIO}, {faultstore.Write, syscall.ENXIO}, {faultstore.Read, backing.ErrCutShort}} {
		e := newEnv(t, model.Config{}, nil)
		e.write("v0", 0, ext, 1)
		e.flush("v0")
		e.write("v0", 0, block, 2)
		e.stores[path(0, 0)].Inject(faultstore.Fault{Ops: tt.op, Times: 1, Err: tt.err})
		if tt.op == faultstore.Read {
			wantErr(t, "read", e.volume("v0").ReadAt(ctx, make([]byte, block), 0), tt.err)
		} else {
			wantErr(t, "write", e.volume("v0").WriteAt(ctx, []byte("x"), block, false), tt.err)
		}
		for _, m := range e.superblock(path(1, 0)).Members {
			if m.ID == 1 && m.State != ondisk.MemberFailed {
				t.Errorf("superblock of another backing has the lost one as %v", m.State)
			}
		}
		check := func(when string) {
			t.Helper()
			e.wantCondition(when, 0, tiering.ConditionFailed)
			wantErr(t, when+": flush", e.volume("v0").Flush(ctx), tiering.ErrBackingFailed)
			wantErr(t, when+": overwrite", e.volume("v0").WriteAt(ctx, []byte("x"), 0, false), tiering.ErrBackingFailed)
			e.expect("v0", 0, block, 2)
		}
		check("at once")
		e.Kill()
		e.Open()
		check("after a restart")
	}
}

// TestZeroErrorFails: zeroing may wait for write-back, and then its error is the
// only report of data that is lost.
func TestZeroErrorFails(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	e.flush("v0")
	e.write("v0", 0, block, 2)
	e.stores[path(0, 0)].Inject(faultstore.Fault{Ops: faultstore.Zero, Times: 1, Err: syscall.EIO})
	wantErr(t, "zeroes", e.volume("v0").WriteZeroes(ctx, block, block, false, false), syscall.EIO)
	e.wantCondition("after the zeroing", 0, tiering.ConditionFailed)
	wantErr(t, "flush", e.volume("v0").Flush(ctx), tiering.ErrBackingFailed)
}

// TestHangHoldsUpNobody: while a backing hangs, changes of volumes, first writes,
// flushes and moves that do not need it go on, and it is suspect after ten seconds.
func TestHangHoldsUpNobody(t *testing.T) {
	var now *clock.Fake
	e := newEnv(t, model.Config{Volumes: []int64{8 * ext, 8 * ext, 8 * ext}}, fakeTime(&now))
	if err := e.Pool.SetPolicy(ctx, "v1", "t1", false); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"v0", "v1"} {
		e.write(name, 0, ext, 1)
		e.flush(name)
	}
	gate := make(chan struct{})
	all := faultstore.Read | faultstore.Write | faultstore.Sync | faultstore.Zero | faultstore.IsHole
	hang := e.stores[path(0, 0)].Inject(faultstore.Fault{Ops: all, Wait: gate})
	var wg sync.WaitGroup
	hung := make(chan error, 1)
	wg.Go(func() { hung <- e.volume("v0").WriteAt(context.Background(), []byte("late"), 0, false) })
	eventually(t, "the hanging write", func() bool { return hang.Hits() > 0 })

	elsewhere := func(when string) {
		e.write("v1", block, block, 2)
		e.flush("v1")
		if err := e.volume("v1").WriteAt(ctx, []byte("fua"), 2*block, true); err != nil {
			t.Errorf("%s: FUA: %v", when, err)
		}
		e.write("v1", 3*ext, block, 3) // a new extent
		e.flush("v1")
		e.trim("v1", 3*ext, ext)
		e.flush("v1")
		if err := e.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "new", Size: ext}, false); err != nil {
			t.Errorf("%s: create: %v", when, err)
		}
		if err := e.Pool.DeleteVolume(ctx, "new", false, false); err != nil {
			t.Errorf("%s: delete: %v", when, err)
		}
		for _, to := range []int{2, 1} {
			if _, err := e.Pool.MoveExtent(ctx, "v1", 0, to); err != nil {
				t.Errorf("%s: move: %v", when, err)
			}
		}
		e.Pool.Info()
		e.Pool.Backings()
	}
	elsewhere("at first")
	e.wantCondition("at first", 0, tiering.ConditionOK)
	for range 15 {
		now.Advance(time.Second)
		eventually(t, "the watch", func() bool { return now.Waiters() > 0 })
	}
	eventually(t, "suspicion", func() bool { now.Advance(time.Second); return e.condition(0) == tiering.ConditionSuspect })
	elsewhere("when it is suspect")
	e.write("v2", 0, block, 4) // would go to the first tier
	if got := e.tierOf("v2", 0); got != "t1" {
		t.Errorf("a new extent is on tier %q while the first hangs, want t1", got)
	}
	if n := e.logged("backing is suspect", path(0, 0)); n != 1 {
		t.Errorf("%d lines of log for one change of state, want 1", n)
	}
	select {
	case err := <-hung:
		t.Errorf("the hanging write = %v: the test shows nothing", err)
	default:
	}
	close(gate)
	wg.Wait()
	if err := <-hung; err != nil {
		t.Errorf("the write that hung = %v", err)
	}
	e.stores[path(0, 0)].Clear()
	eventually(t, "recovery", func() bool { now.Advance(time.Second); return e.condition(0) == tiering.ConditionOK })
	e.flush("v0")
	e.expect("v0", block, block, 1)
}

// TestOneSyncErrorForAll: the kernel tells an error once. Whoever syncs at the same
// time must not take another's silence for success.
func TestOneSyncErrorForAll(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	e.flush("v0")
	e.write("v0", 0, block, 2)
	gate := make(chan struct{})
	s := e.stores[path(0, 0)]
	first := s.Inject(faultstore.Fault{Ops: faultstore.Sync, Times: 1, Wait: gate, Err: syscall.EIO})
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.Pool.SetReadOnly(ctx, "v1", true, false) }) // writes volume tables, with a sync of its own
	eventually(t, "the sync of the volume table", func() bool { return first.Hits() == 1 })
	flushed := make(chan error, 1)
	wg.Go(func() { flushed <- e.volume("v0").Flush(ctx) })
	time.Sleep(10 * time.Millisecond) // the flush may ask for its sync, or come later: both must fail
	close(gate)
	if err := <-flushed; err == nil {
		t.Error("a flush succeeded beside the sync that met its error")
	}
	wg.Wait()
	e.wantCondition("after the sync", 0, tiering.ConditionFailed)
}

// TestFailedUnderStagedMapping: a volume whose only extent on the backing was not
// committed when that failed does not flush after a restart either.
func TestFailedUnderStagedMapping(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v1", 0, ext, 1)
	e.flush("v1")
	e.write("v0", 0, ext, 1) // staged
	e.write("v1", 0, block, 2)
	e.stores[path(0, 0)].Inject(faultstore.Fault{Ops: faultstore.Sync, Times: 1, Err: syscall.EIO})
	wantErr(t, "flush of v1", e.volume("v1").Flush(ctx), syscall.EIO)
	e.Kill()
	e.Open()
	wantErr(t, "flush of v0 after the restart", e.volume("v0").Flush(ctx), tiering.ErrBackingFailed)
	e.Kill()
	e.Open()
	wantErr(t, "flush of v0 after the second restart", e.volume("v0").Flush(ctx), tiering.ErrBackingFailed)
}

// TestFailedUnderStagedMove: a move is taken back because its target failed, and with
// it an answered write. The volume does not flush any more, also when nothing of it is
// on that backing after more restarts, until the operator says so.
func TestFailedUnderStagedMove(t *testing.T) {
	e := placed(t, model.Config{})
	hold := make(chan struct{})
	// The first sync is that of the mover before the switch, the second the round's.
	e.stores[path(1, 0)].Inject(faultstore.Fault{Ops: faultstore.Sync, Nth: 2, Wait: hold, Err: syscall.EIO})
	moved := make(chan bool)
	go func() { moved <- e.Relocate("v0", 0, 1) }()
	eventually(t, "the extent is on the other tier", func() bool { return e.tierOf("v0", 0) == "t1" })
	e.write("v0", 0, block, 7)
	close(hold)
	if <-moved {
		t.Error("the move has been committed though its target has failed")
	}
	wantErr(t, "flush", e.volume("v0").Flush(ctx), syscall.EIO)
	for i := range 3 {
		e.Kill()
		e.Open()
		wantErr(t, fmt.Sprintf("flush after restart %d", i+1), e.volume("v0").Flush(ctx), tiering.ErrBackingFailed)
	}
	e.Kill()
	e.clearFailed(path(1, 0))
	e.Open()
	e.healed()
	e.flush("v0")
	if used, _, _ := e.slots(1); used != 3 {
		t.Errorf("%d slots used on the cleared backing, want the 3 of v1", used)
	}
	e.settle()
	e.Close()
	e.Check()
}

// TestLostWritesGoWithTheVolume: what a deleted volume has lost concerns nobody.
func TestLostWritesGoWithTheVolume(t *testing.T) {
	e := placed(t, model.Config{})
	e.stores[path(1, 0)].Inject(faultstore.Fault{Ops: faultstore.Sync, Nth: 2, Err: syscall.EIO})
	e.Relocate("v0", 0, 1)
	e.Kill()
	if got := e.state().Pool.LostWrites; len(got) != 1 {
		t.Fatalf("lost writes: %v, want those of v0", got)
	}
	e.Open()
	e.healed()
	if err := e.Pool.DeleteVolume(ctx, "v0", false, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the volume is gone", func() bool { return len(e.Pool.VolumeInfos()) == 1 })
	e.Kill()
	if got := e.state().Pool.LostWrites; len(got) != 0 {
		t.Errorf("lost writes: %v, want none", got)
	}
}

// TestExtentsFlee: what can be read of a suspect backing is moved to others, each
// copy being read back, and what cannot stays, without a storm of tries and lines.
func TestExtentsFlee(t *testing.T) {
	var now *clock.Fake
	e := newEnv(t, model.Config{}, fakeTime(&now))
	e.write("v0", 0, 3*ext, 1)
	e.flush("v0")
	pl, err := e.Pool.Locate("v0", ext)
	if err != nil {
		t.Fatal(err)
	}
	s := e.stores[path(0, 0)]
	bad := s.Inject(faultstore.Fault{Ops: faultstore.Read, From: pl.DeviceOffset, To: pl.DeviceOffset + ext, Err: syscall.EIO})
	readsBack := func() int64 {
		return e.stores[path(1, 0)].Count(faultstore.Read) + e.stores[path(2, 0)].Count(faultstore.Read)
	}
	before := readsBack()
	wantErr(t, "read", e.volume("v0").ReadAt(ctx, make([]byte, block), ext), syscall.EIO)
	advanceUntil(t, "the flight", now, time.Second, func() bool {
		return e.tierOf("v0", 0) != "t0" && e.tierOf("v0", 2*ext) != "t0"
	})
	if n := readsBack() - before; n < 2 {
		t.Errorf("%d reads of copies, want each to be read back", n)
	}
	e.expect("v0", 0, ext, 1)
	e.expect("v0", 2*ext, ext, 1)
	for range 30 {
		now.Advance(time.Second)
		eventually(t, "who waits for the clock", func() bool { return now.Waiters() > 2 })
	}
	if n := bad.Hits(); n > 4 {
		t.Errorf("an unreadable extent was tried %d times within a minute", n)
	}
	if got := e.tierOf("v0", ext); got != "t0" {
		t.Errorf("the unreadable extent is on tier %q", got)
	}
	e.wantCondition("with an unreadable extent", 0, tiering.ConditionSuspect)
	if n := strings.Count(e.logs.String(), "\n"); n != 1 {
		t.Errorf("%d lines of log, want 1:\n%s", n, e.logs.String())
	}
	s.Clear()
	advanceUntil(t, "the last one", now, time.Minute, func() bool { return e.tierOf("v0", ext) != "t0" })
	e.expect("v0", ext, ext, 1)
	e.flush("v0")
}
