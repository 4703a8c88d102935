package tiering

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/heat"
	"tierd/tiering/mutant"
	"tierd/tiering/ondisk"
	"tierd/tiering/registry"
	"tierd/tiering/stagedlog"
)

// bootID returns the kernel's name for the running boot.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Open opens a pool for use. The order of its steps is what makes a second crash
// during recovery harmless:
//
//  1. The metadata is opened, which locks it, and the members are found and
//     checked against it. Nothing has been written.
//     After an unclean stop the staged log is read: it is of use if it is of the
//     same boot, incarnation and backings.
//  2. The incarnation is raised in the metadata, which also takes back the
//     clean-stop mark.
//  3. After an unclean stop, every backing is synced: data that was answered and
//     sits in the page cache belongs to nobody's dirty marks any more.
//  4. The superblocks get the new incarnation.
//  5. The maps are read, and the log is replayed on top of them. What it adds is
//     committed, and only then does the log start anew.
//  6. The backings get the volume table, and superblocks that know which of them
//     have this incarnation.
//  7. Background work starts; the slot tables are compared with the map.
//
// It waits for a backing that does not answer as long as that takes, and says so in
// the log: to go on without one is the operator's decision, and what was answered and
// is in the page cache may get there yet.
func Open(ctx context.Context, o Options) (*Pool, error) {
	o.setDefaults()
	if o.BootID == "" {
		id, err := bootID()
		if err != nil {
			return nil, err
		}
		o.BootID = id
	}
	op := &opening{o: o, found: make(map[extent.BackingID]*candidate)}
	defer op.tellSlowSteps()()
	if err := checkMetadataServed(o.Metadata); err != nil {
		return nil, err
	}
	op.at("open metadata %s", o.Metadata)
	db, err := extentmap.Open(o.Metadata, extentmap.Options{ReadOnly: o.ReadOnly, Fault: o.Fault})
	if errors.Is(err, extentmap.ErrNotExist) {
		return nil, refuse("there is no pool at %s; tierctl pool create makes a new one, tierctl pool rebuild finds a lost one on its backings", o.Metadata)
	}
	if err != nil {
		return nil, advise(lockedBy(o.Metadata, err))
	}
	op.db = db
	p, err := op.run(ctx)
	if err != nil {
		op.abort()
		return nil, err
	}
	return p, nil
}

// opening is one run of Open.
type opening struct {
	o     Options
	db    *extentmap.DB
	state extentmap.State
	pool  *Pool
	found map[extent.BackingID]*candidate
	warn  []string

	missing []extentmap.Member // that nobody has forgotten
	why     map[string]error   // by path: why there is no backing

	told []extentmap.Member // of whose failure superblocks know and the metadata does not

	clean   bool               // the pool was stopped cleanly
	records []stagedlog.Record // else: what the staged log adds
	void    string             // why the log is of no use; "" if it is

	step     atomic.Pointer[openStep]
	lostSync bool // a backing went missing with data that was perhaps not synced
}

// An openStep is something that Open does and that may take long.
type openStep struct {
	what  string
	since time.Time
}

// at notes what Open does now.
func (op *opening) at(format string, args ...any) {
	op.step.Store(&openStep{fmt.Sprintf(format, args...), time.Now()})
}

// openPatience is how long a step may take before the log says so, and openRepeat how
// often it does.
var openPatience, openRepeat = 10 * time.Second, time.Minute

