package load

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestZipfDistribution compares drawn shares with the exact ones by a
// chi-squared test, for exponents on both sides of 1.
func TestZipfDistribution(t *testing.T) {
	const draws = 200_000
	for _, theta := range []float64{0.2, 0.5, 0.99, 1, 1 + 1e-12, 1.2, 2, 5} {
		for _, n := range []int64{1, 2, 50, 1000} {
			rng := rand.New(rand.NewPCG(42, uint64(n)))
			z := newZipf(n, theta)
			counts := make([]float64, n+1)
			for range draws {
				k := z.rank(rng)
				if k < 1 || k > n {
					t.Fatalf("theta %g, n %d: rank %d", theta, n, k)
				}
				counts[k]++
			}
			norm := 0.0
			for k := int64(1); k <= n; k++ {
				norm += math.Pow(float64(k), -theta)
			}
			// Ranks that expect less than ten are taken together.
			chi, cells, restGot, restWant := 0.0, 0, 0.0, 0.0
			for k := int64(1); k <= n; k++ {
				want := draws * math.Pow(float64(k), -theta) / norm
				if want < 10 {
					restGot += counts[k]
					restWant += want
					continue
				}
				chi += (counts[k] - want) * (counts[k] - want) / want
				cells++
			}
			if restWant >= 1 {
				chi += (restGot - restWant) * (restGot - restWant) / restWant
				cells++
			}
			// The seed is fixed, so this passes or fails for good; five standard
			// deviations above the mean mean a wrong distribution.
			df := float64(cells - 1)
			if limit := df + 5*math.Sqrt(2*df) + 5; chi > limit {
				t.Errorf("theta %g, n %d: chi squared %.1f with %d cells, limit %.1f", theta, n, chi, cells, limit)
			}
		}
	}
}

func TestZipfHugeRange(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, theta := range []float64{0.1, 1, 1.2, 20} {
		z := newZipf(1<<40, theta)
		for range 10_000 {
			if k := z.rank(rng); k < 1 || k > 1<<40 {
				t.Fatalf("theta %g: rank %d", theta, k)
			}
		}
	}
}

func TestPermutation(t *testing.T) {
	for _, n := range []int64{1, 2, 3, 5, 64, 1000, 1025} {
		for seed := range uint64(3) {
			p := newPermutation(n, seed)
			seen := make([]bool, n)
			for i := range n {
				j := p.at(i)
				if j < 0 || j >= n || seen[j] {
					t.Fatalf("n %d, seed %d: %d goes to %d", n, seed, i, j)
				}
				seen[j] = true
			}
		}
	}
	a, b := newPermutation(1000, 1), newPermutation(1000, 2)
	same := 0
	for i := range int64(1000) {
		if a.at(i) == b.at(i) {
			same++
		}
	}
	if same > 20 {
		t.Errorf("two seeds agree in %d of 1000 places", same)
	}
}

// TestZipfPlacement: the hottest regions are not next to each other, blocks in
// a region are alike, and another seed puts them elsewhere.
func TestZipfPlacement(t *testing.T) {
	s := NewSpec("unix:x")
	s.Pattern, s.Grain = Zipf, 64<<10
	const size = 256 << 20
	src := newPatternSource(&s, size)
	rng := rand.New(rand.NewPCG(3, 4))
	regions := make([]int, size/s.Grain)
	inside := make([]int, s.Grain/s.BlockSize)
	const draws = 100_000
	for range draws {
		o, err := src.next(rng)
		if err != nil {
			t.Fatal(err)
		}
		if o.off%s.BlockSize != 0 || o.off < 0 || o.off+o.n > size {
			t.Fatalf("operation %+v", o)
		}
		regions[o.off/s.Grain]++
		inside[o.off%s.Grain/s.BlockSize]++
	}
	order := make([]int, len(regions))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return regions[b] - regions[a] })
	if int64(order[0]) != src.place.at(0) {
		t.Errorf("the hottest region is %d, want %d", order[0], src.place.at(0))
	}
	quarter := map[int]bool{}
	for _, r := range order[:16] {
		quarter[r/(len(regions)/4)] = true
	}
	if len(quarter) < 3 {
		t.Errorf("the 16 hottest regions are in %d quarters of the volume", len(quarter))
	}
	want := float64(draws) / float64(len(inside))
	for i, n := range inside {
		if math.Abs(float64(n)-want) > 6*math.Sqrt(want) {
			t.Errorf("block %d of the regions was drawn %d times, want about %.0f", i, n, want)
		}
	}
}

