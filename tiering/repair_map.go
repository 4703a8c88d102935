package tiering

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// evidence is what the slot tables say of the extents that are where they cannot
// be, and of the slots that two of them have.
type evidence struct {
	best  map[extent.Key]seqAt                 // the latest owner entry, in another slot than by the map
	gone  map[extent.Key]uint64                // the latest tombstone
	entry map[extent.Location]ondisk.SlotEntry // of the slots that several extents have, if valid
	wrong map[extent.Key]extent.Location       // where the map has the extents
}

type seqAt struct {
	at  extent.Location
	seq uint64
}

// mapRepair is what becomes of one extent.
type mapRepair struct {
	mapProblem
	to extent.Location // zero: unmapped
}

// mendMap gives extents that are where they cannot be the place that the slot
// tables have for them, or none, and gives volumes without a record one. It does
// nothing while a backing is missing, since the evidence may be there.
func (r *repairer) mendMap(ctx context.Context) error {
	if len(r.problems) == 0 && len(r.unknown) == 0 || !r.trusted() || !r.complete() {
		return nil
	}
	if err := r.adoptUnknown(ctx); err != nil {
		return err
	}
	if len(r.problems) == 0 {
		return nil
	}
	ev, err := r.gather(ctx)
	if err != nil {
		return err
	}
	repairs := r.decide(ev)
	for _, m := range repairs {
		if err := r.keepExtent(ctx, m); err != nil {
			return err
		}
	}
	if !r.opts.DryRun {
		if err := r.commitMap(ctx, repairs); err != nil {
			return err
		}
	}
	for _, m := range repairs {
		where := r.volumeName(m.key.Volume)
		switch {
		case !m.to.IsZero():
			r.done(m.kind, where, "extent %d is put where the slot tables have it: slot %d of backing %d", m.key.Index, m.to.Slot, m.to.Backing)
		case m.kind == FoundDoubleOwner:
			r.done(m.kind, where, "extent %d has no place any more, and reads as zeroes: slot %d of backing %d stays with extent %d of %s",
				m.key.Index, m.at.Slot, m.at.Backing, m.other.Index, r.volumeName(m.other.Volume))
		default:
			r.done(m.kind, where, "extent %d has no place any more, and reads as zeroes", m.key.Index)
		}
	}
	r.problems = nil
	return nil
}

