package bound_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"tierd/tiering/simulate/bound"
)

func solve(tb testing.TB, p bound.Problem) bound.Result {
	tb.Helper()
	r, err := bound.Solve(p)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// at returns an extent with accesses by cycle.
func at(tier int, counts ...int64) bound.Extent {
	x := bound.Extent{Tier: tier}
	for t, n := range counts {
		x.Accesses = append(x.Accesses, bound.Access{Cycle: t, Count: n})
	}
	return x
}

// TestByHand holds problems of two tiers of 1 and 10, one extent above, against what
// was worked out by hand.
func TestByHand(t *testing.T) {
	const none = bound.Unplaced
	for _, tt := range []struct {
		name       string
		promotions int
		extents    []bound.Extent
		served     int64
	}{
		{"nothing", 1, nil, 0},
		{"no accesses", 1, []bound.Extent{at(0), at(1)}, 0},
		{"cycle 0 has no choice", 1, []bound.Extent{at(0, 1), at(1, 5)}, 1},
		{"one exchange", 1, []bound.Extent{at(0, 1, 1), at(1, 5, 5)}, 6},
		{"no promotions", 0, []bound.Extent{at(0, 1, 1), at(1, 5, 5)}, 2},
		{"no limit", -1, []bound.Extent{at(0, 1, 1), at(1, 5, 5)}, 6},
		{"back and forth", 1, []bound.Extent{at(0, 1, 0, 2), at(1, 0, 3, 0)}, 6},
		{"not worth the room", 1, []bound.Extent{at(0, 1, 3, 9), at(1, 0, 4, 0)}, 14},
		{"held through a pause", 0, []bound.Extent{at(0, 1, 0, 9), at(1, 9, 9, 9)}, 10},
		{"comes into being above", 0, []bound.Extent{at(none, 5, 5), at(1, 9, 9)}, 10},
		{"comes into being below", 0, []bound.Extent{at(0, 9, 9), at(none, 5, 5)}, 18},
		{"comes into being later", 0, []bound.Extent{at(0, 9, 0, 1), at(none, 0, 5, 5)}, 19},
		{"is not free twice", 0, []bound.Extent{at(none, 5, 0, 6), at(none, 0, 7, 0)}, 12},
	} {
		p := bound.Problem{Cycles: 3, Promotions: tt.promotions, Extents: tt.extents, Tiers: []bound.Tier{{Delay: 1, Extents: 1}, {Delay: 10, Extents: 9}}}
		r := solve(t, p)
		var all int64
		for _, x := range p.Extents {
			for _, a := range x.Accesses {
				all += a.Count
			}
		}
		b := r.Boundaries[0]
		if b.Served != tt.served || b.Feasible != tt.served || !b.Optimal || !r.Optimal || b.Gap != 0 {
			t.Errorf("%s: got %+v, want %d served", tt.name, b, tt.served)
		}
		total := float64(10*all - 9*tt.served)
		if r.Accesses != all || r.Total != total || all > 0 && r.Mean != total/float64(all) || all == 0 && r.Mean != 0 {
			t.Errorf("%s: got total %v, mean %v of %d, want %v", tt.name, r.Total, r.Mean, r.Accesses, total)
		}
	}
}

// TestAgainstFlow: at every boundary the bound is the greatest flow, and its prices
// prove it.
func TestAgainstFlow(t *testing.T) {
	boundaries := 0
	for seed := range uint64(1500) {
		r := rand.New(rand.NewPCG(seed, 5))
		p := random(r, 12, 8, 3)
		if seed%50 == 0 {
			p = random(r, 60, 24, 3)
		}
		result := solve(t, p)
		for k, b := range result.Boundaries {
			boundaries++
			if want := byFlow(p, k); b.Served != want || b.Feasible != want || !b.Optimal {
				t.Fatalf("seed %d: boundary %d serves %d, %d feasible after %d rounds, want %d: %+v", seed, k, b.Served, b.Feasible, b.Rounds, want, p)
			}
			if got, err := bound.Verify(p, k, b.Room, b.Entry); err != nil || got != b.Served {
				t.Fatalf("seed %d: the prices of boundary %d prove %d, %v, want %d", seed, k, got, err, b.Served)
			}
		}
	}
	if boundaries < 1000 {
		t.Errorf("only %d boundaries", boundaries)
	}
}

// TestLargeCounts: with more accesses than rounding lets tell apart, the search ends
// with the flow between its two sides.
func TestLargeCounts(t *testing.T) {
	for seed := range uint64(200) {
		p := random(rand.New(rand.NewPCG(seed, 4)), 12, 8, 3)
		for _, x := range p.Extents {
			for i := range x.Accesses {
				x.Accesses[i].Count *= 1e12
			}
		}
		for k, b := range solve(t, p).Boundaries {
			if want := byFlow(p, k); b.Served < want || b.Feasible > want || b.Gap > 1e-8 || b.Rounds > 200 {
				t.Fatalf("seed %d: boundary %d serves %d to %d after %d rounds, want %d: %+v", seed, k, b.Feasible, b.Served, b.Rounds, want, p)
			}
		}
	}
}

// TestAgainstPlacements: no placement is better than the bound, and with two tiers
// one is as good.
func TestAgainstPlacements(t *testing.T) {
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 6))
		p := random(r, 5, 4, 3)
		got, want := solve(t, p), byPlacements(p)
		if got.Total > want+1e-9 || len(p.Tiers) < 3 && math.Abs(got.Total-want) > 1e-9 {
			t.Fatalf("seed %d: bound %v, best placement %v: %+v", seed, got.Total, want, p)
		}
	}
}

