package heat

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestInOrder: the same accesses give the same scores to the last bit.
func TestInOrder(t *testing.T) {
	replay := func() Score {
		tr := newTracker(t, testParams())
		tr.InOrder()
		v := tr.AddVolume(1, 1)
		rng := rand.New(rand.NewPCG(1, 2))
		for range 5000 { // more than a buffer holds
			v.Access(0, 1+rng.Int64N(mib), rng.IntN(2) == 0)
		}
		tr.Drain(start.Add(time.Minute))
		return v.Heat(0, start.Add(time.Minute))
	}
	want := replay()
	for range 10 {
		if got := replay(); got != want {
			t.Fatalf("got %+v, before that %+v", got, want)
		}
	}
}
