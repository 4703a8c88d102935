package tiering_test

import (
	"bytes"
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
	"tierd/tiering"
	"tierd/tiering/extentmap"
)

// disks are a pool of two tiers with a backing each, and a third backing in the
// second, in files.
type disks struct {
	t    *testing.T
	dir  string
	opt  tiering.Options
	pool *tiering.Pool
}

func newDisks(t *testing.T) *disks {
	t.Helper()
	f := &disks{t: t, dir: t.TempDir()}
	spec := func(name string) tiering.BackingSpec {
		return tiering.BackingSpec{Path: f.path(name), Size: goldenSize}
	}
	o := tiering.CreateOptions{
		Metadata: f.path("pool.db"), ExtentSize: ext,
		Tiers: []tiering.TierSpec{
			{Name: "ssd", Media: backing.SSD, Backings: []tiering.BackingSpec{spec("a")}},
			{Name: "sata", Media: backing.HDD, Backings: []tiering.BackingSpec{spec("b"), spec("c")}},
		},
		Volumes: []tiering.VolumeSpec{{Name: "home", Size: 32 * ext}, {Name: "mail", Size: 32 * ext, Policy: "sata"}},
	}
	if _, err := tiering.Create(ctx, o); err != nil {
		t.Fatal(err)
	}
	f.opt = tiering.Options{Metadata: o.Metadata, RoundInterval: time.Hour}
	for _, ti := range o.Tiers {
		f.opt.Backings = append(f.opt.Backings, ti.Backings...)
	}
	f.open()
	t.Cleanup(func() {
		if f.pool != nil {
			f.pool.Kill()
		}
	})
	return f
}

func (f *disks) path(name string) string { return filepath.Join(f.dir, name) }

func (f *disks) open() {
	f.t.Helper()
	var err error
	if f.pool, err = tiering.Open(ctx, f.opt); err != nil {
		f.t.Fatal(err)
	}
}

func (f *disks) close() {
	f.t.Helper()
	p := f.pool
	f.pool = nil
	if err := p.Close(); err != nil {
		f.t.Fatal(err)
	}
}

