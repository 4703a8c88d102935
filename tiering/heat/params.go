package heat

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Params are the settings of the heat model. Start from DefaultParams.
type Params struct {
	ShortHalfLife time.Duration // h_s: what bursts are remembered for
	LongHalfLife  time.Duration // h_l: what habits are remembered for
	ShortWeight   float64       // omega, 0 to 1: share of the short-term rate in the heat
	Position      time.Duration // p: time the slowest tier takes to position for a random access
	Bandwidth     float64       // bytes per second of the slowest tier once it is positioned
	ReadWeight    float64       // factor for reads
	WriteWeight   float64       // factor for writes; below 1 if a buffer absorbs them
	Cycle         time.Duration // time between two calls of Tick
}

// DefaultParams returns the settings for a slowest tier of 7,200 rpm disks and a
// cycle of five minutes.
func DefaultParams() Params {
	return Params{
		ShortHalfLife: time.Hour,
		LongHalfLife:  24 * time.Hour,
		ShortWeight:   0.2,
		Position:      12 * time.Millisecond,
		Bandwidth:     150e6,
		ReadWeight:    1,
		WriteWeight:   1,
		Cycle:         5 * time.Minute,
	}
}

// Validate returns every fault of p joined, or nil.
func (p Params) Validate() error {
	var faults []error
	bad := func(name, why string) { faults = append(faults, fmt.Errorf("%s: %s", name, why)) }
	if p.ShortHalfLife <= 0 {
		bad("short half-life", "must be above 0")
	}
	if p.LongHalfLife < p.ShortHalfLife {
		bad("long half-life", "must not be below the short one")
	}
	if !(p.ShortWeight >= 0 && p.ShortWeight <= 1) {
		bad("short weight", "must be from 0 to 1")
	}
	if p.Position < 0 {
		bad("position", "must not be negative")
	}
	if !(p.Bandwidth > 0) {
		bad("bandwidth", "must be above 0")
	}
	if !(p.ReadWeight >= 0) || !(p.WriteWeight >= 0) {
		bad("read and write weight", "must not be negative")
	}
	if p.Cycle <= 0 {
		bad("cycle", "must be above 0")
	}
	return errors.Join(faults...)
}

// Noise returns the variance of the rate that is told of an extent, in proportion to the
// rate, 1/s: of accesses that come at random (a Poisson process) with rate r the heat,
// counted in accesses, has the variance r * Noise. For a sum of half-life h it is k/2 with
// k = ln2/h, the integral of (k e^(-kt))^2; for the weighted sum of two
//
//	w^2 k_s/2 + (1-w)^2 k_l/2 + 2 w (1-w) k_s k_l/(k_s + k_l)
//
// That is of old extents. What is known for a time a has seen less: of a sum alone the
// variance is k/2 (1 + x)/(1 - x/2) times the rate told, with x = 2^(-a/h), four times as
// much at first. Score.Noise takes that factor of the long half-life, which is 3c - 2 with c
// the correction of young extents.
func (p Params) Noise() float64 {
	ks, kl := math.Ln2/p.ShortHalfLife.Seconds(), math.Ln2/p.LongHalfLife.Seconds()
	w := p.ShortWeight
	return w*w*ks/2 + (1-w)*(1-w)*kl/2 + 2*w*(1-w)*ks*kl/(ks+kl)
}
