package extentmap

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"tierd/tiering/extent"
)

// BenchmarkCommit changes scattered extents of a volume of 1 Mi mapped ones.
func BenchmarkCommit(b *testing.B) {
	const extents = 1 << 20
	d := mustOpen(b, mustCreate(b), Options{})
	for i := 0; i < extents; {
		var c Changes
		for range 1 << 17 {
			c.Map = append(c.Map, change(1, i, 1, i))
			i++
		}
		mustCommit(b, d, &c)
	}
	for _, n := range []int{1, 100, 4096} {
		b.Run(fmt.Sprintf("changes=%d", n), func(b *testing.B) {
			rng := rand.New(rand.NewPCG(1, 1))
			for b.Loop() {
				c := Changes{Map: make([]MapChange, 0, n)}
				for range n {
					c.Map = append(c.Map, change(1, rng.IntN(extents), 2, rng.IntN(1<<30)))
				}
				if _, err := d.Commit(context.Background(), &c); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(d.used())/(1<<20), "MiB-file")
		})
	}
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			n := 0
			err := d.LoadMap(1, func(_ extent.Index, locs []extent.Location) error { n += len(locs); return nil })
			if err != nil || n < extents {
				b.Fatal(n, err)
			}
		}
	})
}
