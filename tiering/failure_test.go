package tiering_test

import (
	"strings"
	"syscall"
	"testing"

	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// failedSync returns a pool whose v0 has a committed and an unflushed extent on
// tier 0, whose v1 has one on tier 1 alone, and whose first flush of v0 has failed
// because of a sync of tier 0 that fails once.
func failedSync(t *testing.T) (e *env, before string) {
	t.Helper()
	e = newEnv(t, model.Config{Volumes: []int64{8 * ext, 8 * ext, 8 * ext}}, nil)
	if err := e.Pool.SetPolicy(ctx, "v1", "t1", false); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"v0", "v1", "v2"} {
		e.write(name, 0, ext, 1)
		e.flush(name)
	}
	e.write("v0", 0, block, 2)
	e.write("v0", ext, block, 3)
	e.write("v1", 0, block, 4)
	before = e.Pool.Continuity().String()
	e.stores[path(0, 0)].Inject(faultstore.Fault{Ops: faultstore.Sync, Times: 1, Err: syscall.EIO})
	wantErr(t, "flush that meets the failing sync", e.volume("v0").Flush(ctx), syscall.EIO)
	return e, before
}

// expectFailed checks what holds from the failure on, in this open and in all
// later ones.
func expectFailed(t *testing.T, e *env, reopened bool) {
	t.Helper()
	b := e.Pool.Backings()[0]
	if b.Err == nil || !strings.Contains(b.Err.Error(), "sync: ") || !strings.Contains(b.Err.Error(), "input/output error") {
		t.Errorf("backing error = %v, want the text of the failed sync", b.Err)
	}
	syncs := e.stores[path(0, 0)].Count(faultstore.Sync)
	// Overwrites on the failed backing fail, reads work.
	wantErr(t, "overwrite on the failed backing", e.volume("v2").WriteAt(ctx, []byte("xxxx"), 0, false), tiering.ErrBackingFailed)
	wantErr(t, "FUA write on the failed backing", e.volume("v2").WriteAt(ctx, []byte("xxxx"), 0, true), syscall.EIO)
	e.expect("v2", 0, ext, 1)
	e.expect("v0", 0, block, 2)
	e.expect("v0", block, ext-block, 1)
	e.expect("v0", ext, block, 3)
	// Others go on, and new extents go elsewhere.
	e.write("v1", block, block, 5)
	e.flush("v1")
	if err := e.volume("v1").WriteAt(ctx, []byte("yyyy"), 2*block, true); err != nil {
		t.Errorf("FUA write of another volume: %v", err)
	}
	e.awaitClean(1)
	e.write("v2", 5*ext, block, 6)
	flushV2 := func() {
		t.Helper()
		// Nothing of v2 was unflushed when the backing failed. After a restart nobody
		// knows that.
		if err := e.volume("v2").Flush(ctx); (err != nil) != reopened {
			t.Errorf("flush of v2, which has flushed data there = %v, want an error %v", err, reopened)
		}
	}
	flushV2()
	if got := e.tierOf("v2", 5*ext); got != "t1" {
		t.Errorf("a new extent is on tier %q, want t1", got)
	}
	e.trim("v2", 5*ext, ext)
	flushV2()
	if n := e.stores[path(0, 0)].Count(faultstore.Sync); n != syncs {
		t.Errorf("the failed backing was synced %d times more", n-syncs)
	}
	for _, p := range []string{path(1, 0), path(2, 0)} {
		for _, m := range e.superblock(p).Members {
			want := ondisk.MemberOK
			if m.ID == b.ID {
				want = ondisk.MemberFailed
			}
			if m.State != want {
				t.Errorf("superblock of %s: member %d is %v, want %v", p, m.ID, m.State, want)
			}
		}
	}
}

func TestFailedSyncIsForEver(t *testing.T) {
	e, before := failedSync(t)
	if now := e.Pool.Continuity().String(); now == before {
		t.Error("the continuity id is still the same")
	}
	for range 3 {
		wantErr(t, "later flush", e.volume("v0").Flush(ctx), tiering.ErrBackingFailed)
	}
	expectFailed(t, e, false)
	wantErr(t, "flush after others went on", e.volume("v0").Flush(ctx), tiering.ErrBackingFailed)
	if info := e.volume("v0").Info(); info.Err == nil {
		t.Error("the volume does not say that its flushes fail")
	}
	if n := e.stores[path(0, 0)].Count(faultstore.Sync); n == 0 {
		t.Error("no sync was counted: the test shows nothing")
	}
}

