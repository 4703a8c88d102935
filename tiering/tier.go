package tiering

import (
	"slices"
	"sync"
	"sync/atomic"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
)

// A tier is a class of speed of an open pool. What it is and what was counted of
// it stay with it; its rank changes when a tier is added or removed.
type tier struct {
	name  string
	media backing.Media
	stats ioStats

	place atomic.Uint32             // its rank, 0 the fastest
	list  atomic.Pointer[[]*member] // replaced, never edited
}

func newTier(name string, media backing.Media) *tier {
	t := &tier{name: name, media: media}
	t.list.Store(new([]*member))
	return t
}

// rank returns the place of the tier among the tiers, which is its id in the
// metadata.
func (t *tier) rank() extent.TierID { return extent.TierID(t.place.Load()) }

// members returns the backings of the tier. Callers must not change the list.
func (t *tier) members() []*member { return *t.list.Load() }

// add makes b known as a backing of the tier. Pool.adminMu is held, or the pool is
// being opened.
func (t *tier) add(b *member) {
	list := append(slices.Clone(t.members()), b)
	t.list.Store(&list)
}

// drop forgets a backing of the tier. Pool.adminMu is held.
func (t *tier) drop(b *member) {
	list := slices.DeleteFunc(slices.Clone(t.members()), func(o *member) bool { return o == b })
	t.list.Store(&list)
}

// ranks returns the tiers, fastest first. Callers must not change the list.
func (p *Pool) ranks() []*tier { return *p.tiers.Load() }

// tierAt returns the tier of a rank, or nil: ranks of a while ago may be out of
// date.
func (p *Pool) tierAt(rank extent.TierID) *tier {
	if tiers := p.ranks(); int(rank) < len(tiers) {
		return tiers[rank]
	}
	return nil
}

// setRanks puts the tiers in their order. Pool.adminMu is held, or the pool is
// being opened.
func (p *Pool) setRanks(tiers []*tier) {
	for i, t := range tiers {
		t.place.Store(uint32(i))
	}
	p.tiers.Store(&tiers)
}

// tierCounts counts something for each tier. The zero value is ready.
type tierCounts struct{ m sync.Map }

// of returns the count of t.
func (c *tierCounts) of(t *tier) *atomic.Int64 {
	if n, ok := c.m.Load(t); ok {
		return n.(*atomic.Int64)
	}
	n, _ := c.m.LoadOrStore(t, new(atomic.Int64))
	return n.(*atomic.Int64)
}
