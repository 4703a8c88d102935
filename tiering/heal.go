package tiering

import (
	"context"
	"fmt"
	"sync/atomic"

	"tierd/tiering/extent"
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
	damaged atomic.Int64 // entries with a bad checksum
	gaveUp  atomic.Bool  // the tables will not match before the next start, and no slot becomes clean

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

// healTables compares the tables with the map and mends them. No slot is given
// out before it has finished. A slot without an owner whose entry has a bad
// checksum is set aside, and the entry left for pool check to list.
func (p *Pool) healTables(ctx context.Context) {
	ok := true
	p.eachMember(func(b *member) {
		if !b.missing {
			p.heal.total.Add(int64(healPasses) * int64(b.layout.Slots))
		}
	})
	for pass := range healPasses {
		p.eachMember(func(b *member) {
			if ctx.Err() != nil || b.err() != nil {
				return
			}
			// A backing that fails on the way is left as it is, as those are that had
			// failed before: the others take new extents all the same.
			if err := p.healTable(ctx, b, pass); err != nil && b.err() == nil {
				p.log.Error("slot table cannot be brought into line with the map", "backing", b.path, "error", err)
				ok = false
			}
		})
	}
	if ctx.Err() != nil {
		return
	}
	if !ok {
		p.log.Error("slot tables are not in line with the map; no new extents are placed before the next start")
		p.heal.gaveUp.Store(true)
		p.freed.broadcast() // who waits for slots looks again
		return
	}
	if err := p.welcomeBack(); err != nil {
		p.log.Error("the next start heals the slot tables again", "error", err)
	}
	p.log.Info("slot tables match the map", "mended", p.heal.mended.Load(), "damaged", p.heal.damaged.Load())
	close(p.heal.done)
	p.eachMember((*member).wakeCleaner)
	p.freed.broadcast()
}

// healTable is one pass over one table. Entries of this incarnation are left
// alone: rounds have written them meanwhile.
func (p *Pool) healTable(ctx context.Context, b *member, pass healPass) error {
	expected := p.ownersOn(b)
	var wrong []ondisk.SlotUpdate
	err := b.table.Scan(ctx, func(s extent.Slot, e ondisk.SlotEntry, valid bool) bool {
		p.heal.checked.Add(1)
		if !valid && pass == healOwners {
			p.heal.damaged.Add(1)
		}
		key, owned := expected[s]
		current := valid && e.Seq>>seqBits >= p.incarnation
		switch {
		case current:
		case pass == healOwners:
			right := valid && e.Kind == ondisk.Owner && e.Key == key
			if owned && (!right || p.heal.anew[extent.Location{Backing: b.id, Slot: s}]) {
				wrong = append(wrong, ondisk.SlotUpdate{Slot: s, Entry: ondisk.SlotEntry{
					Kind: ondisk.Owner, Key: key,
					// Higher than any before this open, lower than any since: the log
					// counts from one.
					Seq: p.incarnation << seqBits,
				}})
			}
		case !owned && !valid:
			// Nobody knows whose it was. It is set aside, and pool check lists it.
			if pass == healStale && b.slots.QuarantineFree(s) {
				p.log.Warn("slot is set aside: its table entry has a bad checksum", "backing", b.path, "slot", s)
			}
		case !owned && (pass == healStale && e.Kind == ondisk.Owner || pass == healTombstones && e.Kind == ondisk.Tombstone):
			wrong = append(wrong, ondisk.SlotUpdate{Slot: s})
		}
		return ctx.Err() == nil
	})
	if err != nil {
		return err
	}
	if len(wrong) == 0 || ctx.Err() != nil {
		return nil
	}
	if err := p.mendTable(b, wrong); err != nil {
		return err
	}
	return b.sync(context.Background())
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
// requests are served meanwhile.
func (p *Pool) mendTable(b *member, wrong []ondisk.SlotUpdate) error {
	ctx := context.Background() // a stop half-way would look like a failure of the backing
	const batch = 1024          // entries written while rounds have to wait
	for len(wrong) > 0 {
		n := min(batch, len(wrong))
		part := wrong[:n]
		wrong = wrong[n:]
		b.tableMu.Lock()
		var still []ondisk.SlotUpdate
		for _, u := range part {
			now, valid, err := b.table.Read(ctx, u.Slot)
			if err != nil {
				b.tableMu.Unlock()
				return fmt.Errorf("read slot table: %w", err)
			}
			if valid && now.Seq>>seqBits >= p.incarnation {
				continue
			}
			if u.Entry.Kind == ondisk.Owner {
				v := p.volumeByID(u.Entry.Key.Volume)
				here := extent.Location{Backing: b.id, Slot: u.Slot}
				if v == nil || v.table.Load(u.Entry.Key.Index).Location() != here {
					continue
				}
			}
			still = append(still, u)
		}
		err := b.table.Write(ctx, still)
		b.tableMu.Unlock()
		if err != nil {
			b.fail("write slot table", err)
			return b.err()
		}
		p.heal.mended.Add(int64(len(still)))
	}
	return nil
}

func (p *Pool) volumeByID(id extent.VolumeID) *Volume {
	p.volMu.RLock()
	defer p.volMu.RUnlock()
	return p.byID[id]
}
