package tiering

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"tierd/pkg/units"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
)

const (
	// cleanWait is how long a first write waits for the cleaner when slots are free
	// but none of them is clean yet.
	cleanWait = 20 * time.Second
	// maxOnFullWait bounds what an operator may ask for. A kernel client gives up
	// a request after 30 s unless it is told otherwise.
	maxOnFullWait = 24 * time.Hour
	// pendingWait is how long a write is in doubt whose last slot somebody else may
	// be about to take.
	pendingWait = 5 * time.Second
	// fullPoll is how often a write that waits for room looks by itself, beside
	// being told of slots that become clean.
	fullPoll = time.Second
)

// Space says what a volume may take of the pool.
type Space struct {
	// Reservation is how many bytes the volume can always allocate: what of it is
	// not allocated yet is kept from the others' new extents.
	Reservation int64
	// Quota is how many bytes its mapped extents may take; 0: no limit.
	Quota int64
	// OnFullWait is how long a write that finds no room waits for some; 0: it fails
	// at once.
	OnFullWait time.Duration
}

func (s Space) check(size int64, extentSize extent.Size) error {
	switch {
	case s.Reservation < 0:
		return invalid("reservation %d: must not be negative", s.Reservation)
	case s.Quota < 0:
		return invalid("quota %d: must not be negative", s.Quota)
	case s.Reservation > size:
		return invalid("reservation %s is more than the volume's size of %s", units.Size(s.Reservation), units.Size(size))
	case s.Quota > 0 && s.Quota < extentSize.Bytes():
		return invalid("quota %s is less than an extent of %s, so that nothing could be written; 0 is no quota", units.Size(s.Quota), units.Size(extentSize.Bytes()))
	case s.Quota > 0 && s.Quota < s.Reservation:
		return invalid("quota %s is less than the reservation of %s", units.Size(s.Quota), units.Size(s.Reservation))
	case s.OnFullWait < 0 || s.OnFullWait > maxOnFullWait:
		return invalid("waiting %s for room: must be from 0 to %s", s.OnFullWait, maxOnFullWait)
	}
	return nil
}

func spaceOf(r extentmap.Volume) Space {
	return Space{Reservation: r.Reservation, Quota: r.Quota, OnFullWait: r.OnFullWait}
}

func (s Space) putInto(r *extentmap.Volume) {
	r.Reservation, r.Quota, r.OnFullWait = s.Reservation, s.Quota, s.OnFullWait
}

// space keeps reservations and quotas. A slot that has been reserved and does not
// show in its volume's count of mapped extents yet is pending: until it does, the
// books are one too strict, and who is refused meanwhile has to look again.
type space struct {
	mu      sync.Mutex
	pending int  // slots being reserved
	refused bool // somebody was refused because of them
	// reserving are the volumes that ever had a reservation since the start: few, and
	// looked at with every new extent.
	reserving []*Volume
	low       lowWater
}

// note makes the books look at v's reservation.
func (s *space) note(v *Volume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.Space().Reservation > 0 && !slices.Contains(s.reserving, v) {
		s.reserving = append(s.reserving, v)
	}
}

// forget is called when v is gone for good.
func (s *space) forget(v *Volume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserving = slices.DeleteFunc(s.reserving, func(o *Volume) bool { return o == v })
}

// mapped returns how many extents of v have slots.
func (v *Volume) mapped() (n int64) {
	for _, t := range v.pool.ranks() {
		n += v.extents.of(t).Load()
	}
	return n
}

