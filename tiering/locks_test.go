package tiering_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tierd/pkg/backing"
	"tierd/tiering"
	"tierd/tiering/extentmap"
)

// TestOneFileOnce: a file is a backing once, by whatever name, and none of the pool's
// own files is one.
func TestOneFileOnce(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(f *filePool) (other string, err error) // path of the same file
		want string
	}{
		{"symbolic link", func(f *filePool) (string, error) {
			return f.path("l.img"), os.Symlink("b.img", f.path("l.img"))
		}, "is the same file as backing"},
		{"hard link", func(f *filePool) (string, error) {
			return f.path("l.img"), os.Link(f.path("b.img"), f.path("l.img"))
		}, "is the same file as backing"},
		{"other folder", func(f *filePool) (string, error) {
			d := f.t.TempDir()
			return filepath.Join(d, "l/b.img"), os.Symlink(f.dir, filepath.Join(d, "l"))
		}, "is the same file as backing"},
		{"metadata", func(f *filePool) (string, error) { return f.path("pool.db"), nil }, "is the pool's own file"},
		{"link to the metadata", func(f *filePool) (string, error) {
			return f.path("l"), os.Symlink("pool.db", f.path("l"))
		}, "is the same file as the pool's own file"},
		{"staged log", func(f *filePool) (string, error) { return f.path("pool.db.log"), nil }, "is the pool's own file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFilePool(t)
			f.mustOpen()
			f.write(0, 1)
			f.close()
			other, err := tt.do(f)
			if err != nil {
				t.Fatal(err)
			}
			before := f.digest()
			f.opt.Backings = []tiering.BackingSpec{{Path: f.path("a.img")}, {Path: f.path("b.img")}, {Path: other}}
			err = f.open()
			wantErr(t, "open", err, tiering.ErrRefused)
			if err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("open = %v, want %q in it", err, tt.want)
			}
			if !strings.Contains(tt.want, "same file as backing") {
				if f.digest() != before {
					t.Error("files have changed")
				}
				return
			}
			_, err = tiering.Create(ctx, tiering.CreateOptions{
				Metadata: f.path("new.db"), ExtentSize: ext, Force: []string{f.path("b.img"), other},
				Tiers: []tiering.TierSpec{{Name: "x", Backings: []tiering.BackingSpec{{Path: f.path("b.img")}, {Path: other}}}},
			})
			if err == nil {
				t.Error("a pool is created with it")
			}
			if f.digest() != before {
				t.Error("files have changed")
			}
			// The other name in place of the old one is fine.
			f.opt.Backings = []tiering.BackingSpec{{Path: f.path("a.img")}, {Path: other}}
			f.mustOpen()
			if got := f.pool.Backings()[1].Path; got != other {
				t.Errorf("the backing is at %s, want %s", got, other)
			}
			f.close()
		})
	}
}

func TestCreateOnItself(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"pool.db", "pool.db.log", "pool.db.heat"} {
		_, err := tiering.Create(ctx, tiering.CreateOptions{
			Metadata: filepath.Join(dir, "pool.db"), ExtentSize: ext,
			Tiers: []tiering.TierSpec{{Name: "x", Backings: []tiering.BackingSpec{{Path: filepath.Join(dir, name), Size: 10 << 20}}}},
		})
		wantErr(t, "create on "+name, err, tiering.ErrRefused)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("%v is left behind", left)
	}
}

// loop attaches a loop device to a file until the test ends.
func loop(t *testing.T, file string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("loop devices need root")
	}
	out, err := exec.Command("losetup", "--find", "--show", file).Output()
	if err != nil {
		t.Skipf("losetup does not work here: %v", err)
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", dev).Run() })
	return dev
}

