package control

// VolumeLost is what cannot be read of one volume, because backings are missing.
type VolumeLost struct {
	Volume    string      `json:"volume"`
	UUID      string      `json:"uuid"`
	LostBytes int64       `json:"lost_bytes"`
	Ranges    []LostRange `json:"ranges"`    // in order
	Truncated bool        `json:"truncated"` // there are more ranges than are listed
}

// LostRange is a range of a volume whose backing is missing.
type LostRange struct {
	Offset      int64  `json:"offset"` // bytes
	LengthBytes int64  `json:"length_bytes"`
	BackingID   int    `json:"backing_id"`
	BackingPath string `json:"backing_path"` // where it was last
}

// BackingForgetRequest gives up a missing backing for good.
type BackingForgetRequest struct {
	Backing    string `json:"backing"` // its id, path or UUID
	AcceptLoss bool   `json:"accept_loss"`
	DryRun     bool   `json:"dry_run"`
}

// BackingForgotten is what was lost with a backing.
type BackingForgotten struct {
	BackingID   int          `json:"backing_id"`
	BackingPath string       `json:"backing_path"`
	LostBytes   int64        `json:"lost_bytes"`
	Volumes     []VolumeLoss `json:"volumes"` // by name; those with data there
	Changes     []string     `json:"changes"` // one line each, for people
	DryRun      bool         `json:"dry_run"` // nothing was done
}

// VolumeLoss is a volume's part of a loss.
type VolumeLoss struct {
	Volume    string `json:"volume"`
	LostBytes int64  `json:"lost_bytes"`
}
