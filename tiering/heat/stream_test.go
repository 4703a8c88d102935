package heat

import (
	"math/rand/v2"
	"testing"
)

func TestStreams(t *testing.T) {
	const kib = 1 << 10
	type req struct{ off, n int64 }
	sequence := func(base, n int64, order ...int64) (out []req) {
		for _, k := range order {
			out = append(out, req{base + k*n, n})
		}
		return out
	}
	for _, tc := range []struct {
		name string
		reqs []req
		want []bool
	}{
		{"fourth in a row", sequence(0, 4*kib, 0, 1, 2, 3, 4), []bool{false, false, false, true, true}},
		{"512 KiB in a row", sequence(1<<30, 256*kib, 0, 1, 2), []bool{false, true, true}},
		{"one large request", []req{{5 << 20, 512 * kib}}, []bool{true}},
		{"same place again and again", sequence(0, 4*kib, 7, 7, 7, 7, 7, 7), make([]bool, 6)},
		{"backwards", sequence(0, 4*kib, 9, 8, 7, 6, 5), make([]bool, 5)},
		{"every second", sequence(0, 4*kib, 0, 2, 4, 6, 8, 10), make([]bool, 6)},
		{"pairs swapped", sequence(0, 4*kib, 1, 0, 3, 2, 5, 4, 7, 6), []bool{false, false, false, false, false, true, true, true}},
		{"not a multiple of the sector", []req{{100, 1000}, {1100, 1000}, {2100, 1000}, {3100, 1000}}, make([]bool, 4)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s streams
			for i, r := range tc.reqs {
				if got := s.request(r.off, r.n); got != tc.want[i] {
					t.Errorf("request %d at %d: got sequential %v, want %v", i, r.off, got, tc.want[i])
				}
			}
		})
	}
}

// TestStreamsOverConnections: a stream whose requests arrive shuffled within a
// window of four, as from several connections, between random requests, is seen
// as sequential almost throughout, and the random requests are not.
func TestStreamsOverConnections(t *testing.T) {
	const seed, n, window = 42, 4096, 4
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	order := make([]int64, n)
	for i := range order {
		order[i] = int64(i)
	}
	for i := 0; i < n; i += window {
		rng.Shuffle(window, func(a, b int) { order[i+a], order[i+b] = order[i+b], order[i+a] })
	}
	var s streams
	var stream, random int
	for _, k := range order {
		if s.request(1<<40+k*65536, 65536) {
			stream++
		}
		for range 3 {
			if s.request(rng.Int64N(1<<28)<<12, 4096) {
				random++
			}
		}
	}
	if stream < n*95/100 {
		t.Errorf("got %d of %d stream requests as sequential, want 95 %%", stream, n)
	}
	if random > 3*n/1000 {
		t.Errorf("got %d of %d random requests as sequential, want at most 0.1 %%", random, 3*n)
	}
}

func TestRunWord(t *testing.T) {
	r := newRun(1<<41+5, 1<<20, 1000, 1<<14+3)
	if r.end() != 5 || r.sectors() != 2047 || r.requests() != 7 {
		t.Errorf("got end %d, %d sectors, %d requests", r.end(), r.sectors(), r.requests())
	}
	for number, want := range map[uint64]bool{1<<14 + 4: true, 1<<14 + 3 + maxBetween: true, 1<<14 + 4 + maxBetween: false, 1<<20 + 3: true, 1<<14 - 20: true, 5000: false} {
		if got := r.fresh(number); got != want {
			t.Errorf("request %d: fresh %v, want %v", number, got, want)
		}
	}
}

// TestHotRegionIsNotAStream: random requests to a small region, each of whose blocks ends
// where the next begins and was used before, are random all the same; one that goes through
// the region in order is sequential each time.
func TestHotRegionIsNotAStream(t *testing.T) {
	const seed, n = 7, 20000
	for _, blocks := range []int64{256, 2048} {
		rng := rand.New(rand.NewPCG(seed, 0))
		var s streams
		sequential := 0
		for range n {
			if s.request(rng.Int64N(blocks)<<12, 4096) {
				sequential++
			}
		}
		if sequential > n*3/100 {
			t.Errorf("seed %d: of %d random requests to %d blocks %d count as sequential", seed, n, blocks, sequential)
		}
		sequential = 0
		for i := range int64(n) {
			if s.request(i%blocks<<12, 4096) {
				sequential++
			}
		}
		if sequential < n*95/100 {
			t.Errorf("of %d requests in order %d count as sequential", n, sequential)
		}
	}
}
