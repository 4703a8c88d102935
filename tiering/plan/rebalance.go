package plan

// balancer evens out the load of one tier: hottest extents of the busiest backing
// go to the least busy one, until half of the spread is gone. Half, because the
// other half is made good by the same moves on the receiving side.
type balancer struct {
	tier     int
	from, to Backing
	hot      *selection
}

func newBalancers(v View, p Policy, pl *planner) []*balancer {
	if p.Spread <= 0 {
		return nil
	}
	var out []*balancer
	for pos, t := range pl.tiers {
		var b balancer
		n := 0
		for _, dev := range v.Backings {
			if dev.Tier != t.ID || !t.Writable {
				continue
			}
			if n == 0 || dev.Utilisation > b.from.Utilisation {
				b.from = dev
			}
			if dev.Writable && dev.Free > 0 && (b.to.ID == 0 || dev.Utilisation < b.to.Utilisation) {
				b.to = dev
			}
			n++
		}
		if n > 1 && b.to.ID != 0 && b.from.Utilisation-b.to.Utilisation > p.Spread {
			b.tier, b.hot = pos, newSelection(pl.listLen(), byRateDown)
			out = append(out, &b)
		}
	}
	return out
}

// offerBalance tells the balancers of an extent that may move within its tier.
func (pl *planner) offerBalance(c candidate) {
	for _, b := range pl.balance {
		if int(c.tier) == b.tier && c.backing == b.from.ID && !c.cooling {
			b.hot.add(c)
		}
	}
}

// rebalanceMoves spends what the budget has left on tiers with a lopsided load.
func (pl *planner) rebalanceMoves() {
	for _, b := range pl.balance {
		t := pl.tiers[b.tier]
		excess := (b.from.Utilisation - b.to.Utilisation) / 2
		// Moves into the tier planned above may use this backing as well.
		room := min(b.to.Free, t.free, t.wear)
		for _, c := range b.hot.sorted() {
			share := c.rate * t.delay // of the device's time
			if room < 1 || excess <= 0 || share <= 0 || !pl.affordable(1) {
				break
			}
			if pl.isTaken(c.key) || share > excess {
				continue
			}
			excess -= share
			room--
			if c.want.Kind == WantAuto {
				t.taken++
			} else {
				pl.plan.Rejected[ReasonSettled]-- // it was counted among those that stay
			}
			t.wear--
			pl.plan.BytesRebalance += pl.p.ExtentSize
			pl.take(Move{
				Key: c.key, From: t.ID, To: t.ID, FromBacking: b.from.ID, ToBacking: b.to.ID,
				Kind: Rebalance, Reason: ReasonBalance, Bytes: pl.p.ExtentSize,
			})
		}
	}
}
