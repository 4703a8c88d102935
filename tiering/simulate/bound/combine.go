package bound

import (
	"context"
	"slices"
)

// Constants of combine, which takes some 50 to 150 rounds. More groups take fewer
// rounds, which are longer.
const (
	maxRounds = 400
	maxGroups = 8
	toBest    = 0.5 // how far prices are drawn from the newest to the best
	precision = 0.5 // with which a combination is solved, of what is open
)

// combine searches by columns: the best combination of all choices so far is worth
// what can be had, and its prices are the next to ask.
func (s *search) combine(ctx context.Context, done func() bool) error {
	lp := program{rows: len(s.limit), groups: min(maxGroups, len(s.begin))}
	for g := range lp.groups {
		lp.columns = append(lp.columns, column{group: g, use: make([]float64, lp.rows)})
	}
	y := make([]float64, lp.rows)
	for !done() && s.rounds < maxRounds {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.rounds++
		lp.columns = append(lp.columns, s.ask(y, lp.groups)...)
		sol := lp.solve(max(precision*(s.upper-s.lower), 1e-3) / s.free)
		s.settle(lp.mix(sol.share))
		lp.forget(sol.share)
		for i, v := range sol.price {
			y[i] = toBest*s.best[i] + (1-toBest)*v
		}
	}
	return nil
}

// mix returns the value and the use of a combination, the shares of which are made
// to sum to 1 in each group.
func (lp *program) mix(share []float64) (value float64, used []float64) {
	sums := make([]float64, lp.groups)
	for j, c := range lp.columns {
		sums[c.group] += share[j]
	}
	used = make([]float64, lp.rows)
	for j, c := range lp.columns {
		part := share[j] / sums[c.group]
		value += part * c.value
		add(used, part, c.use)
	}
	return value, used
}

// forget removes the columns of the smallest shares when there are many, but not
// those that use nothing.
func (lp *program) forget(share []float64) {
	keep := 4 * (lp.rows + lp.groups)
	if len(lp.columns) < 2*keep {
		return
	}
	sorted := slices.Clone(share)
	slices.Sort(sorted)
	least := sorted[len(sorted)-keep]
	columns := lp.columns[:lp.groups]
	for j, c := range lp.columns {
		if j >= lp.groups && share[j] >= least {
			columns = append(columns, c)
		}
	}
	lp.columns = columns
}
