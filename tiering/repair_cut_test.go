package tiering_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"tierd/pkg/backing"
	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
)

// cutter ends the world at the nth change of a backing or of the metadata.
type cutter struct {
	left int
	done bool // everything fails from now on
	torn bool // the write at the end is done by half

	unsynced []unsyncedWrite // in order
}

// unsyncedWrite is what was at a place before a write that may be lost.
type unsyncedWrite struct {
	path string
	off  int64
	old  []byte
}

// step counts a change, and fails it if the end has come.
func (c *cutter) step() error {
	if c.left--; c.left < 0 {
		c.done = true
	}
	if c.done {
		return syscall.EIO
	}
	return nil
}

// lose takes back every second sector of what was written and not synced, as a power
// cut may.
func (c *cutter) lose(t *testing.T) {
	t.Helper()
	for _, w := range slices.Backward(c.unsynced) {
		f, err := os.OpenFile(w.path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(w.old); at += 1024 {
			if _, err := f.WriteAt(w.old[at:min(at+512, len(w.old))], w.off+int64(at)); err != nil {
				t.Fatal(err)
			}
		}
		f.Close()
	}
}

// cutStore fails changes as its cutter says.
type cutStore struct {
	backing.Store
	path string
	c    *cutter
}

func (s cutStore) WriteAt(ctx context.Context, p []byte, off int64) error {
	was := s.c.done
	if err := s.c.step(); err != nil {
		if s.c.torn && !was {
			_ = s.Store.WriteAt(ctx, p[:len(p)/1024*512], off)
		}
		return err
	}
	old := make([]byte, len(p))
	if err := s.ReadAt(ctx, old, off); err != nil {
		return err
	}
	s.c.unsynced = append(s.c.unsynced, unsyncedWrite{s.path, off, old})
	return s.Store.WriteAt(ctx, p, off)
}

func (s cutStore) Sync(ctx context.Context) error {
	if err := s.c.step(); err != nil {
		return err
	}
	s.c.unsynced = slices.DeleteFunc(s.c.unsynced, func(w unsyncedWrite) bool { return w.path == s.path })
	return s.Store.Sync(ctx)
}

// manyDamages is something for every step of a repair.
func manyDamages(f *diskPool) {
	f.zero("a.img", frontSuperblockAt, block)
	f.flip("b.img", volumeTableAt+60)
	f.flip("c.img", stampAt+40)
	owned, free, _ := f.slotsOf(2)
	f.flip("b.img", slotTableAt+int64(owned)*slotEntryBytes+9)
	f.flip("b.img", slotTableAt+int64(free)*slotEntryBytes+9)
	v := f.state().Volumes[0]
	v.Name = "hole"
	f.commit(&extentmap.Changes{Volumes: []extentmap.Volume{v}})
	f.move(2, 0, f.place(1, 0))
	f.move(1, 2, extent.Location{Backing: 1, Slot: 5000})
	_, free, _ = f.slotsOf(1)
	f.move(7, 3, extent.Location{Backing: 1, Slot: free})
}

// TestRepairCutShort ends a repair at each of its changes, in ways of a kill and of a
// power cut, and repairs again.
func TestRepairCutShort(t *testing.T) {
	for _, how := range []string{"kill", "torn write", "lost writes"} {
		t.Run(how, func(t *testing.T) { testRepairCutShort(t, how) })
	}
}

func testRepairCutShort(t *testing.T, how string) {
	f := newDiskPool(t, true)
	manyDamages(f)
	// Both superblocks of one are lost; and nothing tells where one extent is.
	f.zero("b.img", frontSuperblockAt, block)
	f.zero("b.img", endSuperblockAt, block)
	at := f.place(1, 4)
	f.move(1, 4, extent.Location{Backing: 9})
	f.flip(backingFiles[at.Backing], slotTableAt+int64(at.Slot)*slotEntryBytes+9)
	f.saved = f.read()
	plain := f.opt
	step := 4
	if how == "kill" {
		step = 1
	}
	for n := 0; ; n += step {
		f.restore()
		c := &cutter{left: n, torn: how == "torn write"}
		f.opt.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
			st, err := tiering.OpenBacking(ctx, spec, create, readOnly)
			if err != nil {
				return nil, err
			}
			return cutStore{st, spec.Path, c}, nil
		}
		f.opt.Fault = func(p extentmap.FaultPoint, _ uint64) error { return c.step() }
		opts := tiering.RepairOptions{AcceptLoss: true}
		r, err := tiering.Repair(ctx, f.opt, opts)
		f.opt = plain
		if c.done != (err != nil) {
			t.Fatalf("cut at change %d: %v, Repair = %+v, %v", n, c.done, r, err)
		}
		if c.done {
			if how == "lost writes" {
				c.lose(t)
			}
			r = f.repair(opts)
		}
		if len(r.Left) > 0 {
			t.Errorf("cut at change %d: left: %+v", n, r.Left)
		}
		if rep := f.check(); rep.Damaged() {
			t.Errorf("cut at change %d: check finds %+v", n, rep.Findings)
		}
		repaired := f.copyFile("pool.db")
		old, err := os.Create(f.opt.Metadata)
		if err != nil {
			t.Fatal(err)
		}
		for at, b := range f.saved[f.opt.Metadata].blocks {
			if _, err := old.WriteAt(b, at); err != nil {
				t.Fatal(err)
			}
		}
		old.Close()
		if _, err := tiering.Open(ctx, f.opt); !errors.Is(err, tiering.ErrRefused) || !strings.Contains(err.Error(), "older") {
			t.Errorf("cut at change %d: open with metadata from before: %v", n, err)
		}
		repaired()
		p := f.open()
		if got := f.wrong(p); !slices.Equal(got, []string{"home 4"}) {
			t.Errorf("cut at change %d: extents %q are wrong", n, got)
		}
		if _, err := p.Volume("found-7"); err != nil {
			t.Errorf("cut at change %d: the volume without a record: %v", n, err)
		}
		p.Kill()
		if !c.done {
			if n < 40 {
				t.Errorf("a repair of everything has %d changes only", n)
			}
			return
		}
	}
}

