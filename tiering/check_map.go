package tiering

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// windowSlots is how many slots a pass looks at: 12 bytes each. Pools with more
// slots have their map read once for each pass.
var windowSlots int64 = 8 << 20

// windowPart is a row of slots of one backing, with the owners that the map gives
// them. A window is one part, or several.
type windowPart struct {
	m       extentmap.Member
	from    extent.Slot
	n       int64
	volumes []extent.VolumeID // by slot, from `from` on; 0: free
	indexes []extent.Index
}

// maxProblems is how many extents that are where they cannot be Repair looks at at a
// time, and maxDiffs is the same of entries of slot tables.
const (
	maxProblems = 1 << 18
	maxDiffs    = 1 << 18
)

// mapProblem is an extent that is where it cannot be.
type mapProblem struct {
	key   extent.Key
	at    extent.Location
	kind  FindingKind
	other extent.Key // the other owner, of FoundDoubleOwner
}

// unknownVolume is what the map has of a volume that has no record.
type unknownVolume struct {
	extents int64
	last    extent.Index
}

// entryDiff is an entry of a slot table that is not as the map has it.
type entryDiff struct {
	slot  extent.Slot
	entry ondisk.SlotEntry // what is there, if valid
	valid bool
	owner extent.Key // by the map; volume 0: the slot is free
}

// windows divides all slots of the pool into windows of up to limit slots.
func (c *checker) windows(limit int64) [][]windowPart {
	var list [][]windowPart
	var w []windowPart
	room := limit
	for _, m := range c.state.Members {
		for from := int64(0); from < int64(m.Slots); {
			n := min(room, int64(m.Slots)-from)
			w = append(w, windowPart{m: m, from: extent.Slot(from), n: n})
			from += n
			if room -= n; room == 0 {
				list, w, room = append(list, w), nil, limit
			}
		}
	}
	if len(w) > 0 || len(list) == 0 {
		list = append(list, w)
	}
	return list
}

// checkMap compares the map with itself, with the volumes and backings, and with
// the slot tables: window by window, each by reading the map and then the tables of
// the slots in the window.
func (c *checker) checkMap(ctx context.Context) error {
	list := c.windows(windowSlots)
	c.unknown = make(map[extent.VolumeID]*unknownVolume)
	for i, w := range list {
		byID := make(map[extent.BackingID]*windowPart)
		for j := range w {
			p := &w[j]
			p.volumes, p.indexes = make([]extent.VolumeID, p.n), make([]extent.Index, p.n)
			byID[p.m.ID] = p
		}
		if err := c.readWindow(ctx, byID, i == 0); err != nil {
			return err
		}
		for j := range w {
			if err := c.checkTable(ctx, &w[j]); err != nil {
				return err
			}
			w[j].volumes, w[j].indexes = nil, nil
			c.progress("slot tables", int64(i)*1000+int64(j+1)*1000/int64(len(w)), int64(len(list))*1000)
		}
	}
	for id, u := range c.unknown {
		c.found.damage(FoundNoVolume, fmt.Sprintf("volume %d", id), mendRepair,
			"the map has %d extents of it, and there is no such volume", u.extents)
	}
	return nil
}

// readWindow reads the whole map and notes the owners of the slots in the window.
// What is wrong with an extent whatever its slot is reported in the first pass.
func (c *checker) readWindow(ctx context.Context, w map[extent.BackingID]*windowPart, first bool) error {
	slots := make(map[extent.BackingID]uint32)
	for _, m := range c.state.Members {
		slots[m.ID] = m.Slots
	}
	volumes := make(map[extent.VolumeID]*extentmap.Volume)
	for i := range c.state.Volumes {
		volumes[c.state.Volumes[i].ID] = &c.state.Volumes[i]
	}
	return c.db.ScanMap(func(vol extent.VolumeID, from extent.Index, locs []extent.Location, bad error) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if bad != nil {
			if first {
				c.found.damage(FoundMetadataRecord, c.volumeName(vol), mendRebuild, "the map of extents from %d on: %v", from, bad)
			}
			return nil
		}
		v := volumes[vol]
		for i, l := range locs {
			if l.IsZero() {
				continue
			}
			key := extent.Key{Volume: vol, Index: from + extent.Index(i)}
			if first {
				c.checkExtent(key, l, v, slots)
			}
			if p := w[l.Backing]; p != nil && int64(l.Slot)-int64(p.from) >= 0 && int64(l.Slot)-int64(p.from) < p.n {
				c.claim(p, key, l)
			}
		}
		return nil
	})
}

// checkExtent looks whether an extent can be where it is.
func (c *checker) checkExtent(key extent.Key, l extent.Location, v *extentmap.Volume, slots map[extent.BackingID]uint32) {
	c.Extents++
	if v == nil {
		u := c.unknown[key.Volume]
		if u == nil {
			u = new(unknownVolume)
			c.unknown[key.Volume] = u
		}
		u.extents++
		u.last = key.Index
	}
	n, member := slots[l.Backing]
	where := c.volumeName(key.Volume)
	var kind FindingKind
	switch {
	case v != nil && key.Index >= c.size.Count(v.Size):
		kind = FoundPastEnd
		c.found.damage(kind, where, mendRepair, "extent %d is past the end of the volume", key.Index)
	case !member:
		kind = FoundNoBacking
		c.found.damage(kind, where, mendRepair, "extent %d is on backing %d, which the pool does not have", key.Index, l.Backing)
	case uint32(l.Slot) >= n:
		kind = FoundSlotRange
		c.found.damage(kind, where, mendRepair, "extent %d is in slot %d of backing %d, which has %d", key.Index, l.Slot, l.Backing, n)
	default:
		return
	}
	c.problem(mapProblem{key: key, at: l, kind: kind})
}

