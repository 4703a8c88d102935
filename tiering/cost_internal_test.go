package tiering

import (
	"math"
	"testing"
	"time"

	"tierd/pkg/backing"
)

// TestCostLearns follows a disk of 8 ms from its first reads to an overload and back.
func TestCostLearns(t *testing.T) {
	const ms = time.Millisecond
	now := time.Unix(1000, 0)
	var seen backing.Measures
	var c cost
	c.learn(now, seen)
	// cycle adds a minute in which n random reads took so long each, idle ones of them 8 ms.
	cycle := func(n, idle int64, each time.Duration, busy time.Duration) {
		now = now.Add(time.Minute)
		seen.Random.N += n
		seen.Random.Time += time.Duration(n) * each
		seen.RandomIdle.N += idle
		seen.RandomIdle.Time += time.Duration(idle) * 8 * ms
		seen.Busy += busy
		c.learn(now, seen)
	}
	want := func(when string, service, delay time.Duration, utilisation, busy float64, measured bool) {
		t.Helper()
		got := c.info(backing.HDD)
		near := func(a, b float64) bool { return math.Abs(a-b) < 1e-3*math.Max(1, math.Abs(b)) }
		if !near(float64(got.Service), float64(service)) || !near(float64(got.Delay), float64(delay)) ||
			!near(got.Utilisation, utilisation) || !near(got.Busy, busy) || got.Measured != measured {
			t.Errorf("%s: got %+v, want %v, %v, %v, %v, %v", when, got, service, delay, utilisation, busy, measured)
		}
	}

	want("nothing is known", 8*ms, 8*ms, 0, 0, false)
	cycle(4, 4, 8*ms, 32*ms)
	want("too few reads", 8*ms, 8*ms, 0, 32e-3/60, false)
	cycle(60, 6, 16*ms, time.Second)
	want("half loaded", 8*ms, time.Duration(64*16-4*8)*ms/64, 1-64*8./(64*16-4*8), 1./60, true)
	for range 12 {
		cycle(1000, 0, 80*ms, time.Minute)
	}
	want("overloaded", 8*ms, 80*ms, 0.9, 1, true)
	for range 24 {
		cycle(1, 1, 8*ms, 8*ms)
	}
	want("quiet", 8*ms, 8*ms, 0, 8e-3/60, true)

	seen.Sequential, seen.SequentialBytes = backing.Sum{N: 100, Time: time.Second}, 150e6
	cycle(0, 0, 0, 0)
	if got := c.info(backing.HDD).Sequential; math.Abs(got-150e6) > 1 {
		t.Errorf("sequential: got %v bytes a second, want 150e6", got)
	}
}

// TestTierCosts: by service time a tier is never faster than the one before it; under load
// it may be.
func TestTierCosts(t *testing.T) {
	ssd, hdd := newTier("ssd", backing.SSD), newTier("hdd", backing.HDD)
	add := func(to *tier, service, delay time.Duration, weight int64) {
		b := new(member)
		b.cost.service, b.cost.delay, b.cost.weight = service, delay, weight
		to.add(b)
	}
	const us = time.Microsecond
	add(ssd, 100*us, 3000*us, 999)
	add(ssd, 500*us, 500*us, 0) // hardly used
	add(hdd, 80*us, 80*us, 10)  // its reads found everything in a cache
	got := tierCosts([]*tier{ssd, hdd})
	near := func(what string, got, want, by time.Duration) {
		t.Helper()
		if got < want-by || got > want+by {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	near("ssd", got[0].Service, 100*us, us)
	near("ssd under load", got[0].Delay, 1998*us, us) // 20 times the service time at most, see plan.Delay
	near("hdd", got[1].Service, 125*us, us)
	near("hdd under load", got[1].Delay, 125*us, us)
	if got := tierCosts([]*tier{newTier("empty", backing.HDD)})[0]; got.Service != 8*time.Millisecond {
		t.Errorf("a tier without backings: got %+v", got)
	}
}
