package heat

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tierd/tiering/extent"
)

// rebaseAt is the number of short half-lives after the landmark at which it is
// moved. A float32 takes sums up to 2^127, so there is room above.
const rebaseAt = 60

// firstCycle leaves numbers below it for the births of extents that are loaded.
const firstCycle = 1 << 18

// Tracker keeps the heat of all extents of a pool. One goroutine calls Drain and
// Tick; everything else may be called from anywhere.
type Tracker struct {
	// Never changed.
	p             Params
	size          extent.Size
	reads, writes weights
	corrections   []correction // by age in cycles

	buf  *buffers
	refs atomic.Pointer[[]*Volume] // by Volume.ref; only ever grows

	drainMu sync.Mutex // taken before mu: one drain, load or encode at a time

	// mu keeps segments from going away under their readers, and the landmark
	// and the cells in step.
	mu       sync.RWMutex
	volumes  map[extent.VolumeID]*Volume
	landmark time.Time
	cycle    uint32
	failed   uint64 // touches lost because memory could not be mapped
}

// weights are what an access costs the slowest tier, in seconds, the factor for
// its kind included.
type weights struct{ position, perByte float64 }

// New returns a Tracker without volumes. p must be valid.
func New(p Params, size extent.Size, now time.Time) *Tracker {
	if err := p.Validate(); err != nil {
		panic(fmt.Sprintf("heat parameters: %v", err))
	}
	t := &Tracker{
		p: p, size: size, corrections: newCorrections(p), buf: newBuffers(),
		volumes: map[extent.VolumeID]*Volume{}, landmark: now, cycle: firstCycle,
	}
	t.reads = weights{p.ReadWeight * p.Position.Seconds(), p.ReadWeight / p.Bandwidth}
	t.writes = weights{p.WriteWeight * p.Position.Seconds(), p.WriteWeight / p.Bandwidth}
	t.refs.Store(&[]*Volume{})
	return t
}

// InOrder makes t apply touches in the order in which they are made. Sums depend on
// it in their last bits, and a replay has to come to the same scores each time. Call
// it before the first access; from then on t is for one goroutine.
func (t *Tracker) InOrder() { t.buf.inOrder = true }

// Params returns the settings the tracker was made with.
func (t *Tracker) Params() Params { return t.p }

// AddVolume starts to track a volume of that many extents. Adding one that is
// there already returns it, grown if need be.
func (t *Tracker) AddVolume(id extent.VolumeID, extents extent.Index) *Volume {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v := t.volumes[id]; v != nil {
		v.growLocked(extents)
		return v
	}
	refs := *t.refs.Load()
	v := &Volume{t: t, id: id, ref: uint32(len(refs)), size: t.size}
	v.growLocked(extents)
	grown := append(slices.Clone(refs), v)
	t.refs.Store(&grown)
	t.volumes[id] = v
	return v
}

// GrowVolume tells that a volume now has that many extents.
func (t *Tracker) GrowVolume(id extent.VolumeID, extents extent.Index) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v := t.volumes[id]; v != nil {
		v.growLocked(extents)
	}
}

// DropVolume forgets a volume and frees its memory. Its Volume stays callable
// and answers zeroes.
func (t *Tracker) DropVolume(id extent.VolumeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropLocked(t.volumes[id])
}

func (t *Tracker) dropLocked(v *Volume) {
	if v == nil {
		return
	}
	delete(t.volumes, v.id)
	for _, s := range v.segments {
		if s != nil {
			s.free()
		}
	}
	v.segments, v.extents = nil, 0
	refs := slices.Clone(*t.refs.Load())
	refs[v.ref] = nil // touches under way find nothing
	t.refs.Store(&refs)
}

// Close drops all volumes.
func (t *Tracker) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, v := range t.volumes {
		t.dropLocked(v)
	}
}

// Full delivers when so many touches wait that a Drain ahead of time would keep
// some from being dropped.
func (t *Tracker) Full() <-chan struct{} { return t.buf.hurry }

