package tiering

import (
	"context"
	"errors"
	"fmt"

	"tierd/tiering/extent"
	"tierd/tiering/stagedlog"
)

// provision gives the unmapped extent i a slot and returns its new entry. The
// caller is alone in the extent. The order is: reserve a clean slot, record,
// publish; the caller writes the data, marks, leaves and answers. Nothing is
// touched if the pool is full.
func (v *Volume) provision(ctx context.Context, i extent.Index) (extent.Entry, error) {
	p := v.pool
	l, done, err := p.reserve(ctx, v)
	if err != nil {
		return 0, fmt.Errorf("provision extent %d of volume %s: %w", i, v.Name(), err)
	}
	defer done()
	if err := p.stage(ctx, v, stagedlog.Map, i, 1, []extent.Index{i}, l); err != nil {
		p.member(l).slots.Unreserve(l.Slot)
		return 0, fmt.Errorf("provision extent %d of volume %s: %w", i, v.Name(), err)
	}
	return v.table.Load(i), nil
}

// makeRoom gives slots to the unmapped extents of a change over several of them,
// those that need says need one. If there is no room for all, the change has
// changed nothing: the slots are given back.
func (m *Mutation) makeRoom(ctx context.Context, need func(extent.Piece) bool) error {
	v := m.v
	if !m.ticket.Exclusive() || m.n <= v.pool.size.Bytes()-v.pool.size.Within(m.off) {
		return nil
	}
	var made []extent.Index
	for pc := range v.pool.size.Split(m.off, m.n) {
		if v.table.Load(pc.Index).Mapped() || !need(pc) {
			continue
		}
		if _, err := v.provision(ctx, pc.Index); err != nil {
			for _, i := range made {
				_, uerr := v.unmap(ctx, i, i+1)
				err = errors.Join(err, uerr)
			}
			return err
		}
		made = append(made, pc.Index)
	}
	return nil
}

// reserveIn takes a clean slot on the backing of t with the largest share of
// free slots, so that backings of different sizes fill evenly: of those that are
// suspect, or of the others, and never of the backing not.
func reserveIn(t *tier, suspect bool, not *member) (extent.Location, bool) {
	var tried [8]*member
	skip := append(tried[:0], not)
	for {
		b := roomiest(t.members(), skip, suspect)
		if b == nil {
			return extent.Location{}, false
		}
		if s, ok := b.reserve(); ok {
			return extent.Location{Backing: b.id, Slot: s}, true
		}
		skip = append(skip, b)
	}
}

// roomiest returns the serving backing with the largest share of slots that are
// free or will be, of those that are suspect or of the others, leaving out those
// in skip.
func roomiest(members, skip []*member, suspect bool) *member {
	var best *member
	most := 0.0
next:
	for _, b := range members {
		if !b.takesExtents() || b.health.suspect.Load() != suspect {
			continue
		}
		for _, s := range skip {
			if s == b {
				continue next
			}
		}
		c := b.slots.Counts()
		if share := float64(c.Clean+c.Free+c.Cleaning) / float64(max(c.Total, 1)); share > most {
			best, most = b, share
		}
	}
	return best
}

// reserve takes a clean slot. If the cleaner is behind, a free slot that the
// medium knows to be a hole is as good: it reads as zeroes, durably, and finding
// that out takes a microsecond or two.
func (b *member) reserve() (extent.Slot, bool) {
	s, ok := b.slots.Reserve()
	if !ok && b.isOpen() && b.takeHole() {
		s, ok = b.slots.Reserve()
	}
	if b.slots.Counts().Clean < b.aheadLow() {
		b.wakeCleaner()
	}
	return s, ok
}

// slotsComing reports whether slots are on their way to become clean, and sees to
// it that those that wait for a commit get one.
func (p *Pool) slotsComing() bool {
	// Slots that are vacated now are free next: who looked in the other order could
	// miss one at both places.
	coming := p.vacating()
	for _, t := range p.ranks() {
		if t.unowned() <= p.keptForMoves(t) {
			continue
		}
		coming = true
		for _, b := range t.members() {
			if b.takesExtents() {
				b.wakeCleaner()
			}
		}
	}
	return coming
}

// vacating reports whether slots wait for the commit that frees them, and sees to
// it that they get one.
func (p *Pool) vacating() bool {
	vacated := false
	p.eachMember(func(b *member) {
		vacated = vacated || b.takesExtents() && b.slots.Counts().Vacated > 0
	})
	if !vacated || p.db.Err() != nil {
		return false
	}
	p.startRounds()
	return true
}
