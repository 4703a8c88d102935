package tiering_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"tierd/pkg/backing"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/extentmap"
)

// filePool is a pool on files, two tiers of one backing, with a volume v.
type filePool struct {
	t    *testing.T
	dir  string
	opt  tiering.Options
	pool *tiering.Pool
}

func newFilePool(t *testing.T) *filePool {
	t.Helper()
	f := &filePool{t: t, dir: t.TempDir()}
	o := tiering.CreateOptions{
		Metadata: f.path("pool.db"), ExtentSize: ext, Volumes: []tiering.VolumeSpec{{Name: "v", Size: 8 * ext}},
	}
	for _, name := range []string{"a", "b"} {
		o.Tiers = append(o.Tiers, tiering.TierSpec{
			Name: name, Media: backing.SSD, Backings: []tiering.BackingSpec{{Path: f.path(name + ".img"), Size: 10 << 20}},
		})
	}
	if _, err := tiering.Create(ctx, o); err != nil {
		t.Fatal(err)
	}
	f.opt = tiering.Options{Metadata: o.Metadata}
	t.Cleanup(func() {
		if f.pool != nil {
			f.pool.Kill()
		}
	})
	return f
}

func (f *filePool) path(name string) string { return filepath.Join(f.dir, name) }

func (f *filePool) open() error {
	p, err := tiering.Open(ctx, f.opt)
	if err == nil {
		f.pool = p
	}
	return err
}

func (f *filePool) mustOpen() {
	f.t.Helper()
	if err := f.open(); err != nil {
		f.t.Fatal(err)
	}
	// First writes go to the first tier that has clean slots.
	eventually(f.t, "all free slots of what serves are clean", func() bool {
		return f.opt.ReadOnly || !slices.ContainsFunc(f.pool.Backings(), func(b tiering.BackingInfo) bool {
			return b.State == tiering.ConditionOK && b.Slots.Free+b.Slots.Cleaning > 0
		})
	})
}

func (f *filePool) close() {
	f.t.Helper()
	if err := f.pool.Close(); err != nil {
		f.t.Fatal(err)
	}
	f.pool = nil
}

