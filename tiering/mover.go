package tiering

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"sync/atomic"
	"time"

	"tierd/tiering/extent"
	"tierd/tiering/mutant"
	"tierd/tiering/plan"
	"tierd/tiering/registry"
	"tierd/tiering/schedule"
	"tierd/tiering/stagedlog"
)

// A mover carries out one move at a time.
type mover struct {
	r      *relocator
	buf    []byte
	credit int64  // bytes taken from the budget and not written yet
	cycle  int64  // in which they were taken
	day    string // on which they were taken
	verify bool
	copies []copiedPiece // of the move under way, if it verifies

	// Of a mover that empties a backing; see evacuate.go.
	off     *member // what it moves extents off
	reason  plan.Reason
	anyTier bool // whatever tier a volume's policy asks for
	rushes  bool // an operator set its rate: what clients feel does not slow it down
	take    func(ctx context.Context, n int64) error

	// touches are src and dst, for others to look at.
	touches [2]atomic.Pointer[member]

	// Of the move under way.
	v     *Volume
	src   *member
	dst   *member
	entry extent.Entry // what the move starts from
	to    extent.Location
	mv    *registry.Move
	bytes int64         // written to the target
	space int64         // of the background's share of the target, announced and not used yet
	piece time.Duration // what copying one takes
	check time.Duration // what reading one back takes
}

// copiedPiece is what the mover remembers of the copy of a piece.
type copiedPiece struct {
	sum    uint32 // of what was read for it
	unread bool   // it has not been read back
}

var errSource = errors.New("read extent from backing")

func newMover(r *relocator) *mover {
	return &mover{r: r, buf: make([]byte, pieceSize), verify: r.verify, take: r.budget.Take}
}

// hangs reports whether the move under way has to do with a backing that hangs.
func (w *mover) hangs() bool {
	for i := range w.touches {
		if b := w.touches[i].Load(); b != nil && b.health.hanging.Load() {
			return true
		}
	}
	return false
}

func (w *mover) run(ctx context.Context, j job) MoveEvent {
	start := time.Now()
	if c := w.r.cycle.Load(); c != w.cycle {
		w.giveBackCredit() // what a cycle has not used is not carried over
		w.cycle = c
	}
	w.bytes, w.space, w.to, w.mv, w.src, w.dst, w.piece, w.check = 0, 0, extent.Location{}, nil, nil, nil, 0, 0
	clear(w.copies)
	err := w.move(ctx, j)
	for i := range w.touches {
		w.touches[i].Store(nil)
	}
	ev := MoveEvent{Move: j.Move, Outcome: MoveDone, Err: err, Bytes: w.bytes, Took: time.Since(start)}
	if w.src != nil && w.dst != nil {
		ev.from, ev.to = w.src.tier, w.dst.tier
	}
	var why errAbandon
	var spent schedule.ErrBudgetSpent
	switch {
	case err == nil:
	case errors.As(err, &why) && w.bytes == 0:
		ev.Outcome, ev.Why = MoveSkipped, string(why)
	case errors.As(err, &why):
		ev.Outcome, ev.Why = MoveAbandoned, string(why)
	case errors.As(err, &spent):
		ev.Outcome, ev.Why = MoveSkipped, "budget"
	case errors.Is(err, schedule.ErrPaused) && w.bytes == 0:
		ev.Outcome, ev.Why = MoveSkipped, "paused"
	case errors.Is(err, schedule.ErrPaused):
		ev.Outcome, ev.Why = MoveAbandoned, "paused"
	case ctx.Err() != nil:
		ev.Outcome, ev.Why = MoveAbandoned, "stopped"
	case errors.Is(err, errSource):
		ev.Outcome, ev.Why = MoveFailed, "source_error"
	default:
		ev.Outcome, ev.Why = MoveFailed, "error"
	}
	return ev
}

