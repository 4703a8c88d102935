package nbd

import (
	"sync"
	"time"
)

const (
	// watchTick is how often busy connections are looked at. A leader found in
	// the same call at two ticks is relieved: after one to two ticks.
	watchTick = 500 * time.Microsecond
	// watchLinger is for how many quiet ticks a connection goes on being watched.
	watchLinger = 20
)

// The word conn.state: a sequence number that grows with each inline call,
// and in the two low bits what the leader does.
const (
	stateLeading = 0 // parsing, or waiting where waiting is meant
	stateBusy    = 1 // in a call that may block
	stateHanded  = 2 // that call blocked: the leadership is the follower's
	stateMask    = 3
	stateStep    = 4
)

// A watchdog finds leaders that are blocked in an inline call. It ticks only
// while some connection makes inline calls.
type watchdog struct {
	srv   *Server
	wakec chan struct{}
	stop  chan struct{}
	done  chan struct{}

	mu   sync.Mutex
	list []*conn // conn.watched is true for these
}

func newWatchdog(s *Server) *watchdog {
	return &watchdog{srv: s, wakec: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
}

// watch puts c under watch. A leader calls it when it has stored its busy state
// and then found that it is not watched. The watchdog looks at the state once
// more after it said that it no longer watches, so one of the two sees the other.
func (w *watchdog) watch(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.watched.Load() {
		return
	}
	c.watched.Store(true)
	c.quiet = 0
	w.list = append(w.list, c)
	select {
	case w.wakec <- struct{}{}:
	default:
	}
}

func (w *watchdog) loop() {
	defer close(w.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-w.wakec:
		case <-w.stop:
			return
		}
		for {
			timer.Reset(watchTick)
			select {
			case <-timer.C:
			case <-w.stop:
				return
			}
			if !w.tick() {
				break
			}
		}
	}
}

// tick relieves the leaders that are where they were at the last tick, and
// returns whether there is anything left to watch.
func (w *watchdog) tick() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	keep := w.list[:0]
	for _, c := range w.list {
		if w.look(c) {
			keep = append(keep, c)
		}
	}
	clear(w.list[len(keep):])
	w.list = keep
	return len(keep) > 0
}

// look returns whether to go on watching c.
func (w *watchdog) look(c *conn) bool {
	state := c.state.Load()
	switch {
	case state != c.seen:
		c.seen, c.quiet = state, 0
		return true
	case state&stateMask == stateBusy:
		c.quiet = 0
		if c.state.CompareAndSwap(state, state&^stateMask|stateHanded) {
			w.srv.handoffs.Add(1)
			w.srv.workers.submit((*follower)(c))
		}
		return true
	}
	if c.quiet++; c.quiet < watchLinger {
		return true
	}
	c.watched.Store(false)
	if c.state.Load()&stateMask == stateBusy {
		c.watched.Store(true)
		c.quiet = 0
		return true
	}
	return false
}

func (w *watchdog) close() {
	close(w.stop)
	<-w.done
}