// copy copies a file over another.
func (f *filePool) copy(from, to string) {
	f.t.Helper()
	b, err := os.ReadFile(f.path(from))
	if err == nil {
		err = os.WriteFile(f.path(to), b, 0o600)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *filePool) write(off int64, fill byte) {
	f.t.Helper()
	v, err := f.pool.Volume("v")
	if err == nil {
		err = v.WriteAt(ctx, bytes.Repeat([]byte{fill}, ext), off, true)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// The configuration may name a member by another path than the metadata, and that one
// may lead there still.
func TestMemberOfTwoPaths(t *testing.T) {
	f := newFilePool(t)
	f.mustOpen()
	f.write(0, 1)
	f.close()
	if err := os.Symlink(f.path("b.img"), f.path("link.img")); err != nil {
		t.Fatal(err)
	}
	f.opt.Backings = []tiering.BackingSpec{{Path: f.path("a.img")}, {Path: f.path("link.img")}}
	check := func() {
		t.Helper()
		r, err := tiering.Check(ctx, f.opt)
		if err != nil || r.Damaged() {
			t.Fatalf("check: %v, %+v", err, r.Findings)
		}
	}
	check()
	if r, err := tiering.Repair(ctx, f.opt, tiering.RepairOptions{}); err != nil {
		t.Fatalf("repair: %v, %+v", err, r)
	}
	f.mustOpen()
	f.close()
	check()
	rebuilt := func(want string) {
		t.Helper()
		_, err := tiering.Rebuild(ctx, tiering.RebuildOptions{Metadata: f.opt.Metadata, Backings: f.opt.Backings})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("rebuild: %v, want %q", err, want)
		}
	}
	rebuilt("the file exists, and is whole")
	f.mustOpen()
	rebuilt("in use")
	f.close()
	if err := os.Rename(f.opt.Metadata, f.path("away")); err != nil {
		t.Fatal(err)
	}
	twice := append(f.opt.Backings, tiering.BackingSpec{Path: f.path("b.img")}, tiering.BackingSpec{Path: f.path("a.img")})
	if _, err := tiering.Rebuild(ctx, tiering.RebuildOptions{Metadata: f.opt.Metadata, Backings: twice}); err != nil {
		t.Fatalf("rebuild: %v", err)
	}
	f.mustOpen()
	f.close()
	check()
}

// The name of a device that is not there does not become a file in its folder.
func TestNoFileIsMadeBelowDev(t *testing.T) {
	f := newFilePool(t)
	f.mustOpen()
	link := f.path("devices")
	if err := os.Symlink("/dev", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/dev/tierd-no-such-device", link + "/tierd-no-such-device"} {
		b := tiering.BackingSpec{Path: path, Size: 64 << 20}
		_, add := f.pool.AddBacking(ctx, tiering.AddOptions{Tier: "a", Backing: b})
		_, create := tiering.Create(ctx, tiering.CreateOptions{
			Metadata: f.path("other.db"), ExtentSize: ext, Tiers: []tiering.TierSpec{{Name: "a", Media: backing.SSD, Backings: []tiering.BackingSpec{b}}},
		})
		for what, err := range map[string]error{"add": add, "create": create} {
			if err == nil || !strings.Contains(err.Error(), "below /dev") {
				t.Errorf("%s of %s: %v", what, path, err)
			}
		}
		if err := os.Remove(path); err == nil {
			t.Errorf("%s was made", path)
		}
	}
}

// Whatever has become of the staged log, the pool starts, or the refusal says how it
// would.
func TestAnyStagedLog(t *testing.T) {
	for _, tt := range []struct {
		name    string
		refused bool
		damage  func(path string) error
	}{
		{"gone", false, os.Remove},
		{"empty", false, func(p string) error { return os.Truncate(p, 0) }},
		{"cut off in its header", false, func(p string) error { return os.Truncate(p, 100) }},
		{"cut off", false, func(p string) error { return os.Truncate(p, 5000) }},
		{"garbage", false, func(p string) error { return os.WriteFile(p, bytes.Repeat([]byte("garbage!"), 1<<17), 0o600) }},
		{"a link to it", false, func(p string) error { return errors.Join(os.Rename(p, p+".there"), os.Symlink(p+".there", p)) }},
		{"a folder", true, func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) }},
		{"a link to nowhere", true, func(p string) error { return errors.Join(os.Remove(p), os.Symlink(p+".nowhere", p)) }},
		{"a pipe", true, func(p string) error { return errors.Join(os.Remove(p), syscall.Mkfifo(p, 0o600)) }},
	} {
		for _, kill := range []bool{true, false} {
			f := newFilePool(t)
			f.mustOpen()
			f.write(0, 1)
			if kill {
				f.pool.Kill()
				f.pool = nil
			} else {
				f.close()
			}
			path := f.opt.Metadata + ".log"
			if err := tt.damage(path); err != nil {
				t.Fatal(err)
			}
			if tt.refused {
				err := f.open()
				if err == nil || !strings.Contains(err.Error(), "move it away") {
					t.Errorf("%s: %v, want a refusal with the way on", tt.name, err)
				}
				if r, err := tiering.Check(ctx, f.opt); err != nil || !r.Damaged() {
					t.Errorf("%s: the check finds %+v, %v", tt.name, r.Findings, err)
				}
				if err := os.Rename(path, path+".away"); err != nil {
					t.Fatal(err)
				}
			}
			f.mustOpen()
			buf := make([]byte, ext)
			v, err := f.pool.Volume("v")
			if err == nil {
				err = v.ReadAt(ctx, buf, 0)
			}
			if err != nil || buf[0] != 1 {
				t.Errorf("%s: read %d, %v", tt.name, buf[0], err)
			}
			f.close()
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, f *filePool) // the pool is closed before and after it
		want string                          // in the error; "" if it opens
		is   error
	}{
		{"nothing changed", func(*testing.T, *filePool) {}, "", nil},
		{"metadata of the open before", func(t *testing.T, f *filePool) {
			f.copy("pool.db", "old.db")
			f.mustOpen()
			f.close()
			f.copy("old.db", "pool.db")
		}, "is older than backing", tiering.ErrRefused},
		{"metadata of the same open, an older commit", func(t *testing.T, f *filePool) {
			f.mustOpen()
			f.write(ext, 2)
			f.copy("pool.db", "old.db")
			f.write(2*ext, 3)
			f.write(3*ext, 4) // its sync tells the backing of the commit before
			f.pool.Kill()
			f.copy("old.db", "pool.db")
		}, "is older than backing", tiering.ErrRefused},
		{"old copy of a backing", func(t *testing.T, f *filePool) {
			f.copy("b.img", "old.img")
			f.mustOpen()
			f.close()
			f.copy("old.img", "b.img")
		}, "is an old copy", tiering.ErrRefused},
		{"backing copied twice", func(t *testing.T, f *filePool) {
			f.copy("b.img", "c.img")
			f.opt.Backings = []tiering.BackingSpec{{Path: f.path("c.img")}}
		}, "are copies of each other", tiering.ErrRefused},
		{"swapped paths", func(t *testing.T, f *filePool) {
			must(t, os.Rename(f.path("a.img"), f.path("x")))
			must(t, os.Rename(f.path("b.img"), f.path("a.img")))
			must(t, os.Rename(f.path("x"), f.path("b.img")))
		}, "", nil},
		{"moved to another path", func(t *testing.T, f *filePool) {
			must(t, os.Rename(f.path("a.img"), f.path("x.img")))
			f.opt.Backings = []tiering.BackingSpec{{Path: f.path("x.img")}}
		}, "", nil},
		{"cut off", func(t *testing.T, f *filePool) { must(t, os.Truncate(f.path("b.img"), 9<<20)) }, "shorter than its superblock says", nil},
		{"cut off to nothing", func(t *testing.T, f *filePool) { must(t, os.Truncate(f.path("b.img"), 0)) }, "", errAny},
		{"missing", func(t *testing.T, f *filePool) { must(t, os.Remove(f.path("b.img"))) }, "is missing", tiering.ErrRefused},
		{"wiped", func(t *testing.T, f *filePool) {
			must(t, os.WriteFile(f.path("b.img"), make([]byte, 10<<20), 0o600))
		}, "is missing", tiering.ErrRefused},
		{"another pool's", func(t *testing.T, f *filePool) {
			b, err := os.ReadFile(newFilePool(t).path("b.img"))
			must(t, err)
			must(t, os.WriteFile(f.path("b.img"), b, 0o600))
		}, "belongs to pool", tiering.ErrRefused},
		{"no bbolt file", func(t *testing.T, f *filePool) {
			must(t, os.WriteFile(f.path("pool.db"), bytes.Repeat([]byte("text"), 8192), 0o600))
		}, "", extentmap.ErrNotBolt},
		{"no metadata", func(t *testing.T, f *filePool) { must(t, os.Remove(f.path("pool.db"))) }, "", tiering.ErrRefused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFilePool(t)
			f.mustOpen()
			f.write(0, 1)
			f.close()
			tt.do(t, f)
			f.pool = nil
			before := f.digest()
			err := f.open()
			switch {
			case tt.want == "" && tt.is == nil:
				if err != nil {
					t.Fatalf("open = %v", err)
				}
				v, _ := f.pool.Volume("v")
				p := make([]byte, ext)
				if err := v.ReadAt(ctx, p, 0); err != nil || p[0] != 1 || p[ext-1] != 1 {
					t.Errorf("read = %v, %v", p[0], err)
				}
				f.close()
				f.mustOpen() // the new paths are remembered
				f.close()
				return
			case err == nil:
				t.Fatal("the pool opens")
			case tt.is != nil && tt.is != errAny && !errors.Is(err, tt.is):
				t.Errorf("open = %v, want %v", err, tt.is)
			case !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n"):
				t.Errorf("open = %q, want one line with %q", err, tt.want)
			}
			if after := f.digest(); after != before {
				t.Error("a refused open has changed something")
			}
		})
	}
}

