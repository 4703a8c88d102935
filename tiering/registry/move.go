package registry

import (
	"math/bits"

	"tierd/tiering/extent"
	"tierd/tiering/mutant"
)

// A Move is a relocation of one extent being copied. The mover owns it from
// StartMove to EndMove; writers set its marks, an unmap cancels it.
type Move struct {
	key       extent.Key
	pieceSize int64
	stripe    *stripe
	next      *Move

	// Guarded by the stripe's mutex.
	marks     []uint64 // one bit a piece the target does not have yet
	cancelled bool
}

// StartMove registers a relocation of an extent that is copied in pieces of
// pieceSize bytes, with all its marks set, and calls entry, under the lock, for
// the mapping it starts from. It returns nil if the extent is being moved
// already, if a change of its mapping is in flight, or if entry returns false.
func (r *Registry) StartMove(key extent.Key, pieceSize int64, entry func() bool) *Move {
	pieces := (r.size.Bytes() + pieceSize - 1) / pieceSize
	s := &r.stripes[stripeOf(key.Volume, key.Index>>groupShift)]
	m := &Move{key: key, pieceSize: pieceSize, stripe: s, marks: make([]uint64, (pieces+63)/64)}
	for i := range pieces {
		if mutant.On(mutant.NoFirstMarks) {
			break
		}
		m.marks[i/64] |= 1 << (i % 64)
	}
	off, end := r.size.Start(key.Index), r.size.Start(key.Index+1)
	s.mu.Lock()
	defer s.mu.Unlock()
	for o := s.moves; o != nil; o = o.next {
		if o.key == key {
			return nil
		}
	}
	for p := s.head; p != nil; p = p.next {
		t := p.ticket
		if t.kind == Exclusive && t.volume == key.Volume && t.off < end && off < t.end {
			return nil
		}
	}
	if !entry() {
		return nil
	}
	m.next = s.moves
	s.moves = m
	return m
}

// Take clears the first mark from piece from onwards and returns its piece. ok is
// false if there is no mark left there, or if the move was cancelled.
func (m *Move) Take(from int) (piece int, ok bool) {
	m.stripe.mu.Lock()
	defer m.stripe.mu.Unlock()
	if m.cancelled {
		return 0, false
	}
	for i := from / 64; i < len(m.marks); i++ {
		w := m.marks[i]
		if i == from/64 {
			w &^= 1<<(from%64) - 1
		}
		if w != 0 {
			b := bits.TrailingZeros64(w)
			m.marks[i] &^= 1 << b
			return i*64 + b, true
		}
	}
	return 0, false
}

// Marked returns how many pieces are marked.
func (m *Move) Marked() int {
	m.stripe.mu.Lock()
	defer m.stripe.mu.Unlock()
	n := 0
	for _, w := range m.marks {
		n += bits.OnesCount64(w)
	}
	return n
}

// Cancelled reports whether the extent was unmapped, or the move called off.
func (m *Move) Cancelled() bool {
	m.stripe.mu.Lock()
	defer m.stripe.mu.Unlock()
	return m.cancelled
}

// EndMove takes m out of the registry. Writers no longer mark it.
func (r *Registry) EndMove(m *Move) {
	m.stripe.mu.Lock()
	defer m.stripe.mu.Unlock()
	for p := &m.stripe.moves; *p != nil; p = &(*p).next {
		if *p == m {
			*p = m.next
			return
		}
	}
}

// CancelMoves calls off the moves of the extents first to last. The mover gives
// its target back itself when it notices.
func (r *Registry) CancelMoves(volume extent.VolumeID, first, last extent.Index) {
	for g := first >> groupShift; g <= last>>groupShift; g++ {
		s := &r.stripes[stripeOf(volume, g)]
		s.mu.Lock()
		for m := s.moves; m != nil; m = m.next {
			if m.key.Volume == volume && m.key.Index >= first && m.key.Index <= last {
				m.cancelled = true
			}
		}
		s.mu.Unlock()
	}
}

// mark sets the marks of the pieces of s's moves that overlap [off, end).
func (s *stripe) mark(volume extent.VolumeID, off, end int64, size extent.Size) {
	for m := s.moves; m != nil; m = m.next {
		if m.key.Volume != volume {
			continue
		}
		start := size.Start(m.key.Index)
		from, to := max(off-start, 0), min(end-start, size.Bytes())
		if from >= to {
			continue
		}
		for i := from / m.pieceSize; i <= (to-1)/m.pieceSize; i++ {
			m.marks[i/64] |= 1 << (i % 64)
		}
	}
}
