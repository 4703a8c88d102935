package tiering

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tierd/pkg/clock"
	"tierd/pkg/metrics"
	"tierd/tiering/extent"
	"tierd/tiering/plan"
	"tierd/tiering/schedule"
)

const (
	// pieceSize is the unit of copying: a write waits for at most two pieces.
	pieceSize = 128 << 10
	// lastPieces is how many pieces may be copied while writers are held back.
	lastPieces = 2
	// maxPasses is how often an extent is gone through before it counts as too busy.
	maxPasses = 16
	// maxHold is about how long a mover may keep writers of an extent waiting: with
	// what they wait for anyway it stays below 100 ms.
	maxHold = 50 * time.Millisecond
	// exclusiveTries is how often the mover tries for a free moment before it
	// gets in line like everybody else.
	exclusiveTries = 8
	// maxSettling is how many moves of a volume may await their commit at a time.
	maxSettling = 64
	// settleWait is how long a move waits until there are fewer.
	settleWait = 10 * time.Second
	// maxAsked is how many moves that clients ask for may wait.
	maxAsked = 4096
	// roomWait is how long a move waits for the slot that an earlier one frees.
	roomWait = 15 * time.Second
)

// Outcome is how a move ended.
type Outcome string

// The outcomes of moves.
const (
	MoveDone      Outcome = "done"      // the extent has moved
	MoveSkipped   Outcome = "skipped"   // the proposal was out of date
	MoveAbandoned Outcome = "abandoned" // given up on the way; the extent is where it was
	MoveFailed    Outcome = "failed"    // an I/O error
)

// A MoveEvent tells how a move ended.
type MoveEvent struct {
	Move    plan.Move
	Outcome Outcome
	Why     string        // for all outcomes but done
	Err     error         // likewise
	Bytes   int64         // written to the target, copies of changed pieces included
	Took    time.Duration // from admission to the switch

	from, to *tier // nil if it did not come to that
}

// errAbandon ends a move for a reason that is nobody's fault.
type errAbandon string

func (e errAbandon) Error() string { return string(e) }

const errHangs errAbandon = "backing_hangs"

// settling bounds how many moves of a volume have switched, or are about to, and
// await their commit. That takes a round of the volume, which a backing that hangs
// may hold up for ever: moves of other volumes do not wait for it, and those of
// this one only until it is clear that it takes long.
type settling struct {
	moves chan struct{} // one token each
	slow  atomic.Bool   // somebody waited for too long, and none has ended since
}

func (s *settling) enter(ctx context.Context, c clock.Clock) error {
	select {
	case s.moves <- struct{}{}:
		return nil
	default:
	}
	if s.slow.Load() {
		return errAbandon("settling")
	}
	select {
	case s.moves <- struct{}{}:
		return nil
	case <-c.After(settleWait):
		s.slow.Store(true)
		return errAbandon("settling")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *settling) leave() {
	s.slow.Store(false)
	<-s.moves
}

// relocator carries out moves: a queue, some workers, and the protocol by which
// an extent changes its slot while it is read and written.
type relocator struct {
	pool   *Pool
	budget *schedule.Budget
	// throttle holds copies back for the sake of clients; govern sets its rate.
	throttle  *schedule.Throttle
	throttled atomic.Int64 // the rate: 0 is no limit, schedule.Hold none at all
	workers   int
	verify    bool
	wg        sync.WaitGroup

	mu       sync.Mutex
	queue    []job
	asked    []job // by clients, served when the queue is empty and no plan is being made
	planning bool
	askedFor map[extent.Key]bool
	busy     map[extent.Key]bool
	wake     signal
	idle     signal
	moved    map[moveKey]*moveCount
	skipped  map[string]int64 // by reason
	current  int              // moves under way
	private  int              // of these, those that no plan proposed, of clients too
	finished int64

	cycle atomic.Int64      // number of the budget's cycle
	held  metrics.Histogram // times that writers may have been kept waiting
	most  atomic.Int64      // pieces copied in one exclusion
}

type moveKey struct {
	from, to *tier
	reason   plan.Reason
}

type moveCount struct{ extents, bytes int64 }

func newRelocator(p *Pool, o RelocationOptions) *relocator {
	return &relocator{
		pool: p, budget: schedule.NewBudget(p.clock, o.Calendar, o.Limits), throttle: schedule.NewThrottle(p.clock), workers: o.Workers, verify: o.Verify,
		busy: make(map[extent.Key]bool), askedFor: make(map[extent.Key]bool), moved: make(map[moveKey]*moveCount), skipped: make(map[string]int64),
	}
}

// A job is a move to be carried out. The ranks in the move are those of the time
// when it was proposed: which tiers are meant does not change, their ranks do.
type job struct {
	plan.Move
	from, to *tier // nil for an evacuation
	cycle    int64 // of a move that a client asked for: when it did
}

// beginCycle makes the cycle's budget whole, which is for the moves of the plan that is
// about to be made: until that is offered, none is begun that a client has asked for.
func (r *relocator) beginCycle(now time.Time) {
	r.mu.Lock()
	r.planning = true
	r.mu.Unlock()
	r.cycle.Add(1)
	r.budget.NewCycle(now)
}

// offer replaces the queue by the moves of a new plan, in which tiers had these
// ranks: what an old one proposed and nobody has begun yet is out of date. So is what
// clients asked for before the last cycle: they wanted it soon.
func (r *relocator) offer(moves []plan.Move, tiers []*tier) {
	r.mu.Lock()
	r.planning = false
	r.queue = r.queue[:0]
	for _, m := range moves {
		r.queue = append(r.queue, job{Move: m, from: tiers[m.From], to: tiers[m.To]})
	}
	last := r.cycle.Load() - 1
	r.asked = slices.DeleteFunc(r.asked, func(j job) bool {
		if j.cycle >= last {
			return false
		}
		delete(r.askedFor, j.Key)
		return true
	})
	r.mu.Unlock()
	r.wake.broadcast()
	r.idle.broadcast()
}

// ask adds a move that a client asks for, to be carried out within what the moves of
// the plan leave of the cycle's budget. It returns false if too many wait.
func (r *relocator) ask(j job) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case len(r.asked) >= maxAsked:
		return false
	case r.askedFor[j.Key] || r.busy[j.Key]:
		return true
	}
	r.askedFor[j.Key] = true
	j.cycle = r.cycle.Load()
	r.asked = append(r.asked, j)
	r.wake.broadcast()
	return true
}

