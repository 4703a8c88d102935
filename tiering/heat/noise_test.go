package heat

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"tierd/tiering/extent"
)

// TestNoise: of extents that are all accessed at random at the same rate the heat varies as
// much as Score.Noise says, young or old.
func TestNoise(t *testing.T) {
	const extents, seed = 2000, 3
	p := testParams()
	p.ShortHalfLife, p.LongHalfLife, p.Cycle = time.Minute, 6*time.Minute, 20*time.Second
	tr := newTracker(t, p)
	v := tr.AddVolume(1, extents)
	rng := rand.New(rand.NewPCG(seed, 1))
	weight := 0.01 + 4096/100e6
	now := start
	for cycle := 1; cycle <= 120; cycle++ {
		// Of each extent half an access a second, in random order.
		for range extents * 10 {
			v.Access(rng.Int64N(extents)*mib+4096*rng.Int64N(64), 4096, false)
			now = now.Add(20 * time.Second / (extents * 10))
			if rng.IntN(200) == 0 {
				tr.Drain(now)
			}
		}
		tr.Tick(now)
		if cycle != 3 && cycle != 18 && cycle != 120 {
			continue
		}
		var sum, squares, noise float64
		for i := range extents {
			s := v.Heat(extent.Index(i), now)
			rate := s.Heat / weight
			sum += rate
			squares += rate * rate
			noise += s.Noise
		}
		mean := sum / extents
		got, want := squares/extents-mean*mean, noise/extents*mean
		// The factor of young extents is that of the long half-life, which bounds the other.
		if math.Abs(math.Sqrt(got/want)-1) > 0.25 {
			t.Errorf("cycle %d, seed %d: the standard deviation is %.4f of a mean of %.3f, want %.4f", cycle, seed, math.Sqrt(got), mean, math.Sqrt(want))
		}
	}
}
