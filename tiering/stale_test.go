package tiering_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"tierd/tiering"
	"tierd/tiering/extentmap"
)

// TestCopyFromBeforeTheStop puts a copy of a backing, taken while the pool was in use,
// in the place of the one that a clean stop was stamped on.
func TestCopyFromBeforeTheStop(t *testing.T) {
	f := newDiskPool(t, true)
	old := f.copyInUse("a.img")
	right := f.copyFile("a.img")
	old()
	f.unchanged("a start with the copy", func() {
		_, err := tiering.Open(ctx, f.opt)
		wantErr(t, "open with the copy", err, tiering.ErrRefused)
		if err == nil || !strings.Contains(err.Error(), "a.img is an old copy") || !strings.Contains(err.Error(), "--accept-stale 1") {
			t.Errorf("open = %v, which does not say what to do", err)
		}
		if got := kinds(f.check().Findings, tiering.Damage); !slices.Contains(got, tiering.FoundStale) {
			t.Errorf("check finds %q", got)
		}
		if r := f.repair(tiering.RepairOptions{}); !r.Damaged() || len(r.Done) > 0 {
			t.Errorf("Repair = %+v", r)
		}
	})
	// A repair of something else does not make it pass.
	f.flip("b.img", frontSuperblockAt+60)
	v := f.state().Volumes[0]
	v.Name = "hole"
	f.commit(&extentmap.Changes{Volumes: []extentmap.Volume{v}})
	if r := f.repair(tiering.RepairOptions{}); len(r.Done) < 2 || !slices.Contains(kinds(r.Left, tiering.Damage), tiering.FoundStale) {
		t.Errorf("Repair = %+v", r)
	}
	_, err := tiering.Open(ctx, f.opt)
	wantErr(t, "open with the copy after a repair", err, tiering.ErrRefused)

	copied := f.read()
	right()
	if r := f.repair(tiering.RepairOptions{}); r.Damaged() {
		t.Errorf("Repair with the right one = %+v", r)
	}
	p := f.open()
	if w := f.wrong(p); len(w) > 0 {
		t.Errorf("with the right one %q are wrong", w)
	}
	p.Kill()

	f.saved = copied
	f.restore()
	before := f.state().Pool.Continuity
	if r := f.repair(tiering.RepairOptions{AcceptStale: []string{"1"}}); r.Damaged() || f.state().Pool.Continuity == before {
		t.Errorf("Repair with the copy accepted = %+v", r)
	}
	p = f.open()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	f.open().Kill()
}

