package tiering

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// checkedBacking is an opened backing, with what is on it.
type checkedBacking struct {
	spec   BackingSpec
	store  backing.Store
	copies [2]ondisk.SuperblockCopy
	sb     *ondisk.Superblock // the newer valid copy; nil: there is none
	m      extentmap.Member   // what the metadata says of it
	stamp  ondisk.Stamp       // the newest
	usable bool               // it is the member, whole and of the right age

	missedStop bool // it is an old copy, and nobody has said that it is to be used
}

// behind reports whether b may lack what the metadata has without being damaged: it
// has failed, or the pool was in use without it. The next start brings the latter up
// to date.
func (b *checkedBacking) behind() bool { return b.m.State == extentmap.MemberFailed || b.m.Away }

func (b *checkedBacking) slotTable(pool [16]byte) *ondisk.SlotTable {
	return ondisk.NewSlotTable(b.store, pool, b.m.UUID, b.m.ID, b.sb.Layout)
}

func (c *checker) closeBackings() {
	for _, b := range c.backings {
		_ = b.store.Close()
	}
	for _, b := range c.lost {
		_ = b.store.Close()
	}
	c.backings, c.lost = nil, nil
}

// checkBackings opens every backing that can be found, and looks at the superblock,
// the stamp and the volume table of each member.
func (c *checker) checkBackings(ctx context.Context) {
	c.backings = make(map[extent.BackingID]*checkedBacking)
	c.lost = make(map[string]*checkedBacking)
	c.tables = make(map[uint64][]*ondisk.VolumeTable)
	specs := memberSpecs(c.o.Backings, &c.state)
	for i, s := range specs {
		c.progress("backings", int64(i), int64(len(specs)))
		if b := c.openBacking(ctx, s); b != nil {
			if b.sb == nil {
				c.lost[s.Path] = b
			} else {
				c.backings[b.sb.Backing] = b
			}
		}
	}
	c.told = hearFailures(&c.state, func(id extent.BackingID) (*ondisk.Superblock, string) {
		if b := c.backings[id]; b != nil {
			return b.sb, b.spec.Path
		}
		return nil, ""
	})
	known := make(map[extent.BackingID]bool)
	for _, m := range c.state.Members {
		known[m.ID] = true
		b := c.backings[m.ID]
		switch {
		case b != nil:
			b.m = m
			c.checkMember(ctx, b)
		case m.State == extentmap.MemberForgotten:
		case c.lostAt(m.Path) != nil:
			c.checkLost(ctx, m, c.lostAt(m.Path))
		case m.State == extentmap.MemberCreating:
			c.found.note(FoundMissing, m.Path, "", "backing %d, which was being added, is not there", m.ID)
		default:
			c.found.damage(FoundMissing, m.Path, "attach it, or backing forget", "backing %d (%s) is missing", m.ID, m.UUID)
		}
	}
	for id, b := range c.backings {
		if !known[id] {
			if id < c.state.Pool.NextBacking {
				// A crash can leave this, while a backing is added or removed.
				c.found.warning(FoundForeign, b.spec.Path, "backing add", "it says that it is backing %d of this pool, which it is no more, or is not yet", id)
			} else {
				c.found.damage(FoundForeign, b.spec.Path, "", "it says that it is backing %d of this pool, which the pool does not have", id)
			}
			_ = b.store.Close()
			delete(c.backings, id)
		}
	}
}

// lostAt returns the backing without a superblock that a path leads to, or nil.
func (c *checker) lostAt(path string) *checkedBacking {
	for at, b := range c.lost {
		if sameFile(at, path) {
			return b
		}
	}
	return nil
}

