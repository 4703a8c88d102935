package skew_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"tierd/tiering/skew"
)

func near(a, b, within float64) bool { return math.Abs(a-b) <= within }

func curve(heats ...float64) []skew.Point {
	var c skew.Curve
	for _, h := range heats {
		c.Add(h)
	}
	return c.Points()
}

func TestPoints(t *testing.T) {
	tests := []struct {
		name  string
		heats []float64
		want  []skew.Point
	}{
		{"nothing", nil, nil},
		{"all cold", []float64{0, 0}, nil},
		{"one", []float64{3}, []skew.Point{{0, 0}, {1, 1}}},
		{"even", []float64{2, 2, 2, 2}, []skew.Point{{0, 0}, {1, 1}}},
		{"in any order, with cold ones", []float64{1, 0, 8, 0, 1}, []skew.Point{{0, 0}, {0.2, 0.8}, {0.6, 1}, {1, 1}}},
		{"a last class below a step", append(slices.Repeat([]float64{1}, 999), 0.5), []skew.Point{{0, 0}, {0.999, 999 / 999.5}, {1, 1}}},
		{"what is no heat is cold", []float64{math.NaN(), -1, math.Inf(1), 5}, []skew.Point{{0, 0}, {0.25, 1}, {1, 1}}},
	}
	for _, tt := range tests {
		got := curve(tt.heats...)
		if !slices.EqualFunc(got, tt.want, func(a, b skew.Point) bool { return near(a.Extents, b.Extents, 1e-12) && near(a.Heat, b.Heat, 1e-12) }) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

// On a load of many extents the curve is that of sorting them all, has few points, rises
// all the way and bends down only.
func TestAgainstSorting(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for name, next := range map[string]func() float64{
		"zipf":     func() float64 { return math.Pow(r.Float64(), -1.5) },
		"uniform":  r.Float64,
		"two sets": func() float64 { return float64(1 + 999*(r.IntN(10)/9)) },
		"tiny":     func() float64 { return 1e-200 * math.Pow(r.Float64(), 3) },
	} {
		heats := make([]float64, 20000)
		for i := range heats {
			heats[i] = next()
		}
		points := curve(heats...)
		if len(points) < 2 || len(points) > 403 {
			t.Errorf("%s: %d points", name, len(points))
		}
		slices.SortFunc(heats, func(a, b float64) int {
			if a > b {
				return -1
			}
			return 1
		})
		sums := make([]float64, len(heats)+1)
		for i, h := range heats {
			sums[i+1] = sums[i] + h
		}
		total := sums[len(heats)]
		steepest := math.Inf(1)
		for i, p := range points {
			n := int(math.Round(p.Extents * float64(len(heats))))
			if !near(p.Heat, sums[n]/total, 1e-9) {
				t.Errorf("%s: the hottest %d have %v of the heat, want %v", name, n, p.Heat, sums[n]/total)
			}
			if i == 0 {
				continue
			}
			slope := (p.Heat - points[i-1].Heat) / (p.Extents - points[i-1].Extents)
			if p.Extents <= points[i-1].Extents || slope > steepest*(1+1e-9) {
				t.Errorf("%s: point %d, %v, is not in line behind %v", name, i, p, points[i-1])
			}
			steepest = slope
		}
		for _, n := range []int{200, 1000, 10000} {
			share := float64(n) / float64(len(heats))
			if got, want := skew.At(points, share), sums[n]/total; !near(got, want, 0.01) {
				t.Errorf("%s: the hottest %d have %v, want %v", name, n, got, want)
			}
		}
	}
}

func TestReadings(t *testing.T) {
	points := []skew.Point{{0, 0}, {0.2, 0.8}, {0.6, 1}, {1, 1}}
	tests := []struct{ at, heat, needed float64 }{
		{0, 0, 0}, {0.1, 0.4, 0.025}, {0.2, 0.8, 0.05}, {0.4, 0.9, 0.1}, {0.6, 1, 0.15}, {0.8, 1, 0.2}, {0.9, 1, 0.4}, {1, 1, 0.6}, {2, 1, 0.6}, {-1, 0, 0},
	}
	for _, tt := range tests {
		if got := skew.At(points, tt.at); !near(got, tt.heat, 1e-12) {
			t.Errorf("heat of the hottest %v: got %v, want %v", tt.at, got, tt.heat)
		}
		if got := skew.Needed(points, tt.at); !near(got, tt.needed, 1e-12) {
			t.Errorf("extents for %v of the heat: got %v, want %v", tt.at, got, tt.needed)
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	var c skew.Curve
	r := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		c.Add(r.ExpFloat64())
	}
}
