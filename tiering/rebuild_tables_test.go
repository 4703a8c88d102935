package tiering_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"tierd/pkg/backing"
	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/ondisk"
)

// memPool is a closed pool of two backings in memory, with volumes 1 and 2 of 16
// extents each, whose tables can be written at will.
type memPool struct {
	t      testing.TB
	stores map[string]*backing.Mem
}

func newMemPool(t testing.TB) *memPool {
	t.Helper()
	m := &memPool{t: t, stores: make(map[string]*backing.Mem)}
	o := tiering.CreateOptions{
		Metadata: filepath.Join(t.TempDir(), "pool.db"), ExtentSize: ext, OpenStore: m.openStore, LogBytes: 64 << 10,
		Volumes: []tiering.VolumeSpec{{Name: "v1", Size: 16 * ext}, {Name: "v2", Size: 16 * ext}},
	}
	for _, name := range []string{"a", "b"} {
		o.Tiers = append(o.Tiers, tiering.TierSpec{Name: name, Media: backing.SSD, Backings: []tiering.BackingSpec{{Path: name, Size: 12 << 20}}})
	}
	if _, err := tiering.Create(ctx, o); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *memPool) openStore(_ context.Context, spec tiering.BackingSpec, create, _ bool) (backing.Store, error) {
	if create {
		m.stores[spec.Path] = backing.NewMem(spec.Size)
	}
	if m.stores[spec.Path] == nil {
		return nil, os.ErrNotExist
	}
	return keptOpen{m.stores[spec.Path]}, nil
}

// keptOpen is a Mem that is opened again and again.
type keptOpen struct{ *backing.Mem }

func (keptOpen) Close() error { return nil }

// change runs fn on the bytes of a backing.
func (m *memPool) change(path string, fn func(st backing.Store, sb *ondisk.Superblock)) {
	m.t.Helper()
	st := m.stores[path]
	sb, err := ondisk.ReadSuperblock(ctx, st)
	if err != nil {
		m.t.Fatal(err)
	}
	fn(st, sb)
}

func (m *memPool) rebuild(path string) (tiering.RebuildReport, error) {
	return tiering.Rebuild(ctx, tiering.RebuildOptions{
		Metadata: path, OpenStore: m.openStore, Backings: []tiering.BackingSpec{{Path: "a"}, {Path: "b"}},
	})
}

// TestRebuildOfRandomTables compares what a rebuild makes of entries at random with
// the rule: of each extent, the entry of the highest sequence, if it is an owner's.
// Extents past the end of a volume, and volumes that nobody knows, are kept.
func TestRebuildOfRandomTables(t *testing.T) {
	t.Parallel()
	m := newMemPool(t)
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		type best struct {
			seq uint64
			at  extent.Location // zero: a tombstone
		}
		latest := make(map[extent.Key]best)
		seqs := rnd.Perm(200) // no two alike
		for i, path := range []string{"a", "b"} {
			m.change(path, func(st backing.Store, sb *ondisk.Superblock) {
				table := ondisk.NewSlotTable(st, sb.PoolID, sb.BackingUUID, sb.Backing, sb.Layout)
				if err := table.Zero(ctx); err != nil {
					t.Fatal(err)
				}
				var updates []ondisk.SlotUpdate
				for s := range min(sb.Layout.Slots, 40) {
					e := ondisk.SlotEntry{
						Kind: ondisk.Kind(rnd.IntN(3)), Seq: 1<<40 + uint64(seqs[int(s)+i*40]),
						Key: extent.Key{Volume: extent.VolumeID(1 + rnd.IntN(3)), Index: extent.Index(rnd.IntN(20))},
					}
					if e.Kind == ondisk.Free {
						continue
					}
					updates = append(updates, ondisk.SlotUpdate{Slot: extent.Slot(s), Entry: e})
					b := best{seq: e.Seq}
					if e.Kind == ondisk.Owner {
						b.at = extent.Location{Backing: sb.Backing, Slot: extent.Slot(s)}
					}
					if b.seq > latest[e.Key].seq {
						latest[e.Key] = b
					}
				}
				if err := table.Write(ctx, updates); err != nil {
					t.Fatal(err)
				}
			})
		}
		want := make(map[extent.Key]extent.Location)
		for k, b := range latest {
			if !b.at.IsZero() {
				want[k] = b.at
			}
		}
		path := filepath.Join(t.TempDir(), "rebuilt.db")
		r, err := m.rebuild(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, got := readMap(t, path); !maps.Equal(got, want) || r.Extents != int64(len(want)) {
			t.Fatalf("seed %d: map = %v\nwant %v", seed, got, want)
		}
	}
}

