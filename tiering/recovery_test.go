package tiering_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// busyPool returns a pool with committed and staged mappings of every kind, a
// volume being deleted, and the function that checks what was answered.
func busyPool(t *testing.T) (e *env, check func(when string)) {
	t.Helper()
	e = newEnv(t, model.Config{Slots: [][]int{{6}, {8}, {10}}, Volumes: []int64{8 * ext, 8 * ext, 2 * ext}}, nil)
	e.write("v0", 0, 4*ext, 1)
	e.write("v2", 0, ext, 9)
	e.flush("v0")
	e.flush("v2")
	e.write("v0", 4*ext, ext, 2) // staged: map
	e.trim("v0", ext, ext)       // staged: unmap
	e.write("v0", 0, block, 3)   // overwrite
	e.write("v1", 0, 2*ext, 4)   // staged: map
	e.trim("v1", ext, ext)       // staged: map and unmap
	e.write("v1", ext, block, 5) // staged: mapped again
	e.write("v0", 3*ext, block, 6)
	return e, func(when string) {
		t.Helper()
		e.expect("v0", 0, block, 3)
		e.expect("v0", block, ext-block, 1)
		e.expect("v0", ext, ext, 0)
		e.expect("v0", 2*ext, ext, 1)
		e.expect("v0", 3*ext, block, 6)
		e.expect("v0", 4*ext, ext, 2)
		e.expect("v1", 0, ext, 4)
		e.expect("v1", ext, block, 5)
		e.expect("v1", ext+block, ext-block, 0)
		e.expect("v2", 0, ext, 9)
		if t.Failed() {
			t.Fatalf("wrong %s", when)
		}
	}
}

// failNth makes the nth commit from now on fail at p.
func (e *env) failNth(p extentmap.FaultPoint, n int) (met func() bool) {
	count, hit := 0, false
	f := func(at extentmap.FaultPoint, _ uint64) error {
		if at != p {
			return nil
		}
		if count++; count == n {
			hit = true
			return syscall.EIO
		}
		return nil
	}
	e.fault.Store(&f)
	return func() bool { return hit }
}

// TestCrashDuringRecovery ends the recovery at each of its commits, before and
// after it, again and again on the same pool: what was answered is there, and
// since nothing was lost the continuity id stays.
func TestCrashDuringRecovery(t *testing.T) {
	for _, again := range []bool{false, true} {
		for _, point := range []extentmap.FaultPoint{extentmap.FaultBefore, extentmap.FaultAfter} {
			t.Run(fmt.Sprintf("again=%v point=%d", again, point), func(t *testing.T) {
				e, check := busyPool(t)
				cont := e.Pool.Continuity()
				for n := 1; ; n++ {
					e.Kill()
					met := e.failNth(point, n)
					err := e.tryOpen(nil)
					e.fault.Store(nil)
					if err == nil && !met() {
						if n < 4 {
							t.Errorf("recovery makes %d commits: the test shows nothing", n-1)
						}
						break
					}
					if err == nil {
						t.Fatalf("open = nil although its commit %d failed", n)
					}
					if !errors.Is(err, tiering.ErrMetadataFailed) {
						t.Errorf("commit %d fails: open = %v", n, err)
					}
					if again { // a second time at the same place, then on
						e.failNth(point, n)
						if err := e.tryOpen(nil); err == nil {
							e.Kill()
						}
						e.fault.Store(nil)
					}
					e.Open()
					check(fmt.Sprintf("after commit %d failed", n))
					if got := e.Pool.Continuity(); got != cont {
						t.Errorf("commit %d failed: the continuity id changed and nothing was lost", n)
						cont = got
					}
					// Something staged again, for the next one to recover.
					e.trim("v0", 4*ext, ext)
					e.write("v0", 4*ext, ext, 2)
				}
				check("at the end")
				e.settle()
				e.Close()
				e.Check()
				e.Open()
				check("after a clean stop")
			})
		}
	}
}

// TestCutDuringRecovery: the same with power losses: what was flushed is there.
func TestCutDuringRecovery(t *testing.T) {
	for _, keep := range []float64{0, 0.5, 1} {
		e, _ := busyPool(t)
		e.flush("v0")
		e.flush("v1")
		_, check := e, func() {
			e.expect("v0", 0, block, 3)
			e.expect("v0", ext, ext, 0)
			e.expect("v0", 4*ext, ext, 2)
			e.expect("v1", ext, block, 5)
			e.expect("v1", ext+block, ext-block, 0)
		}
		for n := 1; n <= 8; n++ {
			e.Cut(uint64(n), keep)
			e.failNth(extentmap.FaultAfter, n)
			if err := e.tryOpenBoot(); err == nil {
				e.fault.Store(nil)
				check()
				continue
			}
			e.fault.Store(nil)
			e.Open()
			check()
		}
		e.settle()
		e.Close()
		e.Check()
	}
}

// tryOpenBoot opens with the options of the present boot.
func (e *env) tryOpenBoot() error {
	return e.tryOpen(func(o *tiering.Options) { o.BootID = fmt.Sprintf("boot after %s", o.BootID) })
}

// TestSyncAtOpenFails: a backing that cannot make durable what a killed daemon
// left behind has failed.
func TestSyncAtOpenFails(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	e.flush("v0")
	e.write("v0", 0, block, 2)
	cont := e.Pool.Continuity()
	e.Kill()
	err := e.tryOpen(func(o *tiering.Options) { o.OpenStore = failing(o.OpenStore, path(0, 0), faultstore.Sync) })
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, "flush", e.volume("v0").Flush(ctx), tiering.ErrBackingFailed)
	wantErr(t, "write", e.volume("v0").WriteAt(ctx, []byte("x"), 0, false), tiering.ErrBackingFailed)
	e.expect("v0", 0, block, 2)
	if e.Pool.Continuity() == cont {
		t.Error("the continuity id is the same")
	}
	e.Kill()
	e.Open()
	wantErr(t, "write after another open", e.volume("v0").WriteAt(ctx, []byte("x"), 0, false), tiering.ErrBackingFailed)
}

// tables reads the slot tables of all backings of an open pool.
func (e *env) tables() map[string][]ondisk.SlotEntry {
	e.t.Helper()
	all := make(map[string][]ondisk.SlotEntry)
	for _, b := range e.Pool.Backings() {
		st, err := e.opt.OpenStore(ctx, tiering.BackingSpec{Path: b.Path}, false, true)
		if err != nil {
			e.t.Fatal(err)
		}
		sb, err := ondisk.ReadSuperblock(ctx, st)
		if err != nil {
			e.t.Fatal(err)
		}
		table := ondisk.NewSlotTable(st, sb.PoolID, sb.BackingUUID, sb.Backing, sb.Layout)
		if err := table.Scan(ctx, func(s extent.Slot, en ondisk.SlotEntry, valid bool) bool {
			if !valid {
				e.t.Errorf("%s slot %d: bad checksum", b.Path, s)
			}
			all[b.Path] = append(all[b.Path], en)
			return true
		}); err != nil {
			e.t.Fatal(err)
		}
		st.Close()
	}
	return all
}

