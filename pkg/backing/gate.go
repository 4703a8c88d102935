package backing

import (
	"context"
	"sync"
	"sync/atomic"
)

// A gate lets at most max callers in at once and queues the rest, first in,
// first out, as parked goroutines, which hold no thread. While there is room a
// passage is one atomic addition on the way in and one on the way out.
//
// active counts those inside and those queued. Whoever steps it from above max
// owes the queue one token: every step up into that region is a caller that
// waits, every step down out of it is a place that became free. The step and
// the queue are not one operation, so that a token can be there before its
// caller queues (tokens > 0), and a caller that gives up while its token is on
// the way leaves a debt that swallows it (tokens < 0).
type gate struct {
	max    int64
	active atomic.Int64

	mu     sync.Mutex
	tokens int
	queue  []chan struct{} // cap 1 each; closed by shut
	closed bool
}

func newGate(max int) *gate { return &gate{max: int64(max)} }

// enter waits for a place. After nil, leave must follow. It returns the error
// of ctx, or ErrClosed once shut was called.
func (g *gate) enter(ctx context.Context) error {
	if g.active.Add(1) <= g.max {
		return nil
	}
	return g.wait(ctx)
}

func (g *gate) leave() {
	if g.active.Add(-1) >= g.max {
		g.post()
	}
}

func (g *gate) post() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.queue) > 0 && g.tokens == 0 {
		g.queue[0] <- struct{}{}
		g.queue = g.queue[1:]
		return
	}
	g.tokens++
}

func (g *gate) wait(ctx context.Context) error {
	g.mu.Lock()
	if g.tokens > 0 {
		g.tokens--
		g.mu.Unlock()
		return nil
	}
	if g.closed {
		g.giveUpLocked()
		g.mu.Unlock()
		return ErrClosed
	}
	place := make(chan struct{}, 1)
	g.queue = append(g.queue, place)
	g.mu.Unlock()

	var err error
	select {
	case _, ok := <-place:
		if ok {
			return nil
		}
		return ErrClosed
	case <-ctx.Done():
		err = ctx.Err()
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	for i, c := range g.queue {
		if c == place {
			g.queue = append(g.queue[:i], g.queue[i+1:]...)
			g.giveUpLocked()
			return err
		}
	}
	if _, ok := <-place; !ok { // shut was faster, and gave up for us
		return ErrClosed
	}
	return nil // a place came at the same time: use it
}

// giveUpLocked takes back the count of a caller that waits and is in no queue.
// If that step ends below max, somebody else's step out of the region above
// max has a token under way for it.
func (g *gate) giveUpLocked() {
	if g.active.Add(-1) < g.max {
		g.tokens--
	}
}

// shut makes every waiting and later waiting caller get ErrClosed. Those
// inside go on.
func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, c := range g.queue {
		g.giveUpLocked()
		close(c)
	}
	g.queue = nil
}
