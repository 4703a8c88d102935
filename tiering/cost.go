package tiering

import (
	"sync"
	"time"

	"tierd/pkg/backing"
	"tierd/tiering/plan"
)

const (
	// enoughIdle is from how many reads that found a backing idle its service time is
	// taken, and enoughReads from how many what waiting adds to it.
	enoughIdle  = 8
	enoughReads = 50
)

// cost is how expensive a backing is to access, learned from what its device was seen to
// do, cycle by cycle; each counts as much as all before it.
type cost struct {
	mu      sync.Mutex
	at      time.Time // of seen
	seen    backing.Measures
	service time.Duration // of a random read that finds the device idle; 0: not known
	delay   time.Duration // of a random read under the load of late; 0: not known
	rate    float64       // bytes a second of sequential reads; 0: not known
	busy    float64       // share of the last cycle in which it had something to do
	weight  int64         // random reads of the last cycle
}

// CostInfo is what is known of the speed of a backing or a tier.
type CostInfo struct {
	Service     time.Duration // of a random read that finds the device idle
	Delay       time.Duration // of a random read under the load of late
	Utilisation float64       // that makes Service into Delay, 0 to 1
	Busy        float64       // share of the last cycle in which the device had something to do
	Sequential  float64       // bytes a second of sequential reads; 0: not known
	Measured    bool          // Service is; else it goes by the kind of medium
}

// learn takes in what was measured since the last call.
func (c *cost) learn(now time.Time, m backing.Measures) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() || !now.After(c.at) {
		c.at, c.seen = now, m
		return
	}
	random, idle := m.Random.Minus(c.seen.Random), m.RandomIdle.Minus(c.seen.RandomIdle)
	seq, bytes := m.Sequential.Minus(c.seen.Sequential), m.SequentialBytes-c.seen.SequentialBytes
	c.busy = min(float64(m.Busy-c.seen.Busy)/float64(now.Sub(c.at)), 1)
	c.at = now
	c.weight = random.N

	// Sums of too few reads go on until they are enough.
	if idle.N >= enoughIdle {
		c.service = blend(c.service, idle.Mean())
		c.seen.RandomIdle = m.RandomIdle
	}
	switch {
	case random.N >= enoughReads:
		c.delay = blend(c.delay, random.Mean())
		c.seen.Random = m.Random
	case c.delay > 0: // what little there is to do waits for little
		c.delay = blend(c.delay, max(c.service, idle.Mean()))
	}
	if seq.N >= enoughIdle && seq.Time > 0 {
		rate := float64(bytes) / seq.Time.Seconds()
		if c.rate > 0 {
			rate = (c.rate + rate) / 2
		}
		c.rate = rate
		c.seen.Sequential, c.seen.SequentialBytes = m.Sequential, m.SequentialBytes
	}
	c.seen.Busy = m.Busy
}

func blend(old, now time.Duration) time.Duration {
	if old == 0 {
		return now
	}
	return (old + now) / 2
}

// info returns what is known; for want of measurements it goes by the medium.
func (c *cost) info(m backing.Media) CostInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := CostInfo{Service: c.service, Busy: c.busy, Sequential: c.rate, Measured: c.service > 0}
	if !out.Measured {
		out.Service = mediaService(m)
		if c.delay > 0 {
			out.Service = min(out.Service, c.delay) // never idle, and yet not as slow as that
		}
	}
	out.Utilisation = plan.Utilisation(out.Service, c.delay)
	out.Delay = plan.Delay(out.Service, out.Utilisation)
	return out
}

// mediaService is what a random read is thought to take before any was seen: a seek and
// half a turn of a 7,200 rpm disk, or a read of flash behind a file system.
func mediaService(m backing.Media) time.Duration {
	if m == backing.HDD {
		return 8 * time.Millisecond
	}
	return 200 * time.Microsecond
}

// measure brings the costs of all backings up to date, unless that was done a short while
// ago: a plan that is looked at and one that is carried out then go by the same costs.
func (m *monitor) measure(now time.Time) {
	m.mu.Lock()
	fresh := !m.measured.IsZero() && now.Sub(m.measured) < m.opts.Cycle/2 && !now.Before(m.measured)
	if !fresh {
		m.measured = now
	}
	m.mu.Unlock()
	if fresh {
		return
	}
	m.pool.eachMember(func(b *member) { b.cost.learn(now, b.meter.Measures()) })
}

// cost returns what a tier costs: the mean of its backings, by the reads of late that each
// was asked for. Those without any count a little, so that a tier that nobody reads has a
// cost too.
func (t *tier) cost() CostInfo {
	var out CostInfo
	var service, delay, busy, sum float64
	n := 0
	for _, b := range t.members() {
		if b.err() != nil {
			continue
		}
		c := b.cost.info(t.media)
		b.cost.mu.Lock()
		w := float64(b.cost.weight) + 1
		b.cost.mu.Unlock()
		service += w * c.Service.Seconds()
		delay += w * c.Delay.Seconds()
		busy += c.Busy
		sum += w
		n++
		out.Sequential += c.Sequential
		out.Measured = out.Measured || c.Measured
	}
	if n == 0 {
		return CostInfo{Service: mediaService(t.media), Delay: mediaService(t.media)}
	}
	out.Service = time.Duration(service / sum * float64(time.Second))
	out.Delay = time.Duration(delay / sum * float64(time.Second))
	out.Utilisation = plan.Utilisation(out.Service, out.Delay)
	out.Busy = busy / float64(n)
	return out
}

// tierCosts returns what the tiers cost. By service time the one declared faster never
// counts as the slower: reads that found a slow tier's data in some cache on the way would
// turn the order of the tiers round. What waiting adds is not held to any order: a fast
// tier may well be the slower one while it is overloaded.
func tierCosts(tiers []*tier) []CostInfo {
	out := make([]CostInfo, len(tiers))
	var before time.Duration
	for i, t := range tiers {
		c := t.cost()
		before = max(c.Service, before+before/4)
		c.Service = before
		c.Delay = plan.Delay(c.Service, c.Utilisation)
		out[i] = c
	}
	return out
}