// dropAll forgets all moves that have not begun.
func (r *relocator) dropAll() {
	r.mu.Lock()
	r.queue, r.asked = r.queue[:0], r.asked[:0]
	clear(r.askedFor)
	r.mu.Unlock()
	r.idle.broadcast()
}

// nextLocked takes the move to be carried out next.
func (r *relocator) nextLocked() (job, bool) {
	if len(r.queue) > 0 {
		j := r.queue[0]
		r.queue = r.queue[1:]
		return j, true
	}
	if len(r.asked) > 0 && !r.planning {
		j := r.asked[0]
		r.asked = r.asked[1:]
		delete(r.askedFor, j.Key)
		return j, true
	}
	return job{}, false
}

// next returns the next move that is not under way, waiting for one.
func (r *relocator) next(ctx context.Context) (job, bool) {
	for {
		woken := r.wake.wait()
		r.mu.Lock()
		for {
			j, ok := r.nextLocked()
			if !ok {
				break
			}
			if !r.busy[j.Key] {
				r.busy[j.Key] = true
				r.current++
				if j.Reason == plan.ReasonCache {
					r.private++
				}
				r.mu.Unlock()
				return j, true
			}
		}
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			return job{}, false
		case <-woken:
		}
	}
}

// claim marks an extent as being moved, outside of any plan, unless it is.
func (r *relocator) claim(k extent.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[k] {
		return false
	}
	r.busy[k] = true
	r.current++
	r.private++
	return true
}

func (r *relocator) work(ctx context.Context) {
	w := r.planMover()
	for {
		j, ok := r.next(ctx)
		if !ok {
			return
		}
		cycle := r.cycle.Load()
		ev, left := r.run(ctx, w, j, j.Reason == plan.ReasonCache)
		if left {
			w = r.planMover()
		}
		var spent schedule.ErrBudgetSpent
		if errors.As(ev.Err, &spent) && r.cycle.Load() == cycle {
			r.dropAll() // nothing of this cycle can be paid for any more
		}
	}
}

// planMover returns a mover for the moves of plans. They do not wait for the end of a
// pause: by then they are out of date.
func (r *relocator) planMover() *mover {
	w := newMover(r)
	w.take = r.budget.TakeUnlessPaused
	return w
}

// run carries out a move and returns its event when it has ended. One that is held
// up by a backing that hangs is left behind: it goes on by itself, and the mover
// with it, while the caller turns to others. There are never many of them, since no
// move begins that has to do with a backing known to hang. The caller is a
// goroutine of the pool.
func (r *relocator) run(ctx context.Context, w *mover, j job, private bool) (ev MoveEvent, left bool) {
	ended := make(chan MoveEvent, 1)
	r.pool.wg.Go(func() {
		ev := w.run(ctx, j)
		r.ended(ev, private)
		ended <- ev
	})
	for {
		hangs := r.pool.hangs.wait()
		if w.hangs() {
			return MoveEvent{Move: j.Move, Outcome: MoveAbandoned, Why: string(errHangs), Err: errHangs}, true
		}
		select {
		case ev := <-ended:
			return ev, false
		case <-hangs:
		}
	}
}

