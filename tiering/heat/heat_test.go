package heat

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"tierd/tiering/extent"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const mib = 1 << 20

// testParams have 10 ms for a random access and 100 MB/s.
func testParams() Params {
	p := DefaultParams()
	p.Position, p.Bandwidth = 10*time.Millisecond, 100e6
	return p
}

func newTracker(t testing.TB, p Params) *Tracker {
	t.Helper()
	size, err := extent.NewSize(mib)
	if err != nil {
		t.Fatal(err)
	}
	tr := New(p, size, start)
	t.Cleanup(tr.Close)
	return tr
}

func near(t *testing.T, what string, got, want, rel float64) {
	t.Helper()
	if math.Abs(got-want) > rel*math.Abs(want)+1e-300 {
		t.Errorf("%s: got %g, want %g within %g", what, got, want, rel)
	}
}

// TestSteadyRate: k accesses of weight w a second make a heat of k*w, once the extent
// was known for some half-lives. Before that it is less, as if it had been idle for one
// half-life before it was known: after one half-life two thirds.
func TestSteadyRate(t *testing.T) {
	p := testParams()
	tr := newTracker(t, p)
	v := tr.AddVolume(1, 100)
	now := start
	const weight = 0.01 + 4096/100e6
	for cycle := 1; cycle <= 600; cycle++ {
		for range 30 { // every 10 s, three accesses
			now = now.Add(10 * time.Second)
			for range 3 {
				v.Access(5*mib+4096, 4096, false)
			}
			tr.Drain(now)
		}
		tr.Tick(now)
		if cycle == 1 || cycle == 12 || cycle == 600 {
			s := v.Heat(5, now)
			short, long := 0.3*weight*trust(cycle, 12), 0.3*weight*trust(cycle, 288)
			near(t, "heat", s.Heat, 0.2*short+0.8*long, 0.03)
			near(t, "short", s.Short, short, 0.03)
			near(t, "long", s.Long, long, 0.03)
			if s.IOs != uint32(90*cycle) || s.Age != uint32(cycle) || s.SinceMove != NeverMoved {
				t.Errorf("cycle %d: got %+v", cycle, s)
			}
		}
	}
	if s := v.Heat(6, now); s.Heat != 0 || s.Age != 0 {
		t.Errorf("extent never touched: got %+v", s)
	}
}

// trust is the share of a steady rate that is told of an extent known for age cycles,
// the half-life being h cycles.
func trust(age, h int) float64 {
	x := math.Exp2(-float64(age) / float64(h))
	return (1 - x) / (1 - x/2)
}

func TestDecay(t *testing.T) {
	p := testParams()
	p.ShortHalfLife, p.LongHalfLife, p.Cycle = time.Minute, time.Hour, time.Minute
	tr := newTracker(t, p)
	v := tr.AddVolume(1, 10)
	v.Access(0, 4096, false)
	tr.Drain(start)
	raw := func(now time.Time) (s, l float64) {
		d := now.Sub(tr.landmark).Seconds()
		a, b := unpackScore(v.segments[0].cells[0].score.Load())
		return float64(a) * math.Exp2(-d/60), float64(b) * math.Exp2(-d/3600)
	}
	s0, l0 := raw(start)
	// Over 200 minutes the landmark has to move three times; a drain a minute.
	for m := 1; m <= 200; m++ {
		now := start.Add(time.Duration(m) * time.Minute)
		tr.Drain(now)
		s, l := raw(now)
		if m <= 100 { // 2^-100 still is a float32
			near(t, "short", s, s0*math.Exp2(-float64(m)), 1e-4)
		}
		near(t, "long", l, l0*math.Exp2(-float64(m)/60), 1e-4)
	}
	if !tr.landmark.After(start) {
		t.Error("the landmark never moved")
	}
}

func TestClockGoesBack(t *testing.T) {
	tr := newTracker(t, testParams())
	v := tr.AddVolume(1, 10)
	v.Access(0, 4096, false)
	tr.Drain(start)
	before := v.Heat(0, start).Heat
	back := start.Add(-48 * time.Hour)
	tr.Drain(back)
	near(t, "heat after a jump back", v.Heat(0, back).Heat, before, 1e-6)
}

