package tiering

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
	"tierd/tiering/heat"
)

const cycleExtents = 10_000_000

// cyclePool returns a pool of three tiers, 5 %, 25 % and 70 % of n extents of 64 KiB, with
// a volume of n mapped extents in it, their heat after Zipf's law and where they lie left
// to chance, and what the map and the heat take of anonymous memory. The map is filled in
// memory alone: nothing is written but the metadata of an empty volume.
func cyclePool(b *testing.B, n int64) (*Pool, *Volume, int64) {
	b.Helper()
	const size = extent.MinSize
	dir := b.TempDir()
	o := CreateOptions{Metadata: filepath.Join(dir, "pool.db"), ExtentSize: size, Volumes: []VolumeSpec{{Name: "v", Size: n * size}}}
	var specs []BackingSpec
	slots := []int64{n/20 + 1, n/4 + 1, n*7/10 + 1}
	for i, name := range []string{"nvme", "ssd", "hdd"} {
		media := backing.SSD
		if i == 2 {
			media = backing.HDD
		}
		s := BackingSpec{Path: filepath.Join(dir, name), Size: slots[i]*11/10*size + 1<<30, Media: media}
		specs = append(specs, s)
		o.Tiers = append(o.Tiers, TierSpec{Name: name, Media: media, Backings: []BackingSpec{s}})
	}
	ctx := context.Background()
	if _, err := Create(ctx, o); err != nil {
		b.Fatal(err)
	}
	p, err := Open(ctx, Options{
		Metadata: o.Metadata, Backings: specs,
		Relocation: RelocationOptions{Cycle: 24 * time.Hour, Hysteresis: 0.25, Headroom: 0.02},
	})
	if err != nil {
		b.Fatal(err)
	}
	v, err := p.Volume("v")
	if err != nil {
		b.Fatal(err)
	}
	var ids []extent.BackingID
	for _, t := range p.ranks() {
		ids = append(ids, t.members()[0].id)
	}

	before := anonymous(b)
	rng := rand.New(rand.NewPCG(1, 2))
	var used [3]extent.Slot
	for i := range n {
		t := 2
		switch x := rng.IntN(20); {
		case x == 0:
			t = 0
		case x <= 5:
			t = 1
		}
		v.table.Store(extent.Index(i), extent.Entry(0).At(extent.Location{Backing: ids[t], Slot: used[t]}))
		used[t]++
		bytes := int64(min(math.Pow(1-rng.Float64(), -1/1.2)*4096, size))
		v.heat.Access(i*size, bytes, false)
		if i&0xffff == 0 {
			p.heat.Drain(p.clock.Now())
		}
	}
	p.heat.Tick(p.clock.Now())
	if got := p.heat.Dropped(); got > 0 {
		b.Fatalf("%d accesses were dropped", got)
	}
	took := anonymous(b) - before
	b.Cleanup(func() {
		// The map goes back to what the metadata say before the pool is closed.
		for i := range n {
			v.table.Store(extent.Index(i), 0)
		}
		if err := p.Close(); err != nil {
			b.Error(err)
		}
	})
	return p, v, took
}

// anonymous returns how many bytes of anonymous memory the process has.
func anonymous(b *testing.B) int64 {
	b.Helper()
	f, err := os.Open("/proc/self/smaps_rollup")
	if err != nil {
		b.Skipf("what memory is used cannot be told: %v", err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "Anonymous:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return kb << 10
		}
	}
	b.Skip("what memory is used cannot be told: smaps_rollup has no line Anonymous")
	return 0
}

// processorTime returns what the process has used of the processors so far.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCycle10M plans a cycle of a pool with ten million mapped extents, all with
// heat, in "cycle", for some budgets; "walk" is the part of map and heat in it, without a
// planner, and "scores" that of heat alone. B/extent is what map and heat take of anonymous
// memory. What counts is the time of the processor, cpu-s, that others cannot disturb.
func BenchmarkCycle10M(b *testing.B) {
	p, v, memory := cyclePool(b, cycleExtents)
	run := func(name string, fn func(b *testing.B)) {
		b.Run(name, func(b *testing.B) {
			before := processorTime(b)
			fn(b)
			took := processorTime(b) - before
			b.ReportMetric(took.Seconds()/float64(b.N), "cpu-s/op")
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N)/cycleExtents, "cpu-ns/extent")
		})
	}
	for _, budget := range []int64{256 << 20, 4 << 30, 0} {
		name := fmt.Sprintf("cycle/budget=%dMiB", budget>>20)
		if budget == 0 {
			name = "cycle/budget=none"
		}
		run(name, func(b *testing.B) {
			o := p.monitor.opts
			o.Limits.PerCycle = budget
			p.SetRelocation(o)
			moves := 0
			for b.Loop() {
				now := p.clock.Now()
				p.heat.Drain(now)
				p.heat.Tick(now)
				pl, _ := p.monitor.plan(now, false)
				moves = len(pl.Moves)
			}
			b.ReportMetric(float64(moves), "moves/plan")
			b.ReportMetric(float64(memory)/cycleExtents, "B/extent")
		})
	}
	run("walk", func(b *testing.B) {
		for b.Loop() {
			sum, n := 0.0, 0
			view := p.monitor.view(p.clock.Now(), p.ranks(), false)
			for e := range view.Extents {
				sum += e.Heat
				n++
			}
			if n != cycleExtents || sum <= 0 {
				b.Fatalf("%d extents with a heat of %v", n, sum)
			}
		}
	})
	run("scores", func(b *testing.B) {
		out := make([]heat.Score, 4096)
		for b.Loop() {
			now := p.clock.Now()
			for first := extent.Index(0); first < cycleExtents; first += extent.Index(len(out)) {
				v.heat.Scores(first, out, now)
			}
		}
	})
	run("save", func(b *testing.B) {
		for b.Loop() {
			err := p.heat.EncodeChunks(heat.PoolID(p.id), p.clock.Now(), false, func(heat.ChunkKey, []byte) error { return nil })
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
