package main

import (
	"math"
	"slices"
)

// median returns the middle value, the mean of the two middle ones of an even
// number, and 0 of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// geomean returns the geometric mean. It is 0 of none, and if any value is 0 or less.
func geomean(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range values {
		if v <= 0 {
			return 0
		}
		sum += math.Log(v)
	}
	return math.Exp(sum / float64(len(values)))
}

// A ratio says how two servers compare over the rounds of a workload.
type ratio struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// paired returns the ratio of ours to theirs, round by round. Rounds that one of
// them lacks, or in which theirs did nothing, do not count.
func paired(ours, theirs []sample) ratio {
	var all []float64
	for i := range min(len(ours), len(theirs)) {
		if theirs[i].IOPS > 0 {
			all = append(all, ours[i].IOPS/theirs[i].IOPS)
		}
	}
	if len(all) == 0 {
		return ratio{}
	}
	return ratio{Median: median(all), Min: slices.Min(all), Max: slices.Max(all)}
}

// A sample is one measurement.
type sample struct {
	IOPS  float64 `json:"iops"`
	Bytes float64 `json:"bytes_per_second"`
	Mean  float64 `json:"mean_us"`
	P99   float64 `json:"p99_us"`
	CPU   float64 `json:"cpu_us_per_request"` // of the server's process
}

// middle returns the medians of all figures, each by itself.
func middle(samples []sample) sample {
	pick := func(f func(sample) float64) float64 {
		values := make([]float64, len(samples))
		for i, s := range samples {
			values[i] = f(s)
		}
		return median(values)
	}
	return sample{
		IOPS:  pick(func(s sample) float64 { return s.IOPS }),
		Bytes: pick(func(s sample) float64 { return s.Bytes }),
		Mean:  pick(func(s sample) float64 { return s.Mean }),
		P99:   pick(func(s sample) float64 { return s.P99 }),
		CPU:   pick(func(s sample) float64 { return s.CPU }),
	}
}