// TestRanking: regions are drawn as often as their ranks say, and stay where they are
// with another seed as long as Place does not change.
func TestRanking(t *testing.T) {
	s := NewSpec("unix:x")
	s.Pattern, s.Grain, s.Place = Zipf, 64<<10, 5
	const size, draws = 4 << 20, 50_000
	offsets := s.Ranking(size)
	if len(offsets) != size/int(s.Grain) {
		t.Fatalf("%d regions, want %d", len(offsets), size/s.Grain)
	}
	var first []int64
	for _, seed := range []uint64{1, 2} {
		s.Seed = seed
		src := newPatternSource(&s, size)
		rng := rand.New(rand.NewPCG(seed, 4))
		drawn := map[int64]int{}
		for range draws {
			o, err := src.next(rng)
			if err != nil {
				t.Fatal(err)
			}
			drawn[o.off/s.Grain*s.Grain]++
		}
		all := 0.0
		for k := range offsets {
			all += math.Pow(float64(k+1), -s.Theta)
		}
		for k, off := range offsets {
			want := draws * math.Pow(float64(k+1), -s.Theta) / all
			if math.Abs(float64(drawn[off])-want) > 6*math.Sqrt(want) {
				t.Errorf("seed %d: rank %d was drawn %d times, want about %.0f", seed, k+1, drawn[off], want)
			}
		}
		if first == nil {
			first = s.Ranking(size)
		} else if !slices.Equal(first, s.Ranking(size)) {
			t.Error("another seed moves the regions")
		}
	}
	s.Place = 0
	if slices.Equal(first, s.Ranking(size)) {
		t.Error("without a place the seed says where the regions lie, and it is another one")
	}
	s.Pattern = Uniform
	if got := s.Ranking(size); got != nil {
		t.Errorf("ranking of uniform = %v, want none", got)
	}
}

func TestHistogramBuckets(t *testing.T) {
	for i := range buckets {
		top := bucketTop(i)
		if top < 0 {
			t.Fatalf("bucket %d ends at %d", i, top)
		}
		if bucketOf(top) != i {
			t.Fatalf("the top of bucket %d, %d, is in bucket %d", i, top, bucketOf(top))
		}
		if i+1 < buckets && bucketOf(top+1) != i+1 {
			t.Fatalf("%d is in bucket %d, want %d", top+1, bucketOf(top+1), i+1)
		}
	}
	if bucketOf(math.MaxInt64) != buckets-1 {
		t.Errorf("the largest duration is in bucket %d of %d", bucketOf(math.MaxInt64), buckets)
	}
}

// TestHistogramAccuracy compares quantiles with those of the sorted values.
func TestHistogramAccuracy(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	var h, a, b Histogram
	var all []int64
	sum := int64(0)
	for i := range 50_000 {
		v := int64(math.Exp(rng.Float64() * 23)) // 1 ns to 10 s
		all = append(all, v)
		sum += v
		h.Add(time.Duration(v))
		if i%2 == 0 {
			a.Add(time.Duration(v))
		} else {
			b.Add(time.Duration(v))
		}
	}
	slices.Sort(all)
	for _, q := range []float64{0, 0.001, 0.5, 0.9, 0.99, 0.999, 0.9999, 1} {
		exact := all[max(int(math.Ceil(q*float64(len(all))))-1, 0)]
		got := int64(h.Quantile(q))
		if got < exact || float64(got) > float64(exact)*(1+1.0/64)+1 {
			t.Errorf("quantile %g = %d, exact is %d", q, got, exact)
		}
	}
	if got, want := h.Mean(), time.Duration(sum/int64(len(all))); got != want {
		t.Errorf("Mean = %d, want %d", got, want)
	}
	if got, want := int64(h.Max()), all[len(all)-1]; got != want {
		t.Errorf("Max = %d, want %d", got, want)
	}
	a.Merge(&b)
	if a != h {
		t.Error("merging halves differs from the whole")
	}
	var empty Histogram
	if empty.Quantile(0.5) != 0 || empty.Mean() != 0 {
		t.Error("an empty histogram has values")
	}
}