// openBacking opens one backing and finds its superblock; nil, if it is not of this
// pool or cannot be used.
func (c *checker) openBacking(ctx context.Context, s BackingSpec) *checkedBacking {
	st, err := c.o.OpenStore(ctx, s, false, c.readOnly)
	if err != nil && isAbsent(err) {
		return nil // if it is a member, it is missing
	} else if err != nil {
		c.found.damage(FoundUnreadable, s.Path, "", "%v", err)
		return nil
	}
	if c.overlays != nil {
		if c.overlays[s.Path] == nil {
			c.overlays[s.Path] = make(overlay)
		}
		st = overlayStore{st, c.overlays[s.Path]}
	}
	b := &checkedBacking{spec: s, store: st, copies: ondisk.ReadSuperblockCopies(ctx, st)}
	if !c.identify(b) {
		_ = st.Close()
		return nil
	}
	return b
}

// identify chooses the superblock of a backing, and says whether the backing may be
// a member.
func (c *checker) identify(b *checkedBacking) bool {
	where := b.spec.Path
	trace := false
	for _, sc := range b.copies {
		switch {
		case sc.Err != nil:
			c.found.damage(FoundUnreadable, where, "", "the superblock at its %s cannot be read: %v", sc.Place, sc.Err)
			trace = true
		case sc.State == ondisk.CopyNewer:
			c.found.damage(FoundSuperblockCopy, where, "a later tierd", "the superblock at its %s is of a later version", sc.Place)
			return false
		case sc.State == ondisk.CopyDamaged:
			trace = true
		case sc.State != ondisk.CopyValid:
		case b.sb == nil:
			b.sb = sc.Superblock
		case sc.Superblock.PoolID != b.sb.PoolID || sc.Superblock.BackingUUID != b.sb.BackingUUID:
			c.found.damage(FoundSuperblockCopy, where, "", "its two superblocks are of different backings: %s of pool %s, and %s of pool %s",
				b.sb.BackingUUID, b.sb.PoolID, sc.Superblock.BackingUUID, sc.Superblock.PoolID)
			return false
		case sc.Superblock.Generation > b.sb.Generation:
			b.sb = sc.Superblock
		}
	}
	if b.sb == nil {
		member := false
		for _, m := range c.state.Members {
			member = member || m.Path == where
		}
		if !member && !trace {
			c.found.note(FoundForeign, where, "", "it is configured, but carries no superblock and is not part of the pool")
		}
		if !member && trace {
			c.found.damage(FoundSuperblockLost, where, "", "neither copy of its superblock is valid")
		}
		return member
	}
	switch {
	case c.db != nil && b.sb.PoolID != c.state.Pool.ID:
		c.found.damage(FoundForeign, where, "", "it belongs to pool %s, not to %s", b.sb.PoolID, c.state.Pool.ID)
		return false
	case c.backings[b.sb.Backing] != nil:
		c.found.damage(FoundCopied, where, "take one of them away", "it says that it is backing %d, as %s does: one is a copy of the other",
			b.sb.Backing, c.backings[b.sb.Backing].spec.Path)
		return false
	case b.sb.Layout.Size > b.store.Size():
		c.found.damage(FoundShort, where, "", "it has %d bytes, and %d by its superblock: it was cut off", b.store.Size(), b.sb.Layout.Size)
		return false
	}
	return true
}

// checkMember compares a backing with what the metadata says of it.
func (c *checker) checkMember(ctx context.Context, b *checkedBacking) {
	m, sb, pr, where := b.m, b.sb, c.state.Pool, b.spec.Path
	switch {
	case sb.BackingUUID != m.UUID:
		c.found.damage(FoundForeign, where, "", "it has the id of another backing (%s instead of %s)", sb.BackingUUID, m.UUID)
		return
	case m.State == extentmap.MemberCreating:
		c.found.note(FoundMissing, where, mendStart, "it was being added when the pool was stopped")
		return
	case m.State == extentmap.MemberForgotten:
		c.found.warning(FoundForeign, where, "take it out of the configuration", "it was forgotten (id %d): the pool goes on without what it holds", m.ID)
		return
	case sb.Incarnation < m.Incarnation:
		c.found.damage(FoundStale, where, "attach the right one", "it is an old copy (incarnation %d, the pool knows %d)", sb.Incarnation, m.Incarnation)
		return
	case sb.Incarnation > pr.Incarnation:
		c.found.damage(FoundMetadataOlder, where, mendRebuild, "the metadata is older than it (incarnation %d against %d): it was restored from a copy", pr.Incarnation, sb.Incarnation)
		return
	}
	if c.checkMissedStop(ctx, b); b.missedStop {
		return
	}
	if m.State == extentmap.MemberFailed {
		c.found.damage(FoundFailed, where, mendClear, "it has failed: %s", m.Error)
	} else if lost := lostBy(pr, m.ID); len(lost) > 0 {
		c.found.damage(FoundFailed, where, mendClear, "answered writes to %d volumes were lost when moves onto it were taken back", len(lost))
	}
	b.usable = true
	c.checkSuperblock(b)
	c.checkStamps(ctx, b)
	c.checkVolumeTable(ctx, b)
}

