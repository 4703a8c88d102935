package tiering

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// A claim is an entry of a slot table: that an extent lives in a slot, or that it
// was unmapped there. A rebuild holds one for each entry, so it is packed: 24
// bytes.
type claim struct {
	seq   uint64
	place uint64 // slot<<32 | volume
	rest  uint64 // extent<<12 | backing<<1 | tombstone; maxVolumeExtents fit
}

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
		r.highest = max(r.highest, e.Key.Volume)
		switch {
		case !canBe(e.Key):
			r.found.damage(FoundPastEnd, path, mendStart, "slot %d holds extent %d of volume %d, which cannot be; it is left out", s, e.Key.Index, e.Key.Volume)
		case r.volumes[e.Key.Volume] == nil && e.Key.Volume < r.unknown:
			if e.Kind == ondisk.Owner {
				r.found.note(FoundNoVolume, path, mendStart, "slot %d holds extent %d of volume %d, which was deleted", s, e.Key.Index, e.Key.Volume)
			}
		default:
			r.claims = append(r.claims, newClaim(m.ID(), s, e))
		}
		return ctx.Err() == nil
	}, func(first extent.Slot, n uint32, err error) {
		r.scanned += int64(n)
		out.Unreadable += int64(n)
		r.found.damage(FoundUnreadable, path, "", "the entries of slots %d to %d cannot be read: nobody knows whose they are, and extents that are there read as they were before, or as zeroes: %v", first, uint32(first)+n-1, err)
	})
	if err != nil {
		return err
	}
	if now := r.newest.Superblock.Incarnation; m.Stamp.Clean && m.Stamp.Counted && m.Stamp.Incarnation == now && uint64(out.Owners) < m.Stamp.Owners {
		r.found.damage(FoundEntryMissing, path, "", "its slot table has %d owners, and had %d when the pool was stopped: the other extents read as zeroes, and nobody can tell which they are", out.Owners, m.Stamp.Owners)
	}
	return ctx.Err()
}

// canBe reports whether there can be such an extent.
func canBe(k extent.Key) bool {
	return k.Volume != 0 && k.Volume != math.MaxUint32 && k.Index < maxVolumeExtents
}

// volumeFor returns the volume of an extent that has a slot. What is known of the
// volumes may be old: one that is not known is made, and one that is too small is made
// larger, for what is in slots without an extent is zeroed.
func (r *rebuild) volumeFor(k extent.Key) *rebuiltVolume {
	v := r.volumes[k.Volume]
	if v == nil {
		name := fmt.Sprintf("found-%d", k.Volume)
		for slices.ContainsFunc(r.state.Volumes, func(v extentmap.Volume) bool { return v.Name == name }) {
			name += "-again"
		}
		v = &rebuiltVolume{at: len(r.state.Volumes), found: true}
		r.volumes[k.Volume] = v
		r.state.Volumes = append(r.state.Volumes, extentmap.Volume{
			ID: k.Volume, UUID: uuid.New(), Name: name, Policy: "auto", State: extentmap.VolumeActive,
		})
		r.report.Volumes = append(r.report.Volumes, RebuiltVolume{ID: k.Volume, UUID: r.state.Volumes[v.at].UUID, Name: name, Policy: "auto"})
	}
	if k.Index >= v.count {
		v.stretched = true
		v.count = k.Index + 1
		size := r.size.Start(v.count)
		r.state.Volumes[v.at].Size, r.report.Volumes[v.at].Size = size, size
	}
	return v
}

// tellVolumes reports the volumes that had to be made, or made larger.
func (r *rebuild) tellVolumes() {
	if r.highest >= r.unknown {
		r.oldVolumes("it has no volume from %d on, and slots belonged to volume %d", r.unknown, r.highest)
	}
	for _, out := range r.report.Volumes {
		switch v := r.volumes[out.ID]; {
		case v.found:
			r.found.damage(FoundNoVolume, "volume "+out.Name, "volume rename, volume grow", "made for the %d extents of volume %d, of which nothing else is known: its size may have been larger", out.Extents, out.ID)
		case v.stretched:
			r.found.damage(FoundPastEnd, "volume "+out.Name, "volume grow", "it has extents past its last known end, and is made larger; its size may have been larger still")
		}
	}
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
				r.found.damage(FoundDoubleOwner, "volume "+r.report.Volumes[r.volumeFor(key).at].Name, "",
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
		r.report.Volumes[r.volumeFor(key).at].Extents++
	}
	r.claims = kept
	r.state.Pool.NextVolume = max(r.state.Pool.NextVolume, r.highest+1) // ids are never reused
	r.tellVolumes()
	r.report.Extents = int64(len(kept))
}
