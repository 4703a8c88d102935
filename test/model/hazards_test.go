package model

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tierd/pkg/backing"
	"tierd/pkg/backing/crashstore"
	"tierd/pkg/backing/faultstore"
	"tierd/tiering"
	"tierd/tiering/extentmap"
)

// The tests in this file are named after the hazards that they show to be closed:
// crashes over several boots.

const hazardExtent = 64 << 10

// hazardWorld has two volumes of eight extents; nothing happens in it by itself. opts,
// if not nil, changes the options of each open.
func hazardWorld(t *testing.T, opts func(*tiering.Options)) *World {
	t.Helper()
	w := NewWorld(t, Config{ExtentSize: hazardExtent, Slots: [][]int{{6}, {8}, {10}}, Volumes: []int64{8 * hazardExtent, 8 * hazardExtent}},
		func(o *tiering.Options) {
			o.RoundInterval = time.Hour
			if opts != nil {
				opts(o)
			}
		})
	// First writes go to the first tier.
	for deadline := time.Now().Add(time.Minute); w.Pool.Tiers()[0].Slots.Clean < 6; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no slots are clean")
		}
	}
	return w
}

func (w *World) volume(name string) *tiering.Volume {
	w.t.Helper()
	v, err := w.Pool.Volume(name)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// put writes one extent full of a byte.
func (w *World) put(volume string, i int64, fill byte, fua bool) {
	w.t.Helper()
	if err := w.volume(volume).WriteAt(context.Background(), bytes.Repeat([]byte{fill}, hazardExtent), i*hazardExtent, fua); err != nil {
		w.t.Fatal(err)
	}
}

func (w *World) flush(volume string) {
	w.t.Helper()
	if err := w.volume(volume).Flush(context.Background()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *World) trim(volume string, i int64) {
	w.t.Helper()
	if err := w.volume(volume).Trim(context.Background(), i*hazardExtent, hazardExtent, false); err != nil {
		w.t.Fatal(err)
	}
}

// get returns what an extent is full of.
func (w *World) get(volume string, i int64) byte {
	w.t.Helper()
	p := make([]byte, hazardExtent)
	if err := w.volume(volume).ReadAt(context.Background(), p, i*hazardExtent); err != nil {
		w.t.Fatal(err)
	}
	for at, b := range p {
		if b != p[0] {
			w.t.Fatalf("%s extent %d is of %d and, at %d, of %d", volume, i, p[0], at, b)
		}
	}
	return p[0]
}

func (w *World) want(volume string, i int64, fill byte) {
	w.t.Helper()
	if got := w.get(volume, i); got != fill {
		w.t.Errorf("%s extent %d reads %d, want %d", volume, i, got, fill)
	}
}

func (w *World) awaitHealed() {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); w.Pool.Info().Healed < 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatal("the slot tables are not healed")
		}
	}
}

// TestH1LogOfADeadBoot: boot A maps an extent, and all of that reaches the disk but
// the commit; boot B passes it by, serves and is killed. The next open is of the same
// boot as B, and must not take A's records for B's.
func TestH1LogOfADeadBoot(t *testing.T) {
	w := hazardWorld(t, nil)
	w.put("v0", 0, 1, true)
	w.trim("v0", 0)          // staged in boot A
	w.put("v0", 1, 2, false) // likewise
	continuity := w.Pool.Continuity()
	w.Cut(1, 1)
	w.Open()
	w.want("v0", 0, 1)
	w.want("v0", 1, 0)
	if w.Pool.Continuity() == continuity {
		t.Error("the continuity id is the same, though answered data is lost")
	}
	w.put("v1", 0, 3, false)
	w.Kill()
	w.Open()
	w.want("v0", 0, 1)
	w.want("v0", 1, 0)
	w.want("v1", 0, 3)
	w.Kill()
	w.Check()
}

// TestH3EmptyDirtySet: a daemon that starts after a kill has no dirty marks, and
// answers a flush at once. What the dead one had answered is durable all the same.
func TestH3EmptyDirtySet(t *testing.T) {
	w := hazardWorld(t, nil)
	w.put("v0", 0, 1, true)
	w.put("v0", 0, 2, false) // nothing is staged, so that no replay syncs anything
	w.Kill()
	var served atomic.Bool
	w.wrap = func(_ string, s backing.Store) backing.Store { return syncless{s, &served} }
	w.Open()
	served.Store(true) // what somebody else syncs from now on, such as the healer, does not count
	w.flush("v0")
	w.Cut(1, 0)
	w.Open()
	w.want("v0", 0, 2)
}

