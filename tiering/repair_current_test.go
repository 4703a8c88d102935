package tiering_test

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
)

// copyFile returns what puts a file back as it is now.
func (f *diskPool) copyFile(name string) (restore func()) {
	f.t.Helper()
	b, err := os.ReadFile(f.path(name))
	if err != nil {
		f.t.Fatal(err)
	}
	return func() {
		f.t.Helper()
		if err := os.WriteFile(f.path(name), b, 0o600); err != nil {
			f.t.Fatal(err)
		}
	}
}

// TestRepairOutdates looks whether metadata and dumps from before a repair that
// changed the metadata pass for current after it.
func TestRepairOutdates(t *testing.T) {
	for _, clean := range []bool{true, false} {
		f := newDiskPool(t, clean)
		f.move(1, 0, extent.Location{Backing: 9, Slot: 0})
		old := f.copyFile("pool.db")
		var dump bytes.Buffer
		if _, err := tiering.Dump(ctx, f.opt, tiering.DumpOptions{}, &dump); err != nil {
			t.Fatal(err)
		}
		if r := f.repair(tiering.RepairOptions{}); r.Damaged() || len(r.Done) == 0 {
			t.Errorf("Repair = %+v", r)
		}
		repaired := f.copyFile("pool.db")
		old()
		_, err := tiering.Open(ctx, f.opt)
		wantErr(t, "open with metadata from before the repair", err, tiering.ErrRefused)
		if r := f.check(); !slices.Contains(kinds(r.Findings, tiering.Damage), tiering.FoundMetadataOlder) {
			t.Errorf("check of metadata from before the repair: %+v", r.Findings)
		}
		o := tiering.RebuildOptions{Metadata: f.opt.Metadata, Backings: f.opt.Backings, Replace: true}
		if r, err := tiering.Restore(ctx, o, bytes.NewReader(dump.Bytes())); r.Whole {
			t.Errorf("a dump from before the repair is taken as it is: %v", err)
		}
		repaired()
		// A dump from after it is current.
		dump.Reset()
		if _, err := tiering.Dump(ctx, f.opt, tiering.DumpOptions{}, &dump); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(f.opt.Metadata + ".old"); err != nil {
			t.Fatal(err)
		}
		if r, err := tiering.Restore(ctx, o, bytes.NewReader(dump.Bytes())); err != nil || r.Whole != clean {
			t.Errorf("a dump from after the repair, of a pool stopped cleanly: %v: taken as it is %v, %s, %v", clean, r.Whole, r.Why, err)
		}
		p := f.open()
		for _, w := range f.wrong(p) {
			if clean || w != "home 15" && w != "mail 5" { // what the log had
				t.Errorf("%s is wrong", w)
			}
		}
		p.Kill()
	}
}

// TestRepairOldBacking takes the superblocks off an old copy of a backing: nothing
// but an operator's word makes it a member.
func TestRepairOldBacking(t *testing.T) {
	f := newDiskPool(t, true)
	// A copy of a running pool. Overwrites change no stamp.
	old := f.copyInUse("a.img")
	old()
	f.zero("a.img", frontSuperblockAt, block)
	f.zero("a.img", endSuperblockAt, block)
	f.unchanged("repair of an old copy", func() {
		r := f.repair(tiering.RepairOptions{})
		if len(r.Done) > 0 || len(r.Left) == 0 || !strings.HasSuffix(r.Left[0].Mend, "--accept-stale") {
			t.Errorf("Repair = %+v", r)
		}
	})
	_, err := tiering.Repair(ctx, f.opt, tiering.RepairOptions{AcceptStale: []string{"/no/such"}})
	wantErr(t, "accept an unknown backing", err, tiering.ErrNotFound)

	before := f.state().Pool.Continuity
	r := f.repair(tiering.RepairOptions{AcceptStale: []string{f.path("a.img")}})
	if r.Damaged() || len(r.Done) < 2 {
		t.Errorf("Repair with the copy accepted = %+v", r)
	}
	if f.state().Pool.Continuity == before {
		t.Error("continuity id is the same")
	}
	p := f.open()
	p.Kill()

	// The one that was there at the last clean stop needs no word.
	f.restore()
	f.zero("a.img", frontSuperblockAt, block)
	f.zero("a.img", endSuperblockAt, block)
	if r := f.repair(tiering.RepairOptions{}); r.Damaged() || len(r.Done) == 0 {
		t.Errorf("Repair of the current one = %+v", r)
	}
}

