package simulate

import (
	"time"

	"tierd/tiering/plan"
)

// Report is the outcome of one Run.
type Report struct {
	Trace       TraceInfo
	Layouts     []Layout
	Slots       [][]int64 // by layout and tier: extents it holds, at most all that the trace touches
	Settings    Settings
	Cycles      int           // that the trace was cut into
	Cycle       time.Duration // length of one
	BudgetBytes int64         // that each cycle adds; negative: no limit
	BudgetMost  int64         // that one cycle can have at most
	Policies    []PolicyResult
}

// PolicyResult is what one policy makes of one layout.
type PolicyResult struct {
	Trace  string `json:"trace"`
	Layout string `json:"layout"`
	Name   string `json:"name"`

	MeanMS     float64 `json:"mean_ms"` // of all accesses
	ReadMS     float64 `json:"read_ms"`
	WriteMS    float64 `json:"write_ms"`
	MovedBytes int64   `json:"moved_bytes"`
	Promotions int64   `json:"promotions"` // moves
	Demotions  int64   `json:"demotions"`
	// PreparedBytes is what of MovedBytes moved before the first cycle, which takes
	// knowing the future.
	PreparedBytes int64 `json:"prepared_bytes,omitempty"`
	// TierShare is the share of the accesses that each tier served, fastest first.
	TierShare []float64 `json:"tier_share"`
	// BoundShare is the share that the policy gets of what the bound gains over static
	// placement: (static - policy) / (static - bound). nil if the bound was not asked for,
	// or there is nothing to gain.
	BoundShare *float64 `json:"bound_share,omitempty"`
	// Optimal, of the bound: it is the least that there is at each boundary of tiers,
	// to the access.
	Optimal *bool `json:"optimal,omitempty"`
	// BoundCycles, of the bound: the cycles that it goes by. It is strict if they are those
	// of the trace and nothing of a cycle's budget is kept for another.
	BoundCycles int `json:"bound_cycles,omitempty"`

	// Overloaded counts tiers and cycles in which a tier's devices could not keep up.
	Overloaded int64 `json:"overloaded"`
	// Lookahead is the number of cycles that the clairvoyant policy looked ahead.
	Lookahead int `json:"lookahead,omitempty"`
	// Stayed counts extents that were not moved, by reason, over all cycles.
	Stayed map[plan.Reason]int64 `json:"stayed,omitempty"`

	Cycles []CycleResult `json:"cycles,omitempty"`
}

// CycleResult is one cycle, for plots over time.
type CycleResult struct {
	Start      float64     `json:"start_seconds"` // since the trace began
	Accesses   int64       `json:"accesses"`
	MeanMS     float64     `json:"mean_ms"`     // 0 without accesses
	MovedBytes int64       `json:"moved_bytes"` // at its end
	Promotions int64       `json:"promotions"`
	Demotions  int64       `json:"demotions"`
	Tiers      []TierCycle `json:"tiers"` // fastest first
}

// TierCycle is one tier in one cycle.
type TierCycle struct {
	Reads       int64   `json:"reads"` // accesses
	Writes      int64   `json:"writes"`
	Used        int64   `json:"used_extents"` // before the moves at the end
	Utilisation float64 `json:"utilisation"`  // of its devices; above 1 if they cannot keep up, 0 without devices
	ReadMS      float64 `json:"read_ms"`
	WriteMS     float64 `json:"write_ms"`
}
