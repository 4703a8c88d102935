package tiering

import (
	"tierd/tiering/extent"
	"tierd/tiering/plan"
)

// A Policy says where a volume's extents are wanted: by heat (auto), as high or
// as low as there is room, or in one tier.
type Policy struct {
	name string // as the operator wrote it
	want plan.Want
}

func (p Policy) String() string { return p.name }

// parsePolicy returns the policy of a name; tiers are the pool's, by rank.
func parsePolicy(name string, tiers []string) (Policy, error) {
	switch name {
	case "", "auto":
		return Policy{"auto", plan.Want{Kind: plan.WantAuto}}, nil
	case "highest":
		return Policy{name, plan.Want{Kind: plan.WantHighest}}, nil
	case "lowest":
		return Policy{name, plan.Want{Kind: plan.WantLowest}}, nil
	}
	for i, t := range tiers {
		if t == name {
			return Policy{name, plan.Want{Kind: plan.WantTier, Tier: extent.TierID(i)}}, nil
		}
	}
	return Policy{}, invalid("policy %q: must be auto, highest, lowest or the name of a tier", name)
}

// order calls try for the tiers in which a new extent may be placed, best first,
// until it returns true.
func (p Policy) order(tiers int, try func(t int) bool) {
	switch p.want.Kind {
	case plan.WantLowest:
		for t := tiers - 1; t >= 0; t-- {
			if try(t) {
				return
			}
		}
	case plan.WantTier: // the tier itself, then the slower ones, then the faster
		w := int(p.want.Tier)
		for t := w; t < tiers; t++ {
			if try(t) {
				return
			}
		}
		for t := w - 1; t >= 0; t-- {
			if try(t) {
				return
			}
		}
	default:
		for t := range tiers {
			if try(t) {
				return
			}
		}
	}
}
