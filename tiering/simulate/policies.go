package simulate

import (
	"math"
	"time"

	"tierd/tiering/extent"
	"tierd/tiering/heat"
	"tierd/tiering/plan"
)

// The policies by name.
const (
	Planner     = "planner"     // the daemon's own heat and planner
	Static      = "static"      // nothing ever moves
	LRU         = "lru"         // ranked by last use
	Clairvoyant = "clairvoyant" // ranked by the accesses to come
	Bound       = "bound"       // no placement: what none can do better than
)

// Policies lists the names of all policies.
func Policies() []string { return []string{Planner, Static, LRU, Clairvoyant, Bound} }

// static moves nothing.
type static struct{}

func (static) Name() string          { return Static }
func (static) Next(*Cycle) plan.Plan { return plan.Plan{} }

// observer is a policy that watches the accesses themselves, as the daemon does.
type observer interface {
	access(v extent.VolumeID, off, n int64, write bool)
	drain(now time.Time)
}

// planner is the daemon's heat and planner, told the virtual time.
type planner struct {
	tracker *heat.Tracker
	volumes []*heat.Volume // by volume id - 1
	addr    *addresses
	policy  plan.Policy
	cycle   time.Duration
	scores  []heat.Score
	audit   plan.Audit
}

// epoch is when the virtual time begins.
var epoch = time.Unix(0, 0).UTC()

// scoreBatch is how many scores are asked for at once, as in the daemon.
const scoreBatch = 4096

func newPlanner(e *engine) *planner {
	p := &planner{tracker: heat.New(e.heat, e.size, epoch), addr: e.addr, policy: e.plan, cycle: e.timing.cycle, scores: make([]heat.Score, scoreBatch)}
	p.tracker.InOrder()
	for i, ids := range e.addr.volume {
		p.volumes = append(p.volumes, p.tracker.AddVolume(extent.VolumeID(i+1), extent.Index(len(ids))))
	}
	return p
}

func (p *planner) Name() string { return Planner }

func (p *planner) access(v extent.VolumeID, off, n int64, write bool) {
	p.volumes[v-1].Access(off, n, write)
}

func (p *planner) drain(now time.Time) { p.tracker.Drain(now) }

// Next ends a cycle as the daemon's monitor does: drain, tick, plan.
func (p *planner) Next(c *Cycle) plan.Plan {
	now := epoch.Add(time.Duration(c.Number+1) * p.cycle)
	p.tracker.Tick(now)
	accesses := func(k extent.Key) (uint32, bool) {
		n := p.volumes[k.Volume-1].Heat(k.Index, now).IOs
		return n, n < heat.MaxIOs
	}
	p.audit.Judge(uint32(c.Number), p.cycle.Seconds(), accesses)
	pol := p.policy
	pol.BudgetBytes = c.BudgetBytes
	p.audit.Begin(pol.ExtentSize, c.MeanBytes)
	p.audit.Limit(&pol)
	pol.Headroom = max(pol.Headroom, spareShare)
	out := plan.Next(plan.View{Tiers: c.tiers, Extents: func(yield func(plan.Extent) bool) { p.extents(c, now, yield) }}, pol)
	p.audit.Note(uint32(c.Number), out.Moves, accesses)
	for i := range out.Moves {
		k := &out.Moves[i].Key
		p.volumes[k.Volume-1].Moved(k.Index)
		k.Index = extent.Index(p.addr.volume[k.Volume-1][k.Index])
	}
	return out
}

// extents yields the extents that there are, with their heat.
func (p *planner) extents(c *Cycle, now time.Time, yield func(plan.Extent) bool) {
	for v, ids := range p.addr.volume {
		for first := 0; first < len(ids); first += scoreBatch {
			part := ids[first:min(first+scoreBatch, len(ids))]
			p.volumes[v].Scores(extent.Index(first), p.scores[:len(part)], now)
			for i, id := range part {
				if id == noExtent || c.where[id] == noTier {
					continue
				}
				s := p.scores[i]
				if !yield(plan.Extent{
					Key:  extent.Key{Volume: extent.VolumeID(v + 1), Index: extent.Index(first + i)},
					Tier: c.where[id], Heat: s.Heat, Noise: s.Noise, Age: s.Age, SinceMove: s.SinceMove,
				}) {
					return
				}
			}
		}
	}
}

// spareShare makes the planner keep the spare slot of a tier free.
const spareShare = 1e-9

// ranked exchanges extents by a rank of its own, with the planner's greedy choice
// and nothing else of it: no hysteresis, no costs, no memory.
type ranked struct {
	name string
	rank []float64 // by extent id, what each is worth in the next cycles
	see  func(rank []float64, c *Cycle)
	size int64
}

func (r *ranked) Name() string { return r.name }

func (r *ranked) Next(c *Cycle) plan.Plan {
	r.see(r.rank, c)
	view := plan.View{Tiers: c.tiers, Extents: func(yield func(plan.Extent) bool) {
		for id, t := range c.where {
			if t == noTier {
				continue
			}
			x := plan.Extent{Key: extent.Key{Volume: 1, Index: extent.Index(id)}, Tier: t, Heat: r.rank[id], Age: 1, SinceMove: plan.NeverMoved}
			if !yield(x) {
				return
			}
		}
	}}
	return plan.Next(view, plan.Policy{
		ExtentSize: r.size, BudgetBytes: c.BudgetBytes, AccessTime: time.Second, Headroom: spareShare,
	})
}

// newLRU ranks extents by their last use.
func newLRU(e *engine) *ranked {
	return &ranked{name: LRU, size: e.size.Bytes(), rank: make([]float64, e.info.Extents), see: func(rank []float64, c *Cycle) {
		for _, u := range c.uses {
			rank[u.extent] = float64(u.last)
		}
	}}
}

// lookaheads are how far the clairvoyant policy tries to look ahead, in 24ths of the
// trace (or cycles, where these are longer), and foresight what the next of them counts
// for beside the one before.
var lookaheads = []int{1, 2, 4, 8}

const foresight = 0.8

// newClairvoyant ranks extents by the accesses of the cycles to come, and returns how
// many of them that is.
func newClairvoyant(e *engine, lookahead int) (*ranked, int) {
	perPart := max(1, float64(e.timing.cycles)/parts)
	ahead := int(math.Round(float64(lookahead) * perPart))
	weight := math.Pow(foresight, 1/perPart)
	return &ranked{name: Clairvoyant, size: e.size.Bytes(), rank: make([]float64, e.info.Extents), see: func(rank []float64, c *Cycle) {
		clear(rank)
		w := 1.0
		for i := c.Number + 1; i <= c.Number+ahead && i < len(e.history); i++ {
			for _, u := range e.history[i] {
				rank[u.extent] += w * float64(u.reads+u.writes)
			}
			w *= weight
		}
	}}, ahead
}
