package tiering_test

import (
	"context"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"tierd/pkg/backing"
	"tierd/pkg/trace"
	"tierd/tiering"
)

// BenchmarkRecording tells what recording costs reads from the page cache: turns of
// 2,000 reads go to a volume that is recorded and to one that is not. off-ns/op and
// on-ns/op are medians of the turns, so that what else runs on the machine has little
// part in them, and cost-% what the one is above the other. The recording is encoded,
// as the daemon does.
func BenchmarkRecording(b *testing.B) {
	const size, turn = 64 << 20, 2_000
	dir := b.TempDir()
	specs := []tiering.BackingSpec{{Path: filepath.Join(dir, "ssd.img"), Size: 2*size + 64<<20, Media: backing.SSD}}
	o := tiering.CreateOptions{
		Metadata: filepath.Join(dir, "pool.db"), ExtentSize: 1 << 20,
		Tiers:   []tiering.TierSpec{{Name: "ssd", Media: backing.SSD, Backings: specs}},
		Volumes: []tiering.VolumeSpec{{Name: "off", Size: size}, {Name: "on", Size: size}},
	}
	if _, err := tiering.Create(ctx, o); err != nil {
		b.Fatal(err)
	}
	pool, err := tiering.Open(ctx, tiering.Options{Metadata: o.Metadata, Backings: specs})
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	vols := pool.Volumes()
	p := make([]byte, 1<<20)
	p[0] = 1
	for _, v := range vols {
		for off := int64(0); off < size; off += 1 << 20 {
			if err := v.WriteAt(ctx, p, off, false); err != nil {
				b.Fatal(err)
			}
		}
	}
	p = p[:4096]
	rnd := rand.New(rand.NewPCG(1, 2))
	reads := func(v *tiering.Volume, n int) float64 {
		start := time.Now()
		for range n {
			if off := rnd.Int64N(size/4096) * 4096; !v.TryRead(p, off) {
				if err := v.ReadAt(ctx, p, off); err != nil { // it was evicted
					b.Fatal(err)
				}
			}
		}
		return float64(time.Since(start)) / float64(n)
	}
	w, err := trace.NewWriter(io.Discard, trace.Header{ExtentSize: 1 << 20}, trace.WriterOptions{})
	if err != nil {
		b.Fatal(err)
	}
	c, cancel := context.WithCancel(ctx)
	begun, ended := make(chan struct{}, 1), make(chan error, 1)
	var dropped uint64
	go func() {
		ended <- vols[1].Record(c, time.Now(), 250*time.Millisecond, func(accesses []tiering.Access, d uint64) error {
			select {
			case begun <- struct{}{}:
			default:
			}
			for _, a := range accesses {
				if err := w.Write(trace.Record{Time: a.At, Offset: a.Off, Length: a.Len}); err != nil {
					return err
				}
			}
			dropped = d
			return nil
		})
	}()
	<-begun
	for range 200 { // every buffer was in use
		reads(vols[0], turn)
		reads(vols[1], turn)
	}
	var took [2][]float64
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i*turn < b.N; i++ {
		took[i%2] = append(took[i%2], reads(vols[i%2], min(turn, b.N-i*turn)))
	}
	b.StopTimer()
	cancel()
	if err := <-ended; err != context.Canceled {
		b.Fatal(err)
	}
	if len(took[1]) == 0 {
		return
	}
	for _, t := range took {
		slices.Sort(t)
	}
	off, on := took[0][len(took[0])/2], took[1][len(took[1])/2]
	b.ReportMetric(off, "off-ns/op")
	b.ReportMetric(on, "on-ns/op")
	b.ReportMetric((on/off-1)*100, "cost-%")
	b.ReportMetric(float64(dropped)/float64(w.Records()+dropped), "dropped/record")
}