func TestFailedBackingStaysFailed(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(e *env)
	}{
		{"kill", func(e *env) { e.Kill() }},
		{"close", func(e *env) {
			if err := e.closeBadly(); err == nil {
				t.Error("Close of a pool with a failed flush = nil")
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, _ := failedSync(t)
			after := e.Pool.Continuity()
			tt.end(e)
			for _, m := range e.state().Members {
				want := extentmap.MemberOK
				if m.Path == path(0, 0) {
					want = extentmap.MemberFailed
				}
				if m.State != want || (m.Error != "") != (want == extentmap.MemberFailed) {
					t.Errorf("metadata has %s as %v (%q), want %v", m.Path, m.State, m.Error, want)
				}
			}
			e.Open() // the store would sync now, and must not be asked
			if got := e.Pool.Continuity(); got != after {
				t.Errorf("continuity id = %v after the open, want %v", got, after)
			}
			expectFailed(t, e, true)
			if n := e.stores[path(0, 0)].Count(faultstore.Sync); n != 0 {
				t.Errorf("the failed backing was synced %d times after the open", n)
			}
			_ = e.closeBadly() // it has volumes that cannot be flushed
			e.Open()
			expectFailed(t, e, true)
		})
	}
}

// TestFailedSyncOfMoveTarget: a move whose target cannot be synced leaves its
// extent where its flushed bytes are, also over restarts.
func TestFailedSyncOfMoveTarget(t *testing.T) {
	for _, nth := range []int{1, 2} { // the copy's own sync; that of the round after the switch
		e := newEnv(t, model.Config{}, nil)
		if err := e.Pool.SetPolicy(ctx, "v0", "t1", false); err != nil {
			t.Fatal(err)
		}
		e.write("v0", 0, ext, 7)
		e.flush("v0")
		e.stores[path(0, 0)].Inject(faultstore.Fault{Ops: faultstore.Sync, Nth: nth, Times: 1, Err: syscall.EIO})
		if moved, err := e.Pool.MoveExtent(ctx, "v0", 0, 0); err == nil {
			t.Errorf("sync %d fails: MoveExtent = %v, nil, want an error", nth, moved)
		}
		e.expect("v0", 0, ext, 7)
		for range 2 {
			e.Kill()
			if err := e.tryOpen(nil); err != nil {
				t.Fatalf("sync %d fails: open: %v", nth, err)
			}
			e.expect("v0", 0, ext, 7)
		}
		e.Cut(1, 0)
		e.Open()
		e.expect("v0", 0, ext, 7)
		if got := e.tierOf("v0", 0); got != "t1" {
			t.Errorf("sync %d fails: extent is on tier %q, want t1", nth, got)
		}
		e.write("v0", 0, ext, 8)
		var want error
		if nth == 2 { // it had switched: clients may have written to the target
			want = tiering.ErrBackingFailed
		}
		wantErr(t, "flush", e.volume("v0").Flush(ctx), want)
	}
}

// TestSourceFailsBehindAMove: an extent that leaves a backing does not take with it
// that the flushes of its volume fail, when a sync of the backing fails after the
// switch. What clients write at the target is kept.
func TestSourceFailsBehindAMove(t *testing.T) {
	for _, how := range []string{"close", "kill", "kill before the commit"} {
		t.Run(how, func(t *testing.T) {
			e := newEnv(t, model.Config{}, nil)
			e.write("v0", 0, ext, 1)
			e.write("v1", 0, ext, 1)
			e.flush("v0")
			e.flush("v1")
			e.write("v0", 0, block, 2) // perhaps lost
			e.write("v1", 0, block, 2)
			gate := make(chan struct{})
			e.stores[path(1, 0)].Inject(faultstore.Fault{Ops: faultstore.Sync, Nth: 2, Times: 1, Wait: gate}) // of the round after the switch
			moved := make(chan error, 1)
			go func() {
				_, err := e.Pool.MoveExtent(ctx, "v0", 0, 1)
				moved <- err
			}()
			eventually(t, "the switch", func() bool { return e.tierOf("v0", 0) == "t1" })
			e.write("v0", block, block, 3)
			e.stores[path(0, 0)].Inject(faultstore.Fault{Ops: faultstore.Sync, Times: 1, Err: syscall.EIO})
			wantErr(t, "flush of another volume", e.volume("v1").Flush(ctx), syscall.EIO)
			if how == "kill before the commit" {
				e.failCommits(extentmap.FaultBefore)
			}
			close(gate)
			if err := <-moved; err == nil {
				t.Error("the flush behind the move succeeded")
			}
			for range 2 {
				if how == "close" {
					_ = e.closeBadly()
				} else {
					e.Kill()
				}
				e.fault.Store(nil)
				e.Open()
				wantErr(t, "flush after a restart", e.volume("v0").Flush(ctx), tiering.ErrBackingFailed)
				if got := e.tierOf("v0", 0); got != "t1" {
					t.Errorf("the extent is on tier %q, want t1", got)
				}
				e.expect("v0", block, block, 3)
				e.expect("v0", 2*block, ext-2*block, 1)
			}
			_ = e.closeBadly()
			if _, err := tiering.Repair(ctx, e.opt, tiering.RepairOptions{ClearFailed: []string{path(0, 0)}}); err != nil {
				t.Fatal(err)
			}
			e.Open()
			e.flush("v0")
			e.flush("v1")
		})
	}
}

