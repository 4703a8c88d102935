package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"sync"
	"testing"

	"tierd/pkg/backing"
)

// size of the Stores under test. It is a multiple of 4 KiB and not of 64 KiB,
// so that the last piece of whatever a Store splits into is a ragged one.
const size = 4<<20 + 12<<10

// Maker returns an empty Store of size bytes that reads as zeroes.
type Maker func(t *testing.T, size int64) backing.Store

// Run runs the suite, each test on a Store of its own.
func Run(t *testing.T, mk Maker) {
	tests := []struct {
		name string
		run  func(t *testing.T, s backing.Store)
	}{
		{"size", testSize},
		{"read back", testReadBack},
		{"random against model", testModel},
		{"out of range", testOutOfRange},
		{"hole", testHole},
		{"concurrent disjoint", testConcurrent},
		{"cancelled", testCancelled},
		{"close beside calls", testCloseBesideCalls},
		{"closed", testClosed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := mk(t, size)
			defer s.Close()
			tt.run(t, s)
		})
	}
}

func testSize(t *testing.T, s backing.Store) {
	if got := s.Size(); got != size {
		t.Errorf("Size = %d, want %d", got, size)
	}
	if a, b := s.Instance(), s.Instance(); a == "" || a != b {
		t.Errorf("Instance = %q, then %q; want the same name twice", a, b)
	}
	mustRead(t, s, make([]byte, size), 0)
}

// testReadBack writes at offsets and lengths with every kind of edge.
func testReadBack(t *testing.T, s backing.Store) {
	ctx := context.Background()
	rng := rand.New(rand.NewSource(1))
	for _, tt := range []struct{ off, n int64 }{
		{0, 0}, {0, 1}, {0, 512}, {0, 4096}, {1, 1}, {511, 2}, {4095, 2}, {4096, 4096},
		{100, 4096}, {8192 - 1, 4098}, {12345, 70001}, {0, 1 << 20}, {512, 256 << 10}, {3, 256<<10 + 5},
		{size - 1, 1}, {size - 4096, 4096}, {size - 5000, 5000}, {size, 0}, {0, size},
	} {
		want := randomBytes(rng, int(tt.n))
		if err := s.WriteAt(ctx, want, tt.off); err != nil {
			t.Fatalf("WriteAt(%d bytes, %d) = %v, want nil", tt.n, tt.off, err)
		}
		mustRead(t, s, want, tt.off)
	}
	if err := s.Sync(ctx); err != nil {
		t.Errorf("Sync = %v, want nil", err)
	}
	s.StartWriteback(0, size)
	s.StartWriteback(0, 0)
	s.StartWriteback(-1, size+2) // a hint cannot fail
	if err := s.Discard(ctx, 4096, 8192); err != nil {
		t.Errorf("Discard = %v, want nil", err)
	}
}

// testModel runs random operations on the Store and on a slice of bytes.
func testModel(t *testing.T, s backing.Store) {
	const seed = 7
	t.Logf("seed %d", seed)
	ctx := context.Background()
	rng := rand.New(rand.NewSource(seed))
	model := make([]byte, size)
	for i := range 400 {
		off := rng.Int63n(size)
		n := min(size-off, 1+rng.Int63n(1<<(1+rng.Intn(18))))
		if rng.Intn(3) == 0 { // aligned
			off &^= 4095
			n = min(size-off, (n+4095)&^4095)
		}
		switch op := rng.Intn(10); {
		case op < 5:
			p := randomBytes(rng, int(n))
			copy(model[off:], p)
			if err := s.WriteAt(ctx, p, off); err != nil {
				t.Fatalf("step %d: WriteAt(%d bytes, %d) = %v, want nil", i, n, off, err)
			}
		case op < 7:
			clear(model[off : off+n])
			if err := s.Zero(ctx, off, n); err != nil {
				t.Fatalf("step %d: Zero(%d, %d) = %v, want nil", i, off, n, err)
			}
			mustRead(t, s, model[off:off+n], off)
		case op < 8:
			if err := s.Sync(ctx); err != nil {
				t.Fatalf("step %d: Sync = %v, want nil", i, err)
			}
		default:
			mustRead(t, s, model[off:off+n], off)
		}
	}
	mustRead(t, s, model, 0)
}

func testOutOfRange(t *testing.T, s backing.Store) {
	ctx := context.Background()
	for _, tt := range []struct{ off, n int64 }{
		{-1, 1}, {-1, 0}, {size, 1}, {size + 1, 0}, {size - 1, 2}, {1<<63 - 1, 1}, {0, size + 1},
	} {
		p := make([]byte, tt.n)
		checkIs(t, fmt.Sprintf("ReadAt(%d, %d)", tt.n, tt.off), s.ReadAt(ctx, p, tt.off), backing.ErrOutOfRange)
		checkIs(t, fmt.Sprintf("WriteAt(%d, %d)", tt.n, tt.off), s.WriteAt(ctx, p, tt.off), backing.ErrOutOfRange)
		checkIs(t, fmt.Sprintf("Zero(%d, %d)", tt.off, tt.n), s.Zero(ctx, tt.off, tt.n), backing.ErrOutOfRange)
		checkIs(t, fmt.Sprintf("Discard(%d, %d)", tt.off, tt.n), s.Discard(ctx, tt.off, tt.n), backing.ErrOutOfRange)
		_, err := s.IsHole(ctx, tt.off, tt.n)
		checkIs(t, fmt.Sprintf("IsHole(%d, %d)", tt.off, tt.n), err, backing.ErrOutOfRange)
		if s.TryReadAt(p, tt.off) {
			t.Errorf("TryReadAt(%d bytes, %d) = true, want false", tt.n, tt.off)
		}
	}
	checkIs(t, "Zero(0, -1)", s.Zero(ctx, 0, -1), backing.ErrOutOfRange)
	mustRead(t, s, make([]byte, size), 0)
}

