package control

// SkewRequest asks how unevenly the load lies on the data.
type SkewRequest struct {
	Volume string `json:"volume"` // "": of all volumes
}

// Skew is how unevenly the load lies on the data of a volume, or of the pool. Shares are
// 0 to 1; those of extents are of the mapped ones, those of heat of all their heat, which
// is the time that they keep a device busy.
type Skew struct {
	Volume          string      `json:"volume"` // "": all
	ExtentSizeBytes int64       `json:"extent_size_bytes"`
	Extents         int64       `json:"extents"` // mapped
	Heat            float64     `json:"heat"`    // of all, device seconds of the slowest tier per second
	Points          []SkewPoint `json:"points"`  // hottest first, from 0, 0 to 1, 1; none without any heat
	// Needs is what the curve says for some shares of the heat, least first.
	Needs []SkewPoint `json:"needs"`
	Tiers []SkewTier  `json:"tiers"` // fastest first
}

// SkewPoint is the share of the heat that the hottest share of the extents has.
type SkewPoint struct {
	Extents float64 `json:"extents"`
	Heat    float64 `json:"heat"`
}

// SkewTier is the part of a tier.
type SkewTier struct {
	Name          string  `json:"name"`
	CapacityBytes int64   `json:"capacity_bytes"` // of the whole tier
	FreeBytes     int64   `json:"free_bytes"`
	Extents       int64   `json:"extents"` // of what was asked for
	Heat          float64 `json:"heat"`    // share that these have
	// BestHeat is the share that the tier would have if the hottest extents filled the
	// tiers, fastest first: with all it can hold if the whole pool was asked for, else
	// with as many as it has now.
	BestHeat float64 `json:"best_heat"`
}