// reserve takes a clean slot for a new extent of v in the best tier that has one,
// within the reservations of the others and v's quota, and waits for one as long
// as v's settings say. done is to be called when the extent is mapped or the slot
// is given back.
func (p *Pool) reserve(ctx context.Context, v *Volume) (l extent.Location, done func(), err error) {
	var start time.Time
	for {
		freed := p.freed.wait()
		l, done, err := p.tryReserve(v)
		switch {
		case done != nil:
			return l, done, nil
		case v.gone.Load(), p.closing.Load():
			return l, nil, ErrClosed // the deletion, or the stop, waits for this write
		}
		limit := v.Space().OnFullWait
		coming := false
		switch {
		case err == nil:
			err = ErrNoSpace
			coming = p.slotsComing()
		case err == errPending:
			limit = max(limit, pendingWait)
		case errors.Is(err, errReserved):
			coming = p.vacating()
		}
		if coming {
			limit = max(limit, cleanWait)
		}
		if start.IsZero() {
			start = p.clock.Now()
			v.waiting.Add(1)
			defer v.waiting.Add(-1)
			cause := waitSlots
			if !coming {
				cause = waitSpace
			}
			defer p.waits.since(cause, time.Now())
		}
		left := limit - p.clock.Now().Sub(start)
		if left <= 0 {
			if errors.Is(err, ErrNoSpace) {
				v.noSpace.Add(1)
				p.space.tellFull(p, v, err)
			}
			return l, nil, err
		}
		select {
		case <-freed:
		case <-p.clock.After(min(left, fullPoll)):
		case <-p.ctx.Done():
			return l, nil, ErrClosed
		case <-ctx.Done():
			return l, nil, ctx.Err()
		}
	}
}

// errPending is the answer to who is refused while slots are pending.
var errPending = fmt.Errorf("%w: slots are being given out", ErrNoSpace)

var errReserved = fmt.Errorf("%w: what is left is reserved for other volumes", ErrNoSpace)

// tryReserve takes a clean slot for v if the books allow it and there is one; done
// is nil if not. An error says that the books are against it, errPending that they
// may not be in a moment. Nobody waits for a backing with the books in hand.
func (p *Pool) tryReserve(v *Volume) (l extent.Location, done func(), err error) {
	if err := p.admit(v); err != nil {
		return l, nil, err
	}
	tiers := p.ranks()
	for _, suspect := range []bool{false, true} { // a suspect backing is better than none
		v.Policy().order(len(tiers), func(i int) bool {
			t := tiers[i]
			if t.unowned() <= p.keptForMoves(t) {
				return false
			}
			got, ok := reserveIn(t, suspect, nil)
			if ok && t.unowned() < p.keptForMoves(t) {
				p.member(got).slots.Unreserve(got.Slot) // others were as quick
				return false
			}
			if ok {
				l = got
			}
			return ok
		})
		if !l.IsZero() {
			return l, func() { p.settled(v, true) }, nil
		}
	}
	p.settled(v, false) // and no word of it: who waits would wake himself
	return l, nil, nil
}

// settled ends what admit or admitMove noted; v is nil for the latter. With tell
// those look again who were refused because of it.
func (p *Pool) settled(v *Volume, tell bool) {
	s := &p.space
	s.mu.Lock()
	s.pending--
	if v != nil {
		v.pending--
	}
	tell = tell && s.refused
	if tell {
		s.refused = false
	}
	s.mu.Unlock()
	if tell {
		p.freed.broadcast()
	}
}

// admit looks whether v may have one more extent, and notes it as pending.
func (p *Pool) admit(v *Volume) error {
	s := &p.space
	quota := v.Space().Quota
	s.mu.Lock()
	defer s.mu.Unlock()
	mapped := v.mapped() + int64(v.pending)
	var err error
	var doubt int
	if quota > 0 && mapped >= quota/p.size.Bytes() {
		doubt = v.pending
		err = fmt.Errorf("%w: volume %s has used its quota of %s", ErrNoSpace, v.Name(), units.Size(quota))
	} else if kept := p.keptFor(v); kept > 0 && mapped >= v.reserved() && p.freeSlots()-int64(s.pending) <= kept {
		doubt = s.pending
		err = errReserved
	}
	if doubt > 0 {
		s.refused = true
		return errPending
	}
	if err != nil {
		return err
	}
	s.pending++
	v.pending++
	return nil
}

