package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"tierd/nbd/load"
)

// put puts load on a volume for some time. change adapts it.
func (o *options) put(ctx context.Context, p *pool, volume string, d time.Duration, change func(*load.Spec)) (*load.Result, []load.Sample, error) {
	var samples []load.Sample
	s := load.NewSpec(p.uri(volume))
	s.Pattern, s.Theta, s.Grain = load.Zipf, o.theta, int64(p.Extent)
	s.ReadShare, s.Depth, s.Rate, s.Duration = 0.7, o.depth, o.rate, d
	s.Seed, s.Place = o.seed, o.seed
	s.OnInterval = func(m load.Sample) { samples = append(samples, m) }
	if change != nil {
		change(&s)
	}
	res, err := load.Run(ctx, s)
	if err == nil && len(res.Errors) > 0 {
		err = fmt.Errorf("requests failed: %v", res.Errors)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("load on %s: %w", volume, err)
	}
	return res, samples, nil
}

// ranking returns the offsets of the regions of a load, hottest first, and their shares.
func (o *options) ranking(size, grain int64, place uint64) (offsets []int64, shares []float64) {
	s := load.NewSpec("")
	s.Pattern, s.Theta, s.Grain, s.Place = load.Zipf, o.theta, grain, place
	offsets = s.Ranking(size)
	all := 0.0
	for k := range offsets {
		shares = append(shares, math.Pow(float64(k+1), -o.theta))
		all += shares[k]
	}
	for k := range shares {
		shares[k] /= all
	}
	return offsets, shares
}

// tierShares returns how much of a load goes to each tier, by the true popularity of its
// regions and where the extents lie.
func tierShares(place []byte, extent int64, offsets []int64, shares []float64) (t [3]float64) {
	for k, off := range offsets {
		if i := off / extent; int(i) < len(place) && int(place[i]) < len(t) {
			t[place[i]] += shares[k]
		}
	}
	return t
}

// bestShare returns how much of a load the n extents with most of it get.
func bestShare(n int, extent int64, offsets []int64, shares []float64) (share float64) {
	by := make(map[int64]float64)
	for k, off := range offsets {
		by[off/extent] += shares[k]
	}
	var list []float64
	for _, s := range by {
		list = append(list, s)
	}
	slices.Sort(list)
	for i := range min(n, len(list)) {
		share += list[len(list)-1-i]
	}
	return share
}

// meanOf returns the mean latency in samples.
func meanOf(samples []load.Sample) time.Duration {
	var sum time.Duration
	var n int64
	for _, s := range samples {
		sum += s.Mean * time.Duration(s.Ops)
		n += s.Ops
	}
	if n == 0 {
		return 0
	}
	return sum / time.Duration(n)
}

// A curve is how the latency of a load came down.
type curve struct {
	Cold  float64 `json:"cold_ms"`
	Final float64 `json:"final_ms"`
	// Reach90 is when the mean of smooth samples was the first time where 90 % of the
	// final gain is; negative if there is no gain.
	Reach90 float64 `json:"seconds_to_90_percent"`
}

const smooth = 4 // samples

// curveOf returns the curve of a load that began at a mean latency of cold; the last
// quarter of its samples is the end.
func curveOf(cold time.Duration, samples []load.Sample) curve {
	final := meanOf(samples[len(samples)*3/4:])
	c := curve{Cold: ms(cold), Final: ms(final), Reach90: -1}
	if final >= cold {
		return c
	}
	goal := cold - (cold-final)*9/10
	for i := range samples {
		if from := i + 1 - smooth; from >= 0 && meanOf(samples[from:i+1]) <= goal {
			c.Reach90 = samples[i].At.Seconds()
			break
		}
	}
	return c
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// median returns the middle one of some values, of an even number the upper.
func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	l := slices.Clone(list)
	slices.Sort(l)
	return l[len(l)/2]
}
