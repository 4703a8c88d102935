package tiering

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"tierd/pkg/metrics"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/heat"
	"tierd/tiering/mutant"
	"tierd/tiering/registry"
	"tierd/tiering/tap"
)

// readTries is how often a read looks at a changing mapping before it registers
// to keep it still.
const readTries = 3

// A Volume is a thin virtual disk of the pool. Its methods are safe for
// concurrent use. Ranges are checked; a Volume has no idea of connections.
type Volume struct {
	pool  *Pool
	id    extent.VolumeID
	uuid  uuid.UUID
	table *extentmap.Table
	heat  *heat.Volume
	tap   atomic.Pointer[tap.Tap] // nil: nobody records its requests
	size  atomic.Int64            // bytes; grows only
	stats ioStats

	extents       tierCounts    // mapped, by tier
	lost          atomic.Int64  // of these, on missing backings
	unmappedReads atomic.Uint64 // pieces of reads that no slot backs
	opens         atomic.Int64  // users that keep it from being deleted
	gone          atomic.Bool   // being deleted: I/O is refused
	readOnly      atomic.Bool
	space         atomic.Pointer[Space]
	pending       int           // slots reserved and not mapped yet; guarded by space.mu
	waiting       atomic.Int64  // writes that wait for room
	noSpace       atomic.Uint64 // writes refused for want of room

	mu     sync.Mutex // guards the settings
	name   string
	policy Policy
	// clients is replaced, never edited.
	clients []string
	record  extentmap.Volume

	// dirty has a bit for each backing with data of this volume that no sync
	// has covered. A bit is set after the data is written and before the write
	// is answered.
	dirty [(extent.MaxBackingID + 1) / 64]atomic.Uint64

	rounds    shared // flush rounds
	roundTime metrics.Histogram
	failed    atomic.Pointer[error] // a round failed: every later one does
	unsynced  atomic.Pointer[error] // why every round fails until a backing is back, or forgotten
	settling  settling              // moves that await a round

	// Guarded by Pool.staged.mu.
	stagedRecs []stagedRecord
	committing []stagedRecord // cut by the round under way

	trims trimJoiner
}

// Name returns the volume's name.
func (v *Volume) Name() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.name
}

// UUID returns the volume's lasting identity.
func (v *Volume) UUID() uuid.UUID { return v.uuid }

// Size returns the volume's size in bytes.
func (v *Volume) Size() int64 { return v.size.Load() }

// Policy returns where the volume's extents are wanted.
func (v *Volume) Policy() Policy {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.policy
}

// Clients returns the names in certificates that may use the volume; none: everybody
// may. The caller must not change the list.
func (v *Volume) Clients() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.clients
}

// ReadOnly reports whether changes are refused.
func (v *Volume) ReadOnly() bool { return v.readOnly.Load() || v.pool.opts.ReadOnly }

// Deleted reports whether the volume was deleted.
func (v *Volume) Deleted() bool { return v.gone.Load() }

// Opened notes a user of the volume, which is not deleted without force before
// as many calls of Released.
func (v *Volume) Opened() { v.opens.Add(1) }

// Released ends what Opened began.
func (v *Volume) Released() { v.opens.Add(-1) }

func sortedVolumes(m map[string]*Volume) []*Volume {
	return slices.SortedFunc(maps.Values(m), func(a, b *Volume) int { return cmp.Compare(a.Name(), b.Name()) })
}

func (v *Volume) check(off, n int64) error {
	if v.gone.Load() {
		return ErrClosed
	}
	if size := v.size.Load(); off < 0 || n < 0 || off > size || n > size-off {
		return ErrOutOfRange
	}
	return nil
}

// TryRead fills p from off if no device has to be waited for, and reports
// whether it did.
func (v *Volume) TryRead(p []byte, off int64) bool {
	if len(p) == 0 || v.check(off, int64(len(p))) != nil {
		return false
	}
	start := time.Now()
	size := v.pool.size
	within := size.Within(off)
	if within+int64(len(p)) > size.Bytes() {
		return v.tryReadPieces(p, off, start)
	}
	b, ok := v.tryPiece(p, size.Index(off), within)
	if !ok {
		return false
	}
	took := time.Since(start)
	if b != nil {
		t := b.tier
		t.stats.hits.Add(1)
		t.stats.done(OpRead, int64(len(p)), took, nil)
	}
	v.note(OpRead, off, int64(len(p)), start)
	v.readDone(off, int64(len(p)), took)
	return true
}

func (v *Volume) readDone(off, n int64, took time.Duration) {
	v.stats.done(OpRead, n, took, nil)
	v.heat.Access(off, n, false)
}

// tryReadPieces is TryRead over several extents. What earlier pieces brought is
// thrown away if a later one declines.
func (v *Volume) tryReadPieces(p []byte, off int64, start time.Time) bool {
	for pc := range v.pool.size.Split(off, int64(len(p))) {
		pieceStart := time.Now()
		b, ok := v.tryPiece(p[pc.Done:pc.Done+pc.Len], pc.Index, pc.Within)
		if !ok {
			return false
		}
		if b != nil {
			t := b.tier
			t.stats.hits.Add(1)
			t.stats.done(OpRead, pc.Len, time.Since(pieceStart), nil)
		}
	}
	v.note(OpRead, off, int64(len(p)), start)
	v.readDone(off, int64(len(p)), time.Since(start))
	return true
}

