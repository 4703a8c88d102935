package simulate

import (
	"fmt"
	"slices"
	"time"

	"tierd/tiering/extent"
	"tierd/tiering/plan"
)

// use is what one extent had to do in one cycle.
type use struct {
	extent        uint32
	reads, writes uint32
	last          uint64 // number of the last request there, from 1 on
}

// noTier is where an extent lies that there is not yet.
const noTier = 255

// Policy decides what moves. Next is called at the end of each cycle, in order. Its
// moves name extents by their number in Key.Index; the volume does not matter.
type Policy interface {
	Name() string
	Next(c *Cycle) plan.Plan
}

// Cycle is what a Policy is shown at the end of a cycle.
type Cycle struct {
	Number      int   // from 0; -1: before the first, for those who know the future
	BudgetBytes int64 // that moves may write; negative: no limit
	MeanBytes   int64 // that each cycle adds to the budget; negative: no limit

	uses  []use // of this cycle, in order of their first
	tiers []plan.Tier
	where []extent.TierID // by extent id
}

// run is one policy on one layout: the placement as it changes, and what comes of
// it.
type run struct {
	layout     Layout
	policy     Policy
	extentSize int64
	seconds    float64 // of a cycle
	budget     purse

	tiers  []plan.Tier
	where  []extent.TierID
	placed int     // extents that there are
	moved  []int64 // by tier: bytes of moves that it serves in the coming cycle

	total  sums
	result PolicyResult
}

// sums adds up answer times in seconds.
type sums struct {
	reads, writes       int64
	readTime, writeTime float64
	accesses            []int64 // by tier
}

// spareSlots are added to each tier but the last: exchanges need a slot to turn
// round in, which the daemon keeps from new extents as well.
const spareSlots = 1

// defaultBandwidth is what copies run at where the layout does not say.
const defaultBandwidth = 100e6

func newRun(l Layout, p Policy, e *engine) *run {
	r := &run{
		layout: l, policy: p, extentSize: e.size.Bytes(), seconds: e.timing.cycle.Seconds(), budget: e.budget,
		where: make([]extent.TierID, e.info.Extents), moved: make([]int64, len(l.Tiers)),
	}
	r.total.accesses = make([]int64, len(l.Tiers))
	r.result = PolicyResult{Trace: e.info.Name, Layout: l.Name, Name: p.Name(), TierShare: make([]float64, len(l.Tiers))}
	for i, n := range e.slots[l.Name] {
		t := l.Tiers[i]
		if i < len(l.Tiers)-1 {
			n += spareSlots
		}
		pt := plan.Tier{ID: extent.TierID(i), Name: t.Name, Slots: n, Free: n, ServiceTime: t.Time, Bandwidth: float64(t.Bandwidth), Writable: true}
		if t.Bandwidth == 0 {
			pt.Bandwidth = defaultBandwidth
		}
		r.tiers = append(r.tiers, pt)
	}
	for i := range r.where {
		r.where[i] = noTier
		if e.placement == FirstTouch {
			r.place(uint32(i))
		}
	}
	return r
}

// place gives an extent a slot in the fastest tier that has one to spare.
func (r *run) place(id uint32) {
	for i := range r.tiers {
		if t := &r.tiers[i]; t.Free > spareSlots || i == len(r.tiers)-1 && t.Free > 0 {
			t.Free--
			r.where[id] = t.ID
			r.placed++
			return
		}
	}
	panic("simulate: a layout that holds all extents has no slot for one") // Layout.slots sees to it
}

// step serves the accesses of a cycle, and moves what the policy wants moved after
// it.
func (r *run) step(number int, uses []use) error {
	cycle := r.serve(number, uses)
	p, err := r.plan(number, uses)
	if err != nil {
		return err
	}
	cycle.MovedBytes = p.Bytes()
	cycle.Promotions, cycle.Demotions = p.BytesUp/r.extentSize, p.BytesDown/r.extentSize
	r.result.Cycles = append(r.result.Cycles, cycle)
	return nil
}

// prepare lets a policy that knows the future move before the first cycle, with the
// budget of one.
func (r *run) prepare() error {
	p, err := r.plan(-1, nil)
	r.result.PreparedBytes = p.Bytes()
	return err
}