// TestHeal: after a cut in the middle of rounds, moves and unmaps, and the healing
// that follows, the tables name exactly the owners that the map has, and an old
// tombstone or owner is nowhere left.
func TestHeal(t *testing.T) {
	for seed := range uint64(12) {
		e := newEnv(t, model.Config{Slots: [][]int{{6}, {8}, {10}}}, nil)
		e.write("v0", 0, 6*ext, 1)
		e.flush("v0")
		e.write("v1", 0, 3*ext, 2)
		for i := range int64(3) {
			if _, err := e.Pool.MoveExtent(ctx, "v0", i*ext, int(1+i%2)); err != nil {
				t.Fatal(err)
			}
		}
		e.trim("v0", 3*ext, 2*ext)
		// The round writes its table entries and syncs some of them; its commit is lost.
		f := func(p extentmap.FaultPoint, _ uint64) error {
			if p == extentmap.FaultBefore {
				return syscall.EIO
			}
			return nil
		}
		e.fault.Store(&f)
		wantErr(t, "flush", e.volume("v0").Flush(ctx), tiering.ErrMetadataFailed)
		wantErr(t, "flush", e.volume("v1").Flush(ctx), tiering.ErrMetadataFailed)
		e.fault.Store(nil)
		e.Cut(seed, []float64{0, 0.5, 1}[seed%3])
		e.Open()
		e.expect("v0", 0, 6*ext, 1)
		e.expect("v1", 0, 3*ext, 0)
		eventually(t, "healing", func() bool { return e.Pool.Info().Healed == 1 })
		owners := map[string]int{}
		for p, entries := range e.tables() {
			for s, en := range entries {
				switch en.Kind {
				case ondisk.Owner:
					owners[fmt.Sprintf("%d/%d", en.Key.Volume, en.Key.Index)]++
					pl, err := e.Pool.Locate("v0", int64(en.Key.Index)*ext)
					if err != nil || pl.Backing != p || int(pl.Location.Slot) != s || en.Key.Volume != 1 {
						t.Errorf("seed %d: %s slot %d names %v, which is on %s %v", seed, p, s, en.Key, pl.Backing, pl.Location)
					}
				case ondisk.Tombstone:
					t.Errorf("seed %d: %s slot %d still has a tombstone of %v", seed, p, s, en.Key)
				}
			}
		}
		if len(owners) != 6 {
			t.Errorf("seed %d: the tables name %v, want the 6 extents of the map", seed, owners)
		}
		e.settle()
		e.Close()
		e.Check()
	}
}

