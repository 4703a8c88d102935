package tiering_test

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"tierd/pkg/backing"
	"tierd/tiering"
)

// benchVolume returns a filled volume on a file backing.
func benchVolume(b *testing.B, size int64) *tiering.Volume {
	b.Helper()
	dir := b.TempDir()
	specs := []tiering.BackingSpec{{Path: filepath.Join(dir, "ssd.img"), Size: size + 64<<20, Media: backing.SSD}}
	ctx := context.Background()
	o := tiering.CreateOptions{
		Metadata: filepath.Join(dir, "pool.db"), ExtentSize: 1 << 20,
		Tiers:   []tiering.TierSpec{{Name: "ssd", Media: backing.SSD, Backings: specs}},
		Volumes: []tiering.VolumeSpec{{Name: "v", Size: size}},
	}
	if _, err := tiering.Create(ctx, o); err != nil {
		b.Fatal(err)
	}
	p, err := tiering.Open(ctx, tiering.Options{Metadata: o.Metadata, Backings: specs})
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
	buf := make([]byte, 1<<20)
	for i := range buf {
		buf[i] = byte(i)
	}
	for off := int64(0); off < size; off += int64(len(buf)) {
		if err := v.WriteAt(ctx, buf, off, false); err != nil {
			b.Fatal(err)
		}
	}
	return v
}

func BenchmarkVolumeTryRead4K(b *testing.B) {
	const size = 256 << 20
	v := benchVolume(b, size)
	p := make([]byte, 4096)
	rnd := rand.New(rand.NewPCG(1, 2))
	b.ReportAllocs()
	b.ResetTimer()
	misses := 0
	for range b.N {
		if !v.TryRead(p, rnd.Int64N(size/4096)*4096) {
			misses++
		}
	}
	b.ReportMetric(float64(misses)/float64(b.N), "misses/op")
}

func BenchmarkVolumeWrite4K(b *testing.B) {
	const size = 256 << 20
	v := benchVolume(b, size)
	p := make([]byte, 4096)
	p[0] = 1
	ctx := context.Background()
	rnd := rand.New(rand.NewPCG(1, 2))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if err := v.WriteAt(ctx, p, rnd.Int64N(size/4096)*4096, false); err != nil {
			b.Fatal(err)
		}
	}
}
