package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"tierd/nbd/load"
	"tierd/pkg/units"
)

// idealMark is how much slower the placement found may be than the ideal one.
const idealMark = 1.10

// sequence returns the offsets of all extents of a volume, in order.
func sequence(size, extent units.Size) (offsets []int64) {
	for off := int64(0); off < int64(size); off += int64(extent) {
		offsets = append(offsets, off)
	}
	return offsets
}

// coldFor is how long the load runs before anything may move.
func (o *options) coldFor() time.Duration { return max(time.Second, o.converge/10) }

// converge lets the pool find a placement, compares it with the ideal one of a second
// pool, lets the hot set move, and then goes on with hot blocks of 4 KiB.
func converge(ctx context.Context, o *options, r *report) (err error) {
	l := o.layout
	l.Volumes = []volume{{"load", o.volume, "auto"}}
	p, err := newPool(ctx, o, "auto", "", l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.remove()) }()
	if err := p.pause(ctx); err != nil {
		return err
	}
	if err := p.fill(ctx, "load", sequence(o.volume, o.Extent)); err != nil {
		return err
	}

	cold, _, err := o.put(ctx, p, "load", o.coldFor(), nil)
	if err != nil {
		return err
	}
	w := p.watch(ctx, nil)
	defer w.stop()
	if err := p.resume(ctx); err != nil {
		return err
	}
	if r.Converge, err = o.approach(ctx, p, o.seed, time.Duration(cold.Total.Mean)); err != nil {
		return err
	}

	from := p.endOfLog()
	if r.Ideal, err = o.againstIdeal(ctx, p); err != nil {
		return err
	}
	r.mark("final mean latency to that of the ideal placement", median(r.Ideal.Ratios), idealMark, true)
	if r.Ideal.Steady, err = p.tally(from); err != nil {
		return err
	}

	// The hot set moves.
	if r.Phase, err = o.approach(ctx, p, o.seed+1000, 0); err != nil {
		return err
	}
	if r.Grain, err = o.smallGrain(ctx, p); err != nil {
		return err
	}
	shots, err := w.stop()
	if err != nil {
		return err
	}
	return o.judgeBudget(ctx, p, "converge", shots, r)
}

// approach puts the load with its hot regions at place on a pool that adapts to it. It
// begins at a mean latency of cold; 0: that of its first seconds.
func (o *options) approach(ctx context.Context, p *pool, place uint64, cold time.Duration) (*approached, error) {
	offsets, shares := o.ranking(int64(o.volume), int64(o.Extent), place)
	a := new(approached)
	var err error
	if a.ColdShares, err = o.sharesOf(ctx, p, offsets, shares); err != nil {
		return nil, err
	}
	from := p.endOfLog()
	_, samples, err := o.put(ctx, p, "load", o.converge, func(s *load.Spec) { s.Place = place })
	if err != nil {
		return nil, err
	}
	if cold == 0 {
		cold = meanOf(samples[:min(3, len(samples))])
	}
	a.curve = curveOf(cold, samples)
	for _, s := range samples {
		a.MeanMS = append(a.MeanMS, ms(s.Mean))
	}
	if a.Shares, err = o.sharesOf(ctx, p, offsets, shares); err != nil {
		return nil, err
	}
	a.tally, err = p.tally(from)
	return a, err
}

