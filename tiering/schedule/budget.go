package schedule

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tierd/pkg/clock"
)

// Limits of a Budget. 0 is no limit, in each.
type Limits struct {
	Rate     int64 // bytes per second where the open window has no rate of its own
	PerCycle int64 // bytes between two calls of NewCycle
	PerDay   int64 // bytes per day of the calendar's wall clock
}

// Which names an amount of the budget.
type Which string

// The amounts.
const (
	Cycle Which = "cycle"
	Day   Which = "day"
)

// ErrBudgetSpent is returned by Take when what is left of an amount does not
// suffice. Waiting would not help before the next cycle or day.
type ErrBudgetSpent struct{ Which Which }

func (e ErrBudgetSpent) Error() string {
	return fmt.Sprintf("movement budget of the %s is spent", e.Which)
}

// Totals are bytes taken: since the Budget was made, in this cycle, on this day.
type Totals struct{ Total, Cycle, Day int64 }

// ErrPaused is returned by TakeUnlessPaused while the budget is paused.
var ErrPaused = errors.New("movement is paused")

// State is what of a Budget has to survive a restart.
type State struct {
	Day   string `json:"day"`   // 2006-01-02
	Bytes int64  `json:"bytes"` // taken on that day

	CycleBegan time.Time `json:"cycle_began"`
	CycleBytes int64     `json:"cycle_bytes"` // taken in that cycle
}

// covers reports whether a budget that is restored from s has as much taken as one that
// is restored from t.
func (s State) covers(t State) bool {
	return s.Day == t.Day && s.Bytes >= t.Bytes && s.CycleBegan.Equal(t.CycleBegan) && s.CycleBytes >= t.CycleBytes
}

// burst is how long a silence may be made up for at once.
const burst = 250 * time.Millisecond

// Budget meters the bytes that background work writes. Each byte is taken before
// it is written, and taken again if it has to be copied again; so the amounts are
// never exceeded, by no byte. All methods may be called from anywhere.
type Budget struct {
	clock clock.Clock

	mu       sync.Mutex
	calendar Calendar
	limits   Limits
	paused   bool
	spent    Totals
	day      string
	// The token bucket, upside down: bytes taken beyond what the rate has allowed
	// so far. Above 0, takers wait; it sinks by the rate, to minus a burst.
	debt    float64
	settled time.Time     // debt is as of then
	rate    int64         // in force since then; 0: no limit
	changed chan struct{} // closed when waiting takers have to look again
	began   time.Time     // when the cycle did

	// Taken before mu. Whoever holds it may wait for a disk.
	keepMu sync.Mutex
	keep   func(State) error
	kept   State
}

// NewBudget returns a Budget of which nothing is spent.
func NewBudget(c clock.Clock, cal Calendar, l Limits) *Budget {
	b := &Budget{clock: c, calendar: cal, limits: l, changed: make(chan struct{})}
	b.settleLocked(c.Now())
	return b
}

// Take takes n bytes, at most what will then be written. It waits until the rate
// allows them, a window is open and the budget is not paused. It returns
// ErrBudgetSpent, at once and having taken nothing, if the cycle or the day has
// less than n bytes left, and the cause of ctx if that ends first.
//
// The rate holds on average: over any time it lets through what the rate allows,
// a quarter of a second's worth more, and the last n.
//
// What is taken is kept (see KeepBy) before Take returns.
func (b *Budget) Take(ctx context.Context, n int64) error { return b.take(ctx, n, false) }

// TakeUnlessPaused is Take, but that it returns ErrPaused instead of waiting for the end of
// a pause.
func (b *Budget) TakeUnlessPaused(ctx context.Context, n int64) error { return b.take(ctx, n, true) }