// write writes n extents of fill from extent first on.
func (f *disks) write(volume string, first, n int64, fill byte) {
	f.t.Helper()
	v, err := f.pool.Volume(volume)
	if err == nil {
		err = v.WriteAt(ctx, bytes.Repeat([]byte{fill}, int(n*ext)), first*ext, true)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *disks) expect(volume string, first, n int64, fill byte) {
	f.t.Helper()
	v, err := f.pool.Volume(volume)
	if err != nil {
		f.t.Fatal(err)
	}
	p := make([]byte, n*ext)
	if err := v.ReadAt(ctx, p, first*ext); err != nil {
		f.t.Fatal(err)
	}
	if !bytes.Equal(p, bytes.Repeat([]byte{fill}, len(p))) {
		f.t.Errorf("%s, extents %d to %d: not all %#x", volume, first, first+n-1, fill)
	}
}

// copy copies a file of the pool, leaving holes where there is nothing.
func (f *disks) copy(from, to string) {
	f.t.Helper()
	b, err := os.ReadFile(f.path(from))
	if err != nil {
		f.t.Fatal(err)
	}
	out, err := os.Create(f.path(to))
	if err != nil {
		f.t.Fatal(err)
	}
	defer out.Close()
	for off := 0; off < len(b); off += block {
		p := b[off:min(off+block, len(b))]
		if bytes.Count(p, []byte{0}) == len(p) {
			continue
		}
		if _, err := out.WriteAt(p, int64(off)); err != nil {
			f.t.Fatal(err)
		}
	}
	if err := out.Truncate(int64(len(b))); err != nil {
		f.t.Fatal(err)
	}
}

func (f *disks) remove(name string) {
	f.t.Helper()
	if err := os.Remove(f.path(name)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *disks) rebuildOptions() tiering.RebuildOptions {
	return tiering.RebuildOptions{Metadata: f.opt.Metadata, Backings: f.opt.Backings}
}

// refused checks that a rebuild is refused with a text, and that it is done with edit.
func (f *disks) refused(what, want string, edit func(*tiering.RebuildOptions)) tiering.RebuildReport {
	f.t.Helper()
	o := f.rebuildOptions()
	o.Metadata = filepath.Join(f.t.TempDir(), "rebuilt.db")
	_, err := tiering.Rebuild(ctx, o)
	wantErr(f.t, what, err, tiering.ErrRefused)
	if err != nil && !strings.Contains(err.Error(), want) {
		f.t.Errorf("%s: %q does not say %q", what, err, want)
	}
	edit(&o)
	r, err := tiering.Rebuild(ctx, o)
	if err != nil {
		f.t.Errorf("%s, accepted: %v", what, err)
	}
	return r
}

// TestRebuildFindsOldCopies has copies of a backing from different times in place of
// the backing itself.
func TestRebuildFindsOldCopies(t *testing.T) {
	t.Parallel()
	f := newDisks(t)
	f.write("mail", 0, 4, 1)
	f.close()
	f.copy("b", "b.stopped")
	f.open()
	f.write("mail", 4, 4, 2)
	f.copy("b", "b.live") // of the running incarnation
	f.write("mail", 8, 4, 3)
	f.close()
	f.remove("pool.db")
	if err := os.Rename(f.path("b"), f.path("b.now")); err != nil {
		t.Fatal(err)
	}
	accept := func(o *tiering.RebuildOptions) { o.AcceptStale = []string{"2"} }
	for _, old := range []struct{ name, want string }{
		{"b.stopped", "is stale: it is of incarnation 2, and was written to in 3"},
		{"b.live", "is stale: it is of commit "},
	} {
		f.copy(old.name, "b")
		if r := f.refused(old.name, old.want, accept); !r.Damaged() {
			t.Errorf("%s: an old copy is used, and the report says nothing", old.name)
		}
	}
	f.copy("b.now", "b")
	o := f.rebuildOptions()
	if r, err := tiering.Rebuild(ctx, o); err != nil || r.Damaged() {
		t.Fatalf("rebuild with the right one: %+v, %v", r, err)
	}
	f.open()
	f.expect("mail", 0, 4, 1)
	f.expect("mail", 4, 4, 2)
	f.expect("mail", 8, 4, 3)
}

// TestRebuildWithAMemberThatWasAway loses the metadata after a time without one of
// the backings: it is no old copy.
func TestRebuildWithAMemberThatWasAway(t *testing.T) {
	t.Parallel()
	f := newDisks(t)
	f.write("mail", 0, 8, 1)
	f.close()
	all := f.opt.Backings
	if err := os.Rename(f.path("c"), f.path("c.away")); err != nil {
		t.Fatal(err)
	}
	f.opt.Degraded = true
	f.open()
	f.write("home", 0, 4, 2)
	f.close()
	if err := os.Rename(f.path("c.away"), f.path("c")); err != nil {
		t.Fatal(err)
	}
	f.opt.Degraded, f.opt.Backings = false, all
	f.remove("pool.db")
	r, err := tiering.Rebuild(ctx, f.rebuildOptions())
	if err != nil {
		t.Fatal(err)
	}
	if r.Damaged() || len(r.Findings) == 0 || r.Findings[0].Kind != tiering.FoundStale {
		t.Errorf("findings = %+v, want a warning that it was away", r.Findings)
	}
	f.open()
	f.expect("mail", 0, 8, 1)
	f.expect("home", 0, 4, 2)
}

// TestRebuildWithAFailedMember has a superblock that tells of a failure.
func TestRebuildWithAFailedMember(t *testing.T) {
	t.Parallel()
	f := newDisks(t)
	f.write("mail", 0, 8, 1)
	f.close()
	var st *faultstore.Store
	f.opt.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
		inner, err := tiering.OpenBacking(ctx, spec, create, readOnly)
		if err != nil || spec.Path != f.path("b") {
			return inner, err
		}
		st = faultstore.New(inner, 1)
		return st, nil
	}
	f.open()
	st.Inject(faultstore.Fault{Ops: faultstore.Sync, Err: syscall.EIO})
	v, err := f.pool.Volume("mail")
	if err == nil {
		err = v.WriteAt(ctx, bytes.Repeat([]byte{2}, 8*ext), 0, true)
	}
	wantErr(t, "write to a backing whose sync fails", err, tiering.ErrBackingFailed)
	f.pool.Kill()
	f.pool = nil
	r := f.refused("a failed member", "has failed", func(o *tiering.RebuildOptions) { o.AcceptFailed = []string{f.path("b")} })
	if r.Members[1].State != "failed" || !r.Damaged() {
		t.Errorf("members = %+v, findings %+v: the failure is forgotten", r.Members, r.Findings)
	}
}

func TestRebuildReplacesAndKeeps(t *testing.T) {
	t.Parallel()
	f := newDisks(t)
	f.write("home", 0, 4, 1)
	f.close()
	before, err := os.ReadFile(f.path("pool.db"))
	if err != nil {
		t.Fatal(err)
	}
	o := f.rebuildOptions()
	o.Replace, o.DryRun = true, true
	if r, err := tiering.Rebuild(ctx, o); err != nil || r.Extents != 4 || r.Kept != "" {
		t.Errorf("dry run: %+v, %v", r, err)
	}
	if now, err := os.ReadFile(f.path("pool.db")); err != nil || !bytes.Equal(now, before) {
		t.Fatalf("a dry run changed the metadata: %v", err)
	}
	o.DryRun = false
	for _, kept := range []string{"pool.db.old", "pool.db.old.2"} {
		r, err := tiering.Rebuild(ctx, o)
		if err != nil || r.Kept != f.path(kept) {
			t.Fatalf("rebuild: %+v, %v, want the old ones at %s", r, err, kept)
		}
	}
	if kept, err := os.ReadFile(f.path("pool.db.old")); err != nil || !bytes.Equal(kept, before) {
		t.Errorf("the old metadata are not kept: %v", err)
	}
	f.open()
	f.expect("home", 0, 4, 1)
	// While a daemon has the pool, neither the backings nor the metadata are there
	// for others.
	if _, err := tiering.Rebuild(ctx, o); err == nil {
		t.Error("rebuild of a pool that is open")
	}
}

// dump dumps the closed pool.
func (f *disks) dump() io.ReadSeeker {
	f.t.Helper()
	var b bytes.Buffer
	if _, err := tiering.Dump(ctx, f.opt, tiering.DumpOptions{Heat: true}, &b); err != nil {
		f.t.Fatal(err)
	}
	return bytes.NewReader(b.Bytes())
}

func TestRestoreAsItIs(t *testing.T) {
	t.Parallel()
	f := newDisks(t)
	f.write("home", 0, 6, 1)
	f.write("mail", 3, 6, 2)
	f.close()
	f.open() // a stop of which every backing knows
	f.close()
	wantState, want := readMap(t, f.path("pool.db"))
	d := f.dump()
	f.remove("pool.db")
	o := f.rebuildOptions()
	o.DryRun = true
	r, err := tiering.Restore(ctx, o, d)
	if err != nil || !r.Whole || r.Extents != 12 {
		t.Fatalf("dry run: %+v, %v", r, err)
	}
	o.DryRun = false
	if r, err = tiering.Restore(ctx, o, d); err != nil || !r.Whole {
		t.Fatalf("restore: %+v, %v", r, err)
	}
	var owners int64
	for _, m := range r.Members {
		owners += m.Owners
	}
	if owners != 12 {
		t.Errorf("%d slots have owners, want 12: %+v", owners, r.Members)
	}
	state, got := readMap(t, f.path("pool.db"))
	if !reflect.DeepEqual(state, wantState) || !maps.Equal(got, want) {
		t.Errorf("restored %+v\nwant     %+v\nmap  %v\nwant %v", state, wantState, got, want)
	}
	f.open()
	f.expect("home", 0, 6, 1)
	f.expect("mail", 3, 6, 2)
}

// TestRestoreAnOlderDump takes names and settings from a dump, and the rest from
// the backings.
func TestRestoreAnOlderDump(t *testing.T) {
	t.Parallel()
	f := newDisks(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	f.write("home", 0, 6, 1)
	must(f.pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "gone", Size: ext}, false))
	f.close()
	d := f.dump()
	f.open()
	f.write("home", 0, 2, 2)
	f.write("home", 8, 2, 3)
	must(f.pool.RenameVolume(ctx, "mail", "letters", false))
	must(f.pool.SetPolicy(ctx, "letters", "ssd", false))
	must(f.pool.GrowVolume(ctx, "home", 40*ext, false))
	must(f.pool.DeleteVolume(ctx, "gone", false, false))
	must(f.pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "later", Size: ext}, false))
	f.write("home", 39, 1, 4)
	eventually(t, "the volume to be forgotten", func() bool { return len(f.pool.VolumeInfos()) == 3 })
	f.close()
	_, want := readMap(t, f.path("pool.db"))
	f.remove("pool.db")
	r, err := tiering.Restore(ctx, f.rebuildOptions(), d)
	if err != nil || r.Whole || !strings.Contains(r.Why, "incarnation") {
		t.Fatalf("restore: %+v, %v", r, err)
	}
	state, got := readMap(t, f.path("pool.db"))
	if !maps.Equal(got, want) {
		t.Errorf("map = %v\nwant  %v", got, want)
	}
	names := make(map[string]extentmap.Volume)
	for _, v := range state.Volumes {
		names[v.Name] = v
	}
	if len(names) != 3 || names["mail"].Policy != "sata" || names["home"].Size != 40*ext || names["later"].Size != ext {
		t.Errorf("volumes = %+v", state.Volumes)
	}
	f.open()
	f.expect("home", 0, 2, 2)
	f.expect("home", 2, 4, 1)
	f.expect("home", 8, 2, 3)
	f.expect("home", 39, 1, 4)
}

