package registry

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"tierd/tiering/extent"
)

const (
	kib    = 1 << 10
	extLen = 64 * kib
)

// mapped is a Mapper in which the listed extents are unmapped.
type mapped map[extent.Index]bool

func (m mapped) AllMapped(first, last extent.Index) bool {
	for i := first; i <= last; i++ {
		if m[i] {
			return false
		}
	}
	return true
}

func newRegistry(t testing.TB) *Registry {
	size, err := extent.NewSize(extLen)
	if err != nil {
		t.Fatal(err)
	}
	return New(size)
}

func waiting(t *Ticket) bool { return t.waits.Load() > 0 }

func TestConflicts(t *testing.T) {
	type rng struct {
		kind   Kind
		vol    extent.VolumeID
		off, n int64
	}
	w := func(off, n int64) rng { return rng{Write, 1, off, n} }
	x := func(off, n int64) rng { return rng{Exclusive, 1, off, n} }
	sh := func(off, n int64) rng { return rng{Shared, 1, off, n} }
	tests := []struct {
		name        string
		first, next rng
		unmapped    []extent.Index
		want        bool
	}{
		{"disjoint blocks", w(0, 4096), w(4096, 4096), nil, false},
		{"same block", w(0, 4096), w(0, 4096), nil, true},
		{"sub-block neighbours share a block", w(0, 512), w(512, 512), nil, true},
		{"other volume", w(0, 4096), rng{Write, 2, 0, 4096}, nil, false},
		{"unmapped extent", w(0, 4096), w(8192, 4096), []extent.Index{0}, true},
		{"one of two extents unmapped", w(0, 4096), w(extLen-4096, 8192), []extent.Index{1}, true},
		{"other extent unmapped", w(0, 4096), w(extLen, 4096), []extent.Index{1}, false},
		{"exclusive blocks the whole extent", x(0, 10), w(extLen-512, 512), nil, true},
		{"exclusive leaves the next extent alone", x(0, 10), w(extLen, 512), nil, false},
		{"readers do not wait for writers", w(0, 4096), sh(0, 4096), nil, false},
		{"readers wait for exclusives", x(0, 4096), sh(8192, 4096), nil, true},
		{"exclusives wait for readers", sh(0, 4096), x(8192, 4096), nil, true},
		{"far apart, same stripe or not", w(0, 4096), w(1<<40, 4096), nil, false},
		{"a huge range meets a small one", x(0, 1<<32), w(1<<31, 512), nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRegistry(t)
			m := mapped{}
			for _, i := range tt.unmapped {
				m[i] = true
			}
			var a, b Ticket
			r.Enter(&a, tt.first.kind, tt.first.vol, tt.first.off, tt.first.n, m)
			r.Enter(&b, tt.next.kind, tt.next.vol, tt.next.off, tt.next.n, m)
			if got := waiting(&b); got != tt.want {
				t.Errorf("second waits = %v, want %v", got, tt.want)
			}
			if waiting(&a) {
				t.Error("the first waits")
			}
			r.Leave(&a, 0, 0)
			if err := b.Wait(t.Context()); err != nil {
				t.Errorf("Wait after the first left: %v", err)
			}
			r.Leave(&b, 0, 0)
		})
	}
}

func TestBehindExclusiveIsExclusive(t *testing.T) {
	r := newRegistry(t)
	var x, w1, w2 Ticket
	r.Enter(&x, Exclusive, 1, 0, 1, mapped{})
	r.Enter(&w1, Write, 1, 4096, 4096, mapped{})
	r.Enter(&w2, Write, 1, 16384, 4096, mapped{})
	if !w1.Exclusive() || !w2.Exclusive() {
		t.Error("writes behind an unmap are not exclusive")
	}
	r.Leave(&x, 0, 0)
	if waiting(&w1) || !waiting(&w2) {
		t.Errorf("after the unmap: w1 waits %v, w2 waits %v; want false, true", waiting(&w1), waiting(&w2))
	}
	r.Leave(&w1, 0, 0)
	r.Leave(&w2, 0, 0)
}