// admitMove looks whether an extent may leave a backing that takes no extents any
// more, and notes its new slot as pending: what is reserved is kept from it as it is
// from new extents, for its old slot is of no use to anybody.
func (p *Pool) admitMove() bool {
	s := &p.space
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept := p.keptFor(nil); kept > 0 && p.freeSlots()-int64(s.pending) <= kept {
		return false
	}
	s.pending++
	return true
}

// checkDrain says whether the others have room for the extents of b and for what is
// reserved. adminMu is held, so that nothing more is promised meanwhile.
func (p *Pool) checkDrain(b *member) error {
	p.space.mu.Lock()
	kept := p.keptFor(nil)
	p.space.mu.Unlock()
	if kept == 0 {
		return nil
	}
	var coming, need int64
	p.eachMember(func(o *member) {
		switch {
		case o == b || o.draining.Load():
			need += o.slots.Counts().Used
		case o.takesExtents():
			coming += o.slots.Counts().Vacated
		}
	})
	room := p.freeSlots() + coming
	if c := b.slots.Counts(); b.takesExtents() {
		room -= c.Clean + c.Cleaning + c.Free
	}
	if size := units.Size(p.size.Bytes()); need+kept > room {
		return busy("backing %s cannot be done without: %s would have to move off it, %s is free elsewhere, and %s is reserved for volumes; add a backing, or make the reservations smaller",
			b.path, units.Size(need)*size, units.Size(max(room, 0))*size, units.Size(kept)*size)
	}
	return nil
}

// reserved returns how many extents v's reservation is.
func (v *Volume) reserved() int64 { return int64(v.pool.size.Count(v.Space().Reservation)) }

// keptFor returns how many slots new extents of v have to leave free: what is
// reserved for other volumes and not mapped by them yet. space.mu is held.
func (p *Pool) keptFor(v *Volume) (n int64) {
	for _, o := range p.space.reserving {
		if o != v && !o.gone.Load() {
			n += max(o.reserved()-o.mapped(), 0)
		}
	}
	return n
}

// freeSlots returns how many slots new extents may still take.
func (p *Pool) freeSlots() (n int64) {
	for _, t := range p.ranks() {
		n += max(t.unowned()-p.keptForMoves(t), 0)
	}
	return n
}

// unowned returns how many slots of t's serving backings are clean or will be
// without anybody's doing.
func (t *tier) unowned() (n int64) {
	for _, b := range t.members() {
		if b.takesExtents() {
			c := b.slots.Counts()
			n += c.Clean + c.Cleaning + c.Free
		}
	}
	return n
}

// keptForMoves returns how many slots of t new extents have to leave.
func (p *Pool) keptForMoves(t *tier) int64 {
	var slots int64
	for _, b := range t.members() {
		slots += int64(b.layout.Slots)
	}
	backings := 0
	for _, o := range p.ranks() {
		backings += len(o.members())
	}
	return keptForMoves(slots, backings)
}

// keptForMoves returns how many of a tier's slots are kept from new extents:
// without one to turn round in, extents of a full pool cannot change places. A
// pool with one backing moves nothing.
func keptForMoves(slots int64, backings int) int64 {
	const least = 16 // in a tier of fewer slots one of them matters
	if backings < 2 || slots < least {
		return 0
	}
	return min(max(slots/1000, 1), 8)
}

// checkReservation says whether v can be given a reservation of so many bytes now;
// v is nil for a volume to be made. adminMu is held, so that no two are promised
// the same room.
func (p *Pool) checkReservation(v *Volume, bytes int64) error {
	need := int64(p.size.Count(bytes))
	if v != nil {
		need -= v.mapped()
	}
	var coming int64
	p.eachMember(func(b *member) {
		if b.takesExtents() {
			coming += b.slots.Counts().Vacated
		}
	})
	p.space.mu.Lock()
	kept := p.keptFor(v) + int64(p.space.pending)
	p.space.mu.Unlock()
	if room := p.freeSlots() + coming - kept; need > max(room, 0) {
		size := units.Size(p.size.Bytes())
		return busy("a reservation of %s needs %s more, and %s of the pool is neither allocated nor reserved",
			units.Size(bytes), units.Size(need)*size, units.Size(max(room, 0))*size)
	}
	return nil
}