// syncless is a store whose syncs do nothing once a flag is set.
type syncless struct {
	backing.Store
	set *atomic.Bool
}

func (s syncless) Sync(ctx context.Context) error {
	if s.set.Load() {
		return nil
	}
	return s.Store.Sync(ctx)
}

// TestH5FUAEatsTheError: a failed sync for FUA tells of writes that were not its own.
// It fails the backing, and with that the flush of those.
func TestH5FUAEatsTheError(t *testing.T) {
	w := hazardWorld(t, nil)
	w.put("v0", 0, 1, true)
	w.put("v1", 0, 2, true) // in the same backing
	w.Close()
	var disk *faultstore.Store
	w.wrap = func(path string, s backing.Store) backing.Store {
		f := faultstore.New(s, 1)
		if path == "/t0/b0" {
			disk = f
		}
		return f
	}
	w.Open()
	w.put("v0", 0, 3, false)
	disk.Inject(faultstore.Fault{Ops: faultstore.Sync, Times: 1, Err: syscall.EIO})
	p := bytes.Repeat([]byte{4}, sector)
	if err := w.volume("v1").WriteAt(context.Background(), p, 0, true); !errors.Is(err, tiering.ErrBackingFailed) {
		t.Errorf("FUA whose sync fails = %v, want %v", err, tiering.ErrBackingFailed)
	}
	flush := func(when string) {
		t.Helper()
		if err := w.volume("v0").Flush(context.Background()); !errors.Is(err, tiering.ErrBackingFailed) {
			t.Errorf("flush %s = %v, want %v", when, err, tiering.ErrBackingFailed)
		}
	}
	flush("of another volume")
	flush("once more")
	w.Kill()
	w.Open()
	flush("after a restart")
}

// TestH14TableBehindTheMap: a tombstone reaches the disk and its commit does not. What
// is flushed later without a touch of the table must not be lost with the map.
func TestH14TableBehindTheMap(t *testing.T) {
	var fail atomic.Bool
	w := hazardWorld(t, func(o *tiering.Options) {
		o.Fault = func(p extentmap.FaultPoint, _ uint64) error {
			if fail.Load() && p == extentmap.FaultBefore {
				return syscall.EIO
			}
			return nil
		}
	})
	w.put("v0", 0, 1, true)
	w.trim("v0", 0)
	fail.Store(true)
	if err := w.volume("v0").Flush(context.Background()); err == nil {
		t.Fatal("a flush whose commit fails succeeds")
	}
	fail.Store(false)
	w.Cut(1, 1)
	w.Open()
	w.want("v0", 0, 1)
	w.awaitHealed()
	w.put("v0", 0, 2, false)
	w.flush("v0") // the mapping is committed: no entry is written
	w.Cut(2, 0)
	w.rebuild()
	w.Open()
	w.want("v0", 0, 2)
}

// rebuild takes the metadata of a closed World away and makes them anew.
func (w *World) rebuild() {
	w.t.Helper()
	in := w.nowInstant()
	in.files = nil
	end := w.crashed(in, kill, crashstore.Cut{})
	w.dir = end.dir
	o := tiering.RebuildOptions{Metadata: w.metadata(), OpenStore: w.openStore}
	for p := range w.paths {
		o.Backings = append(o.Backings, tiering.BackingSpec{Path: p})
	}
	if _, err := tiering.Rebuild(context.Background(), o); err != nil {
		w.t.Fatalf("rebuild: %v", err)
	}
}

