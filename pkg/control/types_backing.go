package control

import "time"

// BackingAddRequest makes a file or device a backing of the pool.
type BackingAddRequest struct {
	Tier string `json:"tier"`
	Path string `json:"path"` // absolute
	// SizeBytes of a file to be created; 0: it exists, or is a device.
	SizeBytes   int64 `json:"size_bytes"`
	Preallocate bool  `json:"preallocate"`
	DirectIO    bool  `json:"direct_io"`
	// Media of a new tier, ssd or hdd; "" asks the kernel.
	Media string `json:"media"`
	// The tier beside which Tier is made as a new one; both empty: it exists.
	NewTierBefore string `json:"new_tier_before"`
	NewTierAfter  string `json:"new_tier_after"`
	Force         bool   `json:"force"` // overwrite what it holds
	DryRun        bool   `json:"dry_run"`
	ForeignNBD    bool   `json:"foreign_nbd"` // an NBD device that it lies on is another server's
}

// BackingDrainRequest begins, paces, pauses or ends the emptying of a backing.
type BackingDrainRequest struct {
	Backing string      `json:"backing"` // its id, path or UUID
	Action  DrainAction `json:"action"`
	// RateBytesPerSecond: 0 is within the movement budget and its windows; nil
	// leaves it as it is.
	RateBytesPerSecond *int64 `json:"rate_bytes_per_second,omitempty"`
	DryRun             bool   `json:"dry_run"`
}

// DrainAction is what to do with the emptying of a backing.
type DrainAction string

// The actions.
const (
	DrainStart  DrainAction = "start"
	DrainPause  DrainAction = "pause"
	DrainResume DrainAction = "resume"
	DrainCancel DrainAction = "cancel"
)

// BackingRemoveRequest takes an empty backing out of the pool.
type BackingRemoveRequest struct {
	Backing string `json:"backing"` // its id, path or UUID
	DryRun  bool   `json:"dry_run"`
}

// TierRemoveRequest removes a tier without backings.
type TierRemoveRequest struct {
	Tier   string `json:"tier"`
	DryRun bool   `json:"dry_run"`
}

// BackingChange is the answer to a change of what the pool consists of.
type BackingChange struct {
	BackingID   int      `json:"backing_id"` // 0: none, or not yet
	BackingPath string   `json:"backing_path"`
	Tier        string   `json:"tier"`
	Changes     []string `json:"changes"` // one line each, for people
	DryRun      bool     `json:"dry_run"` // nothing was done
}

// DrainState says how far the emptying of a backing has come.
type DrainState string

// The drain states.
const (
	DrainMoving  DrainState = "moving"
	DrainWaiting DrainState = "waiting" // for the movement budget or its window
	DrainStuck   DrainState = "stuck"   // what is left cannot move now; it is tried again
	DrainPaused  DrainState = "paused"
	DrainEmpty   DrainState = "empty" // it can be removed
)

// BackingDrain describes the emptying of a backing.
type BackingDrain struct {
	State                  DrainState       `json:"state"`
	BegunAt                time.Time        `json:"begun_at"`
	RateBytesPerSecond     int64            `json:"rate_bytes_per_second"` // 0: within the movement budget
	TotalBytes             int64            `json:"total_bytes"`
	MovedBytes             int64            `json:"moved_bytes"` // never fewer than told before
	LeftBytes              int64            `json:"left_bytes"`
	MeasuredBytesPerSecond float64          `json:"measured_bytes_per_second"` // over the last minute
	EstimatedSecondsLeft   float64          `json:"estimated_seconds_left"`    // negative: nobody knows
	StuckExtents           map[string]int64 `json:"stuck_extents"`             // by reason, of the last pass over the map
	StuckExample           string           `json:"stuck_example"`             // what keeps one of them
}
