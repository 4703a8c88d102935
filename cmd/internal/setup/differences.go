package setup

import (
	"fmt"

	"tierd/pkg/config"
	"tierd/pkg/units"
	"tierd/tiering"
)

// Differences lists what the configuration says otherwise than the open pool, one
// line each. The pool is right: the configuration seeds its creation, and then
// gives hints where to find backings and what can be tuned. Volumes that the
// configuration does not list are no difference, since volumes are made with
// tierctl.
func Differences(c *config.Config, p *tiering.Pool) []string {
	var out []string
	add := func(format string, args ...any) {
		out = append(out, "configuration differs from the pool: "+fmt.Sprintf(format, args...))
	}
	if want, have := int64(c.ExtentSize), p.Size().Bytes(); want != 0 && want != have {
		add("extent_size is %s, the pool's is %s", units.Size(want), units.Size(have))
	}
	tiers := p.Tiers()
	if len(tiers) != len(c.Tiers) {
		add("it has %d tiers, the pool %d", len(c.Tiers), len(tiers))
	}
	tierOf := make(map[string]string)
	for _, b := range p.Backings() {
		tierOf[b.Path] = b.Tier
	}
	configured := make(map[string]bool)
	for i, t := range c.Tiers {
		if i < len(tiers) {
			if tiers[i].Name != t.Name {
				add("tier %d is named %s, in the pool %s", i, t.Name, tiers[i].Name)
			}
			if tiers[i].Media != string(t.Media) {
				add("tier %s has media %q, in the pool %q", t.Name, t.Media, tiers[i].Media)
			}
		}
		for _, b := range t.Backings {
			configured[b.Path] = true
			if have, ok := tierOf[b.Path]; ok && have != t.Name {
				add("backing %s is listed in tier %s and belongs to %s", b.Path, t.Name, have)
			}
		}
	}
	for path, tier := range tierOf {
		if !configured[path] {
			add("backing %s of tier %s is not listed", path, tier)
		}
	}
	for _, v := range c.Volumes {
		have, err := p.Volume(v.Name)
		if err != nil {
			add("volume %s is listed and does not exist; tierctl volume create makes it", v.Name)
			continue
		}
		if have.Size() != int64(v.Size) {
			add("volume %s has size %s, in the pool %s", v.Name, v.Size, units.Size(have.Size()))
		}
		if have.Policy().String() != v.Policy {
			add("volume %s has policy %s, in the pool %s", v.Name, v.Policy, have.Policy())
		}
		if want, is := Space(v), have.Space(); want != is {
			add("volume %s has reservation %s, quota %s, on_full %s; in the pool %s, %s, %s", v.Name, v.Reservation, v.Quota, v.OnFull,
				units.Size(is.Reservation), units.Size(is.Quota), config.OnFull(is.OnFullWait))
		}
	}
	return out
}