// duringOpen crashes w, which is closed, at every event of its next open, and calls
// judge with each.
func (w *World) duringOpen(end ending, judge func(*World)) {
	w.t.Helper()
	start := w.nowInstant()
	probe := w.crashed(start, kill, crashstore.Cut{})
	from := probe.rec.Now()
	probe.Open()
	events := probe.rec.Now() - from
	probe.drop()
	probe = w.crashed(start, kill, crashstore.Cut{})
	var at []int64
	for e := range events {
		at = append(at, e)
	}
	probe.armInstants(0, at...)
	probe.Open()
	probe.Kill()
	taken := probe.takeInstants()
	if len(taken) < 10 {
		w.t.Errorf("an open has %d moments to crash at: the test shows nothing", len(taken))
	}
	for i, in := range taken {
		c := probe.crashed(in, end, crashstore.Cut{Seed: int64(i), Keep: 0.5})
		judge(c)
		c.drop()
	}
	probe.drop()
}

// TestH15CutWhileTheIncarnationRises: whatever members have heard of the new
// incarnation, the pool opens.
func TestH15CutWhileTheIncarnationRises(t *testing.T) {
	w := hazardWorld(t, nil)
	w.put("v0", 0, 1, true)
	w.put("v1", 0, 2, true)
	w.Kill()
	w.duringOpen(cut, func(c *World) {
		c.Open()
		c.want("v0", 0, 1)
		c.want("v1", 0, 2)
	})
}

// TestH15MemberComesBack: a member that was away during a degraded open is of an old
// incarnation, and is welcome.
func TestH15MemberComesBack(t *testing.T) {
	away := false
	w := hazardWorld(t, func(o *tiering.Options) {
		inner := o.OpenStore
		o.Degraded = away
		o.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
			if away && spec.Path == "/t0/b0" {
				return nil, &fs.PathError{Op: "open", Path: spec.Path, Err: fs.ErrNotExist}
			}
			return inner(ctx, spec, create, readOnly)
		}
	})
	w.put("v0", 0, 1, true) // on the member that goes
	w.Close()
	away = true
	w.Open()
	p := make([]byte, sector)
	if err := w.volume("v0").ReadAt(context.Background(), p, 0); !errors.Is(err, tiering.ErrBackingMissing) {
		t.Errorf("read of a missing backing = %v, want %v", err, tiering.ErrBackingMissing)
	}
	w.put("v1", 0, 2, true)
	w.Kill()
	away = false
	w.Open()
	w.want("v0", 0, 1)
	w.want("v1", 0, 2)
	w.awaitHealed()
	w.Close()
	w.Check()
}

// TestH27DeviceAttachedAnew: the boot is the same, and what was in the page cache is
// gone with the device: the log is void.
func TestH27DeviceAttachedAnew(t *testing.T) {
	for _, keep := range []float64{0, 0.5, 1} {
		w := hazardWorld(t, nil)
		w.put("v0", 0, 1, true)
		w.put("v0", 1, 2, false)
		w.trim("v0", 0)
		continuity := w.Pool.Continuity()
		w.Reattach(1, keep)
		w.Open()
		w.want("v0", 0, 1)
		w.want("v0", 1, 0)
		if w.Pool.Continuity() == continuity {
			t.Error("the continuity id is the same, though answered data is lost")
		}
		w.put("v0", 2, 3, false)
		w.Kill()
		w.Open()
		w.want("v0", 0, 1)
		w.want("v0", 1, 0)
		w.want("v0", 2, 3)
	}
}

// TestH30SecondKillInRecovery kills the recovery at every one of its events, and the
// recovery after that at once: a replay can be done any number of times.
func TestH30SecondKillInRecovery(t *testing.T) {
	w := hazardWorld(t, nil)
	w.put("v0", 0, 1, true)
	w.put("v0", 1, 2, true)
	w.trim("v0", 0)
	w.put("v0", 1, 3, false)
	w.put("v0", 2, 4, false)
	w.Relocate("v0", hazardExtent, 1)
	w.put("v1", 0, 5, false)
	w.trim("v1", 0)
	w.put("v1", 0, 6, false)
	continuity := w.Pool.Continuity()
	w.Kill()
	w.duringOpen(kill, func(c *World) {
		for range 2 {
			c.Open()
			c.want("v0", 0, 0)
			c.want("v0", 1, 3)
			c.want("v0", 2, 4)
			c.want("v1", 0, 6)
			if c.Pool.Continuity() != continuity {
				t.Error("the continuity id is another one, though nothing is lost")
			}
			c.Kill()
		}
	})
}
