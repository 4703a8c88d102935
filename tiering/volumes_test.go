package tiering_test

import (
	"bytes"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

func TestVolumeNames(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	for _, tt := range []struct {
		name string
		want error
	}{
		{"home", nil},
		{"Grüße 2", nil},
		{strings.Repeat("x", 255), nil},
		{"v0", tiering.ErrExists},
		{"", tiering.ErrInvalid},
		{"a/b", tiering.ErrInvalid},
		{"a\nb", tiering.ErrInvalid},
		{"a\x00", tiering.ErrInvalid},
		{"\xff\xfe", tiering.ErrInvalid},
		{strings.Repeat("x", 256), tiering.ErrInvalid},
		{strings.Repeat("x", 5000), tiering.ErrInvalid},
	} {
		for _, dryRun := range []bool{true, false} {
			if err := e.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: tt.name, Size: ext}, dryRun); !errors.Is(err, tt.want) {
				t.Errorf("create %q, dry run %v = %v, want %v", tt.name, dryRun, err, tt.want)
			}
		}
		if tt.want != nil {
			if err := e.Pool.RenameVolume(ctx, "v1", tt.name, false); !errors.Is(err, tt.want) {
				t.Errorf("rename to %q = %v, want %v", tt.name, err, tt.want)
			}
		}
	}
	for _, size := range []int64{0, -4096, 512, 4097, 1<<62 + 4096} {
		wantErr(t, "create with an odd size", e.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "n", Size: size}, false), tiering.ErrInvalid)
		wantErr(t, "grow to an odd size", e.Pool.GrowVolume(ctx, "v0", size, false), tiering.ErrInvalid)
	}
	wantErr(t, "grow to more extents than a table may have", e.Pool.GrowVolume(ctx, "v0", ext<<34+block, true), tiering.ErrInvalid)
	wantErr(t, "shrink", e.Pool.GrowVolume(ctx, "v0", 4*ext, false), tiering.ErrInvalid)
	wantErr(t, "policy", e.Pool.SetPolicy(ctx, "v0", "t9", false), tiering.ErrInvalid)
	wantErr(t, "rename of none", e.Pool.RenameVolume(ctx, "none", "x", false), tiering.ErrNotFound)
	if got := len(e.Pool.Volumes()); got != 5 {
		t.Errorf("%d volumes, want 5", got)
	}
}

