package crash

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"tierd/tiering"
)

// run is one run of a row: operations on the open pool of a machine, noted in its
// history.
type run struct {
	*machine
	rnd *rand.Rand

	mu   sync.Mutex
	errs []error
}

func (r *run) failed(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

func (r *run) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.errs...)
}

// note makes an operation and notes it. One that fails for want of space may have
// been made in part.
func (r *run) note(name string, o op, do func() error) {
	o.begin = r.fs.Next()
	err := do()
	if err == nil {
		o.end = r.fs.Next()
	} else if !errors.Is(err, tiering.ErrNoSpace) {
		r.failed("%s: %v: %v", name, o, err)
	}
	r.hist.add(name, o)
}

// on calls fn with a volume.
func (r *run) on(name string, fn func(*tiering.Volume) error) func() error {
	return func() error {
		v, err := r.pool.Volume(name)
		if err != nil {
			return err
		}
		return fn(v)
	}
}

func (r *run) write(name string, off, n int64, fua bool) {
	c := newContent()
	r.note(name, op{kind: opWrite, off: off, n: n, content: c, fua: fua}, r.on(name, func(v *tiering.Volume) error {
		return v.WriteAt(ctx, c.bytes(off, n), off, fua)
	}))
}

// trim trims whole extents.
func (r *run) trim(name string, off, n int64, fua bool) {
	r.note(name, op{kind: opWrite, off: off, n: n, fua: fua}, r.on(name, func(v *tiering.Volume) error {
		return v.Trim(ctx, off, n, fua)
	}))
}

func (r *run) zero(name string, off, n int64, noHole, fua bool) {
	r.note(name, op{kind: opWrite, off: off, n: n, fua: fua}, r.on(name, func(v *tiering.Volume) error {
		return v.WriteZeroes(ctx, off, n, noHole, fua)
	}))
}

func (r *run) flush(name string) {
	r.note(name, op{kind: opFlush}, r.on(name, func(v *tiering.Volume) error { return v.Flush(ctx) }))
}

func (r *run) create(name string, size int64) {
	r.note(name, op{kind: opCreate, n: size}, func() error {
		return r.pool.CreateVolume(ctx, tiering.VolumeSpec{Name: name, Size: size}, false)
	})
}

func (r *run) grow(name string, size int64) {
	r.note(name, op{kind: opGrow, n: size}, func() error { return r.pool.GrowVolume(ctx, name, size, false) })
}

func (r *run) delete(name string) {
	r.note(name, op{kind: opDelete}, func() error { return r.pool.DeleteVolume(ctx, name, false, false) })
}

// move moves an extent to a tier. That it cannot be moved now is no failure.
func (r *run) move(name string, off int64, to int) {
	_, _ = r.pool.MoveExtent(ctx, name, off, to)
}

// add makes a disk a backing of the pool. A backing goes by its path in the history,
// as no volume can.
func (r *run) add(o tiering.AddOptions) {
	r.note(o.Backing.Path, op{kind: opCreate}, func() error {
		_, err := r.pool.AddBacking(ctx, o)
		return err
	})
}

func (r *run) drain(at string, a tiering.DrainAction) {
	if err := r.pool.Drain(ctx, at, a, nil, false); err != nil {
		r.failed("drain %s: %s: %v", at, a, err)
	}
}

// drained waits until a backing is empty, or there is no room for what is left.
func (r *run) drained(at string) (empty bool) {
	err := r.await("the drain of "+at, func() bool {
		for _, b := range r.pool.Backings() {
			if b.Path == at {
				empty = b.Drain.State == tiering.DrainEmpty
				return empty || b.Drain.State == tiering.DrainStuck
			}
		}
		return true
	})
	if err != nil {
		r.failed("%v", err)
	}
	return empty
}

// size returns the size of a volume of the shape.
func (r *run) size(name string) int64 {
	v, err := r.pool.Volume(name)
	if err != nil {
		r.failed("%s: %v", name, err)
		return block
	}
	return v.Size()
}

// span returns a random range of whole sectors of a volume: within an extent, over
// an edge, or of several blocks.
func (r *run) span(name string) (off, n int64) {
	size, ext := r.size(name), r.shape.extent
	off = r.rnd.Int64N(size/sector) * sector
	n = sector * (1 + r.rnd.Int64N(20))
	switch r.rnd.IntN(3) {
	case 0:
		off = max(off/ext*ext-2*sector, 0)
	case 1:
		off, n = off/block*block, block*(1+r.rnd.Int64N(3))
	}
	return off, min(n, size-off)
}

// extents returns a random range of whole extents, or of what there is of the last.
func (r *run) extents(name string) (off, n int64) {
	size, ext := r.size(name), r.shape.extent
	off = r.rnd.Int64N((size+ext-1)/ext) * ext
	return off, min(ext*(1+r.rnd.Int64N(2)), size-off)
}

func (r *run) oneIn(n int) bool { return r.rnd.IntN(n) == 0 }

// split returns a run on the same machine with random numbers of its own, for
// another goroutine.
func (r *run) split() *run {
	return &run{machine: r.machine, rnd: rand.New(rand.NewPCG(r.rnd.Uint64(), 1))}
}

// beside runs operations at the same time.
func (r *run) beside(fns ...func(*run)) {
	var wg sync.WaitGroup
	var runs []*run
	for _, fn := range fns {
		s := r.split()
		runs = append(runs, s)
		wg.Go(func() { fn(s) })
	}
	wg.Wait()
	for _, s := range runs {
		r.errs = append(r.errs, s.errs...)
	}
}
