package tiering_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"tierd/tiering"
)

// TestFilesDeletedInUse deletes the files of a pool, or puts others in their place,
// while it is in use.
func TestFilesDeletedInUse(t *testing.T) {
	f := newDiskPool(t, true)
	p := f.open()
	warned := func(name, text string) {
		t.Helper()
		eventually(t, "a warning of "+name, func() bool {
			return slices.ContainsFunc(p.Info().Warnings, func(w string) bool { return strings.Contains(w, f.path(name)) && strings.Contains(w, text) })
		})
		if !strings.Contains(f.logs.String(), f.path(name)) {
			t.Errorf("the log does not name %s", name)
		}
	}
	if w := p.Info().Warnings; len(w) > 0 {
		t.Errorf("warnings = %q", w)
	}
	f.remove("pool.db.log")
	warned("pool.db.log", "do not survive a kill")
	again := f.copyFile("pool.db")
	f.remove("pool.db")
	again()
	warned("pool.db", "pool rebuild")
	f.remove("b.img")
	warned("b.img", "as long as tierd runs")
	eventually(t, "its extents elsewhere", func() bool {
		for _, name := range []string{"home", "mail"} {
			for off := int64(0); off < int64(len(f.want[name])); off += ext {
				if at, err := p.Locate(name, off); err != nil || at.Backing == f.path("b.img") {
					return false
				}
			}
		}
		return true
	})
	for _, b := range p.Backings() {
		if b.Path == f.path("b.img") && b.State != tiering.ConditionSuspect {
			t.Errorf("the backing is %v", b.State)
		}
	}
	if w := f.wrong(p); len(w) > 0 {
		t.Errorf("%q are wrong", w)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	// What the message says brings all back.
	if err := os.Rename(f.path("pool.db"), f.path("stale.db")); err != nil {
		t.Fatal(err)
	}
	o := tiering.RebuildOptions{Metadata: f.opt.Metadata, Backings: f.opt.Backings, AcceptMissing: []string{"2"}}
	if _, err := tiering.Rebuild(ctx, o); err != nil {
		t.Fatal(err)
	}
	f.opt.Backings = slices.DeleteFunc(f.opt.Backings, func(s tiering.BackingSpec) bool { return s.Path == f.path("b.img") })
	p = f.open()
	if w := f.wrong(p); len(w) > 0 {
		t.Errorf("after the rebuild %q are wrong", w)
	}
	p.Kill()
}