func TestVolumeLifeCycle(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{8}, {8}}}, nil)
	id, uuid := e.volume("v0").Info().ID, e.volume("v0").UUID()
	e.write("v0", 7*ext, ext, 1)
	if err := e.Pool.RenameVolume(ctx, "v0", "mail", false); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Pool.Volume("v0"); !errors.Is(err, tiering.ErrNotFound) {
		t.Errorf("the old name = %v, want ErrNotFound", err)
	}
	wantErr(t, "write past the end", e.volume("mail").WriteAt(ctx, []byte("x"), 8*ext, false), tiering.ErrOutOfRange)
	if err := e.Pool.GrowVolume(ctx, "mail", 1<<40+4096, false); err != nil {
		t.Fatal(err)
	}
	e.write("mail", 1<<40, block, 2)
	wantErr(t, "write past the new end", e.volume("mail").WriteAt(ctx, []byte("x"), 1<<40+4096, false), tiering.ErrOutOfRange)
	e.expect("mail", 8*ext, ext, 0)
	if err := e.Pool.SetReadOnly(ctx, "v1", true, false); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "write to a read-only volume", e.volume("v1").WriteAt(ctx, []byte("x"), 0, false), tiering.ErrReadOnly)
	wantErr(t, "trim of a read-only volume", e.volume("v1").Trim(ctx, 0, ext, false), syscall.EPERM)
	for _, end := range []string{"kill", "close"} {
		if end == "kill" {
			e.Kill()
		} else {
			e.settle()
			e.Close()
			e.Check()
		}
		e.Open()
		v := e.volume("mail")
		if v.Info().ID != id || v.UUID() != uuid || v.Size() != 1<<40+4096 {
			t.Errorf("after %s: %+v, want id %d, uuid %v", end, v.Info(), id, uuid)
		}
		e.expect("mail", 7*ext, ext, 1)
		e.expect("mail", 1<<40, block, 2)
		if !e.volume("v1").ReadOnly() {
			t.Errorf("after %s: the volume is not read-only any more", end)
		}
	}

	// Volumes in use stay, unless they are forced.
	v := e.volume("mail")
	v.Opened()
	wantErr(t, "delete of a volume in use", e.Pool.DeleteVolume(ctx, "mail", false, false), tiering.ErrBusy)
	if err := e.Pool.DeleteVolume(ctx, "mail", true, true); err != nil {
		t.Errorf("dry run: %v", err)
	}
	e.expect("mail", 7*ext, ext, 1)
	if err := e.Pool.DeleteVolume(ctx, "mail", true, false); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"write": v.WriteAt(ctx, []byte("x"), 0, false),
		"trim":  v.Trim(ctx, 0, ext, false),
		"read":  v.ReadAt(ctx, make([]byte, 1), 0),
	} {
		wantErr(t, what+" of a deleted volume", err, tiering.ErrClosed)
	}
	v.Released()
	eventually(t, "the volume to be forgotten", func() bool { return len(e.Pool.VolumeInfos()) == 1 })
	e.settle()

	// Ids are not used again, names are.
	if err := e.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "mail", Size: 8 * ext}, false); err != nil {
		t.Fatal(err)
	}
	if got := e.volume("mail").Info().ID; got != id+2 {
		t.Errorf("id = %d, want %d", got, id+2)
	}
	e.expect("mail", 0, 8*ext, 0)
	if err := e.Pool.DeleteVolume(ctx, "mail", false, false); err != nil {
		t.Fatal(err)
	}
	e.Kill()
	e.Open()
	if err := e.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "mail", Size: 8 * ext}, false); err != nil {
		t.Fatal(err)
	}
	if got := e.volume("mail").Info().ID; got != id+3 {
		t.Errorf("id after a restart = %d, want %d", got, id+3)
	}
	e.settle()
	e.Close()
	e.Check()
}

// TestDeleteIsResumed kills the pool at every commit of a deletion.
func TestDeleteIsResumed(t *testing.T) {
	const big = 3 * 4096 * ext // takes three commits to unmap
	for n := 1; ; n++ {
		e := newEnv(t, model.Config{Slots: [][]int{{12}}, Volumes: []int64{8 * ext, big}}, nil)
		for i := range int64(6) {
			e.write("v1", i*big/6, ext, 1)
		}
		e.flush("v1")
		e.write("v0", 0, ext, 2)
		e.flush("v0")
		met := e.failNth(extentmap.FaultBefore, n)
		err := e.Pool.DeleteVolume(ctx, "v1", false, false)
		if n == 1 {
			wantErr(t, "delete", err, tiering.ErrMetadataFailed)
			e.expect("v1", 0, ext, 1)
		} else if err != nil {
			t.Fatal(err)
		}
		if n > 1 {
			eventually(t, "the failing commit, or the end", func() bool {
				return e.Pool.Info().MetadataError != nil || len(e.Pool.VolumeInfos()) == 1
			})
		}
		e.Kill()
		hit := met()
		e.fault.Store(nil)
		e.Open()
		if n == 1 {
			e.expect("v1", 0, ext, 1)
			continue
		}
		if _, err := e.Pool.Volume("v1"); err == nil {
			t.Errorf("commit %d failed: the deleted volume is back", n)
		}
		eventually(t, "the volume to be forgotten", func() bool { return len(e.Pool.VolumeInfos()) == 1 })
		e.settle()
		e.expect("v0", 0, ext, 2)
		if used, _, _ := e.slots(0); used != 1 {
			t.Errorf("commit %d failed: %d slots are used, want 1", n, used)
		}
		e.Close()
		e.Check()
		if !hit {
			if n < 4 {
				t.Errorf("a deletion makes %d commits: the test shows nothing", n-1)
			}
			return
		}
	}
}

