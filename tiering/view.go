package tiering

import (
	"slices"
	"time"

	"tierd/tiering/extent"
	"tierd/tiering/heat"
	"tierd/tiering/plan"
)

// view is the state of the pool as the planner sees it; with ahead as it will see it when
// the cycle has ended, if that is now.
func (m *monitor) view(now time.Time, tiers []*tier, ahead bool) plan.View {
	p := m.pool
	costs := tierCosts(tiers)
	v := plan.View{Extents: func(yield func(plan.Extent) bool) { p.planExtents(now, tiers, ahead, yield) }}
	for i, t := range tiers {
		pt := plan.Tier{ID: extent.TierID(i), Name: t.name, ServiceTime: costs[i].Service, Utilisation: costs[i].Utilisation}
		for _, b := range t.members() {
			c := b.slots.Counts()
			// What is vacated becomes free with the next commit, and movers wait for it.
			free := c.Clean + c.Cleaning + c.Free + c.Vacated
			takes := b.takesExtents() && !b.health.suspect.Load()
			v.Backings = append(v.Backings, plan.Backing{
				ID: b.id, Tier: pt.ID, Slots: c.Total - c.Quarantined, Free: free,
				Utilisation: b.cost.info(t.media).Busy, Writable: takes,
			})
			if !takes {
				continue
			}
			pt.Writable = true
			pt.Slots += c.Total - c.Quarantined
			pt.Free += free
			pt.Bandwidth += b.pace.rate()
		}
		v.Tiers = append(v.Tiers, pt)
	}
	return v
}

// planExtents yields every mapped extent with its heat, in one pass over the maps.
// A tier that is not among tiers has come, or gone, since they were looked at: it
// has no part in this plan, and neither has a backing that comes while it is made.
func (p *Pool) planExtents(now time.Time, tiers []*tier, ahead bool, yield func(plan.Extent) bool) {
	const chunk = 4096
	names := tierNames(tiers)
	scores := make([]heat.Score, chunk)
	places := p.places(tiers)
	for _, v := range p.allVolumes() {
		if v.gone.Load() {
			continue
		}
		pol, err := parsePolicy(v.Policy().name, names)
		if err != nil {
			continue
		}
		failed := v.failed.Load() != nil
		score := v.heat.Scores
		if ahead {
			score = v.heat.NextScores
		}
		first, n := extent.Index(0), 0
		goOn := true
		v.table.Range(func(i extent.Index, e extent.Entry) bool {
			if !e.Mapped() {
				return true
			}
			if n == 0 || i >= first+extent.Index(n) {
				first = i
				n = score(first, scores[:min(chunk, int(v.table.Len()-first))], now)
			}
			var s heat.Score
			if i < first+extent.Index(n) {
				s = scores[i-first]
			}
			id := e.Location().Backing
			at := &places[id]
			if !at.known {
				return true
			}
			goOn = yield(plan.Extent{
				Key: extent.Key{Volume: v.id, Index: i}, Tier: at.rank, Backing: id, Want: pol.want,
				Pinned: failed || at.stuck, Heat: s.Heat, Noise: s.Noise, Age: s.Age, SinceMove: s.SinceMove,
			})
			return goOn
		})
		if !goOn {
			return
		}
	}
}

// place is what the planner has to know of the backing that an extent lies on.
type place struct {
	known bool // of one of the tiers planned for
	rank  extent.TierID
	stuck bool // nothing can be moved from it, or is moved by others
}

// places returns the places by the backing's id: it is looked at once for a plan, not
// for each of millions of extents.
func (p *Pool) places(tiers []*tier) *[extent.MaxBackingID + 1]place {
	places := new([extent.MaxBackingID + 1]place)
	for i := range p.members {
		b := p.members[i].Load()
		if b == nil {
			continue
		}
		if rank := slices.Index(tiers, b.tier); rank >= 0 {
			places[i] = place{true, extent.TierID(rank), b.err() != nil || b.draining.Load()}
		}
	}
	return places
}
