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

// flight moves extents off backings whose calls fail, within the movement budget.
// Every copy is read back before it counts, but for the pieces that are written to
// meanwhile and copied again: there will be nothing else to fall back on. A backing that hangs is left alone until it answers, and one that
// has failed altogether: what is flushed of it is there, and nobody knows the rest.
//
// An extent that cannot be moved is tried again later and later. Its errors keep
// the backing suspect.
type flight struct {
	parked map[*member]map[extent.Key]parked
}

// parked is an extent that could not be moved.
type parked struct {
	tries int
	again time.Time
}

// fleeLoop is the one goroutine of it.
func (p *Pool) fleeLoop() {
	f := flight{parked: make(map[*member]map[extent.Key]parked)}
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-p.clock.After(watchInterval):
		}
		p.eachMember(func(b *member) {
			switch {
			case !b.health.sick.Load() || b.err() != nil:
				delete(f.parked, b)
			case !b.health.hanging.Load() && !b.draining.Load(): // a drain does the same
				f.flee(p.ctx, b)
			}
		})
	}
}

// flee moves off b what is there and not parked, until something speaks against
// going on.
func (f *flight) flee(ctx context.Context, b *member) {
	p := b.pool
	stay := f.parked[b]
	if stay == nil {
		stay = make(map[extent.Key]parked)
		f.parked[b] = stay
	}
	var w *mover
	moved := 0
	for _, k := range p.extentsOn(b, fleeBatch+len(stay)) {
		now := p.clock.Now()
		if s, ok := stay[k]; ok && now.Before(s.again) {
			continue
		}
		if ctx.Err() != nil || b.err() != nil || b.health.hanging.Load() || len(stay) >= maxParked {
			break
		}
		if w == nil {
			w = p.evacuator(evacuation{off: b, reason: plan.ReasonSuspect, verify: true})
		}
		ev := p.evacuate(ctx, w, k)
		if ev.Outcome == MoveDone {
			delete(stay, k)
			moved++
			continue
		}
		s := stay[k]
		s.again = now.Add(min(fleeRetry<<min(s.tries, 10), fleeRetryMax))
		s.tries++
		stay[k] = s
	}
	if moved > 0 {
		p.log.Debug("extents moved off a suspect backing", "backing", b.path, "moved", moved, "waiting", len(stay))
	}
}

// toldByState reports whether the state of a backing, or of the metadata, says what
// err does, so that it needs no line of log of its own.
func toldByState(err error) bool {
	var no syscall.Errno
	return errors.As(err, &no)
}
