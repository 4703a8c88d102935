package tap

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	shardCount = 16   // power of two
	batchLen   = 1024 // accesses in a buffer: 40 KiB
	batchCount = 256  // buffers of a Tap, 10 MiB
	hurryAt    = 32   // full buffers from which an early drain is asked for
)

// Access is one request.
type Access struct {
	// At is when it came, since the Tap was made.
	At time.Duration
	// Off and Len are its range in bytes.
	Off, Len int64
	// Op says what was asked, in the numbers of whoever calls Push.
	Op uint8

	seq uint64 // its place in the order
}

type batch struct {
	n        int
	accesses [batchLen]Access
}

// shard is one of the buffers that accesses go to, picked at random so that
// requests on several processors seldom meet.
type shard struct {
	mu  sync.Mutex
	cur *batch
	_   [48]byte
}

// A Tap takes note of requests. Push may be called from anywhere, Drain by one
// goroutine.
type Tap struct {
	start   time.Time
	full    chan *batch // room for all: sending never waits
	spare   chan *batch
	hurry   chan struct{}
	dropped atomic.Uint64

	_      [64]byte
	seq    atomic.Uint64 // number of the next access; taken with a shard locked
	_      [56]byte
	shards [shardCount]shard

	// Of the goroutine that drains.
	next  uint64   // number of the first access not returned yet
	ahead []Access // taken out of the shards, and to be returned later
	older []Access // what ahead was before, for its memory
	out   []Access
}

// New returns a Tap whose time begins at start.
func New(start time.Time) *Tap {
	t := &Tap{start: start, full: make(chan *batch, batchCount), spare: make(chan *batch, batchCount), hurry: make(chan struct{}, 1)}
	all := make([]batch, batchCount)
	for i := range all {
		if i < shardCount {
			t.shards[i].cur = &all[i]
		} else {
			t.spare <- &all[i]
		}
	}
	return t
}

// Push notes a request of n bytes at off that came at a time. It allocates nothing
// and waits for nobody: if there is no room, the request is counted as dropped.
func (t *Tap) Push(op uint8, off, n int64, at time.Time) {
	first := rand.Uint32()
	for i := range uint32(shardCount) {
		s := &t.shards[(first+i)&(shardCount-1)]
		if !s.mu.TryLock() {
			continue
		}
		c := s.cur
		if c.n == batchLen {
			c = t.swap(s)
		}
		if c != nil {
			c.accesses[c.n] = Access{At: at.Sub(t.start), Off: off, Len: n, Op: op, seq: t.seq.Add(1) - 1}
			c.n++
		}
		s.mu.Unlock()
		if c == nil {
			t.dropped.Add(1)
		}
		return
	}
	t.dropped.Add(1)
}

// swap files the buffer of s, which the caller has locked, and returns an empty one
// in its place; nil, with everything as before, if there is none.
func (t *Tap) swap(s *shard) *batch {
	select {
	case c := <-t.spare:
		t.full <- s.cur
		s.cur = c
		if len(t.full) >= hurryAt {
			select {
			case t.hurry <- struct{}{}:
			default:
			}
		}
		return c
	default:
		return nil
	}
}

// Full delivers when so much waits that a Drain ahead of time would keep some
// accesses from being dropped.
func (t *Tap) Full() <-chan struct{} { return t.hurry }

// Dropped returns how many requests were not noted so far.
func (t *Tap) Dropped() uint64 { return t.dropped.Load() }

// Drain returns the accesses pushed since the last call, in their order. They are
// valid until the next call.
func (t *Tap) Drain() []Access {
	// 1. Every number below the mark was taken by someone who holds a shard, or has
	// left it. Numbers at or above it may still have gaps.
	mark := t.seq.Load()
	n := int(mark - t.next)
	if cap(t.out) < n {
		t.out = make([]Access, n)
	}
	t.out = t.out[:n]
	t.ahead, t.older = t.older[:0], t.ahead
	t.place(t.older, mark)

	// 2. What is in the shards.
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		if s.cur.n > 0 {
			if t.swap(s) == nil {
				// None to spare, so all are full: it is emptied here and now.
				t.place(s.cur.accesses[:s.cur.n], mark)
				s.cur.n = 0
			}
		}
		s.mu.Unlock()
	}

	// 3. What was full before, and those just taken.
	for range len(t.full) {
		c := <-t.full
		t.place(c.accesses[:c.n], mark)
		c.n = 0
		t.spare <- c
	}
	t.next = mark
	return t.out
}

// place puts accesses where they belong among those returned, or aside.
func (t *Tap) place(accesses []Access, mark uint64) {
	for i := range accesses {
		if a := &accesses[i]; a.seq < mark {
			t.out[a.seq-t.next] = *a
		} else {
			t.ahead = append(t.ahead, *a)
		}
	}
}