func (b *Budget) take(ctx context.Context, n int64, impatient bool) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if impatient && b.Paused() {
			return ErrPaused
		}
		ok, wait, changed, err := b.try(n)
		if err != nil {
			return err
		}
		if ok {
			return b.cover(n)
		}
		var timer <-chan time.Time
		if wait > 0 {
			timer = b.clock.After(wait)
		}
		select {
		case <-ctx.Done():
		case <-timer:
		case <-changed:
		}
	}
}

// KeepBy makes fn write down what is taken before it may be used, with some more, so that
// fn is not called for each take: after a kill a little counts as taken that was not, and
// never the other way round. A take whose keeping fails is undone and returns fn's error.
// fn is called by one goroutine at a time and may wait for a disk.
func (b *Budget) KeepBy(fn func(State) error) {
	b.keepMu.Lock()
	defer b.keepMu.Unlock()
	b.keep = fn
}

// Keep writes down exactly what is taken. It returns the error of KeepBy's function.
func (b *Budget) Keep() error {
	b.keepMu.Lock()
	defer b.keepMu.Unlock()
	if b.keep == nil {
		return nil
	}
	s := b.State()
	if err := b.keep(s); err != nil {
		return err
	}
	b.kept = s
	return nil
}

// A lease is what is kept ahead of what is taken: a part of the smallest amount, up to
// maxLease.
const (
	leaseParts = 32
	maxLease   = 64 << 20
)

// cover sees to it that n bytes just taken are kept.
func (b *Budget) cover(n int64) error {
	b.keepMu.Lock()
	defer b.keepMu.Unlock()
	s := b.State()
	b.mu.Lock()
	limits := b.limits
	b.mu.Unlock()
	if b.keep == nil || b.kept.covers(s) || limits.PerCycle <= 0 && limits.PerDay <= 0 {
		return nil
	}
	lease := int64(maxLease)
	for _, limit := range []int64{limits.PerCycle, limits.PerDay} {
		if limit > 0 {
			lease = min(lease, limit/leaseParts)
		}
	}
	s.Bytes += lease
	s.CycleBytes += lease
	if err := b.keep(s); err != nil {
		b.Return(n, s.Day)
		return fmt.Errorf("keep the movement budget: %w", err)
	}
	b.kept = s
	return nil
}

// Return gives back n bytes that were taken on a day (2006-01-02) and will not be written.
// They count again for the day if it is still the same, and not for the cycle.
func (b *Budget) Return(n int64, day string) {
	b.change(b.clock.Now(), func() {
		b.spent.Total -= n
		if b.day == day {
			b.spent.Day -= n
		}
	})
}

// Today returns the day that takes count for now.
func (b *Budget) Today() string { return b.State().Day }

// try takes n bytes if that is possible now. Else it returns how long to wait
// before trying again (0: until something changes), and what tells of changes.
func (b *Budget) try(n int64) (ok bool, wait time.Duration, changed <-chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	open, until := b.settleLocked(now)
	if n <= 0 {
		return true, 0, nil, nil
	}

	// Amounts first: whoever cannot be served by waiting need not wait.
	if b.limits.PerCycle > 0 && n > b.limits.PerCycle-b.spent.Cycle {
		return false, 0, nil, ErrBudgetSpent{Cycle}
	}
	if b.limits.PerDay > 0 && n > b.limits.PerDay-b.spent.Day {
		return false, 0, nil, ErrBudgetSpent{Day}
	}

	edge := time.Duration(0)
	if !until.IsZero() {
		edge = max(until.Sub(now), 1)
	}
	switch {
	case b.paused:
		return false, 0, b.changed, nil
	case !open:
		return false, edge, b.changed, nil
	case b.rate > 0 && b.debt > 0:
		wait = max(time.Duration(b.debt/float64(b.rate)*float64(time.Second)), 1)
		if edge > 0 {
			wait = min(wait, edge) // another rate from there on
		}
		return false, wait, b.changed, nil
	}
	if b.rate > 0 {
		b.debt += float64(n)
	}
	b.spent.Total += n
	b.spent.Cycle += n
	b.spent.Day += n
	return true, 0, nil, nil
}