// checkSuperblock compares both copies with each other and with the metadata.
func (c *checker) checkSuperblock(b *checkedBacking) {
	where := b.spec.Path
	for i, sc := range b.copies {
		good := b.copies[1-i]
		switch {
		case sc.Err != nil: // has been reported
		case sc.State != ondisk.CopyValid:
			c.second(FoundSuperblockCopy, where, mendRepair, "the superblock at its %s is %s", sc.Place, sc.State)
			c.mend(mend{kind: FoundSuperblockCopy, b: b, where: where, text: fmt.Sprintf("the superblock at its %s is written from the one at its %s", sc.Place, good.Place),
				keep:  b.keepBytes(sc.Offset, ondisk.SuperblockArea, "superblock at its "+sc.Place),
				apply: func(ctx context.Context) error { return ondisk.MendSuperblock(ctx, b.store, good) }})
		case sc.Superblock.Generation < b.sb.Generation:
			c.second(FoundSuperblockCopy, where, mendRepair, "the superblock at its %s is older than the one at its %s (%d, %d)",
				sc.Place, good.Place, sc.Superblock.Generation, good.Superblock.Generation)
			c.mend(mend{kind: FoundSuperblockCopy, b: b, where: where, text: fmt.Sprintf("the superblock at its %s is written from the one at its %s", sc.Place, good.Place),
				keep:  b.keepBytes(sc.Offset, ondisk.SuperblockArea, "superblock at its "+sc.Place),
				apply: func(ctx context.Context) error { return ondisk.MendSuperblock(ctx, b.store, good) }})
		}
	}
	if b.m.Slots != b.sb.Layout.Slots || b.m.Size != b.sb.Layout.Size {
		c.found.damage(FoundSuperblock, where, mendRebuild, "it has %d slots in %d bytes by its superblock, and %d in %d by the metadata",
			b.sb.Layout.Slots, b.sb.Layout.Size, b.m.Slots, b.m.Size)
		b.usable = false
	}
	if b.behind() {
		return // nothing is written to it any more, or was while it was away
	}
	if c.state.Pool.CleanStop && b.sb.Incarnation < c.state.Pool.Incarnation {
		c.unheard = true
		c.found.warning(FoundIncarnation, where, mendRepair, "it has not heard of the last repair: metadata from before that would pass for the newest")
	}
	want := superblockOf(c.state, b.m.ID, b.sb.Layout, b.sb.Incarnation)
	if what := differs(want, b.sb); what != "" {
		c.second(FoundSuperblock, where, mendRepair, "its superblock has another %s than the metadata", what)
		if c.state.Pool.CleanStop {
			c.mend(mend{kind: FoundSuperblock, b: b, where: where, text: "its superblock is written from the metadata",
				keep:  b.keepBytes(b.sb.Layout.FrontSuperblock, ondisk.SuperblockArea, "superblock"),
				apply: func(ctx context.Context) error { return ondisk.WriteSuperblock(ctx, b.store, want) }})
		}
	}
}

