package setup

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"tierd/pkg/backing"
	"tierd/pkg/config"
	"tierd/tiering"
	"tierd/tiering/heat"
	"tierd/tiering/schedule"
)

// Backings returns the backings of a configuration, tier by tier.
func Backings(c *config.Config) []tiering.BackingSpec {
	var specs []tiering.BackingSpec
	for _, t := range tiers(c) {
		specs = append(specs, t.Backings...)
	}
	return specs
}

func tiers(c *config.Config) []tiering.TierSpec {
	var specs []tiering.TierSpec
	for _, t := range c.Tiers {
		media := backing.Media(t.Media)
		spec := tiering.TierSpec{Name: t.Name, Media: media}
		for _, b := range t.Backings {
			s := tiering.BackingSpec{
				Path: b.Path, Size: int64(b.Size), Preallocate: b.Preallocate, Direct: t.DirectIO, Media: media, ForeignNBD: b.ForeignNBD,
			}
			if b.Simulate.Enabled() {
				s.Simulate = &backing.Simulate{
					Latency: time.Duration(b.Simulate.Latency), IOPS: float64(b.Simulate.IOPS), Bandwidth: int64(b.Simulate.Bandwidth),
				}
			}
			spec.Backings = append(spec.Backings, s)
		}
		specs = append(specs, spec)
	}
	return specs
}

// CreateOptions returns what is needed to create the pool of a configuration. An
// automatic extent size is settled here, by the sizes that the backings have or
// will have.
func CreateOptions(c *config.Config) (tiering.CreateOptions, error) {
	o := tiering.CreateOptions{Metadata: c.Metadata, Tiers: tiers(c)}
	var total int64
	for _, b := range Backings(c) {
		n := b.Size
		if n == 0 {
			var err error
			if n, err = sizeOf(b.Path); err != nil {
				return o, fmt.Errorf("backing %s: %w", b.Path, err)
			}
		}
		total += n
	}
	o.ExtentSize = int64(c.ExtentSize.Resolve(total))
	for _, v := range c.Volumes {
		o.Volumes = append(o.Volumes, tiering.VolumeSpec{Name: v.Name, Size: int64(v.Size), Policy: v.Policy, Clients: v.AllowClients, Space: Space(v)})
	}
	return o, nil
}

// Space returns what a configured volume may take of the pool.
func Space(v config.Volume) tiering.Space {
	return tiering.Space{Reservation: int64(v.Reservation), Quota: int64(v.Quota), OnFullWait: time.Duration(v.OnFull)}
}

// sizeOf returns the size of a file or block device, bytes.
func sizeOf(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Seek(0, io.SeekEnd)
}

// OpenOptions returns what is needed to open the pool of a configuration.
func OpenOptions(c *config.Config, log *slog.Logger) (tiering.Options, error) {
	h := heat.DefaultParams()
	h.ShortHalfLife = time.Duration(c.Heat.ShortHalfLife)
	h.LongHalfLife = time.Duration(c.Heat.LongHalfLife)
	h.ShortWeight = c.Heat.ShortWeight
	r, err := Relocation(c)
	return tiering.Options{Metadata: c.Metadata, Backings: Backings(c), Heat: h, Relocation: r, Logger: log, LowWater: c.Space.LowWater.Fraction()}, err
}

// Relocation returns the settings of the movement.
func Relocation(c *config.Config) (tiering.RelocationOptions, error) {
	r := c.Relocation
	o := tiering.RelocationOptions{
		Cycle:      time.Duration(r.Cycle),
		Hysteresis: r.Hysteresis.Fraction(),
		Headroom:   r.Headroom.Fraction(),
		Limits:     schedule.Limits{Rate: int64(r.Budget.Rate), PerCycle: int64(r.Budget.PerCycle), PerDay: int64(r.Budget.PerDay)},
		Calendar:   schedule.Calendar{Location: time.Local},
	}
	for _, w := range r.Windows {
		sw, err := schedule.ParseWindow(w.Days.String(), w.Start.String(), w.End.String(), int64(w.Rate))
		if err != nil {
			return o, fmt.Errorf("relocation window: %w", err)
		}
		o.Calendar.Windows = append(o.Calendar.Windows, sw)
	}
	return o, nil
}
