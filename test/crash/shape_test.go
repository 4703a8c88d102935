package crash

import (
	"fmt"

	"tierd/pkg/backing"
	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/ondisk"
)

// shape is how the pool of a row looks.
type shape struct {
	extent  int64   // bytes
	slots   [][]int // of each backing of each tier
	volumes []int64 // sizes of v0, v1, ...
	layouts map[string]ondisk.Layout
}

// small has extents of one copy piece; large, of several. Slots are few, so that
// they are used again.
var (
	small = newShape(64<<10, [][]int{{4}, {3, 3}, {7}}, 5, 6)
	large = newShape(512<<10, [][]int{{2}, {3}, {4}}, 3, 2)
)

func newShape(size int64, slots [][]int, extents ...int64) *shape {
	s := &shape{extent: size, slots: slots, layouts: make(map[string]ondisk.Layout)}
	for i, n := range extents {
		n *= size
		if i == 0 {
			n += 2 * block // the last extent is ragged
		}
		s.volumes = append(s.volumes, n)
	}
	es, err := extent.NewSize(size)
	if err != nil {
		panic(err)
	}
	places := make(map[string]int)
	for i, tier := range slots {
		for j, n := range tier {
			places[path(i, j)] = n
		}
	}
	for i := range 2 {
		places[spare(i)] = 3
	}
	for at, n := range places {
		for bytes := int64(8 << 20); ; bytes += 64 << 10 {
			if l, err := ondisk.NewLayout(bytes, es); err == nil && l.Slots >= uint32(n) {
				s.layouts[at] = l
				break
			}
		}
	}
	return s
}

func path(tier, backing int) string { return fmt.Sprintf("/t%d/b%d", tier, backing) }

// spare is the path of a disk that is not of the pool at first.
func spare(n int) string { return fmt.Sprintf("/spare/b%d", n) }

func (s *shape) tiers() []tiering.TierSpec {
	var tiers []tiering.TierSpec
	for i, t := range s.slots {
		spec := tiering.TierSpec{Name: fmt.Sprintf("t%d", i), Media: backing.SSD}
		for j := range t {
			spec.Backings = append(spec.Backings, tiering.BackingSpec{Path: path(i, j), Size: s.layouts[path(i, j)].Size})
		}
		tiers = append(tiers, spec)
	}
	return tiers
}

// create makes the pool on a machine with blank disks, or with what an earlier
// create has left there.
func (s *shape) create(m *machine) error {
	o := tiering.CreateOptions{
		Metadata: m.metadata(), ExtentSize: s.extent, OpenStore: m.openStore, Tiers: s.tiers(),
		LogBytes: 64 << 10,
	}
	for i, n := range s.volumes {
		o.Volumes = append(o.Volumes, tiering.VolumeSpec{Name: fmt.Sprintf("v%d", i), Size: n})
	}
	_, err := tiering.Create(ctx, o)
	return err
}
