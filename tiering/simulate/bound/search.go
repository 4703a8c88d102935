package bound

import (
	"context"
	"math"
	"slices"
)

// rounding is the share by which sums of many numbers may be off.
const rounding = 1e-9

// Limits and constants of the search. It ends when nothing is open, which takes some
// 50 to 150 rounds; more groups take fewer rounds, which are longer.
const (
	maxRounds = 400
	maxBlocks = 64
	maxGroups = 8
	toBest    = 0.5 // how far prices are drawn from the newest to the best
	precision = 0.5 // with which the combination is solved, of what is open
)

// search closes in on the most accesses that can be served after cycle 0: from above
// by prices, from below by combinations of what extents chose at earlier prices.
type search struct {
	*chains
	lp   program
	free float64 // more than all accesses: price of what there is none of

	// Limits are rows of lp, in which they are 1. With many cycles, neighbours share a
	// row, and a price.
	limit               []float64 // by row
	roomRow, entryRow   []int     // by cycle: row, or -1
	shared              bool
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
	for t := range s.roomRow {
		s.roomRow[t], s.entryRow[t] = -1, -1
	}
	row := func(of []int, first, end int, limit float64) {
		if limit <= 0 {
			return
		}
		for t := first; t < end; t++ {
			of[t] = len(s.limit)
		}
		s.limit = append(s.limit, limit*float64(end-first))
	}
	row(s.roomRow, 0, 1, c.room[0])
	span := (c.cycles + maxBlocks - 1) / maxBlocks
	s.shared = span > 1
	for t := 1; t < c.cycles; t += span {
		end := min(t+span, c.cycles)
		row(s.roomRow, t, end, c.room[t])
		row(s.entryRow, t, end, c.entries)
	}

	s.best = make([]float64, len(s.limit))
	s.lp = program{rows: len(s.limit), groups: min(maxGroups, len(c.begin))}
	for g := range s.lp.groups {
		s.lp.columns = append(s.lp.columns, column{group: g, use: make([]float64, len(s.limit))})
	}
	p := s.prices(s.best)
	s.bestRoom, s.bestEntry = p.room, p.entry
	return s
}

// run goes on until no more than a share of the accesses is open, counting those of
// cycle 0, or what rounding leaves open. Its error is the context's.
func (s *search) run(ctx context.Context, tolerance float64) error {
	y := make([]float64, s.lp.rows)
	for s.upper-s.lower > max(tolerance*(s.fixed+s.upper), 4*rounding*s.upper) && s.rounds < maxRounds {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.rounds++
		s.ask(y)
		sol := s.lp.solve(max(precision*(s.upper-s.lower), 1e-3) / s.free)
		s.settle(sol)
		s.forget(sol)
		for i, v := range sol.price {
			y[i] = toBest*s.best[i] + (1-toBest)*v
		}
	}
	return nil
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

// ask evaluates the bound at the prices of rows, and adds what extents choose at
// them as columns.
func (s *search) ask(y []float64) {
	p := s.prices(y)
	uses := make([]use, s.lp.groups)
	for g := range uses {
		uses[g] = use{room: make([]float64, s.cycles), entries: make([]float64, s.cycles)}
	}
	if v := s.dual(p, uses); v <= s.upper {
		s.upper = max(v, s.lower)
		s.bestRoom, s.bestEntry = p.room, p.entry
		copy(s.best, y)
	}
	for g, u := range uses {
		c := column{group: g, value: u.served / s.free, use: make([]float64, s.lp.rows)}
		for t := range s.cycles {
			if r := s.roomRow[t]; r >= 0 {
				c.use[r] += u.room[t] / s.limit[r]
			}
			if r := s.entryRow[t]; r >= 0 {
				c.use[r] += u.entries[t] / s.limit[r]
			}
		}
		s.lp.columns = append(s.lp.columns, c)
	}
}

// settle takes a combination for what it is worth once it keeps to every row, as a
// part of it beside nothing does. The best placement serves a whole number of
// accesses, so that nothing is between two of them.
func (s *search) settle(sol solution) {
	if s.shared {
		return // in the sum of some cycles it keeps to limits, not in each
	}
	sums := make([]float64, s.lp.groups)
	for j, c := range s.lp.columns {
		sums[c.group] += sol.share[j]
	}
	value, used := 0.0, make([]float64, s.lp.rows)
	for j, c := range s.lp.columns {
		share := sol.share[j] / sums[c.group]
		value += share * c.value
		add(used, share, c.use)
	}
	most := 1.0
	for _, u := range used {
		most = max(most, u)
	}
	if v := math.Ceil(value/most*s.free*(1-rounding) - 1e-6); v > s.lower {
		s.lower = min(v, s.upper)
	}
}

// forget removes the columns of the smallest shares when there are many, but not
// those that use nothing.
func (s *search) forget(sol solution) {
	keep := 2 * (s.lp.rows + s.lp.groups)
	if len(s.lp.columns) < 2*keep {
		return
	}
	sorted := slices.Clone(sol.share)
	slices.Sort(sorted)
	least := sorted[len(sorted)-keep]
	columns := s.lp.columns[:s.lp.groups]
	for j, c := range s.lp.columns {
		if j >= s.lp.groups && sol.share[j] >= least {
			columns = append(columns, c)
		}
	}
	s.lp.columns = columns
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
