package tiering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/plan"
	"tierd/tiering/schedule"
)

const (
	// drainRetry is how long a drain waits after a pass in which nothing moved; it
	// doubles up to drainRetryMost.
	drainRetry     = time.Second
	drainRetryMost = time.Minute
	// drainWindow is how far back the speed of a drain is measured.
	drainWindow = time.Minute
)

// DrainAction is what to do with the emptying of a backing.
type DrainAction string

// The actions.
const (
	DrainStart  DrainAction = "start"  // or give it another rate
	DrainPause  DrainAction = "pause"  // it takes no new extents, and keeps those it has
	DrainResume DrainAction = "resume" // go on
	DrainCancel DrainAction = "cancel" // it takes new extents again
)

// DrainState says how far the emptying of a backing has come.
type DrainState string

// The states.
const (
	DrainNone    DrainState = ""        // it is not being emptied
	DrainMoving  DrainState = "moving"  // extents are moved off, one after the other
	DrainWaiting DrainState = "waiting" // for the movement budget or its window
	DrainStuck   DrainState = "stuck"   // what is left cannot move now; it is tried again
	DrainPaused  DrainState = "paused"
	DrainEmpty   DrainState = "empty" // it can be removed
)

// DrainInfo describes the emptying of a backing.
type DrainInfo struct {
	State   DrainState
	Begun   time.Time
	Rate    int64         // bytes per second; 0: within the movement budget
	Total   int64         // bytes that were on it when the order was given
	Moved   int64         // bytes, never fewer than told before
	Left    int64         // bytes
	Speed   float64       // bytes per second over the last minute
	ETA     time.Duration // until it is empty at that speed; negative: nobody knows
	Stuck   map[string]int64
	Example string // what keeps one of the stuck extents, in words
}

// drainer empties one backing. It belongs to its member.
type drainer struct {
	mu      sync.Mutex
	order   extentmap.Drain
	stop    context.CancelFunc // ends the loop; nil: none runs
	run     int                // number of the loop, so that an old one knows that it is
	waiting int                // movers that wait for the budget
	idle    bool               // the last pass moved nothing
	lowest  int64              // fewest extents that were seen on it since it was opened
	marks   []drainMark        // oldest first
	stuck   map[string]int64   // by reason, of the last pass
	example string
	told    string // reasons that are in the log
}

type drainMark struct {
	at   time.Time
	left int64
}

// Drain begins, paces, pauses or ends the emptying of a backing, named by its id or
// path. That is durable when Drain returns; the extents move in the background, also
// after a restart. rate is in bytes per second, 0 for the movement budget with its
// windows; nil leaves it as it is.
func (p *Pool) Drain(ctx context.Context, ref string, action DrainAction, rate *int64, dryRun bool) error {
	p.adminMu.Lock()
	defer p.adminMu.Unlock()
	b, err := p.findBacking(ref)
	if err != nil {
		return err
	}
	if err := p.changeable(ctx); err != nil {
		return err
	}
	d := &b.drain
	d.mu.Lock()
	order := d.order
	d.mu.Unlock()
	if err := p.editOrder(&order, b, action, rate); err != nil || dryRun {
		return err
	}
	// No slot is given out from here on. Those given out before belong to extents
	// that the drain finds.
	if order.On {
		b.shut(true)
	}
	err = p.editMembers(func(m *extentmap.Member) bool {
		if m.ID != b.id {
			return false
		}
		m.Drain = order
		switch {
		case order.On && m.State == extentmap.MemberOK:
			m.State = extentmap.MemberDraining
		case !order.On && m.State == extentmap.MemberDraining:
			m.State = extentmap.MemberOK
		}
		return true
	}, nil)
	if err != nil {
		b.shut(b.drainOrder().On)
		return fmt.Errorf("drain backing %s: %w", b.path, err)
	}
	p.writeSuperblocks(nil, true)
	p.log.Info("backing drain", "backing", b.path, "action", action, "rate", order.Rate)
	b.applyOrder(order)
	return nil
}

// changeable returns an error if what the pool consists of cannot be changed.
func (p *Pool) changeable(ctx context.Context) error {
	switch {
	case p.opts.ReadOnly:
		return fmt.Errorf("the pool is open read-only: %w", ErrReadOnly)
	case p.closing.Load():
		return ErrClosed
	case p.db.Err() != nil:
		return p.db.Err()
	}
	return ctx.Err()
}

