package control

import (
	"context"
	"time"
)

// Service is what an administrator can ask of a running daemon. Methods may be
// called at the same time. Errors wrap the sentinels of this package where one
// of them fits, and carry hints with WithHint.
type Service interface {
	PoolStatus(context.Context) (PoolStatus, error)
	Tiers(context.Context) ([]Tier, error)       // fastest first
	Backings(context.Context) ([]Backing, error) // by tier, then id

	BackingForget(context.Context, BackingForgetRequest) (BackingForgotten, error)
	BackingAdd(context.Context, BackingAddRequest) (BackingChange, error)
	BackingDrain(context.Context, BackingDrainRequest) (BackingChange, error)
	BackingRemove(context.Context, BackingRemoveRequest) (BackingChange, error)
	TierRemove(context.Context, TierRemoveRequest) (BackingChange, error)

	Volumes(context.Context) ([]Volume, error)         // by name
	VolumesLost(context.Context) ([]VolumeLost, error) // by name; those that have lost something
	VolumeCreate(context.Context, VolumeCreateRequest) (VolumeChange, error)
	VolumeGrow(context.Context, VolumeGrowRequest) (VolumeChange, error)
	VolumeDelete(context.Context, VolumeDeleteRequest) (VolumeChange, error)
	VolumeRename(context.Context, VolumeRenameRequest) (VolumeChange, error)
	VolumeSet(context.Context, VolumeSetRequest) (VolumeChange, error)

	RelocationStatus(context.Context) (RelocationStatus, error)
	RelocationPlan(context.Context, RelocationPlanRequest) (RelocationPlan, error)
	RelocationRun(context.Context, RelocationRunRequest) (RelocationStatus, error)
	RelocationPause(context.Context, RelocationPauseRequest) (RelocationStatus, error)
	RelocationResume(context.Context, RelocationPauseRequest) (RelocationStatus, error)

	Locate(context.Context, LocateRequest) (Location, error)
	Heat(context.Context, HeatRequest) (HeatMap, error)
	Skew(context.Context, SkewRequest) (Skew, error)

	Traces(context.Context) ([]TraceRecording, error) // by name of the volume
	TraceStop(context.Context, TraceStopRequest) (TraceStopped, error)
}

// MetadataState says whether mappings can still be made durable.
type MetadataState string

// The metadata states.
const (
	MetadataOK     MetadataState = "ok"
	MetadataFailed MetadataState = "failed" // a commit failed: no new mapping until a restart
)

// PoolStatus is the pool at a glance.
type PoolStatus struct {
	PoolID          string `json:"pool_id"`
	Version         string `json:"version"`        // of the daemon
	FormatVersion   int    `json:"format_version"` // on disk
	ExtentSizeBytes int64  `json:"extent_size_bytes"`
	ReadOnly        bool   `json:"read_only"`
	Degraded        bool   `json:"degraded"` // serving with a backing missing or failed

	StartedAt     time.Time `json:"started_at"`
	UptimeSeconds float64   `json:"uptime_seconds"`
	Incarnation   uint64    `json:"incarnation"`   // number of this open
	ContinuityID  string    `json:"continuity_id"` // renewed when answered data may have been lost

	MetadataState       MetadataState `json:"metadata_state"`
	MetadataError       string        `json:"metadata_error,omitempty"`
	CommitNumber        uint64        `json:"commit_number"`
	StagedEntries       int64         `json:"staged_entries"` // visible, not committed
	OldestStagedSeconds float64       `json:"oldest_staged_seconds"`
	VacatedSlots        int64         `json:"vacated_slots"` // waiting to be zeroed
	CleanSlots          int64         `json:"clean_slots"`   // ready to be given out
	Healing             bool          `json:"healing"`       // slot tables after an unclean stop
	HealProgress        float64       `json:"heal_progress"` // 0 to 1

	CapacityBytes    int64   `json:"capacity_bytes"`
	UsedBytes        int64   `json:"used_bytes"` // in mapped extents
	FreeBytes        int64   `json:"free_bytes"`
	ProvisionedBytes int64   `json:"provisioned_bytes"` // sum of the volumes' sizes
	OverCommitRatio  float64 `json:"over_commit_ratio"` // provisioned to capacity
	BelowLowWater    bool    `json:"below_low_water"`   // less is free than space.low_water

	Tiers       int `json:"tiers"`
	Backings    int `json:"backings"`
	Volumes     int `json:"volumes"`
	Connections int `json:"connections"` // NBD, all volumes

	Warnings []string `json:"warnings"` // such as differences between pool and configuration
}

// Tier is one class of speed.
type Tier struct {
	ID                   int     `json:"id"` // rank, 0 is the fastest
	Name                 string  `json:"name"`
	Media                string  `json:"media"`
	Backings             int     `json:"backings"`
	CapacityBytes        int64   `json:"capacity_bytes"`
	UsedBytes            int64   `json:"used_bytes"`
	FreeBytes            int64   `json:"free_bytes"`
	HeadroomBytes        int64   `json:"headroom_bytes"` // barred to promotions
	Extents              int64   `json:"extents"`
	Reads                int64   `json:"reads"` // since start
	Writes               int64   `json:"writes"`
	ReadBytes            int64   `json:"read_bytes"`
	WrittenBytes         int64   `json:"written_bytes"`
	ReadShare            float64 `json:"read_share"` // of all reads of mapped extents, 0 to 1
	MeanReadSeconds      float64 `json:"mean_read_seconds"`
	MeanWriteSeconds     float64 `json:"mean_write_seconds"`
	PromotedBytes        int64   `json:"promoted_bytes"` // moved in from slower tiers
	DemotedBytes         int64   `json:"demoted_bytes"`  // moved in from faster tiers
	EnduranceBytesPerDay int64   `json:"endurance_bytes_per_day"`
}

