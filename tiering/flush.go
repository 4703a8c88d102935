package tiering

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/mutant"
	"tierd/tiering/ondisk"
)

// Flush returns once every change answered before the call is durable. It is one
// round of the volume, shared with others who ask at the same time; a round that
// began before the call is not enough. After a round has failed, every later
// Flush of the volume fails: nothing is known about what it covered.
func (v *Volume) Flush(ctx context.Context) error {
	if v.tap.Load() != nil {
		v.note(OpFlush, 0, 0, time.Now())
	}
	return v.flush(ctx)
}

// flush is Flush for the pool's own purposes, which no client asked for.
func (v *Volume) flush(ctx context.Context) error {
	start := time.Now()
	var err error
	if v.pool.opts.ReadOnly {
		return v.pool.unflushed
	}
	if !v.settled() {
		err = v.rounds.do(ctx)
		v.pool.waits.since(waitRound, start)
	} else {
		err = v.flushFailure()
	}
	v.stats.done(OpFlush, 0, time.Since(start), err)
	return err
}

// settled reports whether there is nothing to flush: no dirty backing, nothing
// staged, and no round under way that may have taken those marks. The rounds are
// looked at last: one that began in between has taken the marks and not yet made
// good for them.
func (v *Volume) settled() bool {
	for i := range v.dirty {
		if v.dirty[i].Load() != 0 {
			return false
		}
	}
	n, _ := v.stagedEntries()
	return n == 0 && v.rounds.idle()
}

// startRounds starts a round for each volume that has staged entries.
func (p *Pool) startRounds() []*call {
	var calls []*call
	for _, v := range p.allVolumes() {
		if n, _ := v.stagedEntries(); n > 0 {
			calls = append(calls, v.rounds.start())
		}
	}
	return calls
}

// roundLoop flushes volumes with staged entries now and then, so that what a
// client never flushes does not stay staged for ever.
func (p *Pool) roundLoop() {
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-p.clock.After(p.opts.RoundInterval):
		}
		now := p.clock.Now()
		for _, v := range p.allVolumes() {
			if n, since := v.stagedEntries(); n > 0 && now.Sub(since) >= p.opts.RoundInterval/2 {
				v.rounds.start()
			}
		}
	}
}

// round is one flush of the volume. Rounds of a volume run one at a time.
//
//  1. Cut what is staged, and take the marks of the dirty backings.
//  2. Targets of moves are synced: a table entry must not name a slot whose
//     content is not durable. A slot provisioned is clean, which is durable zeroes.
//  3. Table entries and tombstones are written.
//  4. Every backing that is dirty or got entries is synced.
//  5. The new mappings are committed; the cleaner gets the slots they vacate.
//  6. The entries are no longer staged, and the log is let go.
func (v *Volume) round() error {
	start := time.Now()
	batch := v.pool.staged.cut(v)
	var dirty backingSet
	for i := range v.dirty {
		dirty[i] = v.dirty[i].Swap(0)
	}
	err := v.runRound(batch, dirty)
	v.roundTime.Observe(time.Since(start))
	if mutant.On(mutant.ForgetFailedRound) && err != nil {
		return err
	}
	if err != nil {
		v.fail(err)
		v.pool.freed.broadcast() // who waits for slots of this round looks again
	}
	// If it failed before, the round has done what it could, so that nothing stays
	// staged that need not; but it makes good for nothing.
	return v.flushFailure()
}

// flushFailure returns why every flush fails, or nil.
func (v *Volume) flushFailure() error {
	if e := v.failed.Load(); e != nil {
		return *e
	}
	if e := v.unsynced.Load(); e != nil {
		return *e
	}
	return nil
}

// fail makes every later flush of the volume fail. The first cause stays.
func (v *Volume) fail(cause error) {
	err := fmt.Errorf("flush volume %s: %w", v.Name(), cause)
	if v.failed.CompareAndSwap(nil, &err) {
		v.pool.log.Error("flushes of a volume fail from now on", "volume", v.Name(), "error", err)
	}
}

// backingSet is a set of backings.
type backingSet [(extent.MaxBackingID + 1) / 64]uint64

func (s *backingSet) add(b extent.BackingID)      { s[b/64] |= 1 << (b % 64) }
func (s *backingSet) has(b extent.BackingID) bool { return s[b/64]&(1<<(b%64)) != 0 }

func (s *backingSet) each(fn func(extent.BackingID)) {
	for i, w := range s {
		for b := 0; w != 0; b, w = b+1, w>>1 {
			if w&1 != 0 {
				fn(extent.BackingID(i*64 + b))
			}
		}
	}
}

