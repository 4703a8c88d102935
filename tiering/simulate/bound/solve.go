package bound

import (
	"context"
	"fmt"
	"math"
)

// Result is what no placement can do better than.
type Result struct {
	Accesses   int64
	Total      float64 // lower bound on the sum of the delays of all accesses
	Mean       float64 // the same for one access; 0 without any
	Optimal    bool    // at every boundary
	Boundaries []Boundary
}

// Boundary is the problem between one tier and the next: how many accesses the tiers
// above can serve, if they were one tier and those below another.
type Boundary struct {
	Capacity int     // extents that the tiers above hold
	Served   int64   // accesses served above: no placement has more
	Feasible int64   // a placement of this problem serves as many or more
	Optimal  bool    // Served is Feasible
	Gap      float64 // what is between them, as a share of Served
	Gain     float64 // delay that Served saves against the tier below the boundary
	Rounds   int     // of the search

	// The certificate: prices of holding an extent above the boundary, by cycle, and
	// of one promotion before it, in accesses. Verify proves Served by them.
	Room, Entry []float64
}

// Solve returns a lower bound on the delays of every placement that keeps to the
// problem, and how tight it is. Errors are those of Problem.Validate.
func Solve(p Problem) (Result, error) { return SolveContext(context.Background(), p) }

// SolveContext is Solve that ends with the context's error when that is done.
func SolveContext(ctx context.Context, p Problem) (Result, error) {
	if err := p.Validate(); err != nil {
		return Result{}, err
	}
	r := Result{Accesses: p.accesses(), Optimal: true}
	last := len(p.Tiers) - 1
	r.Total = float64(r.Accesses) * p.Tiers[last].Delay
	for k := range last {
		b, err := boundary(ctx, p, k)
		if err != nil {
			return Result{}, err
		}
		r.Total -= b.Gain
		r.Optimal = r.Optimal && b.Optimal
		r.Boundaries = append(r.Boundaries, b)
	}
	if r.Accesses > 0 {
		r.Mean = r.Total / float64(r.Accesses)
	}
	return r, nil
}

func boundary(ctx context.Context, p Problem, k int) (Boundary, error) {
	s := newSearch(newChains(p, k))
	if err := s.run(ctx, p.Tolerance); err != nil {
		return Boundary{}, err
	}
	b := Boundary{
		Capacity: p.capacity(k),
		Served:   int64(s.fixed + s.upper), Feasible: int64(s.fixed + s.lower),
		Rounds: s.rounds, Room: s.bestRoom, Entry: s.bestEntry,
	}
	b.Optimal = b.Served == b.Feasible
	if b.Served > 0 {
		b.Gap = float64(b.Served-b.Feasible) / float64(b.Served)
	}
	b.Gain = float64(b.Served) * (p.Tiers[k+1].Delay - p.Tiers[k].Delay)
	return b, nil
}

// Verify returns how many accesses the tiers down to tier k serve at most, as the
// prices of a certificate prove. Any prices prove something; only those that a
// search found prove much. Errors are those of Problem.Validate and of prices that
// are too few, negative, or no numbers.
func Verify(p Problem, k int, room, entry []float64) (int64, error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	if k < 0 || k >= len(p.Tiers)-1 {
		return 0, fmt.Errorf("there is no boundary below tier %d", k)
	}
	if len(room) != p.Cycles || len(entry) != p.Cycles {
		return 0, fmt.Errorf("%d cycles need as many prices (got %d of room and %d of entry)", p.Cycles, len(room), len(entry))
	}
	for t := range room {
		for _, v := range []float64{room[t], entry[t]} {
			if !(v >= 0) || math.IsInf(v, 0) {
				return 0, fmt.Errorf("cycle %d: a price must be a number and not negative (got %v)", t, v)
			}
		}
		if t > 0 && p.Promotions < 0 && entry[t] > 0 {
			return 0, fmt.Errorf("cycle %d: what has no limit has no price (got %v)", t, entry[t])
		}
	}
	c := newChains(p, k)
	return int64(c.fixed + min(c.possible, c.dual(newPrices(room, entry), nil))), nil
}