// TestLoopOnThePool: a pool does not lie on itself, nor on a file that a loop device
// is attached to.
func TestLoopOnThePool(t *testing.T) {
	for name, want := range map[string]string{"b.img": "a pool cannot lie on itself", "pool.db": "a pool cannot lie on itself"} {
		f := newFilePool(t)
		dev := loop(t, f.path(name))
		f.opt.Backings = []tiering.BackingSpec{{Path: dev}}
		err := f.open()
		wantErr(t, "open", err, tiering.ErrRefused)
		if err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("open with a loop device on %s = %v, want %q in it", name, err, want)
		}
	}
	f := newFilePool(t)
	dev := loop(t, f.path("b.img"))
	err := f.open()
	wantErr(t, "open of a file that a loop device is attached to", err, backing.ErrInUse)
	if err != nil && !strings.Contains(err.Error(), dev) {
		t.Errorf("open = %v, want %s in it", err, dev)
	}
	_ = exec.Command("losetup", "--detach", dev).Run()
	eventually(t, "the file to be free", func() bool { return f.open() == nil })
	f.close()
}

// TestForeignLocks: a lock of another program on a backing, of whatever kind, is
// respected, and ours are there for others to see.
func TestForeignLocks(t *testing.T) {
	f := newFilePool(t)
	for name, lock := range map[string]func(fd int) error{
		"flock":                  func(fd int) error { return unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) },
		"lock of a range":        func(fd int) error { return ofdLock(fd, unix.F_WRLCK, 100, 1) },
		"shared lock of a range": func(fd int) error { return ofdLock(fd, unix.F_RDLCK, 100, 1) },
	} {
		other, err := os.OpenFile(f.path("b.img"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := lock(int(other.Fd())); err != nil {
			t.Fatal(err)
		}
		if err := f.open(); !errors.Is(err, backing.ErrInUse) {
			t.Errorf("open beside a %s = %v, want ErrInUse", name, err)
		}
		other.Close()
	}
	f.mustOpen()
	other, err := os.OpenFile(f.path("b.img"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := ofdLock(int(other.Fd()), unix.F_RDLCK, 100, 1); err != unix.EAGAIN && err != unix.EACCES {
		t.Errorf("a range of an open backing can be locked by others: %v", err)
	}
	if err := unix.Flock(int(other.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		t.Errorf("an open backing can be locked by others: %v", err)
	}
	f.close()
}

func ofdLock(fd int, kind int16, from, n int64) error {
	return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: from, Len: n})
}

// TestOfflineBesideOpen: what works on a pool that is down refuses one that is up,
// and does work beside one that is open read-only if it reads alone.
func TestOfflineBesideOpen(t *testing.T) {
	f := newFilePool(t)
	create := func() error {
		_, err := tiering.Create(ctx, tiering.CreateOptions{
			Metadata: f.path("pool.db"), ExtentSize: ext,
			Tiers: []tiering.TierSpec{{Name: "x", Backings: []tiering.BackingSpec{{Path: f.path("b.img")}}}},
		})
		return err
	}
	steal := func() error {
		_, err := tiering.Create(ctx, tiering.CreateOptions{
			Metadata: f.path("other.db"), ExtentSize: ext, Force: []string{f.path("b.img")},
			Tiers: []tiering.TierSpec{{Name: "x", Backings: []tiering.BackingSpec{{Path: f.path("b.img")}}}},
		})
		return err
	}
	check := func() error {
		_, err := tiering.Check(ctx, f.opt)
		return err
	}
	f.mustOpen()
	f.write(0, 1)
	wantErr(t, "create", create(), extentmap.ErrLocked)
	wantErr(t, "create of another pool", steal(), backing.ErrInUse)
	wantErr(t, "check", check(), extentmap.ErrLocked)
	f.close()
	before := f.trace()
	o := f.opt
	o.ReadOnly = true
	p, err := tiering.Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	wantErr(t, "create beside read-only", create(), tiering.ErrRefused)
	wantErr(t, "create of another pool beside read-only", steal(), backing.ErrInUse)
	if err := check(); err != nil {
		t.Errorf("check beside read-only = %v", err)
	}
	if f.trace() != before {
		t.Error("files have changed")
	}
}
