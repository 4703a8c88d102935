package load

import (
	"math/bits"
	"time"
)

const (
	subBits = 6
	buckets = (63 - subBits + 1) << subBits
)

// A Histogram counts durations in buckets whose width is 1/64 of the power of
// two below them (1 ns up to 128 ns). The zero value is empty. It is for one
// goroutine.
type Histogram struct {
	counts [buckets]uint64
	n      uint64
	sum    int64
	max    int64
}

func bucketOf(v int64) int {
	if v < 1<<subBits {
		return int(v)
	}
	e := bits.Len64(uint64(v)) - 1
	return (e-subBits+1)<<subBits + int(v>>(e-subBits))&(1<<subBits-1)
}

// bucketTop returns the largest value in bucket i.
func bucketTop(i int) int64 {
	if i < 1<<subBits {
		return int64(i)
	}
	shift := i>>subBits - 1
	return (int64(1<<subBits+i&(1<<subBits-1))+1)<<shift - 1
}

// Add counts d; a negative one as 0.
func (h *Histogram) Add(d time.Duration) {
	v := max(int64(d), 0)
	h.counts[bucketOf(v)]++
	h.n++
	h.sum += v
	h.max = max(h.max, v)
}

// Merge adds the counts of o.
func (h *Histogram) Merge(o *Histogram) {
	if o.n == 0 {
		return
	}
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// Count returns the number of durations counted.
func (h *Histogram) Count() int64 { return int64(h.n) }

// Mean returns the exact mean; 0 if empty.
func (h *Histogram) Mean() time.Duration {
	if h.n == 0 {
		return 0
	}
	return time.Duration(h.sum / int64(h.n))
}

// Max returns the exact maximum.
func (h *Histogram) Max() time.Duration { return time.Duration(h.max) }

// Quantile returns a value that a share q (0 to 1) of the durations do not
// exceed, at most 1/64 above the smallest such value.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	want := uint64(q * float64(h.n))
	if float64(want) < q*float64(h.n) || want == 0 {
		want++
	}
	var seen uint64
	for i, c := range h.counts {
		if seen += c; seen >= want {
			return time.Duration(min(bucketTop(i), h.max))
		}
	}
	return h.Max()
}
