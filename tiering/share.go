package tiering

import (
	"context"
	"sync"

	"tierd/tiering/mutant"
)

// shared runs one function for many callers at a time, one run after the other.
// A caller gets the result of a run that began after it asked, never of one
// already under way: what the caller did before asking is covered. Flush rounds
// of a volume and syncs of a backing are both of this kind.
type shared struct {
	run func() error

	mu      sync.Mutex
	active  bool  // the loop runs
	next    *call // the run that callers of now will share
	current *call // the one under way
	wg      sync.WaitGroup
}

type call struct {
	done chan struct{}
	err  error
}

// start asks for a run and returns it without waiting.
func (s *shared) start() *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && mutant.On(mutant.JoinRunningSync) {
		return s.current
	}
	if s.next == nil {
		s.next = &call{done: make(chan struct{})}
	}
	c := s.next
	if !s.active {
		s.active = true
		s.wg.Go(s.loop)
	}
	return c
}

// wait returns the run's error once it has ended, or ctx's if that ends first;
// the run goes on then.
func (c *call) wait(ctx context.Context) error {
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// do asks for a run and waits for it.
func (s *shared) do(ctx context.Context) error { return s.start().wait(ctx) }

// idle reports whether no run is under way or asked for.
func (s *shared) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.active
}

// drain waits until no run is under way. Nobody may start one meanwhile.
func (s *shared) drain() { s.wg.Wait() }

func (s *shared) loop() {
	for {
		s.mu.Lock()
		c := s.next
		s.current, s.next = c, nil
		if c == nil {
			s.active = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		c.err = s.run()
		close(c.done)
	}
}

// A signal wakes everybody who waits for it. The zero signal is ready.
type signal struct {
	mu sync.Mutex
	ch chan struct{}
}

// wait returns a channel that is closed by the next broadcast. It is asked for
// before the condition is looked at, so that no broadcast is missed.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

func (s *signal) broadcast() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}
