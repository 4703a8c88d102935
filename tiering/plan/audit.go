package plan

import (
	"slices"

	"tierd/tiering/extent"
)

const (
	// auditAfter is for how many cycles a move is followed before it is judged, and
	// maxAudited how many are followed at a time.
	auditAfter = 8
	maxAudited = 1024

	// auditMemory is what a judgement counts for after each cycle that brought another.
	auditMemory = 0.9
	// goodEnough is the part of the gain that has to come true. It is less than one would
	// think: the extents that are moved are those that had luck, and much of what is gained
	// is gained later.
	goodEnough = 0.1
	// leastShare of the budget always goes on being tried: what is not tried cannot prove
	// itself.
	leastShare = 0.05
)

// Audit compares what moves were expected to gain with what they gained, by the accesses
// that the extents got afterwards. Where frequency does not tell what comes next, as with
// bursts that move on and do not come back, moving costs more than it brings: then Limit
// takes most of the budget away, until moves pay again. The zero Audit is ready; it is for
// one goroutine at a time.
type Audit struct {
	watched             []watched
	predicted, realised float64 // of late, seconds of latency saved
	sum                 [2]float64
	limited             bool
	allowed             float64 // bytes, if limited
}

// watched is a move for heat, with the one that made room for it.
type watched struct {
	cycle uint32
	moves [2]audited
}

// audited is what is followed of one move; the zero value is none.
type audited struct {
	key         extent.Key
	ios         uint32
	rate, saves float64
}

// Accesses tells how many accesses an extent has had since it is known, and whether that
// can be told.
type Accesses func(extent.Key) (n uint32, ok bool)

// Judge looks at the moves that are auditAfter cycles old. seconds is the length of a
// cycle.
func (a *Audit) Judge(cycle uint32, seconds float64, accesses Accesses) {
	rest := a.watched[:0]
	var predicted, realised float64
	for _, w := range a.watched {
		age := cycle - w.cycle
		if age < auditAfter {
			rest = append(rest, w)
			continue
		}
		p, r, ok := 0.0, 0.0, true
		for _, m := range w.moves {
			if m.key == (extent.Key{}) {
				continue
			}
			n, known := accesses(m.key)
			ok = ok && known && n >= m.ios // else it was trimmed, or there are too many to count
			p += m.rate * m.saves * float64(age) * seconds
			r += float64(n-m.ios) * m.saves
		}
		if ok {
			predicted, realised = predicted+p, realised+r
		}
	}
	a.watched = rest
	if predicted > 0 {
		a.predicted = auditMemory*a.predicted + predicted
		a.realised = auditMemory*a.realised + realised
		a.sum[0] += predicted
		a.sum[1] += realised
	}
}

// Note begins to follow moves of a plan, evenly chosen if there are many.
func (a *Audit) Note(cycle uint32, moves []Move, accesses Accesses) {
	var pairs []watched
	size := int64(0)
	for i := 0; i < len(moves); i++ {
		m := moves[i]
		size = m.Bytes
		w := watched{cycle: cycle}
		switch {
		case m.Swap && i+1 < len(moves): // the two of an exchange follow each other
			i++
			w.moves = [2]audited{{key: m.Key, rate: m.Rate, saves: m.Saves}, {key: moves[i].Key, rate: moves[i].Rate, saves: moves[i].Saves}}
		case m.Reason == ReasonHot || m.Reason == ReasonWarm:
			w.moves[0] = audited{key: m.Key, rate: m.Rate, saves: m.Saves}
		default:
			continue
		}
		pairs = append(pairs, w)
	}
	for _, w := range pairs {
		for _, m := range w.moves {
			if a.limited && m.key != (extent.Key{}) {
				a.allowed -= float64(size)
			}
		}
	}
	room := min(maxAudited/auditAfter, maxAudited-len(a.watched))
	if room <= 0 {
		return
	}
	step := max((len(pairs)+room-1)/room, 1)
	for i := 0; i < len(pairs); i += step {
		w, ok := pairs[i], true
		for j := range w.moves {
			if m := &w.moves[j]; m.key != (extent.Key{}) {
				var known bool
				m.ios, known = accesses(m.key)
				ok = ok && known
			}
		}
		if ok {
			a.watched = append(a.watched, w)
		}
	}
}

// Share returns the share of the budget that moves for heat have earned: all of it until
// something was judged, and as long as a tenth of what was expected came true.
func (a *Audit) Share() float64 {
	if a.predicted <= 0 {
		return 1
	}
	return min(max(a.realised/a.predicted/goodEnough, leastShare), 1)
}

// Begin begins a cycle. mean is what a cycle may write in the mean, in bytes; negative: no
// limit. Moves for heat get the share of it that they have earned: what was saved up is
// not for moves that may not pay.
func (a *Audit) Begin(size, mean int64) {
	share := a.Share()
	if a.limited = share < 1 && mean >= 0; !a.limited {
		a.allowed = 0
		return
	}
	each := share * float64(mean)
	a.allowed = min(a.allowed+each, max(each, 2*float64(size)))
}

// Limit sets what moves for heat may write in this cycle, if p leaves it to the audit.
func (a *Audit) Limit(p *Policy) {
	if p.Audited && a.limited {
		p.HeatLimited, p.HeatBytes = true, int64(a.allowed)
	}
}

// Clone returns a copy that shares nothing.
func (a *Audit) Clone() *Audit {
	c := *a
	c.watched = slices.Clone(a.watched)
	return &c
}

// Totals returns the seconds of latency that the moves judged so far were expected to save
// while they were followed, and what they saved.
func (a *Audit) Totals() (predicted, realised float64) { return a.sum[0], a.sum[1] }
