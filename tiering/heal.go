package tiering

import (
	"context"
	"sync"
	"sync/atomic"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// healer brings the slot tables into line with the map after an unclean stop. A
// cut can leave entries of rounds that were never committed, and lose nothing of
// those that were. The map is the truth; but the tables must be right on the day
// the map is lost.
type healer struct {
	done    chan struct{} // closed when the tables match
	total   atomic.Int64  // slots to look at
	checked atomic.Int64
	mended  atomic.Int64
	damaged atomic.Int64 // entries with a bad checksum, or that cannot be read

	// Slots whose entries may be what outdoes a wrong one of the same extent elsewhere
	// are vacated until all tables match: those that were found so, and those vacated
	// meanwhile. Slots without an entry are used at once, backing by backing.
	mu   sync.Mutex
	held []extent.Location

	// anew are slots whose owners' entries are written anew although they are right:
	// elsewhere there may be a later one that is not. Set before healing begins.
	anew map[extent.Location]bool
}

// renew adds a slot to those whose entries are written anew.
func (h *healer) renew(l extent.Location) {
	if h.anew == nil {
		h.anew = make(map[extent.Location]bool)
	}
	h.anew[l] = true
}

func (h *healer) finished() bool {
	select {
	case <-h.done:
		return true
	default:
		return false
	}
}

// hold keeps a slot back until all tables match. It reports false if they do.
func (h *healer) hold(l extent.Location) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.finished() {
		return false
	}
	h.held = append(h.held, l)
	return true
}

// release ends the holding, because all tables match.
func (h *healer) release() []extent.Location {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.done)
	held := h.held
	h.held = nil
	return held
}

// A healPass is one go over all tables. After each, every backing is synced.
type healPass uint8

// The passes, in the order in which a rebuild from the tables finds the right
// mapping at every moment: first the owners are there, then entries that name no
// owner go, and the tombstones that outdid those go last.
const (
	healOwners healPass = iota
	healStale
	healTombstones
	healPasses
)

// healTables compares the tables with the map and mends them, all backings side by
// side. A pass begins when the one before has ended on all of them. One that hangs
// keeps the others from going on, and from using slots that have an entry; those
// without one are given out as soon as the owners on their backing are right. A slot
// without an owner whose entry has a bad checksum, or cannot be read, is set aside, and
// the entry left for pool check to list: it may be that of an extent which a rebuild
// went without.
func (p *Pool) healTables(ctx context.Context, members []*member) {
	for pass := healOwners; pass < healPasses; pass++ {
		var wg sync.WaitGroup
		for _, b := range members {
			wg.Go(func() {
				if ctx.Err() == nil && b.err() == nil {
					p.healTable(ctx, b, pass)
				}
				// A backing that fails on the way is left as it is, as those are that had
				// failed before: the others take new extents all the same.
				if pass == healOwners && ctx.Err() == nil && b.err() == nil {
					close(b.opened)
				}
			})
		}
		wg.Wait()
	}
	if ctx.Err() != nil {
		return
	}
	if err := p.endHealing(); err != nil {
		p.log.Error("the next start heals the slot tables again", "error", err)
	}
	p.log.Info("slot tables match the map", "mended", p.heal.mended.Load(), "damaged", p.heal.damaged.Load())
	p.cleaner.free(p.heal.release())
	p.freed.broadcast()
}

// endHealing records that the slot tables match the map: backings that were away are
// back. A table in which entries are left that nobody can read is looked through
// again by the next start, so that their slots stay set aside.
func (p *Pool) endHealing() error {
	return p.editMembers(func(m *extentmap.Member) bool {
		b := p.members[m.ID].Load()
		if b == nil || b.err() != nil {
			return false
		}
		was := *m
		m.Away, m.Unsynced, m.StampedStop, m.BadEntries = false, false, 0, b.badEntries.Load()
		return *m != was
	}, nil)
}

