package heat

import (
	"math/rand/v2"
	"testing"
	"time"

	"tierd/tiering/extent"
)

func benchTracker(b *testing.B, drain bool) *Volume {
	tr := newTracker(b, testParams())
	v := tr.AddVolume(1, 1<<20)
	if !drain {
		return v
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for now := start; ; now = now.Add(time.Millisecond) {
			select {
			case <-stop:
				return
			case <-tr.Full():
				tr.Drain(now)
			}
		}
	}()
	b.Cleanup(func() { close(stop); <-done; b.ReportMetric(float64(tr.Dropped())/float64(b.N), "dropped/op") })
	return v
}

// BenchmarkAccess is the cost of a request on its way, random 4 KiB over 64 GiB;
// the drains that it makes necessary run beside it.
func BenchmarkAccess(b *testing.B) {
	b.Run("random", func(b *testing.B) {
		v := benchTracker(b, true)
		rng := rand.New(rand.NewPCG(1, 2))
		offs := make([]int64, 1<<16)
		for i := range offs {
			offs[i] = rng.Int64N(1<<24) << 12
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			v.Access(offs[i&(1<<16-1)], 4096, false)
		}
	})
	b.Run("sequential", func(b *testing.B) {
		v := benchTracker(b, true)
		b.ReportAllocs()
		for i := int64(0); b.Loop(); i++ {
			v.Access(i&(1<<20-1)<<12, 4096, false)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		v := benchTracker(b, true)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			off := rand.Int64N(1 << 24)
			for pb.Next() {
				off = (off*25214903917 + 11) & (1<<24 - 1)
				v.Access(off<<12, 4096, false)
			}
		})
	})
	b.Run("stream alone", func(b *testing.B) {
		var s streams
		rng := rand.New(rand.NewPCG(1, 2))
		offs := make([]int64, 1<<16)
		for i := range offs {
			offs[i] = rng.Int64N(1<<24) << 12
		}
		for i := 0; b.Loop(); i++ {
			s.request(offs[i&(1<<16-1)], 4096)
		}
	})
}

// BenchmarkDrain is the cost of applying a touch.
func BenchmarkDrain(b *testing.B) {
	v := benchTracker(b, false)
	rng := rand.New(rand.NewPCG(1, 2))
	now := start
	const n = 100_000
	for b.Loop() {
		b.StopTimer()
		for range n {
			v.Access(rng.Int64N(1<<20)<<20, 4096, false)
		}
		now = now.Add(time.Second)
		b.StartTimer()
		v.t.Drain(now)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/touch")
}

// BenchmarkRange is the cost of reading a million scores.
func BenchmarkRange(b *testing.B) {
	v := benchTracker(b, false)
	for i := range int64(1 << 20) {
		v.Access(i<<20, 4096, false)
		if i&0xffff == 0 {
			v.t.Drain(start)
		}
	}
	v.t.Drain(start)
	b.ReportAllocs()
	b.ResetTimer()
	n := 0
	for b.Loop() {
		n = 0
		v.Range(start, func(extent.Index, Score) bool { n++; return true })
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/extent")
}

// BenchmarkSave is the cost of encoding a million scores that all changed.
func BenchmarkSave(b *testing.B) {
	v := benchTracker(b, false)
	for i := range int64(1 << 20) {
		v.Access(i<<20, 4096, false)
		if i&0xffff == 0 {
			v.t.Drain(start)
		}
	}
	v.t.Drain(start)
	b.ReportAllocs()
	for b.Loop() {
		if err := v.t.EncodeChunks(pool, start, false, func(ChunkKey, []byte) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