// FuzzRebuild writes anything into the tables of a backing. A rebuild refuses it or
// makes metadata that are sound.
func FuzzRebuild(f *testing.F) {
	m := newMemPool(f)
	clean := m.stores["a"].Clone()
	sb, err := ondisk.ReadSuperblock(ctx, clean)
	if err != nil {
		f.Fatal(err)
	}
	l := sb.Layout
	for _, off := range []int64{l.FrontSuperblock, l.EndSuperblock, l.StampOffset[0], l.VolumeTableOffset[0], l.SlotTableOffset} {
		b := make([]byte, 512)
		if err := clean.ReadAt(ctx, b, off); err != nil {
			f.Fatal(err)
		}
		f.Add(uint32(off), b, true)
	}
	f.Fuzz(func(t *testing.T, off uint32, b []byte, resealed bool) {
		at := int64(off)
		if len(b) > 64<<10 || at+int64(len(b)) > l.Size {
			return
		}
		st := clean.Clone()
		if err := st.WriteAt(ctx, b, at); err != nil {
			t.Fatal(err)
		}
		if resealed && len(b) >= 32 && at >= l.SlotTableOffset && at+32 <= l.DataOffset {
			// As a valid entry, whatever it says.
			table := ondisk.NewSlotTable(st, sb.PoolID, sb.BackingUUID, sb.Backing, l)
			e := ondisk.SlotEntry{
				Kind: ondisk.Kind(1 + b[0]%2), Seq: binary.LittleEndian.Uint64(b[16:]),
				Key: extent.Key{Volume: extent.VolumeID(binary.LittleEndian.Uint32(b[4:])), Index: extent.Index(binary.LittleEndian.Uint64(b[8:]))},
			}
			slot := extent.Slot(uint32(at-l.SlotTableOffset) / 32 % l.Slots)
			if err := table.Write(ctx, []ondisk.SlotUpdate{{Slot: slot, Entry: e}}); err != nil {
				t.Fatal(err)
			}
		}
		pool := &memPool{t: t, stores: map[string]*backing.Mem{"a": st, "b": m.stores["b"]}}
		path := filepath.Join(t.TempDir(), "rebuilt.db")
		if _, err := pool.rebuild(path); err != nil {
			if _, err := os.Stat(path); err == nil {
				t.Error("a rebuild that failed left metadata")
			}
			return
		}
		state, got := readMap(t, path)
		volumes := make(map[extent.VolumeID]int64)
		for _, v := range state.Volumes {
			volumes[v.ID] = v.Size
		}
		owner := make(map[extent.Location]extent.Key)
		for k, at := range got {
			if o, twice := owner[at]; twice {
				t.Errorf("%v belongs to %v and to %v", at, k, o)
			}
			owner[at] = k
			if volumes[k.Volume] < int64(k.Index+1)*ext || uint32(at.Slot) >= state.Members[at.Backing-1].Slots {
				t.Errorf("%v is at %v: out of range", k, at)
			}
		}
	})
}

// TestGoldenPoolIsRebuilt rebuilds the pool that the first version has written, and
// restores it: its superblocks have no commit number, and no stamp has the clean stop.
func TestGoldenPoolIsRebuilt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unpack(t, goldenPool, dir)
	o := tiering.RebuildOptions{Metadata: filepath.Join(dir, "rebuilt.db")}
	for i := range 3 {
		o.Backings = append(o.Backings, tiering.BackingSpec{Path: filepath.Join(dir, fmt.Sprintf("b%d.img", i))})
	}
	old := filepath.Join(dir, "pool.db")
	wantState, want := readMap(t, old)
	r, err := tiering.Rebuild(ctx, o)
	if err != nil || r.Damaged() {
		t.Fatalf("rebuild: %+v, %v", r, err)
	}
	state, got := readMap(t, o.Metadata)
	if !maps.Equal(got, want) || !reflect.DeepEqual(state.Volumes, wantState.Volumes) {
		t.Errorf("map = %v\nwant  %v\nvolumes = %+v\nwant      %+v", got, want, state.Volumes, wantState.Volumes)
	}
	var dump bytes.Buffer
	if _, err := tiering.Dump(ctx, tiering.Options{Metadata: old}, tiering.DumpOptions{}, &dump); err != nil {
		t.Fatal(err)
	}
	o.Metadata = filepath.Join(dir, "restored.db")
	if r, err := tiering.Restore(ctx, o, bytes.NewReader(dump.Bytes())); err != nil || !r.Whole {
		t.Errorf("restore: %+v, %v, want the dump as it is", r, err)
	}
}