// TestFailureWhileMetadataFailed: the superblocks of the others tell of a failure
// that the metadata cannot take any more.
func TestFailureWhileMetadataFailed(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	e.flush("v0")
	e.failCommits(extentmap.FaultBefore)
	e.write("v0", 0, block, 2)
	e.stores[path(0, 0)].Inject(faultstore.Fault{Ops: faultstore.Sync, Times: 1, Err: syscall.EIO})
	wantErr(t, "flush", e.volume("v0").Flush(ctx), syscall.EIO)
	for _, m := range e.superblock(path(2, 0)).Members {
		if m.ID == 1 && m.State != ondisk.MemberFailed {
			t.Errorf("superblock of another backing has the failed one as %v", m.State)
		}
	}
	e.fault.Store(nil)
	e.Kill()
	e.Open()
	wantErr(t, "overwrite after the open", e.volume("v0").WriteAt(ctx, []byte("x"), 0, false), tiering.ErrBackingFailed)
	if err := e.Pool.Backings()[0].Err; err == nil {
		t.Error("the failed backing serves after a restart")
	}
}

// TestVolumeTableFails: a change of a volume that is committed is in force, even
// if a backing fails while its copy of the volume table is written.
func TestVolumeTableFails(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	layout := e.superblock(path(0, 0)).Layout
	e.stores[path(0, 0)].Inject(faultstore.Fault{
		Ops: faultstore.Write, From: layout.VolumeTableOffset[0], To: layout.SlotTableOffset, Times: 1, Err: syscall.EIO,
	})
	if err := e.Pool.DeleteVolume(ctx, "v1", false, false); err != nil {
		t.Errorf("delete: %v", err)
	}
	if _, err := e.Pool.Volume("v1"); err == nil {
		t.Error("the volume is still served, and its deletion is durable")
	}
	if e.Pool.Backings()[0].Err == nil {
		t.Error("a backing that did not take the volume table serves on")
	}
	if err := e.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "v1", Size: ext}, false); err != nil {
		t.Errorf("create under the same name: %v", err)
	}
	e.write("v1", 0, block, 9)
	e.flush("v1")
	e.Kill()
	e.Open()
	e.expect("v1", 0, block, 9)
	if got := e.volume("v1").Size(); got != ext {
		t.Errorf("size = %d, want %d", got, int64(ext))
	}
}

// TestSuperblockSyncFails: a superblock is synced, so that an error there may be
// the only report of lost data, and fails the backing too.
func TestSuperblockSyncFails(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	if err := e.Pool.SetPolicy(ctx, "v1", "t1", false); err != nil {
		t.Fatal(err)
	}
	e.write("v0", 0, ext, 1)
	e.write("v1", 0, ext, 1)
	e.flush("v0")
	e.flush("v1")
	e.write("v1", 0, block, 2)
	e.write("v0", 0, block, 2)
	// The failure of tier 0 is recorded on tier 1, whose sync fails over v1's bytes.
	for i := range 2 {
		e.stores[path(i, 0)].Inject(faultstore.Fault{Ops: faultstore.Sync, Times: 1, Err: syscall.EIO})
	}
	wantErr(t, "flush of v0", e.volume("v0").Flush(ctx), syscall.EIO)
	wantErr(t, "flush of v1, whose error was met by a superblock", e.volume("v1").Flush(ctx), syscall.EIO)
}

// TestZeroFUAAfterTrim: zeroes written with FUA over a trim that is not committed
// are durable with it.
func TestZeroFUAAfterTrim(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	e.flush("v0")
	e.trim("v0", 0, ext)
	if err := e.volume("v0").WriteAt(ctx, make([]byte, block), 0, true); err != nil {
		t.Fatal(err)
	}
	e.Cut(1, 0)
	e.Open()
	e.expect("v0", 0, block, 0)
}
