package tiering

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	// AcceptStale lists backings, by path, id or UUID, that are to be used although
	// they are old copies, or both copies of their superblock are lost and nothing
	// proves that they are none.
	AcceptStale []string
	// AcceptLoss takes extents out of the map of which nothing tells where they are,
	// or whose their slot is. They read as zeroes.
	AcceptLoss bool
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
	NotFailed  []string       `json:"not_failed"` // backings that were to be cleared, and serve
}

// Damaged reports whether there is damage left.
func (r RepairReport) Damaged() bool {
	return slices.ContainsFunc(r.Left, func(f Finding) bool { return f.Severity == Damage })
}

// mend is a repair of one thing, known to be right by what else there is.
type mend struct {
	kind        FindingKind
	b           *checkedBacking // nil: it is of the metadata
	where, text string
	keep        func(context.Context, *aside) error // puts aside what is there
	change      *extentmap.Changes                  // of the metadata, or nil
	apply       func(context.Context) error         // after it, or nil
}

func (c *checker) mend(m mend) { c.mends = append(c.mends, m) }

// Repair mends what Check finds, as far as it is proven what is right:
//
//  1. A copy of a superblock, stamp or volume table is written from the other copy,
//     or from the metadata. Records of volumes are put back from the volume tables,
//     which have checksums, if those are of the same generation.
//  2. An extent that is where it cannot be is put where the slot tables have it, by
//     the highest sequence. Of two extents in one slot, the one that the slot table
//     names keeps it. Where nothing decides, nothing is done without AcceptLoss.
//  3. If no such extent is left, slot tables are brought into line with the map:
//     owners first, then the rest.
//  4. If the metadata were changed, the incarnation is raised, there and on the
//     backings, so that a dump or a copy from before passes for current no more.
//
// A failed backing is not written to. One that fails meanwhile is marked as failed,
// and the others are mended. What is not mended is in the report.
//
// What is replaced is put aside first, in a folder beside the metadata, and so is
// the content of slots that lose their extent. Each step can be cut short: the next
// Repair does what is missing, and one that finds nothing writes nothing. A dry run
// does all the same on copies of what it would change.
//
// A metadata file that is damaged itself, or older than the backings, is not
// touched: that is for Rebuild.
func Repair(ctx context.Context, o Options, opts RepairOptions) (RepairReport, error) {
	o.setDefaults()
	r := &repairer{
		checker: checker{o: o, readOnly: opts.DryRun, mending: true}, opts: opts, skipped: make(map[string]bool),
		aside: aside{prefix: o.Metadata + ".aside-" + o.Clock.Now().UTC().Format("20060102T150405Z") + "-", dry: opts.DryRun},
	}
	if opts.DryRun {
		r.overlays = make(map[string]overlay)
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

	raised  bool            // the incarnation was
	trouble findings        // what went wrong meanwhile
	skipped map[string]bool // what it went wrong with, not to be tried again
}

func (r *repairer) done(k FindingKind, where, format string, args ...any) {
	r.out.Done = append(r.out.Done, RepairAction{k, where, fmt.Sprintf(format, args...)})
}

// maxRepairRounds bounds how often the pool is looked at again because something
// was mended: a superblock makes a backing readable, that shows a record to be
// wrong, and that an extent.
const maxRepairRounds = 5

func (r *repairer) run(ctx context.Context) error {
	defer r.sayLeft()
	if err := r.open(); err != nil {
		return err
	}
	if err := r.look(ctx); err != nil || r.db == nil {
		return err
	}
	if len(r.opts.ClearFailed)+len(r.opts.AcceptStale) > 0 && !r.trusted() {
		return refuse("metadata %s is not the newest, or not whole: nothing is cleared or accepted; pool rebuild makes it anew from the backings", r.o.Metadata)
	}
	if err := r.acceptStale(ctx); err != nil {
		return err
	}
	if err := r.clearFailed(ctx); err != nil {
		return err
	}
	for round := 0; round < maxRepairRounds; {
		if len(r.problems) < maxProblems { // else there are more
			round++
		}
		if more, err := r.mendOnce(ctx); err != nil {
			return err
		} else if !more {
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
	if err := r.tellBackings(ctx); err != nil {
		return err
	}
	if len(r.out.Done) > n || r.trouble.list != nil {
		return r.again(ctx)
	}
	return nil
}

// sayLeft lists what is wrong still, and what would have to be done about it.
func (r *repairer) sayLeft() {
	for _, f := range append(r.trouble.all(), r.found.all()...) {
		if f.Severity == Note {
			continue
		}
		switch {
		case f.Mend != mendRepair:
		case r.db != nil && !r.trusted():
			f.Mend = mendRebuild
		case r.mapDamaged() && !r.complete():
			f.Mend = mendComplete
		case r.mapDamaged():
			f.Mend = mendAcceptLoss
		}
		r.out.Left = append(r.out.Left, f)
	}
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
	r.lastLook = lastLook{state: r.db.State()}
	return r.look(ctx)
}

// trusted reports whether the metadata is the newest by all that was found. If it
// is not, the map proves nothing.
func (r *repairer) trusted() bool { return !r.found.outdated }

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
		if m.kind != FoundSuperblockCopy && !trusted || m.b != nil && m.b.m.State == extentmap.MemberFailed || r.skipped[m.where] {
			continue
		}
		if err := r.applyMend(ctx, m); err != nil {
			return err
		}
	}
	r.mends = nil
	return nil
}

func (r *repairer) applyMend(ctx context.Context, m mend) error {
	if m.keep != nil {
		if err := m.keep(ctx, &r.aside); err != nil {
			return r.skip(ctx, m.where, err)
		}
	}
	if err := r.aside.sync(); err != nil {
		return err
	}
	if m.change != nil {
		if err := r.commit(ctx, m.change); err != nil {
			return err
		}
	}
	if m.apply != nil {
		if err := m.apply(ctx); err != nil {
			return r.fail(ctx, m.b, err)
		}
	}
	r.done(m.kind, m.where, "%s", m.text)
	return nil
}

// skip goes on without a place if err says that it could not be read.
func (r *repairer) skip(ctx context.Context, where string, err error) error {
	if ctx.Err() != nil || !errors.Is(err, errUnread) {
		return err
	}
	r.skipped[where] = true
	r.trouble.damage(FoundUnreadable, where, "", "it is not mended: %v", err)
	return nil
}

// fail makes a backing failed that could not be written to, as the daemon does: it
// may have lost what was written before. Nothing is written to it any more, and the
// others are mended.
func (r *repairer) fail(ctx context.Context, b *checkedBacking, cause error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.m.State, b.m.Error = extentmap.MemberFailed, cause.Error()
	r.skipped[b.spec.Path] = true
	r.trouble.damage(FoundFailed, b.spec.Path, mendClear, "it has failed, and is not mended: %v", cause)
	if !r.trusted() {
		return nil
	}
	continuity := uuid.New()
	return r.commit(ctx, &extentmap.Changes{Members: []extentmap.Member{b.m}, Pool: func(p *extentmap.PoolRecord) { p.Continuity = continuity }})
}

// commit changes the metadata. The first commit raises the incarnation, before
// anything tells of the change; with it failures become known of which superblocks
// of the incarnation before tell.
func (r *repairer) commit(ctx context.Context, c *extentmap.Changes) error {
	if !r.raised {
		edit := c.Pool
		c = &extentmap.Changes{Map: c.Map, Members: append(slices.Clone(r.told), c.Members...), Volumes: c.Volumes, Pool: func(p *extentmap.PoolRecord) {
			p.Incarnation++
			if edit != nil {
				edit(p)
			}
		}}
	}
	if _, err := r.db.Commit(ctx, c); err != nil {
		return err
	}
	r.raised = true
	r.state = r.db.State()
	return nil
}

// tellBackings makes changed metadata the only ones that pass for current: the
// backings get the new incarnation and a stamp of the last commit, as by an open and
// a stop. A Repair that was cut short before is noticed by the incarnation.
func (r *repairer) tellBackings(ctx context.Context) error {
	if !r.raised && !r.unheard || !r.trusted() {
		return nil
	}
	incarnation := r.state.Pool.Incarnation
	var changed []extentmap.Member
	for _, b := range r.serving() {
		if !r.state.Pool.CleanStop {
			// What a killed daemon wrote is nobody else's to sync.
			if err := b.store.Sync(ctx); err != nil {
				if err := r.fail(ctx, b, err); err != nil {
					return err
				}
				continue
			}
		}
		if err := ondisk.WriteSuperblock(ctx, b.store, superblockOf(r.state, b.m.ID, b.sb.Layout, incarnation)); err != nil {
			if err := r.fail(ctx, b, err); err != nil {
				return err
			}
			continue
		}
		b.m.Incarnation = incarnation
		changed = append(changed, b.m)
	}
	if err := r.commit(ctx, &extentmap.Changes{Members: changed}); err != nil {
		return err
	}
	for _, b := range r.serving() {
		if err := r.stamp(ctx, b); err != nil {
			if err := r.fail(ctx, b, err); err != nil {
				return err
			}
		}
	}
	r.done(FoundIncarnation, r.o.Metadata, "the incarnation is raised to %d: a dump or a copy of the metadata from before the repair is out of date", r.state.Pool.Incarnation)
	return nil
}

// stamp tells b what the others are at, and of the last commit.
func (r *repairer) stamp(ctx context.Context, b *checkedBacking) error {
	p := r.state.Pool
	if err := ondisk.WriteSuperblock(ctx, b.store, superblockOf(r.state, b.m.ID, b.sb.Layout, p.Incarnation)); err != nil {
		return err
	}
	stamp := ondisk.Stamp{Commit: p.Commit, Incarnation: p.Incarnation, Clean: p.CleanStop}
	if err := ondisk.NewStamps(b.store, p.ID, b.m.UUID, b.sb.Layout).Write(ctx, stamp); err != nil {
		return err
	}
	return b.store.Sync(ctx)
}

// serving returns the backings that may be written to, in order of their ids.
func (r *repairer) serving() (list []*checkedBacking) {
	for _, id := range slices.Sorted(maps.Keys(r.backings)) {
		if b := r.backings[id]; b.usable && !b.behind() {
			list = append(list, b)
		}
	}
	return list
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
		is.Reservation, is.Quota, is.OnFullWait, is.Clients = v.Reservation, v.Quota, v.OnFullWait, v.Clients
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

// acceptStale looks at the backings anew that are to be used as they are.
func (r *repairer) acceptStale(ctx context.Context) error {
	if len(r.opts.AcceptStale) == 0 {
		return nil
	}
	r.stale = make(map[extent.BackingID]bool)
	for _, name := range r.opts.AcceptStale {
		m, err := r.memberNamed(name)
		if err != nil {
			return err
		}
		r.stale[m.ID] = true
	}
	return r.again(ctx)
}

// clearFailed makes failed backings serve again. The clean-stop mark goes, so that
// the next start syncs all backings and heals their tables. The continuity id
// changes, because answered data may be lost. Superblocks that tell of the failure
// are of the incarnation before.
func (r *repairer) clearFailed(ctx context.Context) error {
	var changed []extentmap.Member
	for _, name := range r.opts.ClearFailed {
		m, err := r.memberNamed(name)
		if err != nil {
			return err
		}
		if m.State != extentmap.MemberFailed && len(lostBy(r.state.Pool, m.ID)) == 0 {
			r.out.NotFailed = append(r.out.NotFailed, m.Path) // perhaps an earlier run has done it
			continue
		}
		if b := r.backings[m.ID]; b == nil || !b.usable {
			return refuse("backing %s cannot be cleared: it is missing, or damaged", m.Path)
		}
		if m.State == extentmap.MemberFailed {
			m.State, m.Error = extentmap.MemberOK, ""
		}
		changed = append(changed, m)
	}
	if len(changed) == 0 {
		return nil
	}
	for _, b := range r.backings {
		if b.missedStop {
			return refuse("backing %s is an old copy, which the clean stop proves; attach the right one before anything is cleared: that takes back the clean stop", b.spec.Path)
		}
	}
	continuity := uuid.New()
	err := r.commit(ctx, &extentmap.Changes{Members: changed, Pool: func(p *extentmap.PoolRecord) {
		p.CleanStop, p.Continuity = false, continuity
		for _, m := range changed {
			forgetLost(p, m.ID, 0)
		}
	}})
	if err != nil {
		return fmt.Errorf("clear failure: %w", err)
	}
	for _, m := range changed {
		r.done(FoundFailed, m.Path, "it serves again from the next start on, which looks at everything anew; what was lost when it failed is not coming back")
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