// TestHealIsInOrder looks at what reaches the tables during healing: all owners
// are synced before a stale entry is cleared, and those before a tombstone goes.
func TestHealIsInOrder(t *testing.T) {
	e, r := newRecorded(t)
	e.write("v0", 0, 2*ext, 1)
	e.flush("v0")
	// A round whose commit is lost: an unmap leaves a tombstone, a first write an owner.
	e.trim("v0", 0, ext)
	e.write("v0", 4*ext, ext, 2)
	e.settle() // the tables have all of it
	e.Kill()
	// The map of before, as a cut would leave it.
	db, err := extentmap.Open(e.opt.Metadata, extentmap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var ch extentmap.Changes
	table := func(i extent.Index, l extent.Location) {
		ch.Map = append(ch.Map, extentmap.MapChange{Key: extent.Key{Volume: 1, Index: i}, To: l})
	}
	old := map[extent.Index]extent.Location{}
	if err := db.LoadMap(1, func(first extent.Index, locs []extent.Location) error {
		for i, l := range locs {
			if !l.IsZero() {
				old[first+extent.Index(i)] = l
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	table(4, extent.Location{})
	table(6, old[4]) // the slot belongs to another extent by the map
	if _, err := db.Commit(ctx, &ch); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	r.take()
	if err := e.tryOpen(func(o *tiering.Options) { o.BootID = "next" }); err != nil {
		t.Fatal(err)
	}
	eventually(t, "healing", func() bool { return e.Pool.Info().Healed == 1 })
	var got []string
	for _, ev := range r.take() {
		if ev == "t0 table" || ev == "t0 sync" && len(got) > 0 && got[len(got)-1] == "t0 table" {
			got = append(got, ev)
		}
	}
	// The owner that is missing, then the tombstone of extent 0; nothing is stale.
	want := []string{"t0 table", "t0 sync", "t0 table", "t0 sync"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("healing: %q, want %q", got, want)
	}
	for _, entries := range e.tables() {
		for _, en := range entries {
			if en.Kind == ondisk.Tombstone {
				t.Error("a tombstone is left")
			}
		}
	}
}

// TestHealOfABackingThatFails: a slot table that cannot be written or read while it is
// healed keeps no other backing from taking new extents, nor lets a first write wait
// for slots that do not come.
func TestHealOfABackingThatFails(t *testing.T) {
	for _, op := range []faultstore.Op{faultstore.Write, faultstore.Read} {
		t.Run(op.String(), func(t *testing.T) {
			e := newEnv(t, model.Config{Slots: [][]int{{4}, {4}, {4}}}, nil)
			e.write("v0", 0, ext, 1)
			e.flush("v0")
			pl, err := e.Pool.Locate("v0", 0)
			if err != nil || pl.Backing != path(0, 0) {
				t.Fatalf("%+v, %v", pl, err)
			}
			e.Kill()
			l := e.superblock(path(0, 0)).Layout
			st, err := e.opt.OpenStore(ctx, tiering.BackingSpec{Path: path(0, 0)}, false, false)
			if err != nil {
				t.Fatal(err)
			}
			const entry = 32
			if err := st.WriteAt(ctx, make([]byte, entry), l.SlotTableOffset+int64(pl.Location.Slot)*entry); err != nil {
				t.Fatal(err)
			}
			f := faultstore.Fault{Ops: op, From: l.SlotTableOffset, To: l.DataOffset, Err: syscall.EIO}
			if err := e.tryOpen(faulty(path(0, 0), f)); err != nil {
				t.Fatal(err)
			}
			limited, cancel := context.WithTimeout(ctx, time.Minute) // a first write would wait for longer
			defer cancel()
			if err := e.volume("v1").WriteAt(limited, bytes.Repeat([]byte{2}, ext), 0, false); err != nil {
				t.Fatalf("write beside a backing whose table is not healed: %v", err)
			}
			if got := e.tierOf("v1", 0); got == "t0" {
				t.Error("a new extent is on the backing whose table is not healed")
			}
			e.expect("v1", 0, ext, 2)
			if op == faultstore.Read {
				e.expect("v0", 0, ext, 1)
			}
		})
	}
}

// faulty returns options by which the store at p gets a fault when it is opened.
func faulty(p string, f faultstore.Fault) func(*tiering.Options) {
	return func(o *tiering.Options) {
		inner := o.OpenStore
		o.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
			st, err := inner(ctx, spec, create, readOnly)
			if err != nil || spec.Path != p {
				return st, err
			}
			fs := faultstore.New(st, 1)
			fs.Inject(f)
			return fs, nil
		}
	}
}

// TestHealBesideABackingThatHangs: while the slot table of one backing cannot be looked
// at, because its reads hang, the others give out the slots that have no entry, and
// only those: the tombstone of an extent may outdo an owner that is on the one that
// hangs.
func TestHealBesideABackingThatHangs(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{6}, {6}}}, nil)
	if err := e.Pool.SetPolicy(ctx, "v1", "t1", false); err != nil {
		t.Fatal(err)
	}
	e.write("v0", 0, 2*ext, 1)
	e.write("v1", 0, 2*ext, 2)
	e.flush("v0")
	e.flush("v1")
	e.trim("v0", 0, ext) // leaves a tombstone
	e.flush("v0")
	l := e.superblock(path(1, 0)).Layout
	e.Kill()

	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	defer release()
	hang := faulty(path(1, 0), faultstore.Fault{Ops: faultstore.Read, From: l.SlotTableOffset, To: l.DataOffset, Wait: gate})
	if err := e.tryOpen(hang); err != nil {
		t.Fatal(err)
	}
	for i := range int64(4) {
		e.soon("a first write", func() { e.write("v0", (2+i)*ext, ext, 3); e.flush("v0") })
	}
	e.soon("a trim", func() { e.trim("v0", 2*ext, ext); e.flush("v0") })
	if e.Pool.Info().Healed == 1 {
		t.Error("the tables are healed while one cannot be read")
	}
	// The tombstone from before, and the slot that was given back just now.
	if c := e.Pool.Tiers()[0].Slots; c.Used != 4 || c.Vacated != 2 {
		t.Errorf("%+v, want 4 used, and 2 that wait for the table of the other backing", c)
	}
	release()
	e.healed()
	e.settle()
	e.expect("v0", ext, ext, 1)
	e.expect("v0", 3*ext, ext, 3)
	e.expect("v1", 0, ext, 2)
	if c := e.Pool.Tiers()[0].Slots; c.Used != 4 || c.Clean != 2 {
		t.Errorf("%+v, want 4 used and the others clean", c)
	}
	e.Close()
	e.Check()
}

// TestStartSaysWhatItWaitsFor: a start waits for a backing that hangs, says so, and goes
// on when it answers.
func TestStartSaysWhatItWaitsFor(t *testing.T) {
	defer tiering.SetOpenPatience(time.Millisecond)()
	for what, op := range map[string]faultstore.Op{
		"opening of backing /t1/b0 and reading of its superblock": faultstore.Read,
		"sync of backing /t1/b0":                                  faultstore.Sync,
	} {
		e := newEnv(t, model.Config{Slots: [][]int{{4}, {4}}}, nil)
		e.write("v0", 0, ext, 1)
		e.Kill()
		gate := make(chan struct{})
		release := sync.OnceFunc(func() { close(gate) })
		opened := make(chan error, 1)
		go func() { opened <- e.tryOpen(faulty(path(1, 0), faultstore.Fault{Ops: op, Wait: gate})) }()
		t.Cleanup(release)
		eventually(t, what+" in the log", func() bool {
			return strings.Contains(e.logs.String(), "the start waits") && strings.Contains(e.logs.String(), what)
		})
		release()
		if err := <-opened; err != nil {
			t.Error(err)
		}
		e.expect("v0", 0, ext, 1)
	}
}

// TestBadTableEntries: after an unclean stop, the damaged entry of a slot that the
// map gives an owner is written anew; a slot without an owner is set aside, and
// its entry stays for pool check to list.
func TestBadTableEntries(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{4}, {4}, {4}}}, nil)
	e.write("v0", 0, ext, 1)
	e.flush("v0")
	pl, err := e.Pool.Locate("v0", 0)
	if err != nil {
		t.Fatal(err)
	}
	owned, free := pl.Location.Slot, (pl.Location.Slot+2)%4
	e.Kill()

	sb := e.superblock(path(0, 0))
	st, err := e.opt.OpenStore(ctx, tiering.BackingSpec{Path: path(0, 0)}, false, false)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	const entry = 32
	for _, s := range []extent.Slot{owned, free} {
		if err := st.WriteAt(ctx, bytes.Repeat([]byte{0xaa}, entry), sb.Layout.SlotTableOffset+int64(s)*entry); err != nil {
			t.Fatal(err)
		}
	}

	e.Open()
	eventually(t, "healing", func() bool { return e.Pool.Info().Healed == 1 })
	e.expect("v0", 0, ext, 1)
	if _, _, q := e.slots(0); q != 1 {
		t.Errorf("%d slots quarantined, want 1", q)
	}
	table := ondisk.NewSlotTable(st, sb.PoolID, sb.BackingUUID, sb.Backing, sb.Layout)
	if en, valid, err := table.Read(ctx, owned); err != nil || !valid || en.Kind != ondisk.Owner {
		t.Errorf("entry of the owned slot: %+v, valid %v, %v; want its owner", en, valid, err)
	}
	if _, valid, err := table.Read(ctx, free); err != nil || valid {
		t.Errorf("entry of the free slot: valid %v, %v; want it left as it is", valid, err)
	}
	// Nothing is ever placed in the slot that was set aside.
	e.write("v0", ext, 4*ext, 2)
	e.flush("v0")
	for i := range int64(5) {
		pl, err := e.Pool.Locate("v0", i*ext)
		if err != nil || pl.Backing == path(0, 0) && pl.Location.Slot == free {
			t.Errorf("extent %d: %+v, %v", i, pl, err)
		}
	}
	e.settle()

	// It stays set aside over clean stops, until somebody has mended the entry.
	e.Close()
	e.Open()
	e.healed()
	if _, _, q := e.slots(0); q != 1 {
		t.Errorf("%d slots quarantined after a clean stop, want 1", q)
	}
	e.settle()
	e.Close()
	if err := table.Write(ctx, []ondisk.SlotUpdate{{Slot: free}}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a start that looks through the tables again, and one that need not
		e.Open()
		e.healed()
		if _, _, q := e.slots(0); q != 0 {
			t.Errorf("%d slots quarantined though the entry is mended", q)
		}
		e.Close()
	}
	for _, m := range e.state().Members {
		if m.BadEntries {
			t.Errorf("the metadata still say that backing %d has damaged entries", m.ID)
		}
	}
}
