package model

import (
	"context"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"tierd/pkg/backing"
	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// newFault returns the hook of one open: the commit that is to fail does, and any
// other after it shows that the metadata is still used.
func (r *CrashRun) newFault() tiering.MetadataFault {
	count, failed := 0, false
	after := r.rnd.IntN(2) == 0
	return func(p extentmap.FaultPoint, n uint64) error {
		if failed && p == extentmap.FaultBefore {
			r.violation("commit %d was tried after one had failed", n)
		}
		if (p == extentmap.FaultAfter) != after {
			return nil
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.serving || r.commitAt == 0 || failed {
			return nil
		}
		if count++; count < r.commitAt {
			return nil
		}
		failed, r.failed, r.commitAt = true, true, 0
		r.Counts.Failures++
		return syscall.EIO
	}
}

// armFault makes a sync or a commit of the next epoch fail, if there are as many.
func (r *CrashRun) armFault() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rnd.IntN(4) == 0 {
		r.commitAt = 1 + r.rnd.IntN(8)
		return
	}
	paths := make([]string, 0, len(r.w.paths))
	for p := range r.w.paths {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	r.faultAt[paths[r.rnd.IntN(len(paths))]] = 1 + r.rnd.IntN(12)
}

// setServing lets faults strike, or takes back those that have not.
func (r *CrashRun) setServing(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.serving = on; !on {
		r.commitAt = 0
		clear(r.faultAt)
	}
}

// anyFailure reports whether a fault has struck.
func (r *CrashRun) anyFailure() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed || len(r.deaf) > 0
}

// wrap is what stands between the pool and a store: it may be slow, write whole
// blocks alone, and fail to sync.
func (r *CrashRun) wrap(path string, s backing.Store) backing.Store {
	d := &crashDisk{Store: s, r: r, path: path, blocks: path == "/t1/b0"}
	if size, err := extent.NewSize(crashExtent); err == nil {
		d.layout, _ = ondisk.NewLayout(s.Size(), size)
	}
	return d
}

type crashDisk struct {
	backing.Store
	r      *CrashRun
	path   string
	blocks bool // writes whole blocks, as direct I/O does
	layout ondisk.Layout
}

func (d *crashDisk) dawdle() {
	if d.r.prof.Dawdle > 0 && rand.IntN(4) == 0 {
		time.Sleep(rand.N(d.r.prof.Dawdle))
	}
}

// WriteAt implements backing.Store. A part of a block is written by reading the
// block, changing it, and writing it.
func (d *crashDisk) WriteAt(ctx context.Context, p []byte, off int64) error {
	d.dawdle()
	if d.r.prof.Hot && off >= d.layout.SlotTableOffset && off < d.layout.DataOffset && rand.IntN(8) == 0 {
		d.r.w.soon(rand.Int64N(4))
	}
	from, to := off/block*block, (off+int64(len(p))+block-1)/block*block
	if !d.blocks || to-from == int64(len(p)) || to > d.Size() {
		return d.Store.WriteAt(ctx, p, off)
	}
	whole := make([]byte, to-from)
	if err := d.Store.ReadAt(ctx, whole, from); err != nil {
		return err
	}
	d.dawdle()
	copy(whole[off-from:], p)
	return d.Store.WriteAt(ctx, whole, from)
}

// Zero implements backing.Store.
func (d *crashDisk) Zero(ctx context.Context, off, n int64) error {
	d.dawdle()
	return d.Store.Zero(ctx, off, n)
}

// Discard implements backing.Store.
func (d *crashDisk) Discard(ctx context.Context, off, n int64) error {
	d.dawdle()
	return d.Store.Discard(ctx, off, n)
}

// Sync implements backing.Store. Once it has failed, the kernel holds for clean what
// it could not write: later calls succeed, and make nothing durable.
func (d *crashDisk) Sync(ctx context.Context) error {
	d.dawdle()
	r := d.r
	r.mu.Lock()
	_, deaf := r.deaf[d.path]
	if n := r.faultAt[d.path]; n > 0 && !deaf && r.serving {
		if r.faultAt[d.path]--; n == 1 {
			r.deaf[d.path] = r.tick()
			r.Counts.Failures++
			r.mu.Unlock()
			return syscall.EIO
		}
	}
	r.mu.Unlock()
	if deaf {
		return nil
	}
	return d.Store.Sync(ctx)
}
