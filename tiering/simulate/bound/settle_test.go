package bound

import (
	"context"
	"testing"
)

// TestSettle: a combination that uses twice what there is counts half.
func TestSettle(t *testing.T) {
	p := Problem{Cycles: 3, Promotions: 1, Tiers: []Tier{{1, 1}, {2, 2}}, Extents: []Extent{
		{0, []Access{{1, 10}, {2, 10}}}, {1, []Access{{1, 40}, {2, 40}}},
	}}
	s := newSearch(newChains(p, 0))
	for _, tt := range []struct{ value, used, want float64 }{
		{80, 2, 40},
		{30, 0.5, 40}, // no better
		{84, 2, 42},
		{45.2, 1, 46}, // the best serves a whole number
		{200, 1, 100}, // no more than all
	} {
		used := make([]float64, len(s.limit))
		used[len(used)-1] = tt.used
		if s.settle(tt.value/s.free, used); s.lower != tt.want {
			t.Errorf("%v served with %v used: got %v, want %v", tt.value, tt.used, s.lower, tt.want)
		}
	}
}

func TestLean(t *testing.T) {
	c := column{value: 2, use: []float64{4, 0}}
	c.lean(column{value: 4, use: []float64{0, 1}}, 0.25)
	if c.value != 2.5 || c.use[0] != 3 || c.use[1] != 0.25 {
		t.Errorf("got %+v", c)
	}
}

// TestDescend: also where prices could be found by combination, descent finds them,
// and its mix is worth no more than that.
func TestDescend(t *testing.T) {
	p := Problem{Cycles: 24, Promotions: 2, Tiers: []Tier{{1, 10}, {2, 90}}}
	for e := range 100 {
		x := Extent{Tier: min(e/10, 1)}
		for c := range p.Cycles {
			if n := int64((e*e*7+c*c*3+e*c)%101 - 80); n > 0 {
				x.Accesses = append(x.Accesses, Access{c, n * int64(1+c%5*c%5*40)})
			}
		}
		p.Extents = append(p.Extents, x)
	}
	best, s := newSearch(newChains(p, 0)), newSearch(newChains(p, 0))
	if err := best.run(context.Background(), 0); err != nil || best.upper != best.lower {
		t.Fatalf("%v to %v, %v", best.lower, best.upper, err)
	}
	if err := s.descend(context.Background(), func() bool { return s.upper == s.lower }); err != nil {
		t.Fatal(err)
	}
	if s.lower > best.lower || s.lower < 0.98*best.lower || s.upper < best.upper || s.upper > 1.001*best.upper {
		t.Errorf("got %v to %v, want %v", s.lower, s.upper, best.upper)
	}
	t.Logf("%v to %v after %d rounds, best %v", s.lower, s.upper, s.rounds, best.upper)
}
