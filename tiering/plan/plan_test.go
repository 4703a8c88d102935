package plan_test

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"tierd/tiering/extent"
	"tierd/tiering/plan"
)

const mib = 1 << 20

// threeTiers returns tiers of the given sizes at 2, 10 and 20 ms.
func threeTiers(ssd, fc, sata int64) []plan.Tier {
	return []plan.Tier{
		{ID: 0, Name: "ssd", Slots: ssd, Free: ssd, ServiceTime: 2 * time.Millisecond, Bandwidth: 500e6, Writable: true},
		{ID: 1, Name: "fc", Slots: fc, Free: fc, ServiceTime: 10 * time.Millisecond, Bandwidth: 200e6, Writable: true},
		{ID: 2, Name: "sata", Slots: sata, Free: sata, ServiceTime: 20 * time.Millisecond, Bandwidth: 100e6, Writable: true},
	}
}

// at returns extent i of volume 1 in tier t with the heat of rate accesses per
// second, known for a day.
func at(i int, t extent.TierID, rate float64) plan.Extent {
	return plan.Extent{Key: extent.Key{Volume: 1, Index: extent.Index(i)}, Tier: t, Heat: rate * 0.01, Age: 288, SinceMove: plan.NeverMoved}
}

// view makes a view of tiers that hold extents.
func view(tiers []plan.Tier, extents ...plan.Extent) plan.View {
	tiers = slices.Clone(tiers)
	for _, e := range extents {
		for i := range tiers {
			if tiers[i].ID == e.Tier {
				tiers[i].Free--
			}
		}
	}
	return plan.View{Tiers: tiers, Extents: func(yield func(plan.Extent) bool) {
		for _, e := range extents {
			if !yield(e) {
				return
			}
		}
	}}
}

// policy is the defaults, with a heat of 10 ms an access and no headroom.
func policy() plan.Policy {
	p := plan.Defaults(mib)
	p.AccessTime = 10 * time.Millisecond
	p.Headroom = 0
	return p
}

func with[T any](v T, change func(*T)) T {
	change(&v)
	return v
}