func TestWaitGivesUp(t *testing.T) {
	r := newRegistry(t)
	var a, b, c Ticket
	r.Enter(&a, Write, 1, 0, 4096, mapped{})
	r.Enter(&b, Write, 1, 0, 8192, mapped{})
	r.Enter(&c, Write, 1, 4096, 4096, mapped{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait = %v, want %v", err, context.Canceled)
	}
	r.Leave(&b, 0, 0)
	if waiting(&c) {
		t.Error("the one behind it still waits for the one that gave up")
	}
	r.Leave(&a, 0, 0)
	r.Leave(&c, 0, 0)
	for i := range r.stripes {
		if r.stripes[i].head != nil || r.stripes[i].tail != nil {
			t.Fatalf("stripe %d is not empty", i)
		}
	}
}

func TestMove(t *testing.T) {
	r := newRegistry(t)
	key := extent.Key{Volume: 1, Index: 3}
	start := int64(3 * extLen)
	yes := func() bool { return true }
	m := r.StartMove(key, 16*kib, yes)
	if m == nil {
		t.Fatal("StartMove refused")
	}
	if r.StartMove(key, 16*kib, yes) != nil {
		t.Error("two moves of one extent")
	}
	for want := range 4 {
		if got, ok := m.Take(0); !ok || got != want {
			t.Errorf("Take = %d, %v; want %d", got, ok, want)
		}
	}
	if _, ok := m.Take(0); ok {
		t.Error("a mark is left after all were taken")
	}

	var w, x Ticket
	r.Enter(&w, Write, 1, start+16*kib-1, 2, mapped{})
	if m.Marked() != 0 {
		t.Error("marked before the write has left")
	}
	if r.TryExclusive(&x, key) {
		t.Error("exclusive beside a write in flight")
	}
	r.Leave(&w, start+16*kib-1, 2)
	if got, ok := m.Take(1); !ok || got != 1 {
		t.Errorf("Take(1) = %d, %v; want 1", got, ok)
	}
	if got := m.Marked(); got != 1 {
		t.Errorf("Marked = %d, want 1", got)
	}
	if !r.TryExclusive(&x, key) {
		t.Error("TryExclusive refused with nothing in flight")
	}
	r.Leave(&x, 0, 0)

	r.CancelMoves(1, 0, 5)
	if _, ok := m.Take(0); ok || !m.Cancelled() {
		t.Error("a cancelled move goes on")
	}
	r.EndMove(m)

	r.Enter(&x, Exclusive, 1, start, 1, mapped{})
	if r.StartMove(key, 16*kib, yes) != nil {
		t.Error("a move started beside an exclusive")
	}
	r.Leave(&x, 0, 0)
	if r.StartMove(key, 16*kib, func() bool { return false }) != nil {
		t.Error("a move started although its entry refused")
	}
}

// TestExclusion lets writers over one or more extents run against each other
// and checks that no two conflicting ones ever overlap in time, and that all end.
func TestExclusion(t *testing.T) {
	r := newRegistry(t)
	const blocks = 64
	var owner [blocks * 4]atomic.Int32
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(g)))
			var tk Ticket
			for range 3000 {
				b := rnd.IntN(blocks * 3)
				n := 1 + rnd.IntN(blocks/2)
				kind := Write
				if rnd.IntN(8) == 0 {
					kind = Exclusive
				}
				r.Enter(&tk, kind, 1, int64(b)*1024, int64(n)*1024, mapped{})
				if err := tk.Wait(context.Background()); err != nil {
					t.Error(err)
				}
				for i := b; i < b+n; i++ {
					if !owner[i].CompareAndSwap(0, int32(g+1)) {
						t.Errorf("block %d is owned by two", i)
					}
				}
				for i := b; i < b+n; i++ {
					owner[i].Store(0)
				}
				r.Leave(&tk, 0, 0)
			}
		})
	}
	wg.Wait()
}

func TestNoAllocation(t *testing.T) {
	r := newRegistry(t)
	var tk Ticket
	var m Mapper = mapped{}
	r.Enter(&tk, Write, 1, 0, 4096, m)
	r.Leave(&tk, 0, 4096)
	if got := testing.AllocsPerRun(100, func() {
		r.Enter(&tk, Write, 1, 8192, 4096, m)
		_ = tk.Wait(context.Background())
		r.Leave(&tk, 8192, 4096)
	}); got != 0 {
		t.Errorf("%v allocations a change, want 0", got)
	}
}

func BenchmarkEnterLeave(b *testing.B) {
	r := newRegistry(b)
	var tk Ticket
	var m Mapper = mapped{}
	ctx := context.Background()
	for i := range b.N {
		r.Enter(&tk, Write, 1, int64(i%4096)*4096, 4096, m)
		_ = tk.Wait(ctx)
		r.Leave(&tk, int64(i%4096)*4096, 4096)
	}
}
