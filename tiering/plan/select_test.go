package plan

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tierd/tiering/extent"
)

// TestSelection compares with sorting everything.
func TestSelection(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(0, 20).Draw(t, "limit")
		order := byRate
		if rapid.Bool().Draw(t, "hottest") {
			order = byRateDown
		}
		rates := rapid.SliceOf(rapid.IntRange(0, 9)).Draw(t, "rates")
		s := newSelection(limit, order)
		var all []candidate
		for i, r := range rates {
			c := candidate{rate: float64(r), key: extent.Key{Volume: extent.VolumeID(i % 3), Index: extent.Index(i)}}
			all = append(all, c)
			s.add(c)
		}
		slices.SortFunc(all, order)
		want := all[:min(limit, len(all))]
		if got := s.sorted(); !slices.Equal(got, want) || s.seen != int64(len(rates)) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

func TestHistogram(t *testing.T) {
	var h histogram
	for _, r := range []float64{0, -1, math.NaN(), 1e-300, 0.5, 1, 1.1, 3, 1e300} {
		h.add(r)
	}
	for _, tc := range []struct {
		rate float64
		want int64
	}{{-1, 5}, {0, 5}, {0.9, 4}, {1, 2}, {3, 1}, {1e300, 0}} {
		if got := h.above(tc.rate); got != tc.want {
			t.Errorf("above %g: got %d, want %d", tc.rate, got, tc.want)
		}
	}
	last := 0
	for r := 0x1p-45; r < 0x1p30; r *= 1.1 {
		b := bucket(r)
		if b < last || b > last+1 {
			t.Fatalf("rate %g: bucket %d after %d", r, b, last)
		}
		last = b
	}
	if last != len(h)-1 {
		t.Errorf("the hottest is in bucket %d, want the last", last)
	}
}

// TestBudgetBeyondTheLists: also extents that no list has room for are told to
// wait for the budget, if they are hot enough, and only those.
func TestBudgetBeyondTheLists(t *testing.T) {
	const hot, cold = 10_000, 20_000
	p := Defaults(1 << 20)
	p.BudgetBytes = 100 << 20
	p.AccessTime = 10 * time.Millisecond
	v := View{
		Tiers: []Tier{
			{ID: 0, Slots: 1 << 20, Free: 1 << 20, ServiceTime: time.Millisecond, Bandwidth: 1e9, Writable: true},
			{ID: 1, Slots: 1 << 20, Free: 1 << 19, ServiceTime: 10 * time.Millisecond, Bandwidth: 1e8, Writable: true},
		},
		Extents: func(yield func(Extent) bool) {
			for i := range hot + cold {
				e := Extent{Key: extent.Key{Volume: 1, Index: extent.Index(i)}, Tier: 1, Age: 100, SinceMove: NeverMoved}
				if i%3 == 0 {
					e.Heat = 1 + float64(i)/1e6
				}
				if !yield(e) {
					return
				}
			}
		},
	}
	got := Next(v, p)
	if len(got.Moves) != 100 || got.Rejected[ReasonBudget] != hot-100 || got.Rejected[ReasonNoGain] != cold {
		t.Errorf("got %d moves, rejected %v, want 100 moves, %d for the budget and %d without gain", len(got.Moves), got.Rejected, hot-100, cold)
	}
}