// TestNoStampOfTheStop opens pools whose backings have no stamp of the last clean stop
// for a good reason.
func TestNoStampOfTheStop(t *testing.T) {
	open := func(f *diskPool) {
		t.Helper()
		if got := kinds(f.check().Findings, tiering.Damage); slices.Contains(got, tiering.FoundStale) {
			t.Errorf("check finds %q", got)
		}
		p := f.open()
		if w := f.wrong(p); len(w) > 0 {
			t.Errorf("%q are wrong", w)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		f.open().Kill()
	}
	f := newDiskPool(t, true)
	away := f.copyFile("b.img")
	if r := f.state().Pool; r.StampedStop != r.Incarnation {
		t.Errorf("pool = %+v, want the stop stamped", r)
	}
	f.remove("b.img")
	f.opt.Degraded = true
	for range 2 { // two clean stops without it
		if err := f.open().Close(); err != nil {
			t.Fatal(err)
		}
	}
	away()
	open(f)

	// The newest stamp is damaged: the one before it proves nothing.
	for at := int64(stampAt); at < volumeTableAt; at += block {
		for _, repair := range []bool{false, true} {
			f = newDiskPool(t, true)
			f.flip("a.img", at+40)
			if repair {
				if r := f.repair(tiering.RepairOptions{}); r.Damaged() {
					t.Errorf("Repair = %+v", r)
				}
			}
			open(f)
		}
	}

	// A stop that was cut short before all had it.
	f = newDiskPool(t, true)
	running := f.open()
	f.flush(running)
	old := f.copyFile("c.img")
	if err := running.Close(); err != nil {
		t.Fatal(err)
	}
	f.commit(&extentmap.Changes{Pool: func(r *extentmap.PoolRecord) { r.StampedStop-- }})
	old()
	open(f)
}

// TestCopyFromBeforeADegradedRun puts a copy of a backing, taken before the last clean
// stop that the backing was there for, in its place after runs without it.
func TestCopyFromBeforeADegradedRun(t *testing.T) {
	for what, end := range map[string]func(*tiering.Pool){
		"stops": func(p *tiering.Pool) { _ = p.Close() },
		"kills": func(p *tiering.Pool) { p.Kill() },
	} {
		t.Run(what, func(t *testing.T) {
			f := newDiskPool(t, true)
			old := f.copyInUse("b.img")
			right := f.copyFile("b.img")
			f.remove("b.img")
			f.opt.Degraded = true
			for range 2 {
				end(f.open())
			}
			f.opt.Degraded = false
			var others []func()
			for _, name := range []string{"pool.db", "pool.db.log", "a.img", "c.img"} {
				others = append(others, f.copyFile(name))
			}
			reset := func(putBack func()) {
				for _, other := range others {
					other()
				}
				putBack()
			}

			reset(old)
			f.unchanged("a start with the copy", func() {
				_, err := tiering.Open(ctx, f.opt)
				wantErr(t, "open with the copy", err, tiering.ErrRefused)
				if got := kinds(f.check().Findings, tiering.Damage); !slices.Contains(got, tiering.FoundStale) {
					t.Errorf("check finds %q", got)
				}
			})
			before := f.state().Pool.Continuity
			if r := f.repair(tiering.RepairOptions{AcceptStale: []string{"2"}}); r.Damaged() || f.state().Pool.Continuity == before {
				t.Errorf("Repair with the copy accepted = %+v", r)
			}
			f.open().Kill()

			// The original, also with a damaged stamp, is taken.
			for at := int64(stampAt - block); at < volumeTableAt; at += block {
				reset(right)
				if at >= stampAt {
					f.flip("b.img", at+40)
					if r := f.repair(tiering.RepairOptions{}); r.Damaged() {
						t.Errorf("Repair = %+v", r)
					}
				}
				p := f.open()
				if w := f.wrong(p); len(w) > 0 {
					t.Errorf("with the right one %q are wrong", w)
				}
				p.Kill()
			}
		})
	}
}

// TestMetadataFromBeforeAFlush puts a copy of the metadata and of the staged log back
// after a kill: what was flushed since must not read as zeroes in silence.
func TestMetadataFromBeforeAFlush(t *testing.T) {
	f := newDiskPool(t, true)
	p := f.open()
	f.write(p, "home", 12*ext, ext, 0x31)
	f.flush(p)
	db, log := f.copyFile("pool.db"), f.copyFile("pool.db.log")
	f.write(p, "home", 13*ext, 3*ext, 0x32)
	f.flush(p)
	p.Kill()
	newDB, newLog := f.copyFile("pool.db"), f.copyFile("pool.db.log")
	db()
	log()
	f.unchanged("a start with the copies", func() {
		for _, readOnly := range []bool{false, true} {
			o := f.opt
			o.ReadOnly = readOnly
			_, err := tiering.Open(ctx, o)
			wantErr(t, "open with the copies", err, tiering.ErrRefused)
		}
		if got := kinds(f.check().Findings, tiering.Damage); !slices.Contains(got, tiering.FoundMetadataOlder) {
			t.Errorf("check finds %q", got)
		}
		if r := f.repair(tiering.RepairOptions{}); !r.Damaged() || len(r.Done) > 0 {
			t.Errorf("Repair = %+v", r)
		}
	})
	newDB()
	newLog()
	if got := kinds(f.check().Findings, tiering.Damage); len(got) > 0 {
		t.Errorf("check of the right ones finds %q", got)
	}
	p = f.open()
	if w := f.wrong(p); len(w) > 0 {
		t.Errorf("with the right ones %q are wrong", w)
	}
	p.Kill()
}

// TestRebuildMissesOwners zeroes a sector of a slot table after a clean stop: entries
// that are free are legal, and fewer than there were.
func TestRebuildMissesOwners(t *testing.T) {
	f := newDiskPool(t, true)
	owner := f.place(1, 0)
	for _, zeroed := range []bool{false, true} {
		if zeroed {
			f.zero(backingFiles[owner.Backing], slotTableAt+int64(owner.Slot)*slotEntryBytes&^511, 512)
		}
		f.remove("pool.db")
		r, err := tiering.Rebuild(ctx, tiering.RebuildOptions{Metadata: f.opt.Metadata, Backings: f.opt.Backings})
		if err != nil || r.Damaged() != zeroed {
			t.Errorf("zeroed: %v: Rebuild = %+v, %v", zeroed, r, err)
		}
	}
}

func (f *diskPool) remove(name string) {
	f.t.Helper()
	if err := os.Remove(f.path(name)); err != nil {
		f.t.Fatal(err)
	}
}
