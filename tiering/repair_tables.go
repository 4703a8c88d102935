package tiering

import (
	"context"
	"fmt"

	"tierd/tiering/extent"
	"tierd/tiering/ondisk"
)

// mendTables brings the slot tables into line with the map: owners first, so that
// a rebuild finds the right mapping at every moment.
func (r *repairer) mendTables(ctx context.Context) error {
	if !r.trusted() || r.mapDamaged() {
		return nil
	}
	wrong := int64(0)
	for _, k := range []FindingKind{FoundEntryDamaged, FoundEntryMissing, FoundEntryOrphan} {
		wrong += r.found.counts[findingClass{k, Damage}]
	}
	if wrong == 0 {
		return nil
	}
	for _, owners := range []bool{true, false} {
		looked := r.found
		r.found, r.problems, r.Slots, r.Extents = findings{}, nil, 0, 0
		r.entries = func(b *checkedBacking, diffs []entryDiff) error { return r.mendEntries(ctx, b, diffs, owners) }
		err := r.checkMap(ctx)
		r.entries, r.found = nil, looked
		if err != nil {
			return err
		}
	}
	return nil
}

// repairSeq is the sequence of the entries that Repair writes: higher than any
// before it, lower than any of the next start.
func (r *repairer) repairSeq() uint64 { return r.state.Pool.Incarnation<<seqBits | lastSeq }

// lastSeq is the counter of the entries that Repair writes: a daemon never gets there.
const lastSeq = 1<<seqBits - 1

// mendEntries writes the entries of owned slots, or clears those of free ones.
func (r *repairer) mendEntries(ctx context.Context, b *checkedBacking, diffs []entryDiff, owners bool) error {
	if r.skipped[b.spec.Path] {
		return nil
	}
	t := b.slotTable(r.state.Pool.ID)
	mapped, err := r.mappedAmong(ctx, diffs)
	if err != nil {
		return err
	}
	var updates []ondisk.SlotUpdate
	kept := 0 // slots whose content is put aside
	for _, d := range diffs {
		if (d.owner.Volume != 0) != owners {
			continue
		}
		raw, err := t.Raw(ctx, d.slot)
		if err != nil {
			return r.skip(ctx, b.spec.Path, fmt.Errorf("%w: %w", errUnread, err))
		}
		off := b.sb.Layout.SlotTableOffset + int64(d.slot)*int64(len(raw))
		if err := r.aside.keep(asideItem{What: fmt.Sprintf("slot-table entry of slot %d", d.slot), Where: b.spec.Path, Offset: off, Data: raw}); err != nil {
			return err
		}
		u := ondisk.SlotUpdate{Slot: d.slot}
		switch {
		case owners:
			u.Entry = ondisk.SlotEntry{Kind: ondisk.Owner, Key: d.owner, Seq: r.repairSeq()}
		case !d.valid || !mapped[d.entry.Key]:
			// Perhaps it is the map that lost this extent, or has it in a wrong place. The
			// next start zeroes the slot.
			what := "slot whose entry was damaged"
			if d.valid {
				what = fmt.Sprintf("slot of %v by the slot table, free by the map", d.entry.Key)
			}
			if err := r.aside.keepSlot(ctx, b, d.slot, r.size.Bytes(), what); err != nil {
				if err := r.skip(ctx, fmt.Sprintf("%s, slot %d", b.spec.Path, d.slot), err); err != nil {
					return err
				}
				continue
			}
			kept++
		}
		updates = append(updates, u)
	}
	if len(updates) == 0 {
		return nil
	}
	what := fmt.Sprintf("are cleared: their slots are free by the map, and the content of %d is kept", kept)
	kind := FoundEntryOrphan
	if owners {
		what, kind = "are written as the map has them", FoundEntryMissing
	}
	if err := r.aside.sync(); err != nil {
		return err
	}
	err = t.Write(ctx, updates)
	if err == nil {
		err = b.store.Sync(ctx)
	}
	if err != nil {
		return r.fail(ctx, b, err)
	}
	r.done(kind, b.spec.Path, "%d entries of the slot table %s", len(updates), what)
	return nil
}

// mappedAmong returns which of the extents that the entries name have a place by the
// map that the slot table there confirms, other than by what Repair wrote.
func (r *repairer) mappedAmong(ctx context.Context, diffs []entryDiff) (map[extent.Key]bool, error) {
	at := make(map[extent.Key]extent.Location)
	for _, d := range diffs {
		if d.valid && d.entry.Kind == ondisk.Owner && d.owner.Volume == 0 {
			at[d.entry.Key] = extent.Location{}
		}
	}
	if len(at) == 0 {
		return nil, nil
	}
	err := r.db.ScanMap(func(vol extent.VolumeID, first extent.Index, locs []extent.Location, _ error) error {
		for i, l := range locs {
			k := extent.Key{Volume: vol, Index: first + extent.Index(i)}
			if _, asked := at[k]; asked {
				at[k] = l
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	mapped := make(map[extent.Key]bool)
	for k, l := range at {
		b := r.backings[l.Backing]
		if l.IsZero() || b == nil || !b.usable {
			continue
		}
		e, valid, err := b.slotTable(r.state.Pool.ID).Read(ctx, l.Slot)
		mapped[k] = err == nil && valid && e.Kind == ondisk.Owner && e.Key == k && e.Seq&lastSeq != lastSeq
	}
	return mapped, ctx.Err()
}
