package tiering

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// RepairOptions say what Repair does beside mending what is provable.
type RepairOptions struct {
	// DryRun only says what would be done.
	DryRun bool
	// ClearFailed lists backings, by path, id or UUID, that are to serve again
	// although they had failed.
	ClearFailed []string
}

// RepairAction is one thing that Repair did, or would do.
type RepairAction struct {
	Kind  FindingKind `json:"kind"`
	Where string      `json:"where"`
	Text  string      `json:"text"`
}

// RepairReport is the outcome of Repair.
type RepairReport struct {
	DryRun     bool           `json:"dry_run"`
	Done       []RepairAction `json:"done"` // or, in a dry run, what would be
	Left       []Finding      `json:"left"` // what is wrong still
	Aside      string         `json:"aside"`
	AsideBytes int64          `json:"aside_bytes"`
}

// Damaged reports whether there is damage left.
func (r RepairReport) Damaged() bool {
	return slices.ContainsFunc(r.Left, func(f Finding) bool { return f.Severity == Damage })
}

// mend is a repair of one thing, known to be right by what else there is.
type mend struct {
	kind        FindingKind
	where, text string
	keep        func(context.Context, *aside) error // puts aside what is there
	apply       func(context.Context) error
	change      *extentmap.Changes // of the metadata, in place of apply
}

func (c *checker) mend(m mend) { c.mends = append(c.mends, m) }

// Repair mends what Check finds, as far as it is proven what is right:
//
//  1. A copy of a superblock, stamp or volume table is written from the other copy,
//     or from the metadata. Records of volumes are put back from the volume tables,
//     which have checksums, if those are of the same generation.
//  2. An extent that is where it cannot be is put where the slot tables have it, by
//     the highest sequence; without such evidence it is unmapped. Of two extents in
//     one slot, the one that the slot table names keeps it.
//  3. Slot tables are brought into line with the map: owners first, then the rest.
//
// What is replaced is put aside first, in a folder beside the metadata, and so is
// the content of slots that lose their extent. Each step can be cut short: the next
// Repair does what is missing, and one that finds nothing writes nothing.
//
// A metadata file that is damaged itself, or older than the backings, is not
// touched: that is for Rebuild.
func Repair(ctx context.Context, o Options, opts RepairOptions) (RepairReport, error) {
	o.setDefaults()
	r := &repairer{
		checker: checker{o: o, readOnly: opts.DryRun}, opts: opts,
		aside: aside{prefix: o.Metadata + ".aside-" + o.Clock.Now().UTC().Format("20060102T150405Z") + "-", dry: opts.DryRun},
	}
	r.out.DryRun, r.out.Done, r.out.Left = opts.DryRun, []RepairAction{}, []Finding{}
	defer r.aside.close()
	defer r.close()
	err := r.run(ctx)
	r.out.Aside, r.out.AsideBytes = r.aside.dir, r.aside.bytes
	return r.out, err
}

// repairer is one run of Repair.
type repairer struct {
	checker
	opts  RepairOptions
	aside aside
	out   RepairReport
}

func (r *repairer) done(k FindingKind, where, format string, args ...any) {
	r.out.Done = append(r.out.Done, RepairAction{k, where, fmt.Sprintf(format, args...)})
}

// maxRepairRounds bounds how often the pool is looked at again because something
// was mended: a superblock makes a backing readable, that shows a record to be
// wrong, and that an extent.
const maxRepairRounds = 5

func (r *repairer) run(ctx context.Context) error {
	if err := r.open(); err != nil {
		return err
	}
	if err := r.look(ctx); err != nil {
		return err
	}
	if r.db == nil {
		r.out.Left = r.found.all()
		return nil
	}
	if len(r.opts.ClearFailed) > 0 && !r.trusted() {
		r.out.Left = r.found.all()
		return refuse("metadata %s is not the newest, or not whole: nothing is cleared; pool rebuild makes it anew from the backings", r.o.Metadata)
	}
	if err := r.clearFailed(ctx); err != nil {
		return err
	}
	for range maxRepairRounds {
		more, err := r.mendOnce(ctx)
		if err != nil {
			return err
		}
		if !more || r.opts.DryRun {
			break
		}
		if err := r.again(ctx); err != nil {
			return err
		}
	}
	n := len(r.out.Done)
	if err := r.mendTables(ctx); err != nil {
		return err
	}
	if len(r.out.Done) > n && !r.opts.DryRun {
		if err := r.again(ctx); err != nil {
			return err
		}
	}
	for _, f := range r.found.all() {
		if f.Severity != Note && !(r.opts.DryRun && f.Mend == mendRepair && r.trusted()) {
			r.out.Left = append(r.out.Left, f)
		}
	}
	return nil
}

