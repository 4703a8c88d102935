package registry

import (
	"context"
	"math/bits"
	"sync"
	"sync/atomic"

	"tierd/tiering/extent"
	"tierd/tiering/mutant"
)

const (
	stripeCount = 1024
	groupShift  = 3 // extents of one group share a stripe: neighbours cost one lock
	// blockSize is what ranges are widened to: two changes inside one block of a
	// device that writes whole blocks must not run at once, since each would
	// rewrite the other's bytes.
	blockSize = 4096
	// inlineNodes is how many stripes a ticket can touch without allocating.
	inlineNodes = 4
)

// Kind says what a ticket conflicts with.
type Kind uint8

// The kinds of tickets; see the package documentation.
const (
	Write Kind = iota
	Exclusive
	Shared
)

// A Mapper tells whether extents have slots. Registry asks it while holding the
// stripes of the extents concerned, where the answer cannot change.
type Mapper interface {
	// AllMapped reports whether every extent from first to last, both
	// included, is mapped.
	AllMapped(first, last extent.Index) bool
}

// Registry holds the changes in flight. Create it with New.
type Registry struct {
	size    extent.Size
	stripes [stripeCount]stripe
}

type stripe struct {
	mu         sync.Mutex
	head, tail *node // in order of entering
	moves      *Move
	_          [128 - 8 - 3*8]byte // one stripe to two cache lines: neighbours do not share
}

// node is a ticket's place in the queue of one stripe.
type node struct {
	ticket     *Ticket
	prev, next *node
	stripe     uint16
}

// A Ticket is a change's place in line. It is owned by one goroutine at a time
// and can be used again after Leave. The zero Ticket is ready to use.
type Ticket struct {
	volume   extent.VolumeID
	off, end int64 // the range that conflicts, widened
	kind     Kind
	waits    atomic.Int32 // earlier conflicting tickets, counted once per shared stripe
	queued   bool         // it had to wait when it entered
	ready    chan struct{}
	nodes    []node
	inline   [inlineNodes]node
}

// Exclusive reports whether the ticket is alone in the extents it touches.
func (t *Ticket) Exclusive() bool { return t.kind == Exclusive }

// New returns an empty Registry for extents of the given size.
func New(size extent.Size) *Registry { return &Registry{size: size} }

// Enter puts t in line for the bytes [off, off+n) of a volume; n is above 0. It
// does not block. The caller must call Wait, and Leave afterwards.
func (r *Registry) Enter(t *Ticket, kind Kind, volume extent.VolumeID, off, n int64, m Mapper) {
	first, last := r.size.Index(off), r.size.Index(off+n-1)
	t.volume, t.kind = volume, kind
	t.off, t.end = off, off+n
	if !mutant.On(mutant.NoWidening) {
		t.off, t.end = off&^(blockSize-1), (off+n+blockSize-1)&^(blockSize-1)
	}
	t.queued = false
	if t.ready == nil {
		t.ready = make(chan struct{}, 1)
	}
	r.place(t, first, last)
	if mutant.On(mutant.PiecewiseRegistration) {
		r.enterPiecewise(t, m.AllMapped(first, last), first, last)
		return
	}
	for i := range t.nodes {
		r.stripes[t.nodes[i].stripe].mu.Lock()
	}
	wideOff, wideEnd := r.size.Start(first), r.size.Start(last+1)
	if kind == Write && (!m.AllMapped(first, last) || r.behindExclusive(t, wideOff, wideEnd)) {
		t.kind = Exclusive
	}
	if t.kind == Exclusive {
		t.off, t.end = wideOff, wideEnd
	}
	var waits int32
	for i := range t.nodes {
		s := &r.stripes[t.nodes[i].stripe]
		for p := s.head; p != nil; p = p.next {
			if p.ticket.conflicts(t) {
				waits++
			}
		}
		s.append(&t.nodes[i])
		if mutant.On(mutant.MarksAtEnter) {
			s.mark(volume, off, off+n, r.size)
		}
	}
	if mutant.On(mutant.NoRegistration) {
		waits = 0
	}
	t.waits.Store(waits)
	t.queued = waits > 0
	for i := range t.nodes {
		r.stripes[t.nodes[i].stripe].mu.Unlock()
	}
}

// Queued reports whether t found others in its way when it entered, so that Wait
// may have to wait.
func (t *Ticket) Queued() bool { return t.queued }