// editOrder makes of the order for b what the action asks for.
func (p *Pool) editOrder(order *extentmap.Drain, b *member, action DrainAction, rate *int64) error {
	if rate != nil {
		if *rate < 0 {
			return invalid("drain rate %d: must not be negative", *rate)
		}
		order.Rate = *rate
	}
	if action != DrainStart && !order.On {
		return busy("backing %s is not being drained", b.path)
	}
	switch action {
	case DrainStart:
		if b.missing {
			return busy("backing %s is missing: nothing can move off it; attach it again, or give it up with backing forget", b.path)
		}
		others := 0
		p.eachMember(func(o *member) {
			if o != b && o.takesExtents() {
				others++
			}
		})
		if others == 0 {
			return busy("backing %s cannot be drained: the pool has no other backing that takes extents", b.path)
		}
		if !order.On {
			if err := p.checkDrain(b); err != nil {
				return err
			}
			*order = extentmap.Drain{
				On: true, Rate: order.Rate, Extents: b.slots.Counts().Used, Begun: p.clock.Now().UTC().Truncate(time.Second),
			}
		}
	case DrainPause:
		order.Paused = true
	case DrainResume:
		order.Paused = false
	case DrainCancel:
		*order = extentmap.Drain{}
	default:
		return invalid("drain action %q", action)
	}
	return nil
}

// shut says whether b takes new extents.
func (b *member) shut(shut bool) {
	b.draining.Store(shut)
	b.slots.Shut(shut)
	if !shut {
		b.wakeCleaner()
		b.pool.freed.broadcast()
	}
}

func (b *member) drainOrder() extentmap.Drain {
	b.drain.mu.Lock()
	defer b.drain.mu.Unlock()
	return b.drain.order
}

// applyOrder makes the running drain, if any, one of this order.
func (b *member) applyOrder(order extentmap.Drain) {
	d := &b.drain
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.order.On {
		d.lowest, d.told = order.Extents, ""
	}
	d.order = order
	d.run++
	if d.stop != nil {
		d.stop() // its movers end at their next step
		d.stop = nil
	}
	d.marks, d.stuck, d.example, d.waiting, d.idle = nil, nil, "", 0, false
	b.shut(order.On)
	if !order.On || order.Paused || b.pool.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(b.pool.ctx)
	d.stop = stop
	run := d.run
	b.pool.wg.Go(func() { b.drainLoop(ctx, run, order.Rate) })
}

// resumeDrain goes on after a restart. What a power cut took back, and a rebuild
// does not know, counts from here on.
func (b *member) resumeDrain() {
	order := b.drainOrder()
	if !order.On {
		return
	}
	used := b.slots.Counts().Used
	order.Extents = max(order.Extents, used)
	b.drain.mu.Lock()
	b.drain.lowest = used
	b.drain.mu.Unlock()
	b.applyOrder(order)
}

// stopDrain ends the drain of a backing that is removed.
func (b *member) stopDrain() {
	d := &b.drain
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stop != nil {
		d.stop()
		d.stop = nil
	}
	d.run++
}

// drainLoop goes over all maps, moving what is on b, until nothing is. After a pass
// in which nothing moved it waits before the next one, longer each time.
func (b *member) drainLoop(ctx context.Context, run int, rate int64) {
	p := b.pool
	take := p.reloc.budget.Take
	if rate > 0 {
		// An operator's rate is meant: no window and no budget stands against it.
		take = schedule.NewBudget(p.clock, schedule.Calendar{}, schedule.Limits{Rate: rate}).Take
	}
	wait := drainRetry
	for ctx.Err() == nil {
		woken := p.freed.wait()
		moved, full := b.drainPass(ctx, run, take)
		if moved > 0 {
			wait = drainRetry
			continue
		}
		if b.slots.Counts().Used == 0 {
			p.log.Info("backing is drained; it can be removed", "backing", b.path)
			return
		}
		if !full {
			woken = nil // slots that become free somewhere do not help
		}
		select {
		case <-ctx.Done():
			return
		case <-p.clock.After(wait):
		case <-woken:
			select { // in bursts, as a rule
			case <-ctx.Done():
				return
			case <-p.clock.After(drainRetry):
			}
		}
		wait = min(2*wait, drainRetryMost)
	}
}

// drainPass tries to move each extent that is on b once. It returns how many it
// moved, and whether some had nowhere to go. What kept those that did not move is
// published at its end.
func (b *member) drainPass(ctx context.Context, run int, take func(context.Context, int64) error) (moved int64, full bool) {
	p := b.pool
	var mu sync.Mutex
	stuck := make(map[string]int64)
	examples := make(map[string]string)
	keys := make(chan extent.Key)
	pass, spent := context.WithCancel(ctx)
	defer spent()
	var wg sync.WaitGroup
	for range p.reloc.workers {
		wg.Go(func() {
			off := evacuator{evacuation: evacuation{off: b, reason: plan.ReasonDrain, take: func(ctx context.Context, n int64) error {
				b.drain.budgetWait(run, 1)
				defer b.drain.budgetWait(run, -1)
				return take(ctx, n)
			}}}
			for k := range keys {
				ev := off.move(pass, k)
				mu.Lock()
				switch {
				case ev.Outcome == MoveDone:
					moved++
				case ctx.Err() != nil:
				case ev.Why == "unmapped" || ev.Why == "changed" || ev.Why == "volume_gone" || ev.Why == "stopped":
					// It is gone by itself, or on its way, or was not tried.
				default:
					if stuck[ev.Why]++; stuck[ev.Why] == 1 {
						examples[ev.Why] = b.stuckExample(k, ev)
					}
				}
				mu.Unlock()
				if errors.As(ev.Err, new(schedule.ErrBudgetSpent)) {
					spent() // nothing more can be paid for in this pass
				}
				b.drain.mark(run, p.clock.Now(), b.slots.Counts().Used)
			}
		})
	}
	for _, v := range p.allVolumes() {
		v.table.Range(func(i extent.Index, e extent.Entry) bool {
			if !e.Mapped() || e.Location().Backing != b.id {
				return true
			}
			select {
			case keys <- extent.Key{Volume: v.id, Index: i}:
				return true
			case <-pass.Done():
				return false
			}
		})
	}
	close(keys)
	wg.Wait()
	b.publishStuck(run, moved, stuck, examples)
	return moved, stuck["target_full"]+stuck["pinned"]+stuck["reserved"] > 0
}

