package tiering_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
)

// endSuperblock is where the second superblock of a backing is.
const endSuperblockAt = diskPoolBacking - superblockBytes

// backingFiles are the files of the backings.
var backingFiles = map[extent.BackingID]string{1: "a.img", 2: "b.img", 3: "c.img"}

// slotsOf returns the last slot of a backing that has an owner, and one that has none.
func (f *diskPool) slotsOf(id extent.BackingID) (owned, free extent.Slot, owner extent.Key) {
	f.t.Helper()
	used := make(map[extent.Slot]extent.Key)
	db, err := extentmap.Open(f.opt.Metadata, extentmap.Options{ReadOnly: true})
	if err != nil {
		f.t.Fatal(err)
	}
	defer db.Close()
	for _, v := range db.State().Volumes {
		err := db.LoadMap(v.ID, func(first extent.Index, locs []extent.Location) error {
			for i, l := range locs {
				if l.Backing == id {
					used[l.Slot] = extent.Key{Volume: v.ID, Index: first + extent.Index(i)}
				}
			}
			return nil
		})
		if err != nil {
			f.t.Fatal(err)
		}
	}
	if len(used) == 0 {
		f.t.Fatalf("backing %d has no extents", id)
	}
	owned = slices.Max(slices.Collect(maps.Keys(used)))
	owner = used[owned]
	for used[free] != (extent.Key{}) {
		free++
	}
	return owned, free, owner
}

func kinds(list []tiering.Finding, s tiering.Severity) (out []tiering.FindingKind) {
	for _, f := range list {
		if f.Severity == s && !slices.Contains(out, f.Kind) {
			out = append(out, f.Kind)
		}
	}
	slices.Sort(out)
	return out
}