// ended counts a move; private is one that no plan proposed.
func (r *relocator) ended(ev MoveEvent, private bool) {
	r.mu.Lock()
	delete(r.busy, ev.Move.Key)
	r.current--
	if private {
		r.private--
	}
	if ev.Outcome == MoveDone {
		r.finished++
	} else {
		r.skipped[ev.Why]++
	}
	if ev.from != nil {
		k := moveKey{ev.from, ev.to, ev.Move.Reason}
		c := r.moved[k]
		if c == nil {
			c = new(moveCount)
			r.moved[k] = c
		}
		if ev.Outcome == MoveDone {
			c.extents++
		}
		c.bytes += ev.Bytes
	}
	r.mu.Unlock()
	r.idle.broadcast()
	level := r.pool.log.Debug
	if ev.Outcome == MoveFailed && !private && !toldByState(ev.Err) { // a drain tells its reasons itself, once
		level = r.pool.log.Warn
	}
	level("move ended", "extent", ev.Move.Key, "from", ev.Move.From, "to", ev.Move.To, "kind", ev.Move.Kind,
		"reason", ev.Move.Reason, "outcome", ev.Outcome, "why", ev.Why, "error", ev.Err, "bytes", ev.Bytes, "took", ev.Took)
}

// waitIdle returns when the queue is empty and no move of a plan is under way. Clients
// may ask for moves without end: nobody waits for those.
func (r *relocator) waitIdle(ctx context.Context) error {
	for {
		ch := r.idle.wait()
		r.mu.Lock()
		done := len(r.queue) == 0 && r.current == r.private
		r.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		case <-r.pool.ctx.Done():
			return ErrClosed
		}
	}
}

// moving reports whether a move of the extent is under way.
func (r *relocator) moving(k extent.Key) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.busy[k]
}

// MoveExtent moves the extent at off of a volume to a tier, by its rank, and
// returns when it is committed there. It goes by the same steps, and counts
// against the same budget, as the moves of a plan. moved is false if the extent
// was there already.
func (p *Pool) MoveExtent(ctx context.Context, volume string, off int64, to int) (moved bool, err error) {
	if p.opts.ReadOnly {
		return false, ErrReadOnly // no slot ever becomes clean
	}
	v, err := p.Volume(volume)
	if err != nil {
		return false, err
	}
	if off < 0 || off >= v.Size() {
		return false, ErrOutOfRange
	}
	tiers := p.ranks()
	if to < 0 || to >= len(tiers) {
		return false, fmt.Errorf("tier %d: %w", to, ErrNotFound)
	}
	i := p.size.Index(off)
	e := v.table.Load(i)
	if !e.Mapped() {
		return false, invalid("extent %d of volume %s is unmapped", i, volume)
	}
	m := job{from: p.member(e.Location()).tier, to: tiers[to]}
	m.Move = plan.Move{
		Key: extent.Key{Volume: v.id, Index: i}, From: m.from.rank(), To: extent.TierID(to),
		Kind: plan.Promotion, Reason: plan.ReasonPolicy, Bytes: p.size.Bytes(),
	}
	switch {
	case m.from == m.to:
		return false, nil
	case m.From < m.To:
		m.Kind = plan.Demotion
	}
	if !p.reloc.claim(m.Key) {
		return false, busy("extent %d of volume %s is being moved", i, volume)
	}
	w := newMover(p.reloc)
	ev := w.run(ctx, m)
	p.reloc.ended(ev, true)
	if ev.Outcome != MoveDone {
		return false, fmt.Errorf("move extent %d of volume %s: %s: %w", i, volume, ev.Outcome, ev.Err)
	}
	return true, v.flush(ctx)
}

// Promote asks that the extents of a range be on the fastest tier that the volume's
// policy allows: a client expects to use them soon. It is a hint: what is mapped is
// moved in the background, into slots above the headroom and within what the moves
// of plans leave of the cycle's budget. What finds no place, or has not had its turn in
// the next cycle either, stays where it is.
func (v *Volume) Promote(_ context.Context, off, n int64) error {
	if err := v.check(off, n); err != nil {
		return err
	}
	p := v.pool
	if open, _, _ := p.reloc.budget.Open(); n == 0 || p.opts.ReadOnly || !open || p.reloc.budget.Paused() {
		return nil
	}
	to, err := v.fastestTier()
	if err != nil || to == nil {
		return err
	}
	for i := p.size.Index(off); i <= p.size.Index(off+n-1); i++ {
		e := v.table.Load(i)
		if !e.Mapped() {
			continue
		}
		from := p.member(e.Location()).tier
		if from.rank() <= to.rank() {
			continue
		}
		if !p.reloc.ask(job{Move: plan.Move{
			Key: extent.Key{Volume: v.id, Index: i}, From: from.rank(), To: to.rank(),
			Kind: plan.Promotion, Reason: plan.ReasonCache, Bytes: p.size.Bytes(),
		}, from: from, to: to}) {
			break
		}
	}
	return nil
}

// fastestTier returns the fastest tier that the volume's policy allows; nil if nothing
// is to be made faster.
func (v *Volume) fastestTier() (*tier, error) {
	tiers := v.pool.ranks()
	pol, err := parsePolicy(v.Policy().name, tierNames(tiers))
	switch {
	case err != nil || pol.want.Kind == plan.WantLowest:
		return nil, err
	case pol.want.Kind == plan.WantTier:
		return tiers[pol.want.Tier], nil
	}
	return tiers[0], nil
}
