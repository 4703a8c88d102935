package plan

import "tierd/tiering/extent"

// place returns the backing that a move into a tier goes to: the one with the largest
// share of free slots, as the pool chooses for a first write. 0 if the view has no
// backings, or none of the tier has a slot yet.
func (pl *planner) place(m Move) extent.BackingID {
	if len(pl.backings) == 0 {
		return 0
	}
	var to *Backing
	for _, b := range pl.backings {
		if b.Tier == m.To && b.Writable && b.Free > 0 && (to == nil || b.roomier(to)) {
			to = b
		}
	}
	if from := pl.backings[m.FromBacking]; from != nil {
		from.Free++
	}
	if to == nil {
		return 0
	}
	to.Free--
	return to.ID
}

// roomier reports whether b has the larger share of free slots; of equals it is the one
// with the lower number.
func (b *Backing) roomier(than *Backing) bool {
	x, y := b.Free*max(than.Slots, 1), than.Free*max(b.Slots, 1)
	return x > y || x == y && b.ID < than.ID
}

// balancer evens out one tier: the hottest extents of the busiest backing go to the least
// busy one, until half of the spread is gone; the next plan sees what that has done. If
// the load is even enough, the same goes for the fullest and the emptiest: what is new in
// a tier gets its share of the data, and with it of the load to come.
type balancer struct {
	tier     int
	from, to extent.BackingID
	measure  func(*Backing) float64
	hot      *selection
	rates    float64 // of all extents on from
}

func load(b *Backing) float64 { return b.Utilisation }

func fill(b *Backing) float64 { return 1 - float64(b.Free)/float64(max(b.Slots, 1)) }

func newBalancers(v View, p Policy, pl *planner) []*balancer {
	if p.Spread <= 0 {
		return nil
	}
	var out []*balancer
	for pos, t := range pl.tiers {
		for _, measure := range []func(*Backing) float64{load, fill} {
			from, to := extremes(v.Backings, t, measure)
			if from == nil || to == nil || measure(from)-measure(to) <= p.Spread {
				continue
			}
			out = append(out, &balancer{tier: pos, from: from.ID, to: to.ID, measure: measure, hot: newSelection(pl.listLen(), byRateDown)})
			break
		}
	}
	return out
}

// extremes returns the backing of a tier of which a measure is the greatest, and the one
// that takes extents of which it is the least; nil if there is none.
func extremes(backings []Backing, t *tierState, measure func(*Backing) float64) (most, least *Backing) {
	for i := range backings {
		b := &backings[i]
		if b.Tier != t.ID || !t.Writable {
			continue
		}
		if most == nil || measure(b) > measure(most) {
			most = b
		}
		if b.Writable && b.Free > 0 && (least == nil || measure(b) < measure(least)) {
			least = b
		}
	}
	return most, least
}

// offerBalance tells the balancers of an extent that may move within its tier.
func (pl *planner) offerBalance(c candidate) {
	for _, b := range pl.balance {
		if int(c.tier) != b.tier || c.backing != b.from {
			continue
		}
		b.rates += c.rate
		if !c.cooling {
			b.hot.add(c)
		}
	}
}

// rebalanceMoves spends what the budget has left on tiers with a lopsided load or fill.
func (pl *planner) rebalanceMoves() {
	for _, b := range pl.balance {
		t := pl.tiers[b.tier]
		from, to := pl.backings[b.from], pl.backings[b.to]
		spread := func() float64 { return b.measure(from) - b.measure(to) }
		goal := spread() / 2
		for _, c := range b.hot.sorted() {
			if spread() <= goal || t.free < 1 || t.wear < 1 || to.Free < 1 || !pl.affordable(1) {
				break
			}
			// Its share of the backing's accesses is its share of the device's time.
			share := 0.0
			if b.rates > 0 {
				share = from.Utilisation * c.rate / b.rates
			}
			if pl.isTaken(c.key) || share > spread()/2 {
				continue // too hot: it would turn the spread round
			}
			from.Utilisation -= share
			to.Utilisation += share
			b.rates -= c.rate
			from.Free++
			to.Free--
			t.wear--
			if c.want.Kind == WantAuto {
				t.taken++
			} else {
				pl.plan.Rejected[ReasonSettled]-- // it was counted among those that stay
			}
			pl.plan.BytesRebalance += pl.p.ExtentSize
			pl.take(Move{
				Key: c.key, From: t.ID, To: t.ID, FromBacking: b.from, ToBacking: b.to,
				Kind: Rebalance, Reason: ReasonBalance, Bytes: pl.p.ExtentSize,
			})
		}
	}
}
