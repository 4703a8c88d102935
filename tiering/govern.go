package tiering

import (
	"context"
	"time"

	"tierd/tiering/schedule"
)

// govern keeps the rate of copying to what clients bear: see schedule.Governor. Requests
// count that went to a backing; those that memory answered say nothing about it.
func (r *relocator) govern(ctx context.Context) {
	var g schedule.Governor
	var samples []schedule.Sample
	for {
		moving := false
		samples = samples[:0]
		r.pool.eachMember(func(b *member) {
			moves := b.moves.Load() > 0
			moving = moving || moves
			for _, op := range []Op{OpRead, OpWrite} {
				h := &b.stats.ops[op].latency
				samples = append(samples, schedule.Sample{
					Flow: schedule.Flow{Backing: int(b.id), Write: op == OpWrite}, N: int64(h.Count()), Time: h.Sum(), Moving: moves,
				})
			}
		})
		rate := g.Tick(r.pool.clock.Now(), samples)
		r.throttled.Store(rate)
		wait := time.Second
		if moving {
			wait = schedule.GovernorTick
		}
		if rate == schedule.Hold {
			rate = 1 // a byte a second: as good as none, until the next tick
		}
		r.throttle.SetRate(rate)
		select {
		case <-ctx.Done():
			return
		case <-r.pool.clock.After(wait):
		}
	}
}