func TestNext(t *testing.T) {
	type move struct {
		index    extent.Index
		from, to extent.TierID
		reason   plan.Reason
	}
	type rejected map[plan.Reason]int64
	for _, tc := range []struct {
		name     string
		view     plan.View
		policy   plan.Policy
		moves    []move
		rejected rejected
	}{
		{
			name:     "hot goes straight to the top",
			view:     view(threeTiers(4, 4, 4), at(0, 2, 5), at(1, 2, 0)),
			policy:   policy(),
			moves:    []move{{0, 2, 0, plan.ReasonHot}},
			rejected: rejected{plan.ReasonNoGain: 1},
		},
		{
			name:     "nothing is hot: do nothing",
			view:     view(threeTiers(4, 4, 4), at(0, 2, 0), at(1, 1, 0), at(2, 0, 0)),
			policy:   policy(),
			rejected: rejected{plan.ReasonNoGain: 3},
		},
		{
			name:     "the copy would cost more than it earns",
			view:     view(threeTiers(4, 4, 4), at(0, 2, 1e-6)),
			policy:   policy(),
			rejected: rejected{plan.ReasonNoGain: 1},
		},
		{
			name:     "room is made first",
			view:     view(threeTiers(1, 0, 2), at(0, 2, 5), at(1, 0, 1)),
			policy:   policy(),
			moves:    []move{{1, 0, 2, plan.ReasonCold}, {0, 2, 0, plan.ReasonHot}},
			rejected: rejected{},
		},
		{
			name:     "hysteresis keeps equals apart",
			view:     view(threeTiers(1, 0, 2), at(0, 2, 1.2), at(1, 0, 1)),
			policy:   policy(),
			rejected: rejected{plan.ReasonNoGain: 2},
		},
		{
			name:     "hottest up first when only the top has a slot",
			view:     view(threeTiers(2, 0, 1), at(0, 2, 5), at(1, 0, 1)),
			policy:   with(policy(), func(p *plan.Policy) { p.Headroom = 0.5 }),
			moves:    []move{{0, 2, 0, plan.ReasonHot}, {1, 0, 2, plan.ReasonCold}},
			rejected: rejected{},
		},
		{
			name:     "headroom bars the promotion",
			view:     view(threeTiers(2, 0, 4), at(0, 2, 5)),
			policy:   with(policy(), func(p *plan.Policy) { p.Headroom = 1 }),
			rejected: rejected{plan.ReasonHeadroom: 1},
		},
		{
			name:     "a full pool cannot turn round",
			view:     view(threeTiers(1, 0, 1), at(0, 2, 5), at(1, 0, 1)),
			policy:   policy(),
			rejected: rejected{plan.ReasonFull: 1, plan.ReasonNoGain: 1},
		},
		{
			name:     "full tiers turn round through a third",
			view:     view(threeTiers(1, 1, 4), at(0, 1, 9), at(1, 0, 1)),
			policy:   policy(),
			moves:    []move{{1, 0, 2, plan.ReasonCold}, {0, 1, 0, plan.ReasonHot}},
			rejected: rejected{},
		},
		{
			name:     "budget for one only, the hottest",
			view:     view(threeTiers(4, 4, 4), at(0, 2, 5), at(1, 2, 6)),
			policy:   with(policy(), func(p *plan.Policy) { p.BudgetBytes = 2*mib - 1 }),
			moves:    []move{{1, 2, 0, plan.ReasonHot}},
			rejected: rejected{plan.ReasonBudget: 1},
		},
		{
			name:     "an exchange takes twice the budget",
			view:     view(threeTiers(1, 0, 3), at(0, 2, 5), at(1, 0, 1)),
			policy:   with(policy(), func(p *plan.Policy) { p.BudgetBytes = 2*mib - 1 }),
			rejected: rejected{plan.ReasonBudget: 1, plan.ReasonNoGain: 1},
		},
		{
			name: "endurance bounds what goes up, not what goes past the tier",
			view: view(with(threeTiers(4, 4, 4), func(tiers *[]plan.Tier) { (*tiers)[0].WearLimited, (*tiers)[0].WearBytes = true, 2*mib-1 }),
				at(0, 2, 5), at(1, 2, 6), at(2, 1, 4)),
			policy:   policy(),
			moves:    []move{{1, 2, 0, plan.ReasonHot}, {0, 2, 1, plan.ReasonHot}},
			rejected: rejected{plan.ReasonWear: 1},
		},
		{
			name: "a worn tier still gives away",
			view: view(with(threeTiers(1, 4, 4), func(tiers *[]plan.Tier) { (*tiers)[0].WearLimited = true }),
				with(at(0, 0, 5), func(e *plan.Extent) { e.Want = plan.Want{Kind: plan.WantLowest} }), with(at(1, 2, 5), func(e *plan.Extent) { e.Want = plan.Want{Kind: plan.WantTier} })),
			policy:   policy(),
			moves:    []move{{0, 0, 2, plan.ReasonPolicy}},
			rejected: rejected{plan.ReasonWear: 1},
		},
		{
			name:     "what could not be moved is left alone for a while",
			view:     view(threeTiers(4, 4, 4), with(at(0, 2, 5), func(e *plan.Extent) { e.Parked = true }), at(1, 2, 4)),
			policy:   policy(),
			moves:    []move{{1, 2, 0, plan.ReasonHot}},
			rejected: rejected{plan.ReasonParked: 1},
		},
		{
			name: "a policy displaces none that has just come",
			view: view(threeTiers(2, 0, 4),
				with(at(0, 0, 1), func(e *plan.Extent) { e.SinceMove = 0 }),
				at(1, 0, 2),
				with(at(2, 2, 0), func(e *plan.Extent) { e.Want.Kind = plan.WantHighest })),
			policy:   policy(),
			moves:    []move{{1, 0, 2, plan.ReasonCold}, {2, 2, 0, plan.ReasonPolicy}},
			rejected: rejected{plan.ReasonNoGain: 1},
		},
		{
			name: "policies wait for the budget and for healthy tiers",
			view: view(with(threeTiers(4, 4, 4), func(t *[]plan.Tier) { (*t)[1].Writable = false }),
				with(at(0, 2, 0), func(e *plan.Extent) { e.Want = plan.Want{Kind: plan.WantTier, Tier: 1} }),
				with(at(1, 2, 0), func(e *plan.Extent) { e.Want = plan.Want{Kind: plan.WantTier, Tier: 0} })),
			policy:   with(policy(), func(p *plan.Policy) { p.BudgetBytes = mib - 1 }),
			rejected: rejected{plan.ReasonUnhealthy: 1, plan.ReasonBudget: 1},
		},
		{
			name:     "no budget at all",
			view:     view(threeTiers(4, 4, 4), at(0, 2, 5), at(1, 2, 6)),
			policy:   with(policy(), func(p *plan.Policy) { p.BudgetBytes = 0 }),
			rejected: rejected{plan.ReasonBudget: 2},
		},
		{
			name:     "pinned stays, and is no victim",
			view:     view(threeTiers(1, 0, 4), with(at(0, 0, 0), func(e *plan.Extent) { e.Pinned = true }), at(1, 2, 5), with(at(2, 2, 9), func(e *plan.Extent) { e.Pinned = true })),
			policy:   policy(),
			rejected: rejected{plan.ReasonPinned: 2, plan.ReasonFull: 1},
		},
		{
			name:     "young",
			view:     view(threeTiers(4, 4, 4), with(at(0, 2, 5), func(e *plan.Extent) { e.Age = 0 })),
			policy:   policy(),
			rejected: rejected{plan.ReasonYoung: 1},
		},
		{
			name:     "never seen is cold, not young",
			view:     view(threeTiers(1, 0, 4), with(at(0, 0, 0), func(e *plan.Extent) { e.Age = 0 }), at(1, 2, 5)),
			policy:   policy(),
			moves:    []move{{0, 0, 2, plan.ReasonCold}, {1, 2, 0, plan.ReasonHot}},
			rejected: rejected{},
		},
		{
			name: "cooling, unless it is worth far more than the cost",
			view: view(threeTiers(4, 4, 4),
				with(at(0, 2, 0.0003), func(e *plan.Extent) { e.SinceMove = 1 }),
				with(at(1, 2, 5), func(e *plan.Extent) { e.SinceMove = 1 }),
				at(2, 2, 0.0003)),
			policy:   with(policy(), func(p *plan.Policy) { p.Horizon = time.Hour * 4 }),
			moves:    []move{{1, 2, 0, plan.ReasonHot}, {2, 2, 0, plan.ReasonHot}},
			rejected: rejected{plan.ReasonCooling: 1},
		},
		{
			name:     "unhealthy target",
			view:     view(with(threeTiers(4, 0, 4), func(t *[]plan.Tier) { (*t)[0].Writable = false }), at(0, 2, 5)),
			policy:   policy(),
			rejected: rejected{plan.ReasonUnhealthy: 1},
		},
		{
			name: "an overloaded top tier sheds its hottest",
			view: view(with(threeTiers(4, 4, 4), func(t *[]plan.Tier) { (*t)[0].ServiceTime = 40 * time.Millisecond }),
				at(0, 0, 9), at(1, 0, 8)),
			policy:   with(policy(), func(p *plan.Policy) { p.BudgetBytes = mib }),
			moves:    []move{{0, 0, 1, plan.ReasonWarm}},
			rejected: rejected{plan.ReasonBudget: 1},
		},
		{
			// At 90 % of its time it answers in 20 ms, the next in 10. Each extent is a
			// quarter of the load: without the hottest it is at 67.5 % and 6.2 ms.
			name: "relief ends where the load is even",
			view: view(with(threeTiers(4, 4, 4), func(t *[]plan.Tier) { (*t)[0].Utilisation = 0.9 }),
				at(0, 0, 9), at(1, 0, 9), at(2, 0, 9), at(3, 0, 9)),
			policy:   policy(),
			moves:    []move{{3, 0, 1, plan.ReasonWarm}},
			rejected: rejected{plan.ReasonNoGain: 3},
		},
		{
			name: "a little slower than the next is not overloaded",
			view: view(with(threeTiers(4, 4, 4), func(t *[]plan.Tier) { (*t)[0].ServiceTime = 12 * time.Millisecond }),
				at(0, 0, 9), at(1, 0, 8)),
			policy:   policy(),
			rejected: rejected{plan.ReasonNoGain: 2},
		},
		{
			name: "promotions stop before the target is overloaded",
			view: view(with(threeTiers(9, 9, 0), func(t *[]plan.Tier) { (*t)[0].Utilisation = 0.6 }),
				at(0, 0, 60), at(1, 1, 20), at(2, 1, 10), at(3, 1, 10)),
			policy:   policy(),
			moves:    []move{{1, 1, 0, plan.ReasonHot}},
			rejected: rejected{plan.ReasonNoGain: 3},
		},
		{
			name: "policies first: down, then up",
			view: view(threeTiers(1, 1, 5),
				with(at(0, 0, 1), func(e *plan.Extent) { e.Want.Kind = plan.WantLowest }),
				with(at(1, 2, 2), func(e *plan.Extent) { e.Want.Kind = plan.WantHighest }),
				with(at(2, 2, 1), func(e *plan.Extent) { e.Want = plan.Want{Kind: plan.WantTier, Tier: 1} }),
				with(at(3, 2, 0), func(e *plan.Extent) { e.Want = plan.Want{Kind: plan.WantTier, Tier: 2} }),
				at(4, 2, 9)),
			policy:   policy(),
			moves:    []move{{0, 0, 2, plan.ReasonPolicy}, {1, 2, 0, plan.ReasonPolicy}, {2, 2, 1, plan.ReasonPolicy}},
			rejected: rejected{plan.ReasonSettled: 1, plan.ReasonFull: 1},
		},
		{
			name: "policy highest takes second best, and displaces what heat placed",
			view: view(threeTiers(1, 1, 4),
				with(at(0, 0, 0), func(e *plan.Extent) { e.Want.Kind = plan.WantHighest }),
				at(1, 1, 3),
				with(at(2, 2, 0), func(e *plan.Extent) { e.Want.Kind = plan.WantHighest })),
			policy:   policy(),
			moves:    []move{{1, 1, 2, plan.ReasonCold}, {2, 2, 1, plan.ReasonPolicy}},
			rejected: rejected{plan.ReasonSettled: 1},
		},
		{
			name:     "nearly full tier is relieved",
			view:     view(threeTiers(2, 0, 4), at(0, 0, 3), at(1, 0, 1)),
			policy:   with(policy(), func(p *plan.Policy) { p.Emergency = 0.5 }),
			moves:    []move{{1, 0, 2, plan.ReasonRoom}},
			rejected: rejected{plan.ReasonNoGain: 1},
		},
		{
			name:     "the headroom is made free again, after what is hot",
			view:     view(threeTiers(4, 0, 4), at(0, 0, 3), at(1, 0, 1), at(2, 0, 2), at(3, 0, 4), at(4, 2, 9)),
			policy:   with(policy(), func(p *plan.Policy) { p.Headroom, p.BudgetBytes = 0.5, 3*mib }),
			moves:    []move{{1, 0, 2, plan.ReasonCold}, {4, 2, 0, plan.ReasonHot}, {2, 0, 2, plan.ReasonRoom}},
			rejected: rejected{plan.ReasonNoGain: 2},
		},
		{
			name:     "no tiers",
			view:     view(nil, at(0, 0, 3)),
			policy:   policy(),
			rejected: rejected{plan.ReasonSettled: 1},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := plan.Next(tc.view, tc.policy)
			var moves []move
			for _, m := range got.Moves {
				moves = append(moves, move{m.Key.Index, m.From, m.To, m.Reason})
			}
			if !reflect.DeepEqual(moves, tc.moves) {
				t.Errorf("moves: got %v, want %v", moves, tc.moves)
			}
			if !reflect.DeepEqual(rejected(got.Rejected), tc.rejected) {
				t.Errorf("rejected: got %v, want %v", got.Rejected, tc.rejected)
			}
		})
	}
}

