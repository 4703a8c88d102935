package plan_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"tierd/tiering/extent"
	"tierd/tiering/plan"
)

// drawView makes a pool of one to four tiers that holds what it can hold.
func drawView(t *rapid.T) ([]plan.Extent, plan.View) {
	n := rapid.IntRange(1, 4).Draw(t, "tiers")
	var tiers []plan.Tier
	var extents []plan.Extent
	for id := range n {
		tier := plan.Tier{
			ID:          extent.TierID(id),
			Slots:       int64(rapid.IntRange(0, 12).Draw(t, "slots")),
			ServiceTime: time.Duration(rapid.IntRange(1, 30).Draw(t, "ms")) * time.Millisecond,
			Bandwidth:   rapid.SampledFrom([]float64{0, 50e6, 500e6}).Draw(t, "bandwidth"),
			Writable:    rapid.IntRange(0, 5).Draw(t, "broken") > 0,
			Utilisation: rapid.SampledFrom([]float64{0, 0, 0.5, 0.9}).Draw(t, "tier's utilisation"),
			WearLimited: rapid.IntRange(0, 3).Draw(t, "worn") == 0,
			WearBytes:   rapid.Int64Range(-mib, 5*mib).Draw(t, "wear"),
		}
		tier.Free = tier.Slots
		for range rapid.Int64Range(0, tier.Slots).Draw(t, "used") {
			e := at(len(extents), tier.ID, 0)
			e.Heat = rapid.SampledFrom([]float64{0, 1e-6, 1e-3, 0.01, 0.011, 0.02, 0.1, 1}).Draw(t, "heat")
			e.Age = rapid.Uint32Range(0, 3).Draw(t, "age")
			e.SinceMove = rapid.SampledFrom([]uint32{0, 1, 2, plan.NeverMoved}).Draw(t, "since move")
			e.Pinned = rapid.IntRange(0, 9).Draw(t, "pinned") == 0
			e.Parked = rapid.IntRange(0, 9).Draw(t, "parked") == 0
			if rapid.IntRange(0, 4).Draw(t, "has policy") == 0 {
				e.Want = plan.Want{
					Kind: plan.WantKind(rapid.IntRange(1, 3).Draw(t, "want")),
					Tier: extent.TierID(rapid.IntRange(0, n).Draw(t, "want tier")), // one too many: no such tier
				}
			}
			extents = append(extents, e)
		}
		tiers = append(tiers, tier)
	}
	v := view(tiers, extents...)
	if rapid.Bool().Draw(t, "backings") {
		for i := range extents {
			extents[i].Backing = extent.BackingID(1 + 2*int(extents[i].Tier) + i%2)
		}
		for _, tier := range v.Tiers {
			for b := range 2 {
				v.Backings = append(v.Backings, plan.Backing{
					ID: extent.BackingID(1 + 2*int(tier.ID) + b), Tier: tier.ID, Free: tier.Free / 2, Slots: tier.Slots / 2,
					Utilisation: rapid.Float64Range(0, 1).Draw(t, "utilisation"), Writable: true,
				})
			}
		}
	}
	return extents, v
}

func drawPolicy(t *rapid.T) plan.Policy {
	p := plan.Defaults(mib)
	p.AccessTime = 10 * time.Millisecond
	p.BudgetBytes = rapid.OneOf(rapid.Int64Range(-1, 5*mib), rapid.Int64Range(0, 40*mib)).Draw(t, "budget")
	p.Hysteresis = rapid.SampledFrom([]float64{0, 0.25, 2}).Draw(t, "hysteresis")
	p.Headroom = rapid.SampledFrom([]float64{0, 0.02, 0.3}).Draw(t, "headroom")
	p.Emergency = rapid.SampledFrom([]float64{0, 0, 0.2}).Draw(t, "emergency")
	p.Residence = rapid.Uint32Range(0, 2).Draw(t, "residence")
	p.MinAge = rapid.Uint32Range(0, 2).Draw(t, "min age")
	p.CostFactor = rapid.SampledFrom([]float64{0, 2}).Draw(t, "kappa")
	return p
}

