package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"tierd/nbd/load"
	"tierd/pkg/control"
)

// snapshot is the state of the daemon's counters at one time.
type snapshot struct {
	at    time.Time
	tiers []control.Tier // fastest first
	moved []control.Moved
	cycle uint64
}

// traffic returns the bytes moved into and out of a tier since the start.
func (s snapshot) traffic(tier string) (in, out int64) {
	for _, m := range s.moved {
		if m.To == tier {
			in += m.Bytes
		}
		if m.From == tier {
			out += m.Bytes
		}
	}
	return in, out
}

// movedBytes returns all bytes moved since the start.
func (s snapshot) movedBytes() int64 {
	var n int64
	for _, m := range s.moved {
		n += m.Bytes
	}
	return n
}

// view is what changed on a tier between two snapshots.
type view struct {
	name    string
	size    int64
	fill    float64 // share of the tier in use
	iops    float64 // reads and writes a second
	share   float64 // of the reads of all tiers
	in, out int64   // bytes moved, since the load began
}

// views compares two snapshots; base is the one from the load's begin.
func views(base, from, to snapshot) []view {
	var reads int64
	for i := range to.tiers {
		reads += to.tiers[i].Reads - from.tiers[i].Reads
	}
	seconds := to.at.Sub(from.at).Seconds()
	list := make([]view, len(to.tiers))
	for i, t := range to.tiers {
		f := from.tiers[i]
		v := view{name: t.Name, size: t.CapacityBytes}
		if t.CapacityBytes > 0 {
			v.fill = float64(t.UsedBytes) / float64(t.CapacityBytes)
		}
		if seconds > 0 {
			v.iops = float64(t.Reads-f.Reads+t.Writes-f.Writes) / seconds
		}
		if reads > 0 {
			v.share = float64(t.Reads-f.Reads) / float64(reads)
		}
		in, out := to.traffic(t.Name)
		in0, out0 := base.traffic(t.Name)
		v.in, v.out = in-in0, out-out0
		list[i] = v
	}
	return list
}

// meter collects what the client and the daemon tell during the load.
type meter struct {
	admin *control.Client

	mu    sync.Mutex
	shots []snapshot // the first is from the load's begin, then one with each sample
	marks []load.Sample
	err   error // of the daemon's answers
}

// take asks the daemon.
func (m *meter) take(ctx context.Context) error {
	tiers, err := m.admin.Tiers(ctx)
	if err != nil {
		return fmt.Errorf("ask for tiers: %w", err)
	}
	r, err := m.admin.RelocationStatus(ctx)
	if err != nil {
		return fmt.Errorf("ask for movement: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shots = append(m.shots, snapshot{time.Now(), tiers, r.Moved, r.Cycle})
	return nil
}

// sample adds what the client saw, and asks the daemon at that moment.
func (m *meter) sample(ctx context.Context, s load.Sample) {
	err := m.take(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.err = err
		return
	}
	m.marks = append(m.marks, s)
}

// edge is the begin or the end of the load.
type edge struct {
	mean  time.Duration // of a request
	iops  float64
	share float64 // of the reads that the top tier served
}

// edges compares the first and the last d of the load.
func (m *meter) edges(d time.Duration) (first, last edge, err error) {
	if m.err != nil {
		return edge{}, edge{}, m.err
	}
	if len(m.marks) == 0 || m.marks[len(m.marks)-1].At < 2*d {
		return edge{}, edge{}, fmt.Errorf("the load ended before there was anything to compare")
	}
	end := m.marks[len(m.marks)-1].At
	n := slices.IndexFunc(m.marks, func(s load.Sample) bool { return s.At > d+d/20 })
	k := slices.IndexFunc(m.marks, func(s load.Sample) bool { return s.At > end-d+d/20 })
	return m.edge(0, n), m.edge(k, len(m.marks)), nil
}

// edge sums up the samples [from, to). Snapshot i is from the begin of sample i.
func (m *meter) edge(from, to int) edge {
	var ops int64
	var sum, length time.Duration
	for _, s := range m.marks[from:to] {
		ops += s.Ops
		sum += s.Mean * time.Duration(s.Ops)
		length += s.Length
	}
	if ops == 0 {
		return edge{}
	}
	v := views(m.shots[0], m.shots[from], m.shots[to])
	return edge{mean: sum / time.Duration(ops), iops: float64(ops) / length.Seconds(), share: v[0].share}
}
