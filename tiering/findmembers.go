package tiering

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/mutant"
	"tierd/tiering/ondisk"
)

// findMembers opens the configured backings and those the metadata remembers, and
// tells them apart by their superblocks. Every member that serves must be there,
// once, and neither older nor newer than the metadata.
func (op *opening) findMembers(ctx context.Context) error {
	// First of all: to look at a file on a device that waits for us would never end.
	known := slices.Clone(op.o.Backings)
	for _, m := range op.state.Members {
		known = append(known, BackingSpec{Path: m.Path})
	}
	if err := checkServes(known, op.state.Volumes); err != nil {
		return err
	}
	specs := memberSpecs(op.o.Backings, &op.state)
	paths := make([]string, len(specs))
	for i, s := range specs {
		paths[i] = s.Path
	}
	if err := checkDistinct(op.o.Metadata, paths); err != nil {
		return err
	}
	op.why = make(map[string]error)
	for _, spec := range specs {
		if err := op.tryCandidate(ctx, spec); err != nil {
			if !isAbsent(err) {
				return err
			}
			op.why[spec.Path] = err
		}
	}
	unused := make(map[string]bool) // paths that nothing is known of
	for path := range op.why {
		unused[path] = true
	}
	for _, m := range op.state.Members {
		delete(unused, m.Path)
		c := op.found[m.ID]
		switch {
		case m.State == extentmap.MemberForgotten && c != nil:
			return refuse("backing %s was forgotten (id %d): the pool goes on without what it holds; take it out of the configuration, or wipe it to use it anew", c.spec.Path, m.ID)
		case m.State == extentmap.MemberForgotten:
			continue
		case c == nil:
			op.missing = append(op.missing, m)
			continue
		}
		if err := op.checkMember(ctx, m, c); err != nil {
			return err
		}
		if c.spec.Path != m.Path {
			op.warn = append(op.warn, fmt.Sprintf("backing %d was at %s and is at %s now", m.ID, m.Path, c.spec.Path))
		}
	}
	if err := op.judgeUnknown(); err != nil {
		return err
	}
	if err := op.judgeMissing(); err != nil {
		return err
	}
	op.told = hearFailures(&op.state, func(id extent.BackingID) (*ondisk.Superblock, string) {
		if c := op.found[id]; c != nil {
			return c.sb, c.spec.Path
		}
		return nil, ""
	})
	for _, path := range slices.Sorted(maps.Keys(unused)) {
		switch why := op.why[path]; {
		case why == errNotOurs: // tryCandidate has warned of it
		case errors.Is(why, fs.ErrNotExist):
			op.warn = append(op.warn, fmt.Sprintf("backing %s is configured, but does not exist and is not part of the pool", path))
		default:
			op.warn = append(op.warn, fmt.Sprintf("backing %s is configured, but cannot be read and is not part of the pool: %v", path, why))
		}
	}
	return nil
}

// judgeUnknown leaves alone what is of the pool by its superblock and no member: it
// was being added, or removed. What the metadata has yet to hear of is refused: it
// may hold data.
func (op *opening) judgeUnknown() error {
	for id, c := range op.found {
		if slices.ContainsFunc(op.state.Members, func(m extentmap.Member) bool { return m.ID == id }) {
			continue
		}
		if !leftBehind(op.state, c.sb) {
			return refuse("metadata %s is older than backing %s, of which it does not know (id %d): it was restored from a copy", op.o.Metadata, c.spec.Path, id)
		}
		op.warn = append(op.warn, fmt.Sprintf("backing %s is configured, and no member: its addition was not finished, or it was removed; tierctl backing add makes it one", c.spec.Path))
		_ = c.store.Close()
		delete(op.found, id)
	}
	return nil
}

func (op *opening) tierName(id extent.TierID) string {
	for _, t := range op.state.Tiers {
		if t.ID == id {
			return t.Name
		}
	}
	return fmt.Sprint(id)
}

