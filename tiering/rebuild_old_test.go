package tiering_test

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/ondisk"
)

// store opens a backing of the closed pool for its bytes to be changed.
func (f *disks) store(name string) (backing.Store, *ondisk.Superblock) {
	f.t.Helper()
	st, err := tiering.OpenBacking(ctx, tiering.BackingSpec{Path: f.path(name)}, false, false)
	if err != nil {
		f.t.Fatal(err)
	}
	sb, err := ondisk.ReadSuperblock(ctx, st)
	if err != nil {
		f.t.Fatal(err)
	}
	return st, sb
}

// spoilNewestTable damages the newer copy of the volume table of a backing, and returns
// its generation.
func (f *disks) spoilNewestTable(name string) uint64 {
	f.t.Helper()
	st, sb := f.store(name)
	defer st.Close()
	copies := ondisk.ReadVolumeTableCopies(ctx, st, sb.Layout, sb.PoolID)
	newest := slices.MaxFunc(copies[:], func(a, b ondisk.VolumeTableCopy) int {
		return int(a.Table.Generation) - int(b.Table.Generation)
	})
	if err := st.WriteAt(ctx, bytes.Repeat([]byte{0xa5}, 512), newest.Offset); err != nil {
		f.t.Fatal(err)
	}
	return newest.Table.Generation
}

func finding(list []tiering.Finding, k tiering.FindingKind, text string) *tiering.Finding {
	i := slices.IndexFunc(list, func(f tiering.Finding) bool { return f.Kind == k && strings.Contains(f.Text, text) })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// wantDamage checks that a rebuild has found damage of a kind.
func wantDamage(t *testing.T, r tiering.RebuildReport, k tiering.FindingKind, text string) {
	t.Helper()
	if f := finding(r.Findings, k, text); f == nil || f.Severity != tiering.Damage {
		t.Errorf("findings = %+v, want damage of kind %s with %q", r.Findings, k, text)
	}
}

// TestRebuildFromAnOldVolumeTable has backings on which the newest volume table is
// damaged, and the one before is not: that is told, and no slot with data is dropped.
func TestRebuildFromAnOldVolumeTable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		last  func(*disks) error // the last change of the volumes
		want  tiering.FindingKind
		text  string
		check func(*disks)
	}{
		{"a new volume", func(f *disks) error {
			err := f.pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "later", Size: 8 * ext}, false)
			f.write("later", 2, 3, 7)
			return err
		}, tiering.FoundNoVolume, "made for the 3 extents of volume 3", func(f *disks) {
			f.expect("found-3", 2, 3, 7)
			f.expect("found-3", 0, 2, 0)
		}},
		{"a larger size", func(f *disks) error {
			err := f.pool.GrowVolume(ctx, "home", 40*ext, false)
			f.write("home", 36, 2, 7)
			return err
		}, tiering.FoundPastEnd, "is made larger", func(f *disks) { f.expect("home", 36, 2, 7) }},
		{"a new name", func(f *disks) error { return f.pool.RenameVolume(ctx, "home", "desk", false) },
			tiering.FoundVolumeTable, "it is of generation ", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newDisks(t)
			f.write("home", 0, 4, 1)
			if err := tt.last(f); err != nil {
				t.Fatal(err)
			}
			f.close()
			dump := f.dump()
			lost := f.spoilNewestTable("a")

			o := f.rebuildOptions()
			o.Replace, o.DryRun = true, true
			if r, err := tiering.Rebuild(ctx, o); err != nil || r.Damaged() {
				t.Errorf("rebuild with whole tables elsewhere: %v, findings %+v, want no damage", err, r.Findings)
			}
			f.spoilNewestTable("b")
			f.spoilNewestTable("c")
			r, err := tiering.Rebuild(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			wantDamage(t, r, tiering.FoundVolumeTable, "is lost, and what is used instead is old")
			wantDamage(t, r, tt.want, tt.text)

			// The dump is newer than the tables, and of the last stop.
			rr, err := tiering.Restore(ctx, o, dump)
			if err != nil || !rr.Whole {
				t.Errorf("restore: %v, whole %t: %s", err, rr.Whole, rr.Why)
			}

			o.DryRun = false
			if _, err := tiering.Rebuild(ctx, o); err != nil {
				t.Fatal(err)
			}
			if s, _ := readMap(t, f.path("pool.db")); s.Pool.VolumeGeneration <= lost {
				t.Errorf("generation %d, there was %d", s.Pool.VolumeGeneration, lost)
			}
			f.open()
			f.expect("home", 0, 4, 1)
			if tt.check != nil {
				tt.check(f)
			}
			eventually(t, "healed", func() bool { return f.pool.Info().Healed == 1 })
			f.close()
			f.open()
			if tt.check != nil {
				tt.check(f)
			}
		})
	}
}

