package plan

import (
	"cmp"
	"math"
	"slices"

	"tierd/tiering/extent"
)

// MaxMoves bounds a plan whatever the budget, and with it the planner's memory:
// some 30 MB a tier and list at most, a few hundred bytes a move below that.
const MaxMoves = 1 << 18

// residenceFactor is how many times the gain that a move needs makes it worth to
// move an extent again that has only just come.
const residenceFactor = 4

// Next returns the moves worth making now, best gain per byte first, within p's
// budget. It may well return none. It is a pure function of its arguments and
// reads the view in a single pass.
func Next(v View, p Policy) Plan {
	pl := newPlanner(v, p)
	pl.collect(v)

	pl.policyMoves()
	pl.roomMoves(func(t *tierState) int64 { return int64(p.Emergency * float64(t.Slots)) })
	whole := pl.limit
	if p.HeatLimited && p.ExtentSize > 0 {
		pl.limit = min(pl.limit, pl.accepted+int(min(max(p.HeatBytes, 0)/p.ExtentSize, MaxMoves)))
	}
	pl.heatMoves()
	pl.limit = whole
	pl.roomMoves(func(t *tierState) int64 { return t.keep })
	pl.rebalanceMoves()

	pl.explain()
	return pl.plan
}

// tierState is a tier with what the plan so far does to it. The tiers of a
// planner are sorted by service time, so that positions compare by speed as it
// is now, not by rank.
type tierState struct {
	Tier
	service  float64 // seconds for one random access that does not wait
	load     float64 // utilisation after the moves planned so far
	rates    float64 // accesses a second, likewise
	delay    float64 // seconds for one random access, likewise
	perByte  float64 // seconds to copy a byte in or out
	free     int64   // after the moves planned so far
	keep     int64   // free slots that promotions must leave
	wear     int64   // moves that its endurance still allows into it
	eligible int64   // extents placed by heat that may move
	taken    int64   // of these, planned to move
	hist     histogram
	hot      *selection // those worth most elsewhere
	cold     *selection // those that may leave for others
	hotList  []candidate
	coldList []candidate
	hotNext  int // for policies: where to look for the next that may leave
	coldNext int
	victim   int   // for explain: the coldest left in coldList
	kept     int64 // for explain: free slots not yet given as the reason
}

type planner struct {
	p       Policy
	tiers   []*tierState // fastest first, by service time
	rank    []int        // position in tiers, by TierID; -1: no such tier
	access  float64      // seconds of heat per access
	horizon float64      // seconds that a gain is trusted to last
	left    int64        // bytes of the budget
	limit   int          // most moves the budget allows

	wants    []*selection // by position of the tier the extents lie in: policy not fulfilled
	balance  []*balancer
	backings map[extent.BackingID]*Backing // with their free slots after the moves planned so far
	taken    map[extent.Key]struct{}
	plan     Plan
	accepted int
	scratch  []int // of targets
}

func newPlanner(v View, p Policy) *planner {
	pl := &planner{
		p:       p,
		horizon: p.Horizon.Seconds(),
		left:    p.BudgetBytes,
		taken:   map[extent.Key]struct{}{},
		plan:    Plan{Rejected: map[Reason]int64{}},
	}

	// The budget in moves.
	if pl.left < 0 {
		pl.left = math.MaxInt64
	}
	pl.limit = MaxMoves
	if p.ExtentSize > 0 {
		pl.limit = int(min(pl.left/p.ExtentSize, MaxMoves))
	}

	// Tiers by their speed of today; ranks still decide where policies point.
	var slowest extent.TierID
	for _, t := range v.Tiers {
		s := &tierState{Tier: t, service: t.ServiceTime.Seconds(), load: t.Utilisation, free: t.Free}
		s.delay = s.service * stretch(s.load)
		if t.Bandwidth > 0 {
			s.perByte = 1 / t.Bandwidth
		}
		s.wear = MaxMoves
		if t.WearLimited && p.ExtentSize > 0 {
			s.wear = max(t.WearBytes, 0) / p.ExtentSize
		}
		slowest = max(slowest, t.ID)
		pl.tiers = append(pl.tiers, s)
	}
	slices.SortFunc(pl.tiers, func(a, b *tierState) int {
		if c := cmp.Compare(a.delay, b.delay); c != 0 {
			return c
		}
		return cmp.Compare(a.ID, b.ID)
	})
	pl.rank = make([]int, int(slowest)+1)
	for i := range pl.rank {
		pl.rank[i] = -1
	}
	for i, t := range pl.tiers {
		pl.rank[t.ID] = i
		if t.ID != slowest {
			t.keep = int64(math.Ceil(p.Headroom * float64(t.Slots)))
		}
		t.hot = newSelection(pl.listLen(), byRateDown)
		t.cold = newSelection(pl.listLen(), byRate)
		pl.wants = append(pl.wants, newSelection(pl.listLen(), byRateDown))
	}

	pl.access = p.AccessTime.Seconds()
	if pl.access <= 0 && len(pl.tiers) > 0 {
		pl.access = pl.tiers[len(pl.tiers)-1].delay
	}
	if pl.access <= 0 {
		pl.access = 1
	}
	pl.backings = make(map[extent.BackingID]*Backing, len(v.Backings))
	for _, b := range v.Backings {
		pl.backings[b.ID] = &b
	}
	pl.balance = newBalancers(v, p, pl)
	return pl
}