// tryCandidate opens one backing. A backing of another pool is refused; one that
// belongs to none is only mentioned.
func (op *opening) tryCandidate(ctx context.Context, spec BackingSpec) error {
	op.at("opening of backing %s and reading of its superblock", spec.Path)
	st, err := op.o.OpenStore(ctx, spec, false, op.o.ReadOnly)
	if err != nil {
		return fmt.Errorf("open backing %s: %w", spec.Path, err)
	}
	keep := false
	defer func() {
		if !keep {
			_ = st.Close()
		}
	}()
	sb, err := ondisk.ReadSuperblock(ctx, st)
	if errors.Is(err, ondisk.ErrNoSuperblock) {
		op.warn = append(op.warn, fmt.Sprintf("backing %s is configured, but carries no superblock and is not part of the pool", spec.Path))
		if op.why != nil {
			op.why[spec.Path] = errNotOurs
		}
		return nil
	}
	if errors.Is(err, ondisk.ErrShort) {
		return fmt.Errorf("backing %s: %w; give it back its size, or take it away and start with --degraded", spec.Path, err)
	}
	if err != nil {
		return advise(fmt.Errorf("backing %s: %w", spec.Path, err))
	}
	if err := sb.Features.Check(op.o.ReadOnly); err != nil {
		return advise(fmt.Errorf("backing %s: %w", spec.Path, err))
	}
	if sb.PoolID != op.state.Pool.ID {
		return refuse("backing %s belongs to pool %s, not to %s; take it out of the configuration, or name that pool's metadata", spec.Path, sb.PoolID, op.state.Pool.ID)
	}
	if other := op.found[sb.Backing]; other != nil {
		return refuse("backings %s and %s are copies of each other (id %d); take one away", other.spec.Path, spec.Path, sb.Backing)
	}
	keep = true
	op.found[sb.Backing] = &candidate{spec: spec, store: st, sb: sb}
	return nil
}

// missedStop reports whether stamps prove that what is there is not what the pool was
// stopped with: the stamp of a clean stop is the last that is written to a backing
// in an incarnation. A later incarnation is that of a repair, of a stop that was cut
// short, or of a program that does not stamp stops.
func missedStop(pr extentmap.PoolRecord, m extentmap.Member, copies [2]ondisk.StampCopy) bool {
	stop := stampedStop(pr, m)
	newest, sure := ondisk.NewestStamp(copies)
	s := newest.Stamp
	return stop != 0 && sure && (s.Incarnation < stop || s.Incarnation == stop && !s.Clean)
}

// stampedStop returns the incarnation of the clean stop that a backing has a stamp of, as
// far as is known; 0 if of none. One that has failed has none.
func stampedStop(pr extentmap.PoolRecord, m extentmap.Member) uint64 {
	switch {
	case m.State != extentmap.MemberOK && m.State != extentmap.MemberDraining:
		return 0
	case m.Away:
		return m.StampedStop
	case pr.CleanStop:
		return pr.StampedStop
	}
	return 0
}

// checkMember compares a backing with what the metadata says of it.
func (op *opening) checkMember(ctx context.Context, m extentmap.Member, c *candidate) error {
	pr := op.state.Pool
	switch {
	case c.sb.BackingUUID != m.UUID:
		return refuse("backing %s has the id of another one (%s instead of %s); take it out of the configuration", c.spec.Path, c.sb.BackingUUID, m.UUID)
	case c.store.Size() < c.sb.Layout.Size:
		return refuse("backing %s has %d bytes, and %d by its superblock: it was cut off; give it back its size, or take it away and start with --degraded", c.spec.Path, c.store.Size(), c.sb.Layout.Size)
	case c.sb.Incarnation < m.Incarnation:
		return refuse("backing %s is an old copy (incarnation %d, the pool knows %d); attach the original, or take the copy away and start with --degraded", c.spec.Path, c.sb.Incarnation, m.Incarnation)
	case mutant.On(mutant.LaggardsRefused) && c.sb.Incarnation < pr.Incarnation:
		return refuse("backing %s has not heard of incarnation %d", c.spec.Path, pr.Incarnation)
	case mutant.On(mutant.OldMapAccepted):
		return nil
	case c.sb.Incarnation > pr.Incarnation:
		return refuse("metadata %s is older than backing %s (incarnation %d against %d): it was restored from a copy; put the original back, or move the copy away and run tierctl pool rebuild", op.o.Metadata, c.spec.Path, pr.Incarnation, c.sb.Incarnation)
	}
	op.at("reading of the stamp of backing %s", c.spec.Path)
	stamp, err := ondisk.NewStamps(c.store, pr.ID, m.UUID, c.sb.Layout).Read(ctx)
	if err != nil {
		return fmt.Errorf("backing %s: read stamp: %w", c.spec.Path, err)
	}
	copies, err := ondisk.ReadStampCopies(ctx, c.store, pr.ID, m.UUID, c.sb.Layout)
	if err != nil {
		return fmt.Errorf("backing %s: %w", c.spec.Path, err)
	}
	c.stamp = stamp
	if missedStop(pr, m, copies) {
		return refuse("backing %s is an old copy: it was there when the pool was stopped cleanly, and does not know of it; attach the original, or take the copy away and start with --degraded; pool repair --accept-stale %d uses it as it is", c.spec.Path, m.ID)
	}
	if stamp.Commit > pr.Commit {
		return refuse("metadata %s is older than backing %s (commit %d against %d): it was restored from a copy; put the original back, or move the copy away and run tierctl pool rebuild", op.o.Metadata, c.spec.Path, pr.Commit, stamp.Commit)
	}
	return nil
}