// BackingState says what can be expected of a backing.
type BackingState string

// The backing states.
const (
	BackingOK      BackingState = "ok"
	BackingSuspect BackingState = "suspect" // serves, with errors or without answering
	BackingFailed  BackingState = "failed"  // written data may be lost: not written to until it is cleared
	BackingMissing BackingState = "missing" // was not there at the start
)

// Backing is one file or device.
type Backing struct {
	ID         int          `json:"id"`
	UUID       string       `json:"uuid"`
	Path       string       `json:"path"`
	Tier       string       `json:"tier"`
	State      BackingState `json:"state"`
	Error      string       `json:"error,omitempty"` // why it is not ok
	StateSince time.Time    `json:"state_since"`     // zero: since the start or longer
	Draining   bool         `json:"draining"`        // takes no new extents, and is being emptied
	// Drain is how far that has come; nil if it is not being emptied.
	Drain            *BackingDrain `json:"drain,omitempty"`
	SizeBytes        int64         `json:"size_bytes"`
	Slots            int64         `json:"slots"`
	UsedSlots        int64         `json:"used_slots"`
	FreeSlots        int64         `json:"free_slots"`
	CleanSlots       int64         `json:"clean_slots"`
	QuarantinedSlots int64         `json:"quarantined_slots"`
	UnsyncedBytes    int64         `json:"unsynced_bytes"`
	SyncSeconds      float64       `json:"sync_seconds"`   // that a sync is expected to take now
	WaitingWrites    int64         `json:"waiting_writes"` // that wait because of it
	MeanReadSeconds  float64       `json:"mean_read_seconds"`
	MeanWriteSeconds float64       `json:"mean_write_seconds"`
	Simulated        bool          `json:"simulated"`
}

// VolumeState is a volume's place in its life.
type VolumeState string

// The volume states.
const (
	VolumeOK       VolumeState = "ok"
	VolumeDegraded VolumeState = "degraded" // parts cannot be read: a backing is missing
	VolumeDeleting VolumeState = "deleting"
	VolumeFailed   VolumeState = "failed" // FLUSH fails: answered data may be lost
)

// TierBytes is a part of something that lives in one tier.
type TierBytes struct {
	Tier  string `json:"tier"`
	Bytes int64  `json:"bytes"`
}

// Volume is one thin volume.
type Volume struct {
	ID             uint32      `json:"id"`
	UUID           string      `json:"uuid"`
	Name           string      `json:"name"`
	SizeBytes      int64       `json:"size_bytes"`
	AllocatedBytes int64       `json:"allocated_bytes"` // in mapped extents
	LostBytes      int64       `json:"lost_bytes"`      // of these, on missing backings
	PerTier        []TierBytes `json:"per_tier"`        // every tier, fastest first
	Policy         string      `json:"policy"`
	State          VolumeState `json:"state"`
	ReadOnly       bool        `json:"read_only"` // changes are refused
	Connections    int         `json:"connections"`
	Reads          int64       `json:"reads"` // since start
	Writes         int64       `json:"writes"`
	Clients        []string    `json:"clients"` // names in certificates that may use it; none: everybody may

	ReservationBytes int64  `json:"reservation_bytes"` // it can always allocate
	QuotaBytes       int64  `json:"quota_bytes"`       // it can allocate at most; 0: no limit
	OnFull           string `json:"on_full"`           // error, or wait and a time
	WaitingForSpace  int64  `json:"waiting_for_space"` // writes, now
	NoSpaceErrors    int64  `json:"no_space_errors"`   // writes refused for want of room, since start
}

// VolumeChange is the answer to every change of a volume.
type VolumeChange struct {
	Volume  Volume   `json:"volume"`  // as it is, or would be, afterwards
	Changes []string `json:"changes"` // one line each, for people
	DryRun  bool     `json:"dry_run"` // nothing was done
}

// VolumeCreateRequest makes a volume.
type VolumeCreateRequest struct {
	Name      string `json:"name"`
	SizeBytes int64  `json:"size_bytes"`
	Policy    string `json:"policy"` // "": auto
	DryRun    bool   `json:"dry_run"`

	ReservationBytes int64  `json:"reservation_bytes"`
	QuotaBytes       int64  `json:"quota_bytes"` // 0: no limit
	OnFull           string `json:"on_full"`     // "": error

	Clients []string `json:"clients"` // names in certificates that may use it; none: everybody may
}

// VolumeGrowRequest makes a volume larger.
type VolumeGrowRequest struct {
	Name      string `json:"name"`
	SizeBytes int64  `json:"size_bytes"` // the new size
	DryRun    bool   `json:"dry_run"`
}

// VolumeDeleteRequest deletes a volume and its data.
type VolumeDeleteRequest struct {
	Name   string `json:"name"`
	Force  bool   `json:"force"` // although clients are connected
	DryRun bool   `json:"dry_run"`
}

// VolumeRenameRequest renames a volume.
type VolumeRenameRequest struct {
	Name    string `json:"name"`
	NewName string `json:"new_name"`
	DryRun  bool   `json:"dry_run"`
}

// VolumeSetRequest changes a volume's settings; nil leaves one as it is.
type VolumeSetRequest struct {
	Name   string  `json:"name"`
	Policy *string `json:"policy,omitempty"`
	DryRun bool    `json:"dry_run"`

	ReservationBytes *int64  `json:"reservation_bytes,omitempty"`
	QuotaBytes       *int64  `json:"quota_bytes,omitempty"` // 0: no limit
	OnFull           *string `json:"on_full,omitempty"`     // error, or wait and a time
	ReadOnly         *bool   `json:"read_only,omitempty"`

	Clients *[]string `json:"clients,omitempty"` // names in certificates that may use it; none: everybody may
}
