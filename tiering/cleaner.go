package tiering

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"tierd/tiering/extent"
	"tierd/tiering/mutant"
	"tierd/tiering/ondisk"
)

const (
	// aheadBytes is how much clean space the cleaner keeps ready on a backing.
	aheadBytes = 1 << 30
	// aheadSlots is how many clean slots it keeps at least, however large.
	aheadSlots = 64
	// cleanBatch is how many slots share one sync.
	cleanBatch = 64
	// zeroRate bounds the zeroing of slots that is real writing, bytes a second.
	zeroRate = 256 << 20
	// zeroPart is how much of a device is zeroes written at a time, bytes; it must
	// fit into the background's share of what may be unsynced.
	zeroPart = 2 << 20
	// cleanRetry is how long a backing is left alone after it refused zeroing.
	cleanRetry = 5 * time.Second
)

// cleaner turns vacated slots into clean ones.
//
// First stage: table entries that a move superseded are cleared and synced, on
// each backing by itself; a slot is free once every clear of its extent that was
// committed with it or before is durable. Tombstones are synced already, by the
// round that wrote them. The order matters to a rebuild from the tables, which
// goes by the highest sequence of an extent: a slot, and with it a tombstone, may
// be used again only after every older entry of the same extent is durably gone.
// Extents have nothing to do with each other there: so a backing whose syncs hang
// keeps back the slots of the extents that left it, and no others.
//
// Second stage, one goroutine a backing: free slots are zeroed and synced, then
// they are clean and can be given out.
type cleaner struct {
	pool *Pool

	mu       sync.Mutex
	started  bool
	queue    []vacatedSlot                    // before the start
	clearing map[extent.Key]int               // clears that are not durable, by extent
	held     map[extent.Key][]extent.Location // slots that wait for them
}

// A vacatedSlot is one that a commit took from its extent.
type vacatedSlot struct {
	slot  extent.Location
	key   extent.Key
	clear bool // its table entry was superseded by a move
}

// start lets go of what was vacated while the pool was being opened.
func (c *cleaner) start() {
	c.mu.Lock()
	c.started = true
	c.clearing, c.held = make(map[extent.Key]int), make(map[extent.Key][]extent.Location)
	c.unlock(c.queue)
}

// add takes slots whose vacating is committed. Calls come in commit order.
func (c *cleaner) add(slots []vacatedSlot) {
	if len(slots) == 0 {
		return
	}
	c.mu.Lock()
	if !c.started {
		c.queue = append(c.queue, slots...)
		c.mu.Unlock()
		return
	}
	c.unlock(slots)
}

// unlock begins the first stage for slots and releases mu.
func (c *cleaner) unlock(slots []vacatedSlot) {
	clear := make(map[*member]bool)
	for _, v := range slots {
		if b := c.pool.member(v.slot); v.clear && b != nil {
			b.toClear = append(b.toClear, v)
			c.clearing[v.key]++
			clear[b] = true
		}
	}
	var free []extent.Location
	for _, v := range slots {
		if c.clearing[v.key] > 0 {
			c.held[v.key] = append(c.held[v.key], v.slot)
		} else {
			free = append(free, v.slot)
		}
	}
	c.mu.Unlock()
	c.free(free)
	for b := range clear {
		b.clears.start()
	}
}

// free ends the first stage for slots. Those of a backing that has failed are of
// no use any more, and as long as the tables do not match the map, all wait.
func (c *cleaner) free(slots []extent.Location) {
	if len(slots) == 0 {
		return
	}
	for _, l := range slots {
		b := c.pool.member(l)
		switch {
		case b == nil: // it has left the pool
		case mutant.On(mutant.EarlySlotReuse): // free already
		case b.err() != nil:
			b.slots.Quarantine(l.Slot)
		case c.pool.heal.hold(l):
		default:
			b.slots.Free(l.Slot)
			b.wakeCleaner()
		}
	}
	c.pool.freed.broadcast()
}

// clearRun clears the table entries that are waiting for it on b. If b fails on
// the way, nothing can be cleared there any more, and nobody waits for it: slots of
// serving backings would be lost for as long as it has failed. A rebuild may find
// the old entries then. It uses a failed backing only if that is asked for, and warns.
func (b *member) clearRun() error {
	c := &b.pool.cleaner
	c.mu.Lock()
	batch := b.toClear
	b.toClear = nil
	c.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	updates := make([]ondisk.SlotUpdate, len(batch))
	for i, v := range batch {
		updates[i] = ondisk.SlotUpdate{Slot: v.slot.Slot}
	}
	err := b.writeTable(updates)
	if err == nil {
		err = b.sync(context.Background())
	}
	var free []extent.Location
	c.mu.Lock()
	for _, v := range batch {
		if c.clearing[v.key]--; c.clearing[v.key] == 0 {
			free = append(free, c.held[v.key]...)
			delete(c.clearing, v.key)
			delete(c.held, v.key)
		}
	}
	c.mu.Unlock()
	c.free(free)
	return err
}

