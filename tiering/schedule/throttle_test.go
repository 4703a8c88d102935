package schedule

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"tierd/pkg/clock"
)

// device answers requests of clients at random times; moves make them slower in proportion
// to their rate.
type device struct {
	rng    *rand.Rand
	n      int64
	time   time.Duration
	base   time.Duration
	slope  time.Duration // added for each 10 MiB/s of movement
	a      float64       // requests in a tick
	noLoad bool
}

func (d *device) tick(rate int64) {
	if d.noLoad {
		return
	}
	mean := d.base
	if rate > 0 {
		mean += time.Duration(float64(d.slope) * float64(rate) / (10 << 20))
	}
	for range int(d.a) {
		d.n++
		d.time += time.Duration(d.rng.ExpFloat64() * float64(mean))
	}
}

// TestGovernor follows movement beside clients: it settles where they take about 1.25 times
// as long, finds a new place when the load changes, and has no limit where nobody is.
func TestGovernor(t *testing.T) {
	const ms = time.Millisecond
	for seed := range uint64(5) {
		d := &device{rng: rand.New(rand.NewPCG(seed, 1)), base: 8 * ms, slope: ms, a: 50}
		var g Governor
		now := monday
		rate := int64(0)
		run := func(ticks int, moving bool) (mean float64, held int) {
			for range ticks {
				beside := rate
				if !moving {
					beside = 0
				}
				d.tick(beside)
				now = now.Add(GovernorTick)
				rate = g.Tick(now, []Sample{{Flow: Flow{Backing: 1}, N: d.n, Time: d.time, Moving: moving}})
				switch {
				case rate == Hold:
					held++
				case rate == 0:
					mean += 1 << 30
				default:
					mean += float64(rate)
				}
			}
			return mean / float64(ticks), held
		}

		run(100, false) // the baseline
		if rate != governorStart {
			t.Errorf("seed %d: movement is to begin at %d, want %d", seed, rate, governorStart)
		}
		// 2 ms more are 25 %: at 20 MiB/s.
		run(100, true)
		if got, _ := run(300, true); got < 8<<20 || got > 24<<20 {
			t.Errorf("seed %d: the mean rate is %.1f MiB/s, want about 20 or somewhat less", seed, got/(1<<20))
		}
		// The disk gets slower by itself: a minute later that is known, and not held against
		// the moves any more.
		d.base = 16 * ms
		if _, held := run(900, true); held == 0 || held > 2*governorProbe {
			t.Errorf("seed %d: movement was held for %d ticks, want some", seed, held)
		}
		if got, _ := run(300, true); got < 8<<20 || got > 50<<20 {
			t.Errorf("seed %d: the mean rate is %.1f MiB/s, want about 40 or somewhat less", seed, got/(1<<20))
		}
		// Whatever happens, a little moves.
		d.slope = 1000 * ms
		if got, held := run(300, true); got < governorFloor/2 || got > 4<<20 || held > governorProbe {
			t.Errorf("seed %d: the mean rate is %.1f MiB/s, held for %d ticks, want about 1", seed, got/(1<<20), held)
		}
		d.noLoad = true
		run(int(governorQuiet/GovernorTick)+1, true)
		if rate != 0 {
			t.Errorf("seed %d: nobody is there, and the rate is %d", seed, rate)
		}
	}
}

// TestGovernorNotFooled: hits of microseconds that vary, and a few requests alone, do not
// slow movement down.
func TestGovernorNotFooled(t *testing.T) {
	for name, d := range map[string]*device{
		"microseconds": {base: 10 * time.Microsecond, slope: 20 * time.Microsecond, a: 100},
		"few":          {base: 8 * time.Millisecond, slope: time.Second, a: 0.99},
	} {
		d.rng = rand.New(rand.NewPCG(1, 1))
		var g Governor
		now, rate := monday, int64(0)
		for i := range 1000 {
			moving := i > 300
			beside := rate
			if !moving || rate == Hold {
				beside = 0
			}
			if d.a < 1 && i%20 == 0 {
				d.n++
				d.time += d.base
			}
			d.tick(min(beside, 1<<20))
			now = now.Add(GovernorTick)
			rate = g.Tick(now, []Sample{{Flow: Flow{Backing: 1}, N: d.n, Time: d.time, Moving: moving}})
		}
		if rate != 0 && rate < 500<<20 {
			t.Errorf("%s: the rate is %d", name, rate)
		}
	}
}

func TestThrottle(t *testing.T) {
	c := clock.NewFake(monday)
	th := NewThrottle(c)
	pass := func(n int64) chan error {
		ended := make(chan error, 1)
		go func() { ended <- th.Wait(context.Background(), n) }()
		return ended
	}
	if err := th.Wait(t.Context(), 1<<40); err != nil { // no limit
		t.Fatal(err)
	}
	th.SetRate(1000)
	c.Advance(time.Hour) // a silence saves nothing up
	if err := th.Wait(t.Context(), 2000); err != nil {
		t.Fatal(err)
	}
	waits := pass(1)
	parked(c, 1)
	c.Advance(1999 * time.Millisecond)
	waiting(t, waits)
	c.Advance(time.Millisecond)
	finished(t, waits, nil)

	// What waits at one rate goes on at the next.
	th.SetRate(1)
	c.Advance(time.Second)
	if err := th.Wait(t.Context(), 1000); err != nil {
		t.Fatal(err)
	}
	waits = pass(1)
	parked(c, 1)
	th.SetRate(1000) // 1,000 s are one second now
	parked(c, 2)
	c.Advance(time.Second)
	finished(t, waits, nil)
	th.SetRate(1)
	waits = pass(1)
	th.SetRate(0)
	finished(t, waits, nil)

	c.Advance(time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	th.SetRate(1)
	if err := th.Wait(ctx, 100); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := th.Wait(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