// TestRepairAfterKill mends what is damaged in a pool that was killed, and leaves
// to the next start what that does.
func TestRepairAfterKill(t *testing.T) {
	for _, twoOwners := range []bool{false, true} {
		t.Run(fmt.Sprint(twoOwners), func(t *testing.T) {
			f := newDiskPool(t, false)
			r := f.check()
			if r.Damaged() || r.Clean || !slices.Contains(kinds(r.Findings, tiering.Note), tiering.FoundUnclean) {
				t.Errorf("Check after a kill: %+v", r)
			}
			f.unchanged("repair after a kill", func() {
				if r := f.repair(tiering.RepairOptions{}); len(r.Done) != 0 || r.Damaged() {
					t.Errorf("Repair after a kill: %+v", r)
				}
			})
			f.zero("a.img", frontSuperblockAt, block)
			owned, _, _ := f.slotsOf(2)
			f.flip("b.img", slotTableAt+int64(owned)*slotEntryBytes+9)
			unflushed := []string(nil)
			if twoOwners {
				f.move(2, 0, f.place(1, 0))
				unflushed = []string{"home 15", "mail 5"} // with the staged log
			}
			if r := f.repair(tiering.RepairOptions{}); len(r.Done) == 0 {
				t.Errorf("Repair: %+v", r)
			}
			p := f.open()
			defer p.Kill()
			if got := f.wrong(p); !slices.Equal(got, unflushed) {
				t.Errorf("extents %q are wrong, want %q", got, unflushed)
			}
			eventually(t, "healed tables", func() bool { return p.Info().Healed >= 1 })
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			if r := f.check(); r.Damaged() {
				t.Errorf("Check after all: %+v", r.Findings)
			}
		})
	}
}

// TestClearFailed lets a failed backing serve again.
func TestClearFailed(t *testing.T) {
	f := newDiskPool(t, true)
	f.failSyncs("a.img", func() {})

	r := f.check()
	if got := kinds(r.Findings, tiering.Damage); !slices.Equal(got, []tiering.FindingKind{tiering.FoundFailed}) {
		t.Errorf("Check = %q, want a failed backing: %+v", got, r.Findings)
	}
	f.unchanged("repair without --clear-failed", func() {
		if r := f.repair(tiering.RepairOptions{}); !r.Damaged() {
			t.Errorf("Repair: %+v", r)
		}
	})
	_, err := tiering.Repair(ctx, f.opt, tiering.RepairOptions{ClearFailed: []string{"/no/such"}})
	wantErr(t, "clear an unknown backing", err, tiering.ErrNotFound)

	before := f.state().Pool
	opts := tiering.RepairOptions{ClearFailed: []string{f.path("a.img")}}
	if r := f.repair(opts); len(r.Done) != 2 || r.Damaged() {
		t.Errorf("Repair = %+v, want the failure cleared and the incarnation raised", r)
	}
	if after := f.state().Pool; after.Continuity == before.Continuity || after.CleanStop {
		t.Errorf("pool record after it: %+v", after)
	}
	f.unchanged("the second repair", func() {
		r := f.repair(opts)
		if len(r.Done) != 0 || !slices.Equal(r.NotFailed, []string{f.path("a.img")}) {
			t.Errorf("the second Repair: %+v", r)
		}
	})
	p := f.open()
	if got := f.wrong(p); len(got) > 0 {
		t.Errorf("extents %q are wrong", got)
	}
	f.write(p, "mail", 0, ext, 0x99)
	f.flush(p)
	eventually(t, "healed tables", func() bool { return p.Info().Healed >= 1 })
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if r := f.check(); r.Damaged() || !r.Clean {
		t.Errorf("Check after all: %+v", r)
	}
}

// TestCheckLocks looks whether check and repair keep away from a pool in use, and a
// daemon from a pool that is being looked at.
func TestCheckLocks(t *testing.T) {
	f := newDiskPool(t, true)
	p := f.open()
	_, err := tiering.Check(ctx, f.opt)
	wantErr(t, "check of an open pool", err, extentmap.ErrLocked)
	_, err = tiering.Repair(ctx, f.opt, tiering.RepairOptions{})
	wantErr(t, "repair of an open pool", err, extentmap.ErrLocked)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	o := f.opt
	refused := false
	o.Progress = func(step string, _, _ int64) {
		if step != "slot tables" {
			return
		}
		_, err := tiering.Open(ctx, f.opt)
		refused = errors.Is(err, extentmap.ErrLocked)
	}
	if _, err := tiering.Check(ctx, o); err != nil || !refused {
		t.Errorf("Check = %v; a start beside it was refused: %v", err, refused)
	}
}