// testHole: data is never called a hole, and what is called one reads as zeroes.
func testHole(t *testing.T, s backing.Store) {
	ctx := context.Background()
	const off, n = 1 << 20, 1 << 20
	if err := s.WriteAt(ctx, bytes.Repeat([]byte{1}, n), off); err != nil {
		t.Fatal(err)
	}
	if hole, err := s.IsHole(ctx, off, n); err != nil || hole {
		t.Errorf("IsHole of data = %v, %v; want false, nil", hole, err)
	}
	if hole, err := s.IsHole(ctx, off-4096, 4097); err != nil || hole {
		t.Errorf("IsHole of a range that ends in data = %v, %v; want false, nil", hole, err)
	}
	if err := s.Zero(ctx, off, n); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	hole, err := s.IsHole(ctx, off, n)
	if err != nil {
		t.Errorf("IsHole after Zero: %v", err)
	}
	t.Logf("IsHole after Zero = %v", hole)
	mustRead(t, s, make([]byte, n), off)
}

// testConcurrent has workers that own disjoint ranges, adjacent at 4 KiB.
func testConcurrent(t *testing.T, s backing.Store) {
	const workers, part = 8, 256 << 10
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			ctx := context.Background()
			rng := rand.New(rand.NewSource(int64(w)))
			model := make([]byte, part)
			base := int64(w * part)
			got := make([]byte, part)
			for range 40 {
				off := rng.Intn(part)
				n := 1 + rng.Intn(min(part-off, 20<<10))
				p := randomBytes(rng, n)
				copy(model[off:], p)
				if err := s.WriteAt(ctx, p, base+int64(off)); err != nil {
					t.Errorf("worker %d: WriteAt: %v", w, err)
				}
				if err := s.ReadAt(ctx, got, base); err != nil || !bytes.Equal(got, model) {
					t.Errorf("worker %d: read back differs (%v)", w, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func testCancelled(t *testing.T, s backing.Store) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p := []byte{1}
	checkIs(t, "ReadAt", s.ReadAt(ctx, p, 0), context.Canceled)
	checkIs(t, "WriteAt", s.WriteAt(ctx, p, 0), context.Canceled)
	checkIs(t, "Zero", s.Zero(ctx, 0, 1), context.Canceled)
	checkIs(t, "Sync", s.Sync(ctx), context.Canceled)
	mustRead(t, s, []byte{0}, 0)
}

// testCloseBesideCalls: a call beside Close works or says ErrClosed.
func testCloseBesideCalls(t *testing.T, s backing.Store) {
	var wg sync.WaitGroup
	started := make(chan struct{}, 4)
	for range 4 {
		wg.Go(func() {
			p := make([]byte, 4096)
			for i := 0; ; i++ {
				s.TryReadAt(p, 0)
				err := s.ReadAt(context.Background(), p, 4096)
				if i == 0 {
					started <- struct{}{}
				}
				if err != nil {
					checkIs(t, "ReadAt beside Close", err, backing.ErrClosed)
					return
				}
			}
		})
	}
	for range 4 {
		<-started
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close = %v, want nil", err)
	}
	wg.Wait()
}

func testClosed(t *testing.T, s backing.Store) {
	ctx := context.Background()
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close = %v, want nil", err)
		}
	}
	p := make([]byte, 512)
	checkIs(t, "ReadAt", s.ReadAt(ctx, p, 0), backing.ErrClosed)
	checkIs(t, "WriteAt", s.WriteAt(ctx, p, 0), backing.ErrClosed)
	checkIs(t, "Sync", s.Sync(ctx), backing.ErrClosed)
	checkIs(t, "Zero", s.Zero(ctx, 0, 512), backing.ErrClosed)
	checkIs(t, "Discard", s.Discard(ctx, 0, 512), backing.ErrClosed)
	_, err := s.IsHole(ctx, 0, 512)
	checkIs(t, "IsHole", err, backing.ErrClosed)
	if s.TryReadAt(p, 0) {
		t.Error("TryReadAt of a closed Store = true, want false")
	}
	s.StartWriteback(0, 512)
	if got := s.Size(); got != size {
		t.Errorf("Size of a closed Store = %d, want %d", got, size)
	}
}

// mustRead checks that ReadAt gives want at off, and TryReadAt the same or
// nothing.
func mustRead(t *testing.T, s backing.Store, want []byte, off int64) {
	t.Helper()
	got := bytes.Repeat([]byte{0xee}, len(want))
	if err := s.ReadAt(context.Background(), got, off); err != nil {
		t.Fatalf("ReadAt(%d bytes, %d) = %v, want nil", len(want), off, err)
	}
	checkBytes(t, "ReadAt", got, want, off)
	copy(got, bytes.Repeat([]byte{0xee}, len(got)))
	if s.TryReadAt(got, off) {
		checkBytes(t, "TryReadAt", got, want, off)
	}
}

func checkBytes(t *testing.T, what string, got, want []byte, off int64) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s(%d bytes, %d): byte %d is %#x, want %#x", what, len(want), off, i, got[i], want[i])
		}
	}
}

func checkIs(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

func randomBytes(rng *rand.Rand, n int) []byte {
	p := make([]byte, n)
	rng.Read(p)
	return p
}
