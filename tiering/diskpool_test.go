package tiering_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
)

// Places on a backing; see the byte tables of package ondisk.
const (
	frontSuperblockAt = 4 << 10
	superblockBytes   = 256 << 10
	stampAt           = 260 << 10
	volumeTableAt     = 268 << 10
	volumeTableBytes  = 4 << 20
	slotTableAt       = 8460 << 10
	slotEntryBytes    = 32

	diskPoolBacking = 10 << 20 // bytes
)

// diskPool is a pool on real files, which can be damaged and put back as it was.
type diskPool struct {
	t     *testing.T
	dir   string
	opt   tiering.Options
	logs  *logBuffer
	want  map[string][]byte // what each volume reads as
	saved map[string]*savedFile

	earlier map[string]*savedFile // as it was in between
}

// savedFile is a file without its blocks of zeroes.
type savedFile struct {
	size   int64
	blocks map[int64][]byte
}

// newDiskPool makes a pool of two tiers with two volumes, of which the extents have
// been written, moved and trimmed. It is stopped cleanly, or else killed with a few
// answered writes that were not flushed.
func newDiskPool(t *testing.T, clean bool) *diskPool {
	t.Helper()
	f := &diskPool{t: t, dir: fastDir(t), logs: new(logBuffer), want: make(map[string][]byte)}
	c := tiering.CreateOptions{Metadata: f.path("pool.db"), ExtentSize: ext, LogBytes: 64 << 10,
		Tiers: []tiering.TierSpec{
			{Name: "fast", Media: "ssd", Backings: []tiering.BackingSpec{{Path: f.path("a.img"), Size: diskPoolBacking}}},
			{Name: "slow", Media: "hdd", Backings: []tiering.BackingSpec{
				{Path: f.path("b.img"), Size: diskPoolBacking}, {Path: f.path("c.img"), Size: diskPoolBacking}}},
		},
		Volumes: []tiering.VolumeSpec{{Name: "home", Size: 16 * ext}, {Name: "mail", Size: 12 * ext}},
	}
	if _, err := tiering.Create(ctx, c); err != nil {
		t.Fatal(err)
	}
	f.opt = tiering.Options{Metadata: c.Metadata, BootID: "boot", RoundInterval: time.Hour,
		Logger: slog.New(slog.NewTextHandler(f.logs, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	f.opt.Relocation.Cycle = time.Hour
	for _, ti := range c.Tiers {
		f.opt.Backings = append(f.opt.Backings, ti.Backings...)
	}
	for _, v := range c.Volumes {
		f.want[v.Name] = make([]byte, v.Size)
	}
	// Two opens, so that there are tables and superblocks of several generations.
	for round := range 2 {
		p := f.open()
		eventually(t, "all free slots are clean", func() bool {
			return !slices.ContainsFunc(p.Backings(), func(b tiering.BackingInfo) bool { return b.Slots.Free+b.Slots.Cleaning > 0 })
		})
		for i := range int64(6) {
			f.write(p, "home", (2*i+int64(round))*ext, ext/2, byte(0x10+16*round+int(i)))
			f.write(p, "mail", i*2*ext+block, block, byte(0x50+16*round+int(i)))
		}
		f.flush(p)
		if round == 1 {
			f.earlier = f.read()
		}
		// Down; or up, if the fast tier had no clean slot when they were written.
		eventually(t, "a move", func() (moved bool) {
			for to := 1; to >= 0 && !moved; to-- {
				for i := range int64(12) {
					ok, err := p.MoveExtent(ctx, "home", i*ext, to)
					moved = moved || ok && err == nil
				}
			}
			return moved
		})
		f.trim(p, "mail", 4*ext, 2*ext)
		f.flush(p)
		if round == 1 && !clean {
			f.write(p, "mail", 5*ext, ext, 0x77)
			f.write(p, "home", 15*ext, ext, 0x78)
			p.Kill()
			break
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	f.saved = f.read()
	return f
}

// fastDir returns a folder in memory, where there is one.
func fastDir(t *testing.T) string {
	if _, err := os.Stat("/dev/shm"); err == nil {
		if dir, err := os.MkdirTemp("/dev/shm", "tierd-pool-"); err == nil {
			t.Cleanup(func() { os.RemoveAll(dir) })
			return dir
		}
	}
	return t.TempDir()
}

func (f *diskPool) path(name string) string { return filepath.Join(f.dir, name) }

func (f *diskPool) open() *tiering.Pool {
	f.t.Helper()
	p, err := tiering.Open(ctx, f.opt)
	if err != nil {
		f.t.Fatalf("open: %v", err)
	}
	return p
}

func (f *diskPool) write(p *tiering.Pool, name string, off, n int64, fill byte) {
	f.t.Helper()
	b := bytes.Repeat([]byte{fill}, int(n))
	v, err := p.Volume(name)
	if err == nil {
		err = v.WriteAt(ctx, b, off, false)
	}
	if err != nil {
		f.t.Fatalf("write %s at %d: %v", name, off, err)
	}
	copy(f.want[name][off:], b)
}

func (f *diskPool) trim(p *tiering.Pool, name string, off, n int64) {
	f.t.Helper()
	v, err := p.Volume(name)
	if err == nil {
		err = v.Trim(ctx, off, n, false)
	}
	if err != nil {
		f.t.Fatalf("trim %s at %d: %v", name, off, err)
	}
	clear(f.want[name][off : off+n])
}

func (f *diskPool) flush(p *tiering.Pool) {
	f.t.Helper()
	for _, v := range p.Volumes() {
		if err := v.Flush(ctx); err != nil {
			f.t.Fatalf("flush %s: %v", v.Name(), err)
		}
	}
}

// failSyncs uses the pool, which is closed, until a backing has failed whose syncs do.
// before runs when it is open and nothing has failed.
func (f *diskPool) failSyncs(name string, before func()) {
	f.t.Helper()
	open := f.opt.OpenStore
	var bad *faultstore.Store
	f.opt.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
		st, err := tiering.OpenBacking(ctx, spec, create, readOnly)
		if err != nil || spec.Path != f.path(name) {
			return st, err
		}
		bad = faultstore.New(st, 1)
		return bad, nil
	}
	p := f.open()
	before()
	bad.Inject(faultstore.Fault{Ops: faultstore.Sync, Err: syscall.EIO})
	v, err := p.Volume("mail")
	if err != nil {
		f.t.Fatal(err)
	}
	// Whatever meets the fault: a write, the flush, the cleaner or the stop.
	for i := range int64(12) {
		_ = v.WriteAt(ctx, f.want["mail"][i*ext:i*ext+block], i*ext, false)
	}
	_ = v.Flush(ctx)
	_ = p.Close()
	f.opt.OpenStore = open
}

// copyInUse returns what puts a backing back to a copy taken while the pool was in use,
// before overwrites of all of home and a clean stop.
func (f *diskPool) copyInUse(name string) (putBack func()) {
	f.t.Helper()
	p := f.open()
	f.flush(p)
	putBack = f.copyFile(name)
	f.write(p, "home", 0, 16*ext, 0x21)
	f.flush(p)
	if err := p.Close(); err != nil {
		f.t.Fatal(err)
	}
	return putBack
}

// wrong returns the extents that do not read as they should, as "home 3".
func (f *diskPool) wrong(p *tiering.Pool) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(f.want)) {
		want := f.want[name]
		v, err := p.Volume(name)
		if err != nil || v.Size() != int64(len(want)) {
			list = append(list, name)
			continue
		}
		got := make([]byte, ext)
		for at := 0; at < len(want); at += ext {
			if err := v.ReadAt(ctx, got, int64(at)); err != nil || !bytes.Equal(got, want[at:at+ext]) {
				list = append(list, fmt.Sprintf("%s %d", name, at/ext))
			}
		}
	}
	return list
}

// files are what the pool consists of.
func (f *diskPool) files() []string {
	return []string{f.path("pool.db"), f.path("pool.db.log"), f.path("a.img"), f.path("b.img"), f.path("c.img")}
}

func readSaved(t *testing.T, path string) *savedFile {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &savedFile{size: int64(len(b)), blocks: make(map[int64][]byte)}
	zero := make([]byte, block)
	for at := 0; at < len(b); at += block {
		if p := b[at:min(at+block, len(b))]; !bytes.Equal(p, zero[:len(p)]) {
			s.blocks[int64(at)] = bytes.Clone(p)
		}
	}
	return s
}

func (f *diskPool) read() map[string]*savedFile {
	f.t.Helper()
	list := make(map[string]*savedFile)
	for _, path := range f.files() {
		list[path] = readSaved(f.t, path)
	}
	return list
}

// restore puts everything back as it was saved.
func (f *diskPool) restore() {
	f.t.Helper()
	names, err := os.ReadDir(f.dir)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, n := range names {
		if err := os.RemoveAll(f.path(n.Name())); err != nil {
			f.t.Fatal(err)
		}
	}
	for path, s := range f.saved {
		w, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			f.t.Fatal(err)
		}
		err = w.Truncate(s.size)
		for at, b := range s.blocks {
			if err == nil {
				_, err = w.WriteAt(b, at)
			}
		}
		if cerr := w.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			f.t.Fatal(err)
		}
	}
}

