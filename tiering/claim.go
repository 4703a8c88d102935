package tiering

import (
	"cmp"
	"context"
	"slices"

	"tierd/tiering/extent"
	"tierd/tiering/ondisk"
)

// A claim is an entry of a slot table: that an extent lives in a slot, or that it
// was unmapped there. A rebuild holds one for each entry, so it is packed: 24
// bytes.
type claim struct {
	seq   uint64
	place uint64 // slot<<32 | volume
	rest  uint64 // extent<<12 | backing<<1 | tombstone
}

// claimIndexBits is how much of an extent's number fits. The largest volume at the
// smallest extents has fewer.
const claimIndexBits = 64 - 12

func newClaim(b extent.BackingID, s extent.Slot, e ondisk.SlotEntry) claim {
	c := claim{
		seq:   e.Seq,
		place: uint64(s)<<32 | uint64(e.Key.Volume),
		rest:  uint64(e.Key.Index)<<12 | uint64(b)<<1,
	}
	if e.Kind == ondisk.Tombstone {
		c.rest |= 1
	}
	return c
}

func (c claim) key() extent.Key {
	return extent.Key{Volume: extent.VolumeID(uint32(c.place)), Index: extent.Index(c.rest >> 12)}
}

func (c claim) location() extent.Location {
	return extent.Location{Backing: extent.BackingID(c.rest >> 1 & (1<<11 - 1)), Slot: extent.Slot(c.place >> 32)}
}

func (c claim) tombstone() bool { return c.rest&1 != 0 }

// compareClaims sorts by extent, and the latest claim of each to the front. Claims
// that are equally late are in an order all the same.
func compareClaims(a, b claim) int {
	return cmp.Or(
		cmp.Compare(uint32(a.place), uint32(b.place)),
		cmp.Compare(a.rest>>12, b.rest>>12),
		cmp.Compare(b.seq, a.seq),
		cmp.Compare(b.rest&1, a.rest&1), // a tombstone first
		cmp.Compare(a.rest, b.rest),
		cmp.Compare(a.place, b.place),
	)
}

// scan collects the claims of all slot tables. Those that can mean nothing are left
// out, and listed.
func (r *rebuild) scan(ctx context.Context) error {
	var slots int64
	for _, m := range r.used {
		slots += int64(m.Superblock.Layout.Slots)
	}
	r.claims = make([]claim, 0, slots) // memory is taken when it is written to
	for _, m := range r.used {
		if err := r.scanMember(ctx, m, slots); err != nil {
			return err
		}
	}
	return nil
}

func (r *rebuild) scanMember(ctx context.Context, m *SurveyMember, total int64) error {
	out := &r.report.Members[slices.IndexFunc(r.report.Members, func(o RebuiltMember) bool { return o.ID == m.ID() })]
	path := m.Spec.Path
	err := m.EachSlot(ctx, func(s extent.Slot, e ondisk.SlotEntry, valid bool) bool {
		if r.scanned++; r.scanned%4096 == 0 {
			r.o.Progress("read slot tables", r.scanned, total)
		}
		switch {
		case !valid:
			out.Damaged++
			r.found.damage(FoundEntryDamaged, path, "", "the entry of slot %d has a bad checksum: nobody knows whose it is, and it is set aside", s)
			return ctx.Err() == nil
		case e.Kind == ondisk.Free:
			return ctx.Err() == nil
		case e.Kind == ondisk.Owner:
			out.Owners++
		default:
			out.Tombstones++
		}
		r.state.Pool.MaxSeq = max(r.state.Pool.MaxSeq, e.Seq)
		r.state.Pool.NextVolume = max(r.state.Pool.NextVolume, e.Key.Volume+1) // ids are never reused
		v := r.volumes[e.Key.Volume]
		if v != nil && r.fromDump {
			r.stretch(v, e)
		}
		switch {
		case v == nil && r.fromDump:
			if e.Kind == ondisk.Owner {
				r.found.damage(FoundNoVolume, path, "", "slot %d holds extent %d of volume %d, which the dump does not know", s, e.Key.Index, e.Key.Volume)
			}
		case v == nil:
			if e.Kind == ondisk.Owner {
				r.found.note(FoundNoVolume, path, mendStart, "slot %d holds extent %d of volume %d, which was deleted", s, e.Key.Index, e.Key.Volume)
			}
		case e.Key.Index >= v.count || e.Key.Index >= 1<<claimIndexBits:
			r.found.damage(FoundPastEnd, path, mendStart, "slot %d holds extent %d of volume %s, which is past its end; it is left out", s, e.Key.Index, r.report.Volumes[v.at].Name)
		default:
			r.claims = append(r.claims, newClaim(m.ID(), s, e))
		}
		return ctx.Err() == nil
	})
	if err != nil {
		return err
	}
	return ctx.Err()
}

// stretch makes a volume of a dump large enough for an extent that a backing has of
// it: it was grown after the dump was made.
func (r *rebuild) stretch(v *rebuiltVolume, e ondisk.SlotEntry) {
	if e.Kind != ondisk.Owner || e.Key.Index < v.count || e.Key.Index >= 1<<claimIndexBits {
		return
	}
	size := r.size.Start(e.Key.Index + 1)
	if checkVolumeSize(size, r.size) != nil {
		return
	}
	out := &r.report.Volumes[v.at]
	if v.count == r.size.Count(r.settingsSize(out.ID)) {
		r.found.warning(FoundPastEnd, "volume "+out.Name, "", "it has extents past its end by the dump, and is made larger; its size was perhaps larger still")
	}
	v.count, out.Size, r.state.Volumes[v.at].Size = e.Key.Index+1, size, size
}

// settingsSize returns the size of a volume by the dump, bytes.
func (r *rebuild) settingsSize(id extent.VolumeID) int64 {
	for _, v := range r.settings.Volumes {
		if v.ID == id {
			return v.Size
		}
	}
	return 0
}

// resolve keeps the latest claim of each extent if it is that of an owner: what is
// left is the map.
func (r *rebuild) resolve() {
	slices.SortFunc(r.claims, compareClaims)
	kept := r.claims[:0]
	for i := 0; i < len(r.claims); {
		first := r.claims[i]
		key := first.key()
		n := 1
		for i+n < len(r.claims) && r.claims[i+n].key() == key {
			other := r.claims[i+n]
			// Two tombstones of one number are no riddle: a round wrote one that a kill kept
			// from its commit, and the replay of its record another, in the slot that the map
			// knew.
			if other.seq == first.seq && !other.tombstone() && !first.tombstone() {
				r.found.damage(FoundDoubleOwner, "volume "+r.report.Volumes[r.volumes[key.Volume].at].Name, "",
					"extent %d is in %v and in %v, and nothing tells which is later; the first is taken", key.Index, first.location(), other.location())
			}
			if !other.tombstone() {
				r.report.Superseded++
			}
			n++
		}
		i += n
		if first.tombstone() {
			continue
		}
		kept = append(kept, first)
		r.report.Volumes[r.volumes[key.Volume].at].Extents++
	}
	r.claims = kept
	r.report.Extents = int64(len(kept))
}
