package paper

import (
	"errors"
	"fmt"
	"math"
)

// Inputs are what the paper measured, read off a plot, or assumed. Times are in ms, rates
// per second, shares 0 to 1.
type Inputs struct {
	IOPS          float64 `json:"iops"`            // of all clients (figure 6)
	ReadShare     float64 `json:"read_share"`      // of these
	ReadMissShare float64 `json:"read_miss_share"` // of all requests: reads that wait for a drive
	MeanKB        float64 `json:"mean_kb"`         // size of a request
	HitMS         float64 `json:"hit_ms"`          // of what the cache answers

	Tiers  []Tier   `json:"tiers"`  // of the tiered array, fastest first: SSD, FC, SATA
	Single []Drives `json:"single"` // the two sets of one kind to compare with

	MovedUp   float64 `json:"moved_up"`   // reads for tier moves off SATA
	MovedDown float64 `json:"moved_down"` // and off FC
}

// Tier is one tier of the array.
type Tier struct {
	Name          string  `json:"name"`
	ReadMS        float64 `json:"read_ms"`         // of one drive (figure 9)
	ReadsPerDrive float64 `json:"reads_per_drive"` // (figure 10)
	Drives        int     `json:"drives"`
	DriveTB       float64 `json:"drive_tb"`
	PoolTB        float64 `json:"pool_tb"` // of the tier, as the text has it
}

// Drives is a set of drives of one kind.
type Drives struct {
	Name        string  `json:"name"`
	SeekMS      float64 `json:"seek_ms"`
	RPM         float64 `json:"rpm"`
	Utilisation float64 `json:"utilisation"` // of a drive, by the vendor's tool (figure 8)
	Drives      int     `json:"drives"`
	DriveTB     float64 `json:"drive_tb"`
}

// Defaults returns the inputs of the paper: 14:50 on 2013-06-21.
func Defaults() Inputs {
	return Inputs{
		IOPS: 15675, ReadShare: 0.486, ReadMissShare: 0.211, MeanKB: 11.56, HitMS: 2,
		Tiers: []Tier{
			{"SSD", 2.0, 300, 16, 0.2, 2},
			{"FC", 10.0, 39, 120, 0.6, 48},
			{"SATA", 20.5, 20, 48, 2, 60},
		},
		Single: []Drives{
			{"config 1 (15k)", 3.4, 15000, 0.55, 280, 0.6},
			{"config 2 (10k)", 3.8, 10000, 0.72, 280, 0.6},
		},
		MovedUp: 391, MovedDown: 547,
	}
}

// Validate returns every fault of in, joined, or nil.
func (in Inputs) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	above := func(name string, v float64) {
		if !(v > 0) || math.IsInf(v, 0) {
			fault("%s must be above 0 (got %v)", name, v)
		}
	}
	above("requests a second", in.IOPS)
	above("size of a request", in.MeanKB)
	if !(in.HitMS >= 0) || math.IsInf(in.HitMS, 0) {
		fault("time of a hit must not be negative (got %v)", in.HitMS)
	}
	if !(in.ReadShare >= 0 && in.ReadShare <= 1) {
		fault("share of reads must be 0 to 1 (got %v)", in.ReadShare)
	}
	if !(in.ReadMissShare > 0 && in.ReadMissShare <= in.ReadShare) {
		fault("share of read misses must be above 0 and within that of reads, %v (got %v)", in.ReadShare, in.ReadMissShare)
	}
	if math.Round(in.IOPS*in.ReadMissShare) < 1 {
		fault("there must be at least one read miss a second (got %v)", in.IOPS*in.ReadMissShare)
	}
	if len(in.Tiers) != 3 || len(in.Single) != 2 {
		fault("the paper has 3 tiers and 2 sets of drives (got %d and %d)", len(in.Tiers), len(in.Single))
		return errors.Join(faults...)
	}
	for _, t := range in.Tiers {
		above("read time of "+t.Name, t.ReadMS)
		above("reads of a drive of "+t.Name, t.ReadsPerDrive)
		above("drives of "+t.Name, float64(t.Drives))
	}
	for _, d := range in.Single {
		above("revolutions of "+d.Name, d.RPM)
		above("drives of "+d.Name, float64(d.Drives))
		if !(d.SeekMS >= 0) || math.IsInf(d.SeekMS, 0) {
			fault("seek time of %s must not be negative (got %v)", d.Name, d.SeekMS)
		}
		if !(d.Utilisation >= 0 && d.Utilisation < 1) {
			fault("utilisation of %s must be 0 to below 1 (got %v)", d.Name, d.Utilisation)
		}
	}
	if up, down := in.Tiers[2].Reads(), in.Tiers[1].Reads(); !(in.MovedUp >= 0 && in.MovedUp <= up && in.MovedDown >= 0 && in.MovedDown <= down) {
		fault("reads for tier moves must be within the reads of SATA, %v, and FC, %v (got %v and %v)", up, down, in.MovedUp, in.MovedDown)
	}
	return errors.Join(faults...)
}

// Reads returns the reads a second of all drives of t.
func (t Tier) Reads() float64 { return t.ReadsPerDrive * float64(t.Drives) }
