//go:build !race

package backing_test

import (
	"testing"

	"tierd/pkg/backing"
)

// TestNoAllocation: the calls of the I/O path allocate nothing. (The race
// detector makes sync.Pool forget on purpose, hence the build tag.)
func TestNoAllocation(t *testing.T) {
	for _, tt := range []struct {
		name string
		o    backing.Options
		off  int64
	}{
		{"buffered", backing.Options{}, 0},
		{"direct", backing.Options{Direct: true}, 0},
		{"direct unaligned", backing.Options{Direct: true}, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := tt.o
			base := newOptions(t, 1<<20)
			o.Path, o.Size, o.Create = base.Path, base.Size, true
			s := mustOpen(t, o)
			p := make([]byte, 4096)
			for what, call := range map[string]func(){
				"TryReadAt":      func() { s.TryReadAt(p, tt.off) },
				"ReadAt":         func() { _ = s.ReadAt(ctx, p, tt.off) },
				"WriteAt":        func() { _ = s.WriteAt(ctx, p, tt.off) },
				"StartWriteback": func() { s.StartWriteback(0, 4096) },
			} {
				if got := testing.AllocsPerRun(100, call); got >= 1 {
					t.Errorf("%s allocates %v times a call, want 0", what, got)
				}
			}
		})
	}
}
