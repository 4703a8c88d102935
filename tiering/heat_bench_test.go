package tiering

import (
	"bytes"
	"context"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tierd/pkg/backing"
)

// BenchmarkHitHeat is what heat adds to a read that memory answers. Blocks of reads that
// count for the heat once, as all do, and twice take turns; heat-ns is the difference of
// the processor time of this thread, and read-ns that of a read with its heat. The second
// touch finds the caches as warm as the first leaves them: what it misses is for drains to
// pay, since touches are only appended.
func BenchmarkHitHeat(b *testing.B) {
	const size = 64 << 20
	dir := b.TempDir()
	specs := []BackingSpec{{Path: filepath.Join(dir, "ssd.img"), Size: size + 64<<20, Media: backing.SSD}}
	ctx := context.Background()
	o := CreateOptions{
		Metadata: filepath.Join(dir, "pool.db"), ExtentSize: 1 << 20,
		Tiers:   []TierSpec{{Name: "ssd", Media: backing.SSD, Backings: specs}},
		Volumes: []VolumeSpec{{Name: "v", Size: size}},
	}
	if _, err := Create(ctx, o); err != nil {
		b.Fatal(err)
	}
	p, err := Open(ctx, Options{Metadata: o.Metadata, Backings: specs})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := p.Close(); err != nil {
			b.Error(err)
		}
	})
	v, err := p.Volume("v")
	if err != nil {
		b.Fatal(err)
	}
	if err := v.WriteAt(ctx, bytes.Repeat([]byte{1}, size), 0, false); err != nil {
		b.Fatal(err)
	}

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	rng := rand.New(rand.NewPCG(1, 2))
	offs := make([]int64, 4096)
	for i := range offs {
		offs[i] = rng.Int64N(size/4096) * 4096
	}
	buf := make([]byte, 4096)
	var once, twice time.Duration
	reads := 0
	for b.Loop() {
		start := thread()
		for _, off := range offs {
			if !v.TryRead(buf, off) {
				b.Fatal("a read missed the page cache")
			}
		}
		middle := thread()
		for _, off := range offs {
			v.TryRead(buf, off)
			v.heat.Access(off, 4096, false)
		}
		once += middle - start
		twice += thread() - middle
		reads += len(offs)
	}
	b.ReportMetric(float64(once.Nanoseconds())/float64(reads), "read-ns")
	b.ReportMetric(float64((twice-once).Nanoseconds())/float64(reads), "heat-ns")
}
