package tiering_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"tierd/pkg/backing"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// without makes backings be away, and opens degraded.
func without(paths ...string) func(*tiering.Options) {
	return func(o *tiering.Options) {
		away(paths...)(o)
		o.Degraded = true
	}
}

// away makes backings be away.
func away(paths ...string) func(*tiering.Options) {
	return func(o *tiering.Options) {
		inner := o.OpenStore
		o.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
			if slices.Contains(paths, spec.Path) {
				return nil, &fs.PathError{Op: "open", Path: spec.Path, Err: fs.ErrNotExist}
			}
			return inner(ctx, spec, create, readOnly)
		}
	}
}

func (e *env) mustOpen(edit func(*tiering.Options)) {
	e.t.Helper()
	if err := e.tryOpen(edit); err != nil {
		e.t.Fatal(err)
	}
}

// placed returns a pool with v0 on tier 0, v1 on tier 1, each flushed: an extent of
// 1, one of 2, and one of 3.
func placed(t *testing.T, cfg model.Config) *env {
	t.Helper()
	e := newEnv(t, cfg, nil)
	if err := e.Pool.SetPolicy(ctx, "v1", "t1", false); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"v0", "v1"} {
		for i := range int64(3) {
			e.write(name, i*ext, ext, byte(1+i))
		}
		e.flush(name)
	}
	return e
}

// clearFailed lets a failed backing serve again, as the operator does. The pool is not
// open.
func (e *env) clearFailed(backing string) {
	e.t.Helper()
	r, err := tiering.Repair(ctx, e.opt, tiering.RepairOptions{ClearFailed: []string{backing}})
	if err != nil {
		e.t.Fatalf("clear failed backing: %v, %+v", err, r)
	}
}

func (e *env) wantLost(name string, want string) {
	e.t.Helper()
	var got []string
	var sum int64
	for _, r := range e.volume(name).Lost() {
		got = append(got, fmt.Sprintf("%d+%d@%s", r.Offset/ext, r.Length/ext, r.Path))
		sum += r.Length
	}
	if s := strings.Join(got, " "); s != want {
		e.t.Errorf("lost of %s: %q, want %q", name, s, want)
	}
	if info := e.volume(name).Info(); info.Lost != sum {
		e.t.Errorf("%s says it has lost %d bytes, its ranges are %d", name, info.Lost, sum)
	}
}

func (e *env) read(name string, off, n int64) error {
	return e.volume(name).ReadAt(ctx, make([]byte, n), off)
}

func TestMissingIsRefused(t *testing.T) {
	e := placed(t, model.Config{})
	e.Close()
	err := e.tryOpen(away(path(1, 0)))
	wantErr(t, "open", err, tiering.ErrRefused)
	for _, want := range []string{"/t1/b0 of tier t1 is missing", "--degraded", "attach it"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("open = %v, want %q in it", err, want)
		}
	}
	wantErr(t, "open without any backing", e.tryOpen(without(path(0, 0), path(1, 0), path(2, 0))), tiering.ErrRefused)
	e.Open()
	e.expect("v1", 0, ext, 1)
}

