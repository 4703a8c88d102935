package plan

import "math"

// histogram counts rates in 256 buckets of a quarter of an octave, from 2^-40
// to 2^24 accesses a second; what lies outside falls into the end buckets. It
// tells how many extents a list that had to stop short left out.
type histogram [256]int64

// bucket takes the exponent and the two leading bits of the mantissa: a
// logarithm within the precision wanted, without computing one.
func bucket(rate float64) int {
	const lowest = (1023 - 40) << 2
	if !(rate > 0) {
		return 0
	}
	return min(max(int(math.Float64bits(rate)>>50)-lowest, 0), len(histogram{})-1)
}

func (h *histogram) add(rate float64) { h[bucket(rate)]++ }

// above returns how many rates lie in buckets wholly above rate.
func (h *histogram) above(rate float64) int64 {
	var n int64
	for _, c := range h[min(bucket(rate)+1, len(h)):] {
		n += c
	}
	return n
}
