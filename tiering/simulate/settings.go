package simulate

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"

	"tierd/tiering/extent"
	"tierd/tiering/heat"
	"tierd/tiering/plan"
	"tierd/tiering/schedule"
)

// Placement is where extents lie before any move.
type Placement string

const (
	// FirstTouch: all extents are there before the trace begins, the fastest tier
	// filled first, in the order in which the trace will touch them.
	FirstTouch Placement = "first-touch"
	// HighestFirst: an extent comes into being with its first access, in the fastest
	// tier that has room then, as the daemon's first writes do.
	HighestFirst Placement = "highest-first"
)

// Budget is what moves may write.
type Budget struct {
	// Share is of the trace's extents, in each 24th of the trace, as exchanges: each is two
	// moves. 0: see Bytes.
	Share float64
	// Carry is for how many 24ths what is left of Share is kept, as the daemon keeps what
	// is left of a day's budget. 0: a cycle's part is for that cycle alone.
	Carry float64
	Bytes int64 // a cycle; negative: no limit
}

// parts is into how many parts Budget.Share cuts a trace: the hours of a day.
const parts = 24

// purse is the budget of one run.
type purse struct {
	each, most float64 // what a cycle adds, and what can be there, in bytes
	left       float64
}

// purse returns the budget for so many extents and cycles.
func (b Budget) purse(extents, cycles int, extentSize int64) purse {
	if b.Share == 0 {
		return purse{each: float64(b.Bytes), most: float64(b.Bytes)}
	}
	part := b.Share * float64(extents)
	each := part * parts / float64(cycles)
	if b.Carry == 0 {
		each = math.Round(each) // whole exchanges: a rest would be lost each time
	}
	exchange := 2 * float64(extentSize)
	return purse{each: each * exchange, most: max(each, part*b.Carry) * exchange}
}

// next begins a cycle and returns what it may write in bytes; negative: no limit.
func (p *purse) next() int64 {
	if p.each < 0 {
		return -1
	}
	p.left = min(p.left+p.each, p.most)
	return int64(p.left + 1e-6) // sums of fractions
}

func (p *purse) spend(bytes int64) { p.left -= float64(bytes) }

// Settings say how a trace is replayed. Start from Defaults or PaperEval.
type Settings struct {
	ExtentSize int64 // bytes, see extent.NewSize

	// The trace is cut into cycles that are this long, or into so many of equal length if
	// Cycle is 0. With Stretch, what Heat says in time is meant at its own cycle, and
	// stretched with it.
	Cycle   time.Duration
	Cycles  int
	Stretch bool

	// Rate is the mean number of requests a second, to which the trace is stretched;
	// 0: the trace's own. A trace without time then takes a Day, and its time is the
	// number of the request.
	Rate float64

	Budget    Budget
	Placement Placement

	// CountOnly: each access to an extent counts as one random access, whatever its
	// length, kind and neighbours; else it is weighed as by the daemon.
	CountOnly bool

	Heat heat.Params
	// Plan is the planner's policy; its extent size, budget, cycle, access time and
	// horizon follow from the rest, as in the daemon.
	Plan plan.Policy
}

// Day is how long a trace takes that has no time of its own.
const Day = 24 * time.Hour

// Defaults returns what the product does: a plan every five minutes, half-lives in real
// time, and a budget of which what is not used is kept for a while.
func Defaults() Settings {
	const size = 1 << 20
	return Settings{
		ExtentSize: size,
		Cycle:      heat.DefaultParams().Cycle,
		Budget:     Budget{Share: 0.02, Carry: parts * schedule.PaceReserve},
		Placement:  FirstTouch,
		CountOnly:  true,
		Heat:       heat.DefaultParams(),
		Plan:       plan.Defaults(size),
	}
}

// PaperEval returns the setting in which the planner is compared with figures
// measured for its model on real traces: half-lives of 1 and 16 cycles, short
// weight 0.3, hysteresis 0.25; no cost gate, residence, minimum age or headroom;
// every access to an extent is one random access.
func PaperEval() Settings {
	s := Defaults()
	s.Cycle, s.Cycles, s.Stretch, s.Budget.Carry = 0, 24, true, 0
	s.Heat.ShortHalfLife, s.Heat.LongHalfLife, s.Heat.ShortWeight = s.Heat.Cycle, 16*s.Heat.Cycle, 0.3
	s.Plan = plan.Policy{Hysteresis: 0.25}
	return s
}

// PaperLayout returns the tiers of that setting.
func PaperLayout() Layout {
	return Layout{Name: "paper", Tiers: []Tier{
		{Name: "ssd", Time: 2 * time.Millisecond, Share: 5},
		{Name: "fc", Time: 10 * time.Millisecond, Share: 25},
		{Name: "sata", Time: 20500 * time.Microsecond},
	}}
}

