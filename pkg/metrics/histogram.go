package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Namespace is the first part of every metric's name.
const Namespace = "tierd"

// bounds are the upper bounds of the latency buckets: from a hit in the page
// cache to a disk that is giving up.
var bounds = [...]time.Duration{
	2 * time.Microsecond, 5 * time.Microsecond, 10 * time.Microsecond, 20 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	1 * time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	1 * time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
}

// A Histogram counts durations in fixed buckets. The zero Histogram is ready;
// it is safe for concurrent use and never allocates.
type Histogram struct {
	counts [len(bounds) + 1]atomic.Uint64
	nanos  atomic.Uint64
}

// Observe counts d.
func (h *Histogram) Observe(d time.Duration) {
	lo, hi := 0, len(bounds)
	for lo < hi {
		if mid := (lo + hi) / 2; d <= bounds[mid] {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	h.counts[lo].Add(1)
	h.nanos.Add(uint64(max(d, 0)))
}

// Count returns how many durations were observed.
func (h *Histogram) Count() uint64 {
	var n uint64
	for i := range h.counts {
		n += h.counts[i].Load()
	}
	return n
}

// Sum returns the sum of all durations observed.
func (h *Histogram) Sum() time.Duration { return time.Duration(h.nanos.Load()) }

// Metric returns the histogram as it stands, in seconds, for a collector.
func (h *Histogram) Metric(desc *prometheus.Desc, labels ...string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(bounds))
	var n uint64
	for i := range bounds {
		n += h.counts[i].Load()
		buckets[bounds[i].Seconds()] = n
	}
	n += h.counts[len(bounds)].Load()
	return prometheus.MustNewConstHistogram(desc, n, h.Sum().Seconds(), buckets, labels...)
}