// tellSlowSteps logs what Open waits for, until the returned function is called.
func (op *opening) tellSlowSteps() (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	op.at("start")
	go func() {
		defer close(ended)
		var told *openStep
		var last time.Time
		for {
			select {
			case <-quit:
				return
			case <-time.After(openPatience):
			}
			s := op.step.Load()
			took := time.Since(s.since)
			if took < openPatience || s == told && time.Since(last) < openRepeat {
				continue
			}
			told, last = s, time.Now()
			op.o.Logger.Warn("the start waits", "for", s.what, "since", took.Round(time.Second))
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}

// candidate is an opened backing with what its superblock says.
type candidate struct {
	spec  BackingSpec
	store backing.Store
	sb    *ondisk.Superblock
	stamp ondisk.Stamp
}

// abort closes what was opened.
func (op *opening) abort() {
	if p := op.pool; p != nil {
		p.cancel()
		p.committer.close()
		for _, v := range p.byID {
			v.rounds.drain()
			_ = v.table.Close()
		}
		p.eachMember((*member).drainRuns)
		if p.staged.log != nil {
			_ = p.staged.log.Close()
		}
		p.heat.Close()
	}
	for _, c := range op.found {
		_ = c.store.Close()
	}
	_ = op.db.Close()
}

func (op *opening) run(ctx context.Context) (*Pool, error) {
	op.state = op.db.State()
	pr := op.state.Pool
	if pr.State != extentmap.PoolActive {
		return nil, refuse("the creation of the pool in %s was not finished; run pool create again", op.o.Metadata)
	}
	if err := ondisk.Features(pr.Features).Check(op.o.ReadOnly); err != nil {
		return nil, advise(fmt.Errorf("metadata %s: %w", op.o.Metadata, err))
	}
	if err := op.findMembers(ctx); err != nil {
		return nil, err
	}
	op.clean = pr.CleanStop
	if err := op.build(); err != nil {
		return nil, err
	}
	p := op.pool
	if err := op.readLog(); err != nil {
		return nil, err
	}
	if op.o.ReadOnly {
		return p, op.serveReadOnly()
	}
	if err := op.raiseIncarnation(); err != nil {
		return nil, err
	}
	op.adoptMembers()
	if err := op.loadMaps(); err != nil {
		return nil, err
	}
	p.committer.start(p)
	op.at("recovery and the flushes that belong to it")
	if err := op.recover(); err != nil {
		return nil, err
	}
	p.failUnsynced()
	p.failConcerned()
	if err := op.startLog(); err != nil {
		return nil, err
	}
	op.tellMembers()
	op.sayWarnings()
	p.start(op.clean && !op.returned() && !op.badEntries())
	return p, nil
}

func (op *opening) sayWarnings() {
	op.pool.warnings = op.warn
	for _, w := range op.warn {
		op.pool.log.Warn(w)
	}
}

// returned reports whether a backing is back that the pool was in use without.
func (op *opening) returned() bool {
	for _, m := range op.state.Members {
		if m.Away && op.found[m.ID] != nil {
			return true
		}
	}
	return false
}

// badEntries reports whether a backing has slots that were set aside because their
// entries are damaged.
func (op *opening) badEntries() bool {
	return slices.ContainsFunc(op.state.Members, func(m extentmap.Member) bool { return m.BadEntries && op.found[m.ID] != nil })
}

// build makes the Pool with its tiers and members. Nothing runs yet.
func (op *opening) build() error {
	pr := op.state.Pool
	size, err := extent.NewSize(pr.ExtentSize)
	if err != nil {
		return fmt.Errorf("metadata %s: %w", op.o.Metadata, err)
	}
	o := op.o
	p := &Pool{
		id: pr.ID, size: size, incarnation: nextIncarnation(pr.Incarnation), opts: o, log: o.Logger, clock: o.Clock, started: o.Clock.Now(),
		db: op.db, reg: registry.New(size), heat: heat.New(o.Heat, size, o.Clock.Now()),
		byName: make(map[string]*Volume), byID: make(map[extent.VolumeID]*Volume),
	}
	op.pool = p
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.commit.Store(pr.Commit)
	p.staged.seq = p.incarnation << seqBits
	p.heal.done = make(chan struct{})
	p.cleaner.pool = p
	var tiers []*tier
	for _, t := range op.state.Tiers {
		tiers = append(tiers, newTier(t.Name, backing.Media(t.Media)))
	}
	p.setRanks(tiers)
	for _, m := range op.state.Members {
		c := op.found[m.ID]
		if c == nil {
			if m.State != extentmap.MemberForgotten || m.Emptying {
				p.addMember(newMissingMember(p, m))
			}
			continue
		}
		spec := c.spec
		if spec.Media == "" {
			spec.Media = mediaOf(&op.state, m.Tier)
		}
		b := newMember(p, m, spec, c.store, c.sb.Layout)
		if order := m.Drain; order.On || m.State == extentmap.MemberDraining {
			order.On = true
			b.drain.order, b.drain.lowest = order, order.Extents
			b.shut(true)
		}
		p.addMember(b)
	}
	p.space.low.mark = o.LowWater
	p.reloc = newRelocator(p, o.Relocation)
	p.monitor = newMonitor(p, o.Relocation, heatPath(o.Metadata))
	return nil
}

// addMember makes b known. Nothing runs yet.
func (p *Pool) addMember(b *member) {
	p.members[b.id].Store(b)
	b.tier.add(b)
}

// nextIncarnation returns the number of the open that follows the last one.
func nextIncarnation(last uint64) uint64 {
	if mutant.On(mutant.SameIncarnation) && last > 1 {
		return last
	}
	return last + 1
}

// raiseIncarnation makes this open known before anything else is written.
func (op *opening) raiseIncarnation() error {
	p := op.pool
	_, err := p.commitNow(&extentmap.Changes{Pool: func(r *extentmap.PoolRecord) {
		r.Incarnation, r.CleanStop = p.incarnation, false
	}})
	if err != nil {
		return fmt.Errorf("raise incarnation: %w", err)
	}
	return nil
}

// adoptMembers syncs the backings after an unclean stop and gives them the new
// incarnation. A backing on which that fails has failed.
func (op *opening) adoptMembers() {
	ctx := context.Background() // a stop half-way would look like a failure of a backing
	p := op.pool
	away := make(map[extent.BackingID]bool)
	for _, m := range op.state.Members {
		away[m.ID] = m.Away
	}
	for _, m := range op.told {
		p.recordFailure(p.members[m.ID].Load(), m.Error)
	}
	if op.syncsLeftOut() {
		return
	}
	p.eachMember(func(b *member) {
		if b.err() != nil {
			return
		}
		op.at("sync of backing %s and writing of its superblock", b.path)
		if !op.clean || away[b.id] {
			if err := b.store.Sync(ctx); err != nil {
				b.fail("sync at open", err)
				return
			}
		}
		if err := p.writeSuperblock(ctx, b); err != nil {
			b.fail("write superblock", err)
		}
	})
	var changed []extentmap.Member
	for _, m := range p.db.State().Members {
		b := p.members[m.ID].Load()
		if b != nil && b.missing && !m.Away {
			m.StampedStop = stampedStop(op.state.Pool, m)
			m.Away, m.Unsynced = true, !op.clean
			op.lostSync = op.lostSync || m.Unsynced
			changed = append(changed, m)
		}
		if b == nil || b.err() != nil {
			continue
		}
		m.Incarnation, m.Path, m.Instance = p.incarnation, b.path, b.store.Instance()
		changed = append(changed, m)
	}
	if _, err := p.commitNow(&extentmap.Changes{Members: changed}); err != nil {
		p.log.Error("cannot record the members' incarnation", "error", err)
	}
}

// syncsLeftOut reports whether nothing is to sync the backings after an unclean stop,
// which is a bug that tests look for: writing the superblocks would.
func (op *opening) syncsLeftOut() bool { return !op.clean && mutant.On(mutant.CleanDirtySetAtRun) }

// tellMembers brings what the backings know for a rebuild up to date, before
// anything is served. The volume table of a change that was committed may not have
// reached them all. The superblocks that adoptMembers wrote list the others with
// the incarnation before: by those alone, an old copy of a backing could not be
// told from one that was written to last.
func (op *opening) tellMembers() {
	if op.syncsLeftOut() {
		return
	}
	ctx := context.Background() // a stop half-way would look like a failure of a backing
	p := op.pool
	op.at("writing of a volume table")
	p.writeVolumeTables()
	p.eachMember(func(b *member) {
		if b.err() != nil {
			return
		}
		op.at("writing of the superblock of backing %s", b.path)
		if err := p.writeSuperblock(ctx, b); err != nil {
			b.fail("write superblock", err)
		}
	})
}

// checkVolumesOfMap refuses a map of extents whose volume has no record: their slots
// would be taken for free, and zeroed.
func (op *opening) checkVolumesOfMap() error {
	ids, err := op.db.MapVolumes()
	if err != nil {
		return fmt.Errorf("metadata %s: %w", op.o.Metadata, err)
	}
	for _, id := range ids {
		if !slices.ContainsFunc(op.state.Volumes, func(v extentmap.Volume) bool { return v.ID == id }) {
			return refuse("metadata %s: the map has extents of volume %d, which does not exist; run pool check", op.o.Metadata, id)
		}
	}
	return nil
}

// loadMaps reads the maps of all volumes and claims their slots.
func (op *opening) loadMaps() error {
	p := op.pool
	if err := op.checkVolumesOfMap(); err != nil {
		return err
	}
	for _, r := range op.state.Volumes {
		op.at("reading of the map of volume %s", r.Name)
		v, err := p.newVolume(r)
		if err != nil {
			return err
		}
		p.publish(v)
		err = p.db.LoadMap(r.ID, func(first extent.Index, locs []extent.Location) error {
			for i, l := range locs {
				if l.IsZero() {
					continue
				}
				idx := first + extent.Index(i)
				if idx >= v.table.Len() {
					return fmt.Errorf("extent %d is past the end", idx)
				}
				b := p.member(l)
				if b == nil {
					return fmt.Errorf("extent %d is on backing %d, which is not part of the pool", idx, l.Backing)
				}
				if err := b.slots.Claim(l.Slot); err != nil {
					return fmt.Errorf("extent %d on backing %s: %w", idx, b.path, err)
				}
				v.setEntry(idx, extent.Entry(0).At(l))
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read map of volume %s: %w; run pool check", r.Name, err)
		}
	}
	return nil
}

// start starts the background work.
func (p *Pool) start(clean bool) {
	p.lookout = newLookout(p.opts)
	now := p.clock.Now()
	p.monitor.load(now)
	p.monitor.loadBudget()
	if clean || mutant.On(mutant.NoHeal) {
		close(p.heal.done)
		p.eachMember(func(b *member) { close(b.opened) })
	} else {
		var members []*member // not those that are added from now on
		p.eachMember(func(b *member) {
			if !b.missing {
				members = append(members, b)
				p.heal.total.Add(int64(healPasses) * int64(b.layout.Slots))
			}
		})
		p.wg.Go(func() { p.healTables(p.ctx, members) })
	}
	p.cleaner.start()
	p.eachMember(func(b *member) { p.wg.Go(b.cleanLoop) })
	p.eachMember((*member).resumeDrain)
	p.wg.Go(p.roundLoop)
	p.eachMember(func(b *member) {
		if b.forgotten.Load() {
			p.wg.Go(func() {
				if err := p.emptyForgotten(p.ctx, b); err != nil && p.ctx.Err() == nil {
					p.log.Error("cannot finish forgetting a backing", "backing", b.path, "error", err)
				}
			})
		}
	})
	p.wg.Go(p.watchLoop)
	p.wg.Go(p.fleeLoop)
	for range p.reloc.workers {
		p.wg.Go(func() { p.reloc.work(p.ctx) })
	}
	p.wg.Go(func() { p.monitor.loop(p.ctx) })
	p.wg.Go(func() { p.reloc.govern(p.ctx) })
	for _, v := range p.allVolumes() {
		if v.gone.Load() {
			p.wg.Go(func() { p.reclaim(v) })
		}
	}
}
