package tiering_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
	"tierd/tiering"
)

// trace returns what can be known of all files from outside: names, sizes, times of
// the last change of content and inode, and content.
func (f *filePool) trace() string {
	f.t.Helper()
	var b strings.Builder
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range entries {
		var st syscall.Stat_t
		if err := syscall.Stat(f.path(e.Name()), &st); err != nil {
			f.t.Fatal(err)
		}
		fmt.Fprintln(&b, e.Name(), st.Ino, st.Mode, st.Size, st.Blocks, st.Mtim, st.Ctim)
	}
	return b.String() + f.digest()
}

// TestReadOnlyWritesNothing: whatever state a pool is in, opening it read-only shows
// all of its data and leaves no trace.
func TestReadOnlyWritesNothing(t *testing.T) {
	// Of v, extents 0 and 1 are flushed as 1 and 2, and then answered without a flush:
	// 1 is trimmed, 2 is written as 3, half of 0 is overwritten with 9.
	unflushed := func(f *filePool) {
		v, err := f.pool.Volume("v")
		if err != nil {
			f.t.Fatal(err)
		}
		err = errors.Join(
			v.Trim(ctx, ext, ext, false),
			v.WriteAt(ctx, bytes.Repeat([]byte{3}, ext), 2*ext, false),
			v.WriteAt(ctx, bytes.Repeat([]byte{9}, ext/2), 0, false))
		if err != nil {
			f.t.Fatal(err)
		}
	}
	kill := func(f *filePool) { f.pool.Kill(); f.pool = nil }
	for _, tt := range []struct {
		name    string
		do      func(t *testing.T, f *filePool) // the pool is open before and down after it
		edit    func(f *filePool, o *tiering.Options)
		want    []byte // of each extent; 0xee: an error
		half    byte   // of the first half of extent 0
		flushes bool   // a flush succeeds
		renewed bool   // the continuity id is another
	}{
		{"clean stop", func(t *testing.T, f *filePool) { unflushed(f); f.close() }, nil, []byte{1, 0, 3}, 9, true, false},
		{"kill", func(t *testing.T, f *filePool) { unflushed(f); kill(f) }, nil, []byte{1, 0, 3}, 9, false, false},
		{"kill in another boot", func(t *testing.T, f *filePool) { unflushed(f); kill(f) },
			func(f *filePool, o *tiering.Options) { o.BootID = "another" }, []byte{1, 2, 0}, 9, false, true},
		{"kill without a log", func(t *testing.T, f *filePool) {
			unflushed(f)
			kill(f)
			if err := os.Remove(f.path("pool.db.log")); err != nil {
				t.Fatal(err)
			}
		}, nil, []byte{1, 2, 0}, 9, false, true},
		{"failed backing", func(t *testing.T, f *filePool) {
			f.close()
			f.opt.OpenStore = failing(tiering.OpenBacking, f.path("a.img"), faultstore.Sync)
			f.mustOpen() // which syncs
			if f.pool.Backings()[0].State != tiering.ConditionFailed {
				t.Fatal("the backing has not failed")
			}
			kill(f)
			f.opt.OpenStore = nil
		}, nil, []byte{1, 2, 0}, 1, false, true},
		{"missing backing", func(t *testing.T, f *filePool) {
			f.close()
			if err := os.Rename(f.path("a.img"), f.path("elsewhere")); err != nil {
				t.Fatal(err)
			}
		}, func(f *filePool, o *tiering.Options) { o.Degraded = true }, []byte{0xee, 0xee, 0}, 0xee, true, false},
		{"missing backing after a kill", func(t *testing.T, f *filePool) {
			unflushed(f)
			kill(f)
			if err := os.Rename(f.path("a.img"), f.path("elsewhere")); err != nil {
				t.Fatal(err)
			}
		}, func(f *filePool, o *tiering.Options) { o.Degraded = true }, []byte{0xee, 0, 0xee}, 0xee, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFilePool(t)
			f.mustOpen()
			f.write(0, 1)
			f.write(ext, 2)
			cont := f.pool.Continuity()
			tt.do(t, f)
			before := f.trace()

			o := f.opt
			o.ReadOnly = true
			if tt.edit != nil {
				tt.edit(f, &o)
			}
			for range 2 { // a second time it is just the same
				p, err := tiering.Open(ctx, o)
				if err != nil {
					t.Fatal(err)
				}
				f.pool = p
				f.checkReadOnly(tt.want, tt.half, tt.flushes)
				if got := p.Continuity(); (got != cont) != tt.renewed {
					t.Errorf("continuity id changed: %v, want %v", got != cont, tt.renewed)
				}
				if !p.Info().ReadOnly {
					t.Error("the pool does not say that it is read-only")
				}
				if err := p.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
				f.pool = nil
			}
			if after := f.trace(); after != before {
				t.Errorf("files have changed:\n%.2000s\nwere\n%.2000s", after, before)
			}
		})
	}
}

