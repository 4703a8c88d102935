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
	// maxBetween is how many requests of the volume may come between two of a stream: a disk
	// that has to serve more streams than that at a time seeks for each of their requests.
	// And without it random requests to a small hot region would count as sequential as soon
	// as each of its blocks was used once: before every block there is an end of a run.
	maxBetween = 32
)

// run is what is known of the stream that ends at one place, in a word:
//
//	bits  0..35  end of the run, in units of 512 bytes, modulo 2^36
//	bits 36..46  its length in the same unit, at most 2047 (1 MiB)
//	bits 47..49  its requests, at most 7
//	bits 50..63  number of its last request among those of the volume, modulo 2^14
//
// 0 is no run.
type run uint64

const (
	sector    = 9
	endMask   = 1<<36 - 1
	countMask = 1<<14 - 1
)

func newRun(end, sectors, requests, number uint64) run {
	return run(end&endMask | min(sectors, 1<<11-1)<<36 | min(requests, 1<<3-1)<<47 | number&countMask<<50)
}

func (r run) end() uint64      { return uint64(r) & endMask }
func (r run) sectors() uint64  { return uint64(r) >> 36 & (1<<11 - 1) }
func (r run) requests() uint64 { return uint64(r) >> 47 & (1<<3 - 1) }

// fresh reports whether no more than maxBetween requests came since. Two that race may
// have each other's numbers: the later one then finds one from just ahead.
func (r run) fresh(number uint64) bool {
	return (number+maxBetween-uint64(r)>>50)&countMask <= 2*maxBetween
}

func (r run) sequential() bool {
	return r.requests() >= runRequests || r.sectors() >= runBytes>>sector
}

type streams struct {
	ends     [streamSlots]atomic.Uint64
	requests atomic.Uint64
}

// slot spreads ends over the table by Fibonacci hashing: neighbours and equal
// strides do not meet.
func (s *streams) slot(end uint64) *atomic.Uint64 {
	return &s.ends[(end*0x9E3779B97F4A7C15)>>(64-9)]
}

// endingAt returns the run that ended at sector a short while before the request of that
// number, or 0.
func (s *streams) endingAt(sector, number uint64) run {
	r := run(s.slot(sector & endMask).Load())
	if r == 0 || r.end() != sector&endMask || !r.fresh(number) {
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
	number := s.requests.Add(1)

	// Join it to the run it continues, and that one to what it continued.
	sectors, requests := length, uint64(1)
	for range maxJoins {
		r := s.endingAt(end-sectors, number)
		if r == 0 {
			break
		}
		sectors += r.sectors()
		requests += r.requests()
		if r.sequential() {
			break
		}
	}
	joined := newRun(end, sectors, requests, number)

	// A request that is ahead of the others of its stream is part of it.
	if requests == 1 && !joined.sequential() {
		for gap := uint64(1); gap <= maxAhead; gap++ {
			if r := s.endingAt(start-gap*length, number); r.sequential() {
				joined = newRun(end, sectors+r.sectors(), requests+r.requests(), number)
				break
			}
		}
	}
	s.slot(end & endMask).Store(uint64(joined))
	return joined.sequential()
}