// TestDegraded (H30): what is on a missing backing answers EIO and can be unmapped, the
// rest serves, and all is well when the backing is back.
func TestDegraded(t *testing.T) {
	e := placed(t, model.Config{})
	cont := e.Pool.Continuity()
	e.Close()
	e.mustOpen(without(path(1, 0)))
	if b := e.Pool.Backings()[1]; b.State != tiering.ConditionMissing || b.Err == nil {
		t.Errorf("backing is %v, %v; want missing", b.State, b.Err)
	}
	if c := e.Pool.Tiers()[1].Slots; c.Total != c.Used+c.Quarantined || c.Used != 3 || c.Free+c.Clean+c.Cleaning != 0 {
		t.Errorf("slots of a tier whose backing is missing: %+v, want those in use", c)
	}
	wantErr(t, "drain", e.Pool.Drain(ctx, path(1, 0), tiering.DrainStart, nil, false), tiering.ErrBusy)
	e.wantLost("v0", "")
	e.wantLost("v1", "0+3@/t1/b0")
	wantErr(t, "read", e.read("v1", 0, block), tiering.ErrBackingMissing)
	wantErr(t, "read", e.read("v1", 0, block), syscall.EIO)
	wantErr(t, "read over an extent that is there", e.read("v1", 2*ext, 2*ext), syscall.EIO)
	wantErr(t, "write", e.volume("v1").WriteAt(ctx, []byte("x"), ext, false), syscall.EIO)
	wantErr(t, "zeroing of a part", e.volume("v1").WriteZeroes(ctx, ext, block, false, false), syscall.EIO)
	e.expect("v1", 3*ext, ext, 0)
	e.expect("v0", 0, ext, 1)
	e.write("v0", 0, block, 9)
	e.flush("v0")

	// New extents of the volume go elsewhere.
	e.write("v1", 4*ext, ext, 7)
	if got := e.tierOf("v1", 4*ext); got == "t1" || got == "" {
		t.Errorf("a new extent is on tier %q", got)
	}
	e.flush("v1") // nothing unsynced went missing after a clean stop

	// What is unmapped is not lost any more, and reads as zeroes.
	e.trim("v1", 0, ext)
	if err := e.volume("v1").WriteZeroes(ctx, ext, ext, false, true); err != nil {
		t.Errorf("zeroing of a whole extent with FUA: %v", err)
	}
	e.wantLost("v1", "2+1@/t1/b0")
	e.expect("v1", 0, 2*ext, 0)
	e.write("v1", 0, ext, 8) // a new slot
	if got := e.tierOf("v1", 0); got == "t1" {
		t.Error("a new extent is on the missing backing")
	}
	e.flush("v1")
	if used, vacated, quarantined := e.slots(1); used != 1 || vacated != 0 || quarantined != 2 {
		t.Errorf("slots of the missing backing: %d used, %d vacated, %d set aside; want 1, 0, 2", used, vacated, quarantined)
	}
	if got := e.Pool.Continuity(); got != cont {
		t.Error("the continuity id has changed, and nothing was lost")
	}
	if err := e.closeBadly(); err != nil {
		t.Errorf("close: %v", err)
	}
	if !e.state().Pool.CleanStop {
		t.Error("the stop is not marked as clean")
	}
	if m := e.state().Members[1]; !m.Away || m.Unsynced || m.State != extentmap.MemberOK {
		t.Errorf("member = %+v, want away", m)
	}

	// Still away, then back.
	e.mustOpen(without(path(1, 0)))
	e.expect("v1", 0, ext, 8)
	e.wantLost("v1", "2+1@/t1/b0")
	e.Close()
	e.Check() // it has missed what happened, which is no damage
	e.Open()
	e.healed()
	e.wantLost("v1", "")
	for i, fill := range []byte{8, 0, 3, 0, 7} {
		e.expect("v1", int64(i)*ext, ext, fill)
	}
	e.expect("v0", 0, block, 9)
	e.settle()
	if _, _, quarantined := e.slots(1); quarantined != 0 {
		t.Errorf("%d slots are still set aside", quarantined)
	}
	e.Close()
	if m := e.state().Members[1]; m.Away {
		t.Error("the member is still away")
	}
	e.Check() // its table is in line with the map again
}

// healed waits until the slot tables match the map.
func (e *env) healed() {
	e.t.Helper()
	eventually(e.t, "slot tables healed", func() bool { return e.Pool.Info().Healed == 1 })
}