// stuckExample says in words why an extent stays.
func (b *member) stuckExample(k extent.Key, ev MoveEvent) string {
	name := fmt.Sprint(k.Volume)
	if v := b.pool.volumeByID(k.Volume); v != nil {
		name = v.Name()
	}
	what := fmt.Sprintf("extent %d of volume %s", k.Index, name)
	switch ev.Why {
	case "target_full":
		return what + ": no other backing has a free slot for it"
	case "pinned":
		return what + ": the volume's policy asks for tier " + b.tier.name + ", where no other backing has a free slot"
	case "reserved":
		return what + ": what is free elsewhere is reserved for volumes"
	case "volume_failed":
		return what + ": flushes of the volume fail, so that no move would be durable"
	case "backing_failed":
		return what + ": the backing has failed"
	case "too_busy":
		return what + ": it is written to without a pause"
	case "moving":
		return what + ": another move of it is under way"
	case "backing_hangs":
		return what + ": a backing does not answer"
	case "settling":
		return what + ": earlier moves of the volume wait for their commit, which some backing holds up"
	}
	return fmt.Sprintf("%s: %v", what, ev.Err)
}

// publishStuck makes known what kept extents from moving in a pass, and logs it if
// the reasons are others than the last time.
func (b *member) publishStuck(run int, moved int64, stuck map[string]int64, examples map[string]string) {
	d := &b.drain
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.run != run {
		return
	}
	d.stuck, d.example, d.idle = stuck, "", moved == 0
	reasons := slices.Sorted(maps.Keys(stuck))
	if len(reasons) > 0 {
		most := slices.MaxFunc(reasons, func(a, b string) int { return cmp.Compare(stuck[a], stuck[b]) })
		d.example = examples[most]
	}
	if told := fmt.Sprint(reasons); moved == 0 && len(reasons) > 0 && told != d.told {
		d.told = told
		b.pool.log.Warn("drain goes on later: extents cannot be moved off the backing now", "backing", b.path, "reasons", stuck, "example", d.example)
	}
}

// budgetWait counts the movers that are about to be paced, or no longer.
func (d *drainer) budgetWait(run, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.run == run {
		d.waiting += n
	}
}

// mark notes how many extents are left, for the speed.
func (d *drainer) mark(run int, now time.Time, left int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.run != run {
		return
	}
	d.lowest = min(d.lowest, left)
	if n := len(d.marks); n > 0 && now.Sub(d.marks[n-1].at) < time.Second {
		return
	}
	d.marks = append(d.marks, drainMark{now, left})
	for len(d.marks) > 2 && now.Sub(d.marks[1].at) >= drainWindow {
		d.marks = d.marks[1:]
	}
}

// drainInfo describes the emptying of b.
func (b *member) drainInfo() DrainInfo {
	now := b.pool.clock.Now()
	used := b.slots.Counts().Used
	open, _, _ := b.pool.reloc.budget.Open()
	open = open && !b.pool.reloc.budget.Paused()
	size := b.pool.size.Bytes()
	d := &b.drain
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.order.On {
		return DrainInfo{ETA: -1}
	}
	d.lowest = min(d.lowest, used)
	total := max(d.order.Extents, d.lowest)
	info := DrainInfo{
		Begun: d.order.Begun, Rate: d.order.Rate, Total: total * size, Left: d.lowest * size, Moved: (total - d.lowest) * size,
		ETA: -1, Stuck: maps.Clone(d.stuck), Example: d.example, State: DrainMoving,
	}
	if n := len(d.marks); n > 0 {
		if first := d.marks[0]; now.After(first.at) {
			info.Speed = float64(max(first.left-d.lowest, 0)*size) / now.Sub(first.at).Seconds()
		}
	}
	switch {
	case used == 0:
		info.State, info.ETA = DrainEmpty, 0
	case d.order.Paused:
		info.State = DrainPaused
	case d.stuck["budget"] > 0 && d.idle, d.waiting > 0 && d.order.Rate == 0 && !open:
		info.State = DrainWaiting
	case d.idle && len(d.stuck) > 0:
		info.State = DrainStuck
	}
	if info.State == DrainMoving && info.Speed > 0 {
		info.ETA = time.Duration(float64(info.Left) / info.Speed * float64(time.Second))
	}
	return info
}