// move relocates one extent:
//
//  1. Look again: the plan may be out of date.
//  2. Pay for the copy, reserve the target and register the move, with all marks.
//  3. Copy marked pieces until none is left; sync the target.
//  4. Be alone in the extent, look once more, copy the last pieces, record, switch.
//  5. Ask for a round, which syncs the target, writes its table entry and commits.
//
// Until the switch the target is the mover's, and goes back to the cleaner if
// anything comes between.
func (w *mover) move(ctx context.Context, j job) error {
	p := w.r.pool
	if err := w.admit(j); err != nil {
		return err
	}
	if err := w.pay(ctx, p.size.Bytes()+lastPieces*w.pieceBytes()); err != nil {
		return err
	}
	if err := w.v.settling.enter(ctx, p.clock); err != nil {
		return err
	}
	l, err := w.reserve(ctx, j)
	if err != nil {
		w.v.settling.leave()
		return err
	}
	w.to, w.dst = l, p.member(l)
	w.touches[1].Store(w.dst)
	if w.hangs() {
		w.v.settling.leave()
		w.dst.slots.Unreserve(l.Slot)
		return errHangs
	}
	if w.mv = p.reg.StartMove(j.Key, pieceSize, func() bool { return w.v.table.Load(j.Key.Index).SamePlace(w.entry) }); w.mv == nil {
		w.v.settling.leave()
		w.dst.slots.Unreserve(l.Slot)
		return errAbandon("changed")
	}
	w.src.moves.Add(1)
	w.dst.moves.Add(1)
	err = w.copyAndSwitch(ctx, j.Key)
	w.src.moves.Add(-1)
	w.dst.moves.Add(-1)
	w.dst.pace.giveBack(w.space)
	p.reg.EndMove(w.mv)
	if err != nil {
		w.v.settling.leave()
		w.giveBack()
		return err
	}
	w.v.heat.Moved(j.Key.Index)
	v, round := w.v, w.v.rounds.start()
	w.r.wg.Go(func() {
		defer v.settling.leave()
		_ = round.wait(context.Background()) // a failed round is the volume's affair, and logged
	})
	return nil
}

// admit looks whether the proposal still makes sense.
func (w *mover) admit(j job) error {
	p := w.r.pool
	w.v = p.volumeByID(j.Key.Volume)
	if w.v == nil || w.v.gone.Load() {
		return errAbandon("volume_gone")
	}
	w.entry = w.v.table.Load(j.Key.Index)
	if !w.entry.Mapped() {
		return errAbandon("unmapped")
	}
	w.src = p.member(w.entry.Location())
	w.touches[0].Store(w.src)
	if w.off != nil && w.src != w.off || w.off == nil && w.src.tier != j.from || j.Reason == plan.ReasonBalance && w.src.id != j.FromBacking {
		return errAbandon("changed")
	}
	if j.Reason == plan.ReasonCache { // no plan looks at these again, however long they wait
		if to, err := w.v.fastestTier(); err != nil || to != j.to {
			return errAbandon("changed")
		}
	}
	if w.v.failed.Load() != nil {
		return errAbandon("volume_failed")
	}
	if w.src.err() != nil {
		return errAbandon("backing_failed")
	}
	if w.hangs() {
		return errHangs
	}
	return nil
}

// reserve takes a clean slot of the target, waiting for one that an earlier move
// is about to free.
func (w *mover) reserve(ctx context.Context, j job) (extent.Location, error) {
	p := w.r.pool
	deadline := p.clock.After(roomWait)
	for {
		freed := p.freed.wait()
		targets, full := w.targets(j)
		l, err := w.tryReserve(targets, j)
		if err != nil || !l.IsZero() {
			return l, err
		}
		coming := false
		for _, t := range targets {
			coming = t.slotsComing(w.off) || coming
		}
		if !coming {
			return extent.Location{}, full
		}
		select {
		case <-freed:
		case <-deadline:
			return extent.Location{}, full
		case <-ctx.Done():
			return extent.Location{}, ctx.Err()
		}
	}
}

