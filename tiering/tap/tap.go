package tap

import (
	"sync/atomic"
	"time"
)

const (
	ringLen = 1 << 18     // power of two; places of 32 bytes, 8 MiB
	hurryAt = ringLen / 8 // pushes after which an early drain is asked for
	opBits  = 3           // of a place's word with time and kind

	// MaxDrain is how many accesses Drain returns at most.
	MaxDrain = 4096
)

// Access is one request.
type Access struct {
	// At is when it came, since the Tap was made.
	At time.Duration
	// Off and Len are its range in bytes.
	Off, Len int64
	// Op says what was asked, in the numbers of whoever calls Push, 0 to 7.
	Op uint8
}

// place is one of the ring.
type place struct {
	published atomic.Uint64 // its number + 1, once the rest is written
	atOp      int64         // time and kind
	off, len  int64
}

// A Tap takes note of requests. Push may be called from anywhere, Drain by one
// goroutine.
type Tap struct {
	start   time.Time
	ring    []place
	hurry   chan struct{}
	dropped atomic.Uint64

	_    [64]byte // head changes with every request, tail seldom
	head atomic.Uint64
	_    [56]byte
	tail atomic.Uint64

	out []Access // of the goroutine that drains
}

// New returns a Tap whose time begins at start.
func New(start time.Time) *Tap {
	t := &Tap{start: start, ring: make([]place, ringLen), hurry: make(chan struct{}, 1), out: make([]Access, 0, MaxDrain)}
	for i := range t.ring {
		t.ring[i].off = -1 // the memory is there before a request needs it
	}
	return t
}

// Push notes a request of n bytes at off that came at a time. It allocates nothing
// and waits for nobody: if there is no room, the request is counted as dropped.
func (t *Tap) Push(op uint8, off, n int64, at time.Time) {
	for {
		seq := t.head.Load()
		if seq-t.tail.Load() >= ringLen {
			t.dropped.Add(1)
			return
		}
		if !t.head.CompareAndSwap(seq, seq+1) {
			continue
		}
		p := &t.ring[seq&(ringLen-1)]
		p.atOp, p.off, p.len = int64(at.Sub(t.start))<<opBits|int64(op), off, n
		p.published.Store(seq + 1)
		if (seq+1)%hurryAt == 0 {
			select {
			case t.hurry <- struct{}{}:
			default:
			}
		}
		return
	}
}

// Full delivers when so much waits that a Drain ahead of time would keep some
// accesses from being dropped.
func (t *Tap) Full() <-chan struct{} { return t.hurry }

// Dropped returns how many requests were not noted so far.
func (t *Tap) Dropped() uint64 { return t.dropped.Load() }

// Drain returns the oldest accesses that were not returned before, in their order, at
// most MaxDrain: of those whose Push has returned all, unless one before them is still
// being written. They are valid until the next call.
func (t *Tap) Drain() []Access {
	t.out = t.out[:0]
	for seq := t.tail.Load(); ; seq++ {
		p := &t.ring[seq&(ringLen-1)]
		if p.published.Load() != seq+1 || len(t.out) == MaxDrain {
			t.tail.Store(seq)
			return t.out
		}
		t.out = append(t.out, Access{At: time.Duration(p.atOp >> opBits), Off: p.off, Len: p.len, Op: uint8(p.atOp & (1<<opBits - 1))})
	}
}