// mendOnce mends what the last look found, and reports whether that was anything.
// The map comes last: an extent that is past the end of its volume is not, when the
// record of the volume is right again.
func (r *repairer) mendOnce(ctx context.Context) (more bool, err error) {
	n := len(r.out.Done)
	if err := r.applyMends(ctx); err != nil {
		return false, err
	}
	if len(r.out.Done) > n {
		return true, nil
	}
	err = r.mendMap(ctx)
	return len(r.out.Done) > n, err
}

// again looks at the pool anew.
func (r *repairer) again(ctx context.Context) error {
	r.closeBackings()
	r.checker = checker{o: r.o, readOnly: r.readOnly, db: r.db, state: r.db.State()}
	return r.look(ctx)
}

// trusted reports whether the metadata is the newest by all that was found. If it
// is not, the map proves nothing.
func (r *repairer) trusted() bool {
	return !r.found.outdated
}

// complete reports whether every member could be looked at: what is nowhere may be
// on one that could not.
func (r *repairer) complete() bool {
	for _, m := range r.state.Members {
		b := r.backings[m.ID]
		if m.State != extentmap.MemberForgotten && m.State != extentmap.MemberCreating && (b == nil || !b.usable) {
			return false
		}
	}
	return true
}

// applyMends does what is known to be right without the map, and, if the metadata
// can be trusted, what follows from it.
func (r *repairer) applyMends(ctx context.Context) error {
	trusted := r.trusted()
	for _, m := range r.mends {
		if m.kind != FoundSuperblockCopy && !trusted {
			continue
		}
		if m.keep != nil {
			if err := m.keep(ctx, &r.aside); err != nil {
				return err
			}
		}
		if !r.opts.DryRun {
			if err := r.apply(ctx, m); err != nil {
				return fmt.Errorf("%s: %w", m.where, err)
			}
		}
		r.done(m.kind, m.where, "%s", m.text)
	}
	r.mends = nil
	return nil
}

func (r *repairer) apply(ctx context.Context, m mend) error {
	if err := r.aside.sync(); err != nil {
		return err
	}
	if m.change == nil {
		return m.apply(ctx)
	}
	return r.commit(ctx, m.change)
}

func (r *repairer) commit(ctx context.Context, c *extentmap.Changes) error {
	if _, err := r.db.Commit(ctx, c); err != nil {
		return err
	}
	r.state = r.db.State()
	return nil
}

// mendRecords puts the volumes back as a volume table has them.
func (c *checker) mendRecords(t *ondisk.VolumeTable) {
	have := make(map[extent.VolumeID]extentmap.Volume)
	for _, v := range c.state.Volumes {
		have[v.ID] = v
	}
	var put, old []extentmap.Volume
	for _, v := range t.Volumes {
		was, known := have[v.ID]
		is := was
		is.ID, is.UUID, is.Name, is.Size, is.Policy, is.Created, is.ReadOnly = v.ID, v.UUID, v.Name, v.Size, v.Policy, v.Created, v.ReadOnly
		is.Reservation, is.Quota, is.OnFullWait = v.Reservation, v.Quota, v.OnFullWait
		is.State = extentmap.VolumeState(v.State)
		if is != was {
			put = append(put, is)
		}
		if known && is != was {
			old = append(old, was)
		}
	}
	var drop []extent.VolumeID
	in := make(map[extent.VolumeID]bool)
	for _, v := range t.Volumes {
		in[v.ID] = true
	}
	for _, v := range c.state.Volumes {
		if !in[v.ID] {
			drop = append(drop, v.ID)
		}
	}
	if len(drop) > 0 {
		// A volume that the tables do not know has perhaps extents: it stays.
		return
	}
	next := t.NextVolume
	c.mend(mend{kind: FoundMetadataRecord, where: c.o.Metadata,
		text: fmt.Sprintf("%d records of volumes are put back as the volume tables have them", len(put)),
		keep: func(_ context.Context, a *aside) error {
			return a.keep(asideItem{What: "records of volumes", Where: c.o.Metadata, Record: old})
		},
		change: &extentmap.Changes{Volumes: put, Pool: func(p *extentmap.PoolRecord) { p.NextVolume = next }},
	})
}