// checkReadOnly reads all of v and tries to change all that can be changed.
func (f *filePool) checkReadOnly(want []byte, half byte, flushes bool) {
	t := f.t
	t.Helper()
	p := f.pool
	v, err := p.Volume("v")
	if err != nil {
		t.Fatal(err)
	}
	for i, fill := range want {
		buf := make([]byte, ext)
		err := v.ReadAt(ctx, buf, int64(i)*ext)
		exp := bytes.Repeat([]byte{fill}, ext)
		if i == 0 {
			copy(exp, bytes.Repeat([]byte{half}, ext/2))
		}
		switch {
		case fill == 0xee && !errors.Is(err, tiering.ErrBackingMissing):
			t.Errorf("read of extent %d, whose backing is missing = %v", i, err)
		case fill != 0xee && err != nil:
			t.Errorf("read of extent %d = %v", i, err)
		case fill != 0xee && !bytes.Equal(buf, exp):
			t.Errorf("extent %d is %d .. %d, want %d .. %d", i, buf[0], buf[ext-1], exp[0], fill)
		}
	}
	if !v.ReadOnly() {
		t.Error("the volume does not say that it is read-only")
	}
	for what, err := range map[string]error{
		"write":      v.WriteAt(ctx, []byte("x"), 0, false),
		"new extent": v.WriteAt(ctx, []byte("x"), 5*ext, true),
		"trim":       v.Trim(ctx, 0, ext, false),
		"zeroes":     v.WriteZeroes(ctx, 0, ext, false, true),
	} {
		if !errors.Is(err, tiering.ErrReadOnly) || !errors.Is(err, syscall.EPERM) {
			t.Errorf("%s = %v, want ErrReadOnly", what, err)
		}
	}
	if err := v.Flush(ctx); (err == nil) != flushes {
		t.Errorf("flush = %v, want success: %v", err, flushes)
	}
	_, runErr := p.RunCycle(ctx, true)
	_, moveErr := p.MoveExtent(ctx, "v", 0, 1)
	_, forgetErr := p.ForgetBacking(ctx, "1", true, false)
	for what, err := range map[string]error{
		"create": p.CreateVolume(ctx, tiering.VolumeSpec{Name: "w", Size: ext}, false),
		"grow":   p.GrowVolume(ctx, "v", 16*ext, false),
		"rename": p.RenameVolume(ctx, "v", "w", false),
		"delete": p.DeleteVolume(ctx, "v", true, false),
		"policy": p.SetPolicy(ctx, "v", "b", false),
		"move":   moveErr,
		"run":    runErr,
		"forget": forgetErr,
	} {
		if err == nil {
			t.Errorf("%s succeeds", what)
		}
	}
	if _, err := p.Locate("v", 0); err != nil {
		t.Errorf("locate: %v", err)
	}
	if err := p.HeatMap(ctx, "v", func(tiering.ExtentHeat) {}); err != nil {
		t.Errorf("heat: %v", err)
	}
	p.PlanNow()
}

// A device that goes away under a read-only pool is not written about.
func TestReadOnlyFailure(t *testing.T) {
	f := newFilePool(t)
	f.mustOpen()
	f.write(0, 1)
	f.close()
	before := f.trace()
	o := f.opt
	o.ReadOnly = true
	var gone *faultstore.Store
	o.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
		st, err := tiering.OpenBacking(ctx, spec, create, readOnly)
		if err != nil || spec.Path != f.path("a.img") {
			return st, err
		}
		gone = faultstore.New(st, 1)
		return gone, nil
	}
	p, err := tiering.Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	f.pool = p
	gone.Inject(faultstore.Fault{Ops: faultstore.Read, Err: syscall.ENXIO})
	v, _ := p.Volume("v")
	if err := v.ReadAt(ctx, make([]byte, ext), 0); err == nil {
		t.Error("the read succeeds")
	}
	if err := p.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	f.pool = nil
	if f.trace() != before {
		t.Error("files have changed")
	}
}

// Two read-only opens live beside each other, and neither beside one that writes.
func TestReadOnlyLocks(t *testing.T) {
	f := newFilePool(t)
	f.mustOpen()
	o := f.opt
	o.ReadOnly = true
	if p, err := tiering.Open(ctx, o); err == nil {
		p.Kill()
		t.Error("a pool that is written to is opened read-only")
	}
	f.close()
	a, err := tiering.Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Kill()
	b, err := tiering.Open(ctx, o)
	if err != nil {
		t.Fatalf("second read-only open: %v", err)
	}
	defer b.Kill()
	if err := f.open(); err == nil {
		t.Error("a pool that is open read-only is opened for writing")
	}
}
