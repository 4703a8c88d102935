package schedule

import (
	"context"
	"sync"
	"time"

	"tierd/pkg/clock"
)

// Throttle lets bytes through at a rate that can be changed at any time, evenly: after a
// silence it makes up for nothing. All methods may be called from anywhere.
type Throttle struct {
	clock clock.Clock

	mu      sync.Mutex
	rate    int64     // bytes a second; 0: no limit
	free    time.Time // from when on the next bytes may pass
	changed chan struct{}
}

// NewThrottle returns a Throttle without a limit.
func NewThrottle(c clock.Clock) *Throttle {
	return &Throttle{clock: c, changed: make(chan struct{})}
}

// SetRate changes the rate at once, in bytes a second; 0 is no limit.
func (t *Throttle) SetRate(rate int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if rate == t.rate {
		return
	}
	if now := t.clock.Now(); t.rate > 0 && rate > 0 && t.free.After(now) {
		// What is ahead was let through at the old rate.
		t.free = now.Add(time.Duration(float64(t.free.Sub(now)) * float64(t.rate) / float64(rate)))
	}
	t.rate = rate
	close(t.changed)
	t.changed = make(chan struct{})
}

// Wait returns when n bytes may pass, or with the cause of ctx if that ends first.
func (t *Throttle) Wait(ctx context.Context, n int64) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		t.mu.Lock()
		now := t.clock.Now()
		wait, changed := t.free.Sub(now), t.changed
		if t.rate <= 0 || wait <= 0 {
			if t.rate > 0 {
				t.free = now.Add(time.Duration(float64(n) / float64(t.rate) * float64(time.Second)))
			}
			t.mu.Unlock()
			return nil
		}
		t.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-t.clock.After(wait):
		case <-changed:
		}
	}
}

// Settings of the Governor. The tick, the step and the margin are those of the design; the
// others are proposals.
const (
	// GovernorTick is how often Tick is to be called while something moves.
	GovernorTick = 100 * time.Millisecond

	governorMargin  = 1.25                  // latency beside moves may be so many times that without
	governorExcess  = 50 * time.Microsecond // and so much more
	governorStep    = 2 << 20               // bytes a second that are added in a tick
	governorStart   = 8 << 20               // bytes a second with which movement begins beside clients
	governorFloor   = 1 << 20               // bytes a second that are never taken away
	governorTop     = 1 << 30               // bytes a second above which there is no limit
	governorSamples = 48                    // requests that a mean is taken from: within 15 %, if they vary as by chance
	governorMeans   = 4                     // means that a new baseline is made of
	governorStale   = 60 * time.Second      // after which a baseline is learned anew
	governorProbe   = 20                    // ticks for which movement is held for that, at most
	governorQuiet   = 10 * time.Second      // without requests after which nobody needs protection
)

// Hold is the rate that Governor.Tick returns while nothing may move.
const Hold = -1

// A Flow is a kind of foreground request of one backing.
type Flow struct {
	Backing int
	Write   bool
}

// Sample is how many foreground requests of a flow a backing has answered so far, and in
// what time together, both since some fixed moment; and whether a move reads from it or
// writes to it now.
type Sample struct {
	Flow   Flow
	N      int64
	Time   time.Duration
	Moving bool
}

// Governor bounds the rate of movement by what clients feel of it: additive increase,
// multiplicative decrease (Chiu and Jain, 1989). While requests of clients take more than
// 1.25 times as long beside moves as without them, the rate is halved, else it grows by a
// step each tick. What they take without moves is learned whenever nothing moves on the
// backing; if that was a minute ago, movement is held for a moment to learn it anew. Where
// there are no requests there is no limit. A pure function of what it is told; the zero
// Governor is ready.
type Governor struct {
	rate  float64 // 0: no limit
	flows map[Flow]*flowState
	probe int // ticks for which movement is still held
}

type flowState struct {
	n      int64 // of the last judgement
	time   time.Duration
	seen   int64     // of the last tick
	last   time.Time // when there was a request
	moving bool      // the requests since the last judgement were answered beside moves
	base   float64   // seconds without moves; 0: not known
	based  time.Time // when that was learned
	means  int       // that it is made of, since it was out of date
	beside float64   // seconds beside moves, of late; 0: not known
}

// Tick takes in samples and returns the rate until the next tick in bytes a second: 0 is
// no limit, Hold that nothing may move.
func (g *Governor) Tick(now time.Time, samples []Sample) int64 {
	if g.flows == nil {
		g.flows = make(map[Flow]*flowState)
	}
	moving, busy, slow, stale, renewing := false, false, false, false, false
	held := g.probe > 0
	for _, s := range samples {
		moving = moving || s.Moving
		s.Moving = s.Moving && !held
		f := g.flows[s.Flow]
		if f == nil {
			f = &flowState{n: s.N, time: s.Time, seen: s.N, moving: s.Moving}
			g.flows[s.Flow] = f
		}
		if s.N != f.seen {
			f.seen, f.last = s.N, now
		}
		active := !f.last.IsZero() && now.Sub(f.last) < governorQuiet
		f.learn(now, s)
		if s.Moving && f.base > 0 && f.beside > governorMargin*f.base && f.beside-f.base > governorExcess.Seconds() {
			slow = true
			f.beside = 0 // what comes at the new rate is judged anew
		}
		busy = busy || active
		stale = stale || s.Moving && active && f.base > 0 && now.Sub(f.based) > governorStale
		renewing = renewing || f.means < governorMeans && active
	}
	switch {
	case !busy:
		g.rate, g.probe = 0, 0
	case g.probe > 0 && renewing:
		g.probe--
	case !moving:
		g.rate, g.probe = governorStart, 0
	case stale:
		g.probe = governorProbe
		for _, f := range g.flows {
			f.means = 0
		}
	default:
		g.probe = 0
		if slow {
			g.rate = max(g.rate/2, governorFloor)
		} else {
			g.rate = max(min(g.rate+governorStep, governorTop), governorStart/4)
		}
	}
	switch {
	case g.probe > 0:
		return Hold
	case g.rate >= governorTop:
		return 0
	}
	return int64(g.rate)
}

// learn takes in the requests of a flow since the last judgement, once they are enough.
func (f *flowState) learn(now time.Time, s Sample) {
	if s.Moving != f.moving || s.N < f.n {
		f.n, f.time, f.moving = s.N, s.Time, s.Moving // some of them were of either kind
		return
	}
	n := s.N - f.n
	if n < governorSamples {
		return
	}
	mean := (s.Time - f.time).Seconds() / float64(n)
	f.n, f.time = s.N, s.Time
	switch {
	case s.Moving && f.beside == 0:
		f.beside = mean
	case s.Moving:
		f.beside += 0.3 * (mean - f.beside)
	default:
		f.means++
		weight := max(1/float64(f.means), 0.2)
		f.base, f.based = f.base+weight*(mean-f.base), now
	}
}
