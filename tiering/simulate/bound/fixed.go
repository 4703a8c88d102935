package bound

import (
	"cmp"
	"slices"
)

// Fixed returns the mean delay of an access in the best placement that never
// changes, as one who knew all accesses would choose it: what is used most lies
// fastest. It begins where it likes and is free to, so that it is no placement that
// moves within a budget could make. 0 without accesses. Errors are those of
// Problem.Validate.
func Fixed(p Problem) (float64, error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	counts := make([]int64, len(p.Extents))
	for e, x := range p.Extents {
		for _, a := range x.Accesses {
			counts[e] += a.Count
		}
	}
	slices.SortFunc(counts, func(a, b int64) int { return cmp.Compare(b, a) })
	total, all := 0.0, p.accesses()
	for _, t := range p.Tiers {
		n := min(t.Extents, len(counts))
		var served int64
		for _, c := range counts[:n] {
			served += c
		}
		counts = counts[n:]
		total += float64(served) * t.Delay
	}
	if all == 0 {
		return 0, nil
	}
	return total / float64(all), nil
}