// tryReserve takes a clean slot of the first tier that has one; the location is zero
// if there is none. What is reserved for volumes is kept from extents whose old slots
// are of no use to anybody.
func (w *mover) tryReserve(targets []*tier, j job) (extent.Location, error) {
	p := w.r.pool
	if w.off != nil && w.off.draining.Load() {
		if !p.admitMove() {
			p.vacating() // what waits for a commit may be enough
			return extent.Location{}, errAbandon("reserved")
		}
		defer p.settled(nil, true)
	}
	for _, t := range targets {
		// Promotions leave room for new extents. One half of a swap takes the place
		// that the other leaves, or a slot to turn round in: a full tier is not frozen.
		if t.rank() < w.src.tier.rank() && !j.Swap && !t.aboveHeadroom(p.monitor.headroom()) {
			continue
		}
		if l, ok := w.reserveSlot(t, j); ok {
			return l, nil
		}
	}
	return extent.Location{}, nil
}

// reserveSlot takes a clean slot of a tier: on the backing that the plan chose, if it has
// one, and on no other if it is all about that backing.
func (w *mover) reserveSlot(t *tier, j job) (extent.Location, bool) {
	if j.ToBacking != 0 {
		b := w.r.pool.member(extent.Location{Backing: j.ToBacking})
		if b != nil && b.tier == t && b.takesExtents() {
			if s, ok := b.reserve(); ok {
				return extent.Location{Backing: b.id, Slot: s}, true
			}
		}
		if j.Reason == plan.ReasonBalance {
			return extent.Location{}, false
		}
	}
	return reserveIn(t, false, w.off)
}

// targets returns the tiers that the extent may move to, best first, and what to
// say if none of them has room.
func (w *mover) targets(j job) ([]*tier, errAbandon) {
	if w.off != nil {
		return w.refuges()
	}
	return []*tier{j.to}, "target_full"
}

// aboveHeadroom reports whether t has more slots without an owner than the share
// that promotions leave free.
func (t *tier) aboveHeadroom(share float64) bool {
	var total, free int64
	for _, b := range t.members() {
		if b.takesExtents() {
			c := b.slots.Counts()
			total += c.Total
			free += c.Clean + c.Cleaning + c.Free
		}
	}
	return float64(free) > share*float64(total)
}

// slotsComing reports whether slots of t are about to become clean, those of the
// backing not left out, and sees to it that those that wait for a commit get one.
func (t *tier) slotsComing(not *member) bool {
	coming := false
	for _, b := range t.members() {
		if b == not || !b.takesExtents() {
			continue
		}
		c := b.slots.Counts()
		if c.Vacated > 0 && b.pool.db.Err() == nil {
			coming = true
			b.pool.startRounds()
		}
		if c.Cleaning+c.Free > 0 {
			coming = true
			b.wakeCleaner()
		}
	}
	return coming
}

// pay takes n bytes from the budget, of which what is left of earlier payments is
// used first.
func (w *mover) pay(ctx context.Context, n int64) error {
	if n -= w.credit; n <= 0 {
		return nil
	}
	if err := w.take(ctx, n); err != nil {
		return err
	}
	w.credit += n
	w.day = w.r.budget.Today()
	return nil
}

// giveBackCredit returns to the budget what was taken and is not going to be written.
func (w *mover) giveBackCredit() {
	if w.off == nil && w.credit > 0 {
		w.r.budget.Return(w.credit, w.day)
	}
	w.credit = 0
}