// healTable is one pass over one table. Entries of this incarnation are left
// alone: rounds have written them meanwhile. It ends early if ctx does, or b fails.
func (p *Pool) healTable(ctx context.Context, b *member, pass healPass) {
	expected := p.ownersOn(b)
	var wrong []ondisk.SlotUpdate
	var unread int64
	var cause error
	err := b.table.Salvage(ctx, func(s extent.Slot, e ondisk.SlotEntry, valid bool) bool {
		p.heal.checked.Add(1)
		here := extent.Location{Backing: b.id, Slot: s}
		key, owned := expected[s]
		current := valid && e.Seq>>seqBits >= p.incarnation
		switch {
		case current:
		case pass == healOwners && owned:
			right := valid && e.Kind == ondisk.Owner && e.Key == key
			if !right || p.heal.anew[here] {
				wrong = append(wrong, ondisk.SlotUpdate{Slot: s, Entry: ondisk.SlotEntry{
					Kind: ondisk.Owner, Key: key,
					// Higher than any before this open, lower than any since: the log
					// counts from one.
					Seq: p.incarnation << seqBits,
				}})
			}
		case pass == healOwners && !valid:
			// Nobody knows whose it was. It is set aside, and pool check lists it.
			if b.slots.QuarantineFree(s) {
				b.badEntries.Store(true)
				p.log.Warn("slot is set aside: its table entry has a bad checksum", "backing", b.path, "slot", s)
			}
		case pass == healOwners:
			if e.Kind != ondisk.Free && b.slots.Hold(s) {
				p.heal.hold(here)
			}
		case !owned && b.slots.SetAside(s):
			// By the map it may be an extent's whose move was taken back, and its entry
			// the only one that says so.
		case !owned && (pass == healStale && e.Kind == ondisk.Owner || pass == healTombstones && e.Kind == ondisk.Tombstone):
			wrong = append(wrong, ondisk.SlotUpdate{Slot: s})
		}
		if !valid && pass == healOwners {
			p.heal.damaged.Add(1)
		}
		return ctx.Err() == nil && b.err() == nil
	}, func(first extent.Slot, n uint32, err error) {
		p.heal.checked.Add(int64(n))
		cause = b.ioError("read slot table", err)
		unread += int64(n)
		for s := first; s < first+extent.Slot(n); s++ {
			b.slots.QuarantineFree(s)
		}
	})
	if err != nil || b.err() != nil {
		return
	}
	if unread > 0 {
		b.badEntries.Store(true)
	}
	if unread > 0 && pass == healOwners {
		p.heal.damaged.Add(unread)
		p.log.Warn("entries of the slot table cannot be read: slots there without an extent are set aside", "backing", b.path, "slots", unread, "error", cause)
	}
	p.mendTable(b, wrong)
}

// ownersOn returns the extents that have slots on b.
func (p *Pool) ownersOn(b *member) map[extent.Slot]extent.Key {
	owners := make(map[extent.Slot]extent.Key)
	for _, v := range p.allVolumes() {
		v.table.Range(func(i extent.Index, e extent.Entry) bool {
			if l := e.Location(); l.Backing == b.id {
				owners[l.Slot] = extent.Key{Volume: v.id, Index: i}
			}
			return true
		})
	}
	return owners
}

// mendTable writes entries, leaving out those that rounds have to do with by now:
// requests are served meanwhile. Rounds have to wait for one part of it at most,
// which is a matter of a few blocks, and their syncs for no more than that.
func (p *Pool) mendTable(b *member, wrong []ondisk.SlotUpdate) {
	for len(wrong) > 0 {
		part := firstBlocks(wrong, mendBlocks)
		wrong = wrong[len(part):]
		// A stop half-way would look like a failure of the backing.
		n, err := b.table.WriteIf(context.Background(), part, func(u ondisk.SlotUpdate, now ondisk.SlotEntry, valid bool) bool {
			if valid && now.Seq>>seqBits >= p.incarnation {
				return false
			}
			if u.Entry.Kind != ondisk.Owner {
				return true
			}
			v := p.volumeByID(u.Entry.Key.Volume)
			here := extent.Location{Backing: b.id, Slot: u.Slot}
			return v != nil && v.table.Load(u.Entry.Key.Index).Location() == here
		})
		if err != nil {
			b.fail("write slot table", err)
			return
		}
		p.heal.mended.Add(int64(n))
		if b.sync(context.Background()) != nil {
			return // it has failed
		}
	}
}

// mendBlocks is how many blocks of a table are mended at a time.
const mendBlocks = 64

// firstBlocks returns the updates that lie in the first n blocks of the table
// that there are any for. They are in the order of their slots.
func firstBlocks(updates []ondisk.SlotUpdate, n int) []ondisk.SlotUpdate {
	last := int64(-1)
	for i, u := range updates {
		if block := int64(u.Slot) / ondisk.EntriesPerBlock; block != last {
			if n--; n < 0 {
				return updates[:i]
			}
			last = block
		}
	}
	return updates
}

func (p *Pool) volumeByID(id extent.VolumeID) *Volume {
	p.volMu.RLock()
	defer p.volMu.RUnlock()
	return p.byID[id]
}
