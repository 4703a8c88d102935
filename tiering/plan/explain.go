package plan

import (
	"cmp"
	"slices"
)

// explain accounts for every extent placed by heat that stays.
func (pl *planner) explain() {
	for _, t := range pl.tiers {
		t.victim = pl.skipTaken(t.coldList, 0)
		t.kept = t.free
	}
	for pos, t := range pl.tiers {
		stay := t.eligible - t.taken
		verdict, hot := ReasonNoGain, int64(0)
		for _, a := range t.hotList {
			if pl.isTaken(a.key) {
				continue
			}
			verdict = pl.verdict(a, pos)
			pl.reject(verdict, 1)
			pl.stays(a, verdict)
			stay--
			hot++
		}
		// What did not fit the list is colder than all of it. If the budget is
		// what held up the last one there, it holds up others of that heat.
		if verdict == ReasonBudget && stay > 0 {
			more := min(stay, max(0, t.hist.above(pl.threshold(pos))-int64(len(t.hotList))))
			pl.reject(ReasonBudget, more)
			stay -= more
		}
		pl.reject(ReasonNoGain, stay)
	}
	pl.hottestStays()
}

// stays remembers an extent that stays although it is wanted elsewhere.
func (pl *planner) stays(c candidate, r Reason) {
	if r != ReasonNoGain {
		pl.plan.Stays = append(pl.plan.Stays, Stay{Key: c.key, Tier: pl.tiers[c.tier].ID, Rate: c.rate, Reason: r})
	}
}

// hottestStays cuts Stays down to the hottest.
func (pl *planner) hottestStays() {
	slices.SortFunc(pl.plan.Stays, func(a, b Stay) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Key.Volume, b.Key.Volume), cmp.Compare(a.Key.Index, b.Key.Index))
	})
	pl.plan.Stays = slices.Clip(pl.plan.Stays[:min(len(pl.plan.Stays), MaxStays)])
}

// verdict returns why a, in the tier at position pos, was not promoted: of the
// faster tiers the one that came closest counts.
func (pl *planner) verdict(a candidate, pos int) Reason {
	l := pl.tiers[pos]
	best := ReasonNoGain
	for i, u := range pl.tiers[:pos] {
		_, ok := pl.pays(a, nil, l, u, nil)
		ok = ok && pl.faster(u, l)
		r := ReasonNoGain
		switch {
		case !ok && a.cooling && pl.faster(u, l):
			r = ReasonCooling
		case !ok || u.Slots == 0:
		case !u.Writable:
			r = ReasonUnhealthy
		case u.wear < 1:
			r = ReasonWear
		case u.free > u.keep:
			r = ReasonBudget
		default:
			r = pl.swapVerdict(a, pos, i)
			if r == ReasonNoGain || r == ReasonFull {
				if u.kept > 0 { // the slots that the headroom keeps would do for so many
					u.kept--
					r = ReasonHeadroom
				}
			}
		}
		if weight[r] > weight[best] {
			best = r
		}
	}
	return best
}

// weight orders the verdicts of several tiers, the one closest to a move last.
var weight = map[Reason]int{ReasonNoGain: 0, ReasonCooling: 1, ReasonUnhealthy: 2, ReasonFull: 3, ReasonHeadroom: 4, ReasonWear: 5, ReasonBudget: 6}

// swapVerdict returns why a was not exchanged for the coldest extent left in the
// tier at position to.
func (pl *planner) swapVerdict(a candidate, from, to int) Reason {
	l, u := pl.tiers[from], pl.tiers[to]
	if u.victim == len(u.coldList) {
		return ReasonFull
	}
	down := pl.wayDown(&pair{l: from, u: to})
	back := l
	if down >= 0 {
		back = pl.tiers[down]
	}
	b := u.coldList[u.victim]
	switch _, ok := pl.pays(a, &b, l, u, back); {
	case !ok && b.cooling:
		b.cooling = false
		if _, ok := pl.pays(a, &b, l, u, back); ok {
			return ReasonCooling
		}
		return ReasonNoGain
	case !ok:
		return ReasonNoGain
	case down < 0 && !l.Writable:
		return ReasonUnhealthy // nothing can take its place
	case !pl.affordable(2):
		return ReasonBudget
	}
	return ReasonFull
}

// threshold returns the rate from which extents of the tier at position pos
// would displace one of a faster tier.
func (pl *planner) threshold(pos int) float64 {
	lowest := -1.0
	for _, u := range pl.tiers[:pos] {
		if !u.Writable || u.delay >= pl.tiers[pos].delay {
			continue
		}
		rate := 0.0
		if u.free <= u.keep {
			if u.victim == len(u.coldList) {
				continue
			}
			rate = (1 + pl.p.Hysteresis) * u.coldList[u.victim].rate
		}
		if lowest < 0 || rate < lowest {
			lowest = rate
		}
	}
	return lowest
}
