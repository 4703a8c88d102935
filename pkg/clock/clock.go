package clock

import (
	"sync"
	"time"
)

// A Clock tells the time and makes channels that fire later.
type Clock interface {
	Now() time.Time
	// After returns a channel that receives the time once d has passed.
	After(d time.Duration) <-chan time.Time
}

// Real is the machine's clock.
type Real struct{}

// Now returns the current time.
func (Real) Now() time.Time { return time.Now() }

// After is time.After.
func (Real) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Fake is a clock that moves by Advance alone. Create it with NewFake.
type Fake struct {
	mu      sync.Mutex
	now     time.Time
	waiters []waiter
}

type waiter struct {
	at time.Time
	ch chan time.Time
}

// NewFake returns a Fake that stands at start.
func NewFake(start time.Time) *Fake { return &Fake{now: start} }

// Now returns where the clock stands.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// After returns a channel that receives once the clock was moved d onwards.
func (f *Fake) After(d time.Duration) <-chan time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	ch := make(chan time.Time, 1)
	w := waiter{at: f.now.Add(d), ch: ch}
	if d <= 0 {
		ch <- f.now
	} else {
		f.waiters = append(f.waiters, w)
	}
	return ch
}

// Advance moves the clock by d and fires what is due.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
	rest := f.waiters[:0]
	for _, w := range f.waiters {
		if w.at.After(f.now) {
			rest = append(rest, w)
		} else {
			w.ch <- f.now
		}
	}
	f.waiters = rest
}

// Waiters returns how many channels have yet to fire, so that a test can wait
// until the code under test waits.
func (f *Fake) Waiters() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.waiters)
}
