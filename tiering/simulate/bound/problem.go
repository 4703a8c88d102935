package bound

import (
	"errors"
	"fmt"
	"math"
)

// Unplaced is the tier of an extent that is not there before its first access,
// which puts it where it is best, at no cost.
const Unplaced = -1

// Access is how often an extent is used in one cycle.
type Access struct {
	Cycle int
	Count int64
}

// Extent is one extent: where it lies in cycle 0, and its accesses in the order of
// their cycles, each of which may be named once.
type Extent struct {
	Tier     int // index into Problem.Tiers, or Unplaced
	Accesses []Access
}

// Tier is one tier: what an access takes, in any unit of time, which is that of all
// results, and how many extents it holds.
type Tier struct {
	Delay   float64
	Extents int
}

// Problem is the load and the tiers, fastest first. Promotions are the moves into a
// faster tier that may be made before each cycle but the first, of which an exchange
// makes one; negative: no limit. Moves into slower tiers cost nothing.
type Problem struct {
	Cycles     int
	Tiers      []Tier
	Promotions int
	Extents    []Extent

	// Tolerance is the Boundary.Gap at which the search may end; 0: only at none.
	Tolerance float64
}

// maxAccesses bounds the sum of the counts, so that it is exact as a float64.
const maxAccesses = 1 << 52

// Validate returns the first fault of p, or nil.
func (p Problem) Validate() error {
	if p.Cycles < 1 || p.Cycles > math.MaxInt32 {
		return fmt.Errorf("cycles must be above 0 and below 2^31 (got %d)", p.Cycles)
	}
	if len(p.Tiers) == 0 {
		return errors.New("there must be a tier")
	}
	if !(p.Tolerance >= 0) {
		return fmt.Errorf("tolerance must not be negative (got %v)", p.Tolerance)
	}
	room := 0
	for k, t := range p.Tiers {
		switch {
		case !(t.Delay >= 0) || math.IsInf(t.Delay, 0):
			return fmt.Errorf("tier %d: delay must be a number and not negative (got %v)", k, t.Delay)
		case k > 0 && t.Delay < p.Tiers[k-1].Delay:
			return fmt.Errorf("tier %d: tiers must be in the order of their delays, fastest first (got %v after %v)", k, t.Delay, p.Tiers[k-1].Delay)
		case t.Extents < 0:
			return fmt.Errorf("tier %d: cannot hold %d extents", k, t.Extents)
		}
		room += min(t.Extents, len(p.Extents))
	}
	if room < len(p.Extents) {
		return fmt.Errorf("%d extents do not fit into tiers for %d", len(p.Extents), room)
	}
	return p.validateExtents()
}

func (p Problem) validateExtents() error {
	held := make([]int, len(p.Tiers))
	var sum int64
	for e, x := range p.Extents {
		if x.Tier != Unplaced {
			if x.Tier < 0 || x.Tier >= len(p.Tiers) {
				return fmt.Errorf("extent %d: there is no tier %d", e, x.Tier)
			}
			held[x.Tier]++
		}
		for i, a := range x.Accesses {
			switch {
			case a.Cycle < 0 || a.Cycle >= p.Cycles:
				return fmt.Errorf("extent %d: there is no cycle %d", e, a.Cycle)
			case i > 0 && a.Cycle <= x.Accesses[i-1].Cycle:
				return fmt.Errorf("extent %d: accesses must be in the order of their cycles (got %d after %d)", e, a.Cycle, x.Accesses[i-1].Cycle)
			case a.Count < 0:
				return fmt.Errorf("extent %d, cycle %d: cannot have %d accesses", e, a.Cycle, a.Count)
			case a.Count > maxAccesses-sum:
				return fmt.Errorf("extent %d, cycle %d: more than 2^52 accesses in all", e, a.Cycle)
			}
			sum += a.Count
		}
	}
	for k, n := range held {
		if n > p.Tiers[k].Extents {
			return fmt.Errorf("tier %d: begins with %d extents and holds %d", k, n, p.Tiers[k].Extents)
		}
	}
	return nil
}

// accesses returns the sum of all counts.
func (p Problem) accesses() int64 {
	var sum int64
	for _, x := range p.Extents {
		for _, a := range x.Accesses {
			sum += a.Count
		}
	}
	return sum
}

// capacity returns how many extents the tiers down to tier k hold together.
func (p Problem) capacity(k int) int {
	n := 0
	for _, t := range p.Tiers[:k+1] {
		n = min(n+min(t.Extents, len(p.Extents)), len(p.Extents))
	}
	return n
}
