package tiering

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"tierd/pkg/units"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/registry"
	"tierd/tiering/stagedlog"
)

// Loss is what forgetting a backing costs one volume.
type Loss struct {
	Volume string
	Bytes  int64
}

// Forgotten tells what ForgetBacking did, or would do.
type Forgotten struct {
	ID     extent.BackingID
	Path   string
	Losses []Loss // volumes with extents there, by name
}

// Bytes is the sum of the losses.
func (f *Forgotten) Bytes() (n int64) {
	for _, l := range f.Losses {
		n += l.Bytes
	}
	return n
}

func (f *Forgotten) String() string {
	if len(f.Losses) == 0 {
		return "nothing is lost with it"
	}
	parts := make([]string, len(f.Losses))
	for i, l := range f.Losses {
		parts[i] = fmt.Sprintf("%s of volume %s", units.Size(l.Bytes), l.Volume)
	}
	return fmt.Sprintf("%s are lost with it: %s", units.Size(f.Bytes()), strings.Join(parts, ", "))
}

// ForgetBacking gives up a missing backing for good. name is its id, its path or its
// UUID. Its extents become unmapped and read as zeroes, and the backing is refused
// if it ever comes back. Without acceptLoss it is an error that tells the loss, if
// there is any; with dryRun nothing is done.
//
//  1. One commit makes the member forgotten, and emptying, and renews the continuity
//     id: from then on there is no way back.
//  2. The superblocks of the others say so too, for a rebuild.
//  3. The extents are unmapped in commits of bounded size. A restart goes on with
//     that.
//  4. A last commit says that the map has none of them any more.
func (p *Pool) ForgetBacking(ctx context.Context, name string, acceptLoss, dryRun bool) (Forgotten, error) {
	done := make(chan error, 1)
	f, err := p.forget(ctx, name, acceptLoss, dryRun, done)
	if err != nil || dryRun {
		return f, err
	}
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err() // the work goes on
	}
	return f, err
}

// forget is steps 1 and 2 of ForgetBacking. It begins the others, whose outcome is
// sent to done.
func (p *Pool) forget(ctx context.Context, name string, acceptLoss, dryRun bool, done chan<- error) (Forgotten, error) {
	p.adminMu.Lock()
	defer p.adminMu.Unlock()
	if err := p.changeable(ctx); err != nil {
		return Forgotten{}, err
	}
	b, err := p.findBacking(name)
	if err != nil {
		return Forgotten{}, err
	}
	f := Forgotten{ID: b.id, Path: b.path}
	switch {
	case !b.missing && b.err() != nil:
		return f, busy("backing %s is there, though it has failed; drain it, or detach it and start tierd with --degraded", b.path)
	case !b.missing:
		return f, busy("backing %s is there; drain it and remove it", b.path)
	case b.forgotten.Load():
		return f, busy("backing %s is forgotten already", b.path)
	}
	f.Losses = p.lossesOn(b)
	switch {
	case dryRun:
		return f, nil
	case len(f.Losses) > 0 && !acceptLoss:
		return f, &classed{busy("backing %s is not forgotten: %v", b.path, &f), ErrLossNotAccepted}
	}
	newContinuity := renewContinuity()
	err = p.editMembers(func(m *extentmap.Member) bool {
		if m.ID != b.id {
			return false
		}
		m.State, m.Error, m.Emptying, m.Away, m.Unsynced, m.StampedStop = extentmap.MemberForgotten, "", true, false, false, 0
		return true
	}, func(r *extentmap.PoolRecord) {
		newContinuity(r)
		forgetLost(r, b.id, 0)
	})
	if err != nil {
		return f, fmt.Errorf("forget backing %s: %w", b.path, err)
	}
	b.forgotten.Store(true)
	p.log.Warn("backing is forgotten", "backing", b.path, "loss", f.String())
	p.writeSuperblocks(b, true)
	p.failUnsynced() // the loss is accepted
	p.wg.Go(func() { done <- p.emptyForgotten(p.ctx, b) })
	return f, nil
}

// findBacking returns the member of an id, a UUID or a path.
func (p *Pool) findBacking(name string) (found *member, err error) {
	id, numErr := strconv.ParseUint(name, 10, 16)
	p.eachMember(func(b *member) {
		if b.path == name || b.uuid.String() == name || numErr == nil && uint64(b.id) == id {
			found = b
		}
	})
	if found == nil {
		return nil, fmt.Errorf("backing %q: %w", name, ErrNotFound)
	}
	return found, nil
}

// lossesOn returns what the volumes have on b, by their names.
func (p *Pool) lossesOn(b *member) []Loss {
	var losses []Loss
	for _, v := range p.Volumes() {
		if n := v.lostOn(b); n > 0 {
			losses = append(losses, Loss{Volume: v.Name(), Bytes: n})
		}
	}
	return losses
}

// emptyForgotten unmaps all extents on a forgotten backing.
func (p *Pool) emptyForgotten(ctx context.Context, b *member) error {
	for _, v := range p.allVolumes() {
		if err := p.emptyVolume(ctx, v, b); err != nil {
			return fmt.Errorf("unmap what volume %s had on backing %s, which goes on with the next start: %w", v.Name(), b.path, err)
		}
	}
	err := p.editMembers(func(m *extentmap.Member) bool {
		was := m.Emptying
		m.Emptying = was && m.ID != b.id
		return was != m.Emptying
	}, nil)
	if err != nil {
		return fmt.Errorf("finish forgetting backing %s, which goes on with the next start: %w", b.path, err)
	}
	p.adminMu.Lock()
	b.tier.drop(b)
	p.adminMu.Unlock()
	p.log.Info("nothing is left of a forgotten backing", "backing", b.path)
	return nil
}

// emptyVolume unmaps what v has on b, at most deleteSlice extents a commit.
func (p *Pool) emptyVolume(ctx context.Context, v *Volume, b *member) error {
	var on []extent.Index
	v.table.Range(func(i extent.Index, e extent.Entry) bool {
		if e.Mapped() && e.Location().Backing == b.id {
			on = append(on, i)
		}
		return true
	})
	for len(on) > 0 {
		n := min(deleteSlice, len(on))
		for first := 0; first < n; {
			last := first + 1 // of a row of neighbours: one record of the log has room for a row
			for last < n && on[last] == on[last-1]+1 && last-first < unmapSlice {
				last++
			}
			if err := v.unmapFrom(ctx, b, on[first], on[last-1]+1); err != nil {
				return err
			}
			first = last
		}
		// A round of a volume that failed for another reason says so, having done what
		// it could.
		if err := v.flush(ctx); err != nil && (p.db.Err() != nil || ctx.Err() != nil) {
			return err
		}
		on = on[n:]
	}
	return nil
}

// unmapFrom unmaps the extents [first, last) that are on b still. It gets in line
// for them like a trim.
func (v *Volume) unmapFrom(ctx context.Context, b *member, first, last extent.Index) error {
	p := v.pool
	var t registry.Ticket
	p.reg.Enter(&t, registry.Exclusive, v.id, p.size.Start(first), p.size.Start(last)-p.size.Start(first), v.table)
	defer p.reg.Leave(&t, 0, 0)
	if err := t.Wait(ctx); err != nil {
		return err
	}
	for first < last {
		var row []extent.Index
		for ; first < last; first++ {
			e := v.table.Load(first)
			if !e.Mapped() || e.Location().Backing != b.id {
				break // trimmed, or trimmed and written anew, meanwhile
			}
			row = append(row, first)
		}
		if len(row) == 0 {
			first++
			continue
		}
		kind := stagedlog.UnmapRange
		if len(row) == 1 {
			kind = stagedlog.Unmap
		}
		if err := p.stage(ctx, v, kind, row[0], extent.Index(len(row)), row, extent.Location{}); err != nil {
			return err
		}
		for _, i := range row {
			v.heat.Trimmed(i)
		}
	}
	return nil
}