// tryPiece reads within one extent without waiting. The backing is nil if the
// extent is unmapped.
func (v *Volume) tryPiece(p []byte, i extent.Index, within int64) (*member, bool) {
	e := v.table.Load(i)
	if !e.Mapped() {
		clear(p)
		v.unmappedReads.Add(1)
		return nil, !v.gone.Load() // deleted meanwhile, it may just have lost the extent
	}
	l := e.Location()
	b := v.pool.member(l)
	if !b.store.TryReadAt(p, b.offset(l.Slot)+within) {
		return nil, false
	}
	return b, mutant.On(mutant.NoReadValidation) || v.table.Load(i).SamePlace(e)
}

// ReadAt fills p from off.
func (v *Volume) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := v.check(off, int64(len(p))); err != nil {
		return err
	}
	start := time.Now()
	v.note(OpRead, off, int64(len(p)), start)
	for pc := range v.pool.size.Split(off, int64(len(p))) {
		if err := v.readPiece(ctx, p[pc.Done:pc.Done+pc.Len], pc.Index, pc.Within); err != nil {
			v.stats.done(OpRead, 0, time.Since(start), err)
			return err
		}
	}
	v.readDone(off, int64(len(p)), time.Since(start))
	return nil
}

// readPiece reads within one extent. It takes no lock: it looks at the entry
// before and after, and what was read from a slot that changed hands meanwhile
// is thrown away. An extent that keeps changing is held still at last.
func (v *Volume) readPiece(ctx context.Context, p []byte, i extent.Index, within int64) error {
	for range readTries {
		if done, err := v.readOnce(ctx, p, i, within); done {
			return err
		}
	}
	var t registry.Ticket
	off := v.pool.size.Start(i) + within
	v.pool.reg.Enter(&t, registry.Shared, v.id, off, int64(len(p)), v.table)
	defer v.pool.reg.Leave(&t, 0, 0)
	if err := t.Wait(ctx); err != nil {
		return err
	}
	_, err := v.readOnce(ctx, p, i, within)
	return err
}

// readOnce reads under the mapping of the moment; done is false if that changed
// under the read, whose outcome, good or bad, then means nothing.
func (v *Volume) readOnce(ctx context.Context, p []byte, i extent.Index, within int64) (done bool, err error) {
	e := v.table.Load(i)
	if !e.Mapped() {
		clear(p)
		v.unmappedReads.Add(1)
		if v.gone.Load() {
			return true, ErrClosed // it may just have lost the extent
		}
		return true, nil
	}
	l := e.Location()
	b := v.pool.member(l)
	start := time.Now()
	err = b.store.ReadAt(ctx, p, b.offset(l.Slot)+within)
	if !v.table.Load(i).SamePlace(e) && !mutant.On(mutant.NoReadValidation) {
		return false, nil
	}
	err = b.ioError("read", err)
	took := time.Since(start)
	t := b.tier
	t.stats.misses.Add(1)
	t.stats.done(OpRead, int64(len(p)), took, err)
	b.stats.done(OpRead, int64(len(p)), took, err)
	return true, err
}

// WriteAt writes p at off; with fua it is durable when nil is returned.
func (v *Volume) WriteAt(ctx context.Context, p []byte, off int64, fua bool) error {
	return v.BeginWrite(off, int64(len(p))).Run(ctx, p, fua)
}

// Trim gives back the space of the whole extents in a range. The rest of the
// range may read as before, or as zeroes.
func (v *Volume) Trim(ctx context.Context, off, n int64, fua bool) error {
	return v.BeginTrim(off, n).Run(ctx, nil, fua)
}

// WriteZeroes makes a range read as zeroes. Whole extents give back their space
// unless noHole asks to keep it, or to reserve it.
func (v *Volume) WriteZeroes(ctx context.Context, off, n int64, noHole, fua bool) error {
	return v.BeginWriteZeroes(off, n, noHole, false).Run(ctx, nil, fua)
}

// setEntry publishes e as the entry of extent i and keeps the counts by tier. The
// caller is alone in the extent.
func (v *Volume) setEntry(i extent.Index, e extent.Entry) (old extent.Entry) {
	old = v.table.Load(i)
	v.table.Store(i, e)
	if old.Mapped() {
		v.count(old.Location(), -1)
	}
	if e.Mapped() {
		v.count(e.Location(), 1)
	}
	return old
}

// count adds n to the extents that v has where l is.
func (v *Volume) count(l extent.Location, n int64) {
	b := v.pool.member(l)
	v.extents.of(b.tier).Add(n)
	if b.missing {
		v.lost.Add(n)
	}
}

// markDirty notes that data of v on b is not covered by a sync.
func (v *Volume) markDirty(b extent.BackingID) {
	if w, bit := &v.dirty[b/64], uint64(1)<<(b%64); w.Load()&bit == 0 {
		w.Or(bit)
	}
}
