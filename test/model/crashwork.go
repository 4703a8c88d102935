package model

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"tierd/tiering"
)

// work lets all goroutines run. It returns an Instant before the last changes, if
// the epoch has one.
func (r *CrashRun) work() (old *Instant) {
	var movers, workers sync.WaitGroup
	stop := make(chan struct{})
	source := func(i int) *rand.Rand { return rand.New(rand.NewPCG(r.rnd.Uint64(), uint64(i))) }
	for i := range r.prof.Workers {
		rnd := source(i)
		workers.Go(func() {
			for range r.prof.Ops {
				if r.stopped() {
					return
				}
				r.change(rnd)
			}
		})
	}
	for i := range r.prof.Movers {
		rnd := source(100 + i)
		movers.Go(func() { r.moveLoop(rnd, stop) })
	}
	for i := range r.prof.Readers {
		rnd := source(200 + i)
		movers.Go(func() { r.readLoop(rnd, stop) })
	}
	rnd, refits := source(300), source(400)
	workers.Go(func() {
		for range 3 {
			r.administer(rnd)
		}
	})
	workers.Go(func() {
		for range r.prof.Refits {
			r.refit(refits)
		}
	})
	workers.Wait()
	close(stop)
	movers.Wait()
	r.mu.Lock()
	r.Counts.Ops += r.prof.Workers * r.prof.Ops
	r.mu.Unlock()
	if r.rnd.IntN(3) == 0 && !r.anyFailure() {
		old = r.oldInstant()
		for range 6 {
			r.change(rnd)
			if v := r.pick(rnd); v != nil {
				ctx, cancel := r.context()
				r.flush(ctx, v)
				cancel()
			}
		}
	}
	return old
}

// oldInstant takes an Instant of the open pool. Nothing else goes on.
func (r *CrashRun) oldInstant() *Instant {
	s := r.w.instants
	in := &Instant{before: s.tick(), commit: s.commit.Load()}
	s.gate.Lock()
	defer s.gate.Unlock()
	in.commit = s.commit.Load()
	var err error
	if in.files, err = readFolder(r.w.dir); err != nil {
		r.fail(err)
	}
	in.after = s.tick()
	return in
}

// pick returns a volume that is not being deleted.
func (r *CrashRun) pick(rnd *rand.Rand) *crashVolume {
	r.mu.Lock()
	defer r.mu.Unlock()
	var live []*crashVolume
	for _, v := range r.vols {
		if !v.deleting && v.v != nil {
			live = append(live, v)
		}
	}
	if len(live) == 0 {
		return nil
	}
	return live[rnd.IntN(len(live))]
}

func (r *CrashRun) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), r.prof.Patience)
}

// permitted reports whether an operation may fail like that.
func (r *CrashRun) permitted(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return false
	case r.failed || len(r.deaf) > 0:
		return true
	}
	return errors.Is(err, tiering.ErrNoSpace) || errors.Is(err, tiering.ErrClosed) || errors.Is(err, tiering.ErrNotFound)
}

// change makes one random change of a random volume, or a flush.
func (r *CrashRun) change(rnd *rand.Rand) {
	v := r.pick(rnd)
	if v == nil {
		return
	}
	ctx, cancel := r.context()
	defer cancel()
	k := rnd.IntN(100)
	if k < 16 && !r.prof.Hot || k < 3 {
		r.flush(ctx, v)
		return
	}
	off, n := spanOf(rnd, v.v.Size())
	c := &change{fua: rnd.IntN(r.prof.FUA) == 0, commit: r.w.instants.commit.Load()}
	var p []byte
	begin := func() *tiering.Mutation { return v.v.BeginWrite(off, n) }
	switch {
	case k < 26: // of whole extents
		c.zero = true
		off = off / crashExtent * crashExtent
		n = min(crashExtent*(1+rnd.Int64N(2)), v.v.Size()-off)
		begin = func() *tiering.Mutation { return v.v.BeginTrim(off, n) }
		if n%crashExtent != 0 { // if the volume grows now, that is a part of an extent, of which a trim promises nothing
			begin = func() *tiering.Mutation { return v.v.BeginWriteZeroes(off, n, false, false) }
		}
	case k < 34:
		c.zero = true
		noHole := rnd.IntN(4) == 0
		begin = func() *tiering.Mutation { return v.v.BeginWriteZeroes(off, n, noHole, false) }
	default:
		p = make([]byte, n)
	}
	var m *tiering.Mutation
	r.mu.Lock()
	r.seq++
	c.seq = r.seq
	r.mu.Unlock()
	// The order of changes of a volume is that in which they get in line.
	v.led.begin(off, n, c, func() { c.begun, m = r.tick(), begin() })
	if p != nil {
		v.led.fill(p, off, c.seq)
	}
	err := m.Run(ctx, p, c.fua)
	if err == nil {
		v.led.answered(c, r.tick())
	} else if !r.permitted(err) {
		r.violation("change %d of %s: %w", c.seq, v.name, err)
	}
}