// SetSpace changes what a volume may take of the pool. What it has allocated
// beyond a new quota stays.
func (p *Pool) SetSpace(ctx context.Context, name string, s Space, dryRun bool) error {
	// A larger reservation is in the books before it is looked at whether there is
	// room for it, so that nobody takes that room meanwhile.
	withdraw := func() {}
	err := p.change(ctx, name, dryRun, func(v *Volume, r *extentmap.Volume) error {
		if err := s.check(r.Size, p.size); err != nil {
			return fmt.Errorf("volume %s: %w", name, err)
		}
		if s.Reservation > r.Reservation {
			if was := v.space.Load(); !dryRun {
				promise := *was
				promise.Reservation = s.Reservation
				v.space.Store(&promise)
				p.space.note(v)
				withdraw = func() { v.space.CompareAndSwap(&promise, was) }
			}
			if err := p.checkReservation(v, s.Reservation); err != nil {
				return fmt.Errorf("volume %s: %w", name, err)
			}
		}
		s.putInto(r)
		return nil
	}, func(v *Volume) {
		v.space.Store(&s)
		p.space.note(v)
		p.freed.broadcast() // who waits for room looks again
		p.log.Info("volume space set", "volume", name, "reservation", s.Reservation, "quota", s.Quota, "on_full_wait", s.OnFullWait)
	})
	if err != nil {
		withdraw()
	}
	return err
}

// Space returns what the volume may take of the pool.
func (v *Volume) Space() Space { return *v.space.Load() }

// A lowWater says when free space runs out, once each time: it is over when a
// tenth more than the mark is free again.
type lowWater struct {
	mu     sync.Mutex
	mark   float64 // share of the pool; 0: never
	below  bool
	events int64
	full   map[extent.VolumeID]bool // volumes whose writes were refused, and that was said
}

// checkLowWater compares the free space with the mark.
func (p *Pool) checkLowWater() {
	w := &p.space.low
	var total, free int64
	p.eachMember(func(b *member) {
		if b.takesExtents() {
			c := b.slots.Counts()
			total += c.Total - c.Quarantined
			free += c.Clean + c.Cleaning + c.Free + c.Vacated
		}
	})
	share := float64(free) / float64(max(total, 1))
	w.mu.Lock()
	defer w.mu.Unlock()
	size := p.size.Bytes()
	switch {
	case !w.below && share < w.mark:
		w.below = true
		w.events++
		p.log.Warn("free space is below the low-water mark", "free", units.Size(free*size), "of", units.Size(total*size), "mark", w.mark)
	case w.below && (share >= w.mark*1.1 || share == 1 || w.mark == 0):
		w.below = false
		p.log.Info("free space is above the low-water mark again", "free", units.Size(free*size), "of", units.Size(total*size), "mark", w.mark)
	}
	if !w.below {
		clear(w.full)
	}
}

// tellFull logs that a write of v was refused, once until there is space again.
func (s *space) tellFull(p *Pool, v *Volume, err error) {
	w := &s.low
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.full[v.id] {
		return
	}
	if w.full == nil {
		w.full = make(map[extent.VolumeID]bool)
	}
	w.full[v.id] = true
	p.log.Warn("writes to new extents of a volume fail for want of space", "volume", v.Name(), "error", err)
}

// LowWater reports whether free space is below the mark, and how many times that
// has come about since the start.
func (p *Pool) LowWater() (below bool, events int64) {
	w := &p.space.low
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.below, w.events
}

// SetLowWater changes the mark; 0 ends the watch.
func (p *Pool) SetLowWater(share float64) {
	w := &p.space.low
	w.mu.Lock()
	w.mark = share
	w.mu.Unlock()
	p.checkLowWater()
}