// settleLocked brings the debt, the day and the rate up to now, and returns
// whether a window is open and until when.
func (b *Budget) settleLocked(now time.Time) (open bool, until time.Time) {
	if d := now.Sub(b.settled); d > 0 {
		b.debt -= float64(b.rate) * d.Seconds()
	}
	b.settled = now
	if day := now.In(b.calendar.location()).Format(time.DateOnly); day != b.day {
		b.day, b.spent.Day = day, 0
	}
	open, rate, until := b.calendar.At(now)
	if rate == 0 {
		rate = b.limits.Rate
	}
	b.rate = rate
	b.debt = max(b.debt, -float64(rate)*burst.Seconds())
	if rate == 0 {
		b.debt = 0
	}
	return open, until
}

// wakeLocked makes waiting takers look again.
func (b *Budget) wakeLocked() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// change settles at now, applies fn and wakes the takers.
func (b *Budget) change(now time.Time, fn func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settleLocked(now)
	fn()
	b.settleLocked(now) // the rate may be another one
	b.wakeLocked()
}

// NewCycle begins a cycle: its amount is whole again. What the last one left is
// not carried over.
func (b *Budget) NewCycle(now time.Time) {
	b.change(now, func() { b.spent.Cycle, b.began = 0, now.Round(0) })
}

// SetLimits changes the limits at once. What is spent stays spent.
func (b *Budget) SetLimits(l Limits) { b.change(b.clock.Now(), func() { b.limits = l }) }

// SetCalendar changes the windows at once.
func (b *Budget) SetCalendar(c Calendar) { b.change(b.clock.Now(), func() { b.calendar = c }) }

// Pause makes takers wait until Resume, whatever the calendar says.
func (b *Budget) Pause() { b.change(b.clock.Now(), func() { b.paused = true }) }

// Resume ends a Pause.
func (b *Budget) Resume() { b.change(b.clock.Now(), func() { b.paused = false }) }

// Paused reports whether the budget is paused.
func (b *Budget) Paused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.paused
}

// Open returns whether a window is open and the rate now in force in bytes per
// second (0: no limit), and when the calendar changes either (zero: never). A
// pause is told by Paused.
func (b *Budget) Open() (open bool, rate int64, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	open, until = b.settleLocked(b.clock.Now())
	return open, b.rate, until
}

// Left returns what the cycle and the day have left in bytes; -1 without a limit.
func (b *Budget) Left() (cycle, day int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settleLocked(b.clock.Now())
	return left(b.limits.PerCycle, b.spent.Cycle), left(b.limits.PerDay, b.spent.Day)
}

func left(limit, spent int64) int64 {
	if limit <= 0 {
		return -1
	}
	return max(limit-spent, 0)
}

// Spent returns the bytes taken.
func (b *Budget) Spent() Totals {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settleLocked(b.clock.Now())
	return b.spent
}

// State returns what Restore needs after a restart.
func (b *Budget) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settleLocked(b.clock.Now())
	return State{Day: b.day, Bytes: b.spent.Day, CycleBegan: b.began, CycleBytes: b.spent.Cycle}
}

// Restore counts what was taken before a restart, today and in a cycle of the given length
// that has not ended. It returns when that cycle began; the zero time if there is none.
func (b *Budget) Restore(s State, cycle time.Duration) (began time.Time) {
	now := b.clock.Now()
	b.change(now, func() {
		if s.Day == b.day {
			b.spent.Day = max(b.spent.Day, s.Bytes)
		}
		if age := now.Sub(s.CycleBegan); !s.CycleBegan.IsZero() && age >= 0 && age < cycle {
			b.spent.Cycle, b.began, began = max(b.spent.Cycle, s.CycleBytes), s.CycleBegan, s.CycleBegan
		}
	})
	return began
}