func TestRebalance(t *testing.T) {
	on := func(i int, b extent.BackingID, rate float64) plan.Extent {
		return with(at(i, 1, rate), func(e *plan.Extent) { e.Backing = b })
	}
	backings := []plan.Backing{
		{ID: 1, Tier: 1, Slots: 10, Free: 5, Utilisation: 0.9, Writable: true},
		{ID: 2, Tier: 1, Slots: 10, Free: 5, Utilisation: 0.2, Writable: true},
		{ID: 3, Tier: 1, Slots: 5, Free: 0, Utilisation: 0.1, Writable: true},
		{ID: 4, Tier: 1, Slots: 10, Free: 5, Utilisation: 0.1, Writable: false},
	}
	extents := []plan.Extent{on(0, 1, 20), on(1, 1, 60), on(2, 1, 10), on(3, 2, 1)}
	for _, tc := range []struct {
		name   string
		change func(b []plan.Backing)
		want   []extent.Index
		to     extent.BackingID
	}{
		// Of 90 accesses 60 are 60 points of utilisation: they would turn the spread of 70
		// round. 20 leave 30 of it.
		{"the hottest that does not turn the spread round", func([]plan.Backing) {}, []extent.Index{0}, 2},
		{"a spread of 19 points is let be", func(b []plan.Backing) { b[0].Utilisation = 0.39 }, nil, 0},
		{
			"one that is new gets its share of the data",
			func(b []plan.Backing) {
				for i := range b {
					b[i].Utilisation = 0
				}
				b[0].Free, b[1].Free, b[2].Free = 2, 8, 2 // 80 and 20 % full: three moves would even it out, half of it is enough
			},
			[]extent.Index{1, 0}, 2,
		},
		{"the emptiest is full", func(b []plan.Backing) { b[0].Free, b[1].Free = 0, 0 }, nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := view(threeTiers(0, 100, 0), extents...)
			v.Backings = slices.Clone(backings)
			tc.change(v.Backings)
			got := plan.Next(v, policy())
			var idx []extent.Index
			for _, m := range got.Moves {
				idx = append(idx, m.Key.Index)
				if m.Kind != plan.Rebalance || m.From != m.To || m.FromBacking != 1 || m.ToBacking != tc.to {
					t.Errorf("got %+v, want a rebalance from backing 1 to %d", m, tc.to)
				}
			}
			if !slices.Equal(idx, tc.want) || got.BytesRebalance != int64(len(tc.want))*mib {
				t.Errorf("got extents %v and %d bytes, want %v", idx, got.BytesRebalance, tc.want)
			}
			if n := got.Rejected[plan.ReasonNoGain]; n != int64(len(extents)-len(tc.want)) {
				t.Errorf("got %v, want the others without gain", got.Rejected)
			}
		})
	}
}