// TestDegradedKill: a backing goes missing with a kill, after which the staged log
// names it. First writes there stay, a move there is taken back, and all of it is
// harmless at whatever commit of the recovery another kill comes.
func TestDegradedKill(t *testing.T) {
	build := func(t *testing.T) *env {
		e := placed(t, model.Config{})
		e.write("v1", 5*ext, ext, 5) // first write there, not committed
		e.trim("v1", 0, ext)         // not committed
		e.write("v0", 6*ext, ext, 6) // not committed, elsewhere
		return e
	}
	verify := func(t *testing.T, e *env) {
		t.Helper()
		e.expect("v0", 6*ext, ext, 6)
		e.expect("v1", 0, ext, 0)
		e.wantLost("v1", "1+2@/t1/b0 5+1@/t1/b0")
		wantErr(t, "flush of v1, whose unsynced data is lost perhaps", e.volume("v1").Flush(ctx), tiering.ErrBackingMissing)
		e.flush("v0")
	}
	back := func(t *testing.T, e *env) {
		t.Helper()
		e.Open()
		e.healed()
		e.flush("v1")
		for i, fill := range []byte{0, 2, 3, 0, 0, 5} {
			e.expect("v1", int64(i)*ext, ext, fill)
		}
		e.settle()
		e.Close()
		e.Check()
	}
	t.Run("kill", func(t *testing.T) {
		e := build(t)
		cont := e.Pool.Continuity()
		e.Kill()
		e.mustOpen(without(path(1, 0)))
		verify(t, e)
		now := e.Pool.Continuity()
		if now == cont {
			t.Error("the continuity id is the same, and answered data may be lost")
		}
		e.Kill()
		e.mustOpen(without(path(1, 0)))
		verify(t, e)
		if got := e.Pool.Continuity(); got != now {
			t.Error("the continuity id has changed twice")
		}
		if err := e.closeBadly(); err != nil {
			t.Errorf("close: %v", err)
		}
		e.mustOpen(without(path(1, 0)))
		verify(t, e)
		e.Close()
		back(t, e)
	})
	for _, point := range []extentmap.FaultPoint{extentmap.FaultBefore, extentmap.FaultAfter} {
		failures := 0
		for n := 0; n == failures; n++ {
			t.Run(fmt.Sprintf("second kill at point %d of commit %d", point, n), func(t *testing.T) {
				e := build(t)
				e.Kill()
				seen := 0
				f := func(at extentmap.FaultPoint, _ uint64) error {
					if at != point {
						return nil
					}
					if seen++; seen > n {
						return syscall.EIO
					}
					return nil
				}
				e.fault.Store(&f)
				err := e.tryOpen(without(path(1, 0)))
				e.fault.Store(nil)
				if err == nil {
					e.Kill()
				} else {
					failures++
				}
				e.mustOpen(without(path(1, 0)))
				verify(t, e)
				e.Kill()
				back(t, e)
			})
		}
		if failures < 3 {
			t.Errorf("the recovery failed at %d commits, want at least 3", failures)
		}
	}
}

// TestDegradedMove: a move onto a backing that went missing before the move was
// committed is taken back, and whoever wrote to the extent meanwhile is told.
func TestDegradedMove(t *testing.T) {
	e := placed(t, model.Config{})
	e.failCommits(extentmap.FaultBefore)
	e.Relocate("v0", 0, 1)
	if got := e.tierOf("v0", 0); got != "t1" {
		t.Skipf("the extent is on tier %s: nothing was moved", got)
	}
	e.fault.Store(nil)
	e.write("v0", 0, block, 7) // goes where nobody can read it later
	cont := e.Pool.Continuity()
	e.Kill()
	e.mustOpen(without(path(1, 0)))
	if got := e.tierOf("v0", 0); got != "t0" {
		t.Errorf("the extent is on tier %s, want t0", got)
	}
	e.expect("v0", 0, ext, 1)
	e.wantLost("v0", "")
	wantErr(t, "flush of the volume with a lost write", e.volume("v0").Flush(ctx), tiering.ErrBackingMissing)
	if e.Pool.Continuity() == cont {
		t.Error("the continuity id is the same, and an answered write is lost")
	}
	e.healed()
	e.write("v0", 0, ext, 9)
	e.Kill()
	e.Open()
	e.healed()
	e.expect("v0", 0, ext, 9)
	wantErr(t, "flush, though the backing is back", e.volume("v0").Flush(ctx), tiering.ErrBackingFailed)
	e.flush("v1")
	if err := e.closeBadly(); !errors.Is(err, tiering.ErrBackingFailed) {
		t.Errorf("close = %v, want ErrBackingFailed", err)
	}
	e.clearFailed(path(1, 0))
	e.Open()
	e.healed()
	e.flush("v0")
	e.settle()
	e.Close()
	e.Check()
}