// plan makes the moves after a cycle.
func (r *run) plan(number int, uses []use) (plan.Plan, error) {
	budget := r.budget.next()
	p := r.policy.Next(&Cycle{Number: number, BudgetBytes: budget, MeanBytes: int64(r.budget.each), uses: uses, tiers: r.tiers, where: r.where})
	if err := r.apply(p.Moves, budget); err != nil {
		return p, fmt.Errorf("policy %s, cycle %d: %w", r.policy.Name(), number, err)
	}
	r.budget.spend(p.Bytes())
	r.result.MovedBytes += p.Bytes()
	r.result.Promotions += p.BytesUp / r.extentSize
	r.result.Demotions += p.BytesDown / r.extentSize
	for reason, n := range p.Rejected {
		if r.result.Stayed == nil {
			r.result.Stayed = map[plan.Reason]int64{}
		}
		r.result.Stayed[reason] += n
	}
	return p, nil
}

// serve accounts for the accesses of a cycle.
func (r *run) serve(number int, uses []use) CycleResult {
	loads := make([]load, len(r.tiers))
	for _, u := range uses {
		if r.where[u.extent] == noTier {
			r.place(u.extent)
		}
		l := &loads[r.where[u.extent]]
		l.reads += int64(u.reads)
		l.writes += int64(u.writes)
	}
	c := CycleResult{Start: float64(number) * r.seconds, Tiers: make([]TierCycle, len(r.tiers))}
	var sum float64
	var n int64
	for i, l := range loads {
		l.moved = r.moved[i]
		t := &r.tiers[i]
		a := r.layout.Tiers[i].serve(l, r.seconds)
		reads, writes := float64(l.reads)*a.read.Seconds(), float64(l.writes)*a.write.Seconds()
		sum += reads + writes
		n += l.reads + l.writes
		r.total.readTime += reads
		r.total.writeTime += writes
		r.total.reads += l.reads
		r.total.writes += l.writes
		r.total.accesses[i] += l.reads + l.writes
		c.Tiers[i] = TierCycle{
			Reads: l.reads, Writes: l.writes, Used: t.Slots - t.Free,
			Utilisation: a.utilisation, ReadMS: milliseconds(a.read), WriteMS: milliseconds(a.write),
		}
		if a.utilisation >= 1 {
			r.result.Overloaded++
		}
		t.Utilisation = min(a.utilisation, 1) // what the daemon measures
	}
	c.Accesses = n
	if n > 0 {
		c.MeanMS = sum / float64(n) * 1e3
	}
	return c
}

// apply makes the moves. A policy that breaks the rules is a fault of the program.
func (r *run) apply(moves []plan.Move, budget int64) error {
	clear(r.moved)
	var bytes int64
	for _, m := range moves {
		id := uint32(m.Key.Index)
		bytes += m.Bytes
		switch {
		case r.where[id] != m.From || m.From == m.To || m.Bytes != r.extentSize:
			return fmt.Errorf("move of %v from tier %d to %d: it is in %d", m.Key, m.From, m.To, r.where[id])
		case r.tiers[m.To].Free < 1:
			return fmt.Errorf("move of %v to tier %d: it is full", m.Key, m.To)
		case budget >= 0 && bytes > budget:
			return fmt.Errorf("move of %v: %d bytes, the budget is %d", m.Key, bytes, budget)
		}
		r.where[id] = m.To
		r.tiers[m.From].Free++
		r.tiers[m.To].Free--
		r.moved[m.From] += m.Bytes
		r.moved[m.To] += m.Bytes
	}
	return nil
}

// finish returns the outcome.
func (r *run) finish() PolicyResult {
	t, out := r.total, r.result
	mean := func(seconds float64, n int64) float64 {
		if n == 0 {
			return 0
		}
		return seconds / float64(n) * 1e3
	}
	out.MeanMS = mean(t.readTime+t.writeTime, t.reads+t.writes)
	out.ReadMS, out.WriteMS = mean(t.readTime, t.reads), mean(t.writeTime, t.writes)
	for i, n := range t.accesses {
		out.TierShare[i] = float64(n) / float64(t.reads+t.writes)
	}
	out.Cycles = slices.Clip(out.Cycles)
	return out
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }
