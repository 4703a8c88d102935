package main

import (
	"context"
	"errors"

	"tierd/pkg/control"
	"tierd/tiering"
	"tierd/tiering/skew"
)

// skewNeeds are the shares of the heat for which Skew tells how much data has them.
var skewNeeds = []float64{0.5, 0.8, 0.9, 0.95, 0.99}

// Skew returns how unevenly the load lies on a volume, or on all of them.
func (s *service) Skew(ctx context.Context, r control.SkewRequest) (control.Skew, error) {
	size := s.pool.Size().Bytes()
	out := control.Skew{Volume: r.Volume, ExtentSizeBytes: size}
	for _, t := range s.pool.Tiers() {
		out.Tiers = append(out.Tiers, control.SkewTier{
			Name: t.Name, CapacityBytes: t.Slots.Total * size, FreeBytes: (t.Slots.Total - t.Slots.Used - t.Slots.Quarantined) * size,
		})
	}
	volumes := []string{r.Volume}
	if r.Volume == "" {
		volumes = nil
		for _, v := range s.pool.Volumes() {
			volumes = append(volumes, v.Name())
		}
	}
	var c skew.Curve
	for _, name := range volumes {
		err := s.pool.HeatMap(ctx, name, func(h tiering.ExtentHeat) {
			if h.Tier < 0 || h.Tier >= len(out.Tiers) {
				return // not mapped, or in a tier that was just added
			}
			c.Add(h.Heat)
			out.Tiers[h.Tier].Extents++
			out.Tiers[h.Tier].Heat += h.Heat
		})
		if err != nil && !(r.Volume == "" && errors.Is(err, tiering.ErrNotFound)) {
			return control.Skew{}, classify(err)
		}
	}
	out.Extents, out.Heat = c.Extents(), c.Heat()
	fillSkew(&out, c.Points())
	return out, nil
}

// fillSkew adds what follows from the curve. The heat of the tiers comes as sums, and
// goes as shares.
func fillSkew(out *control.Skew, points []skew.Point) {
	if len(points) == 0 {
		return
	}
	for _, p := range points {
		out.Points = append(out.Points, control.SkewPoint{Extents: p.Extents, Heat: p.Heat})
	}
	for _, heat := range skewNeeds {
		out.Needs = append(out.Needs, control.SkewPoint{Extents: skew.Needed(points, heat), Heat: heat})
	}
	var held int64 // by this tier and those above
	before := 0.0
	for i := range out.Tiers {
		t := &out.Tiers[i]
		t.Heat /= out.Heat
		if out.Volume == "" {
			held += t.CapacityBytes / out.ExtentSizeBytes
		} else {
			held += t.Extents
		}
		served := skew.At(points, float64(held)/float64(out.Extents))
		t.BestHeat = served - before
		before = served
	}
}
