package tiering

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// removeWait is how long a removal waits for the rounds and the cleaner to let go of
// the slots that a drain has emptied.
const removeWait = 30 * time.Second

// wipePatience is how long a removal waits for the backing to be wiped.
var wipePatience = hangTime

var errWipeHangs = errors.New("erase backing: calls on it do not return")

// Removed tells what RemoveBacking did, or would do.
type Removed struct {
	ID   extent.BackingID
	Path string
	Tier string
	// Wiped says that nothing on the backing says any more that it was of the pool.
	// If that did not succeed, WipeError tells why; it is no member all the same.
	Wiped     bool
	WipeError string
}

// RemoveBacking takes an empty backing out of the pool.
//
//  1. No slot is given out on it any more. If it is not empty it is refused, and
//     takes extents again if it did before.
//  2. Rounds commit, and the cleaner lets go of, what has left it: then neither the
//     map, nor the staged log, nor the cleaner names it. The map on disk is looked
//     through for that: a move away that could not be committed has left it there.
//  3. One commit takes it out of the members; the superblocks of the others follow.
//  4. Its superblocks are wiped, so that it can be used for something else. After a
//     crash before that it is no member, and can be added again.
//  5. It is closed. Optimistic readers may hold an old location on it: what they
//     read is thrown away, and the store is closed only when the calls in flight
//     have returned. Its id is never used again.
func (p *Pool) RemoveBacking(ctx context.Context, ref string, dryRun bool) (Removed, error) {
	b, err := p.emptied(ctx, ref, dryRun)
	if err != nil {
		return Removed{}, err
	}
	r := Removed{ID: b.id, Path: b.path, Tier: b.tier.name}
	if dryRun {
		return r, nil
	}
	closed := make(chan struct{})
	if err := p.takeOut(b, &r, closed); err != nil {
		b.shut(b.drainOrder().On)
		return Removed{}, err
	}
	if r.WipeError == errWipeHangs.Error() {
		return r, nil
	}
	select {
	case <-closed:
	case <-ctx.Done(): // its disk hangs; it is closed when that is over
	}
	return r, nil
}

// emptied is steps 1 and 2. It holds no lock while it waits.
func (p *Pool) emptied(ctx context.Context, ref string, dryRun bool) (*member, error) {
	p.adminMu.Lock()
	b, err := p.findBacking(ref)
	if err == nil {
		err = p.changeable(ctx)
	}
	if err == nil {
		err = p.removable(b)
	}
	if err == nil && !b.drainOrder().On {
		err = p.checkDrain(b)
	}
	if err == nil && !dryRun {
		b.shut(true) // from here on no slot is given out
		if err = p.removable(b); err != nil {
			b.shut(b.drainOrder().On)
		}
	}
	p.adminMu.Unlock()
	if err != nil || dryRun {
		return b, err
	}
	if err := p.awaitVacated(ctx, b); err != nil {
		b.shut(b.drainOrder().On)
		return nil, err
	}
	return b, nil
}

// removable returns an error that says why b cannot be removed now.
func (p *Pool) removable(b *member) error {
	c := b.slots.Counts()
	others := 0
	p.eachMember(func(o *member) {
		if o != b && o.err() == nil {
			others++
		}
	})
	switch {
	case b.removed.Load():
		return fmt.Errorf("backing %s: %w", b.path, ErrNotFound)
	case b.missing:
		return busy("backing %s is missing; backing forget gives it up", b.path)
	case c.Used > 0:
		return busy("backing %s has %d extents; drain it first", b.path, c.Used)
	case b.err() != nil && c.Quarantined+c.Vacated > 0:
		return busy("backing %s has failed and holds %d slots whose content may be the only copy; clear the failure with pool repair, drain it, or detach it and give it up with backing forget", b.path, c.Quarantined+c.Vacated)
	case len(lostBy(p.db.Pool(), b.id)) > 0:
		return busy("backing %s has lost writes of volumes whose flushes fail for it; look at them, then let pool repair --clear-failed forget it", b.path)
	case others == 0:
		return busy("backing %s is the only one that serves", b.path)
	case !p.heal.finished():
		return busy("slot tables are being brought into line with the map; try again when that has finished")
	}
	return nil
}