// TestPlace: a move goes to the backing with the largest share of free slots, as first
// writes do, those of the plan counted.
func TestPlace(t *testing.T) {
	v := view(threeTiers(30, 0, 30), at(0, 2, 9), at(1, 2, 8), at(2, 2, 7), at(3, 2, 6))
	v.Backings = []plan.Backing{
		{ID: 1, Tier: 0, Slots: 10, Free: 5, Writable: true},
		{ID: 2, Tier: 0, Slots: 5, Free: 3, Writable: true},
		{ID: 3, Tier: 0, Slots: 10, Free: 9},
	}
	var got []extent.BackingID
	for _, m := range plan.Next(v, policy()).Moves {
		got = append(got, m.ToBacking)
	}
	// 50 and 60 %, then 50 and 40, 40 and 40, 30 and 40.
	if want := []extent.BackingID{2, 1, 1, 2}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestForecast: what a plan says of accesses and latency.
func TestForecast(t *testing.T) {
	// 10 accesses at 20 ms and 30 at 10 ms: 12.5 ms; both in 2 ms: 2 ms.
	got := plan.Next(view(threeTiers(4, 4, 4), at(0, 2, 10), at(1, 1, 30)), policy())
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	near("accesses", got.Accesses, 40)
	near("latency", got.Latency, 0.0125)
	near("latency after", got.LatencyAfter(), 0.002)
	near("gain", got.ExpectedGain, 40*0.0105)
}

// TestStays: the hottest of those that have to stay are named, with the reason.
func TestStays(t *testing.T) {
	got := plan.Next(view(threeTiers(4, 0, 9), at(0, 2, 5), at(1, 2, 7), at(2, 2, 9), at(3, 2, 0),
		with(at(4, 2, 6), func(e *plan.Extent) { e.Want = plan.Want{Kind: plan.WantTier, Tier: 1} })),
		with(policy(), func(p *plan.Policy) { p.BudgetBytes = mib }))
	want := []plan.Stay{
		{Key: extent.Key{Volume: 1, Index: 1}, Tier: 2, Rate: 7, Reason: plan.ReasonBudget},
		{Key: extent.Key{Volume: 1, Index: 4}, Tier: 2, Rate: 6, Reason: plan.ReasonFull},
		{Key: extent.Key{Volume: 1, Index: 0}, Tier: 2, Rate: 5, Reason: plan.ReasonBudget},
	}
	if !slices.EqualFunc(got.Stays, want, func(a, b plan.Stay) bool {
		return a.Key == b.Key && a.Tier == b.Tier && a.Reason == b.Reason && math.Abs(a.Rate-b.Rate) < 1e-9
	}) {
		t.Errorf("got %+v, want %+v", got.Stays, want)
	}
}

// TestNothingToGain: of extents that are all used alike at random none moves, whatever
// chance makes of their rates; one that is used more than that does.
func TestNothingToGain(t *testing.T) {
	const n, rate, noise = 2000, 4.0, 0.01 // a standard deviation of 0.2
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var extents []plan.Extent
		for i := range n {
			extents = append(extents, with(at(i, extent.TierID(i%3), rate+rng.NormFloat64()*math.Sqrt(rate*noise)), func(e *plan.Extent) { e.Noise = noise }))
		}
		v := view(threeTiers(n, n, n), extents...)
		for i := range v.Tiers {
			v.Tiers[i].Free = 1
		}
		p := with(policy(), func(p *plan.Policy) { p.Headroom, p.Emergency = 1e-9, 0 })
		if got := plan.Next(v, p); len(got.Moves) > 0 {
			t.Errorf("seed %d: %d moves, the first %+v", seed, len(got.Moves), got.Moves[0])
		}
		extents[2].Heat *= 2
		if got := plan.Next(v, p); len(got.Moves) != 2 || got.Moves[1].Key.Index != 2 {
			t.Errorf("seed %d: one twice as hot: moves %+v", seed, got.Moves)
		}
		p.Confidence = 0
		if got := plan.Next(v, p); len(got.Moves) < 20 {
			t.Errorf("seed %d: with chance taken for heat %d moves: the test tests nothing", seed, len(got.Moves))
		}
	}
}