// clearFailed makes failed backings serve again. The clean-stop mark goes, so that
// the next start syncs all backings and heals their tables. The incarnation rises,
// so that superblocks that tell of the failure are of an earlier one. The
// continuity id changes, because answered data may be lost.
func (r *repairer) clearFailed(ctx context.Context) error {
	var changed []extentmap.Member
	for _, name := range r.opts.ClearFailed {
		m, err := r.memberNamed(name)
		if err != nil {
			return err
		}
		if m.State != extentmap.MemberFailed && !r.toldFailed(m.ID) {
			continue // it serves: an earlier run has done it
		}
		if b := r.backings[m.ID]; b == nil || !b.usable {
			return refuse("backing %s cannot be cleared: it is missing, or damaged", m.Path)
		}
		m.State, m.Error = extentmap.MemberOK, ""
		changed = append(changed, m)
		r.done(FoundFailed, m.Path, "it serves again from the next start on, which looks at everything anew; what was lost when it failed is not coming back")
	}
	if len(changed) == 0 || r.opts.DryRun {
		return nil
	}
	continuity := uuid.New()
	err := r.commit(ctx, &extentmap.Changes{Members: changed, Pool: func(p *extentmap.PoolRecord) {
		p.Incarnation++
		p.CleanStop, p.Continuity = false, continuity
	}})
	if err != nil {
		return fmt.Errorf("clear failure: %w", err)
	}
	return r.again(ctx)
}

// memberNamed finds a member by path, id or UUID.
func (r *repairer) memberNamed(name string) (extentmap.Member, error) {
	for _, m := range r.state.Members {
		b := r.backings[m.ID]
		if m.Path == name || m.UUID.String() == name || fmt.Sprint(m.ID) == name || b != nil && b.spec.Path == name {
			return m, nil
		}
	}
	return extentmap.Member{}, fmt.Errorf("backing %q: %w", name, ErrNotFound)
}

// toldFailed reports whether the superblock of another backing tells of a failure
// that the next start would hear of.
func (r *repairer) toldFailed(id extent.BackingID) bool {
	for _, b := range r.backings {
		if b.sb == nil || b.sb.Incarnation != r.state.Pool.Incarnation {
			continue
		}
		for _, m := range b.sb.Members {
			if m.ID == id && m.State == ondisk.MemberFailed {
				return true
			}
		}
	}
	return false
}

// mendTables brings the slot tables into line with the map: owners first, so that
// a rebuild finds the right mapping at every moment.
func (r *repairer) mendTables(ctx context.Context) error {
	if !r.trusted() {
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
func (r *repairer) repairSeq() uint64 { return r.state.Pool.Incarnation<<seqBits | (1<<seqBits - 1) }

// mendEntries writes the entries of owned slots, or clears those of free ones.
func (r *repairer) mendEntries(ctx context.Context, b *checkedBacking, diffs []entryDiff, owners bool) error {
	t := b.slotTable(r.state.Pool.ID)
	mapped, err := r.mappedAmong(diffs)
	if err != nil {
		return err
	}
	var updates []ondisk.SlotUpdate
	for _, d := range diffs {
		if (d.owner.Volume != 0) != owners {
			continue
		}
		raw, err := t.Raw(ctx, d.slot)
		if err != nil {
			return err
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
			// Perhaps it is the map that lost this extent. The next start zeroes the slot.
			what := "slot whose entry was damaged"
			if d.valid {
				what = fmt.Sprintf("slot of %v by the slot table, free by the map", d.entry.Key)
			}
			if err := r.aside.keepSlot(ctx, b, d.slot, r.size.Bytes(), what); err != nil {
				return err
			}
		}
		updates = append(updates, u)
	}
	if len(updates) == 0 {
		return nil
	}
	what := "are cleared: their slots are free by the map"
	kind := FoundEntryOrphan
	if owners {
		what, kind = "are written as the map has them", FoundEntryMissing
	}
	if !r.opts.DryRun {
		if err := r.aside.sync(); err != nil {
			return err
		}
		if err := t.Write(ctx, updates); err != nil {
			return fmt.Errorf("%s: %w", b.spec.Path, err)
		}
		if err := b.store.Sync(ctx); err != nil {
			return fmt.Errorf("%s: %w", b.spec.Path, err)
		}
	}
	r.done(kind, b.spec.Path, "%d entries of the slot table %s", len(updates), what)
	return nil
}

// mappedAmong returns which of the extents that the entries name have a place by
// the map.
func (r *repairer) mappedAmong(diffs []entryDiff) (map[extent.Key]bool, error) {
	mapped := make(map[extent.Key]bool)
	for _, d := range diffs {
		if d.valid && d.entry.Kind == ondisk.Owner && d.owner.Volume == 0 {
			mapped[d.entry.Key] = false
		}
	}
	if len(mapped) == 0 {
		return mapped, nil
	}
	err := r.db.ScanMap(func(vol extent.VolumeID, first extent.Index, locs []extent.Location, _ error) error {
		for i, l := range locs {
			k := extent.Key{Volume: vol, Index: first + extent.Index(i)}
			if _, asked := mapped[k]; asked && !l.IsZero() {
				mapped[k] = true
			}
		}
		return nil
	})
	return mapped, err
}