// TestDegradedTier: all of a tier and part of another are missing.
func TestDegradedTier(t *testing.T) {
	e := placed(t, model.Config{Slots: [][]int{{4, 4}, {6, 6}, {8}}})
	e.Close()
	lost := []string{path(0, 0), path(1, 0), path(1, 1)}
	e.mustOpen(without(lost...))
	e.wantLost("v1", "0+1@/t1/b0 1+1@/t1/b1 2+1@/t1/b0")
	for i := range int64(8) {
		if i > 2 {
			e.write("v1", i*ext, ext, 7)
			if got := e.tierOf("v1", i*ext); got == "t1" {
				t.Error("a new extent is on the missing tier")
			}
		}
	}
	e.flush("v1")
	e.Close()
	e.Open()
	e.healed()
	for i, fill := range []byte{1, 2, 3, 7, 7, 7, 7, 7} {
		e.expect("v1", int64(i)*ext, ext, fill)
	}
	e.settle()
	e.Close()
	e.Check()
}

func TestForget(t *testing.T) {
	e := placed(t, model.Config{})
	cont := e.Pool.Continuity()
	id := e.Pool.Backings()[1].ID
	if _, err := e.Pool.ForgetBacking(ctx, path(1, 0), true, false); err == nil {
		t.Error("a backing that is there is forgotten")
	}
	e.write("v1", 0, block, 9) // not flushed
	e.Kill()
	e.mustOpen(without(path(1, 0)))
	if _, err := e.Pool.ForgetBacking(ctx, "/no/such", true, false); err == nil {
		t.Error("an unknown backing is forgotten")
	}
	_, err := e.Pool.ForgetBacking(ctx, path(1, 0), false, false)
	wantErr(t, "forget without accept", err, tiering.ErrBusy)
	if err == nil || !strings.Contains(err.Error(), "192KiB of volume v1") {
		t.Errorf("forget = %v, want the loss in it", err)
	}
	f, err := e.Pool.ForgetBacking(ctx, fmt.Sprint(id), true, true)
	if err != nil || f.Bytes() != 3*ext || len(f.Losses) != 1 || f.Losses[0].Volume != "v1" {
		t.Errorf("dry run = %+v, %v", f, err)
	}
	e.wantLost("v1", "0+3@/t1/b0")
	wantErr(t, "flush", e.volume("v1").Flush(ctx), tiering.ErrBackingMissing)
	before := e.Pool.Continuity()
	if _, err := e.Pool.ForgetBacking(ctx, path(1, 0), true, false); err != nil {
		t.Fatal(err)
	}
	if now := e.Pool.Continuity(); now == before || now == cont {
		t.Error("the continuity id is not renewed")
	}
	e.wantLost("v1", "")
	e.expect("v1", 0, 3*ext, 0)
	e.expect("v0", 0, ext, 1)
	e.flush("v1") // the loss is accepted
	for _, b := range e.Pool.Backings() {
		if b.Path == path(1, 0) {
			t.Error("the forgotten backing is still listed")
		}
	}
	for _, m := range e.superblock(path(2, 0)).Members {
		if (m.State == ondisk.MemberForgotten) != (m.ID == id) {
			t.Errorf("superblock of another backing has member %d as %v", m.ID, m.State)
		}
	}
	e.write("v1", 0, ext, 4)
	if got := e.tierOf("v1", 0); got == "t1" || got == "" {
		t.Errorf("a new extent is on tier %q", got)
	}
	e.flush("v1")
	if err := e.closeBadly(); err != nil {
		t.Errorf("close: %v", err)
	}
	// Without the flag, since nothing is missing any more.
	e.mustOpen(away(path(1, 0)))
	e.expect("v1", 0, ext, 4)
	e.expect("v1", ext, 2*ext, 0)
	e.settle()
	e.Close()
	// It is back, and named.
	err = e.tryOpen(func(o *tiering.Options) { o.Backings = []tiering.BackingSpec{{Path: path(1, 0)}} })
	wantErr(t, "open with the forgotten backing", err, tiering.ErrRefused)
	if err == nil || !strings.Contains(err.Error(), "was forgotten") {
		t.Errorf("open = %v, want that it was forgotten", err)
	}
	e.mustOpen(nil) // nobody looks for it
	e.Close()
}

