package tiering

import (
	"sync/atomic"
	"time"

	"tierd/pkg/metrics"
)

// Op is a kind of request, for statistics.
type Op uint8

// The kinds of requests.
const (
	OpRead Op = iota
	OpWrite
	OpTrim
	OpZero
	OpFlush
	opCount
)

var opNames = [opCount]string{"read", "write", "trim", "write_zeroes", "flush"}

func (o Op) String() string { return opNames[o] }

// opStats counts requests of one kind.
type opStats struct {
	latency metrics.Histogram
	bytes   atomic.Uint64
	errors  atomic.Uint64
}

// done counts one request without payload.
func (s *opStats) done(took time.Duration, err error) {
	s.latency.Observe(took)
	if err != nil {
		s.errors.Add(1)
	}
}

// ioStats counts the requests of a volume, a tier or a backing.
type ioStats struct {
	ops [opCount]opStats
	// hits are reads answered without waiting for a device, misses those that
	// had to ask one.
	hits, misses atomic.Uint64
}

func (s *ioStats) done(op Op, n int64, took time.Duration, err error) {
	o := &s.ops[op]
	o.latency.Observe(took)
	if err != nil {
		o.errors.Add(1)
		return
	}
	o.bytes.Add(uint64(n))
}

// OpCounts is what was counted of one kind of request.
type OpCounts struct {
	Requests, Bytes, Errors uint64
	Time                    time.Duration // sum of latencies
}

func (s *ioStats) counts() map[string]OpCounts {
	m := make(map[string]OpCounts, opCount)
	for op := range opCount {
		o := &s.ops[op]
		m[op.String()] = OpCounts{Requests: o.latency.Count(), Bytes: o.bytes.Load(), Errors: o.errors.Load(), Time: o.latency.Sum()}
	}
	return m
}
