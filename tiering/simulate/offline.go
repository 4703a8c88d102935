package simulate

import (
	"fmt"
	"math"

	"tierd/tiering/simulate/bound"
)

// The bound is on placements of the same extents in the same tiers, with no more
// promotions a cycle than the budget pays for. Tiers that are full at the beginning
// stay so, and each promotion into one makes a demotion; else any move may be one.
//
// Accesses are priced boundary by boundary: a placement costs what it would if
// everything lay in the slowest tier, less, for each boundary between two tiers, what
// accesses above it save against the tier below. What the bound knows of one boundary
// are whole numbers: accesses, if reads and writes save alike, else savings in a
// thousandth of the larger, rounded up. Queues only add to the times taken here.
//
// Where a trace has many cycles, or a budget is kept, it is not strict: it is the bound
// of placements that change in each 24th of the trace and spend the budget evenly, the same
// for all ways to spend it, so that their shares of it can be compared.

// boundary returns the problem between the tiers k and k+1 of l, and what one of its
// accesses saves, in seconds. ok is false if nothing is saved there.
func (e *engine) boundary(l Layout, k int) (p bound.Problem, unit float64, ok bool) {
	upper, lower := l.Tiers[k], l.Tiers[k+1]
	read := (lower.Time - upper.Time).Seconds()
	write := (lower.writeTime() - upper.writeTime()).Seconds()
	if read <= 0 && write <= 0 {
		return p, 0, false
	}
	value := func(u use) int64 { return int64(u.reads) + int64(u.writes) }
	unit = read
	if read != write {
		unit = max(read, write) / 1000
		value = func(u use) int64 {
			return int64(math.Ceil(max(0, float64(u.reads)*read+float64(u.writes)*write) / unit))
		}
	}

	room := int64(0)
	for _, n := range e.slots[l.Name][:k+1] {
		room += n
	}
	all := e.info.Extents
	p = bound.Problem{
		Cycles:     e.boundCycles() + 1, // before the first, too, who knows the future may move
		Tiers:      []bound.Tier{{Delay: 0, Extents: int(min(room, int64(all)))}, {Delay: 1, Extents: all}},
		Promotions: e.promotions(),
		Extents:    make([]bound.Extent, all),
	}
	for id := range p.Extents {
		switch {
		case e.placement == HighestFirst:
			p.Extents[id].Tier = bound.Unplaced
		case id >= p.Tiers[0].Extents: // the first to be touched fill the tiers above
			p.Extents[id].Tier = 1
		}
	}
	for c, uses := range e.history {
		c = 1 + c*e.boundCycles()/e.timing.cycles
		for _, u := range uses {
			n := value(u)
			if n == 0 {
				continue
			}
			x := &p.Extents[u.extent]
			if last := len(x.Accesses) - 1; last >= 0 && x.Accesses[last].Cycle == c {
				x.Accesses[last].Count += n
			} else {
				x.Accesses = append(x.Accesses, bound.Access{Cycle: c, Count: n})
			}
		}
	}
	return p, unit, true
}

// exactCycles is up to how many cycles the bound goes by each of them. Beyond that it
// takes too long, and its cycles are the parts of the trace.
const exactCycles = 48

func (e *engine) boundCycles() int {
	if e.timing.cycles > exactCycles {
		return parts
	}
	return e.timing.cycles
}

// promotions returns how many the budget pays for in one cycle of the bound; negative:
// any number.
func (e *engine) promotions() int {
	if e.budget.each < 0 {
		return -1
	}
	moves := int64(e.budget.each*float64(e.timing.cycles)/float64(e.boundCycles())+1e-6) / e.size.Bytes()
	if e.placement == FirstTouch {
		moves /= 2
	}
	return int(min(moves, math.MaxInt32))
}

// bound returns what no placement can do better than.
func (e *engine) bound(l Layout) (PolicyResult, error) {
	last := l.Tiers[len(l.Tiers)-1]
	r, w := float64(e.info.Reads), float64(e.info.Writes)
	total := r*last.Time.Seconds() + w*last.writeTime().Seconds()
	optimal, alike := true, true // alike: what the bound counts are accesses
	var above []float64          // by boundary: share of the accesses served above it
	for k := range len(l.Tiers) - 1 {
		p, unit, ok := e.boundary(l, k)
		alike = alike && ok && l.Tiers[k+1].writeTime()-l.Tiers[k].writeTime() == l.Tiers[k+1].Time-l.Tiers[k].Time
		if !ok {
			continue
		}
		b, err := bound.Solve(p)
		if err != nil {
			return PolicyResult{}, fmt.Errorf("bound of layout %q: %w", l.Name, err)
		}
		served := float64(b.Accesses) - b.Total
		total -= served * unit
		optimal = optimal && b.Optimal
		above = append(above, served/(r+w))
	}
	out := PolicyResult{Trace: e.info.Name, Layout: l.Name, Name: Bound, MeanMS: total / (r + w) * 1e3, Optimal: &optimal, BoundCycles: e.boundCycles()}
	if alike {
		before := 0.0
		for _, share := range append(above, 1) {
			out.TierShare = append(out.TierShare, share-before)
			before = share
		}
	}
	return out, nil
}

// shareOut tells each policy of a layout what share it gets of what the bound gains
// over static placement.
func shareOut(policies []PolicyResult, static, bound float64) {
	if !(static > bound) {
		return // nothing to gain
	}
	for i := range policies {
		share := (static - policies[i].MeanMS) / (static - bound)
		policies[i].BoundShare = &share
	}
}
