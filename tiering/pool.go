package tiering

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"tierd/pkg/clock"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/heat"
	"tierd/tiering/mutant"
	"tierd/tiering/registry"
)

// MetadataFault is a hook that makes commits of the metadata fail in tests.
type MetadataFault = func(p extentmap.FaultPoint, commit uint64) error

// A Pool is the storage of all tiers under one extent map, open for use.
type Pool struct {
	id          uuid.UUID
	size        extent.Size
	incarnation uint64
	opts        Options
	log         *slog.Logger
	clock       clock.Clock
	started     time.Time
	warnings    []string // what differs from the configuration, found at open

	// Of a pool that is open read-only.
	unflushed  error     // what a flush is answered with; nil after a clean stop
	continuity uuid.UUID // the id that could not be stored; zero: the stored one holds

	db     *extentmap.DB
	commit atomic.Uint64 // number of the last finished commit
	staged stager        // what is visible but not committed
	reg    *registry.Registry
	heat   *heat.Tracker

	// What the pool consists of changes while it serves: lists are replaced, never
	// edited, and a backing that was removed stays in members for those who hold an
	// old location. adminMu serialises whoever changes them.
	tiers   atomic.Pointer[[]*tier] // by rank
	members [extent.MaxBackingID + 1]atomic.Pointer[member]

	// volMu guards the volume tables below; adminMu serialises whoever changes
	// them, since a change is durable before it is visible. Order: adminMu, volMu.
	adminMu sync.Mutex
	volMu   sync.RWMutex
	byName  map[string]*Volume
	byID    map[extent.VolumeID]*Volume

	committer committer
	cleaner   cleaner
	reloc     *relocator
	monitor   *monitor
	heal      healer
	memberMu  sync.Mutex // one edit of the members' records at a time

	space        space // reservations, quotas, low water
	waits        foregroundWaits
	unrecorded   atomic.Uint64 // requests that a recording should have, and has not
	metadataTold atomic.Bool   // that they have failed

	lookout *lookout
	looking atomic.Bool
	unnamed atomic.Pointer[[]string] // warnings of files that were deleted

	freed    signal          // slots became clean
	hangs    signal          // a backing began to hang
	ctx      context.Context // ends when the pool closes
	cancel   context.CancelFunc
	wg       sync.WaitGroup // background goroutines
	closing  atomic.Bool
	stopped  atomic.Bool // the clean stop is committed: stamps say so
	closeErr error
	closed   sync.Once

	mutations sync.Pool
}

// Size returns the extent size.
func (p *Pool) Size() extent.Size { return p.size }

// member returns the backing that holds l.
func (p *Pool) member(l extent.Location) *member { return p.members[l.Backing].Load() }

// eachMember calls fn for every open backing, in order of tiers.
func (p *Pool) eachMember(fn func(*member)) {
	for _, t := range p.ranks() {
		for _, b := range t.members() {
			fn(b)
		}
	}
}

// Volume returns the volume of a name.
func (p *Pool) Volume(name string) (*Volume, error) {
	p.volMu.RLock()
	defer p.volMu.RUnlock()
	v := p.byName[name]
	if v == nil {
		return nil, fmt.Errorf("volume %q: %w", name, ErrNotFound)
	}
	return v, nil
}

// Volumes returns the volumes in order of their names.
func (p *Pool) Volumes() []*Volume {
	p.volMu.RLock()
	defer p.volMu.RUnlock()
	return sortedVolumes(p.byName)
}

// allVolumes returns the volumes, those being deleted included.
func (p *Pool) allVolumes() []*Volume {
	p.volMu.RLock()
	defer p.volMu.RUnlock()
	all := make([]*Volume, 0, len(p.byID))
	for _, v := range p.byID {
		all = append(all, v)
	}
	return all
}

// recordFailure makes the failure of b durable: in the metadata, and in the
// superblocks of the other backings in case the metadata is lost. The answered
// data that was not synced is lost perhaps, so the continuity id changes.
func (p *Pool) recordFailure(b *member, text string) {
	if mutant.On(mutant.ForgetFailure) {
		return
	}
	err := p.editMembers(func(m *extentmap.Member) bool {
		if m.ID != b.id {
			return false // or it is not a member yet: it failed while joining
		}
		m.State, m.Error = extentmap.MemberFailed, text
		return true
	}, renewContinuity())
	if err != nil {
		p.log.Error("cannot record the failure of a backing in the metadata", "backing", b.path, "error", err)
	}
	p.writeSuperblocks(b, err != nil)
}

// renewContinuity is the edit that says that answered data may have been lost.
func renewContinuity() func(*extentmap.PoolRecord) {
	id := uuid.New()
	return func(r *extentmap.PoolRecord) { r.Continuity = id }
}

