package backing_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tierd/pkg/backing"
)

const benchSize = 64 << 20

func openBench(b *testing.B, o backing.Options) backing.Device {
	b.Helper()
	o.Path, o.Size, o.Create = filepath.Join(b.TempDir(), "store"), benchSize, true
	s, err := backing.Open(ctx, o)
	if err != nil {
		b.Skipf("cannot open: %v", err)
	}
	b.Cleanup(func() { s.Close() })
	if err := s.WriteAt(ctx, make([]byte, benchSize), 0); err != nil {
		b.Fatal(err)
	}
	return s
}

// BenchmarkTryReadAt is a page-cache hit of 4 KiB, beside the bare system
// calls, and from all processors at once.
func BenchmarkTryReadAt(b *testing.B) {
	s := openBench(b, backing.Options{})
	hit := func(b *testing.B, p []byte, i int) {
		if !s.TryReadAt(p, int64(i%(benchSize/4096))*4096) {
			b.Fatal("missed")
		}
	}
	b.Run("store", func(b *testing.B) {
		b.ReportAllocs()
		p := make([]byte, 4096)
		for i := 0; b.Loop(); i++ {
			hit(b, p, i)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			p := make([]byte, 4096)
			for i := 0; pb.Next(); i++ {
				hit(b, p, i)
			}
		})
	})
	b.Run("plain pread", func(b *testing.B) {
		f, err := os.Open(s.Info().Path)
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		b.ReportAllocs()
		p := make([]byte, 4096)
		fd := int(f.Fd())
		for i := 0; b.Loop(); i++ {
			if _, err := unix.Pread(fd, p, int64(i%(benchSize/4096))*4096); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkReadAt(b *testing.B)  { benchCall(b, backing.Device.ReadAt) }
func BenchmarkWriteAt(b *testing.B) { benchCall(b, backing.Device.WriteAt) }

func benchCall(b *testing.B, call func(backing.Device, context.Context, []byte, int64) error) {
	for _, tt := range []struct {
		name string
		o    backing.Options
		off  int64
	}{
		{"buffered", backing.Options{}, 0},
		{"direct", backing.Options{Direct: true}, 0},
		{"direct unaligned", backing.Options{Direct: true}, 100},
	} {
		b.Run(tt.name, func(b *testing.B) {
			s := openBench(b, tt.o)
			p := make([]byte, 4096)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := call(s, ctx, p, int64(i%(benchSize/4096-1))*4096+tt.off); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSimulated shows how precise the sleeps are: ns/op should be the
// latency, and not a timer tick more.
func BenchmarkSimulated(b *testing.B) {
	for _, latency := range []time.Duration{50 * time.Microsecond, 100 * time.Microsecond, time.Millisecond, 10 * time.Millisecond} {
		b.Run(latency.String(), func(b *testing.B) {
			s := backing.NewSimulated(backing.NewMem(1<<20), backing.Simulate{Latency: latency}, nil)
			defer s.Close()
			b.ReportAllocs()
			p := make([]byte, 4096)
			for b.Loop() {
				if err := s.ReadAt(ctx, p, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