// differs says what a superblock has otherwise than it should. Incarnations of
// members are left out: they are written before the metadata has them.
func differs(want, have *ondisk.Superblock) string {
	switch {
	case want.Tier != have.Tier:
		return "tier"
	case want.NextBacking != have.NextBacking || len(want.Members) != len(have.Members):
		return "list of backings"
	case len(want.Tiers) != len(have.Tiers):
		return "list of tiers"
	}
	for i, t := range want.Tiers {
		if t != have.Tiers[i] {
			return "list of tiers"
		}
	}
	for i, m := range want.Members {
		h := have.Members[i]
		if m.ID != h.ID || m.UUID != h.UUID || m.Tier != h.Tier || m.State != h.State {
			return "list of backings"
		}
	}
	return ""
}

// checkStamps looks whether the metadata is as new as the stamps say.
func (c *checker) checkStamps(ctx context.Context, b *checkedBacking) {
	where, pr := b.spec.Path, c.state.Pool
	copies, err := ondisk.ReadStampCopies(ctx, b.store, pr.ID, b.m.UUID, b.sb.Layout)
	if err != nil {
		c.found.damage(FoundUnreadable, where, "", "its stamp cannot be read: %v", err)
		b.usable = false
		return
	}
	newest, _ := ondisk.NewestStamp(copies)
	b.stamp = newest.Stamp
	best := -1
	damaged := 0
	for i, sc := range copies {
		switch sc.State {
		case ondisk.CopyNewer:
			c.found.damage(FoundStamp, where, "a later tierd", "a stamp is of a later version")
			b.usable = false
			return
		case ondisk.CopyDamaged:
			damaged++
		case ondisk.CopyValid:
			if best < 0 || sc.Generation > copies[best].Generation {
				best = i
			}
		}
	}
	if best >= 0 && copies[best].Stamp.Commit > pr.Commit {
		c.found.damage(FoundMetadataOlder, where, mendRebuild, "the metadata is older than it (commit %d against %d): it was restored from a copy", pr.Commit, copies[best].Stamp.Commit)
		b.usable = false
		return
	}
	if damaged == 0 {
		return
	}
	// A clean stop is the last commit of its incarnation. So metadata that have the
	// mark and the incarnation of the backing are not older than its last stamp was.
	proven := best >= 0 || pr.CleanStop && b.sb.Incarnation == pr.Incarnation
	mendBy := mendRepair
	if !proven {
		mendBy = mendRebuild
	}
	if best >= 0 {
		c.second(FoundStamp, where, mendBy, "one of its two stamps is damaged")
	} else {
		c.found.damage(FoundStamp, where, mendBy, "its stamps are damaged: whether the metadata is the newest cannot be told from them")
	}
	if !proven || b.m.State == extentmap.MemberFailed {
		return
	}
	generation := uint64(1)
	stamp := ondisk.Stamp{Commit: pr.Commit, Incarnation: b.sb.Incarnation}
	if best >= 0 {
		generation, stamp = copies[best].Generation+1, copies[best].Stamp
	}
	if stop := stampedStop(pr, b.m); stop != 0 && stop == stamp.Incarnation && !stamp.Clean {
		// The damaged one is the later one, and was that of the stop.
		stamp = ondisk.Stamp{Commit: pr.Commit, Incarnation: stop, Clean: true}
	}
	for i, sc := range copies {
		if sc.State != ondisk.CopyDamaged {
			continue
		}
		g := generation
		generation++
		c.mend(mend{kind: FoundStamp, b: b, where: where, text: "a damaged stamp is written anew",
			keep: b.keepBytes(sc.Offset, 4096, "stamp"),
			apply: func(ctx context.Context) error {
				return ondisk.MendStamp(ctx, b.store, pr.ID, b.m.UUID, b.sb.Layout, i, g, stamp)
			}})
	}
}

