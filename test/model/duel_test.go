package model

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"
)

// duels lets two writes of the same extents run at once, without an order between
// them: one of them is the later one, everywhere.
func duels(t *testing.T, seed uint64, d, patience time.Duration) (n int) {
	const size = 64 << 10
	w := NewWorld(t, Config{ExtentSize: size, Slots: [][]int{{20}}, Volumes: []int64{18 * size}}, nil)
	v, err := w.Pool.Volume("v0")
	if err != nil {
		t.Fatal(err)
	}
	// Over the edges of groups of eight extents, which are in line in different places.
	const off, length = 7*size + size/2, 9 * size
	got := make([]byte, length)
	for end := time.Now().Add(d); time.Now().Before(end); n++ {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				if err := v.WriteAt(ctx, bytes.Repeat([]byte{byte(4*n + i)}, length), off, false); err != nil {
					t.Errorf("write: %v", err)
				}
			})
		}
		wg.Wait()
		cancel()
		if err := v.ReadAt(context.Background(), got, off); err != nil {
			t.Fatal(err)
		}
		for i, b := range got {
			if b != got[0] {
				t.Fatalf("byte %d is of write %d, byte 0 of write %d", i, b, got[0])
			}
		}
		if t.Failed() {
			return n
		}
		w.Forget()
	}
	return n
}

// TestDuels: overlapping writes of several extents have one order in all of them.
func TestDuels(t *testing.T) {
	if n := duels(t, Seed(t), 2*time.Second, time.Minute); n == 0 {
		t.Error("no duel was fought")
	}
}