// TestUtilisation: it is the inverse of Delay.
func TestUtilisation(t *testing.T) {
	for _, tc := range []struct {
		service, delay time.Duration
		want           float64
	}{
		{5400 * time.Microsecond, 12 * time.Millisecond, 0.55},
		{time.Millisecond, time.Millisecond, 0},
		{2 * time.Millisecond, time.Millisecond, 0},
		{0, time.Millisecond, 0},
		{time.Millisecond, time.Second, 0.95},
	} {
		if got := plan.Utilisation(tc.service, tc.delay); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%v and %v: got %v, want %v", tc.service, tc.delay, got, tc.want)
		}
	}
}

func TestDelay(t *testing.T) {
	for _, tc := range []struct {
		service time.Duration
		rho     float64
		want    time.Duration
	}{
		// Two single-tier sets of disks of the 2014 paper.
		{5400 * time.Microsecond, 0.55, 12 * time.Millisecond},
		{6800 * time.Microsecond, 0.72, 24286 * time.Microsecond},
		{time.Millisecond, 0, time.Millisecond},
		{time.Millisecond, -1, time.Millisecond},
		{time.Millisecond, 7, 20 * time.Millisecond},
	} {
		if got := plan.Delay(tc.service, tc.rho); got.Round(time.Microsecond) != tc.want {
			t.Errorf("%v at %v: got %v, want %v", tc.service, tc.rho, got, tc.want)
		}
	}
}
