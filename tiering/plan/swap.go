package plan

// pair is a slower tier l and a faster one u, with the places in their lists up
// to which everything is taken or refused. Both only move on: a later extent of
// the hot list gains less, a later one of the cold list costs more.
type pair struct {
	l, u int
	hot  int // next of tiers[l].hotList
	cold int // next of tiers[u].coldList
}

// offer is the best move that a pair has to make.
type offer struct {
	a, b    candidate
	swap    bool // b makes room; else the target has a free slot
	down    int  // where b goes: to the place of a, or to free slots elsewhere
	upFirst bool // a moves before b, for want of a free slot below
	gain    float64
}

// heatMoves takes the best offer of all pairs, until none is left.
func (pl *planner) heatMoves() {
	var pairs []*pair
	for l := range pl.tiers {
		for u := range l {
			if pl.tiers[u].Writable {
				pairs = append(pairs, &pair{l: l, u: u})
			}
		}
	}

	for {
		var best offer
		var from *pair
		for _, p := range pairs {
			if o, ok := pl.offer(p); ok && (from == nil || o.perMove() > best.perMove()) {
				best, from = o, p
			}
		}
		if from == nil {
			return
		}
		pl.accept(best, from)
	}
}

func (o offer) perMove() float64 {
	if o.swap {
		return o.gain / 2
	}
	return o.gain
}

func (pl *planner) accept(o offer, p *pair) {
	why := ReasonHot
	if pl.tiers[p.u].ID > pl.tiers[p.l].ID {
		why = ReasonWarm
	}
	if !o.swap {
		pl.move(o.a, p.u, why, o.gain)
		return
	}
	first := len(pl.plan.Moves)
	if o.upFirst {
		pl.move(o.a, p.u, why, o.gain)
		pl.move(o.b, o.down, ReasonCold, 0)
	} else {
		pl.move(o.b, o.down, ReasonCold, 0)
		pl.move(o.a, p.u, why, o.gain)
	}
	for i := range pl.plan.Moves[first:] {
		pl.plan.Moves[first+i].Swap = true
	}
}

// offer finds the best move of p that is possible now.
func (pl *planner) offer(p *pair) (offer, bool) {
	l, u := pl.tiers[p.l], pl.tiers[p.u]
	for {
		p.hot = pl.skipTaken(l.hotList, p.hot)
		p.cold = pl.skipTaken(u.coldList, p.cold)
		if p.hot == len(l.hotList) || u.wear < 1 || !pl.faster(u, l) {
			return offer{}, false
		}
		a := l.hotList[p.hot]

		// Into a free slot, if the headroom leaves one.
		if u.free > u.keep {
			if !pl.affordable(1) {
				return offer{}, false
			}
			if gain, ok := pl.pays(a, nil, l, u, nil); ok {
				return offer{a: a, gain: gain}, true
			}
			p.hot++
			continue
		}

		// In exchange for the coldest there.
		if p.cold == len(u.coldList) || !pl.affordable(2) {
			return offer{}, false
		}
		b := u.coldList[p.cold]
		down := pl.wayDown(p)
		if down < 0 {
			return offer{}, false // no slot to turn round in, for now
		}
		gain, ok := pl.pays(a, &b, l, u, pl.tiers[down])
		if ok {
			return offer{a: a, b: b, swap: true, down: down, upFirst: pl.tiers[down].free < 1, gain: gain}, true
		}
		switch {
		case !(gain > 0):
			return offer{}, false // the best of the rest would not gain either
		case b.cooling && !a.cooling:
			p.cold++
		default:
			p.hot++
		}
	}
}

// faster reports whether u is faster than l as the plan stands. For one that is the
// slower by design it has to be so by the hysteresis: measurements of utilisation vary.
func (pl *planner) faster(u, l *tierState) bool {
	if u.ID > l.ID {
		return (1+pl.p.Hysteresis)*u.delay < l.delay
	}
	return u.delay < l.delay
}

// wayDown returns the position of the tier that takes what leaves p.u for an
// extent of p.l, or -1. A tier in between with slots to spare is best; next the
// place of the one that comes up, if either of the two tiers has a slot to turn
// round in; last any slower tier with slots to spare.
func (pl *planner) wayDown(p *pair) int {
	for d := p.u + 1; d < len(pl.tiers); d++ {
		t := pl.tiers[d]
		if !t.Writable || t.wear < 1 || t.delay <= pl.tiers[p.u].delay {
			continue
		}
		if t.free > t.keep || d == p.l && (t.free > 0 || pl.tiers[p.u].free > 0) {
			return d
		}
	}
	return -1
}

func (pl *planner) skipTaken(list []candidate, i int) int {
	for i < len(list) && pl.isTaken(list[i].key) {
		i++
	}
	return i
}

// surpasses reports whether a is hotter than b by the hysteresis, and by more than chance
// makes likely: the variance of the difference is the sum of the variances.
func (pl *planner) surpasses(a, b candidate) bool {
	f, z := 1+pl.p.Hysteresis, pl.p.Confidence
	d := a.rate - f*b.rate
	return z <= 0 || d > 0 && d*d > z*z*(a.noise*a.rate+f*f*b.noise*b.rate)
}

// pays returns the gain of moving a from l to u, in exchange for b that goes from
// u to down if b is not nil, in seconds of latency saved per second, and whether
// it is worth the copies. With down = l it is
//
//	g = (r_a - (1+eta) r_b) (d_l - d_u)
//	g * H0 > kappa * c,  c = moves * size * (1/bw_l + 1/bw_u)
//
// An extent that has only just moved has to earn several times that, or, without
// a cost to compare with, stays for its residence.
func (pl *planner) pays(a candidate, b *candidate, l, u, down *tierState) (gain float64, ok bool) {
	cooling := a.cooling
	gain = a.rate * (l.delay - u.delay)
	seconds := l.perByte + u.perByte
	if b != nil {
		gain -= (1 + pl.p.Hysteresis) * b.rate * (down.delay - u.delay)
		if !pl.surpasses(a, *b) {
			return gain, false
		}
		seconds += down.perByte + u.perByte
		cooling = cooling || b.cooling
	}
	if !(gain > 0) {
		return gain, false
	}
	need := pl.p.CostFactor * float64(pl.p.ExtentSize) * seconds
	if cooling {
		if need <= 0 {
			return gain, false
		}
		need *= residenceFactor
	}
	return gain, need == 0 || gain*pl.horizon > need
}