// checkMissedStop tells of an old copy, which is not mended without an operator's
// word. With it, the repair gives it the new incarnation, or forgets the stop.
func (c *checker) checkMissedStop(ctx context.Context, b *checkedBacking) {
	copies, err := ondisk.ReadStampCopies(ctx, b.store, c.state.Pool.ID, b.m.UUID, b.sb.Layout)
	if err != nil || !missedStop(c.state.Pool, b.m, copies) {
		return // an error is told of with the rest of the stamp
	}
	where, text := b.spec.Path, "it is an old copy: it was there when the pool was stopped cleanly, and does not know of it"
	c.found.damage(FoundStale, where, mendAcceptStale, "%s; attach the right one", text)
	if b.missedStop = !c.stale[b.m.ID]; b.missedStop {
		return
	}
	continuity := uuid.New()
	change := &extentmap.Changes{Pool: func(p *extentmap.PoolRecord) { p.Continuity = continuity }}
	if b.m.Away { // only the next start gives it an incarnation
		b.m.StampedStop = 0
		change.Members = []extentmap.Member{b.m}
	}
	c.mend(mend{kind: FoundStale, b: b, where: where, text: "it is used as it is, though it is an old copy", change: change})
}

// checkVolumeTable looks at both copies of the volume table.
func (c *checker) checkVolumeTable(ctx context.Context, b *checkedBacking) {
	where, pr := b.spec.Path, c.state.Pool
	copies := ondisk.ReadVolumeTableCopies(ctx, b.store, b.sb.Layout, pr.ID)
	if err := errors.Join(copies[0].Err, copies[1].Err); err != nil {
		c.found.damage(FoundUnreadable, where, "", "its volume table cannot be read: %v", err)
		return
	}
	want := volumeTableOf(c.state)
	best := -1
	for i, vc := range copies {
		if vc.State == ondisk.CopyNewer {
			c.found.damage(FoundVolumeTable, where, "a later tierd", "its volume table is of a later version")
			return
		}
		if vc.State == ondisk.CopyValid && (best < 0 || vc.Table.Generation > copies[best].Table.Generation) {
			best = i
		}
	}
	serves := !b.behind()
	write := func(i int) {
		vc := copies[i]
		if serves {
			c.mend(mend{kind: FoundVolumeTable, b: b, where: where, text: "a volume table is written from the metadata",
				keep: b.keepBytes(vc.Offset, max(vc.Length, 4096), "volume table"),
				apply: func(ctx context.Context) error {
					return ondisk.MendVolumeTable(ctx, b.store, b.sb.Layout, pr.ID, i, want)
				}})
		}
	}
	switch {
	case best < 0:
		c.found.damage(FoundVolumeTable, where, mendRepair, "neither copy of its volume table is valid")
		write(0)
		return
	case copies[best].Table.Generation > want.Generation:
		c.found.damage(FoundMetadataOlder, where, mendRebuild, "its volume table is newer than the metadata (generation %d against %d)", copies[best].Table.Generation, want.Generation)
		return
	case copies[best].Table.Generation < want.Generation && serves:
		c.second(FoundVolumeTable, where, mendRepair, "its volume table is of generation %d, the metadata of %d", copies[best].Table.Generation, want.Generation)
		write(1 - best)
		return
	case copies[best].Table.Generation == want.Generation:
		c.tables[want.Generation] = append(c.tables[want.Generation], &copies[best].Table)
	}
	if copies[1-best].State == ondisk.CopyDamaged {
		c.second(FoundVolumeCopy, where, mendRepair, "one of the two copies of its volume table is damaged")
		if copies[best].Table.Equal(want) {
			write(1 - best)
		}
	}
}

// checkRecords compares the records of the volumes, which have no checksum, with
// the volume tables of the same generation, which have one.
func (c *checker) checkRecords() {
	want := volumeTableOf(c.state)
	tables := c.tables[want.Generation]
	if len(tables) == 0 {
		return
	}
	first := tables[0]
	for _, t := range tables {
		if !t.Equal(*first) {
			c.keepVolumeTables()
			c.found.damage(FoundVolumeTable, c.o.Metadata, "", "volume tables of one generation, %d, differ from each other", want.Generation)
			return
		}
	}
	if c.agreed = first.Equal(want); c.agreed {
		return
	}
	c.keepVolumeTables()
	c.found.damage(FoundMetadataRecord, c.o.Metadata, mendRepair, "the volumes are not as the volume tables of the same generation, %d, have them", want.Generation)
	c.mendRecords(first)
}

