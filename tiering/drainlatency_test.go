package tiering_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"tierd/pkg/backing"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/ondisk"
)

// slowWrites is a store on which a write to a slot takes its time.
type slowWrites struct {
	backing.Store
	from  int64
	delay time.Duration
	armed atomic.Bool
	then  func() // called once after a sync, when armed
}

func (s *slowWrites) WriteAt(ctx context.Context, p []byte, off int64) error {
	if s.from > 0 && off >= s.from {
		time.Sleep(s.delay)
	}
	return s.Store.WriteAt(ctx, p, off)
}

func (s *slowWrites) Sync(ctx context.Context) error {
	err := s.Store.Sync(ctx)
	if s.armed.CompareAndSwap(true, false) {
		s.then()
	}
	return err
}

// TestASlowTargetIsNotCopiedToInAnExclusion: a client writes to an extent just before
// the mover takes it for itself, after the sync of the target, so that a piece is
// left to be copied. Where that takes longer than writers may be kept waiting, it is
// copied before they have to. The test counts pieces and does not measure: the pool
// tells how many its exclusions have copied.
func TestASlowTargetIsNotCopiedToInAnExclusion(t *testing.T) {
	const size = 4 * 128 << 10
	for delay, want := range map[time.Duration]int64{0: 1, 60 * time.Millisecond: 0} { // a hold is 50 ms
		target := &slowWrites{delay: delay}
		e := newEnv(t, model.Config{ExtentSize: size, Slots: [][]int{{4}, {4}}, Volumes: []int64{4 * size}}, func(o *tiering.Options) {
			inner := o.OpenStore
			o.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
				st, err := inner(ctx, spec, create, readOnly)
				if err != nil || readOnly || spec.Path != path(1, 0) {
					return st, err
				}
				target.Store = st
				if sb, err := ondisk.ReadSuperblock(ctx, st); err == nil {
					target.from = sb.Layout.DataOffset
				}
				return target, nil
			}
		})
		e.write("v0", 0, size, 1)
		e.flush("v0")
		v := e.volume("v0")
		target.then = func() {
			if err := v.WriteAt(ctx, []byte{9}, 5000, false); err != nil {
				t.Error(err)
			}
		}
		target.armed.Store(true)
		if _, err := e.Pool.MoveExtent(ctx, "v0", 0, 1); err != nil {
			t.Fatal(err)
		}
		if target.armed.Load() {
			t.Fatal("the target was not synced")
		}
		if got := e.Pool.Relocation().MostHeld; got != want && !(delay == 0 && got == 0) {
			t.Errorf("writes of %s: %d pieces were copied while writers waited, want %d", delay, got, want)
		}
		e.expect("v0", 5000, 1, 9)
		e.expect("v0", 5001, size-5001, 1)
	}
}

// BenchmarkDrainLatency measures what writers of a pool on slow disks wait for while
// one of the disks is drained: beside the time of a write alone.
func BenchmarkDrainLatency(b *testing.B) {
	const size = 1 << 20
	dir := b.TempDir()
	sim := &backing.Simulate{Latency: 8 * time.Millisecond, IOPS: 200, Bandwidth: 150 << 20}
	o := tiering.CreateOptions{Metadata: dir + "/pool.db", ExtentSize: size, Volumes: []tiering.VolumeSpec{{Name: "v", Size: 32 * size}}}
	spec := tiering.TierSpec{Name: "hdd", Media: backing.HDD}
	var hints []tiering.BackingSpec
	for i := range 2 {
		s := tiering.BackingSpec{Path: fmt.Sprintf("%s/%d.img", dir, i), Size: 64 << 20, Media: backing.HDD}
		spec.Backings = append(spec.Backings, s)
		s.Simulate = sim
		hints = append(hints, s)
	}
	o.Tiers = []tiering.TierSpec{spec}
	if _, err := tiering.Create(ctx, o); err != nil {
		b.Fatal(err)
	}
	p, err := tiering.Open(ctx, tiering.Options{Metadata: o.Metadata, Backings: hints})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Kill()
	v, err := p.Volume("v")
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, size)
	for i := range int64(32) {
		if err := v.WriteAt(ctx, append(buf[:0:0], make([]byte, size-1)...), i*size, false); err != nil {
			b.Fatal(err)
		}
		if err := v.WriteAt(ctx, []byte{byte(i + 1)}, i*size, false); err != nil {
			b.Fatal(err)
		}
	}
	if err := v.Flush(ctx); err != nil {
		b.Fatal(err)
	}
	measure := func(done func() bool) (worst, p99 time.Duration) {
		var took []time.Duration
		for i := int64(1); !done(); i++ {
			start := time.Now()
			if err := v.WriteAt(ctx, []byte("x"), i*7919*4096%(32*size), false); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		return took[len(took)-1], took[len(took)*99/100]
	}
	for b.Loop() {
		until := time.Now().Add(3 * time.Second)
		aloneWorst, aloneP99 := measure(func() bool { return time.Now().After(until) })
		ref, other := hints[0].Path, hints[1].Path
		if b.N%2 == 0 {
			ref, other = other, ref
		}
		_ = p.Drain(ctx, other, tiering.DrainCancel, nil, false)
		if err := p.Drain(ctx, ref, tiering.DrainStart, nil, false); err != nil {
			b.Fatal(err)
		}
		worst, p99 := measure(func() bool {
			for _, m := range p.Backings() {
				if m.Path == ref {
					return m.Drain.State == tiering.DrainEmpty
				}
			}
			return true
		})
		if err := p.Drain(ctx, ref, tiering.DrainCancel, nil, false); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(aloneP99.Microseconds())/1e3, "alone-p99-ms")
		b.ReportMetric(float64(aloneWorst.Microseconds())/1e3, "alone-max-ms")
		b.ReportMetric(float64(p99.Microseconds())/1e3, "drain-p99-ms")
		b.ReportMetric(float64(worst.Microseconds())/1e3, "drain-max-ms")
		b.ReportMetric(float64((worst-aloneWorst).Microseconds())/1e3, "added-max-ms")
	}
}
