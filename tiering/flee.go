package tiering

import (
	"context"
	"errors"
	"syscall"
	"time"

	"tierd/tiering/extent"
	"tierd/tiering/plan"
)

const (
	// fleeBatch is how many extents of a suspect backing are looked up at a time.
	fleeBatch = 1024
	// fleeRetry is how long an extent is left alone that could not be moved off a
	// suspect backing; twice as long each time, up to fleeRetryMax.
	fleeRetry    = time.Minute
	fleeRetryMax = time.Hour
	// maxParked is how many such extents are remembered for a backing.
	maxParked = 1 << 16
)

// flight moves extents off a backing whose calls fail, within the movement budget.
// Every copy is read back before it counts: there will be nothing else to fall back
// on. A backing that hangs is left alone until it answers, and one that has failed
// altogether: what is flushed of it is there, and nobody knows the rest.
//
// An extent that cannot be moved is tried again later and later. Its errors keep
// the backing suspect.
type flight struct {
	off    evacuator
	parked map[extent.Key]parked
}

// parked is an extent that could not be moved.
type parked struct {
	tries int
	again time.Time
}

// fleeLoop sees to it that each backing whose calls fail has a flight, of a
// goroutine of its own: none waits for the disk of another.
func (p *Pool) fleeLoop() {
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-p.clock.After(watchInterval):
		}
		p.eachMember(func(b *member) {
			if b.sick() && b.fleeing.CompareAndSwap(false, true) {
				p.wg.Go(b.flee)
			}
		})
	}
}

// sick reports whether extents are to flee from b.
func (b *member) sick() bool { return b.health.sick.Load() && b.err() == nil && !b.removed.Load() }

// flee is a flight from b, for as long as there is reason to.
func (b *member) flee() {
	defer b.fleeing.Store(false)
	p := b.pool
	f := flight{
		off:    evacuator{evacuation: evacuation{off: b, reason: plan.ReasonSuspect, verify: true}},
		parked: make(map[extent.Key]parked),
	}
	for b.sick() {
		if !b.health.hanging.Load() && !b.draining.Load() { // a drain does the same
			f.pass(p.ctx)
		}
		select {
		case <-p.ctx.Done():
			return
		case <-p.clock.After(watchInterval):
		}
	}
}

// pass moves what is there and not parked, until something speaks against going on.
func (f *flight) pass(ctx context.Context) {
	b, p := f.off.off, f.off.off.pool
	moved := 0
	for _, k := range p.extentsOn(b, fleeBatch+len(f.parked)) {
		now := p.clock.Now()
		s := f.parked[k]
		if now.Before(s.again) {
			continue
		}
		if ctx.Err() != nil || !b.sick() || b.health.hanging.Load() || len(f.parked) >= maxParked {
			break
		}
		if ev := f.off.move(ctx, k); ev.Outcome == MoveDone {
			delete(f.parked, k)
			moved++
			continue
		}
		s.again = now.Add(min(fleeRetry<<min(s.tries, 10), fleeRetryMax))
		s.tries++
		f.parked[k] = s
	}
	if moved > 0 {
		p.log.Debug("extents moved off a suspect backing", "backing", b.path, "moved", moved, "waiting", len(f.parked))
	}
}

// toldByState reports whether the state of a backing, or of the metadata, says what
// err does, so that it needs no line of log of its own.
func toldByState(err error) bool {
	var no syscall.Errno
	return errors.As(err, &no)
}
