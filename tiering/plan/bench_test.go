package plan_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"tierd/tiering/extent"
	"tierd/tiering/plan"
)

// BenchmarkNext plans for pools of synthetic extents with a zipf-like heat, of
// which a budget of 4 GiB may move.
func BenchmarkNext(b *testing.B) {
	for _, n := range []int{1_000_000, 10_000_000} {
		b.Run(fmt.Sprintf("extents=%dM", n/1_000_000), func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 2))
			heat := make([]float32, n)
			for i := range heat {
				heat[i] = float32(math.Pow(rng.Float64(), -1.2) * 1e-5)
			}
			tiers := threeTiers(int64(n)/20+1, int64(n)/4+1, int64(n))
			for i := range tiers {
				tiers[i].Free = tiers[i].Slots / 50
			}
			v := plan.View{Tiers: tiers, Extents: func(yield func(plan.Extent) bool) {
				for i := range heat {
					t := extent.TierID(2)
					if i < n/20 {
						t = 0
					} else if i < n/20+n/4 {
						t = 1
					}
					if !yield(plan.Extent{Key: extent.Key{Volume: 1, Index: extent.Index(i)}, Tier: t, Heat: float64(heat[i]), Age: 100, SinceMove: plan.NeverMoved}) {
						return
					}
				}
			}}
			p := plan.Defaults(mib)
			p.BudgetBytes = 4 << 30
			b.ReportAllocs()
			b.ResetTimer()
			var moves int
			for b.Loop() {
				moves = len(plan.Next(v, p).Moves)
			}
			b.ReportMetric(float64(moves), "moves/plan")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/extent")
		})
	}
}
