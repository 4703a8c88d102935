package tiering_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tierd/pkg/backing"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// readMap reads the records and the map in a metadata file.
func readMap(t *testing.T, path string) (extentmap.State, map[extent.Key]extent.Location) {
	t.Helper()
	db, err := extentmap.Open(path, extentmap.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s, m := db.State(), make(map[extent.Key]extent.Location)
	for _, v := range s.Volumes {
		err := db.LoadMap(v.ID, func(first extent.Index, locs []extent.Location) error {
			for i, l := range locs {
				if !l.IsZero() {
					m[extent.Key{Volume: v.ID, Index: first + extent.Index(i)}] = l
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return s, m
}

// rebuildOptions are those for the closed pool of e, into another file.
func (e *env) rebuildOptions() tiering.RebuildOptions {
	return tiering.RebuildOptions{
		Metadata: filepath.Join(e.t.TempDir(), "rebuilt.db"), Backings: e.specs(), OpenStore: e.opt.OpenStore,
	}
}

// rebuilt rebuilds into another file and returns what is in it.
func (e *env) rebuilt(o tiering.RebuildOptions) (tiering.RebuildReport, extentmap.State, map[extent.Key]extent.Location) {
	e.t.Helper()
	r, err := tiering.Rebuild(ctx, o)
	if err != nil {
		e.t.Fatalf("rebuild: %v", err)
	}
	s, m := readMap(e.t, o.Metadata)
	return r, s, m
}

// loseMetadata removes the metadata of the closed pool, and rebuilds it in its place.
func (e *env) loseMetadata() tiering.RebuildReport {
	e.t.Helper()
	if err := os.Remove(e.opt.Metadata); err != nil {
		e.t.Fatal(err)
	}
	o := e.rebuildOptions()
	o.Metadata = e.opt.Metadata
	r, err := tiering.Rebuild(ctx, o)
	if err != nil {
		e.t.Fatalf("rebuild: %v", err)
	}
	return r
}

// TestRebuildEqualsTheMap stops a pool with a history cleanly, and compares.
func TestRebuildEqualsTheMap(t *testing.T) {
	t.Parallel()
	e := newEnv(t, model.Config{Slots: [][]int{{8}, {12}, {16}}}, nil)
	for i := range int64(6) {
		e.write("v0", i*ext, ext, byte(i+1))
		e.write("v1", i*ext, block, byte(0x10+i))
	}
	e.flush("v0")
	e.flush("v1")
	e.trim("v0", 0, 2*ext)
	for i := range int64(4) {
		e.Relocate("v1", i*ext, 2)
		e.Relocate("v0", (2+i)*ext, 1)
	}
	e.flush("v0")
	if err := e.Pool.RenameVolume(ctx, "v1", "mail", false); err != nil {
		t.Fatal(err)
	}
	if err := e.Pool.SetPolicy(ctx, "mail", "t1", false); err != nil {
		t.Fatal(err)
	}
	if err := e.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "gone", Size: ext}, false); err != nil {
		t.Fatal(err)
	}
	e.write("gone", 0, ext, 9)
	if err := e.Pool.DeleteVolume(ctx, "gone", false, false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the volume to be forgotten", func() bool { return len(e.Pool.VolumeInfos()) == 2 })
	e.Close()

	wantState, want := readMap(t, e.opt.Metadata)
	r, state, got := e.rebuilt(e.rebuildOptions())
	if !maps.Equal(got, want) {
		t.Errorf("map = %v\nwant  %v", got, want)
	}
	if r.Extents != int64(len(want)) || !r.Clean || r.Damaged() {
		t.Errorf("report = %+v, want %d extents, a clean stop and no damage", r, len(want))
	}
	if !reflect.DeepEqual(state.Volumes, wantState.Volumes) {
		t.Errorf("volumes = %+v\nwant      %+v", state.Volumes, wantState.Volumes)
	}
	if !reflect.DeepEqual(state.Tiers, wantState.Tiers) {
		t.Errorf("tiers = %+v\nwant    %+v", state.Tiers, wantState.Tiers)
	}
	for i, m := range state.Members {
		w := wantState.Members[i]
		w.Instance, m.Instance = "", ""
		if !reflect.DeepEqual(m, w) {
			t.Errorf("member = %+v\nwant     %+v", m, w)
		}
	}
	p, w := state.Pool, wantState.Pool
	if p.ID != w.ID || p.ExtentSize != w.ExtentSize || p.NextVolume != w.NextVolume || p.NextBacking != w.NextBacking {
		t.Errorf("pool = %+v\nwant   %+v", p, w)
	}
	if p.Incarnation < w.Incarnation || p.Commit <= w.Commit || p.CleanStop || p.Continuity == w.Continuity || p.MaxSeq>>40 != w.MaxSeq>>40 {
		t.Errorf("pool = %+v: it has to be later than %+v, not cleanly stopped, and of another continuity", p, w)
	}
}

// TestRebuildServes loses the metadata of a pool and goes on with the new ones.
func TestRebuildServes(t *testing.T) {
	t.Parallel()
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, 3*ext, 1)
	e.write("v0", ext, block, 2)
	e.Relocate("v0", ext, 2)
	e.trim("v0", 2*ext, ext)
	e.write("v1", 7*ext, ext, 3)
	id := e.Pool.Info().Continuity
	e.Close()
	for range 2 { // the rebuilt one can be lost too
		e.loseMetadata()
		e.Open()
		if now := e.Pool.Info().Continuity; now == id {
			t.Error("the continuity id is the same")
		}
		e.expect("v0", 0, ext, 1)
		e.expect("v0", ext, block, 2)
		e.expect("v0", ext+block, ext-block, 1)
		e.expect("v0", 2*ext, ext, 0)
		e.expect("v1", 7*ext, ext, 3)
		// What nobody owns is zeroed before it is given out.
		for i := range int64(4) {
			e.write("v1", i*ext, block, 4)
			e.expect("v1", i*ext, block, 4)
			e.expect("v1", i*ext+block, ext-block, 0)
		}
		e.settle()
		e.Close()
		e.Check()
	}
}

func TestRebuildAfterACut(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		e := newEnv(t, model.Config{}, nil)
		rnd := rand.New(rand.NewPCG(seed, 1))
		e.write("v0", 0, 4*ext, 1)
		e.flush("v0")
		e.trim("v0", ext, ext)
		e.flush("v0")
		e.Relocate("v0", 2*ext, 1)
		e.write("v0", 2*ext, block, 5)
		e.flush("v0")
		e.write("v0", 4*ext, ext, 2) // never flushed
		e.trim("v0", 3*ext, ext)     // likewise
		e.Cut(seed, []float64{0, 0.5, 1}[rnd.IntN(3)])
		e.loseMetadata()
		e.Open()
		e.expect("v0", 0, ext, 1)
		e.expect("v0", ext, ext, 0)
		e.expect("v0", 2*ext, block, 5)
		e.expect("v0", 2*ext+block, ext-block, 1)
		e.Close()
		e.Check()
	}
}

func TestRebuildRefuses(t *testing.T) {
	t.Parallel()
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	e.Close()
	for _, tt := range []struct {
		name string
		edit func(*tiering.RebuildOptions)
		want string // in the error
	}{
		{"metadata exist", func(o *tiering.RebuildOptions) { o.Metadata = e.opt.Metadata }, "the file exists"},
		{"a backing is missing", func(o *tiering.RebuildOptions) { o.Backings = o.Backings[:2] }, "backing 2 of tier t1 is missing"},
		{"a name that means nothing", func(o *tiering.RebuildOptions) { o.AcceptStale = []string{"4"} }, "4 is no backing"},
		{"no backing", func(o *tiering.RebuildOptions) { o.Backings = nil }, "none of the 0 backings"},
		{"another pool", func(o *tiering.RebuildOptions) { o.Pool[0] = 1 }, "none of the 3 backings"},
	} {
		o := e.rebuildOptions()
		tt.edit(&o)
		_, err := tiering.Rebuild(ctx, o)
		wantErr(t, tt.name, err, tiering.ErrRefused)
		if err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %q does not say %q", tt.name, err, tt.want)
		}
	}
}

// TestRebuildWithoutABacking gives a backing up. When it comes back, the pool does
// not take it.
func TestRebuildWithoutABacking(t *testing.T) {
	t.Parallel()
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	e.write("v0", ext, ext, 2)
	e.Relocate("v0", ext, 1)
	e.Close()
	o := e.rebuildOptions()
	o.Backings = o.Backings[:2]
	o.AcceptMissing = []string{"2"}
	r, state, m := e.rebuilt(o)
	if !r.Damaged() || len(m) != 1 || state.Members[1].State != extentmap.MemberForgotten {
		t.Errorf("report %+v, map %v, members %+v", r, m, state.Members)
	}
	opt := e.opt
	opt.Metadata, opt.Backings = o.Metadata, o.Backings
	p, err := tiering.Open(ctx, opt)
	if err != nil {
		t.Fatal(err)
	}
	e.Pool = p
	e.expect("v0", 0, ext, 1)
	e.expect("v0", ext, ext, 0)
	e.Close()
	opt.Backings = e.specs()
	_, err = tiering.Open(ctx, opt)
	wantErr(t, "open with the backing that was given up", err, tiering.ErrRefused)
}

// damageEntry spoils the checksum of the entry of a slot.
func (e *env) damageEntry(path string, slot extent.Slot) {
	e.t.Helper()
	st, err := e.opt.OpenStore(ctx, tiering.BackingSpec{Path: path}, false, false)
	if err != nil {
		e.t.Fatal(err)
	}
	defer st.Close()
	sb, err := ondisk.ReadSuperblock(ctx, st)
	if err != nil {
		e.t.Fatal(err)
	}
	off := sb.Layout.SlotTableOffset + int64(slot)*32
	b := make([]byte, 32)
	if err := st.ReadAt(ctx, b, off); err != nil {
		e.t.Fatal(err)
	}
	b[28]++
	if err := st.WriteAt(ctx, b, off); err != nil {
		e.t.Fatal(err)
	}
}

func TestRebuildSetsDamagedSlotsAside(t *testing.T) {
	t.Parallel()
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, 2*ext, 1)
	e.Close()
	_, before := readMap(t, e.opt.Metadata)
	lost := before[extent.Key{Volume: 1}]
	e.damageEntry(path(0, 0), lost.Slot)
	r := e.loseMetadata()
	i := slices.IndexFunc(r.Findings, func(f tiering.Finding) bool { return f.Kind == tiering.FoundEntryDamaged })
	if i < 0 || r.Findings[i].Where != path(0, 0) || !r.Damaged() {
		t.Fatalf("findings = %+v, want the damaged entry", r.Findings)
	}
	e.Open()
	e.expect("v0", 0, ext, 0)
	e.expect("v0", ext, ext, 1)
	eventually(t, "the slot is set aside", func() bool { _, _, q := e.slots(0); return q == 1 })
}

// manyExtents makes a closed pool in files, with three volumes that own n extents by
// the slot tables of two backings. Nothing is in the slots.
func manyExtents(t testing.TB, n int64) (tiering.RebuildOptions, map[string]int64) {
	t.Helper()
	dir := t.TempDir()
	o := tiering.CreateOptions{Metadata: filepath.Join(dir, "pool.db"), ExtentSize: ext}
	want := make(map[string]int64)
	for i, name := range []string{"home", "mail", "news"} {
		o.Volumes = append(o.Volumes, tiering.VolumeSpec{Name: name, Size: 2 * n * ext})
		want[name] = n / 3
		if int64(i) < n%3 {
			want[name]++
		}
	}
	for i, media := range []backing.Media{backing.SSD, backing.HDD} {
		o.Tiers = append(o.Tiers, tiering.TierSpec{Name: string(media), Media: media, Backings: []tiering.BackingSpec{
			{Path: filepath.Join(dir, fmt.Sprint(i)), Size: (n/2+300)*ext + 32<<20},
		}})
	}
	if _, err := tiering.Create(ctx, o); err != nil {
		t.Fatal(err)
	}
	p, err := tiering.Open(ctx, tiering.Options{Metadata: o.Metadata})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	r := tiering.RebuildOptions{Metadata: o.Metadata}
	for i, ti := range o.Tiers {
		spec := ti.Backings[0]
		r.Backings = append(r.Backings, spec)
		st, err := tiering.OpenBacking(ctx, spec, false, false)
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		sb, err := ondisk.ReadSuperblock(ctx, st)
		if err != nil {
			t.Fatal(err)
		}
		var updates []ondisk.SlotUpdate
		for j := int64(i); j < n; j += 2 {
			updates = append(updates, ondisk.SlotUpdate{Slot: extent.Slot(j / 2), Entry: ondisk.SlotEntry{
				Kind: ondisk.Owner, Key: extent.Key{Volume: extent.VolumeID(j%3 + 1), Index: extent.Index(j / 3 * 2)}, Seq: 2<<40 + uint64(j),
			}})
		}
		table := ondisk.NewSlotTable(st, sb.PoolID, sb.BackingUUID, sb.Backing, sb.Layout)
		if err := table.Write(ctx, updates); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(o.Metadata); err != nil {
		t.Fatal(err)
	}
	return r, want
}

func TestRebuildOfManyExtents(t *testing.T) {
	t.Parallel()
	const n = 100_000
	o, want := manyExtents(t, n)
	r, err := tiering.Rebuild(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Extents != n || r.Damaged() {
		t.Errorf("%d extents, want %d; findings %+v", r.Extents, n, r.Findings)
	}
	for _, v := range r.Volumes {
		if v.Extents != want[v.Name] {
			t.Errorf("volume %s has %d extents, want %d", v.Name, v.Extents, want[v.Name])
		}
	}
	_, m := readMap(t, o.Metadata)
	for j := range extent.Index(n) {
		key := extent.Key{Volume: extent.VolumeID(j%3 + 1), Index: j / 3 * 2}
		if want := (extent.Location{Backing: extent.BackingID(j%2 + 1), Slot: extent.Slot(j / 2)}); m[key] != want {
			t.Fatalf("%v is at %v, want %v", key, m[key], want)
		}
	}
}

// BenchmarkRebuild rebuilds a pool of three volumes and 100,000 extents, each with
// data, reads all volumes and compares. It has to take less than ten seconds, the
// reading not counted.
func BenchmarkRebuild(b *testing.B) {
	const n = 100_000
	o, want := manyExtents(b, n)
	fill := func(j int64) []byte { return bytes.Repeat([]byte(fmt.Sprintf("%015d ", j)), block/16) }
	for i, spec := range o.Backings {
		st, err := tiering.OpenBacking(ctx, spec, false, false)
		if err != nil {
			b.Fatal(err)
		}
		sb, err := ondisk.ReadSuperblock(ctx, st)
		if err != nil {
			b.Fatal(err)
		}
		for j := int64(i); j < n; j += 2 {
			if err := st.WriteAt(ctx, fill(j), sb.Layout.SlotOffset(extent.Slot(j/2))+j%16*block); err != nil {
				b.Fatal(err)
			}
		}
		st.Close()
	}
	b.ResetTimer()
	for b.Loop() {
		r, err := tiering.Rebuild(ctx, o)
		if err != nil || r.Extents != n {
			b.Fatalf("%+v, %v", r, err)
		}
		o.Replace = true
	}
	b.StopTimer()
	took := b.Elapsed() / time.Duration(b.N)
	if took > 10*time.Second {
		b.Errorf("rebuild took %s", took)
	}
	p, err := tiering.Open(ctx, tiering.Options{Metadata: o.Metadata})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	buf := make([]byte, ext)
	for name := range want {
		v, err := p.Volume(name)
		if err != nil {
			b.Fatal(err)
		}
		id := map[string]int64{"home": 0, "mail": 1, "news": 2}[name]
		for i := range int64(2 * n) {
			if err := v.ReadAt(ctx, buf, i*ext); err != nil {
				b.Fatal(err)
			}
			j := i/2*3 + id
			expect := make([]byte, ext)
			if i%2 == 0 && j < n {
				copy(expect[j%16*block:], fill(j))
			}
			if !bytes.Equal(buf, expect) {
				b.Fatalf("volume %s, extent %d: not what was written", name, i)
			}
		}
	}
	b.ReportMetric(float64(n)/took.Seconds(), "extents/s")
}

// TestRebuildOfTombstonesAlike: an extent moved and was unmapped in one round, which
// wrote its tombstone and was killed before the commit; the replay wrote another, of
// the same number, in the slot that the map knew. That is no damage.
func TestRebuildOfTombstonesAlike(t *testing.T) {
	t.Parallel()
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	e.flush("v0")
	e.trim("v0", 0, ext)
	e.Close()
	dead := ondisk.SlotEntry{Kind: ondisk.Tombstone, Key: extent.Key{Volume: 1}, Seq: 1 << 50}
	for tier := range 2 {
		st, err := e.opt.OpenStore(ctx, tiering.BackingSpec{Path: path(tier, 0)}, false, false)
		if err != nil {
			t.Fatal(err)
		}
		sb := e.superblock(path(tier, 0))
		table := ondisk.NewSlotTable(st, sb.PoolID, sb.BackingUUID, sb.Backing, sb.Layout)
		if err := table.Write(ctx, []ondisk.SlotUpdate{{Slot: 2, Entry: dead}}); err != nil {
			t.Fatal(err)
		}
		st.Close()
	}
	if r := e.loseMetadata(); r.Damaged() || r.Extents != 0 {
		t.Errorf("findings %+v, %d extents, want none", r.Findings, r.Extents)
	}
}
