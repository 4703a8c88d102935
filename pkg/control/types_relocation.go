package control

import "time"

// RelocationState says whether extents may move now.
type RelocationState string

// The relocation states.
const (
	RelocationRunning RelocationState = "running"       // may move, whether or not there is something to do
	RelocationPaused  RelocationState = "paused"        // by an operator
	RelocationClosed  RelocationState = "closed_window" // outside of all windows
)

// Unlimited stands for a budget without a limit.
const Unlimited = -1

// Moved is the traffic of relocation in one direction since start.
type Moved struct {
	Direction string `json:"direction"` // promotion, demotion or rebalance
	From      string `json:"from"`      // tier
	To        string `json:"to"`
	Extents   int64  `json:"extents"`
	Bytes     int64  `json:"bytes"`
}

// RelocationStatus is the relocator at a glance.
type RelocationStatus struct {
	State        RelocationState `json:"state"`
	Cycle        uint64          `json:"cycle"` // number of the current one, since start
	CycleSeconds float64         `json:"cycle_seconds"`
	NextCycleAt  time.Time       `json:"next_cycle_at,omitzero"`
	WindowUntil  time.Time       `json:"window_until,omitzero"` // when the state may change; zero: no windows

	RateBytesPerSecond  int64 `json:"rate_bytes_per_second"`   // permitted now
	ThrottleBytesPerSec int64 `json:"throttle_bytes_per_sec"`  // that requests of clients leave for copies; Unlimited: no limit
	BudgetLeftCycle     int64 `json:"budget_left_cycle_bytes"` // Unlimited: no limit
	BudgetLeftDay       int64 `json:"budget_left_day_bytes"`   // Unlimited: no limit
	BudgetPerCycleBytes int64 `json:"budget_per_cycle_bytes"`
	BudgetPerDayBytes   int64 `json:"budget_per_day_bytes"`

	Moved    []Moved `json:"moved"`     // since start
	InFlight int     `json:"in_flight"` // moves under way
	Queued   int     `json:"queued"`    // accepted, waiting

	// Skipped counts the moves that were not carried out since start, by reason:
	// "too_busy" for one, of an extent that is written all the time.
	Skipped map[string]int64 `json:"skipped"`

	LastPlan *PlanSummary `json:"last_plan,omitempty"` // nil before the first cycle

	Settled *Settled `json:"settled,omitempty"` // of a run until settled
}

// Settled is how a run until settled ended.
type Settled struct {
	Reason  string `json:"reason"` // settled, budget, closed_window or stuck
	Extents int64  `json:"extents"`
	Bytes   int64  `json:"bytes"` // of these extents
}

// PlanSummary is a plan without its moves.
type PlanSummary struct {
	At              time.Time        `json:"at"`
	Moves           int              `json:"moves"`
	PromotionBytes  int64            `json:"promotion_bytes"`
	DemotionBytes   int64            `json:"demotion_bytes"`
	RebalanceBytes  int64            `json:"rebalance_bytes"`
	EtaSeconds      float64          `json:"eta_seconds"` // at the permitted rates, within the windows; negative: not within two weeks
	Rejected        map[string]int64 `json:"rejected"`    // extents by reason
	ConsideredCount int64            `json:"considered_count"`

	// What an access takes in the mean by the planner's model, in which none is answered
	// from memory: as things are, and when the plan is carried out.
	LatencySeconds      float64 `json:"latency_seconds"`
	LatencyAfterSeconds float64 `json:"latency_after_seconds"`
}

// PlanTraffic is what a plan moves to and from a tier, or a backing.
type PlanTraffic struct {
	Tier           string `json:"tier"`
	BackingID      int    `json:"backing_id"` // 0: the tier as a whole
	BackingPath    string `json:"backing_path"`
	PromotionBytes int64  `json:"promotion_bytes"` // that come from slower tiers
	DemotionBytes  int64  `json:"demotion_bytes"`  // that come from faster tiers
	RebalanceBytes int64  `json:"rebalance_bytes"` // that come from backings of the tier
	WrittenBytes   int64  `json:"written_bytes"`   // all that comes: what it costs in wear
	LeavingBytes   int64  `json:"leaving_bytes"`
}