func (r *CrashRun) flush(ctx context.Context, v *crashVolume) {
	begun := r.tick()
	err := v.v.Flush(ctx)
	if err == nil {
		v.led.flushed(begun, r.tick())
	} else if !r.permitted(err) {
		r.violation("flush of %s: %w", v.name, err)
	}
}

// spanOf returns a random range of whole sectors of size bytes.
func spanOf(rnd *rand.Rand, size int64) (off, n int64) {
	off = rnd.Int64N(size/sector) * sector
	switch rnd.IntN(6) {
	case 0: // some extents
		n = crashExtent * (1 + rnd.Int64N(2))
	case 1: // over an edge
		off = max(off/crashExtent*crashExtent-sector*(1+rnd.Int64N(16)), 0)
		n = sector * (2 + rnd.Int64N(40))
	case 2:
		n = sector
	default:
		n = sector * (1 + rnd.Int64N(40))
	}
	return off, min(n, size-off)
}

func (r *CrashRun) moveLoop(rnd *rand.Rand, stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		if v := r.pick(rnd); v != nil {
			if r.w.Relocate(v.name, rnd.Int64N(v.v.Size()), rnd.IntN(len(r.w.cfg.Slots))) {
				r.mu.Lock()
				r.Counts.Relocation++
				r.mu.Unlock()
			}
		}
		time.Sleep(rand.N(200 * time.Microsecond))
	}
}

func (r *CrashRun) readLoop(rnd *rand.Rand, stop chan struct{}) {
	for !r.stopped() {
		select {
		case <-stop:
			return
		default:
		}
		v := r.pick(rnd)
		if v == nil {
			continue
		}
		ctx, cancel := r.context()
		off, n := spanOf(rnd, v.v.Size())
		p := make([]byte, n)
		before := r.tick()
		var err error
		if rnd.IntN(2) == 0 || !v.v.TryRead(p, off) {
			err = v.v.ReadAt(ctx, p, off)
		}
		cancel()
		after := r.tick()
		if err == nil {
			err = v.led.check(p, off, rule{
				func(c *change) bool { return c.ended != 0 && c.ended < before }, func(c *change) bool { return c.begun < after },
			})
		} else if r.permitted(err) {
			err = nil
		}
		if err != nil {
			r.violation("read of %s: %w", v.name, err)
		}
		time.Sleep(rand.N(300 * time.Microsecond))
	}
}

// administer makes, grows or deletes a volume.
func (r *CrashRun) administer(rnd *rand.Rand) {
	ctx, cancel := r.context()
	defer cancel()
	time.Sleep(rand.N(2 * time.Millisecond))
	r.mu.Lock()
	live := 0
	for _, v := range r.vols {
		if !v.deleting {
			live++
		}
	}
	r.mu.Unlock()
	var err error
	switch k := rnd.IntN(4); {
	case k == 0 && live < 5:
		r.mu.Lock()
		size := 4096 * (1 + rnd.Int64N(48))
		v := r.addVolume(fmt.Sprintf("n%d", r.uid+1), size)
		r.mu.Unlock()
		v.created.begun = r.tick()
		if err = r.w.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: v.name, Size: size}, false); err == nil {
			v.created.ended = r.tick()
			var made *tiering.Volume
			if made, err = r.w.Pool.Volume(v.name); err == nil {
				r.mu.Lock()
				v.v = made
				r.mu.Unlock()
			}
		}
	case k == 1 && live > 2:
		v := r.pick(rnd)
		r.mu.Lock()
		v.deleting = true
		r.mu.Unlock()
		v.deleted.begun = r.tick()
		if err = r.w.Pool.DeleteVolume(ctx, v.name, true, false); err == nil {
			v.deleted.ended = r.tick()
		}
	case k == 2:
		v := r.pick(rnd)
		size := v.v.Size() + 4096*(1+rnd.Int64N(16))
		if size > 20*crashExtent {
			return
		}
		v.led.grow(size, 0)
		v.sizes = append(v.sizes, sizeChange{span{r.tick(), 0}, size})
		if err = r.w.Pool.GrowVolume(ctx, v.name, size, false); err == nil {
			v.sizes[len(v.sizes)-1].ended = r.tick()
		}
	}
	if err != nil && !r.permitted(err) {
		r.violation("administration: %w", err)
	}
}

// refit changes the backings of the pool.
func (r *CrashRun) refit(rnd *rand.Rand) {
	time.Sleep(rand.N(2 * time.Millisecond))
	if r.anyFailure() {
		return
	}
	ctx, cancel := r.context()
	defer cancel()
	f := fitting{span: span{begun: r.tick()}}
	did, err := r.w.Refit(ctx, rnd)
	if did.Changed {
		f.ended = r.tick()
	}
	f.path, f.member, f.draining = did.Path, did.Member, did.Draining
	if err != nil && !r.permitted(err) {
		r.violation("backings: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || did.Changed {
		r.fits = append(r.fits, f)
	}
	switch {
	case !did.Changed:
	case strings.HasPrefix(did.Done, "add"):
		r.Counts.Added++
	case !did.Member:
		r.Counts.Removed++
	default:
		r.Counts.Drains++
	}
}
