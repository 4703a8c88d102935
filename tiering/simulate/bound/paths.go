package bound

import (
	"math"
	"math/bits"
)

// prices are what holding an extent in a cycle, and entering before one, cost.
type prices struct {
	room, entry []float64 // by cycle; entry[0] is not used

	held     []float64 // by cycle: sum of room in all cycles before, but cycle 0
	cheapest [][]int32 // [k][t]: among cycles t to t+2^k-1, the one best entered
}

// newPrices makes them ready for use.
func newPrices(room, entry []float64) *prices {
	n := len(room)
	p := &prices{room: room, entry: entry, held: make([]float64, n+1)}
	for t := 1; t < n; t++ {
		p.held[t+1] = p.held[t] + room[t]
	}
	base := make([]int32, n)
	for t := range base {
		base[t] = int32(t)
	}
	p.cheapest = [][]int32{base}
	for half := 1; 2*half <= n; half *= 2 {
		before := p.cheapest[len(p.cheapest)-1]
		next := make([]int32, n-2*half+1)
		for t := range next {
			next[t] = p.better(before[t], before[t+half])
		}
		p.cheapest = append(p.cheapest, next)
	}
	return p
}

// better returns which of two cycles is better to enter before: the price of entry
// and of being held from there on up to any later cycle. The later one, if equal.
func (p *prices) better(a, b int32) int32 {
	if p.entry[a]-p.held[a] < p.entry[b]-p.held[b] {
		return a
	}
	return b
}

// enter returns before which cycle of those after a and up to b an extent is best
// entered to be held in b, and what that costs without the room in b itself.
func (p *prices) enter(a, b int32) (at int32, cost float64) {
	row := p.cheapest[bits.Len32(uint32(b-a))-1]
	at = p.better(row[a+1], row[int(b)+1-1<<(bits.Len32(uint32(b-a))-1)])
	return at, p.entry[at] + p.held[b] - p.held[at]
}

// step is how an extent comes to be held, and not held, at an access.
type step uint8

const (
	stayed   step = iota // held since the access before
	returned             // held at the access before, left, entered again
	entered              // not held at the access before
	heldFrom step = 3    // bits of the above
	leftFrom step = 4    // flag: the best way not to be held now is to be held before
)

// use is what a choice for some extents takes and gives.
type use struct {
	served  float64
	room    []float64 // by cycle: extents held
	entries []float64 // by cycle: extents entered before it
}

// bestPaths finds, for each extent by itself, the cycles to be held in that give most
// after the prices, and returns the sum. The choice is added up in into, which the
// extents take by turns; empty: only the sum is wanted.
//
// With the prices fixed, extents have no more to do with each other, and for each a
// dynamic program over its accesses decides: held at an access, or not.
func (c *chains) bestPaths(p *prices, into []use) float64 {
	sum := 0.0
	for e := range c.begin {
		first, end := c.start[e], c.start[e+1]
		v, held := c.path(p, c.begin[e], first, end)
		sum += c.alike[e] * v
		if len(into) > 0 && v > 0 {
			c.trace(p, e, held, &into[e%len(into)])
		}
	}
	for _, u := range into {
		for t := 1; t < c.cycles; t++ {
			u.room[t] += u.room[t-1]
		}
	}
	return sum
}

// path runs the dynamic program of one extent, and returns its value and whether it
// is held at the last access. Choices are left in c.choice.
func (c *chains) path(p *prices, from origin, first, end int) (float64, bool) {
	in, out := math.Inf(-1), math.Inf(-1) // value if held at the access before, if not
	switch from {
	case above:
		in = 0
	case below:
		out = 0
	}
	last := int32(0)
	for i := first; i < end; i++ {
		at := c.cycle[i]
		gain := c.count[i] - p.room[at]
		if i == first && from == unplaced {
			in, out, last, c.choice[i] = gain, 0, at, entered
			continue
		}
		_, cost := p.enter(last, at)
		stay := p.held[at] - p.held[last+1]
		how, next := stayed, in-stay
		if cost < stay {
			how, next = returned, in-cost
		}
		if v := out - cost; v > next {
			how, next = entered, v
		}
		if in > out {
			how |= leftFrom
			out = in
		}
		in, last, c.choice[i] = next+gain, at, how
	}
	if in > out {
		return in, true
	}
	return out, false
}

// trace walks back over the choices of path and adds them to u, where room is kept
// as differences from one cycle to the next.
func (c *chains) trace(p *prices, e int, held bool, u *use) {
	from, first, alike := c.begin[e], c.start[e], c.alike[e]
	after := false // held until the access after the one looked at
	for i := c.start[e+1] - 1; i >= first; i-- {
		at, how := c.cycle[i], c.choice[i]
		if !held {
			held = how&leftFrom != 0
			continue
		}
		u.served += alike * c.count[i]
		if next := int(at) + 1; !after && next < c.cycles {
			u.room[next] -= alike
		}
		after = how&heldFrom == stayed
		switch {
		case i == first && from == unplaced:
			u.room[at] += alike
			return
		case !after:
			last := int32(0)
			if i > first {
				last = c.cycle[i-1]
			}
			t, _ := p.enter(last, at)
			u.room[t] += alike
			u.entries[t] += alike
			held = how&heldFrom == returned
		case i == first:
			u.room[1] += alike // of cycle 0 it is in fixed
		}
	}
}