// gather reads all slot tables for what they say of the extents in question.
func (r *repairer) gather(ctx context.Context) (*evidence, error) {
	ev := &evidence{best: make(map[extent.Key]seqAt), gone: make(map[extent.Key]uint64),
		entry: make(map[extent.Location]ondisk.SlotEntry), wrong: make(map[extent.Key]extent.Location)}
	shared := make(map[extent.Location]bool)
	for _, p := range r.problems {
		ev.wrong[p.key] = p.at
		if p.kind == FoundDoubleOwner {
			ev.wrong[p.other] = p.at
			shared[p.at] = true
		}
	}
	for id, b := range r.backings {
		err := b.slotTable(r.state.Pool.ID).Scan(ctx, func(s extent.Slot, e ondisk.SlotEntry, valid bool) bool {
			l := extent.Location{Backing: id, Slot: s}
			if valid && shared[l] {
				ev.entry[l] = e
			}
			at, asked := ev.wrong[e.Key]
			switch {
			case !valid || !asked:
			case e.Kind == ondisk.Tombstone:
				ev.gone[e.Key] = max(ev.gone[e.Key], e.Seq)
			case e.Kind == ondisk.Owner && l != at && e.Seq > ev.best[e.Key].seq:
				ev.best[e.Key] = seqAt{l, e.Seq}
			}
			return ctx.Err() == nil
		})
		if err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// A slot that the map gives to somebody is no place to go to.
	taken := make(map[extent.Location]bool)
	for _, c := range ev.best {
		taken[c.at] = false
	}
	err := r.db.ScanMap(func(_ extent.VolumeID, _ extent.Index, locs []extent.Location, _ error) error {
		for _, l := range locs {
			if _, asked := taken[l]; asked {
				taken[l] = true
			}
		}
		return nil
	})
	maps.DeleteFunc(ev.best, func(k extent.Key, c seqAt) bool { return taken[c.at] || c.seq < ev.gone[k] })
	return ev, err
}

// decide says what becomes of each extent. Of several in one slot the one that the
// slot table names keeps it; if it names none of them, nothing is proven, and the
// first keeps it.
func (r *repairer) decide(ev *evidence) []mapRepair {
	var list []mapRepair
	slots := make(map[extent.Location][]extent.Key)
	for _, p := range r.problems {
		if p.kind != FoundDoubleOwner {
			m := mapRepair{mapProblem: p}
			if p.kind != FoundPastEnd {
				m.to = ev.best[p.key].at
			}
			list = append(list, m)
			continue
		}
		if len(slots[p.at]) == 0 {
			slots[p.at] = append(slots[p.at], p.other)
		}
		slots[p.at] = append(slots[p.at], p.key)
	}
	unmapped := make(map[extent.Key]bool) // already, for another reason
	for _, m := range list {
		unmapped[m.key] = true
	}
	for at, keys := range slots {
		keys = slices.DeleteFunc(keys, func(k extent.Key) bool { return unmapped[k] })
		if len(keys) < 2 {
			continue
		}
		winner := keys[0]
		if e := ev.entry[at]; e.Kind == ondisk.Owner && slices.Contains(keys, e.Key) {
			winner = e.Key
		}
		for _, k := range keys {
			if k != winner {
				list = append(list, mapRepair{mapProblem{key: k, at: at, kind: FoundDoubleOwner, other: winner}, ev.best[k].at})
			}
		}
	}
	slices.SortFunc(list, func(a, b mapRepair) int {
		return cmp.Or(cmp.Compare(a.key.Volume, b.key.Volume), cmp.Compare(a.key.Index, b.key.Index))
	})
	return list
}

// keepExtent puts aside where an extent was, and the content of its slot.
func (r *repairer) keepExtent(ctx context.Context, m mapRepair) error {
	what := fmt.Sprintf("extent %d of %s, at %v by the map", m.key.Index, r.volumeName(m.key.Volume), m.at)
	if err := r.aside.keep(asideItem{What: what, Where: r.o.Metadata, Record: m.key}); err != nil {
		return err
	}
	if b := r.backings[m.at.Backing]; b != nil && uint32(m.at.Slot) < b.sb.Layout.Slots {
		return r.aside.keepSlot(ctx, b, m.at.Slot, r.size.Bytes(), what)
	}
	return nil
}

// commitMap commits the new places. If the pool was not stopped cleanly, the
// staged log goes with the map as it was: it is put aside and made void.
func (r *repairer) commitMap(ctx context.Context, repairs []mapRepair) error {
	unclean := !r.state.Pool.CleanStop
	if unclean {
		if err := r.aside.keepFile(stagedLogPath(r.o.Metadata), "staged log"); err != nil {
			return err
		}
		r.done(FoundLog, stagedLogPath(r.o.Metadata), "it is void from now on: what it has goes with the map as it was")
	}
	if err := r.aside.sync(); err != nil {
		return err
	}
	continuity := uuid.New()
	var changes []extentmap.MapChange
	for _, m := range repairs {
		changes = append(changes, extentmap.MapChange{Key: m.key, To: m.to})
	}
	// One commit: half of it would leave a slot with two owners, of which one is right.
	return r.commit(ctx, &extentmap.Changes{Map: changes, Pool: func(p *extentmap.PoolRecord) {
		p.Continuity = continuity
		if unclean {
			p.Incarnation++
			p.LogIncarnation = p.Incarnation
		}
	}})
}

// adoptUnknown makes a record for each volume that the map has extents of and that
// has none: it is read-only, and named after its id.
func (r *repairer) adoptUnknown(ctx context.Context) error {
	var put []extentmap.Volume
	next := r.state.Pool.NextVolume
	for _, id := range slices.Sorted(maps.Keys(r.unknown)) {
		u := r.unknown[id]
		if id == 0 || int64(u.last) >= (1<<62)/r.size.Bytes() {
			continue // cannot be a volume; check goes on to list it
		}
		name := fmt.Sprintf("found-%d", id)
		for slices.ContainsFunc(r.state.Volumes, func(v extentmap.Volume) bool { return v.Name == name }) {
			name += "-again"
		}
		put = append(put, extentmap.Volume{ID: id, UUID: uuid.New(), Name: name, Size: (int64(u.last) + 1) * r.size.Bytes(),
			Policy: "auto", State: extentmap.VolumeActive, ReadOnly: true})
		next = max(next, id+1)
		r.done(FoundNoVolume, "volume "+name, "made for the %d extents that the map has of volume %d; it is read-only", u.extents, id)
	}
	r.unknown = nil
	if len(put) == 0 || r.opts.DryRun {
		return nil
	}
	return r.commit(ctx, &extentmap.Changes{Volumes: put, Pool: func(p *extentmap.PoolRecord) {
		p.NextVolume = next
		p.VolumeGeneration++
	}})
}