func TestCheckAndRepair(t *testing.T) {
	f := newDiskPool(t, true)
	t.Run("nothing is wrong", func(t *testing.T) {
		f.t = t
		f.unchanged("check", func() {
			if r := f.check(); len(r.Findings) != 0 || r.Volumes != 2 || r.Extents == 0 || r.Slots == 0 || !r.Clean {
				t.Errorf("Check = %+v, want no findings", r)
			}
		})
		f.unchanged("repair", func() {
			if r := f.repair(tiering.RepairOptions{}); len(r.Done) != 0 || len(r.Left) != 0 || r.Aside != "" {
				t.Errorf("Repair = %+v, want nothing", r)
			}
		})
	})
	for _, tt := range []struct {
		name   string
		damage func(f *diskPool)
		want   []tiering.FindingKind // damage that is found
		left   []tiering.FindingKind // damage that is not mended
		lost   []string              // extents that do not read as before
		accept []tiering.FindingKind // damage that is mended only if the loss is accepted
		aside  bool
	}{
		{name: "front superblock", damage: func(f *diskPool) { f.zero("a.img", 0, 64<<10) }, want: []tiering.FindingKind{tiering.FoundSuperblockCopy}},
		{name: "end superblock", damage: func(f *diskPool) { f.flip("b.img", endSuperblockAt+90) }, want: []tiering.FindingKind{tiering.FoundSuperblockCopy}, aside: true},
		{name: "both superblocks", damage: func(f *diskPool) {
			f.zero("c.img", frontSuperblockAt, block)
			f.flip("c.img", endSuperblockAt+90)
		}, want: []tiering.FindingKind{tiering.FoundSuperblockLost}},
		{name: "both superblocks and stamps", damage: func(f *diskPool) {
			f.zero("c.img", frontSuperblockAt, block)
			f.zero("c.img", endSuperblockAt, block)
			f.zero("c.img", stampAt, 2*block)
		}, want: []tiering.FindingKind{tiering.FoundSuperblockLost}, left: []tiering.FindingKind{tiering.FoundSuperblockLost}},
		{name: "a stamp", damage: func(f *diskPool) { f.flip("a.img", stampAt+40) }, want: []tiering.FindingKind{tiering.FoundStamp}, aside: true},
		{name: "both stamps", damage: func(f *diskPool) {
			f.flip("a.img", stampAt+40)
			f.flip("a.img", stampAt+block+40)
		}, want: []tiering.FindingKind{tiering.FoundStamp}, aside: true},
		{name: "a volume table", damage: func(f *diskPool) { f.flip("a.img", volumeTableAt+60) }, want: []tiering.FindingKind{tiering.FoundVolumeTable}, aside: true},
		{name: "entry of an owned slot", damage: func(f *diskPool) {
			s, _, _ := f.slotsOf(2)
			f.flip("b.img", slotTableAt+int64(s)*slotEntryBytes+9)
		}, want: []tiering.FindingKind{tiering.FoundEntryDamaged}, aside: true},
		{name: "entry of a free slot", damage: func(f *diskPool) {
			_, s, _ := f.slotsOf(2)
			f.flip("b.img", slotTableAt+int64(s)*slotEntryBytes+9)
		}, want: []tiering.FindingKind{tiering.FoundEntryDamaged}, aside: true},
		{name: "all entries", damage: func(f *diskPool) { f.zero("b.img", slotTableAt, 2*block) }, want: []tiering.FindingKind{tiering.FoundEntryMissing}, aside: true},
		{name: "an extent lost by the map", damage: func(f *diskPool) {
			f.move(1, 0, extent.Location{})
		}, want: []tiering.FindingKind{tiering.FoundEntryOrphan}, lost: []string{"home 0"}, aside: true},
		{name: "two owners, one named", damage: func(f *diskPool) {
			f.move(2, 0, f.place(1, 0))
		}, want: []tiering.FindingKind{tiering.FoundDoubleOwner, tiering.FoundEntryOrphan}, aside: true},
		{name: "two owners, none named", damage: func(f *diskPool) {
			at, other := f.place(1, 0), f.place(2, 0)
			f.move(2, 0, at)
			f.zero(backingFiles[at.Backing], slotTableAt+int64(at.Slot)*slotEntryBytes, slotEntryBytes)
			f.zero(backingFiles[other.Backing], slotTableAt+int64(other.Slot)*slotEntryBytes, slotEntryBytes)
		}, want: []tiering.FindingKind{tiering.FoundDoubleOwner, tiering.FoundEntryMissing}, accept: []tiering.FindingKind{tiering.FoundDoubleOwner, tiering.FoundEntryMissing},
			lost: []string{"home 0", "mail 0"}, aside: true},
		{name: "two owners, neither known elsewhere", damage: func(f *diskPool) {
			at := f.place(1, 0)
			other := f.place(2, 0)
			f.move(2, 0, at)
			f.zero(backingFiles[other.Backing], slotTableAt+int64(other.Slot)*slotEntryBytes, slotEntryBytes)
		}, want: []tiering.FindingKind{tiering.FoundDoubleOwner}, accept: []tiering.FindingKind{tiering.FoundDoubleOwner}, lost: []string{"mail 0"}, aside: true},
		{name: "no such backing, and no entry", damage: func(f *diskPool) {
			at := f.place(1, 0)
			f.move(1, 0, extent.Location{Backing: 9, Slot: 0})
			f.flip(backingFiles[at.Backing], slotTableAt+int64(at.Slot)*slotEntryBytes+9)
		}, want: []tiering.FindingKind{tiering.FoundNoBacking, tiering.FoundEntryDamaged}, accept: []tiering.FindingKind{tiering.FoundNoBacking, tiering.FoundEntryDamaged}, lost: []string{"home 0"}, aside: true},
		{name: "past the end by the record alone", damage: func(f *diskPool) {
			_, free, _ := f.slotsOf(1)
			f.move(1, 500, extent.Location{Backing: 1, Slot: free})
			for _, name := range backingFiles {
				f.zero(name, volumeTableAt, block)
				f.zero(name, volumeTableAt+volumeTableBytes, block)
			}
		}, want: []tiering.FindingKind{tiering.FoundPastEnd, tiering.FoundEntryMissing, tiering.FoundVolumeTable},
			accept: []tiering.FindingKind{tiering.FoundPastEnd, tiering.FoundEntryMissing, tiering.FoundVolumeTable}, aside: true},
		{name: "slot out of range", damage: func(f *diskPool) {
			f.move(1, 0, extent.Location{Backing: 1, Slot: 5000})
		}, want: []tiering.FindingKind{tiering.FoundEntryOrphan, tiering.FoundSlotRange}, aside: true},
		{name: "no such backing", damage: func(f *diskPool) {
			f.move(1, 0, extent.Location{Backing: 9, Slot: 0})
		}, want: []tiering.FindingKind{tiering.FoundNoBacking, tiering.FoundEntryOrphan}, aside: true},
		{name: "past the end", damage: func(f *diskPool) {
			_, free, _ := f.slotsOf(1)
			f.move(1, 500, extent.Location{Backing: 1, Slot: free})
		}, want: []tiering.FindingKind{tiering.FoundPastEnd, tiering.FoundEntryMissing}, aside: true},
		{name: "record of a volume", damage: func(f *diskPool) {
			v := f.state().Volumes[0]
			v.Name, v.Size = "hole", 2*ext
			f.commit(&extentmap.Changes{Volumes: []extentmap.Volume{v}})
		}, want: []tiering.FindingKind{tiering.FoundMetadataRecord, tiering.FoundPastEnd}, aside: true},
		{name: "no record of a volume", damage: func(f *diskPool) {
			_, free, _ := f.slotsOf(1)
			f.move(7, 3, extent.Location{Backing: 1, Slot: free})
		}, want: []tiering.FindingKind{tiering.FoundNoVolume, tiering.FoundEntryMissing}, aside: true},
		{name: "a backing is missing", damage: func(f *diskPool) {
			if err := os.Remove(f.path("b.img")); err != nil {
				f.t.Fatal(err)
			}
			if err := os.WriteFile(f.path("b.img"), nil, 0o600); err != nil {
				f.t.Fatal(err)
			}
		}, want: []tiering.FindingKind{tiering.FoundUnreadable, tiering.FoundMissing}, left: []tiering.FindingKind{tiering.FoundUnreadable, tiering.FoundMissing}},
		{name: "a copy of a backing", damage: func(f *diskPool) {
			b, err := os.ReadFile(f.path("b.img"))
			if err == nil {
				err = os.WriteFile(f.path("c.img"), b, 0o600)
			}
			if err != nil {
				f.t.Fatal(err)
			}
		}, want: []tiering.FindingKind{tiering.FoundCopied, tiering.FoundMissing}, left: []tiering.FindingKind{tiering.FoundCopied, tiering.FoundMissing}},
		{name: "old metadata", damage: func(f *diskPool) {
			b, err := os.ReadFile(f.path("pool.db"))
			if err != nil {
				f.t.Fatal(err)
			}
			p := f.open()
			f.write(p, "home", 0, ext/2, 0x10)
			f.flush(p)
			if err := p.Close(); err != nil {
				f.t.Fatal(err)
			}
			if err := os.WriteFile(f.path("pool.db"), b, 0o600); err != nil {
				f.t.Fatal(err)
			}
		}, want: []tiering.FindingKind{tiering.FoundMetadataOlder}, left: []tiering.FindingKind{tiering.FoundMetadataOlder}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f.t = t
			f.restore()
			tt.damage(f)
			slices.Sort(tt.want)
			slices.Sort(tt.left)
			f.unchanged("check", func() {
				r := f.check()
				if got := kinds(r.Findings, tiering.Damage); !slices.Equal(got, tt.want) {
					t.Fatalf("Check finds %q, want %q: %+v", got, tt.want, r.Findings)
				}
			})
			if len(tt.accept) > 0 {
				slices.Sort(tt.accept)
				f.unchanged("a repair that accepts no loss", func() {
					if r := f.repair(tiering.RepairOptions{}); !slices.Equal(kinds(r.Left, tiering.Damage), tt.accept) || len(r.Done) > 0 {
						t.Errorf("Repair = %+v, want %q left", r, tt.accept)
					}
				})
			}
			opts := tiering.RepairOptions{AcceptLoss: len(tt.accept) > 0}
			before := f.state().Pool
			var dry tiering.RepairReport
			f.unchanged("repair in a dry run", func() { dry = f.repair(tiering.RepairOptions{DryRun: true, AcceptLoss: opts.AcceptLoss}) })
			r := f.repair(opts)
			if !slices.Equal(dry.Done, r.Done) || !slices.Equal(kinds(dry.Left, tiering.Damage), kinds(r.Left, tiering.Damage)) {
				t.Errorf("a dry run says that it does %+v and leaves %+v, and the real one does %+v and leaves %+v", dry.Done, dry.Left, r.Done, r.Left)
			}
			if after := f.state().Pool; (after.Commit > before.Commit) != (after.Incarnation > before.Incarnation) || after.CleanStop != before.CleanStop {
				t.Errorf("pool record before the repair %+v, after it %+v", before, after)
			}
			if len(tt.left) == 0 && (len(dry.Done) == 0 || dry.Damaged() || !dry.DryRun) {
				t.Errorf("dry run: %+v", dry)
			}
			if got := kinds(r.Left, tiering.Damage); !slices.Equal(got, tt.left) {
				t.Errorf("Repair leaves %q, want %q: %+v", got, tt.left, r)
			}
			if (r.Aside != "") != tt.aside {
				t.Errorf("Repair keeps what was there in %q", r.Aside)
			}
			f.unchanged("the second repair", func() {
				if again := f.repair(tiering.RepairOptions{}); len(again.Done) != 0 || len(again.Left) != len(r.Left) {
					t.Errorf("the second Repair: %+v", again)
				}
			})
			if len(tt.left) > 0 {
				return
			}
			if c := f.check(); c.Damaged() {
				t.Errorf("Check after Repair: %+v", c.Findings)
			}
			p := f.open()
			defer p.Close()
			if got := f.wrong(p); !slices.Equal(got, tt.lost) {
				t.Errorf("extents %q are not as before, want %q; %+v", got, tt.lost, r)
			}
			for _, l := range tt.lost {
				f.findAside(r, l)
			}
		})
	}
}