// againstIdeal measures the load on p and on a pool with the ideal placement, in turns.
func (o *options) againstIdeal(ctx context.Context, p *pool) (c *compared, err error) {
	l := o.layout
	l.Volumes = []volume{{"load", o.volume, "auto"}}
	ideal, err := newPool(ctx, o, "ideal", "", l)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ideal.remove()) }()
	if err := ideal.pause(ctx); err != nil {
		return nil, err
	}
	c = new(compared)
	// First writes take the fastest slots there are: the hottest extent comes first.
	offsets, shares := o.ranking(int64(o.volume), int64(o.Extent), o.seed)
	if err := ideal.fill(ctx, "load", offsets); err != nil {
		return nil, err
	}
	if c.IdealShares, err = o.sharesOf(ctx, ideal, offsets, shares); err != nil {
		return nil, err
	}
	place, err := ideal.placement(ctx, "load")
	if err != nil {
		return nil, err
	}
	for k := 1; k < len(offsets); k++ {
		if a, b := place[offsets[k-1]/int64(o.Extent)], place[offsets[k]/int64(o.Extent)]; a > b {
			return nil, fmt.Errorf("the ideal pool is not ideal: extent %d is on tier %d, the next hottest on tier %d", offsets[k-1]/int64(o.Extent), a, b)
		}
	}
	var found, best, ratios []float64
	for round := range o.rounds {
		var m [2]float64
		for half := range 2 {
			// Both halves of a round send the same requests; which is first takes turns.
			which := (half + round) % 2
			res, _, err := o.put(ctx, []*pool{p, ideal}[which], "load", o.half, func(s *load.Spec) { s.Seed = o.seed + uint64(round) + 1 })
			if err != nil {
				return nil, err
			}
			m[which] = ms(time.Duration(res.Total.Mean))
		}
		found, best = append(found, m[0]), append(best, m[1])
		ratios = append(ratios, m[0]/m[1])
	}
	c.FoundMS, c.IdealMS, c.Ratios = median(found), median(best), ratios
	return c, nil
}

// smallGrain goes on with a load whose hot regions are blocks of 4 KiB all over the
// volume: extents can gain little there, and how much is known.
func (o *options) smallGrain(ctx context.Context, p *pool) (*grain, error) {
	const block = 4096
	offsets, shares := o.ranking(int64(o.volume), block, o.seed)
	g := new(grain)
	place, err := p.placement(ctx, "load")
	if err != nil {
		return nil, err
	}
	fast := 0
	for _, t := range place {
		if t == 0 {
			fast++
		}
	}
	before := tierShares(place, int64(o.Extent), offsets, shares)
	_, samples, err := o.put(ctx, p, "load", o.converge/2, func(s *load.Spec) { s.Grain = block })
	if err != nil {
		return nil, err
	}
	after, err := o.sharesOf(ctx, p, offsets, shares)
	if err != nil {
		return nil, err
	}
	g.curve = curveOf(meanOf(samples[:min(3, len(samples))]), samples)
	g.Before, g.After = before[0], after[0]
	g.BestExtents = bestShare(fast, int64(o.Extent), offsets, shares)
	g.BestBlocks = bestShare(fast*int(o.Extent/block), block, offsets, shares)
	return g, nil
}

// sharesOf returns how much of a load each tier gets where its extents lie now.
func (o *options) sharesOf(ctx context.Context, p *pool, offsets []int64, shares []float64) ([3]float64, error) {
	place, err := p.placement(ctx, "load")
	return tierShares(place, int64(p.Extent), offsets, shares), err
}

// uniform puts load on a filled volume that all its extents share alike.
func uniform(ctx context.Context, o *options, r *report) (err error) {
	l := o.layout
	l.Volumes = []volume{{"load", o.volume, "auto"}}
	p, err := newPool(ctx, o, "uniform", "", l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.remove()) }()
	if err := p.fill(ctx, "load", sequence(o.volume, o.Extent)); err != nil {
		return err
	}
	var shots [3]shot
	for i := range shots {
		if i > 0 {
			change := func(s *load.Spec) { s.Pattern, s.Seed = load.Uniform, o.seed+uint64(i) }
			if _, _, err := o.put(ctx, p, "load", o.converge/4, change); err != nil {
				return err
			}
		}
		if shots[i], err = p.shot(ctx, nil); err != nil {
			return err
		}
	}
	r.Uniform = &nothing{Fill: shots[0].moved, Load: shots[2].moved - shots[0].moved, Late: shots[2].moved - shots[1].moved,
		Volume: int64(o.volume), Seconds: o.converge.Seconds() / 2}
	r.mark("share of the volume moved for a uniform load", float64(r.Uniform.Load)/float64(o.volume), nothingMark, true)
	return o.judgeBudget(ctx, p, "uniform", shots[1:], r)
}

// nothingMark is which part of a volume may move where there is nothing to gain.
const nothingMark = 0.01