func (v *Volume) runRound(batch []stagedRecord, dirty backingSet) error {
	ctx := context.Background() // others may wait for a round: the first asker's leaving does not end it
	p := v.pool
	last := make(map[extent.Index]int, len(batch))
	for i, r := range batch {
		last[r.index] = i
	}

	var targets, failed backingSet
	for i, r := range batch {
		if r.move && last[r.index] == i && !mutant.On(mutant.TableBeforeContent) {
			targets.add(r.entry.Location().Backing)
		}
	}
	errs := []error{p.syncBackings(ctx, targets, &failed)}

	updates := make(map[extent.BackingID][]ondisk.SlotUpdate)
	for i, r := range batch {
		v.tableUpdates(updates, r, last[r.index] == i, &failed)
	}
	for id, u := range updates {
		if err := p.members[id].Load().writeTable(u); err != nil {
			errs = append(errs, err)
			failed.add(id)
			continue
		}
		dirty.add(id)
	}
	if mutant.On(mutant.CommitBeforeSync) {
		if err := v.commitBatch(batch, last, failed); err != nil {
			return err
		}
		return p.syncBackings(ctx, dirty, &failed)
	}
	errs = append(errs, p.syncBackings(ctx, dirty, &failed))
	if len(batch) > 0 {
		errs = append(errs, v.commitBatch(batch, last, failed))
	}
	return errors.Join(errs...)
}

// tableUpdates adds the slot-table entries for one staged record: the owner of
// the slot it took, if that still stands at the end of the batch, and a tombstone
// in the slot that an unmap left. The entry of a slot that a move left is cleared
// by the cleaner, once its successor is durable.
func (v *Volume) tableUpdates(updates map[extent.BackingID][]ondisk.SlotUpdate, r stagedRecord, final bool, failed *backingSet) {
	key := extent.Key{Volume: v.id, Index: r.index}
	add := func(l extent.Location, kind ondisk.Kind) {
		if failed.has(l.Backing) || v.pool.member(l).err() != nil {
			return
		}
		updates[l.Backing] = append(updates[l.Backing], ondisk.SlotUpdate{
			Slot: l.Slot, Entry: ondisk.SlotEntry{Kind: kind, Key: key, Seq: r.seq},
		})
	}
	if !r.entry.Mapped() {
		if !r.from.IsZero() && !mutant.On(mutant.NoTombstone) {
			add(r.from, ondisk.Tombstone)
		}
		return
	}
	if mutant.On(mutant.ClearBeforeSync) && !r.from.IsZero() && !failed.has(r.from.Backing) {
		updates[r.from.Backing] = append(updates[r.from.Backing], ondisk.SlotUpdate{Slot: r.from.Slot})
	}
	if final {
		add(r.entry.Location(), ondisk.Owner)
	}
}

// syncBackings syncs the backings of a set side by side, and adds those that fail
// to failed.
func (p *Pool) syncBackings(ctx context.Context, set backingSet, failed *backingSet) error {
	type result struct {
		b    *member
		call *call
	}
	var running []result
	set.each(func(id extent.BackingID) {
		b := p.members[id].Load()
		running = append(running, result{b, b.syncs.start()})
	})
	var errs []error
	for _, r := range running {
		if err := r.call.wait(ctx); err != nil {
			errs = append(errs, err)
			failed.add(r.b.id)
		}
	}
	return errors.Join(errs...)
}

// commitBatch commits the last mapping of each extent of the batch. A move onto a
// backing that failed is left out: the extent's flushed bytes are still in the
// slot it left. Writes since are not, which is remembered.
func (v *Volume) commitBatch(batch []stagedRecord, last map[extent.Index]int, failed backingSet) error {
	p := v.pool
	req := &commitRequest{done: make(chan struct{})}
	dropped := make(map[extent.Index]bool)
	for i, r := range batch {
		if r.move && last[r.index] == i && failed.has(r.entry.Location().Backing) {
			dropped[r.index] = true
			req.lost = append(req.lost, extentmap.LostWrites{Volume: v.id, Backing: r.entry.Location().Backing})
		}
		// A move whose source failed behind it stands: clients have gone on at the
		// target. What they wrote before may be lost, and the map says nothing of it.
		if r.move && !r.from.IsZero() && p.member(r.from).failure.Load() != nil {
			req.lost = append(req.lost, extentmap.LostWrites{Volume: v.id, Backing: r.from.Backing})
		}
	}
	for i, r := range batch {
		if dropped[r.index] {
			if !r.from.IsZero() {
				// By the map it is the extent's, for the next start to find.
				p.member(r.from).slots.Quarantine(r.from.Slot)
			}
			continue
		}
		if last[r.index] == i {
			req.changes = append(req.changes, extentmap.MapChange{
				Key: extent.Key{Volume: v.id, Index: r.index}, To: r.entry.Location(),
			})
		}
		if !r.from.IsZero() {
			req.vacated = append(req.vacated, vacatedSlot{
				slot: r.from, key: extent.Key{Volume: v.id, Index: r.index}, clear: r.entry.Mapped(),
			})
		}
		req.maxSeq = max(req.maxSeq, r.seq)
	}
	commit, err := p.committer.commit(req)
	if err != nil {
		return err
	}
	for i, r := range batch {
		if last[r.index] == i && !dropped[r.index] {
			v.table.CompareAndSwap(r.index, r.entry, r.entry&^extent.FlagStaged)
		}
	}
	return p.retire(v, commit)
}
