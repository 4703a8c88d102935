package plan

import (
	"time"

	"tierd/tiering/extent"
)

// Tier is what the planner has to know about a tier for one cycle.
type Tier struct {
	ID    extent.TierID
	Name  string
	Slots int64 // extents the tier can hold
	Free  int64 // of these, slots that can be given out now
	// ServiceTime is the time of one random I/O that finds the devices idle, and
	// Utilisation, 0 to 1, what makes others wait, see Delay: an overloaded tier becomes
	// unattractive by itself.
	ServiceTime time.Duration
	Utilisation float64
	Bandwidth   float64 // sequential bytes per second; 0: not known, copies cost nothing
	Writable    bool    // false: no move may go there
	// WearLimited says that moves may write no more than WearBytes into the tier, which is
	// what its endurance leaves for today.
	WearLimited bool
	WearBytes   int64
}

// WantKind says what a volume's or an extent's policy asks for.
type WantKind uint8

// The kinds of a Want.
const (
	WantAuto    WantKind = iota // placed by heat
	WantHighest                 // the fastest tier that has room
	WantLowest                  // the slowest tier that has room
	WantTier                    // the tier named
)

// Want is the placement policy of an extent. The zero Want is auto.
type Want struct {
	Kind WantKind
	Tier extent.TierID // for WantTier
}

// Extent is one mapped extent as the planner sees it.
type Extent struct {
	Key       extent.Key
	Tier      extent.TierID // where it lies
	Backing   extent.BackingID
	Want      Want
	Pinned    bool    // not to be moved, whatever its heat or policy
	Parked    bool    // moves of it failed a short while ago: not to be tried yet
	Heat      float64 // slow-device seconds per second
	Noise     float64 // variance of its rate of accesses in proportion to that, 1/s
	Age       uint32  // cycles since its first access
	SinceMove uint32  // cycles since its last move; NeverMoved if it never was
}

// NeverMoved is the SinceMove of an extent that no move has touched.
const NeverMoved = ^uint32(0)

// Backing is what the planner has to know about a backing to even out load and fill
// within its tier. A view without backings gets no rebalance moves, and moves that name
// no backing.
type Backing struct {
	ID          extent.BackingID
	Tier        extent.TierID
	Slots       int64   // extents it can hold
	Free        int64   // slots that can be given out now
	Utilisation float64 // share of the time the device is busy, 0 to 1
	Writable    bool
}

// View is the state of the pool that a plan is made for. Extents is called once
// per plan and yields every mapped extent once, in any order.
type View struct {
	Tiers    []Tier // any order; TierID is the rank, 0 the fastest by design
	Backings []Backing
	Extents  func(yield func(Extent) bool)
}

// Policy holds the planner's settings. Start from Defaults.
type Policy struct {
	ExtentSize  int64 // bytes
	BudgetBytes int64 // bytes that all moves of this plan may write together; negative: no limit
	// AccessTime is the device time that one random access adds to the heat
	// (heat.Params.Position), to get back from heat to accesses per second. 0:
	// the ServiceTime of the slowest tier.
	AccessTime time.Duration
	Hysteresis float64 // eta: a swap must win by this share of the victim's heat
	// Confidence is the number of standard deviations by which two rates have to differ for
	// the difference to count (see Extent.Noise): of many extents alike the hottest and the
	// coldest are not exchanged for what chance made of them. 0: rates are exact.
	Confidence float64
	// With HeatLimited moves for heat may write no more than HeatBytes. With Audited that is
	// for an Audit to say.
	HeatLimited bool
	HeatBytes   int64
	Audited     bool
	// Headroom is the share of each tier but the slowest that promotions leave free, and
	// that is made free again by demoting the coldest with what a plan has left of its
	// budget. Where less than the share Emergency is free, that comes before all that
	// heat proposes.
	Headroom   float64
	Emergency  float64
	Residence  uint32        // cycles a moved extent is left alone, unless it gains four times what is needed
	CostFactor float64       // kappa: gain over the horizon must exceed this many times the copy's device time; 0: no cost gate
	MinAge     uint32        // cycles an extent must have been known before heat moves it
	Horizon    time.Duration // H0: how long a gain is trusted to last
	Spread     float64       // spread of utilisation, or of fill, within a tier above which it is evened out; 0: never
}

// Kind is the direction of a move.
type Kind string

// The kinds of a Move.
const (
	Promotion Kind = "promotion" // to a faster tier
	Demotion  Kind = "demotion"  // to a slower tier
	Rebalance Kind = "rebalance" // to another backing of the same tier
)

// Reason says why an extent moves, or why it does not.
type Reason string