// TestRestoreVolumes has backings that have all lost their volume tables.
func TestRestoreVolumes(t *testing.T) {
	t.Parallel()
	f := newDisks(t)
	f.write("home", 0, 6, 1)
	f.close()
	d := f.dump()
	f.open()
	if err := f.pool.GrowVolume(ctx, "home", 40*ext, false); err != nil {
		t.Fatal(err)
	}
	f.write("home", 39, 1, 4)
	f.close()
	for _, b := range []string{"a", "b", "c"} {
		file, err := os.OpenFile(f.path(b), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		const tables = 268 << 10
		for _, off := range []int64{tables, tables + 4<<20} {
			if _, err := file.WriteAt([]byte("gone"), off+40); err != nil {
				t.Fatal(err)
			}
		}
		file.Close()
	}
	f.remove("pool.db")
	_, err := tiering.Rebuild(ctx, f.rebuildOptions())
	wantErr(t, "rebuild without volumes", err, tiering.ErrRefused)
	r, err := tiering.Restore(ctx, f.rebuildOptions(), d)
	if err != nil || !r.Damaged() {
		t.Fatalf("restore: %+v, %v", r, err)
	}
	f.open()
	f.expect("home", 0, 6, 1)
	f.expect("home", 39, 1, 4)
	f.write("mail", 0, 1, 5)
	f.expect("mail", 0, 1, 5)
}

func TestRestoreRefusesDamagedDumps(t *testing.T) {
	t.Parallel()
	f := newDisks(t)
	f.write("home", 0, 1, 1)
	f.close()
	var b bytes.Buffer
	if _, err := tiering.Dump(ctx, f.opt, tiering.DumpOptions{}, &b); err != nil {
		t.Fatal(err)
	}
	f.remove("pool.db")
	whole := b.Bytes()
	spoilt := bytes.Replace(whole, []byte(`"mail"`), []byte(`"nail"`), 1)
	for what, d := range map[string][]byte{"cut short": whole[:len(whole)-2], "changed": spoilt, "empty": nil} {
		if r, err := tiering.Restore(ctx, f.rebuildOptions(), bytes.NewReader(d)); err == nil {
			t.Errorf("%s: restored %+v", what, r)
		}
		if _, err := os.Stat(f.path("pool.db")); err == nil {
			t.Fatalf("%s: there are metadata", what)
		}
	}
}

// TestDumpOfARestoredDump: what is restored from a dump of the last clean stop is dumped
// as the very same bytes, whatever there is in the pool.
func TestDumpOfARestoredDump(t *testing.T) {
	t.Parallel()
	f := newDisks(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(f.pool.CreateVolume(ctx, tiering.VolumeSpec{
		Name: "news", Size: 16 * ext, Policy: "lowest", Space: tiering.Space{Reservation: 4 * ext, Quota: 8 * ext, OnFullWait: time.Minute},
	}, false))
	f.write("home", 0, 6, 1)
	f.write("mail", 3, 6, 2)
	f.write("news", 1, 2, 3)
	must(f.pool.SetReadOnly(ctx, "mail", true, false))
	rate := int64(1 << 20)
	must(f.pool.Drain(ctx, f.path("c"), tiering.DrainStart, &rate, false))
	must(f.pool.Drain(ctx, f.path("c"), tiering.DrainPause, nil, false))
	f.close()
	before, err := io.ReadAll(f.dump())
	must(err)
	for _, want := range []string{`"reservation":262144`, `"quota":524288`, `"read_only":true`, `"paused":true`, `"lowest"`} {
		if !bytes.Contains(before, []byte(want)) {
			t.Errorf("the dump has no %s", want)
		}
	}
	f.remove("pool.db")
	f.remove("pool.db.heat")
	r, err := tiering.Restore(ctx, f.rebuildOptions(), bytes.NewReader(before))
	if err != nil || !r.Whole {
		t.Fatalf("restore: %+v, %v", r, err)
	}
	after, err := io.ReadAll(f.dump())
	must(err)
	if !bytes.Equal(before, after) {
		t.Errorf("the dump was\n%s\nand is now\n%s", before, after)
	}
}