// TestForgetIsResumed: a kill at each commit of forgetting leaves something that the
// next start finishes.
func TestForgetIsResumed(t *testing.T) {
	for _, point := range []extentmap.FaultPoint{extentmap.FaultBefore, extentmap.FaultAfter} {
		failures := 0
		for n := 0; n == failures; n++ {
			e := placed(t, model.Config{})
			e.Close()
			e.mustOpen(without(path(1, 0)))
			seen := 0
			f := func(at extentmap.FaultPoint, _ uint64) error {
				if at != point {
					return nil
				}
				if seen++; seen > n {
					return syscall.EIO
				}
				return nil
			}
			e.fault.Store(&f)
			_, err := e.Pool.ForgetBacking(ctx, path(1, 0), true, false)
			e.fault.Store(nil)
			e.Kill()
			if err != nil {
				failures++
			}
			begun := e.state().Members[1].State == extentmap.MemberForgotten
			edit := away(path(1, 0))
			if !begun {
				edit = without(path(1, 0))
			}
			e.mustOpen(edit)
			if begun {
				eventually(t, "forgetting to finish", func() bool { return len(e.Pool.Backings()) == 2 })
				e.expect("v1", 0, 3*ext, 0)
			} else {
				e.wantLost("v1", "0+3@/t1/b0")
			}
			e.expect("v0", 0, ext, 1)
			e.healed()
			if begun {
				e.settle()
			}
			e.Close()
			if m := e.state().Members[1]; m.Emptying {
				t.Errorf("point %d of commit %d: forgetting is not finished", point, n)
			}
		}
		if failures < 3 {
			t.Errorf("forgetting failed at %d commits, want at least 3", failures)
		}
	}
}

// TestDegradedVolumeFails: a volume whose flushes fail for what was lost can still be
// written to, for longer than the staged log has room, and be deleted.
func TestDegradedVolumeFails(t *testing.T) {
	const extents = 1200
	e := placed(t, model.Config{Slots: [][]int{{4}, {6}, {extents}}, Volumes: []int64{8 * ext, extents * ext}})
	e.write("v1", 0, block, 9)
	e.Kill()
	e.mustOpen(without(path(1, 0)))
	e.healed()
	wantErr(t, "flush", e.volume("v1").Flush(ctx), tiering.ErrBackingMissing)
	for i := int64(3); i < extents; i++ { // 64 KiB of log have room for less
		e.write("v1", i*ext, block, 1)
	}
	if err := e.Pool.DeleteVolume(ctx, "v1", false, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the volume is gone", func() bool { return len(e.Pool.VolumeInfos()) == 1 })
	if used, _, quarantined := e.slots(1); used != 0 || quarantined != 3 {
		t.Errorf("slots of the missing backing: %d used, %d set aside; want 0, 3", used, quarantined)
	}
	e.Close()
	e.Open()
	e.healed()
	e.settle()
	e.Close()
	e.Check()
}
