package backing

import (
	"math"
	"sync"
	"sync/atomic"
	"unsafe"
)

const guardStripes = 16 // a power of two

// A guard counts the calls in flight on a file descriptor, so that Close can
// wait for them: a descriptor closed under a call is a number that the next
// open in the process gets, and the call then reads or writes that.
//
// The count is spread over stripes chosen by the address of the caller's
// buffer. Connections own their buffers, so that two of them on two processors
// seldom share a cache line. A stripe counts up and down; closing adds the
// smallest integer to each, which makes all of them negative for good.
type guard struct {
	stripes [guardStripes]guardStripe
	drained sync.WaitGroup
}

type guardStripe struct {
	n       atomic.Int64
	drained atomic.Bool
	_       [128 - 12]byte // two cache lines: processors prefetch in pairs
}

const guardClosed = math.MinInt64

// stripe picks the stripe for calls on p. Buffers are at least some KiB apart.
func (g *guard) stripe(p []byte) *guardStripe {
	a := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
	return &g.stripes[(a>>12^a>>16^a>>20)%guardStripes]
}

// enter reports whether the call may go on; if so, leave must follow on the
// same stripe.
func (g *guard) enter(s *guardStripe) bool {
	if s.n.Add(1) > 0 {
		return true
	}
	g.leave(s)
	return false
}

func (g *guard) leave(s *guardStripe) {
	if s.n.Add(-1) == guardClosed && s.drained.CompareAndSwap(false, true) {
		g.drained.Done()
	}
}

// shut refuses every call from now on, without waiting. It is called once.
func (g *guard) shut() {
	g.drained.Add(guardStripes)
	for i := range g.stripes {
		s := &g.stripes[i]
		if s.n.Add(guardClosed) == guardClosed && s.drained.CompareAndSwap(false, true) {
			g.drained.Done()
		}
	}
}

// wait returns when no call is in flight any more. It comes after shut.
func (g *guard) wait() { g.drained.Wait() }
