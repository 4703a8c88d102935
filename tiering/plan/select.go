package plan

import (
	"cmp"
	"slices"

	"tierd/tiering/extent"
)

// candidate is an extent that may move, reduced to what the choice needs.
type candidate struct {
	key     extent.Key
	rate    float64 // random accesses per second
	noise   float64 // variance of the rate in proportion to it, 1/s
	tier    uint8   // position in planner.tiers
	backing extent.BackingID
	cooling bool
	want    Want
}

// byRate orders the coldest first. Ties are broken by the key, so that a plan
// depends on the view alone and not on the order it was told in.
func byRate(a, b candidate) int {
	if c := cmp.Compare(a.rate, b.rate); c != 0 {
		return c
	}
	if c := cmp.Compare(a.key.Volume, b.key.Volume); c != 0 {
		return c
	}
	return cmp.Compare(a.key.Index, b.key.Index)
}

func byRateDown(a, b candidate) int { return byRate(b, a) }

// selection keeps the first limit candidates of an order out of any number, in
// memory for half as many more and in amortised constant time for each.
type selection struct {
	order func(a, b candidate) int
	limit int
	items []candidate
	full  bool      // items[:limit] were cut at least once: bound holds
	bound candidate // nothing after bound can be among the first
	seen  int64
}

func newSelection(limit int, order func(a, b candidate) int) *selection {
	return &selection{order: order, limit: limit}
}

func (s *selection) add(c candidate) {
	s.seen++
	if s.limit == 0 || s.full && s.order(c, s.bound) > 0 {
		return
	}
	s.items = append(s.items, c)
	if len(s.items) > s.limit+s.limit/2 {
		s.cut()
	}
}

// cut drops everything but the first limit items, in no order.
func (s *selection) cut() {
	nth(s.items, s.limit-1, s.order)
	s.items = s.items[:s.limit]
	s.bound = s.items[s.limit-1]
	s.full = true
}

// sorted ends the collection and returns the first limit candidates in order.
func (s *selection) sorted() []candidate {
	if len(s.items) > s.limit {
		s.cut()
	}
	slices.SortFunc(s.items, s.order)
	return s.items
}

// nth reorders items so that the one at position k is the one that sorting would
// put there, with none before it that belongs after (Hoare's selection, the
// pivot being the median of three).
func nth(items []candidate, k int, order func(a, b candidate) int) {
	for lo, hi := 0, len(items)-1; lo < hi; {
		mid := lo + (hi-lo)/2
		if order(items[mid], items[lo]) < 0 {
			items[mid], items[lo] = items[lo], items[mid]
		}
		if order(items[hi], items[lo]) < 0 {
			items[hi], items[lo] = items[lo], items[hi]
		}
		if order(items[hi], items[mid]) < 0 {
			items[hi], items[mid] = items[mid], items[hi]
		}
		pivot := items[mid]
		i, j := lo, hi
		for i <= j {
			for order(items[i], pivot) < 0 {
				i++
			}
			for order(items[j], pivot) > 0 {
				j--
			}
			if i <= j {
				items[i], items[j] = items[j], items[i]
				i, j = i+1, j-1
			}
		}
		switch {
		case k <= j:
			hi = j
		case k >= i:
			lo = i
		default:
			return
		}
	}
}