// Validate returns every fault of s joined, or nil.
func (s Settings) Validate() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if _, err := extent.NewSize(s.ExtentSize); err != nil {
		faults = append(faults, err)
	}
	switch {
	case s.Cycle < 0:
		bad("cycle must not be negative (got %s)", s.Cycle)
	case s.Cycle == 0 && (s.Cycles < 1 || s.Cycles > maxCycles):
		bad("cycles must be from 1 to %d (got %d)", maxCycles, s.Cycles)
	}
	if !(s.Rate >= 0) || math.IsInf(s.Rate, 0) {
		bad("rate must be a number of requests a second (got %v)", s.Rate)
	}
	if !(s.Budget.Share >= 0 && s.Budget.Share <= 1) {
		bad("budget must be from 0%% to 100%% of the extents (got %v)", s.Budget.Share)
	}
	if !(s.Budget.Carry >= 0 && s.Budget.Carry <= parts) {
		bad("budget must be kept for 0 to %d parts of the trace (got %v)", parts, s.Budget.Carry)
	}
	if s.Placement != FirstTouch && s.Placement != HighestFirst {
		bad("placement must be %s or %s (got %q)", FirstTouch, HighestFirst, s.Placement)
	}
	if err := s.Heat.Validate(); err != nil {
		faults = append(faults, err)
	}
	p := s.Plan
	if !(p.Hysteresis >= 0) || !(p.Headroom >= 0 && p.Headroom < 1) || !(p.CostFactor >= 0) {
		bad("hysteresis and cost factor must not be negative, headroom must be from 0 to below 1 (got %v, %v, %v)", p.Hysteresis, p.CostFactor, p.Headroom)
	}
	return errors.Join(faults...)
}

// timing is the virtual clock of a replay.
type timing struct {
	cycles   int
	cycle    time.Duration
	timed    bool
	requests int64
	total    time.Duration // of the trace, on this clock
	scale    float64       // of the trace's times
}

// countBandwidth makes the transfer of one byte, with which CountOnly touches an
// extent, weigh nothing beside the positioning.
const countBandwidth = 1e18

// timing fits the clock to the trace, and the settings of heat and planner to the
// clock.
func (s Settings) timing(info TraceInfo, last time.Duration) (timing, heat.Params, plan.Policy, error) {
	fail := func(err error) (timing, heat.Params, plan.Policy, error) {
		return timing{}, heat.Params{}, plan.Policy{}, err
	}
	// A trace whose requests are all of the same moment has no time either.
	t := timing{timed: info.Timed && last > 0, requests: info.Requests, scale: 1}
	total := last + 1 // the last request is within it
	switch {
	case s.Rate > 0:
		seconds := float64(info.Requests) / s.Rate
		if seconds > math.MaxInt64/4e9 {
			return fail(fmt.Errorf("%w: %d requests at %v a second take more than 70 years", ErrTooLarge, info.Requests, s.Rate))
		}
		total = time.Duration(seconds*1e9) + 1
		if !t.timed {
			total = max(total-1, 1) // here a request is at the start of its share of it
		}
		t.scale = float64(total-1) / float64(max(last, 1))
	case !t.timed:
		total = Day
	}

	t.total = total
	h, p := s.Heat, s.Plan
	if s.Cycle > 0 {
		t.cycle = s.Cycle
		if n := (total-1)/s.Cycle + 1; n > maxCycles {
			return fail(fmt.Errorf("%w: %d cycles of %s, at most %d", ErrTooLarge, n, s.Cycle, maxCycles))
		}
		t.cycles = int((total-1)/s.Cycle) + 1
	} else {
		t.cycles = s.Cycles
		t.cycle = (total-1)/time.Duration(s.Cycles) + 1
		if !t.timed {
			t.total = t.cycle * time.Duration(s.Cycles) // so that cycles are equal shares
		}
		stretch := 1.0
		if s.Stretch {
			stretch = float64(t.cycle) / float64(s.Heat.Cycle)
		}
		for _, d := range []*time.Duration{&h.ShortHalfLife, &h.LongHalfLife} {
			*d = time.Duration(max(1, min(float64(*d)*stretch, math.MaxInt64/2)))
		}
	}
	h.Cycle = t.cycle
	if s.CountOnly {
		h.Bandwidth = countBandwidth
	}
	// As the daemon derives them.
	p.ExtentSize, p.AccessTime, p.Horizon = s.ExtentSize, h.Position, h.LongHalfLife
	return t, h, p, h.Validate()
}

// at returns when request n of the trace is made, from the start.
func (t timing) at(n int64, recorded time.Duration) time.Duration {
	if t.timed {
		return time.Duration(float64(recorded) * t.scale)
	}
	hi, lo := bits.Mul64(uint64(n), uint64(t.total))
	at, _ := bits.Div64(hi, lo, uint64(t.requests))
	return time.Duration(at)
}

// cycleOf returns the cycle in which that is.
func (t timing) cycleOf(at time.Duration) int { return min(int(at/t.cycle), t.cycles-1) }
