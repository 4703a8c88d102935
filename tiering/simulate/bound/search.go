package bound

import (
	"context"
	"math"
)

// rounding is the share by which sums of many numbers may be off.
const rounding = 1e-9

// search closes in on the most accesses that can be served after cycle 0: from above
// by prices, from below by combinations of what extents chose at earlier prices.
type search struct {
	*chains
	free float64 // more than all accesses: price of what there is none of

	// Limits are rows, in which they are 1, as free is of accesses.
	limit             []float64 // by row
	roomRow, entryRow []int     // by cycle: row, or -1

	upper, lower        float64
	best                []float64 // prices of rows that gave upper
	bestRoom, bestEntry []float64 // by cycle
	rounds              int
}

func newSearch(c *chains) *search {
	s := &search{
		chains: c, free: c.possible + 1,
		roomRow: make([]int, c.cycles), entryRow: make([]int, c.cycles),
		upper: c.possible, lower: c.static,
	}
	row := func(limit float64) int {
		if limit <= 0 {
			return -1
		}
		s.limit = append(s.limit, limit)
		return len(s.limit) - 1
	}
	for t := range c.cycles {
		s.roomRow[t], s.entryRow[t] = row(c.room[t]), -1
		if t > 0 {
			s.entryRow[t] = row(c.entries)
		}
	}
	s.best = make([]float64, len(s.limit))
	p := s.prices(s.best)
	s.bestRoom, s.bestEntry = p.room, p.entry
	return s
}

// Beyond so many cycles, combinations take too long to solve.
const maxCombined = 64

// run goes on until no more than a share of the accesses is open, counting those of
// cycle 0, or what rounding leaves open, or a limit of rounds is reached. Its error
// is the context's.
func (s *search) run(ctx context.Context, tolerance float64) error {
	done := func() bool {
		return s.upper-s.lower <= max(tolerance*(s.fixed+s.upper), 4*rounding*s.upper)
	}
	if s.cycles > maxCombined {
		return s.descend(ctx, done)
	}
	return s.combine(ctx, done)
}

// prices returns the prices of cycles for those of rows.
func (s *search) prices(y []float64) *prices {
	room, entry := make([]float64, s.cycles), make([]float64, s.cycles)
	for t := range s.cycles {
		room[t] = s.price(y, s.roomRow[t], s.room[t])
		if t > 0 {
			entry[t] = s.price(y, s.entryRow[t], s.entries)
		}
	}
	return newPrices(room, entry)
}

func (s *search) price(y []float64, row int, limit float64) float64 {
	switch {
	case row >= 0:
		return y[row] * s.free / s.limit[row]
	case limit < 0:
		return 0
	}
	return s.free
}

// ask evaluates the bound at the prices of rows, and returns what some groups of the
// extents choose at them: what that serves, and uses in each row.
func (s *search) ask(y []float64, groups int) []column {
	p := s.prices(y)
	uses := make([]use, groups)
	for g := range uses {
		uses[g] = use{room: make([]float64, s.cycles), entries: make([]float64, s.cycles)}
	}
	if v := s.dual(p, uses); v <= s.upper {
		s.upper = max(v, s.lower)
		s.bestRoom, s.bestEntry = p.room, p.entry
		copy(s.best, y)
	}
	columns := make([]column, groups)
	for g, u := range uses {
		c := column{group: g, value: u.served / s.free, use: make([]float64, len(s.limit))}
		for t := range s.cycles {
			if r := s.roomRow[t]; r >= 0 {
				c.use[r] = u.room[t] / s.limit[r]
			}
			if r := s.entryRow[t]; r >= 0 {
				c.use[r] = u.entries[t] / s.limit[r]
			}
		}
		columns[g] = c
	}
	return columns
}

// settle takes a combination of choices for what it is worth once it keeps to every
// row, as a part of it beside nothing does. The best placement serves a whole number
// of accesses, so that nothing is between two of them.
func (s *search) settle(value float64, used []float64) {
	most := 1.0
	for _, u := range used {
		most = max(most, u)
	}
	if v := math.Ceil(value/most*s.free*(1-rounding) - 1e-6); v > s.lower {
		s.lower = min(v, s.upper)
	}
}

// dual returns what no placement serves more than after cycle 0, as prices that are
// not negative prove it: the accesses less the prices of what is used are at most
// best, and there is no more to be used than the limits.
func (c *chains) dual(p *prices, into []use) float64 {
	total := c.bestPaths(p, into)
	for t, room := range c.room {
		total += room * p.room[t]
		if t > 0 {
			total += max(c.entries, 0) * p.entry[t]
		}
	}
	return math.Floor(total*(1+rounding) + 1e-6)
}
