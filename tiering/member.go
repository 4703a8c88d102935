package tiering

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"tierd/pkg/backing"
	"tierd/pkg/metrics"
	"tierd/tiering/alloc"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/mutant"
	"tierd/tiering/ondisk"
)

// A member is a backing of the open pool: its store and what the pool keeps on
// and about it.
type member struct {
	pool  *Pool
	id    extent.BackingID
	uuid  uuid.UUID
	tier  *tier
	path  string
	size  int64
	media backing.Media
	store backing.Store
	calls *backing.Watched // is store: how long calls take to return
	meter *backing.Meter   // is below it: how fast the device answers
	cost  cost
	moves atomic.Int32 // that copy from it or to it now
	// missing: it was not there at open; the store answers with ErrBackingMissing.
	missing   bool
	forgotten atomic.Bool // missing, and given up for good
	layout    ondisk.Layout
	table     *ondisk.SlotTable
	stamps    *ondisk.Stamps
	slots     *alloc.Slots
	stats     ioStats

	// failure is set once, when the backing failed; nil while it serves. When it is
	// durable, recorded is closed.
	failure  atomic.Pointer[string]
	recorded chan struct{}
	draining atomic.Bool // takes no new extents; see drain.go
	drain    drainer
	health   health
	fleeing  atomic.Bool // a goroutine moves its extents away; see flee.go

	// What is written and not synced yet: for bounding the time a sync takes. See
	// pace.go.
	pace pace

	syncs    shared       // fdatasync, shared by all who need one
	early    shared       // write-back ahead of a sync
	clears   shared       // clearing of superseded table entries, with a sync
	deleted  func() bool  // whether its file has no name any more; nil: it is no file
	forgets  func() bool  // whether zeroing it is forgetting blocks, not writing zeroes
	stamped  ondisk.Stamp // the last one; touched by the sync run alone
	owners   uint64       // mapped extents; set before the stamp of the clean stop
	syncTime metrics.Histogram

	superMu      sync.Mutex    // one superblock is written at a time
	superblocks  shared        // copies of the members' records; see copies.go
	volumeTables shared        // copies of the volumes' records
	tabled       atomic.Uint64 // generation of the newest volume table that is durable here

	opened     chan struct{} // closed when its free slots may be cleaned; see heal.go
	badEntries atomic.Bool   // slots are set aside because their entries are damaged or unreadable

	tables     shared // writing what is in tableQueue
	tableMu    sync.Mutex
	tableQueue []ondisk.SlotUpdate

	wake    chan struct{} // the cleaner has work here
	toClear []vacatedSlot // guarded by cleaner.mu

	// removed is set, and gone closed, when the backing is no longer of the pool.
	// Those who hold an old location find it in Pool.members all the same: a read
	// gets an error and is thrown away, and there is nothing to sync.
	removed atomic.Bool
	gone    chan struct{}
}

func newMember(p *Pool, m extentmap.Member, spec BackingSpec, st backing.Store, l ondisk.Layout) *member {
	b := &member{
		pool: p, id: m.ID, uuid: m.UUID, tier: p.tierAt(m.Tier), path: spec.Path, size: l.Size, media: spec.Media, layout: l,
		slots: alloc.New(l.Slots),
		wake:  make(chan struct{}, 1), recorded: make(chan struct{}), gone: make(chan struct{}), opened: make(chan struct{}),
	}
	b.meter = backing.NewMeter(st, nil)
	b.calls = backing.NewWatched(b.meter, b.noteError)
	b.store = b.calls
	b.pace.init(b.media)
	paced := pacedStore{b.store, &b.pace}
	b.table = ondisk.NewSlotTable(paced, p.id, m.UUID, m.ID, l)
	b.stamps = ondisk.NewStamps(paced, p.id, m.UUID, l)
	b.pace.startSync = func() { b.syncs.start() }
	var info backing.Info
	if i, ok := st.(interface{ Info() backing.Info }); ok {
		info = i.Info()
	}
	b.forgets = func() bool { return !info.IsDevice }
	if z, ok := st.(interface{ ZeroWrites() bool }); ok {
		b.forgets = func() bool { return !z.ZeroWrites() }
	}
	if f, ok := st.(interface{ Deleted() bool }); ok && !info.IsDevice {
		b.deleted = f.Deleted
	}
	if !info.Direct {
		b.pace.startWriteback = func() { b.early.start() }
	}
	b.syncs.run, b.superblocks.run, b.volumeTables.run = b.syncRun, b.copySuperblock, b.copyVolumes
	b.tables.run, b.clears.run = b.tableRun, b.clearRun
	b.early.run = func() error { st.StartWriteback(0, l.Size); return nil }
	if m.State == extentmap.MemberFailed {
		text := m.Error
		b.failure.Store(&text)
		close(b.recorded)
	}
	return b
}