// TestRebuildFromAnOldVolumeTableWithoutStamps is of backings whose stamps do not tell
// of volume tables, as those of earlier programs.
func TestRebuildFromAnOldVolumeTableWithoutStamps(t *testing.T) {
	t.Parallel()
	f := newDisks(t)
	if err := f.pool.RenameVolume(ctx, "home", "desk", false); err != nil {
		t.Fatal(err)
	}
	f.close()
	for _, name := range []string{"a", "b", "c"} {
		st, sb := f.store(name)
		copies, err := ondisk.ReadStampCopies(ctx, st, sb.PoolID, sb.BackingUUID, sb.Layout)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range copies {
			c.Stamp.VolumeGeneration = 0
			if err := ondisk.MendStamp(ctx, st, sb.PoolID, sb.BackingUUID, sb.Layout, i, c.Generation, c.Stamp); err != nil {
				t.Fatal(err)
			}
		}
		st.Close()
	}
	o := f.rebuildOptions()
	o.Replace, o.DryRun = true, true
	if r, err := tiering.Rebuild(ctx, o); err != nil || r.Damaged() {
		t.Errorf("rebuild: %v, %+v, want no damage", err, r.Findings)
	}
	for _, name := range []string{"a", "b", "c"} {
		f.spoilNewestTable(name)
	}
	r, err := tiering.Rebuild(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	wantDamage(t, r, tiering.FoundVolumeTable, "may have been newer")
}

// TestRestoreOfADumpNewerThanTheTables takes the volumes from the dump, since those of
// the backings are from before.
func TestRestoreOfADumpNewerThanTheTables(t *testing.T) {
	t.Parallel()
	f := newDisks(t)
	if err := f.pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "later", Size: 8 * ext}, false); err != nil {
		t.Fatal(err)
	}
	f.write("later", 0, 2, 7)
	f.close()
	dump := f.dump()
	f.open()
	f.write("later", 4, 2, 8)
	f.close()
	for _, name := range []string{"a", "b", "c"} {
		f.spoilNewestTable(name)
	}
	f.remove("pool.db")
	r, err := tiering.Restore(ctx, f.rebuildOptions(), dump)
	if err != nil || r.Whole {
		t.Fatalf("restore: %+v, %v", r, err)
	}
	wantDamage(t, r.RebuildReport, tiering.FoundVolumeTable, "they are those of the dump")
	f.open()
	f.expect("later", 0, 2, 7)
	f.expect("later", 4, 2, 8)
}

// TestRebuildOfUnreadableBlocks meets blocks that cannot be read: all that is elsewhere
// is rebuilt, and what was there is told.
func TestRebuildOfUnreadableBlocks(t *testing.T) {
	t.Parallel()
	const n = 1000
	o, _ := manyExtents(t, n)
	all, err := tiering.Rebuild(ctx, o)
	if err != nil || all.Extents != n || all.Damaged() {
		t.Fatalf("rebuild: %+v, %v", all, err)
	}
	_, whole := readMap(t, o.Metadata)
	var layout ondisk.Layout
	var faults []faultstore.Fault
	o.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
		inner, err := tiering.OpenBacking(ctx, spec, create, readOnly)
		if err != nil || spec.Path != o.Backings[0].Path {
			return inner, err
		}
		sb, err := ondisk.ReadSuperblock(ctx, inner)
		if err != nil {
			return nil, err
		}
		layout = sb.Layout
		st := faultstore.New(inner, 1)
		for _, f := range faults {
			f.Ops, f.Err = faultstore.Read, syscall.EIO
			st.Inject(f)
		}
		return st, nil
	}
	rebuild := func(at int64) tiering.RebuildReport {
		t.Helper()
		faults = []faultstore.Fault{{From: at, To: at + 512}}
		o.Metadata = filepath.Join(t.TempDir(), "rebuilt.db")
		r, err := tiering.Rebuild(ctx, o)
		if err != nil {
			t.Fatalf("rebuild with an unreadable block at %d: %v", at, err)
		}
		return r
	}
	rebuild(0) // to know the layout

	r := rebuild(layout.SlotTableOffset + 2*block)
	wantDamage(t, r, tiering.FoundUnreadable, "the entries of slots 256 to 383 cannot be read")
	if r.Members[0].Unreadable != 128 || r.Extents != n-128 {
		t.Errorf("%d entries unreadable, %d extents, want 128 and %d", r.Members[0].Unreadable, r.Extents, n-128)
	}
	_, got := readMap(t, o.Metadata)
	for k, at := range whole {
		if lost := at.Backing == 1 && at.Slot >= 256 && at.Slot < 384; lost != (got[k] == extent.Location{}) || !lost && got[k] != at {
			t.Fatalf("%v is at %v, want %v, unreadable %t", k, got[k], at, lost)
		}
	}
	// Of these there are two copies, or others.
	for what, at := range map[string]int64{
		"superblock": layout.FrontSuperblock, "end superblock": layout.EndSuperblock, "volume table": layout.VolumeTableOffset[0],
	} {
		if r := rebuild(at); r.Extents != n || r.Damaged() {
			t.Errorf("%s: %d extents, want %d and no damage: %+v", what, r.Extents, n, r.Findings)
		}
	}
	wantDamage(t, rebuild(layout.StampOffset[0]), tiering.FoundStamp, "input/output error")
}