// Stay is an extent that a plan leaves where it is although it is wanted elsewhere.
type Stay struct {
	Volume string  `json:"volume"`
	Extent uint64  `json:"extent"`
	Tier   string  `json:"tier"`
	Rate   float64 `json:"rate"`   // accesses a second
	Reason string  `json:"reason"` // as in PlanSummary.Rejected
}

// RelocationPlanRequest asks what would move now.
type RelocationPlanRequest struct {
	Limit int `json:"limit"` // of moves listed; 0: 20
}

// RelocationPlan is a plan that is not carried out.
type RelocationPlan struct {
	Summary PlanSummary   `json:"summary"`
	Traffic []PlanTraffic `json:"traffic"` // tiers, fastest first, each with its backings
	Moves   []Move        `json:"moves"`   // best first
	Stays   []Stay        `json:"stays"`   // hottest first
}

// Move is the proposal to move one extent.
type Move struct {
	Volume string  `json:"volume"`
	Extent uint64  `json:"extent"`
	From   string  `json:"from"` // tier
	To     string  `json:"to"`
	Heat   float64 `json:"heat"`   // device seconds of the slowest tier per second
	Gain   float64 `json:"gain"`   // seconds of waiting saved per second
	Reason string  `json:"reason"` // hot, cold, warm, policy, room or balance
}

// RelocationRunRequest starts a cycle now.
type RelocationRunRequest struct {
	UntilSettled bool `json:"until_settled"` // plan and move until nothing is left that pays; answers then
	Wait         bool `json:"wait"`          // answer when its moves are done
	DryRun       bool `json:"dry_run"`
}

// RelocationPauseRequest pauses or resumes relocation.
type RelocationPauseRequest struct {
	DryRun bool `json:"dry_run"`
}

// LocateRequest asks where a byte of a volume lives.
type LocateRequest struct {
	Volume string `json:"volume"`
	Offset int64  `json:"offset"` // bytes
}

// Location is where one extent lives, and why.
type Location struct {
	Volume       string    `json:"volume"`
	Offset       int64     `json:"offset"` // as asked for
	Extent       uint64    `json:"extent"`
	Mapped       bool      `json:"mapped"` // false: never written, reads as zeroes
	Staged       bool      `json:"staged"` // the mapping awaits its commit
	Moving       bool      `json:"moving"`
	Tier         string    `json:"tier"`
	BackingID    int       `json:"backing_id"`
	BackingPath  string    `json:"backing_path"`
	Slot         uint32    `json:"slot"`
	DeviceOffset int64     `json:"device_offset"` // of the byte asked for, on the backing
	Heat         float64   `json:"heat"`
	HeatRank     float64   `json:"heat_rank"`              // share of mapped extents that are hotter, 0 to 1
	LastMovedAt  time.Time `json:"last_moved_at,omitzero"` // zero: not since start
	Why          string    `json:"why"`                    // one line for people
}

// HeatRequest asks for a volume's heat.
type HeatRequest struct {
	Volume string `json:"volume"`
	Limit  int    `json:"limit"` // of hottest extents; 0: 20
}

// TierUnmapped marks an unmapped extent in HeatMap.Tier.
const TierUnmapped = 0xff

// HeatMap is the heat of a whole volume. Levels and tiers are one byte an
// extent, base64 in JSON.
type HeatMap struct {
	Volume          string   `json:"volume"`
	ExtentSizeBytes int64    `json:"extent_size_bytes"`
	Extents         int64    `json:"extents"`
	Tiers           []string `json:"tiers"`  // names by rank
	Levels          []byte   `json:"levels"` // 0 cold to 255, on a logarithmic scale of this volume
	Tier            []byte   `json:"tier"`   // rank, or TierUnmapped
	// ExtentsPerCell is how many extents one byte of Levels and Tier stands
	// for: 1, or more for a volume too large to send extent by extent. A cell
	// has the highest level of its extents, and the tier of the hottest.
	ExtentsPerCell int64       `json:"extents_per_cell"`
	Hottest        []HotExtent `json:"hottest"`
}

// HotExtent is one of the hottest extents of a volume.
type HotExtent struct {
	Extent uint64  `json:"extent"`
	Offset int64   `json:"offset"` // bytes
	Heat   float64 `json:"heat"`
	Tier   string  `json:"tier"`
}
