package bound_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"tierd/tiering/simulate/bound"
)

// zipf returns a problem of as many accesses in each cycle as there are extents, the
// most popular of which change slowly.
func zipf(extents, cycles int) bound.Problem {
	r := rand.New(rand.NewPCG(uint64(extents), 3))
	z := rand.NewZipf(r, 1.1, 1, uint64(extents-1))
	order := r.Perm(extents)
	n := make([][]int64, extents)
	for e := range n {
		n[e] = make([]int64, cycles)
	}
	for t := range cycles {
		for range extents {
			n[order[(int(z.Uint64())+t*extents/200)%extents]][t]++
		}
	}
	p := bound.Problem{
		Cycles: cycles, Promotions: extents / 50,
		Tiers: []bound.Tier{{Delay: 2, Extents: extents / 20}, {Delay: 10, Extents: extents / 4}, {Delay: 20.5, Extents: extents}},
	}
	for e, row := range n {
		x := at(0, row...)
		if e >= extents/20 {
			x.Tier++
		}
		if e >= extents/20+extents/4 {
			x.Tier++
		}
		p.Extents = append(p.Extents, x)
	}
	return p
}

func BenchmarkSolve(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		p := zipf(n, 24)
		for _, tolerance := range []float64{0, 1e-4} {
			b.Run(fmt.Sprintf("extents=%d/cycles=24/tolerance=%g", n, tolerance), func(b *testing.B) {
				p.Tolerance = tolerance
				for b.Loop() {
					r := solve(b, p)
					for _, x := range r.Boundaries {
						b.ReportMetric(float64(x.Rounds), fmt.Sprintf("rounds/%d", x.Capacity))
					}
				}
			})
		}
	}
}