// TestRepairFailingBacking mends a pool of which one backing takes no write: it fails
// for good, and the others are mended.
func TestRepairFailingBacking(t *testing.T) {
	for _, ops := range []faultstore.Op{faultstore.Write, faultstore.Sync} {
		f := newDiskPool(t, true)
		plain := f.opt
		for _, name := range backingFiles {
			f.zero(name, frontSuperblockAt, block)
			f.flip(name, volumeTableAt+60)
		}
		f.opt.OpenStore = failing(tiering.OpenBacking, f.path("a.img"), ops)
		r := f.repair(tiering.RepairOptions{})
		f.opt = plain
		if got := kinds(r.Left, tiering.Damage); !slices.Contains(got, tiering.FoundFailed) {
			t.Errorf("Repair leaves %q, want a failed backing: %+v", got, r.Left)
		}
		for _, x := range f.check().Findings {
			if x.Severity == tiering.Damage && x.Where != f.path("a.img") {
				t.Errorf("left on another backing: %+v", x)
			}
		}
		state := f.state()
		if state.Members[0].State != extentmap.MemberFailed {
			t.Errorf("the backing is %v", state.Members[0].State)
		}
		f.unchanged("the second repair", func() {
			if r := f.repair(tiering.RepairOptions{}); !r.Damaged() || len(r.Done) > 0 {
				t.Errorf("the second Repair = %+v", r)
			}
		})
		if r := f.repair(tiering.RepairOptions{ClearFailed: []string{f.path("a.img")}}); r.Damaged() {
			t.Errorf("Repair with the failure cleared = %+v", r)
		}
		p := f.open()
		if got := f.wrong(p); len(got) > 0 {
			t.Errorf("extents %q are wrong", got)
		}
		p.Kill()
	}
}

// TestRepairUnreadable mends a pool of which one backing cannot be read where
// something is to be kept.
func TestRepairUnreadable(t *testing.T) {
	f := newDiskPool(t, true)
	plain := f.opt
	f.flip("a.img", volumeTableAt+60)
	f.flip("b.img", volumeTableAt+60)
	writing := false // reads of the second table fail once the first is being mended
	f.opt.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
		st, err := tiering.OpenBacking(ctx, spec, create, readOnly)
		if err != nil {
			return nil, err
		}
		return readFaultStore{st, func(off int64) error {
			if spec.Path == f.path("a.img") && off == volumeTableAt && writing {
				return syscall.EIO
			}
			return nil
		}}, nil
	}
	f.opt.Progress = func(step string, done, total int64) { writing = writing || step == "slot tables" && done == total }
	r := f.repair(tiering.RepairOptions{})
	f.opt = plain
	if len(r.Done) == 0 || !r.Damaged() || r.Left[0].Where != f.path("a.img") {
		t.Errorf("Repair = %+v", r)
	}
	if r := f.repair(tiering.RepairOptions{}); r.Damaged() || len(r.Done) == 0 {
		t.Errorf("Repair of what can be read = %+v", r)
	}
}

// readFaultStore fails reads as a function says.
type readFaultStore struct {
	backing.Store
	fault func(off int64) error
}

func (s readFaultStore) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := s.fault(off); err != nil {
		return err
	}
	return s.Store.ReadAt(ctx, p, off)
}

// TestRepairHearsFailure looks whether a failure of which a superblock alone tells
// outlives a repair that raises the incarnation.
func TestRepairHearsFailure(t *testing.T) {
	f := newDiskPool(t, true)
	var lost atomic.Bool // the metadata
	f.opt.Fault = func(extentmap.FaultPoint, uint64) error {
		if lost.Load() {
			return syscall.EIO
		}
		return nil
	}
	f.failSyncs("a.img", func() { lost.Store(true) })
	f.opt.Fault = nil

	if got := f.state().Members[0].State; got != extentmap.MemberOK {
		t.Fatalf("the metadata have the backing as %v", got)
	}
	if r := f.check(); !slices.Contains(kinds(r.Findings, tiering.Damage), tiering.FoundFailed) {
		t.Errorf("Check = %+v, want a failed backing", r.Findings)
	}
	f.move(1, 0, extent.Location{Backing: 9, Slot: 0})
	if r := f.repair(tiering.RepairOptions{AcceptLoss: true}); len(r.Done) == 0 {
		t.Errorf("Repair = %+v", r)
	}
	if got := f.state().Members[0].State; got != extentmap.MemberFailed {
		t.Errorf("after the repair the backing is %v", got)
	}
}