// keepVolumeTables takes back the mends that would write volume tables from records
// that are in doubt: they would be taken for evidence if the repair is cut short.
func (c *checker) keepVolumeTables() {
	c.mends = slices.DeleteFunc(c.mends, func(m mend) bool { return m.kind == FoundVolumeTable })
}

// checkLost looks at a member of which no superblock is valid.
func (c *checker) checkLost(ctx context.Context, m extentmap.Member, b *checkedBacking) {
	b.m = m
	where, pr := b.spec.Path, c.state.Pool
	// The stamp has a checksum seeded with the ids of pool and backing, and its place
	// is the same in all layouts. The rest of the layout follows from the size, unless
	// the backing has grown.
	l, err := ondisk.NewLayout(m.Size, c.size)
	if err != nil || l.Slots != m.Slots || m.Size > b.store.Size() {
		c.found.damage(FoundSuperblockLost, where, mendRebuild, "neither copy of its superblock is valid")
		return
	}
	copies, err := ondisk.ReadStampCopies(ctx, b.store, pr.ID, m.UUID, l)
	ours, newest := err == nil, ondisk.StampCopy{}
	for _, sc := range copies {
		if sc.State != ondisk.CopyValid {
			continue
		}
		// One that the metadata are older than proves nothing that may be written down.
		ours = ours && sc.Stamp.Incarnation <= pr.Incarnation && sc.Stamp.Commit <= pr.Commit
		if sc.Generation > newest.Generation {
			newest = sc
		}
	}
	if !ours || newest.Generation == 0 || m.State == extentmap.MemberFailed {
		c.found.damage(FoundSuperblockLost, where, "", "neither copy of its superblock is valid, and nothing proves that it is backing %d", m.ID)
		return
	}
	// Nothing is written after the stamp of a clean stop but by a repair, which raises
	// the incarnation if that matters. Any other stamp may be that of an old copy: an
	// overwrite changes none.
	current := pr.CleanStop && !m.Away && newest.Stamp.Clean && newest.Stamp.Incarnation == pr.Incarnation
	change, doubt := (*extentmap.Changes)(nil), ""
	switch {
	case current:
		c.found.damage(FoundSuperblockLost, where, mendRepair, "neither copy of its superblock is valid; its stamp proves that it is backing %d as it was at the last stop", m.ID)
	case !c.stale[m.ID]:
		c.found.damage(FoundSuperblockLost, where, mendAcceptStale, "neither copy of its superblock is valid; by its stamp it is backing %d, and nothing proves that it is no old copy", m.ID)
		return
	default:
		c.found.damage(FoundSuperblockLost, where, mendAcceptStale, "neither copy of its superblock is valid; it is used as it is")
		doubt = ", though it may be an old copy"
		continuity := uuid.New()
		change = &extentmap.Changes{Pool: func(p *extentmap.PoolRecord) { p.Continuity = continuity }}
	}
	want := superblockOf(c.state, m.ID, l, m.Incarnation)
	c.mend(mend{kind: FoundSuperblockLost, b: b, where: where, text: "its superblock is written from the metadata" + doubt, change: change,
		keep:  b.keepBytes(l.FrontSuperblock, ondisk.SuperblockArea, "superblock at its front"),
		apply: func(ctx context.Context) error { return ondisk.WriteSuperblock(ctx, b.store, want) }})
}

// lookWithoutMap looks at what there is of a pool whose metadata cannot be read.
func (c *checker) lookWithoutMap(ctx context.Context) error {
	c.backings = make(map[extent.BackingID]*checkedBacking)
	c.lost = make(map[string]*checkedBacking)
	for _, s := range c.o.Backings {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := c.openBacking(ctx, s)
		if b == nil {
			continue
		}
		c.backings[b.sb.Backing] = b
		for _, sc := range b.copies {
			if sc.State != ondisk.CopyValid {
				c.found.damage(FoundSuperblockCopy, s.Path, "", "the superblock at its %s is %s", sc.Place, sc.State)
			}
		}
	}
	return nil
}
