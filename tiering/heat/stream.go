package heat

import "sync/atomic"

// A volume's requests form streams: runs of requests that continue each other.
// Each stream is remembered by the place where its next request will start. A
// client may spread one stream over several connections and requests may be seen
// out of order, so that the chain is kept per volume, joined to what ends where a
// run began, and allowed small gaps. All without a lock: two requests that race
// for a word lose at most one link of a chain, which the joining makes good.

// Limits from which a run counts as sequential.
const (
	runRequests = 4
	runBytes    = 512 << 10
)

const (
	streamSlots = 512 // ends remembered per volume, 4 KiB
	maxJoins    = 4   // runs that a request may tie together
	maxAhead    = 3   // requests that may be missing before it
)

// run is what is known of the stream that ends at one place, in a word:
//
//	bits  0..39  end of the run, in units of 512 bytes, modulo 2^40
//	bits 40..55  its length in the same unit, at most 65535 (32 MiB)
//	bits 56..63  its requests, at most 255
//
// 0 is no run.
type run uint64

const (
	sector  = 9
	endMask = 1<<40 - 1
)

func newRun(end, sectors, requests uint64) run {
	return run(end&endMask | min(sectors, 1<<16-1)<<40 | min(requests, 1<<8-1)<<56)
}

func (r run) end() uint64      { return uint64(r) & endMask }
func (r run) sectors() uint64  { return uint64(r) >> 40 & (1<<16 - 1) }
func (r run) requests() uint64 { return uint64(r) >> 56 }

func (r run) sequential() bool {
	return r.requests() >= runRequests || r.sectors() >= runBytes>>sector
}

type streams [streamSlots]atomic.Uint64

// slot spreads ends over the table by Fibonacci hashing: neighbours and equal
// strides do not meet.
func (s *streams) slot(end uint64) *atomic.Uint64 {
	return &s[(end*0x9E3779B97F4A7C15)>>(64-9)]
}

// endingAt returns the run that ends at sector, or 0.
func (s *streams) endingAt(sector uint64) run {
	r := run(s.slot(sector & endMask).Load())
	if r == 0 || r.end() != sector&endMask {
		return 0
	}
	return r
}

// request notes an access of n bytes at off and reports whether it belongs to a
// sequential run.
func (s *streams) request(off, n int64) bool {
	start := uint64(off) >> sector
	end := uint64(off+n+1<<sector-1) >> sector
	length := end - start

	// Join it to the run it continues, and that one to what it continued.
	sectors, requests := length, uint64(1)
	for range maxJoins {
		r := s.endingAt(end - sectors)
		if r == 0 {
			break
		}
		sectors += r.sectors()
		requests += r.requests()
		if r.sequential() {
			break
		}
	}
	joined := newRun(end, sectors, requests)

	// A request that is ahead of the others of its stream is part of it.
	if requests == 1 && !joined.sequential() {
		for gap := uint64(1); gap <= maxAhead; gap++ {
			if r := s.endingAt(start - gap*length); r.sequential() {
				joined = newRun(end, sectors+r.sectors(), requests+r.requests())
				break
			}
		}
	}
	s.slot(end & endMask).Store(uint64(joined))
	return joined.sequential()
}
