package bound_test

import (
	"math"
	"math/rand/v2"

	"tierd/tiering/simulate/bound"
)

// The solvers here are slow and share nothing with the package but its types.

// random returns a small problem of so many tiers at most.
func random(r *rand.Rand, extents, cycles, tiers int) bound.Problem {
	n := 1 + r.IntN(extents)
	p := bound.Problem{Cycles: 1 + r.IntN(cycles), Promotions: r.IntN(n+2) - 1}
	delay := 0.0
	for k := range 1 + r.IntN(tiers) {
		delay += float64(r.IntN(4))
		p.Tiers = append(p.Tiers, bound.Tier{Delay: delay, Extents: r.IntN(n + 1)})
		if k > 0 && r.IntN(8) == 0 {
			p.Tiers[k].Delay = p.Tiers[k-1].Delay
		}
	}
	p.Tiers[len(p.Tiers)-1].Extents = n
	held := make([]int, len(p.Tiers))
	most := int64(1 + r.IntN(20))
	for range n {
		var x bound.Extent
		for x.Tier = r.IntN(len(p.Tiers)); held[x.Tier] == p.Tiers[x.Tier].Extents; x.Tier++ {
		}
		if r.IntN(5) == 0 {
			x.Tier = bound.Unplaced
		} else {
			held[x.Tier]++
		}
		busy := r.Float64()
		for t := range p.Cycles {
			if r.Float64() < busy {
				x.Accesses = append(x.Accesses, bound.Access{Cycle: t, Count: r.Int64N(most + 1)})
			}
		}
		p.Extents = append(p.Extents, x)
	}
	return p
}

// counts returns the accesses by extent and cycle, and the cycle of each extent's
// first one.
func counts(p bound.Problem) (n [][]int64, first []int) {
	for _, x := range p.Extents {
		row, f := make([]int64, p.Cycles), p.Cycles
		for _, a := range x.Accesses {
			row[a.Cycle] = a.Count
			if a.Count > 0 {
				f = min(f, a.Cycle)
			}
		}
		n, first = append(n, row), append(first, f)
	}
	return n, first
}

// byPlacements returns the least delay of all, by trying every placement after
// every other.
func byPlacements(p bound.Problem) float64 {
	n, first := counts(p)
	tiers, last := len(p.Tiers), len(p.Tiers)-1
	states := 1
	for range p.Extents {
		states *= tiers
	}
	decode := func(s int) []int {
		where := make([]int, len(p.Extents))
		for e := range where {
			where[e] = s % tiers
			s /= tiers
		}
		return where
	}
	// What is not there yet counts as in the last tier, which holds all.
	absent := func(e, t int) bool { return p.Extents[e].Tier == bound.Unplaced && t < first[e] }
	allowed := func(where []int, t int) bool {
		held := make([]int, tiers)
		for e, k := range where {
			held[k]++
			if absent(e, t) && k != last || t == 0 && p.Extents[e].Tier != bound.Unplaced && k != p.Extents[e].Tier {
				return false
			}
		}
		for k := range held {
			if held[k] > p.Tiers[k].Extents {
				return false
			}
		}
		return true
	}
	best := make([]float64, states)
	for t := range p.Cycles {
		next := make([]float64, states)
		for s := range next {
			next[s] = math.Inf(1)
			to := decode(s)
			if !allowed(to, t) {
				continue
			}
			before := math.Inf(1)
			for f := range states {
				from, promotions := decode(f), 0
				for e := range to {
					if t > 0 && to[e] < from[e] && !absent(e, t-1) {
						promotions++
					}
				}
				if t == 0 || p.Promotions < 0 || promotions <= p.Promotions {
					before = min(before, best[f])
				}
			}
			for e, k := range to {
				before += float64(n[e][t]) * p.Tiers[k].Delay
			}
			next[s] = before
		}
		best = next
	}
	least := math.Inf(1)
	for _, v := range best {
		least = min(least, v)
	}
	return least
}

// arc is one of a flow network; the next one is its reverse.
type arc struct {
	from, to int
	room     int
	gain     int64
}

// byFlow returns the most accesses that the tiers down to k can serve: the problem
// of one boundary as a flow of greatest gain, found by successive longest paths.
func byFlow(p bound.Problem, k int) int64 {
	n, first := counts(p)
	capacity := 0
	for _, t := range p.Tiers[:k+1] {
		capacity += t.Extents
	}
	capacity = min(capacity, len(p.Extents))
	const source = 0
	pool := func(t int) int { return 1 + t }
	gate := func(t int) int { return 2 + p.Cycles + t }
	in := func(e, t int) int { return 2 + 2*p.Cycles + 2*(e*p.Cycles+t) }
	nodes := in(len(p.Extents), 0)
	var arcs []arc
	join := func(from, to, room int, gain int64) {
		arcs = append(arcs, arc{from, to, room, gain}, arc{to, from, 0, -gain})
	}
	budget := p.Promotions
	if budget < 0 {
		budget = len(p.Extents)
	}
	for t := range p.Cycles {
		join(pool(t), pool(t+1), capacity, 0)
		if t > 0 {
			join(pool(t), gate(t), budget, 0)
		}
	}
	var fixed int64
	placed := 0
	for e, x := range p.Extents {
		if x.Tier != bound.Unplaced && x.Tier <= k {
			placed++
			join(source, in(e, 0)+1, 1, 0)
			fixed += n[e][0]
		}
		for t := range p.Cycles {
			there := x.Tier != bound.Unplaced || t >= first[e]
			if !there {
				continue
			}
			if t > 0 || x.Tier == bound.Unplaced {
				join(in(e, t), in(e, t)+1, 1, n[e][t])
			}
			if x.Tier == bound.Unplaced && t == first[e] {
				join(pool(t), in(e, t), 1, 0)
			} else if t > 0 {
				join(gate(t), in(e, t), 1, 0)
			}
			join(in(e, t)+1, pool(t+1), 1, 0)
			if t+1 < p.Cycles {
				join(in(e, t)+1, in(e, t+1), 1, 0)
			}
		}
	}
	join(source, pool(0), capacity-placed, 0)

	total := fixed
	for range capacity {
		gain, by := make([]int64, nodes), make([]int, nodes)
		for i := range gain {
			gain[i] = math.MinInt64
		}
		gain[source] = 0
		for changed := true; changed; {
			changed = false
			for i, a := range arcs {
				if a.room > 0 && gain[a.from] != math.MinInt64 && gain[a.from]+a.gain > gain[a.to] {
					gain[a.to], by[a.to], changed = gain[a.from]+a.gain, i, true
				}
			}
		}
		total += gain[pool(p.Cycles)]
		for v := pool(p.Cycles); v != source; v = arcs[by[v]].from {
			arcs[by[v]].room--
			arcs[by[v]^1].room++
		}
	}
	return total
}
