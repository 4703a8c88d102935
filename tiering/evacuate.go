package tiering

import (
	"context"

	"tierd/tiering/extent"
	"tierd/tiering/plan"
)

// evacuation says how extents leave a backing.
type evacuation struct {
	off    *member     // the backing they leave
	reason plan.Reason // plan.ReasonDrain or plan.ReasonSuspect
	// verify reads each copy back and compares it with what was read.
	verify bool
	// anyTier moves an extent to another tier even though its volume's policy asks
	// for the one it is in.
	anyTier bool
	// take takes bytes from what paces the evacuation; nil: the movement budget.
	take func(ctx context.Context, n int64) error
}

// mover returns a mover for the evacuation. It carries out one move at a time.
func (e *evacuation) mover() *mover {
	w := newMover(e.off.pool.reloc)
	w.off, w.reason, w.anyTier = e.off, e.reason, e.anyTier
	w.verify = w.verify || e.verify
	if e.take != nil {
		w.take, w.rushes = e.take, true
	}
	return w
}

// An evacuator moves extents off a backing, one at a time.
type evacuator struct {
	evacuation
	w *mover // made when it is needed
}

// move moves the extent k off its backing, by the steps and rules of every
// other move, and returns when it has switched: the source is vacated by the round
// that was started, and another may be waited for with Volume.Flush. What keeps
// the extent from moving is in the event's Why:
//
//	moving          a plan's move of it is under way
//	changed         it is not there (any more)
//	unmapped        it has no slot (any more)
//	target_full     no other backing has a slot for it
//	pinned          its volume's policy asks for the tier it is in, where no other
//	                backing has a slot
//	reserved        what is free elsewhere is reserved for volumes
//	volume_failed   flushes of its volume fail, so that no move of it would be durable
//	backing_failed  the backing it is on has failed
//	backing_hangs   the backing it is on, or was being copied to, does not answer; in
//	                the latter case the move may be done yet
//	settling        earlier moves of its volume wait for their commit
//	too_busy        it is written to without a pause
//	budget, error, cancelled, stopped, volume_gone as for other moves
func (e *evacuator) move(ctx context.Context, k extent.Key) MoveEvent {
	r, rank := e.off.pool.reloc, e.off.tier.rank()
	m := plan.Move{
		Key: k, From: rank, To: rank, FromBacking: e.off.id, Kind: plan.Rebalance, Reason: e.reason, Bytes: r.pool.size.Bytes(),
	}
	if !r.claim(k) {
		return MoveEvent{Move: m, Outcome: MoveSkipped, Why: "moving", Err: errAbandon("moving")}
	}
	if e.w == nil {
		e.w = e.mover()
	}
	ev, left := r.run(ctx, e.w, job{Move: m}, true)
	if left {
		e.w = nil
	}
	return ev
}

// refuges returns the tiers to which an extent may flee, best first: its own, then
// the slower ones, then the faster ones as far as promotions may fill them. An
// extent whose policy asks for the tier it is in stays in it.
func (w *mover) refuges() (tiers []*tier, full errAbandon) {
	own := w.off.tier
	rank := own.rank()
	if pol := w.v.Policy(); !w.anyTier && pol.want.Kind == plan.WantTier && pol.name == own.name {
		return []*tier{own}, "pinned"
	}
	all := w.r.pool.ranks()
	tiers = append(tiers, own)
	for i := int(rank) + 1; i < len(all); i++ {
		tiers = append(tiers, all[i])
	}
	for i := min(int(rank), len(all)) - 1; i >= 0; i-- {
		tiers = append(tiers, all[i])
	}
	return tiers, "target_full"
}

// extentsOn returns extents that lie on b, up to max of them. It looks through all
// maps: none is kept by backing.
func (p *Pool) extentsOn(b *member, max int) []extent.Key {
	var keys []extent.Key
	for _, v := range p.allVolumes() {
		v.table.Range(func(i extent.Index, e extent.Entry) bool {
			if e.Mapped() && e.Location().Backing == b.id {
				keys = append(keys, extent.Key{Volume: v.id, Index: i})
			}
			return len(keys) < max
		})
		if len(keys) >= max {
			break
		}
	}
	return keys
}