func (w *mover) copyAndSwitch(ctx context.Context, k extent.Key) error {
	if err := w.copyMarked(ctx, maxPasses); err != nil {
		return err
	}
	if err := w.dst.sync(ctx); err != nil {
		return err
	}
	if err := w.readCopies(ctx); err != nil {
		return err
	}
	reg := w.r.pool.reg
	for try := 0; ; try++ {
		// What may have to be copied in the exclusion is paid for before it: nobody
		// waits for the budget or for a sync in there.
		if err := w.pay(ctx, lastPieces*w.pieceBytes()); err != nil {
			return err
		}
		if err := w.announce(ctx, lastPieces*w.pieceBytes()); err != nil {
			return err
		}
		var t registry.Ticket
		switch {
		case reg.TryExclusive(&t, k):
		case try < exclusiveTries:
			if err := w.backOff(ctx, try); err != nil {
				return err
			}
			continue
		default:
			size := w.r.pool.size
			reg.Enter(&t, registry.Exclusive, k.Volume, size.Start(k.Index), size.Bytes(), w.v.table)
			// Whoever gets in line behind waits for those before, too: not for long.
			waiting, cancel := context.WithTimeout(ctx, maxHold)
			err := t.Wait(waiting)
			cancel()
			if err != nil {
				reg.Leave(&t, 0, 0)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if try >= exclusiveTries+maxPasses {
					return errAbandon("too_busy")
				}
				if err := w.copyAgain(ctx); err != nil {
					return err
				}
				continue
			}
		}
		start := time.Now()
		switched, err := w.trySwitch(ctx, k)
		reg.Leave(&t, 0, 0)
		w.r.held.Observe(time.Since(start))
		if errors.Is(err, stagedlog.ErrFull) {
			err = w.r.pool.makeLogRoom(ctx, func() error { return nil })
		}
		if switched || err != nil {
			return err
		}
		if try >= exclusiveTries+maxPasses {
			return errAbandon("too_busy")
		}
		if err := w.copyAgain(ctx); err != nil {
			return err
		}
	}
}

// copyAgain copies what was written to since it was copied.
func (w *mover) copyAgain(ctx context.Context) error {
	if err := w.copyMarked(ctx, 1); err != nil {
		return err
	}
	return w.readCopies(ctx)
}

// backOff lets writers finish and copies what they leave behind.
func (w *mover) backOff(ctx context.Context, try int) error {
	select {
	case <-w.r.pool.clock.After(time.Millisecond << min(try, 5)):
	case <-ctx.Done():
		return ctx.Err()
	}
	return w.copyAgain(ctx)
}

// trySwitch is what happens in the exclusion: no write is in flight. It returns
// false if too much is left to be copied while writers wait.
func (w *mover) trySwitch(ctx context.Context, k extent.Key) (bool, error) {
	if !mutant.On(mutant.NoSwitchRecheck) {
		if w.mv.Cancelled() || w.v.gone.Load() {
			return false, errAbandon("cancelled")
		}
		if !w.v.table.Load(k.Index).SamePlace(w.entry) {
			return false, errAbandon("changed")
		}
	}
	if w.mv.Marked() > w.lastPieces() {
		return false, nil
	}
	for from, n := 0, int64(1); ; n++ {
		piece, ok := w.mv.Take(from)
		if !ok {
			break
		}
		if n > w.r.most.Load() {
			w.r.most.Store(n)
		}
		if err := w.copyPiece(ctx, piece); err != nil {
			return false, err
		}
		from = piece + 1
	}
	if err := w.readCopies(ctx); err != nil {
		return false, err
	}
	if w.src.err() != nil {
		// What the copy was read from is in doubt, and the volume's flushes have to go
		// on failing after a restart, too: the extent stays where it says so.
		return false, errAbandon("backing_failed")
	}
	w.v.markDirty(w.dst.id)
	// If the log is full, room is made outside of the exclusion.
	if err := w.r.pool.tryStage(w.v, stagedlog.Move, k.Index, 1, []extent.Index{k.Index}, w.to); err != nil {
		return false, err
	}
	return true, nil
}

