package tiering_test

import (
	"syscall"
	"testing"
	"time"

	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/extentmap"
)

// TestFailedCommit: after one failed commit nothing is written to the metadata any
// more. What needs no new mapping goes on, and what was answered survives a
// restart, since the staged log has it.
func TestFailedCommit(t *testing.T) {
	for _, at := range []struct {
		name  string
		point extentmap.FaultPoint
	}{{"before", extentmap.FaultBefore}, {"after", extentmap.FaultAfter}} {
		for _, end := range []string{"kill", "close"} {
			t.Run(at.name+"/"+end, func(t *testing.T) {
				e := newEnv(t, model.Config{}, nil)
				e.write("v0", 0, 2*ext, 1)
				e.flush("v0")
				e.write("v1", 0, ext, 2)
				e.flush("v1")

				e.write("v0", 2*ext, ext, 3) // staged
				e.trim("v0", ext, ext)       // staged
				e.failCommits(at.point)
				wantErr(t, "flush with staged entries", e.volume("v0").Flush(ctx), tiering.ErrMetadataFailed)
				e.fault.Store(nil) // the disk is well again, and must not be trusted
				for range 2 {
					wantErr(t, "later flush", e.volume("v0").Flush(ctx), tiering.ErrMetadataFailed)
				}
				wantErr(t, "first write", e.volume("v0").WriteAt(ctx, []byte("zzzz"), 5*ext, false), tiering.ErrMetadataFailed)
				wantErr(t, "first write of another volume", e.volume("v1").WriteAt(ctx, []byte("zzzz"), 5*ext, false), tiering.ErrMetadataFailed)
				wantErr(t, "trim", e.volume("v1").Trim(ctx, 0, ext, false), tiering.ErrMetadataFailed)
				wantErr(t, "reserving zeroes", e.volume("v1").WriteZeroes(ctx, 6*ext, ext, true, false), tiering.ErrMetadataFailed)
				if moved, err := e.Pool.MoveExtent(ctx, "v1", 0, 2); err == nil || moved {
					t.Errorf("MoveExtent = %v, %v, want an error", moved, err)
				}
				wantErr(t, "create", e.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "n", Size: ext}, false), tiering.ErrMetadataFailed)
				for _, name := range []string{"v0", "v1"} {
					e.expect(name, 5*ext, ext, 0)
					if got := e.tierOf(name, 5*ext); got != "" {
						t.Errorf("an extent of %s was published on tier %s by a write that failed", name, got)
					}
				}
				if err := e.Pool.Info().MetadataError; err == nil {
					t.Error("the pool does not say that its metadata has failed")
				}
				// Committed extents go on.
				e.write("v1", block, block, 4)
				e.flush("v1")
				if err := e.volume("v1").WriteAt(ctx, []byte{5}, 0, true); err != nil {
					t.Errorf("FUA overwrite of a committed extent: %v", err)
				}
				e.write("v0", block, block, 4)
				if err := e.volume("v0").WriteAt(ctx, []byte{5}, 0, true); err != nil {
					t.Errorf("FUA overwrite of a committed extent of a volume with staged ones: %v", err)
				}
				wantErr(t, "FUA overwrite of a staged extent", e.volume("v0").WriteAt(ctx, []byte{3}, 2*ext, true), tiering.ErrMetadataFailed)
				cont := e.Pool.Continuity()

				if end == "kill" {
					e.Kill()
				} else if err := e.closeBadly(); err == nil {
					t.Error("Close = nil, want an error")
				}
				e.Open()
				check := func(when string) {
					t.Helper()
					e.expect("v0", 0, 1, 5)
					e.expect("v0", block, block, 4)
					e.expect("v0", ext, ext, 0)
					e.expect("v0", 2*ext, ext, 3)
					e.expect("v1", 0, 1, 5)
					e.expect("v1", block, block, 4)
					e.expect("v1", 2*block, block, 2)
					if got := e.Pool.Continuity(); got != cont {
						t.Errorf("%s: continuity id = %v, want %v: nothing was lost", when, got, cont)
					}
				}
				check("restart")
				e.flush("v0")
				e.settle()
				e.Close()
				e.Check()
				e.Open()
				check("second restart")
			})
		}
	}
}

// TestFailedCommitThenCut: what was never flushed may be lost by a cut, what was
// committed may not, and nobody sees a slot of somebody else.
func TestFailedCommitThenCut(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	e.flush("v0")
	e.write("v0", ext, ext, 2)
	e.failCommits(extentmap.FaultBefore)
	wantErr(t, "flush", e.volume("v0").Flush(ctx), syscall.EIO)
	e.fault.Store(nil)
	cont := e.Pool.Continuity()
	e.Cut(1, 0)
	e.Open()
	e.expect("v0", 0, ext, 1)
	e.expect("v0", ext, ext, 0)
	if e.Pool.Continuity() == cont {
		t.Error("the continuity id is the same after a power loss")
	}
}

// TestNoSpaceAfterFailedCommit: nobody waits for slots that a commit would have
// freed when there are no commits any more.
func TestNoSpaceAfterFailedCommit(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{2}, {2}}}, nil)
	e.write("v0", 0, 4*ext, 1)
	e.flush("v0")
	e.settle()
	e.trim("v0", 0, ext)
	e.failCommits(extentmap.FaultBefore)
	start := time.Now()
	for range 2 { // the first one asks for the round that fails
		if err := e.volume("v1").WriteAt(ctx, []byte("x"), 0, false); err == nil {
			t.Error("a first write without metadata = nil")
		}
		if _, err := e.Pool.MoveExtent(ctx, "v0", 2*ext, 0); err == nil {
			t.Error("a move without metadata = nil")
		}
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("they waited for %v", took)
	}
	e.expect("v1", 0, ext, 0)
}