// Wait blocks until it is t's turn. If ctx ends, or has ended, it returns its error:
// the change must not be made, and t must Leave all the same.
func (t *Ticket) Wait(ctx context.Context) error {
	if !t.queued {
		return ctx.Err()
	}
	select {
	case <-t.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Leave ends t's place in line and lets those behind it run. [off, off+n) is
// what t has, or may have, written; the marks of moves there are set first. n is
// 0 if t wrote nothing.
func (r *Registry) Leave(t *Ticket, off, n int64) {
	for i := range t.nodes {
		nd := &t.nodes[i]
		s := &r.stripes[nd.stripe]
		s.mu.Lock()
		if n > 0 && !mutant.On(mutant.NoPieceMarks) && !mutant.On(mutant.MarksAtEnter) {
			s.mark(t.volume, off, off+n, r.size)
		}
		for p := nd.next; p != nil; p = p.next {
			if t.conflicts(p.ticket) && p.ticket.waits.Add(-1) == 0 {
				p.ticket.ready <- struct{}{} // has room for the one token a ticket ever gets
			}
		}
		s.unlink(nd)
		s.mu.Unlock()
	}
	// A ticket that gave up waiting may have been released meanwhile.
	select {
	case <-t.ready:
	default:
	}
	t.nodes = nil
}

// TryExclusive takes the exclusive place in an extent if nothing at all is in
// flight there, and reports whether it did.
func (r *Registry) TryExclusive(t *Ticket, key extent.Key) bool {
	t.volume, t.kind, t.queued = key.Volume, Exclusive, false
	t.off, t.end = r.size.Start(key.Index), r.size.Start(key.Index+1)
	if t.ready == nil {
		t.ready = make(chan struct{}, 1)
	}
	t.waits.Store(0)
	r.place(t, key.Index, key.Index)
	s := &r.stripes[t.nodes[0].stripe]
	s.mu.Lock()
	defer s.mu.Unlock()
	if !mutant.On(mutant.NoExclusion) {
		for p := s.head; p != nil; p = p.next {
			if p.ticket.conflicts(t) {
				t.nodes = nil
				return false
			}
		}
	}
	s.append(&t.nodes[0])
	return true
}

// place fills t.nodes with the stripes of the extents first to last, ascending.
func (r *Registry) place(t *Ticket, first, last extent.Index) {
	g0, g1 := first>>groupShift, last>>groupShift
	t.nodes = t.inline[:0]
	if g0 == g1 {
		t.nodes = append(t.nodes, node{ticket: t, stripe: stripeOf(t.volume, g0)})
		return
	}
	var set [stripeCount / 64]uint64
	if g1-g0 >= 16*stripeCount { // more groups than any hash leaves a stripe out of
		for i := range set {
			set[i] = ^uint64(0)
		}
	} else {
		for g := g0; g <= g1; g++ {
			h := stripeOf(t.volume, g)
			set[h/64] |= 1 << (h % 64)
		}
	}
	for i, w := range set {
		for ; w != 0; w &= w - 1 {
			t.nodes = append(t.nodes, node{ticket: t, stripe: uint16(i*64 + bits.TrailingZeros64(w))})
		}
	}
}

// stripeOf mixes volume and group; the constant is 2^64 divided by the golden
// ratio (Knuth, The Art of Computer Programming, volume 3, section 6.4).
func stripeOf(v extent.VolumeID, group extent.Index) uint16 {
	h := (uint64(group) ^ uint64(v)<<40) * 0x9E3779B97F4A7C15
	return uint16(h >> 54)
}

// behindExclusive reports whether an exclusive ticket is before t in one of the
// extents of [off, end). All stripes of t are locked.
func (r *Registry) behindExclusive(t *Ticket, off, end int64) bool {
	for i := range t.nodes {
		for p := r.stripes[t.nodes[i].stripe].head; p != nil; p = p.next {
			q := p.ticket
			if q.kind == Exclusive && q.volume == t.volume && q.off < end && off < q.end {
				return true
			}
		}
	}
	return false
}

// conflicts reports whether t and u must not run at the same time.
func (t *Ticket) conflicts(u *Ticket) bool {
	if t.volume != u.volume || t.off >= u.end || u.off >= t.end {
		return false
	}
	if t.kind == Exclusive || u.kind == Exclusive {
		return true
	}
	return t.kind == Write && u.kind == Write
}

func (s *stripe) append(n *node) {
	n.prev, n.next = s.tail, nil
	if s.tail == nil {
		s.head = n
	} else {
		s.tail.next = n
	}
	s.tail = n
}

func (s *stripe) unlink(n *node) {
	if n.prev == nil {
		s.head = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		s.tail = n.prev
	} else {
		n.next.prev = n.prev
	}
}