// collect is the one pass over the extents: each is either rejected for good or
// kept as a candidate, in lists no longer than the budget makes sense of.
func (pl *planner) collect(v View) {
	v.Extents(func(e Extent) bool {
		pos := pl.position(e.Tier)
		if pos < 0 {
			pl.reject(ReasonSettled, 1)
			return true
		}
		c := candidate{
			key:     e.Key,
			rate:    e.Heat / pl.access,
			noise:   e.Noise,
			tier:    uint8(pos),
			backing: e.Backing,
			cooling: e.SinceMove < pl.p.Residence,
			want:    e.Want,
		}

		t := pl.tiers[pos]
		t.rates += c.rate
		switch {
		case e.Pinned:
			pl.reject(ReasonPinned, 1)
		case e.Parked:
			pl.reject(ReasonParked, 1)
		case e.Want.Kind != WantAuto:
			if pl.fulfilled(e) {
				pl.reject(ReasonSettled, 1)
				pl.offerBalance(c)
			} else {
				pl.wants[pos].add(c)
			}
		case e.Heat > 0 && e.Age < pl.p.MinAge:
			// What was never seen has no age, and is cold rather than young.
			pl.reject(ReasonYoung, 1)
		default:
			t.eligible++
			t.hist.add(c.rate)
			pl.offerBalance(c)
			if pos > 0 {
				t.hot.add(c)
			}
			t.cold.add(c)
		}
		return true
	})
	waiting := 0.0
	for _, t := range pl.tiers {
		t.hotList, t.coldList = t.hot.sorted(), t.cold.sorted()
		pl.plan.Accesses += t.rates
		waiting += t.rates * t.delay
	}
	if pl.plan.Accesses > 0 {
		pl.plan.Latency = waiting / pl.plan.Accesses
	}
}

// listLen returns how many candidates of a kind are kept: some more than the
// moves that the budget allows, since not each will do, and a few to explain
// themselves when it allows none.
func (pl *planner) listLen() int { return pl.limit + pl.limit/4 + 16 }

func (pl *planner) position(id extent.TierID) int {
	if int(id) >= len(pl.rank) {
		return -1
	}
	return pl.rank[id]
}

func (pl *planner) isTaken(k extent.Key) bool {
	_, ok := pl.taken[k]
	return ok
}

// affordable reports whether n more moves fit the budget.
func (pl *planner) affordable(n int) bool {
	return pl.accepted+n <= pl.limit && pl.left >= int64(n)*pl.p.ExtentSize
}

// move appends the relocation of c to the plan. The caller has checked the
// budget and that the target has a free slot.
func (pl *planner) move(c candidate, to int, r Reason, gain float64) {
	from, target := pl.tiers[c.tier], pl.tiers[to]
	m := Move{
		Key: c.key, From: from.ID, To: target.ID, FromBacking: c.backing,
		Kind: Demotion, Reason: r, Gain: gain, Bytes: pl.p.ExtentSize, Rate: c.rate, Saves: from.delay - target.delay,
	}
	if m.To < m.From {
		m.Kind = Promotion
		pl.plan.BytesUp += m.Bytes
	} else {
		pl.plan.BytesDown += m.Bytes
	}
	m.ToBacking = pl.place(m)
	from.free++
	target.free--
	target.wear--
	pl.shift(c.rate, from, target)
	if c.want.Kind == WantAuto {
		from.taken++
	}
	pl.take(m)
}

// shift brings the delays of two tiers up to date with accesses that move from one to
// the other. Each access is taken for as much work for the devices as the mean one of its
// tier is now; if nothing is known of a tier, since nobody uses it, for as much as one of
// the tier it comes from, in proportion to the service times.
func (pl *planner) shift(rate float64, from, to *tierState) {
	if from.load <= 0 && to.load <= 0 || rate <= 0 {
		return
	}
	work := 0.0 // device time for each second of service time of an access
	if from.rates > 0 && from.service > 0 {
		work = from.load / (from.rates * from.service)
		from.load *= max(1-rate/from.rates, 0)
	}
	if to.load > 0 && to.rates > 0 {
		to.load *= 1 + rate/to.rates
	} else {
		to.load += work * rate * to.service
	}
	from.rates -= rate
	to.rates += rate
	from.delay = from.service * stretch(from.load)
	to.delay = to.service * stretch(to.load)
}

func (pl *planner) take(m Move) {
	pl.taken[m.Key] = struct{}{}
	pl.left -= m.Bytes
	pl.accepted++
	pl.plan.ExpectedGain += m.Gain
	pl.plan.Moves = append(pl.plan.Moves, m)
}

func (pl *planner) reject(r Reason, n int64) {
	if n > 0 {
		pl.plan.Rejected[r] += n
	}
}