// editMembers commits the members' records that edit changes, which it reports, and
// with them the pool's, if pool is not nil. Without a change nothing is committed.
func (p *Pool) editMembers(edit func(*extentmap.Member) bool, pool func(*extentmap.PoolRecord)) error {
	p.memberMu.Lock()
	defer p.memberMu.Unlock()
	var changed []extentmap.Member
	for _, m := range p.db.State().Members {
		if edit(&m) {
			changed = append(changed, m)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	_, err := p.commitNow(&extentmap.Changes{Members: changed, Pool: pool})
	return err
}

// commitNow commits changes that no round is concerned with.
func (p *Pool) commitNow(c *extentmap.Changes) (uint64, error) {
	n, err := p.db.Commit(context.Background(), c)
	if err != nil {
		p.noteMetadata()
		return 0, err
	}
	p.noteCommit(n)
	return n, nil
}

// noteCommit raises the number of the last finished commit to n.
func (p *Pool) noteCommit(n uint64) {
	for {
		old := p.commit.Load()
		if n <= old || p.commit.CompareAndSwap(old, n) {
			return
		}
	}
}

// Leave ends what waits for an operator's help, such as writes that wait for room,
// with ErrClosed, and lets no change of the pool begin. Close follows.
func (p *Pool) Leave() {
	p.closing.Store(true)
	p.freed.broadcast()
}

// Close flushes everything, stops the background work and closes the backings.
// The pool is marked as cleanly stopped only if all of that went well; what went
// wrong is returned. Requests must have ended: after Close the maps are gone. It is
// idempotent.
func (p *Pool) Close() error {
	p.closed.Do(func() { p.closeErr = p.close(true) })
	return p.closeErr
}

// Kill closes the backings and stops the background work without flushing, as
// the death of the process would. Tests use it.
func (p *Pool) Kill() {
	p.closed.Do(func() { p.closeErr = p.close(false) })
}

func (p *Pool) close(orderly bool) error {
	p.closing.Store(true)
	var errs []error
	p.cancel()
	p.adminMu.Lock() // a change under way may begin work in the background; none follows
	//lint:ignore SA2001 it is waited for, no more
	p.adminMu.Unlock()
	p.wg.Wait()
	if orderly && !p.opts.ReadOnly {
		errs = append(errs, p.stopClean())
	}
	for _, v := range p.allVolumes() {
		v.rounds.drain()
	}
	p.reloc.wg.Wait()
	p.committer.close()
	p.eachMember((*member).drainRuns)
	if p.staged.log != nil { // not if the pool is read-only
		if err := p.staged.log.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close staged log: %w", err))
		}
	}
	if err := p.db.Close(); err != nil && !errors.Is(err, ErrMetadataFailed) {
		errs = append(errs, fmt.Errorf("close metadata: %w", err))
	}
	p.eachMember(func(b *member) {
		if err := b.store.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close backing %s: %w", b.path, err))
		}
	})
	for _, v := range p.allVolumes() {
		errs = append(errs, v.table.Close())
	}
	p.heat.Close()
	return errors.Join(errs...)
}

// stopClean flushes all volumes and backings and sets the clean-stop mark.
func (p *Pool) stopClean() error {
	ctx := context.Background()
	var errs []error
	for _, v := range p.allVolumes() {
		// What a missing backing may have lost was lost before; the round has done what
		// it could.
		if err := v.flush(ctx); err != nil && !errors.Is(err, ErrBackingMissing) {
			errs = append(errs, fmt.Errorf("flush volume %s: %w", v.Name(), err))
		}
	}
	p.cleaner.settle()
	if err := p.monitor.save(p.clock.Now()); err != nil {
		p.log.Warn("heat is not saved", "error", err)
	}
	failed := false
	p.eachMember(func(b *member) {
		if b.missing {
			return // it is synced and healed when it is back
		}
		if b.err() != nil {
			failed = true
			return
		}
		if err := b.sync(ctx); err != nil {
			errs = append(errs, err)
		}
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if failed || !p.heal.finished() {
		// The next open has to look at everything again.
		p.log.Warn("the stop is not marked as clean", "failed_backing", failed, "slot_tables_in_line", p.heal.finished())
		return nil
	}
	_, err := p.commitNow(&extentmap.Changes{Pool: func(r *extentmap.PoolRecord) { r.CleanStop = true }})
	if err != nil {
		return fmt.Errorf("mark clean stop: %w", err)
	}
	return p.stampStop(ctx)
}

// stampStop tells the backings of the clean stop. A rebuild without the metadata
// knows by it which of them took part to the end, and how much they held. When all
// have it the metadata say so: whatever comes back without it is an old copy.
func (p *Pool) stampStop(ctx context.Context) error {
	for _, v := range p.allVolumes() {
		v.table.Range(func(_ extent.Index, e extent.Entry) bool {
			if e.Mapped() {
				p.member(e.Location()).owners++
			}
			return true
		})
	}
	p.stopped.Store(true)
	var errs []error
	p.eachMember(func(b *member) {
		if b.err() == nil {
			errs = append(errs, b.sync(ctx))
		}
	})
	err := errors.Join(errs...)
	if err == nil {
		_, err := p.commitNow(&extentmap.Changes{Pool: func(r *extentmap.PoolRecord) { r.StampedStop = p.incarnation }})
		if err != nil {
			p.log.Warn("the stop is clean, and the metadata do not say that all backings know of it", "error", err)
		}
		return nil
	}
	_, unmark := p.commitNow(&extentmap.Changes{Pool: func(r *extentmap.PoolRecord) { r.CleanStop = false }})
	return errors.Join(err, unmark)
}
