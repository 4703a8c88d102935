package tiering

import (
	"time"

	"tierd/tiering/extent"
	"tierd/tiering/plan"
)

// Traffic is what a plan writes to and takes from a tier or a backing, in extents.
type Traffic struct {
	Up, Down, Balance int64 // that come: from slower tiers, from faster ones, from the same
	Out               int64 // that leave
}

// In returns how many extents come.
func (t Traffic) In() int64 { return t.Up + t.Down + t.Balance }

// A Forecast is what carrying out a plan means.
type Forecast struct {
	// Done is when its moves end if they begin now, at the rates of the windows; where no
	// rate is set, at that of the slowest tier written to. Zero: not within two weeks.
	Done     time.Time
	Tiers    []Traffic // by rank
	Backings map[extent.BackingID]Traffic
	// Latency is what an access takes in the mean by the planner's model, now and when all
	// has moved.
	Latency, LatencyAfter time.Duration
}

// Forecast tells what carrying out a plan made of this pool means. Extents for which the
// plan names no backing are counted for their tier alone.
func (p *Pool) Forecast(pl plan.Plan, now time.Time) Forecast {
	tiers := p.ranks()
	f := Forecast{
		Tiers: make([]Traffic, len(tiers)), Backings: make(map[extent.BackingID]Traffic),
		Latency: seconds(pl.Latency), LatencyAfter: seconds(pl.LatencyAfter()),
	}
	for _, m := range pl.Moves {
		if int(m.From) >= len(tiers) || int(m.To) >= len(tiers) {
			continue // a tier is gone since
		}
		note := func(t *Traffic) {
			switch m.Kind {
			case plan.Promotion:
				t.Up++
			case plan.Demotion:
				t.Down++
			default:
				t.Balance++
			}
		}
		note(&f.Tiers[m.To])
		f.Tiers[m.From].Out++
		if m.ToBacking != 0 {
			b := f.Backings[m.ToBacking]
			note(&b)
			f.Backings[m.ToBacking] = b
		}
		if m.FromBacking != 0 {
			b := f.Backings[m.FromBacking]
			b.Out++
			f.Backings[m.FromBacking] = b
		}
	}
	f.Done = p.forecastDone(pl.Bytes(), f.Tiers, now)
	return f
}

func (p *Pool) forecastDone(bytes int64, into []Traffic, now time.Time) time.Time {
	p.monitor.mu.Lock()
	calendar, rate := p.monitor.opts.Calendar, p.monitor.opts.Limits.Rate
	p.monitor.mu.Unlock()
	if rate == 0 {
		// As fast as the tiers take it: those that are written to at the same time share
		// the workers, so the slowest tells.
		var slowest float64 // seconds a byte
		for i, t := range p.ranks() {
			if i >= len(into) || into[i].In() == 0 {
				continue
			}
			var sum float64
			for _, b := range t.members() {
				if b.takesExtents() {
					sum += b.pace.rate()
				}
			}
			if sum > 0 {
				slowest = max(slowest, 1/sum)
			}
		}
		if slowest > 0 {
			rate = int64(1 / slowest)
		}
	}
	return calendar.Forecast(now, bytes, rate)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