// copyMarked goes through the extent, at most passes times, until no piece is
// marked. It is an error if the move was cancelled.
func (w *mover) copyMarked(ctx context.Context, passes int) error {
	for pass := 0; pass < passes; pass++ {
		copied := 0
		for from := 0; ; copied++ {
			piece, ok := w.mv.Take(from)
			if !ok {
				break
			}
			if err := w.pay(ctx, w.pieceBytes()); err != nil {
				return err
			}
			if err := w.announce(ctx, w.pieceBytes()); err != nil {
				return err
			}
			if !w.rushes {
				if err := w.r.throttle.Wait(ctx, w.pieceBytes()); err != nil {
					return err
				}
			}
			if err := w.copyPiece(ctx, piece); err != nil {
				return err
			}
			from = piece + 1
		}
		if w.mv.Cancelled() && !mutant.On(mutant.NoSwitchRecheck) {
			return errAbandon("cancelled")
		}
		if copied == 0 {
			return nil
		}
	}
	return nil
}

func (w *mover) pieceBytes() int64 { return min(pieceSize, w.r.pool.size.Bytes()) }

// lastPieces is how many pieces may be copied while writers are held back: fewer
// than two where copying one takes long.
func (w *mover) lastPieces() int {
	if w.piece <= 0 {
		return lastPieces
	}
	return int(min(maxHold/(w.piece+w.check), lastPieces))
}

// copyPiece copies one piece of the extent to the target. It is paid for and
// announced.
func (w *mover) copyPiece(ctx context.Context, piece int) error {
	n := w.pieceBytes()
	start := time.Now()
	off := int64(piece) * n
	buf := w.buf[:n]
	if err := w.src.store.ReadAt(ctx, buf, w.src.offset(w.entry.Location().Slot)+off); err != nil {
		return fmt.Errorf("%w %s: %w", errSource, w.src.path, w.src.ioError("read", err))
	}
	at := w.dst.offset(w.to.Slot) + off
	w.credit -= n
	w.bytes += n
	err := w.dst.store.WriteAt(ctx, buf, at)
	w.space -= n
	w.dst.pace.wroteBackground(at, n, time.Now())
	if err != nil {
		return fmt.Errorf("write extent to backing %s: %w", w.dst.path, w.dst.ioError("write", err))
	}
	w.piece = max(time.Since(start), w.piece/2)
	if w.verify {
		w.note(piece, crc32.Checksum(buf, castagnoli))
	}
	return nil
}

// announce takes n bytes of the background's share of the target, waiting for a
// sync of it if need be. Nothing is held while it waits, so that movers cannot
// wait for each other.
func (w *mover) announce(ctx context.Context, n int64) error {
	if w.space >= n {
		return nil
	}
	w.dst.pace.giveBack(w.space)
	w.space = 0
	if err := w.dst.pace.background(ctx, n); err != nil {
		return err
	}
	w.space = n
	return nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// note keeps the checksum of a piece as it was copied.
func (w *mover) note(piece int, sum uint32) {
	if w.copies == nil {
		w.copies = make([]copiedPiece, w.r.pool.size.Bytes()/w.pieceBytes())
	}
	w.copies[piece] = copiedPiece{sum, true}
}

// readCopies reads back what was copied since it was called last, and compares it
// with the checksums of what was read for it. A piece that is written to meanwhile
// is copied again and read back again: also the last ones, in the exclusion.
func (w *mover) readCopies(ctx context.Context) error {
	n := w.pieceBytes()
	for piece := range w.copies {
		c := &w.copies[piece]
		if !c.unread {
			continue
		}
		start := time.Now()
		at := w.dst.offset(w.to.Slot) + int64(piece)*n
		if err := w.dst.store.ReadAt(ctx, w.buf[:n], at); err != nil {
			return fmt.Errorf("read copy back from backing %s: %w", w.dst.path, w.dst.ioError("read", err))
		}
		if got := crc32.Checksum(w.buf[:n], castagnoli); got != c.sum {
			return fmt.Errorf("copy on backing %s at %d differs from what was written", w.dst.path, at)
		}
		c.unread = false
		w.check = max(time.Since(start), w.check/2)
	}
	return nil
}

// giveBack returns the target to the cleaner: it holds part of a copy.
func (w *mover) giveBack() {
	w.dst.slots.Vacate(w.to.Slot)
	w.dst.slots.Free(w.to.Slot)
	w.dst.wakeCleaner()
}