// offset returns the byte offset of a slot on the backing.
func (b *member) offset(s extent.Slot) int64 { return b.layout.SlotOffset(s) }

// err returns nil while the backing serves.
func (b *member) err() error {
	if b.missing {
		return fmt.Errorf("backing %s: %w", b.path, ErrBackingMissing)
	}
	if text := b.failure.Load(); text != nil {
		return fmt.Errorf("backing %s: %s: %w", b.path, *text, ErrBackingFailed)
	}
	return nil
}

// takesExtents reports whether the backing may be given more extents.
func (b *member) takesExtents() bool { return b.err() == nil && !b.draining.Load() }

// isOpen reports whether its free slots may be cleaned.
func (b *member) isOpen() bool {
	select {
	case <-b.opened:
		return true
	default:
		return false
	}
}

// sync makes durable what was written to the backing before the call. An error
// has failed the backing for good.
func (b *member) sync(ctx context.Context) error { return b.syncs.do(ctx) }

func (b *member) syncRun() error {
	if b.removed.Load() {
		return nil // what was here has been copied, synced and committed elsewhere
	}
	if err := b.err(); err != nil {
		return err
	}
	ctx := context.Background() // a sync that began is waited for: its error must not be lost
	if stamp := b.stampNow(); stamp != b.stamped && !mutant.On(mutant.NoStamps) {
		if err := b.stamps.Write(ctx, stamp); err != nil {
			b.fail("write stamp", err)
			return b.err()
		}
		b.stamped = stamp
	}
	start := time.Now()
	b.pace.begin(start)
	err := b.store.Sync(ctx)
	end := time.Now()
	b.pace.end(end)
	b.syncTime.Observe(end.Sub(start))
	if err != nil && !mutant.On(mutant.SwallowSyncError) {
		b.fail("sync", err)
		return b.err()
	}
	return nil
}

// stampNow returns what a sync that begins now says that it knows.
func (b *member) stampNow() ondisk.Stamp {
	p := b.pool
	s := ondisk.Stamp{Commit: p.commit.Load(), Incarnation: p.incarnation, VolumeGeneration: b.tabled.Load(), Seq: p.staged.recorded()}
	if p.stopped.Load() {
		s.Clean, s.Counted, s.Owners = true, true, b.owners
	}
	return s
}

// fail marks the backing as failed and returns when that is durable, so that
// nobody is told before. The first cause stays.
func (b *member) fail(op string, cause error) {
	if b.missing {
		return
	}
	text := sayOp(op, cause)
	if !b.failure.CompareAndSwap(nil, &text) {
		<-b.recorded
		return
	}
	b.health.mu.Lock()
	b.health.since = b.pool.clock.Now()
	b.health.mu.Unlock()
	b.pool.log.Error("backing failed", "backing", b.path, "op", op, "error", cause)
	if !b.pool.opts.ReadOnly {
		b.pool.recordFailure(b, text)
	}
	b.pace.stop()
	close(b.recorded)
	b.pool.freed.broadcast() // who waits for slots looks again
}

// drainRuns waits for what runs on behalf of many. Nobody may start more of it.
func (b *member) drainRuns() {
	b.superblocks.drain()
	b.volumeTables.drain()
	b.clears.drain()
	b.tables.drain()
	b.syncs.drain()
	b.early.drain()
}

// writeTable writes slot-table entries; the caller syncs. Rounds of many volumes
// write neighbouring entries at the same time, so they share the calls: else each
// would wait for its turn to read and write the same blocks.
func (b *member) writeTable(updates []ondisk.SlotUpdate) error {
	b.tableMu.Lock()
	b.tableQueue = append(b.tableQueue, updates...)
	b.tableMu.Unlock()
	return b.tables.do(context.Background()) // its error must not be lost
}

// tableRun is a run of b.tables.
func (b *member) tableRun() error {
	b.tableMu.Lock()
	updates := b.tableQueue
	b.tableQueue = nil
	b.tableMu.Unlock()
	// Those whose updates an earlier run took get its error here.
	if err := b.err(); err != nil {
		return err
	}
	// A stop half-way would look like a failure of the backing.
	if err := b.table.Write(context.Background(), updates); err != nil {
		b.fail("write slot table", err)
		return b.err()
	}
	return nil
}

// A pacedStore is a Store whose writes count as unsynced.
type pacedStore struct {
	backing.Store
	pace *pace
}

func (s pacedStore) WriteAt(ctx context.Context, p []byte, off int64) error {
	err := s.Store.WriteAt(ctx, p, off)
	s.pace.wrote(off, int64(len(p)), time.Now())
	return err
}

func (b *member) wakeCleaner() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}
