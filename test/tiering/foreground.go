package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tierd/nbd/load"
	"tierd/pkg/control"
	"tierd/pkg/units"
)

// foregroundMark is how much slower the 99th percentile may be while extents move.
const foregroundMark = 1.25

// foreground measures the load with and without movement. Its extents stay where they
// are, in three volumes whose policies name their tiers; what moves is a volume that is
// sent from the one slow tier to the other and back.
func foreground(ctx context.Context, o *options, r *report) (err error) {
	_, shares := o.ranking(int64(o.volume), int64(o.Extent), o.seed)
	round := func(n units.Size) units.Size { return n / o.Extent * o.Extent }
	fast := round(o.SSD * 3 / 4)
	mid := round(o.FC / 2)
	slow := o.volume - fast - mid
	moving := round(o.FC * 3 / 8)
	l := o.layout
	l.PerCycle = max(o.PerCycle, units.Size(float64(o.Rate)*o.Cycle.Seconds()))
	l.Volumes = []volume{{"fast", fast, "ssd"}, {"mid", mid, "fc"}, {"slow", slow, "sata"}, {"moving", moving, "sata"}}
	p, err := newPool(ctx, o, "foreground", "", l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.remove()) }()
	for _, v := range l.Volumes {
		if err := p.fill(ctx, v.Name, sequence(v.Size, o.Extent)); err != nil {
			return err
		}
	}
	// What the popularity of the ranks says, the hottest in the fastest tier.
	var parts [3]float64
	n, m := int(fast/o.Extent), int((fast+mid)/o.Extent)
	for k, s := range shares {
		switch {
		case k < n:
			parts[0] += s
		case k < m:
			parts[1] += s
		default:
			parts[2] += s
		}
	}
	w := p.watch(ctx, nil)
	defer w.stop()
	f := front{Parts: parts}
	target := "sata"
	var with, without, ratios, means []float64
	var movedFor time.Duration
	for i := range o.rounds {
		var p99, mean [2]float64
		for half := range 2 {
			which := (half + i) % 2
			var before int64
			begin := time.Now()
			if which == 1 {
				if target, err = p.keepMoving(ctx, target, o.half); err != nil {
					return err
				}
				s, err := p.shot(ctx, nil)
				if err != nil {
					return err
				}
				before, begin = s.moved, time.Now()
			} else if err := p.pause(ctx); err != nil {
				return err
			}
			h, err := o.mixture(ctx, p, parts, o.seed+uint64(i))
			if err != nil {
				return err
			}
			if which == 1 {
				s, err := p.shot(ctx, nil)
				if err != nil {
					return err
				}
				f.Moved += s.moved - before
				movedFor += time.Since(begin)
			}
			p99[which], mean[which] = ms(h.Quantile(0.99)), ms(h.Mean())
		}
		without, with = append(without, p99[0]), append(with, p99[1])
		ratios = append(ratios, p99[1]/p99[0])
		means = append(means, mean[1]/mean[0])
	}
	shots, err := w.stop()
	if err != nil {
		return err
	}
	f.Without, f.With, f.Ratios, f.MeanRatio = median(without), median(with), ratios, median(means)
	f.MovedPerSecond = float64(f.Moved) / movedFor.Seconds()
	r.Foreground = &f
	if f.Moved == 0 && !o.quick {
		return fmt.Errorf("nothing moved, so that nothing was measured")
	}
	r.mark("p99 with movement to that without", median(ratios), foregroundMark, true)
	return o.judgeBudget(ctx, p, "foreground", shots, r)
}

// keepMoving sees to it that there is something to move for half as long again as d,
// and returns the tier to which.
func (p *pool) keepMoving(ctx context.Context, target string, d time.Duration) (string, error) {
	list, err := p.admin.Volumes(ctx)
	if err != nil {
		return target, err
	}
	left := int64(0)
	for _, v := range list {
		if v.Name != "moving" {
			continue
		}
		for _, t := range v.PerTier {
			if t.Tier != target {
				left += t.Bytes
			}
		}
	}
	if float64(left) < 1.5*d.Seconds()*float64(p.Rate) {
		target = map[string]string{"sata": "fc", "fc": "sata"}[target]
		if _, err := p.admin.VolumeSet(ctx, control.VolumeSetRequest{Name: "moving", Policy: &target}); err != nil {
			return target, err
		}
	}
	if err := p.resume(ctx); err != nil {
		return target, err
	}
	_, err = p.admin.RelocationRun(ctx, control.RelocationRunRequest{})
	return target, err
}

// mixture puts load on the three volumes at the same time, each with its share.
func (o *options) mixture(ctx context.Context, p *pool, parts [3]float64, seed uint64) (*load.Histogram, error) {
	var all load.Histogram
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs [3]error
	rate := o.rate
	if rate == 0 {
		rate = 250 // of three loads that wait for their own answers none would keep its share
	}
	for i, name := range []string{"fast", "mid", "slow"} {
		wg.Go(func() {
			res, _, err := o.put(ctx, p, name, o.half, func(s *load.Spec) {
				s.Pattern, s.Seed, s.Rate, s.Interval = load.Uniform, seed*3+uint64(i)+1, rate*parts[i], 0
			})
			if errs[i] = err; err == nil {
				mu.Lock()
				all.Merge(res.Latencies)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return &all, errors.Join(errs[:]...)
}