// settle returns when everything vacated so far is through the first stage.
func (c *cleaner) settle() {
	var calls []*call
	c.pool.eachMember(func(b *member) { calls = append(calls, b.clears.start()) })
	for _, call := range calls {
		_ = call.wait(context.Background()) // a failed backing has been marked as such
	}
}

// ahead returns how many clean slots are kept ready on b.
func (b *member) ahead() int64 {
	return min(max(aheadBytes/b.pool.size.Bytes(), aheadSlots), int64(b.layout.Slots))
}

// aheadLow is when the cleaner is woken to prepare more.
func (b *member) aheadLow() int64 { return b.ahead() / 2 }

// cleanLoop is the second stage for one backing.
func (b *member) cleanLoop() {
	ctx := b.pool.ctx
	select { // what the table says is trusted only after it was compared with the map
	case <-ctx.Done():
		return
	case <-b.opened:
	}
	limit := rate.NewLimiter(zeroRate, zeroRate)
	told := false // that slots cannot be zeroed
	for {
		again := false
		if b.err() == nil {
			for b.slots.Counts().Clean < b.ahead() {
				n, err := b.cleanSome(ctx, limit)
				if err != nil && ctx.Err() == nil {
					if !told && b.err() == nil {
						b.pool.log.Warn("slots cannot be zeroed; trying again until they can", "backing", b.path, "error", err)
					}
					again, told = true, true
				}
				told = told && n == 0
				if n == 0 {
					break
				}
				b.pool.freed.broadcast()
			}
		}
		var retry <-chan time.Time
		if again {
			retry = b.pool.clock.After(cleanRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-b.gone:
			return
		case <-retry:
		case <-b.wake:
		}
	}
}

// cleanSome cleans a batch of free slots and returns how many it did.
func (b *member) cleanSome(ctx context.Context, limit *rate.Limiter) (int, error) {
	var ready []extent.Slot
	zeroed := false
	var failure error
	for len(ready) < cleanBatch && ctx.Err() == nil {
		s, ok := b.slots.TakeFree()
		if !ok {
			break
		}
		written, err := b.zeroSlot(ctx, s, limit)
		if err != nil {
			b.slots.NotCleaned(s)
			failure = err
			break
		}
		zeroed = zeroed || written
		ready = append(ready, s)
	}
	if zeroed && !mutant.On(mutant.CleanBeforeSync) {
		if err := b.sync(context.WithoutCancel(ctx)); err != nil {
			for _, s := range ready {
				b.slots.NotCleaned(s)
			}
			return 0, err
		}
	}
	for _, s := range ready {
		b.slots.Cleaned(s)
		if mutant.On(mutant.ZeroAfterRelease) {
			_ = b.store.Discard(ctx, b.offset(s), b.pool.size.Bytes())
		}
	}
	return len(ready), failure
}

// zeroSlot makes a slot read as zeroes and reports whether that has to be synced.
// A hole that was there at open needs nothing: open has seen to it that what
// reads as a hole is one durably.
func (b *member) zeroSlot(ctx context.Context, s extent.Slot, limit *rate.Limiter) (written bool, err error) {
	if mutant.On(mutant.NoZeroing) || mutant.On(mutant.CleanAfterUnclean) && !b.slots.WasUsed(s) {
		return false, nil
	}
	off, n := b.offset(s), b.pool.size.Bytes()
	if hole, err := b.store.IsHole(ctx, off, n); err == nil && hole {
		return b.slots.WasUsed(s), nil
	}
	if err := limit.WaitN(ctx, int(n)); err != nil {
		return false, err
	}
	if b.forgets() {
		return true, b.zeroError(b.store.Zero(ctx, off, n))
	}
	for ; n > 0; off, n = off+zeroPart, n-zeroPart {
		part := min(n, zeroPart)
		if err := b.pace.background(ctx, part); err != nil {
			return true, err
		}
		err := b.zeroError(b.store.Zero(ctx, off, part))
		b.pace.wroteBackground(off, part, time.Now())
		if err != nil {
			return true, err
		}
	}
	return true, nil
}

// takeHole looks whether the next free slot is a hole and makes it clean then. It
// is what a first write does when the cleaner is behind.
func (b *member) takeHole() bool {
	if mutant.On(mutant.NoZeroing) || b.health.hanging.Load() {
		return false
	}
	s, ok := b.slots.TakeFree()
	if !ok {
		return false
	}
	if b.slots.WasUsed(s) {
		b.slots.NotCleaned(s)
		return false
	}
	hole, err := b.store.IsHole(b.pool.ctx, b.offset(s), b.pool.size.Bytes())
	if err != nil || !hole {
		b.slots.NotCleaned(s)
		return false
	}
	b.slots.Cleaned(s)
	return true
}