// claim notes the owner of a slot, or reports that it has one.
func (c *checker) claim(p *windowPart, key extent.Key, l extent.Location) {
	i := l.Slot - p.from
	if p.volumes[i] == 0 {
		p.volumes[i], p.indexes[i] = key.Volume, key.Index
		return
	}
	other := extent.Key{Volume: p.volumes[i], Index: p.indexes[i]}
	c.found.damage(FoundDoubleOwner, c.volumeName(key.Volume), mendRepair, "extent %d is in slot %d of backing %s, and so is extent %d of %s",
		key.Index, l.Slot, p.m.Path, other.Index, c.volumeName(other.Volume))
	c.problem(mapProblem{key: key, at: l, kind: FoundDoubleOwner, other: other})
}

// mapDamaged reports whether extents are where they cannot be. What slot tables say
// is evidence then, and is not brought into line with the map.
func (c *checker) mapDamaged() bool {
	return slices.ContainsFunc(mapKinds, func(k FindingKind) bool { return c.found.counts[findingClass{k, Damage}] > 0 })
}

// mapKinds are the findings about extents that are where they cannot be.
var mapKinds = []FindingKind{FoundPastEnd, FoundNoVolume, FoundNoBacking, FoundSlotRange, FoundDoubleOwner}

func (c *checker) problem(p mapProblem) {
	if c.mending && len(c.problems) < maxProblems {
		c.problems = append(c.problems, p)
	}
}

func (c *checker) volumeName(id extent.VolumeID) string {
	for _, v := range c.state.Volumes {
		if v.ID == id {
			return "volume " + v.Name
		}
	}
	return fmt.Sprintf("volume %d", id)
}

// checkTable compares the slot-table entries of a part with the map.
func (c *checker) checkTable(ctx context.Context, p *windowPart) error {
	b := c.backings[p.m.ID]
	if b == nil || !b.usable {
		return nil
	}
	t := b.slotTable(c.state.Pool.ID)
	var diffs []entryDiff
	var failed error
	err := t.ScanRange(ctx, p.from, uint32(p.n), func(s extent.Slot, e ondisk.SlotEntry, valid bool) bool {
		c.Slots++
		d := entryDiff{slot: s, entry: e, valid: valid}
		if i := s - p.from; p.volumes[i] != 0 {
			d.owner = extent.Key{Volume: p.volumes[i], Index: p.indexes[i]}
		}
		if c.judgeEntry(b, d) && c.entries != nil {
			diffs = append(diffs, d)
		}
		if len(diffs) == maxDiffs {
			failed = c.entries(b, diffs)
			diffs = diffs[:0]
		}
		return failed == nil && ctx.Err() == nil
	})
	if err := errors.Join(failed, ctx.Err()); err != nil {
		return err
	}
	if err != nil {
		c.found.damage(FoundUnreadable, b.spec.Path, "", "the slot table cannot be read: %v", err)
	}
	if len(diffs) > 0 {
		return c.entries(b, diffs)
	}
	return nil
}

// judgeEntry reports an entry that is not as the map has it, and says whether it
// can be mended now. After an unclean stop the tables may be behind the map or
// ahead of it, and on a failed backing they are; the next start looks after both.
func (c *checker) judgeEntry(b *checkedBacking, d entryDiff) (mend bool) {
	owned := d.owner.Volume != 0
	settled := c.state.Pool.CleanStop && !b.behind()
	kind, text := FoundEntryMissing, ""
	switch {
	case !d.valid:
		c.found.damage(FoundEntryDamaged, b.spec.Path, mendRepair, "the entry of slot %d has a bad checksum", d.slot)
		// Of an owned slot the next start writes the entry anew, with its own sequence.
		return b.m.State != extentmap.MemberFailed && (settled || !owned)
	case owned && (d.entry.Kind != ondisk.Owner || d.entry.Key != d.owner):
		text = fmt.Sprintf("slot %d has extent %d of %s by the map, and %s by the slot table", d.slot, d.owner.Index, c.volumeName(d.owner.Volume), describeEntry(d.entry))
	case !owned && d.entry.Kind == ondisk.Owner:
		kind = FoundEntryOrphan
		text = fmt.Sprintf("slot %d is free by the map, and has extent %d of %s by the slot table", d.slot, d.entry.Key.Index, c.volumeName(d.entry.Key.Volume))
	default:
		return false
	}
	switch {
	case settled:
		c.found.damage(kind, b.spec.Path, mendRepair, "%s", text)
		return true
	case d.entry.Seq > c.state.Pool.MaxSeq:
		c.found.note(FoundUncommitted, b.spec.Path, mendStart, "%s: newer than the last commit", text)
	default:
		c.found.note(kind, b.spec.Path, mendStart, "%s", text)
	}
	return false
}

func describeEntry(e ondisk.SlotEntry) string {
	switch e.Kind {
	case ondisk.Owner:
		return e.Key.String()
	case ondisk.Tombstone:
		return fmt.Sprintf("what is left of %v", e.Key)
	}
	return "nothing"
}
