package plan

import (
	"slices"

	"tierd/tiering/extent"
)

// fulfilled reports whether e lies where its policy wants it most.
func (pl *planner) fulfilled(e Extent) bool { return len(pl.targets(e.Want, e.Tier)) == 0 }

// targets returns the positions of the tiers that w prefers to the tier from,
// the most wanted first. Policies speak of ranks, not of today's speed. The
// result is good until the next call.
func (pl *planner) targets(w Want, from extent.TierID) []int {
	out := pl.scratch[:0]
	add := func(id extent.TierID) {
		if pos := pl.position(id); pos >= 0 {
			out = append(out, pos)
		}
	}
	switch w.Kind {
	case WantHighest:
		for id := range from {
			add(id)
		}
	case WantLowest:
		for id := len(pl.rank) - 1; id > int(from); id-- {
			add(extent.TierID(id))
		}
	case WantTier:
		if w.Tier != from {
			add(w.Tier)
		}
	}
	pl.scratch = out
	return out
}

// policyMoves brings extents to the tiers that their policies name: first those
// that go down and make room, then those that go up, hottest first.
func (pl *planner) policyMoves() {
	var down, up []candidate
	for pos, w := range pl.wants {
		kept := w.sorted()
		pl.reject(ReasonBudget, w.seen-int64(len(kept)))
		for _, c := range kept {
			first := pl.targets(c.want, pl.tiers[pos].ID)[0]
			if pl.tiers[first].ID > pl.tiers[pos].ID {
				down = append(down, c)
			} else {
				up = append(up, c)
			}
		}
	}
	slices.SortFunc(down, byRate)
	slices.SortFunc(up, byRateDown)
	for _, c := range append(down, up...) {
		if r := pl.policyMove(c); r != "" {
			pl.reject(r, 1)
			pl.stays(c, r)
		}
	}
}

// policyMove plans one of them, and returns why if it cannot.
func (pl *planner) policyMove(c candidate) Reason {
	reason := Reason("")
	from := pl.tiers[c.tier]
	for _, to := range pl.targets(c.want, from.ID) {
		t := pl.tiers[to]
		switch {
		case !t.Writable:
			reason = first(reason, ReasonUnhealthy)
			continue
		case t.wear < 1:
			reason = first(reason, ReasonWear)
			continue
		case !pl.affordable(1):
			return ReasonBudget
		case t.free > t.keep, t.free > 0 && t.ID > from.ID: // headroom bars promotions only
			pl.move(c, to, ReasonPolicy, 0)
			return ""
		}

		// No slot: of those placed by heat, the coldest has to leave, or the
		// hottest where the way is down.
		list, next, why := t.coldList, &t.coldNext, ReasonCold
		if t.ID > from.ID {
			list, next, why = t.hotList, &t.hotNext, ReasonHot
		}
		for *next < len(list) && (list[*next].cooling || pl.isTaken(list[*next].key)) {
			*next++
		}
		none := *next == len(list)
		switch {
		case none && t.free > 0:
			reason = first(reason, ReasonHeadroom)
			continue
		case none, !from.Writable, from.free < 1 && t.free < 1:
			reason = first(reason, ReasonFull)
			continue
		case from.wear < 1: // what leaves would have to go there
			reason = first(reason, ReasonWear)
			continue
		case !pl.affordable(2):
			return ReasonBudget
		}
		b := list[*next]
		if from.free >= 1 {
			pl.move(b, int(c.tier), why, 0)
			pl.move(c, to, ReasonPolicy, 0)
		} else {
			pl.move(c, to, ReasonPolicy, 0)
			pl.move(b, int(c.tier), why, 0)
		}
		return ""
	}
	return reason
}

// first keeps the reason of the tier that was wanted most.
func first(have, next Reason) Reason {
	if have != "" {
		return have
	}
	return next
}

// roomMoves demotes the coldest extents of tiers with fewer free slots than wanted, into
// the next slower tier that has room, with what the budget has left.
func (pl *planner) roomMoves(wanted func(*tierState) int64) {
	for id, pos := range pl.rank {
		if pos < 0 {
			continue
		}
		t := pl.tiers[pos]
		for i := 0; t.free < wanted(t) && pl.affordable(1); i++ {
			i = pl.skipTaken(t.coldList, i)
			to := pl.roomBelow(extent.TierID(id))
			if i == len(t.coldList) || to < 0 {
				break
			}
			if !t.coldList[i].cooling {
				pl.move(t.coldList[i], to, ReasonRoom, 0)
			}
		}
	}
}

// roomBelow returns the position of the next slower tier with a free slot to
// spare, or -1.
func (pl *planner) roomBelow(id extent.TierID) int {
	for below := int(id) + 1; below < len(pl.rank); below++ {
		pos := pl.rank[below]
		if pos >= 0 && pl.tiers[pos].Writable && pl.tiers[pos].wear > 0 && pl.tiers[pos].free > pl.tiers[pos].keep {
			return pos
		}
	}
	return -1
}