// TestVolumeTablesEqual: every backing carries the volumes that the metadata has,
// as soon as a change is answered.
func TestVolumeTablesEqual(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	check := func(what string, err error, want string) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		for _, b := range e.Pool.Backings() {
			sb := e.superblock(b.Path)
			st, err := e.opt.OpenStore(ctx, tiering.BackingSpec{Path: b.Path}, false, true)
			if err != nil {
				t.Fatal(err)
			}
			vt, err := ondisk.ReadVolumeTable(ctx, st, sb.Layout, sb.PoolID)
			if err != nil {
				t.Fatal(err)
			}
			st.Close()
			var names []string
			for _, v := range vt.Volumes {
				if v.State == ondisk.VolumeActive {
					names = append(names, v.Name)
				}
			}
			if got := strings.Join(names, " "); got != want {
				t.Errorf("%s: %s has the volumes %q, want %q", what, b.Path, got, want)
			}
		}
	}
	check("create", e.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "n", Size: ext}, false), "v0 v1 n")
	check("rename", e.Pool.RenameVolume(ctx, "v0", "w", false), "w v1 n")
	check("delete", e.Pool.DeleteVolume(ctx, "n", false, false), "w v1")
	check("grow", e.Pool.GrowVolume(ctx, "w", 9*ext, false), "w v1")
	e.settle()
	e.Close()
	e.Check()
}

// TestDeleteDuringWrite: a volume is deleted while a write of it waits for a slot
// to be cleaned. The write has an outcome, and nothing is left of it.
func TestDeleteDuringWrite(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{4}}}, nil)
	e.awaitClean(0)
	e.write("v0", 0, 4*ext, 5)
	e.flush("v0")
	hold := make(chan struct{})
	e.stores[path(0, 0)].Inject(faultstore.Fault{Ops: faultstore.Zero, Wait: hold})
	e.trim("v0", 0, ext)
	e.flush("v0") // now a slot is on its way, and held up
	v1 := e.volume("v1")
	m := v1.BeginWrite(0, ext) // in line
	done := make(chan error)
	go func() { done <- m.Run(ctx, bytes.Repeat([]byte{8}, ext), false) }()
	eventually(t, "the cleaner is at work", func() bool { return e.Pool.Tiers()[0].Slots.Cleaning > 0 })
	// Time for the write to get as far as it can, and for the deletion to overtake it
	// if it does: a slow machine makes the test weaker, not wrong.
	time.Sleep(50 * time.Millisecond)
	if err := e.Pool.DeleteVolume(ctx, "v1", true, false); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	close(hold)
	if err := <-done; err != nil {
		wantErr(t, "write", err, tiering.ErrClosed)
	}
	eventually(t, "the space of the volume is given back", func() bool { return e.Pool.Tiers()[0].Slots.Used == 3 })
	e.settle()
	e.Close()
	e.Check()
}

// TestVolumeTablesAfterKill: a change that was committed when the process died is
// brought to the backings by the next start.
func TestVolumeTablesAfterKill(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.failCommits(extentmap.FaultAfter) // committed, and nothing happens after it
	wantErr(t, "create", e.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "n", Size: ext}, false), tiering.ErrMetadataFailed)
	e.fault.Store(nil)
	e.Kill()
	e.Open()
	if _, err := e.Pool.Volume("n"); err != nil {
		t.Fatal(err)
	}
	e.settle()
	e.Close()
	e.Check()
}

// TestUnwrittenTail: what a volume grows by was never written, also in an extent
// that it had in part.
func TestUnwrittenTail(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{4}}, Volumes: []int64{ext + block, 4 * ext}}, nil)
	e.write("v1", 0, 4*ext, 0xEE)
	e.flush("v1")
	e.trim("v1", 0, 4*ext)
	e.flush("v1")
	e.write("v0", 0, ext+block, 1)
	if err := e.Pool.GrowVolume(ctx, "v0", 3*ext, false); err != nil {
		t.Fatal(err)
	}
	e.expect("v0", ext, block, 1)
	e.expect("v0", ext+block, 2*ext-block, 0)
	e.trim("v0", ext, block) // all there was, but not all there is
	e.expect("v0", ext+block, 2*ext-block, 0)
	if got := e.mapped("v0"); got != 2 {
		t.Errorf("%d extents are mapped, want 2", got)
	}
}
