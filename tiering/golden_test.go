package tiering_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tierd/pkg/backing"
	"tierd/pkg/clock"
	"tierd/tiering"
)

var update = flag.Bool("update", false, "write the pool image of testdata anew")

const goldenPool = "testdata/pool-v1.tar.gz"

// goldenSize is the size of each backing of the image, bytes.
const goldenSize = 12 << 20

// A goldenContent is what a volume of the image reads as: fill over n bytes at
// off, in order.
type goldenContent struct {
	volume string
	off, n int64
	fill   byte
}

// goldenContents is what makeGoldenPool has left behind.
var goldenContents = []goldenContent{
	{"home", 0, ext, 0x11},
	{"home", ext, ext, 0},             // trimmed
	{"home", 2 * ext, block, 0x12},    // overwritten after it moved
	{"home", 2*ext + block, block, 0}, // never written
	{"home", 3 * ext, ext, 0x13},      // moved twice
	{"home", 4 * ext, 4 * ext, 0},     // never written
	{"home", 100 * ext, 512, 0x14},    // in another chunk of the map than its neighbours
	{"home", 300 * ext, 512, 0x15},
	{"home", 300*ext + 512, 512, 0},
	{"mail", 0, 3 * ext, 0x21},
	{"mail", 3 * ext, block, 0x22}, // the ragged end
	{"spare", 0, ext, 0},           // reserved
}