// findAside looks for the content of a lost extent in what Repair kept.
func (f *diskPool) findAside(r tiering.RepairReport, lost string) {
	f.t.Helper()
	name, no, _ := strings.Cut(lost, " ")
	var i int
	for _, c := range no {
		i = i*10 + int(c-'0')
	}
	want := f.want[name][i*ext : (i+1)*ext]
	files, _ := filepath.Glob(filepath.Join(r.Aside, "backing-*"))
	for _, p := range files {
		if b, err := os.ReadFile(p); err == nil && bytes.Equal(b, want) {
			return
		}
	}
	if name == "mail" {
		return // its slot was given to another one by the test, which destroyed the entry
	}
	f.t.Errorf("the content of %s is not in %s (%d slots)", lost, r.Aside, len(files))
}

// TestCheckInPasses looks at the pool a few slots at a time: it finds the same.
func TestCheckInPasses(t *testing.T) {
	f := newDiskPool(t, true)
	manyDamages(f)
	whole := f.check()
	defer tiering.SetWindowSlots(7)()
	parts := f.check()
	key := func(a, b tiering.Finding) int {
		return strings.Compare(a.Where+a.Text, b.Where+b.Text)
	}
	slices.SortFunc(whole.Findings, key)
	slices.SortFunc(parts.Findings, key)
	if !slices.Equal(whole.Findings, parts.Findings) || whole.Slots != parts.Slots || whole.Extents != parts.Extents {
		t.Errorf("in passes of 7 slots:\n%+v\nat once:\n%+v", parts, whole)
	}
}
