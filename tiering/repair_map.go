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
	last  map[extent.Key]seqAt                 // the latest owner entry, in whatever slot
	best  map[extent.Key]seqAt                 // the same in another slot than by the map, if the extent can go there
	gone  map[extent.Key]uint64                // the latest tombstone
	entry map[extent.Location]ondisk.SlotEntry // of the slots that several extents have, if valid
	wrong map[extent.Key]extent.Location       // where the map has the extents
}

type seqAt struct {
	at  extent.Location
	seq uint64
	tie bool // another entry has the same sequence: nothing tells which is the later
}

// mapRepair is what becomes of one extent.
type mapRepair struct {
	mapProblem
	to   extent.Location // zero: unmapped
	text string
}

// mendMap gives extents that are where they cannot be the place that the slot
// tables have for them, and volumes without a record one. It does nothing while a
// backing is missing, since the evidence may be there.
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
	if err != nil || ev == nil {
		return err
	}
	var repairs []mapRepair
	for _, m := range r.decide(ev) {
		if err := r.keepExtent(ctx, m); err == nil {
			repairs = append(repairs, m)
		} else if err := r.skip(ctx, fmt.Sprintf("%s, extent %d", r.volumeName(m.key.Volume), m.key.Index), err); err != nil {
			return err
		}
	}
	if len(repairs) == 0 {
		return nil
	}
	if err := r.commitMap(ctx, repairs); err != nil {
		return err
	}
	for _, m := range repairs {
		r.done(m.kind, r.volumeName(m.key.Volume), "extent %d %s", m.key.Index, m.text)
	}
	r.problems = nil
	return nil
}

// gather reads all slot tables for what they say of the extents in question. Nil: one
// cannot be read, and what it has would perhaps decide.
func (r *repairer) gather(ctx context.Context) (*evidence, error) {
	ev := &evidence{last: make(map[extent.Key]seqAt), best: make(map[extent.Key]seqAt), gone: make(map[extent.Key]uint64),
		entry: make(map[extent.Location]ondisk.SlotEntry), wrong: make(map[extent.Key]extent.Location)}
	shared := make(map[extent.Location]bool)
	for _, p := range r.problems {
		ev.wrong[p.key] = p.at
		if p.kind == FoundDoubleOwner {
			ev.wrong[p.other] = p.at
			shared[p.at] = true
		}
	}
	later := func(list map[extent.Key]seqAt, k extent.Key, c seqAt) {
		if old, ok := list[k]; !ok || c.seq > old.seq {
			list[k] = c
		} else if c.seq == old.seq {
			old.tie = true
			list[k] = old
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
			case e.Kind == ondisk.Owner:
				c := seqAt{at: l, seq: e.Seq}
				later(ev.last, e.Key, c)
				if l != at {
					later(ev.best, e.Key, c)
				}
			}
			return ctx.Err() == nil
		})
		if ctx.Err() != nil {
			return nil, ctx.Err()
		} else if err != nil {
			return nil, nil // it is listed
		}
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
	maps.DeleteFunc(ev.best, func(k extent.Key, c seqAt) bool {
		// The table of a backing that is behind may have what is no more.
		return taken[c.at] || c.tie || c.seq < ev.gone[k] || r.backings[c.at.Backing].behind()
	})
	return ev, err
}

// decide says what becomes of the extents. Of several in one slot the one that the
// slot table names keeps it. Those of which nothing tells where they are stay as they
// are, unless their loss is accepted.
func (r *repairer) decide(ev *evidence) []mapRepair {
	var list []mapRepair
	leaves := make(map[extent.Key]bool) // its slot, for whatever reason
	add := func(p mapProblem, to extent.Location, text string) {
		if !leaves[p.key] {
			leaves[p.key] = true
			list = append(list, mapRepair{p, to, text})
		}
	}
	place := func(p mapProblem, whose string) {
		c, there := ev.best[p.key]
		gone := ev.gone[p.key]
		switch {
		case there:
			add(p, c.at, fmt.Sprintf("is put where the slot tables have it: slot %d of backing %d", c.at.Slot, c.at.Backing))
		case gone > 0 && gone >= ev.last[p.key].seq:
			add(p, extent.Location{}, "has no place any more: it was given up, by the slot tables")
		case r.opts.AcceptLoss:
			add(p, extent.Location{}, "has no place any more, and reads as zeroes"+whose)
		}
	}
	slots := make(map[extent.Location][]extent.Key)
	for _, p := range r.problems {
		switch _, named := ev.last[p.key]; {
		case p.kind == FoundDoubleOwner:
			if len(slots[p.at]) == 0 {
				slots[p.at] = append(slots[p.at], p.other)
			}
			slots[p.at] = append(slots[p.at], p.key)
		case p.kind != FoundPastEnd:
			place(p, "")
		case r.agreed && !named:
			add(p, extent.Location{}, "has no place any more: it is past the end of the volume by the volume tables too, and no slot table has it")
		case r.opts.AcceptLoss:
			add(p, extent.Location{}, "has no place any more: it is past the end of the volume")
		}
	}
	for at, keys := range slots {
		keys = slices.DeleteFunc(keys, func(k extent.Key) bool { return leaves[k] })
		if len(keys) < 2 {
			continue
		}
		e := ev.entry[at]
		if e.Kind == ondisk.Owner && slices.Contains(keys, e.Key) && !r.backings[at.Backing].behind() {
			for _, k := range keys {
				if k != e.Key {
					place(mapProblem{key: k, at: at, kind: FoundDoubleOwner},
						fmt.Sprintf(": slot %d of backing %d stays with extent %d of %s", at.Slot, at.Backing, e.Key.Index, r.volumeName(e.Key.Volume)))
				}
			}
		} else if r.opts.AcceptLoss {
			for _, k := range keys {
				place(mapProblem{key: k, at: at, kind: FoundDoubleOwner}, fmt.Sprintf(": nothing tells whose slot %d of backing %d is", at.Slot, at.Backing))
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
	if !r.state.Pool.CleanStop {
		if err := r.aside.keepFile(stagedLogPath(r.o.Metadata), "staged log"); err != nil {
			return err
		}
	}
	if err := r.aside.sync(); err != nil {
		return err
	}
	unclean, continuity := !r.state.Pool.CleanStop, uuid.New()
	var changes []extentmap.MapChange
	for _, m := range repairs {
		changes = append(changes, extentmap.MapChange{Key: m.key, To: m.to})
	}
	// One commit: half of it would leave a slot with two owners, of which one is right.
	err := r.commit(ctx, &extentmap.Changes{Map: changes, Pool: func(p *extentmap.PoolRecord) {
		p.Continuity = continuity
		p.LogIncarnation = p.Incarnation // there is no log of it
	}})
	if err == nil && unclean {
		r.done(FoundLog, stagedLogPath(r.o.Metadata), "it is void from now on: what it has goes with the map as it was")
	}
	return err
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
	}
	found := r.unknown
	r.unknown = nil
	if len(put) == 0 {
		return nil
	}
	err := r.commit(ctx, &extentmap.Changes{Volumes: put, Pool: func(p *extentmap.PoolRecord) {
		p.NextVolume = next
		p.VolumeGeneration++
	}})
	if err != nil {
		return err
	}
	for _, v := range put {
		r.done(FoundNoVolume, "volume "+v.Name, "made for the %d extents that the map has of volume %d; it is read-only", found[v.ID].extents, v.ID)
	}
	return nil
}