// TestNextProperties holds what must be true of any plan for any pool.
func TestNextProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		extents, v := drawView(t)
		p := drawPolicy(t)
		got := plan.Next(v, p)

		// The budget holds to the byte, and the sums are those of the moves.
		var up, down, balance int64
		for _, m := range got.Moves {
			switch m.Kind {
			case plan.Promotion:
				up += m.Bytes
			case plan.Demotion:
				down += m.Bytes
			case plan.Rebalance:
				balance += m.Bytes
			}
		}
		if up != got.BytesUp || down != got.BytesDown || balance != got.BytesRebalance {
			t.Fatalf("got sums %d, %d, %d, want %d, %d, %d", got.BytesUp, got.BytesDown, got.BytesRebalance, up, down, balance)
		}
		if p.BudgetBytes >= 0 && got.Bytes() > p.BudgetBytes {
			t.Fatalf("got %d bytes, budget %d", got.Bytes(), p.BudgetBytes)
		}

		// Every extent is accounted for, moved at most once.
		total := int64(len(got.Moves))
		for r, n := range got.Rejected {
			if n < 0 {
				t.Fatalf("rejected %d as %s", n, r)
			}
			total += n
		}
		if total != int64(len(extents)) {
			t.Fatalf("got %d moves and rejected %v: %d in all, want %d", len(got.Moves), got.Rejected, total, len(extents))
		}

		// No tier ever holds more than it can; headroom stands against promotions.
		free := map[extent.TierID]int64{}
		tier := map[extent.TierID]plan.Tier{}
		for _, x := range v.Tiers {
			free[x.ID], tier[x.ID] = x.Free, x
		}
		last := extent.TierID(len(v.Tiers) - 1)
		seen := map[extent.Key]bool{}
		wear := map[extent.TierID]int64{}
		for i, m := range got.Moves {
			e := extents[m.Key.Index]
			if seen[m.Key] || e.Pinned || e.Parked || e.Tier != m.From || !tier[m.To].Writable {
				t.Fatalf("move %d: %+v of %+v, seen before %v", i, m, e, seen[m.Key])
			}
			seen[m.Key] = true
			if wear[m.To] += m.Bytes; tier[m.To].WearLimited && wear[m.To] > tier[m.To].WearBytes {
				t.Fatalf("move %d writes %d bytes into tier %d, which may take %d", i, wear[m.To], m.To, tier[m.To].WearBytes)
			}
			if m.From == m.To {
				if m.Kind != plan.Rebalance || m.ToBacking == m.FromBacking {
					t.Fatalf("move %d leads nowhere: %+v", i, m)
				}
				continue
			}
			free[m.From]++
			free[m.To]--
			if free[m.To] < 0 {
				t.Fatalf("move %d overfills tier %d: %v", i, m.To, got.Moves)
			}
			if e.Want.Kind != plan.WantAuto && m.Reason != plan.ReasonPolicy {
				t.Fatalf("move %d takes an extent with a policy for %s", i, m.Reason)
			}
			if p.CostFactor == 0 && e.SinceMove < p.Residence && m.Reason != plan.ReasonPolicy {
				t.Fatalf("move %d does not respect the residence: %+v", i, e)
			}
			if m.Reason == plan.ReasonHot && m.Gain <= 0 && !displaced(got.Moves, i) {
				t.Fatalf("move %d has no gain: %+v", i, m)
			}
		}
		for id, x := range tier {
			keep := p.Headroom * float64(x.Slots)
			if id != last && free[id] < x.Free && float64(free[id]) < keep && promotedInto(got.Moves, id) && !demotedInto(got.Moves, id) {
				t.Fatalf("promotions left %d of %d slots of tier %d, headroom %.1f", free[id], x.Slots, id, keep)
			}
		}

		// Hysteresis: whoever displaced one by heat is hotter by the margin.
		for i, m := range got.Moves {
			if m.Reason != plan.ReasonCold {
				continue
			}
			partner := partnerOf(got.Moves, i)
			if partner.Reason != plan.ReasonHot {
				continue
			}
			a, b := extents[partner.Key.Index], extents[m.Key.Index]
			if a.Heat <= b.Heat*(1+p.Hysteresis) && partner.From == m.To {
				t.Fatalf("%+v displaced %+v at hysteresis %v", a, b, p.Hysteresis)
			}
		}
	})
}

// partnerOf returns the move next to a demotion that it makes room for.
func partnerOf(moves []plan.Move, i int) plan.Move {
	if i+1 < len(moves) && moves[i+1].To == moves[i].From {
		return moves[i+1]
	}
	return moves[i-1]
}

// displaced reports whether move i only makes place for a policy.
func displaced(moves []plan.Move, i int) bool {
	return i > 0 && moves[i-1].Reason == plan.ReasonPolicy || i+1 < len(moves) && moves[i+1].Reason == plan.ReasonPolicy
}

func promotedInto(moves []plan.Move, id extent.TierID) bool {
	for _, m := range moves {
		if m.To == id && m.Kind == plan.Promotion {
			return true
		}
	}
	return false
}

func demotedInto(moves []plan.Move, id extent.TierID) bool {
	for _, m := range moves {
		if m.To == id && m.Kind == plan.Demotion {
			return true
		}
	}
	return false
}

// TestOrderOfTheView: a plan depends on what the view holds, not on its order.
func TestOrderOfTheView(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		extents, v := drawView(t)
		p := drawPolicy(t)
		for i := range v.Tiers {
			v.Tiers[i].Utilisation = 0 // sums of rates are as exact as floating point is
		}
		want := plan.Next(v, p)
		shuffled := rapid.Permutation(extents).Draw(t, "order")
		v.Extents = func(yield func(plan.Extent) bool) {
			for _, e := range shuffled {
				if !yield(e) {
					return
				}
			}
		}
		got := plan.Next(v, p)
		if len(got.Moves) != len(want.Moves) {
			t.Fatalf("got %d moves, want %d", len(got.Moves), len(want.Moves))
		}
		for i := range got.Moves {
			if got.Moves[i] != want.Moves[i] {
				t.Fatalf("move %d: got %+v, want %+v", i, got.Moves[i], want.Moves[i])
			}
		}
	})
}
