package bound

import (
	"cmp"
	"slices"
)

// chains is the problem at one boundary: which extents to hold above it in which
// cycles. Extents stand side by side, each with its accesses after cycle 0, where
// those that are placed have no choice; accesses of cycle 0 are in fixed. Extents
// that are alike are one.
type chains struct {
	cycles   int
	room     []float64 // by cycle: extents that can be held beside those of fixed
	entries  float64   // that can be made before each cycle but 0; negative: no limit
	fixed    float64   // accesses served in cycle 0
	static   float64   // accesses served after cycle 0 if nothing moves
	possible float64   // accesses after cycle 0, and of what is unplaced

	begin  []origin  // by extent
	alike  []float64 // by extent: how many there are of it
	start  []int     // by extent, and one more: its first access in the two below
	cycle  []int32
	count  []float64
	choice []step // scratch: by access
}

// origin is where an extent lies in cycle 0.
type origin uint8

const (
	below    origin = iota // enters at the price of an entry
	above                  // is held in cycle 0
	unplaced               // enters freely with its first access
)

// newChains returns the problem at the boundary below tier k.
func newChains(p Problem, k int) *chains {
	c := &chains{cycles: p.Cycles, entries: float64(p.Promotions), room: make([]float64, p.Cycles), start: []int{0}}
	for t := range c.room {
		c.room[t] = float64(p.capacity(k))
	}
	links := make([]link, 0, len(p.Extents))
	for _, x := range p.Extents {
		l := link{below, x.Accesses}
		switch {
		case x.Tier == Unplaced:
			l.from = unplaced
		case x.Tier <= k:
			l.from = above
			c.room[0]--
		}
		for len(l.accesses) > 0 && (l.accesses[0].Count == 0 || l.accesses[0].Cycle == 0 && l.from != unplaced) {
			if l.from == above {
				c.fixed += float64(l.accesses[0].Count)
			}
			l.accesses = l.accesses[1:]
		}
		links = append(links, l)
	}

	slices.SortFunc(links, compare)
	added := false
	for i, l := range links {
		if i == 0 || compare(l, links[i-1]) != 0 {
			added = c.add(l)
		} else if added {
			c.alike[len(c.alike)-1]++
		}
		if !added {
			continue
		}
		last := len(c.alike) - 1
		for _, n := range c.count[c.start[last]:] {
			c.possible += n
			if l.from == above {
				c.static += n
			}
		}
	}
	c.choice = make([]step, len(c.count))
	return c
}

// link is an extent as a boundary sees it.
type link struct {
	from     origin
	accesses []Access
}

// compare orders links such that those that are alike are neighbours.
func compare(a, b link) int {
	if n := int(a.from) - int(b.from); n != 0 {
		return n
	}
	return slices.CompareFunc(a.accesses, b.accesses, func(a, b Access) int {
		return cmp.Or(cmp.Compare(a.Cycle, b.Cycle), cmp.Compare(a.Count, b.Count))
	})
}

// add adds an extent, unless it has no access to come: there is no use in holding it.
func (c *chains) add(l link) bool {
	for _, a := range l.accesses {
		if a.Count > 0 {
			c.cycle = append(c.cycle, int32(a.Cycle))
			c.count = append(c.count, float64(a.Count))
		}
	}
	if len(c.count) == c.start[len(c.start)-1] {
		return false
	}
	c.begin = append(c.begin, l.from)
	c.alike = append(c.alike, 1)
	c.start = append(c.start, len(c.count))
	return true
}