// Reasons of moves.
const (
	ReasonHot     Reason = "hot"     // earns more in a faster tier
	ReasonCold    Reason = "cold"    // makes room for a hotter one
	ReasonWarm    Reason = "warm"    // its tier is overloaded, and answers slower than the next
	ReasonPolicy  Reason = "policy"  // its volume or pin asks for that tier
	ReasonRoom    Reason = "room"    // the tier had less free than its headroom
	ReasonBalance Reason = "balance" // its backing was the busiest of the tier, or the fullest
	// Not of a plan: a client asked, or the pool empties a backing.
	ReasonCache   Reason = "cache"   // a client will need it soon
	ReasonDrain   Reason = "drain"   // its backing is being drained
	ReasonSuspect Reason = "suspect" // its backing is not to be trusted
)

// Reasons of extents that stay where they are.
const (
	ReasonBudget    Reason = "budget"           // would pay, but the cycle's bytes are spent
	ReasonHeadroom  Reason = "headroom"         // the free slots of the target are kept for new writes
	ReasonCooling   Reason = "cooling"          // moved a short while ago
	ReasonNoGain    Reason = "no_gain"          // is where it should be, or the move would not pay for itself
	ReasonPinned    Reason = "pinned"           // not to be moved
	ReasonFull      Reason = "target_full"      // no slot, and nothing there that may leave
	ReasonUnhealthy Reason = "target_unhealthy" // the target takes no writes
	ReasonYoung     Reason = "young"            // not known long enough
	ReasonWear      Reason = "wear"             // would pay, but the target's endurance leaves no more for today
	ReasonParked    Reason = "parked"           // could not be moved, and is not to be tried again yet
	ReasonSettled   Reason = "settled"          // its policy is fulfilled
)

// MoveReasons and StayReasons list every reason, for metrics that have to exist
// at zero.
var (
	MoveReasons = []Reason{ReasonHot, ReasonCold, ReasonWarm, ReasonPolicy, ReasonRoom, ReasonBalance, ReasonCache, ReasonDrain, ReasonSuspect}
	StayReasons = []Reason{ReasonBudget, ReasonHeadroom, ReasonCooling, ReasonNoGain, ReasonPinned,
		ReasonFull, ReasonUnhealthy, ReasonYoung, ReasonSettled, ReasonWear, ReasonParked}
)

// Move proposes to relocate one extent. It is re-validated before it is carried
// out: whatever changed since the plan was made wins.
type Move struct {
	Key         extent.Key
	From, To    extent.TierID
	FromBacking extent.BackingID // where the extent lay when the plan was made; 0: not told
	ToBacking   extent.BackingID // where it is to go; 0: any backing of the tier
	Kind        Kind
	Reason      Reason
	Swap        bool    // in exchange with another move: it takes no room from the headroom
	Gain        float64 // expected gain of the move with its partner, seconds of latency saved per second; on the partner 0
	Bytes       int64   // bytes it writes
	Rate        float64 // accesses a second to the extent, when the plan was made
	Saves       float64 // seconds that each of them takes less afterwards; negative: more
}

// Plan is the outcome of Next.
type Plan struct {
	// Moves in the order of execution: at any prefix of it no tier holds more
	// than its slots.
	Moves []Move
	// Rejected counts the extents that stay, each under one reason: together
	// with Moves they are all extents of the view.
	Rejected map[Reason]int64

	// Stays are the hottest of those that stay although they are wanted elsewhere,
	// MaxStays at most, hottest first.
	Stays []Stay

	BytesUp, BytesDown, BytesRebalance int64
	// Accesses is the sum of all extents' rates, a second; Latency is what one of them
	// takes in the mean where the extents lie now, in seconds. Both are of the model: an
	// access that memory answers counts as if a device did.
	Accesses, Latency float64
	// ExpectedGain is the sum of the moves' gains: seconds of latency saved per
	// second, that is the mean number of requests no longer waiting.
	ExpectedGain float64
}

// LatencyAfter returns what Latency will be when the plan is carried out, if all stays
// as hot as it is.
func (p Plan) LatencyAfter() float64 {
	if p.Accesses <= 0 {
		return p.Latency
	}
	return max(p.Latency-p.ExpectedGain/p.Accesses, 0)
}

// MaxStays bounds Plan.Stays.
const MaxStays = 256

// A Stay is an extent that a plan leaves where it is, and why.
type Stay struct {
	Key    extent.Key
	Tier   extent.TierID // where it lies
	Rate   float64       // accesses a second
	Reason Reason
}

// Bytes returns what carrying out the whole plan writes.
func (p Plan) Bytes() int64 { return p.BytesUp + p.BytesDown + p.BytesRebalance }

// DefaultConfidence is Policy.Confidence where nothing else is said.
const DefaultConfidence = 4

// Defaults returns the settings measured or proposed for a pool with extents of
// size bytes, without a budget.
func Defaults(size int64) Policy {
	return Policy{
		ExtentSize:  size,
		BudgetBytes: -1,
		Hysteresis:  0.25,
		Confidence:  DefaultConfidence,
		Audited:     true,
		Headroom:    0.02,
		Emergency:   0.01,
		Residence:   2,
		CostFactor:  2,
		MinAge:      1,
		Horizon:     24 * time.Hour,
		Spread:      0.20,
	}
}