// same reports whether the files are those that were saved.
func (s *savedFile) same(o *savedFile) bool {
	return s.size == o.size && maps.EqualFunc(s.blocks, o.blocks, bytes.Equal)
}

// edit changes bytes of a file.
func (f *diskPool) edit(name string, at int64, n int, change func([]byte)) {
	f.t.Helper()
	w, err := os.OpenFile(f.path(name), os.O_RDWR, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	defer w.Close()
	b := make([]byte, n)
	if _, err := w.ReadAt(b, at); err != nil {
		f.t.Fatal(err)
	}
	change(b)
	if _, err := w.WriteAt(b, at); err != nil {
		f.t.Fatal(err)
	}
}

func (f *diskPool) flip(name string, at int64) {
	f.t.Helper()
	f.edit(name, at, 1, func(b []byte) { b[0] ^= 0x10 })
}

func (f *diskPool) zero(name string, at int64, n int) {
	f.t.Helper()
	f.edit(name, at, n, func(b []byte) { clear(b) })
}

// commit changes the metadata behind the pool's back.
func (f *diskPool) commit(c *extentmap.Changes) {
	f.t.Helper()
	db, err := extentmap.Open(f.opt.Metadata, extentmap.Options{})
	if err != nil {
		f.t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Commit(ctx, c); err != nil {
		f.t.Fatal(err)
	}
}

func (f *diskPool) state() extentmap.State {
	f.t.Helper()
	db, err := extentmap.Open(f.opt.Metadata, extentmap.Options{ReadOnly: true})
	if err != nil {
		f.t.Fatal(err)
	}
	defer db.Close()
	return db.State()
}

// place returns where the map has an extent.
func (f *diskPool) place(vol extent.VolumeID, i extent.Index) (at extent.Location) {
	f.t.Helper()
	db, err := extentmap.Open(f.opt.Metadata, extentmap.Options{ReadOnly: true})
	if err != nil {
		f.t.Fatal(err)
	}
	defer db.Close()
	err = db.LoadMap(vol, func(first extent.Index, locs []extent.Location) error {
		if i >= first && i < first+extent.Index(len(locs)) {
			at = locs[i-first]
		}
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return at
}

// move sets where the map has an extent.
func (f *diskPool) move(vol extent.VolumeID, i extent.Index, to extent.Location) {
	f.t.Helper()
	f.commit(&extentmap.Changes{Map: []extentmap.MapChange{{Key: extent.Key{Volume: vol, Index: i}, To: to}}})
}

func (f *diskPool) check() tiering.CheckReport {
	f.t.Helper()
	r, err := tiering.Check(ctx, f.opt)
	if err != nil {
		f.t.Fatalf("check: %v", err)
	}
	return r
}

func (f *diskPool) repair(opts tiering.RepairOptions) tiering.RepairReport {
	f.t.Helper()
	r, err := tiering.Repair(ctx, f.opt, opts)
	if err != nil {
		f.t.Fatalf("repair: %v", err)
	}
	return r
}

// unchanged fails the test if do writes anything.
func (f *diskPool) unchanged(what string, do func()) {
	f.t.Helper()
	before := make(map[string]*savedFile)
	for _, p := range f.files() {
		before[p] = readSaved(f.t, p)
	}
	names, _ := os.ReadDir(f.dir)
	do()
	for _, p := range f.files() {
		if !before[p].same(readSaved(f.t, p)) {
			f.t.Errorf("%s wrote to %s", what, p)
		}
	}
	if after, _ := os.ReadDir(f.dir); len(after) != len(names) {
		f.t.Errorf("%s left %d files where %d were", what, len(after), len(names))
	}
}