// Dropped returns how many touches were lost since New, because they came faster
// than they were drained or because there was no memory.
func (t *Tracker) Dropped() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.buf.dropped.Load() + t.failed
}

// Tick begins a new cycle. It drains first, so that accesses count for the cycle
// they were made in.
func (t *Tracker) Tick(now time.Time) {
	t.Drain(now)
	t.drainMu.Lock()
	defer t.drainMu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cycle++
	if t.cycle == maxCycle {
		const by = maxCycle / 2
		t.eachCellLocked(func(c *cell) { c.age(by) })
		t.cycle -= by
	}
}

// Drain applies the touches made since the last call, as if they were made now:
// call it once a second. Forward decay: a touch of weight w adds
// w*2^((t-t0)/h) to the sum of half-life h, with t0 the landmark, and no sum has
// to be aged ever after.
func (t *Tracker) Drain(now time.Time) {
	t.drainMu.Lock()
	defer t.drainMu.Unlock()
	t.rebase(now)

	t.mu.RLock()
	d := now.Sub(t.landmark).Seconds()
	growS := float32(math.Exp2(d / t.p.ShortHalfLife.Seconds()))
	growL := float32(math.Exp2(d / t.p.LongHalfLife.Seconds()))
	cycle := t.cycle
	t.mu.RUnlock()

	t.buf.drain(func(touches []touch) {
		// Memory may have to be mapped on the way; only that needs mu for writing.
		t.mu.RLock()
		defer t.mu.RUnlock()
		for i := range touches {
			x := &touches[i]
			v := (*t.refs.Load())[x.volume]
			if v == nil || x.index >= v.extents {
				continue
			}
			s := v.segments[x.index>>segmentShift]
			if s == nil {
				s = t.mapSegment(v, x.index)
				if s == nil {
					continue
				}
			}
			within := uint64(x.index) & (segmentLen - 1)
			s.cells[within].add(x.weight*growS, x.weight*growL, cycle)
			s.mark(within)
		}
	})
}

// mapSegment makes the segment of extent i, or returns nil. mu is held for
// reading and is again on return.
func (t *Tracker) mapSegment(v *Volume, i extent.Index) *segment {
	t.mu.RUnlock()
	defer t.mu.RLock()
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := v.segmentLocked(i)
	if err != nil {
		t.failed++
		return nil
	}
	return s
}

// rebase moves the landmark to now if the sums have come near the end of their
// range, or if the clock went back behind it. drainMu is held, so that the
// landmark can be read without mu: a reader in the I/O path waits for a drain
// only in the rare case that there is something to do.
func (t *Tracker) rebase(now time.Time) {
	d := now.Sub(t.landmark).Seconds()
	hs, hl := t.p.ShortHalfLife.Seconds(), t.p.LongHalfLife.Seconds()
	if d >= 0 && d/hs <= rebaseAt {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if d > 0 {
		s, l := float32(math.Exp2(-d/hs)), float32(math.Exp2(-d/hl))
		t.eachCellLocked(func(c *cell) { c.scale(s, l) })
	}
	// After a jump back the scores stay what they were.
	t.landmark = now
}

// eachCellLocked visits the cells of all chunks that were ever touched.
func (t *Tracker) eachCellLocked(fn func(c *cell)) {
	for _, v := range t.volumes {
		for _, s := range v.segments {
			if s == nil {
				continue
			}
			for chunk := range chunksPer {
				if s.touched.Load()&(1<<chunk) == 0 {
					continue
				}
				for i := range chunkLen {
					fn(&s.cells[chunk<<chunkShift+i])
				}
			}
		}
	}
}

// sortedLocked returns the volumes by id.
func (t *Tracker) sortedLocked() []*Volume {
	return slices.SortedFunc(maps.Values(t.volumes), func(a, b *Volume) int { return int(int64(a.id) - int64(b.id)) })
}