// awaitVacated waits until what has left b is committed and its table entries are
// cleared.
func (p *Pool) awaitVacated(ctx context.Context, b *member) error {
	deadline := p.clock.After(removeWait)
	for {
		freed := p.freed.wait()
		if c := b.slots.Counts(); c.Vacated == 0 {
			break
		}
		p.startRounds()
		select {
		case <-freed:
		case <-deadline:
			return busy("%d slots of backing %s wait for a commit: volumes whose flushes fail keep them", b.slots.Counts().Vacated, b.path)
		case <-p.ctx.Done():
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return p.unmentioned(b)
}

// unmentioned looks through the map on disk for extents on b.
func (p *Pool) unmentioned(b *member) error {
	for _, v := range p.allVolumes() {
		err := p.db.LoadMap(v.id, func(first extent.Index, locs []extent.Location) error {
			i := slices.IndexFunc(locs, func(l extent.Location) bool { return !l.IsZero() && l.Backing == b.id })
			if i < 0 {
				return nil
			}
			return busy("extent %d of volume %s has left backing %s in a move that could not be committed", first+extent.Index(i), v.Name(), b.path)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// takeOut is steps 3 and 4. It begins step 5, at whose end closed is closed.
func (p *Pool) takeOut(b *member, r *Removed, closed chan<- struct{}) error {
	p.adminMu.Lock()
	defer p.adminMu.Unlock()
	if err := p.changeable(context.Background()); err != nil {
		return err
	}
	// An administrator may have been faster, and cancelled the drain, say.
	if err := p.removable(b); err != nil {
		return err
	}
	if !b.draining.Load() {
		return busy("backing %s takes extents again", b.path)
	}
	// In between it may have taken some again, and given them away.
	if n := b.slots.Counts().Vacated; n > 0 {
		return busy("%d extents of backing %s have only just left it; try again", n, b.path)
	}
	if err := p.unmentioned(b); err != nil {
		return err
	}
	b.stopDrain()
	if err := p.commitTiers(p.ranks(), nil, b); err != nil {
		return fmt.Errorf("remove backing %s: %w", b.path, err)
	}
	b.removed.Store(true)
	b.tier.drop(b)
	close(b.gone)
	p.writeSuperblocks(b, true)
	// Its disk may hang, and administrators wait for adminMu.
	wiped := make(chan error, 1)
	p.wg.Go(func() { wiped <- p.wipe(b) })
	var err error
	select {
	case err = <-wiped:
	case <-time.After(wipePatience):
		err = errWipeHangs
	}
	if err != nil {
		r.WipeError = err.Error()
		p.log.Warn("a removed backing is not wiped: it is no member, and says it is one", "backing", b.path, "error", err)
	} else {
		r.Wiped = true
	}
	p.wg.Go(func() {
		defer close(closed)
		_ = b.syncs.do(context.Background()) // nothing, after the one under way
		if err := b.store.Close(); err != nil {
			p.log.Warn("a removed backing is not closed properly", "backing", b.path, "error", err)
		}
	})
	p.log.Info("backing removed", "backing", b.path, "id", b.id, "tier", b.tier.name)
	return nil
}

// wipe takes away what says that b is of the pool, after whoever was about to write
// its copies of the records.
func (p *Pool) wipe(b *member) error {
	if b.health.hanging.Load() {
		return errWipeHangs
	}
	_ = b.volumeTables.do(context.Background()) // nothing, now that it is removed
	_ = b.superblocks.do(context.Background())
	b.superMu.Lock()
	defer b.superMu.Unlock()
	return ondisk.Erase(context.Background(), b.store, b.layout)
}

// RemoveTier removes a tier without backings. A policy that asks for it has to be
// changed first.
func (p *Pool) RemoveTier(ctx context.Context, name string, dryRun bool) error {
	p.adminMu.Lock()
	defer p.adminMu.Unlock()
	if err := p.changeable(ctx); err != nil {
		return err
	}
	t := p.tierNamed(name)
	if t == nil {
		return fmt.Errorf("tier %q: %w", name, ErrNotFound)
	}
	state := p.db.State()
	switch n := len(t.members()); {
	case n > 0:
		return busy("tier %s still has backings: %d; drain and remove them first", name, n)
	case len(p.ranks()) == 1:
		return busy("tier %s is the only one", name)
	}
	for _, v := range state.Volumes {
		if v.Policy == name {
			return busy("the policy of volume %s asks for tier %s; change it first", v.Name, name)
		}
	}
	for _, m := range state.Members {
		if m.Tier == t.rank() && (m.State != extentmap.MemberForgotten || m.Emptying) {
			return busy("backing %s is of tier %s", m.Path, name)
		}
	}
	if dryRun {
		return nil
	}
	next := slices.DeleteFunc(slices.Clone(p.ranks()), func(o *tier) bool { return o == t })
	if err := p.commitTiers(next, nil, nil); err != nil {
		return fmt.Errorf("remove tier %s: %w", name, err)
	}
	p.writeSuperblocks(nil, true)
	p.log.Info("tier removed", "tier", name)
	return nil
}