func TestWeights(t *testing.T) {
	p := testParams()
	p.WriteWeight = 0.3
	for _, tc := range []struct {
		name   string
		off, n int64
		write  bool
		want   map[extent.Index]float64
	}{
		{"read", 0, 4096, false, map[extent.Index]float64{0: 0.01 + 4096/100e6}},
		{"write", 0, 4096, true, map[extent.Index]float64{0: 0.3 * (0.01 + 4096/100e6)}},
		{"two extents", mib - 1024, 4096, false, map[extent.Index]float64{0: 0.01 + 1024/100e6, 1: 0.01 + 3072/100e6}},
		{"large: sequential", 3 * mib, mib, false, map[extent.Index]float64{3: mib / 100e6}},
		{"nothing", 0, 0, false, nil},
		{"beyond the end", 10 * mib, 4096, false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTracker(t, p)
			v := tr.AddVolume(7, 10)
			v.Access(tc.off, tc.n, tc.write)
			tr.Drain(start)
			n := 0
			v.Range(start, func(i extent.Index, s Score) bool {
				n++
				sum, _ := unpackScore(v.segments[0].cells[i].score.Load())
				near(t, "weight", float64(sum), tc.want[i], 1e-6)
				return true
			})
			if n != len(tc.want) {
				t.Errorf("got %d extents touched, want %d", n, len(tc.want))
			}
		})
	}
}

func TestMovedAndTrimmed(t *testing.T) {
	p := testParams()
	tr := newTracker(t, p)
	v := tr.AddVolume(1, 200_000)
	now := start
	v.Access(70_000*mib, 4096, false)
	tr.Tick(now)
	v.Moved(70_000)
	v.Moved(150_000) // never touched
	tr.Tick(now.Add(p.Cycle))
	tr.Tick(now.Add(2 * p.Cycle))
	for _, i := range []extent.Index{70_000, 150_000} {
		if got := v.Heat(i, now).SinceMove; got != 2 {
			t.Errorf("extent %d: got moved %d cycles ago, want 2", i, got)
		}
	}
	v.Trimmed(70_000)
	v.Trimmed(3)
	v.Trimmed(1 << 40)
	v.Moved(1 << 40)
	if got, want := v.Heat(70_000, now), (Score{SinceMove: NeverMoved}); got != want {
		t.Errorf("trimmed: got %+v, want %+v", got, want)
	}
	var seen []extent.Index
	v.Range(now, func(i extent.Index, _ Score) bool { seen = append(seen, i); return true })
	if len(seen) != 1 || seen[0] != 150_000 {
		t.Errorf("range: got %v, want only 150000", seen)
	}
	out := make([]Score, 8)
	if n := v.Scores(149_996, out, now); n != 8 || out[4].SinceMove != 2 || out[3].SinceMove != NeverMoved {
		t.Errorf("scores: got %d, %+v", n, out)
	}
	if n := v.Scores(199_998, out, now); n != 2 {
		t.Errorf("scores at the end: got %d, want 2", n)
	}
}

func TestVolumes(t *testing.T) {
	tr := newTracker(t, testParams())
	v := tr.AddVolume(1, 1)
	v.Access(mib, 4096, false)
	tr.Drain(start)
	if v.Heat(1, start).IOs != 0 {
		t.Error("an extent beyond the end has heat")
	}
	tr.GrowVolume(1, 100_000)
	if tr.AddVolume(1, 5) != v {
		t.Error("adding a volume twice made another one")
	}
	v.Access(99_999*mib, 4096, true)
	tr.Drain(start)
	if v.Heat(99_999, start).IOs != 1 {
		t.Error("no heat after growing")
	}
	v.Access(0, 4096, false) // under way when the volume goes
	tr.DropVolume(1)
	tr.DropVolume(1)
	tr.GrowVolume(1, 5)
	tr.Drain(start)
	v.Access(0, 4096, false)
	tr.Drain(start)
	v.Moved(0)
	v.Trimmed(0)
	if got := v.Heat(0, start); got.Heat != 0 {
		t.Errorf("dropped: got %+v", got)
	}
	if !v.Range(start, func(extent.Index, Score) bool { t.Error("dropped volume has scores"); return false }) {
		t.Error("range over nothing did not end")
	}
}