// errAny stands for some error.
var errAny = errors.New("any")

// digest returns the content of all files but empty ones.
func (f *filePool) digest() string {
	f.t.Helper()
	var b strings.Builder
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range entries {
		p, err := os.ReadFile(f.path(e.Name()))
		if err != nil {
			f.t.Fatal(err)
		}
		b.WriteString(e.Name())
		b.Write(p)
	}
	return b.String()
}

// TestStrangersAreMentionedOnce: what is configured and not of the pool is one warning.
func TestStrangersAreMentionedOnce(t *testing.T) {
	f := newFilePool(t)
	f.opt.Backings = append(f.opt.Backings, tiering.BackingSpec{Path: f.path("blank")}, tiering.BackingSpec{Path: f.path("absent")})
	if err := os.WriteFile(f.path("blank"), make([]byte, 10<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	f.mustOpen()
	defer f.close()
	got := f.pool.Info().Warnings
	want := []string{
		"backing " + f.path("blank") + " is configured, but carries no superblock and is not part of the pool",
		"backing " + f.path("absent") + " is configured, but does not exist and is not part of the pool",
	}
	if !slices.Equal(got, want) {
		t.Errorf("warnings = %q, want %q", got, want)
	}
}

func TestOpenTwice(t *testing.T) {
	f := newFilePool(t)
	f.mustOpen()
	if p, err := tiering.Open(ctx, f.opt); !errors.Is(err, extentmap.ErrLocked) {
		t.Errorf("second open = %v, %v, want ErrLocked", p, err)
	}
	f.write(0, 1)
	f.close()
}

// instance is a store that says it is another incarnation of its medium.
type instance struct {
	backing.Store
	name string
}

func (s instance) Instance() string { return s.name }

// TestStagedLogConditions: what was answered and not flushed is there exactly if
// the log can be used, and the continuity id changes exactly if it cannot.
func TestStagedLogConditions(t *testing.T) {
	otherBoot := func(o *tiering.Options) { o.BootID = "another boot" }
	logFile := func(e *env) string {
		t.Helper()
		m, err := filepath.Glob(filepath.Join(filepath.Dir(e.opt.Metadata), "*log*"))
		if err != nil || len(m) != 1 {
			t.Fatalf("staged log: %v, %v", m, err)
		}
		return m[0]
	}
	for _, tt := range []struct {
		name  string
		clean bool
		do    func(t *testing.T, e *env)
		edit  func(*tiering.Options)
		lost  bool
	}{
		{"kill", false, nil, nil, false},
		{"kill, other boot", false, nil, otherBoot, true},
		{"clean stop", true, nil, nil, false},
		{"clean stop, other boot", true, nil, otherBoot, false},
		{"clean stop, no log", true, func(t *testing.T, e *env) { _ = os.Remove(logFile(e)) }, nil, false},
		{"clean stop, log cut off", true, func(t *testing.T, e *env) { _ = os.Truncate(logFile(e), 5000) }, nil, false},
		{"kill, log cut off", false, func(t *testing.T, e *env) { _ = os.Truncate(logFile(e), 5000) }, nil, true},
		{"kill, no log", false, func(t *testing.T, e *env) { _ = os.Remove(logFile(e)) }, nil, true},
		{"kill, backing attached anew", false, nil, func(o *tiering.Options) {
			inner := o.OpenStore
			o.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, ro bool) (backing.Store, error) {
				st, err := inner(ctx, spec, create, ro)
				if spec.Path == path(1, 0) && err == nil {
					st = instance{st, "attached again"}
				}
				return st, err
			}
		}, true},
		{"kill, log damaged", false, func(t *testing.T, e *env) {
			b, err := os.ReadFile(logFile(e))
			if err != nil {
				t.Fatal(err)
			}
			for i := range 64 << 10 {
				b[i] ^= 0x55
			}
			if err := os.WriteFile(logFile(e), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t, model.Config{}, nil)
			e.write("v0", 0, ext, 1)
			e.write("v0", ext, ext, 1)
			e.flush("v0")
			e.write("v0", 2*ext, ext, 2)
			e.trim("v0", ext, ext)
			cont := e.Pool.Continuity()
			if tt.clean {
				e.Close()
			} else {
				e.Kill()
			}
			if tt.do != nil {
				tt.do(t, e)
			}
			if err := e.tryOpen(tt.edit); err != nil {
				t.Fatal(err)
			}
			if changed := e.Pool.Continuity() != cont; changed != tt.lost {
				t.Errorf("continuity id changed: %v, want %v", changed, tt.lost)
			}
			if warned := len(e.Pool.Info().Warnings) > 0; warned != tt.lost {
				t.Errorf("warnings = %q, want some: %v", e.Pool.Info().Warnings, tt.lost)
			}
			e.expect("v0", 0, ext, 1)
			if tt.lost {
				e.expect("v0", ext, ext, 1)
				e.expect("v0", 2*ext, ext, 0)
			} else {
				e.expect("v0", ext, ext, 0)
				e.expect("v0", 2*ext, ext, 2)
			}
			e.settle()
		})
	}
}
