package nbd

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	// inputSize is the size of an input buffer. It holds a batch of 62 writes of
	// 4 KiB, and one write of inlineWrite bytes with room to spare.
	inputSize = 256 << 10
	// outputSize holds one read of inlineRead bytes and its header.
	outputSize = 256<<10 + 4<<10
	// inlineRead and inlineWrite are the longest requests, in bytes, that the
	// leader serves itself; copying more would hold up those behind.
	inlineRead  = 256 << 10
	inlineWrite = 192 << 10
	// inlineRange is the longest trim or write-zeroes the leader runs itself.
	inlineRange = 1 << 20
	// flushAt is the length of finished replies worth a system call of their own.
	flushAt = 64 << 10
	// maxBacklog is how many bytes of the leader's replies may wait behind
	// another writer before the leader stops reading requests.
	maxBacklog = 1 << 20
	// smallRequest is how much of a request is always let in when its connection
	// has nothing in flight, whatever the server's budget says: so that clients
	// that hold the budget cannot starve one that does not.
	smallRequest = 1 << 20
	// requestOverhead is what a request in flight is charged beside its payload.
	requestOverhead = 512
)

// A buffer is an input or output buffer: b[pos:end] is in use.
type buffer struct {
	b        []byte
	pos, end int
	// refs counts, after a hand-off, the two sides that let go of an input buffer.
	refs atomic.Int32
}

var inputPool = sync.Pool{New: func() any { return &buffer{b: make([]byte, inputSize)} }}
var outputPool = sync.Pool{New: func() any { return &buffer{b: make([]byte, outputSize)} }}

func getBuffer(p *sync.Pool) *buffer {
	b := p.Get().(*buffer)
	b.pos, b.end = 0, 0
	b.refs.Store(0)
	return b
}

// A payload is a piece of memory for one request that does not live in a
// connection's buffers. Its start is aligned to 4 KiB, for direct I/O.
type payload struct {
	b     []byte // the whole of it
	class int
}

const (
	minClass = 12 // 4 KiB
	maxClass = 25 // 32 MiB, wire.MaxPayload
)

// payloadPools are by power of two. The allocator aligns powers of two from
// 4 KiB to 4 KiB at least, which a test holds it to.
var payloadPools [maxClass + 1]sync.Pool

// getPayload returns a payload of at least n bytes, at most wire.MaxPayload.
func getPayload(n int) *payload {
	class := minClass
	if n > 1<<minClass {
		class = bits.Len(uint(n - 1))
	}
	if p, ok := payloadPools[class].Get().(*payload); ok {
		return p
	}
	return &payload{b: make([]byte, 1<<class), class: class}
}

func (p *payload) put() { payloadPools[p.class].Put(p) }

// A budget bounds the bytes of all requests in flight in a server. Whoever gets
// none waits for the next release, and tries again.
type budget struct {
	mu       sync.Mutex
	free     int64
	released chan struct{} // closed at the next release; nil: nobody waits for one
}

// take takes n bytes. If there are fewer, it takes none and returns a channel
// that is closed at the next release.
func (b *budget) take(n int64) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.free >= n {
		b.free -= n
		return nil
	}
	if b.released == nil {
		b.released = make(chan struct{})
	}
	return b.released
}

// force takes n bytes though they may not be there.
func (b *budget) force(n int64) {
	b.mu.Lock()
	b.free -= n
	b.mu.Unlock()
}

// give gives n bytes back.
func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	if b.released != nil {
		close(b.released)
		b.released = nil
	}
}