func TestUnitContent(t *testing.T) {
	for _, n := range []int{512, 4096} {
		b := make([]byte, n)
		fillUnit(b, 1, 4096, 5)
		if !isUnit(b, 1, 4096, 5) {
			t.Fatalf("a unit of %d bytes is not recognised", n)
		}
		if isUnit(b, 2, 4096, 5) || isUnit(b, 1, 8192, 5) || isUnit(b, 1, 4096, 6) {
			t.Error("a unit passes for another")
		}
		for i := range b {
			b[i] ^= 0x40
			if isUnit(b, 1, 4096, 5) {
				t.Fatalf("a flipped bit in byte %d is not noticed", i)
			}
			b[i] ^= 0x40
		}
	}
}

// TestLedgerLocks: writers exclude, readers share, a failure takes nothing.
func TestLedgerLocks(t *testing.T) {
	l := newLedger(1<<20, 4096, 1, false)
	if !l.tryLock(0, 8192, false) || !l.tryLock(4096, 4096, false) {
		t.Fatal("readers do not share")
	}
	if l.tryLock(8192-4096, 4096, true) {
		t.Fatal("a writer got in among readers")
	}
	if l.tryLock(0, 16384, true) {
		t.Fatal("a writer got in among readers")
	}
	if !l.tryLock(8192, 8192, true) {
		t.Fatal("a failed attempt left locks behind")
	}
	if l.tryLock(12288, 4096, false) || l.tryLock(4096, 8192, false) {
		t.Fatal("a reader got in beside a writer")
	}
	l.unlock(0, 8192, false)
	l.unlock(4096, 4096, false)
	l.unlock(8192, 8192, true)
	if !l.tryLock(0, 1<<20, true) {
		t.Fatal("locks are left behind")
	}
}

func TestLedgerDoubts(t *testing.T) {
	l := newLedger(8192, 4096, 9, false)
	unit := func(gen uint32) []byte { b := make([]byte, 4096); fillUnit(b, 9, 0, gen); return b }
	tests := []struct {
		name     string
		kind     word
		answered bool
		ok, bad  [][]byte
	}{
		{"written", kindData, true, [][]byte{unit(1)}, [][]byte{unit(2), make([]byte, 4096)}},
		{"a write without an answer", kindData, false, [][]byte{unit(1), unit(2)}, [][]byte{unit(3), make([]byte, 4096)}},
		{"a zeroing without an answer", kindZero, false, [][]byte{unit(1), unit(2), make([]byte, 4096)}, [][]byte{unit(3)}},
		{"trimmed", kindTrim, true, [][]byte{unit(1), unit(2), make([]byte, 4096)}, [][]byte{unit(9)}},
		{"written again", kindData, true, [][]byte{unit(5)}, [][]byte{unit(1), unit(2), unit(4), make([]byte, 4096)}},
		{"zeroed", kindZero, true, [][]byte{make([]byte, 4096)}, [][]byte{unit(5)}},
	}
	for _, tt := range tests {
		l.settle(0, 4096, tt.kind, tt.answered, false)
		for i, b := range tt.ok {
			was := l.faults()
			if l.check(b, 0); l.faults() != was {
				t.Errorf("%s: content %d is refused: %q", tt.name, i, l.details)
			}
		}
		for i, b := range tt.bad {
			was := l.faults()
			if l.check(b, 0); l.faults() == was {
				t.Errorf("%s: wrong content %d is accepted", tt.name, i)
			}
		}
	}
	if n := l.doubtful.Load(); n != 0 {
		t.Errorf("%d units in doubt at the end", n)
	}
}

// FuzzState lets any bytes be a state file.
func FuzzState(f *testing.F) {
	l := newLedger(8192, 4096, 3, false)
	l.settle(0, 4096, kindData, true, false)
	l.settle(0, 4096, kindTrim, false, false)
	var b bytes.Buffer
	if err := writeLedger(&b, l); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := readLedger(bytes.NewReader(data), 8192, false)
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := writeLedger(&again, got); err != nil || again.Len() > len(data) {
			t.Errorf("accepted %d bytes, written again as %d: %v", len(data), again.Len(), err)
		}
	})
}