func TestCycleNumbersRunOut(t *testing.T) {
	tr := newTracker(t, testParams())
	v := tr.AddVolume(1, 10)
	tr.cycle = maxCycle - 3
	v.Access(0, 4096, false)
	tr.Tick(start)
	v.Moved(0)
	v.segments[0].cells[1].stats.Store(packStats(stats{ios: 1, born: 1, moved: 0})) // as old as can be
	for range 4 {
		tr.Tick(start)
	}
	if tr.cycle > maxCycle/2+10 {
		t.Fatalf("got cycle %d, want it moved down", tr.cycle)
	}
	if s := v.Heat(0, start); s.Age != 5 || s.SinceMove != 4 {
		t.Errorf("got %+v, want age 5, moved 4 cycles ago", s)
	}
	if s := v.Heat(1, start); s.Age < maxCycle/4 || s.SinceMove != NeverMoved {
		t.Errorf("got %+v, want old and never moved", s)
	}
}

func TestTouchesAreDroppedNotWaitedFor(t *testing.T) {
	tr := newTracker(t, testParams())
	v := tr.AddVolume(1, 10)
	const n = (maxBatches + 10) * batchLen
	for range n {
		v.Access(0, 4096, false)
	}
	select {
	case <-tr.Full():
	default:
		t.Error("no call for an early drain")
	}
	dropped := tr.Dropped()
	if dropped == 0 || dropped > 11*batchLen {
		t.Errorf("got %d dropped, want from 1 to %d", dropped, 11*batchLen)
	}
	tr.Drain(start)
	if got := uint64(v.Heat(0, start).IOs) + dropped; got != n {
		t.Errorf("got %d counted and dropped, want %d", got, n)
	}
	v.Access(0, 4096, false)
	tr.Drain(start)
	if got := uint64(v.Heat(0, start).IOs) + dropped; got != n+1 {
		t.Errorf("after the drain: got %d, want %d", got, n+1)
	}
}

// TestConcurrency is for the race detector, and counts that nothing is lost.
func TestConcurrency(t *testing.T) {
	tr := newTracker(t, testParams())
	v := tr.AddVolume(1, 300_000)
	const workers, each = 4, 5_000
	var work, drain sync.WaitGroup
	stop := make(chan struct{})
	drain.Go(func() {
		now := start
		for {
			select {
			case <-stop:
				return
			default:
			}
			now = now.Add(time.Minute)
			tr.Tick(now)
			v.Range(now, func(extent.Index, Score) bool { return true })
			tr.AddVolume(2, 10).Access(0, 512, true)
			if err := tr.EncodeChunks(PoolID{}, now, true, func(ChunkKey, []byte) error { return nil }); err != nil {
				t.Error(err)
			}
			tr.DropVolume(2)
		}
	})
	for w := range workers {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			for range each {
				i := extent.Index(rng.Uint64N(300_000))
				v.Access(int64(i)*mib, 4096, false)
				v.Moved(i)
				v.Heat(i, start)
			}
		})
	}
	work.Wait()
	close(stop)
	drain.Wait()
	tr.Drain(start.Add(time.Hour))
	var ios uint64
	v.Range(start, func(_ extent.Index, s Score) bool { ios += uint64(s.IOs); return true })
	if got := ios + tr.Dropped(); got != workers*each {
		t.Errorf("got %d accesses counted, want %d", got, workers*each)
	}
}

func TestValidate(t *testing.T) {
	if err := DefaultParams().Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	for name, change := range map[string]func(p *Params){
		"short half-life": func(p *Params) { p.ShortHalfLife = 0 },
		"long half-life":  func(p *Params) { p.LongHalfLife = p.ShortHalfLife - 1 },
		"weight":          func(p *Params) { p.ShortWeight = math.NaN() },
		"position":        func(p *Params) { p.Position = -1 },
		"bandwidth":       func(p *Params) { p.Bandwidth = 0 },
		"read weight":     func(p *Params) { p.ReadWeight = -1 },
		"cycle":           func(p *Params) { p.Cycle = 0 },
	} {
		p := DefaultParams()
		change(&p)
		if p.Validate() == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}
