package tiering_test

import (
	"strings"
	"syscall"
	"testing"

	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/extent"
)

// TestHealingAroundAnUnreadableBlock rebuilds a pool of which a block of a slot table
// cannot be read, for ever. The slots of that block are set aside; all others are used,
// also those that wait for all tables.
func TestHealingAroundAnUnreadableBlock(t *testing.T) {
	t.Parallel()
	const inBlock = 128 // entries
	e := newEnv(t, model.Config{Slots: [][]int{{200}, {4}}, Volumes: []int64{256 * ext, 8 * ext}}, nil)
	eventually(t, "many clean slots", func() bool { return e.Pool.Tiers()[0].Slots.Clean >= 150 })
	for i := range int64(150) {
		e.write("v0", i*ext, block, byte(i))
	}
	for i := range int64(4) {
		e.write("v1", i*ext, block, 7)
		e.Relocate("v1", i*ext, 1)
	}
	e.flush("v0")
	e.flush("v1")
	e.trim("v0", 140*ext, ext)
	e.trim("v1", 0, 3*ext) // their tombstones are held back until all tables match
	e.flush("v0")
	e.flush("v1")
	e.Close()
	_, before := readMap(t, e.opt.Metadata)

	at := e.superblock(path(0, 0)).Layout.SlotTableOffset
	bad := true
	e.onOpen = func(p string, fs *faultstore.Store) {
		if bad && p == path(0, 0) {
			fs.Inject(faultstore.Fault{Ops: faultstore.Read, From: at, To: at + block, Err: syscall.EIO})
		}
	}
	wantDamage(t, e.loseMetadata(), tiering.FoundUnreadable, "the entries of slots 0 to 127 cannot be read")
	check := func() {
		t.Helper()
		e.healed()
		for tier, want := range []int64{inBlock, 0} {
			if _, _, q := e.slots(tier); q != want {
				t.Errorf("tier %d: %d slots set aside, want %d", tier, q, want)
			}
		}
		for i := range int64(150) {
			want := byte(i)
			if l := before[extent.Key{Volume: 1, Index: extent.Index(i)}]; l.IsZero() || l.Backing == 1 && l.Slot < inBlock {
				want = 0
			}
			e.expect("v0", i*ext, block, want)
		}
		e.expect("v1", 3*ext, block, 7)
		for i := range int64(40) {
			pl, err := e.Pool.Locate("v0", (150+i)*ext)
			if err != nil || pl.Backing == path(0, 0) && pl.Location.Slot < inBlock {
				t.Errorf("extent %d: %+v, %v, want it outside of the block", 150+i, pl, err)
			}
		}
		const text = "entries of the slot table cannot be read"
		if n := strings.Count(e.logs.String(), text); n != 1 {
			t.Errorf("logged %d times: %s", n, e.logs.String())
		}
		for _, b := range e.Pool.Backings() {
			if want := map[bool]tiering.Condition{true: tiering.ConditionSuspect, false: tiering.ConditionOK}[b.Path == path(0, 0)]; b.State != want {
				t.Errorf("%s is %s, want %s", b.Path, b.State, want)
			}
		}
	}
	e.Open()
	e.healed()
	for i := range int64(40) { // 50 slots are left on the first backing, and 3 on the other
		e.write("v0", (150+i)*ext, block, 9)
	}
	check()
	e.Close()
	if !e.state().Pool.CleanStop {
		t.Error("the stop was not clean")
	}
	e.logs.b.Reset()
	e.Open() // they stay set aside
	check()
	e.Close()

	bad = false
	e.Open()
	e.healed()
	if _, _, q := e.slots(0); q != 0 {
		t.Errorf("%d slots set aside though the block can be read", q)
	}
	e.settle()
	e.Close()
	e.Check()
}