// makeGoldenPool makes a pool of format version 1 in dir by a fixed sequence of
// operations that leaves a trace of everything the format has, and stops it.
func makeGoldenPool(t *testing.T, dir string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c := clock.NewFake(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	create := tiering.CreateOptions{Metadata: filepath.Join(dir, "pool.db"), ExtentSize: ext, Clock: c}
	for i, media := range []backing.Media{backing.SSD, backing.HDD, backing.HDD} {
		create.Tiers = append(create.Tiers, tiering.TierSpec{
			Name: []string{"ssd", "fc", "sata"}[i], Media: media,
			Backings: []tiering.BackingSpec{{Path: filepath.Join(dir, fmt.Sprintf("b%d.img", i)), Size: goldenSize}},
		})
	}
	create.Volumes = []tiering.VolumeSpec{{Name: "home", Size: 64 << 20}, {Name: "letters", Size: 3*ext + block, Policy: "fc"}}
	_, err := tiering.Create(ctx, create)
	must(err)

	open := func() *tiering.Pool {
		p, err := tiering.Open(ctx, tiering.Options{Metadata: create.Metadata, Clock: c, RoundInterval: time.Hour})
		must(err)
		return p
	}
	p := open()
	volume := func(name string) *tiering.Volume {
		v, err := p.Volume(name)
		must(err)
		return v
	}
	write := func(name string, off, n int64, fill byte) {
		must(volume(name).WriteAt(ctx, bytes.Repeat([]byte{fill}, int(n)), off, false))
	}
	move := func(off int64, to int) {
		_, err := p.MoveExtent(ctx, "home", off, to)
		must(err)
	}
	write("home", 0, 2*ext, 0x11)
	write("home", 2*ext, block, 0x11)
	write("home", 3*ext, ext, 0x13)
	write("letters", 0, 3*ext, 0x21)
	write("letters", 3*ext, block, 0x22)
	must(volume("home").Flush(ctx))
	must(p.Close())

	p = open() // a second incarnation
	must(p.RenameVolume(ctx, "letters", "mail", false))
	must(p.CreateVolume(ctx, tiering.VolumeSpec{Name: "spare", Size: ext, Policy: "lowest"}, false))
	must(p.CreateVolume(ctx, tiering.VolumeSpec{Name: "gone", Size: 8 * ext}, false))
	must(p.SetReadOnly(ctx, "mail", true, false))
	must(volume("spare").WriteZeroes(ctx, 0, ext, true, false))
	write("gone", 0, 2*ext, 0x31)
	must(p.DeleteVolume(ctx, "gone", false, false))
	eventually(t, "the volume to be forgotten", func() bool { return len(p.VolumeInfos()) == 3 })
	must(volume("home").Trim(ctx, ext, ext, true))
	move(2*ext, 1)
	write("home", 2*ext, block, 0x12)
	move(3*ext, 2)
	move(3*ext, 1)
	write("home", 100*ext, 512, 0x14)
	write("home", 300*ext, 512, 0x15)
	c.Advance(time.Minute)
	p.PauseRelocation() // the heat is saved, and nothing moves
	if _, err := p.RunCycle(ctx, true); !errors.Is(err, tiering.ErrBusy) {
		t.Fatalf("cycle while paused = %v", err)
	}
	must(p.Close())
}

// pack writes the files of dir into a compressed archive.
func pack(t *testing.T, dir, to string) {
	t.Helper()
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err == nil {
			err = w.WriteHeader(&tar.Header{Name: e.Name(), Mode: 0o600, Size: int64(len(b))})
		}
		if err == nil {
			_, err = w.Write(b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close(), os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, out.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// unpack writes the files of an archive into dir, holes where there are zeroes.
func unpack(t *testing.T, from, dir string) {
	t.Helper()
	f, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := writeSparse(filepath.Join(dir, filepath.Base(h.Name)), r, h.Size); err != nil {
			t.Fatal(err)
		}
	}
}

func writeSparse(path string, r io.Reader, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return err
	}
	p, zero := make([]byte, 64<<10), make([]byte, 64<<10)
	for off := int64(0); off < size; off += int64(len(p)) {
		p = p[:min(int64(len(p)), size-off)]
		if _, err := io.ReadFull(r, p); err != nil {
			return err
		}
		if bytes.Equal(p, zero[:len(p)]) {
			continue
		}
		if _, err := f.WriteAt(p, off); err != nil {
			return err
		}
	}
	return nil
}

func TestGoldenPool(t *testing.T) {
	if *update {
		dir := t.TempDir()
		makeGoldenPool(t, dir)
		pack(t, dir, goldenPool)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir() // another path than the one it was made at
	unpack(t, goldenPool, dir)
	o := tiering.Options{Metadata: filepath.Join(dir, "pool.db")}
	for i := range 3 {
		o.Backings = append(o.Backings, tiering.BackingSpec{Path: filepath.Join(dir, fmt.Sprintf("b%d.img", i))})
	}
	verifyGolden(t, o, true)
	// And after this version has written to it.
	p, err := tiering.Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	v, err := p.Volume("home")
	if err != nil {
		t.Fatal(err)
	}
	if err := v.WriteAt(ctx, bytes.Repeat([]byte{0x77}, block), 5*ext, true); err != nil {
		t.Fatal(err)
	}
	if err := v.Trim(ctx, 5*ext, ext, true); err != nil {
		t.Fatal(err)
	}
	if _, err := p.MoveExtent(ctx, "home", 0, 2); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	verifyGolden(t, o, false)
}

// verifyGolden checks the image, opens it, compares its content, stops it and checks
// it again.
func verifyGolden(t *testing.T, o tiering.Options, first bool) {
	t.Helper()
	checkGolden(t, o)
	p, err := tiering.Open(ctx, o)
	if err != nil {
		t.Fatalf("open the image: %v", err)
	}
	defer p.Close()
	for _, c := range goldenContents {
		v, err := p.Volume(c.volume)
		if err != nil {
			t.Error(err)
			continue
		}
		got := make([]byte, c.n)
		if err := v.ReadAt(ctx, got, c.off); err != nil {
			t.Errorf("read %s at %d: %v", c.volume, c.off, err)
		} else if want := bytes.Repeat([]byte{c.fill}, int(c.n)); !bytes.Equal(got, want) {
			t.Errorf("%s at %d begins with %x, want %d bytes of %#x", c.volume, c.off, got[:8], c.n, c.fill)
		}
	}
	var names []string
	for _, v := range p.VolumeInfos() {
		names = append(names, fmt.Sprintf("%d %s %d %s read-only %v", v.ID, v.Name, v.Size, v.Policy, v.ReadOnly))
	}
	want := []string{"1 home 67108864 auto read-only false", "2 mail 200704 fc read-only true", "3 spare 65536 lowest read-only false"}
	if fmt.Sprint(names) != fmt.Sprint(want) {
		t.Errorf("volumes = %q, want %q", names, want)
	}
	tiers := map[int64]string{2 * ext: "fc", 3 * ext: "fc", ext: "", 0: "sata"}
	if first {
		tiers[0] = "ssd"
	}
	for off, want := range tiers {
		pl, err := p.Locate("home", off)
		if err != nil || pl.Tier != want {
			t.Errorf("home at %d is on %q (%v), want %q", off, pl.Tier, err, want)
		}
	}
	if pl, err := p.Locate("home", 0); err != nil || pl.Score.IOs == 0 {
		t.Errorf("no heat was read back: %+v, %v", pl.Score, err)
	}
	if first && p.Info().Incarnation != 4 {
		t.Errorf("incarnation = %d, want 4", p.Info().Incarnation)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	checkGolden(t, o)
}

func checkGolden(t *testing.T, o tiering.Options) {
	t.Helper()
	r, err := tiering.Check(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Findings {
		if f.Severity == tiering.Damage {
			t.Errorf("check: %s: %s", f.Where, f.Text)
		}
	}
	if !r.Clean || r.Volumes != 3 {
		t.Errorf("check = clean %v, %d volumes, want a clean stop and 3", r.Clean, r.Volumes)
	}
	if _, err := os.Stat(o.Metadata); errors.Is(err, fs.ErrNotExist) {
		t.Error("the metadata is gone")
	}
}