// TestManyCycles: where prices are found by descent, the flow is between what is
// bound and what is feasible, which are near each other.
func TestManyCycles(t *testing.T) {
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 7))
		p := bound.Problem{Cycles: 65 + r.IntN(20), Tiers: []bound.Tier{{Delay: 1, Extents: 3}, {Delay: 2, Extents: 10}}, Promotions: int(seed) - 1}
		for e := range 10 {
			x := bound.Extent{Tier: min(e/3, 1)}
			for c := range p.Cycles {
				if (c/20+e)%4 == 0 || r.IntN(9) == 0 {
					x.Accesses = append(x.Accesses, bound.Access{Cycle: c, Count: r.Int64N(30)})
				}
			}
			p.Extents = append(p.Extents, x)
		}
		b := solve(t, p).Boundaries[0]
		want := byFlow(p, 0)
		if b.Served < want || b.Feasible > want || b.Served > want+want/500 || b.Feasible < want-want/20 || b.Rounds > 3000 {
			t.Errorf("seed %d: %d served, %d feasible after %d rounds, want %d and little more or less", seed, b.Served, b.Feasible, b.Rounds, want)
		}
		if got, err := bound.Verify(p, 0, b.Room, b.Entry); err != nil || got != b.Served {
			t.Errorf("seed %d: the prices prove %d, %v, want %d", seed, got, err, b.Served)
		}
		t.Logf("seed %d: %d cycles: %d, flow %d, feasible %d", seed, p.Cycles, b.Served, want, b.Feasible)
	}
}

// TestVerify: prices may be any, and prove less; no prices prove that no more than
// all is served.
func TestVerify(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 8))
		p := random(r, 6, 5, 2)
		p.Promotions = max(p.Promotions, 0)
		if len(p.Tiers) < 2 {
			continue
		}
		room, entry := make([]float64, p.Cycles), make([]float64, p.Cycles)
		for range 5 {
			got, err := bound.Verify(p, 0, room, entry)
			if want := byFlow(p, 0); err != nil || got < want {
				t.Fatalf("seed %d: prices %v and %v prove %d, %v, but %d can be served: %+v", seed, room, entry, got, err, want, p)
			}
			for c := range room {
				room[c], entry[c] = r.Float64()*20, r.Float64()*20
			}
		}
	}
}

// TestTolerance: a search that may end early does, and says what is open.
func TestTolerance(t *testing.T) {
	p := zipf(2000, 12)
	exact := solve(t, p)
	p.Tolerance = 0.01
	rough := solve(t, p)
	for k, b := range rough.Boundaries {
		best := exact.Boundaries[k]
		if !best.Optimal || b.Rounds >= best.Rounds || b.Gap > 0.01 || b.Served < best.Served || b.Feasible > best.Served {
			t.Errorf("boundary %d: %d to %d served after %d rounds, a gap of %v; exactly %d after %d", k, b.Feasible, b.Served, b.Rounds, b.Gap, best.Served, best.Rounds)
		}
		if want := float64(b.Served-b.Feasible) / float64(b.Served); b.Gap != want {
			t.Errorf("boundary %d: gap %v, want %v", k, b.Gap, want)
		}
	}
	if rough.Optimal || rough.Total > exact.Total {
		t.Errorf("got %v, optimal %v, exactly %v", rough.Total, rough.Optimal, exact.Total)
	}
}

func TestContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := bound.SolveContext(ctx, zipf(100, 4)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was cancelled", err)
	}
}

func TestRefuses(t *testing.T) {
	for want, change := range map[string]func(p *bound.Problem){
		"cycles must":              func(p *bound.Problem) { p.Cycles = 0 },
		"must be a tier":           func(p *bound.Problem) { p.Tiers = nil },
		"tolerance":                func(p *bound.Problem) { p.Tolerance = math.NaN() },
		"tier 1: delay":            func(p *bound.Problem) { p.Tiers[1].Delay = math.Inf(1) },
		"fastest first":            func(p *bound.Problem) { p.Tiers[0].Delay = 30 },
		"hold -1":                  func(p *bound.Problem) { p.Tiers[0].Extents = -1 },
		"do not fit":               func(p *bound.Problem) { p.Tiers[1].Extents = 0 },
		"no tier 2":                func(p *bound.Problem) { p.Extents[0].Tier = 2 },
		"no tier -2":               func(p *bound.Problem) { p.Extents[0].Tier = -2 },
		"begins with 2":            func(p *bound.Problem) { p.Extents[1].Tier = 0 },
		"no cycle 4":               func(p *bound.Problem) { p.Extents[0].Accesses[0].Cycle = 4 },
		"no cycle -1":              func(p *bound.Problem) { p.Extents[0].Accesses[0].Cycle = -1 },
		"order of their cycles":    func(p *bound.Problem) { p.Extents[0].Accesses[1].Cycle = 0 },
		"cannot have -1":           func(p *bound.Problem) { p.Extents[0].Accesses[1].Count = -1 },
		"more than 2^52":           func(p *bound.Problem) { p.Extents[1].Accesses[0].Count = 1 << 52 },
		"more than 2^52 accesses ": func(p *bound.Problem) { p.Extents[1].Accesses[0].Count = math.MaxInt64 },
	} {
		p := bound.Problem{
			Cycles: 4, Tiers: []bound.Tier{{Delay: 1, Extents: 1}, {Delay: 2, Extents: 1}},
			Extents: []bound.Extent{at(0, 1, 2), at(1, 1, 2)},
		}
		if _, err := bound.Solve(p); err != nil {
			t.Fatal(err)
		}
		change(&p)
		if _, err := bound.Solve(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
		if _, err := bound.Fixed(p); err == nil {
			t.Errorf("Fixed does not tell %q", want)
		}
	}
}

func TestVerifyRefuses(t *testing.T) {
	p := bound.Problem{
		Cycles: 2, Tiers: []bound.Tier{{Delay: 1, Extents: 1}, {Delay: 2, Extents: 1}},
		Extents: []bound.Extent{at(0, 1, 2)}, Promotions: -1,
	}
	zero := make([]float64, 2)
	for _, tt := range []struct {
		want        string
		k           int
		room, entry []float64
	}{
		{"no boundary below tier 1", 1, zero, zero},
		{"no boundary below tier -1", -1, zero, zero},
		{"as many prices", 0, zero[:1], zero},
		{"as many prices", 0, zero, nil},
		{"not negative", 0, []float64{0, -1}, zero},
		{"not negative", 0, []float64{0, math.NaN()}, zero},
		{"no limit has no price", 0, zero, []float64{0, 1}},
	} {
		if _, err := bound.Verify(p, tt.k, tt.room, tt.entry); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want an error with %q", err, tt.want)
		}
	}
}

// TestFixed: the best of all placements that never change.
func TestFixed(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 9))
		p := random(r, 5, 3, 3)
		n, _ := counts(p)
		held := make([]int, len(p.Tiers))
		var all int64
		var try func(e int) float64
		try = func(e int) float64 {
			if e == len(n) {
				return 0
			}
			least := math.Inf(1)
			var sum int64
			for _, c := range n[e] {
				sum += c
			}
			for k, tier := range p.Tiers {
				if held[k] < tier.Extents {
					held[k]++
					least = min(least, float64(sum)*tier.Delay+try(e+1))
					held[k]--
				}
			}
			return least
		}
		want := try(0)
		for _, row := range n {
			for _, c := range row {
				all += c
			}
		}
		if all > 0 {
			want /= float64(all)
		}
		if got, err := bound.Fixed(p); err != nil || math.Abs(got-want) > 1e-9 {
			t.Fatalf("seed %d: got %v, %v, want %v: %+v", seed, got, err, want, p)
		}
	}
}
