package heat

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"tierd/tiering/extent"
)

// touch is one access to one extent on its way to the scores. It holds no
// pointer, so that a buffer of them is nothing to the garbage collector.
type touch struct {
	index  extent.Index
	volume uint32  // Volume.ref
	weight float32 // slow-device seconds
}

const (
	shardCount = 16   // power of two
	batchLen   = 1024 // touches in a buffer: 16 KiB
	maxBatches = 512  // buffers in existence, 8 MiB: half a million touches between two drains
	hurryAt    = 128  // full buffers from which an early drain is asked for
)

type batch struct {
	n       int
	touches [batchLen]touch
}

// shard is one of the buffers that touches go to, picked at random so that
// requests on several processors seldom meet.
type shard struct {
	mu  sync.Mutex
	cur *batch // nil: none was to be had
	_   [48]byte
}

// buffers takes touches from many goroutines and hands them to one. Lock order:
// shard.mu, then buffers.mu.
type buffers struct {
	shards  [shardCount]shard
	dropped atomic.Uint64
	hurry   chan struct{}
	inOrder bool // all touches go to the first shard, see Tracker.InOrder

	mu    sync.Mutex
	full  []*batch
	spare []*batch
	made  int
}

func newBuffers() *buffers {
	b := &buffers{hurry: make(chan struct{}, 1)}
	for i := range b.shards {
		b.shards[i].cur = new(batch)
	}
	b.made = shardCount
	return b
}

// push waits for nobody: a shard that is held, perhaps by a goroutine whose thread
// was just descheduled, is passed over, and if no shard or no buffer is to be had
// the touch is lost and counted.
func (b *buffers) push(t touch) {
	first := uint32(0)
	if !b.inOrder {
		first = rand.Uint32()
	}
	for i := range uint32(shardCount) {
		s := &b.shards[(first+i)&(shardCount-1)]
		if !s.mu.TryLock() {
			continue
		}
		c := s.cur
		if c == nil || c.n == batchLen {
			c = b.swap(c)
			s.cur = c
		}
		if c != nil {
			c.touches[c.n] = t
			c.n++
		}
		s.mu.Unlock()
		if c == nil {
			b.dropped.Add(1)
		}
		return
	}
	b.dropped.Add(1)
}

// swap files a full buffer and returns an empty one, or nil.
func (b *buffers) swap(old *batch) *batch {
	b.mu.Lock()
	defer b.mu.Unlock()
	if old != nil {
		b.full = append(b.full, old)
		if len(b.full) >= hurryAt {
			select {
			case b.hurry <- struct{}{}:
			default:
			}
		}
	}
	if n := len(b.spare); n > 0 {
		c := b.spare[n-1]
		b.spare = b.spare[:n-1]
		return c
	}
	if b.made == maxBatches {
		return nil
	}
	b.made++
	return new(batch)
}

// drain calls apply with all touches pushed before. One caller at a time.
func (b *buffers) drain(apply func([]touch)) {
	b.mu.Lock()
	full := b.full
	b.full = nil
	b.mu.Unlock()
	for _, c := range full {
		b.give(c, apply)
	}
	for i := range b.shards {
		s := &b.shards[i]
		s.mu.Lock()
		c := s.cur
		if c == nil || c.n == 0 {
			s.mu.Unlock()
			continue
		}
		s.cur = b.swap(nil)
		s.mu.Unlock()
		b.give(c, apply)
	}
}

func (b *buffers) give(c *batch, apply func([]touch)) {
	apply(c.touches[:c.n])
	c.n = 0
	b.mu.Lock()
	b.spare = append(b.spare, c)
	b.mu.Unlock()
}
