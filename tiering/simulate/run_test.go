package simulate_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tierd/pkg/trace"
	"tierd/tiering/simulate"
)

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9*math.Max(1, math.Abs(want)) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// repeat returns the extents n times over.
func repeat(n int, extents ...int64) []int64 {
	var out []int64
	for range n {
		out = append(out, extents...)
	}
	return out
}

// TestPolicies works out traces of two extents by hand, on tiers of 1 and 10 ms of
// which the first holds one of them.
func TestPolicies(t *testing.T) {
	const a, b = 7, 3 // a is touched first, and lies in the faster tier
	tests := []struct {
		name    string
		extents []int64
		cycles  int
		want    map[string]float64 // mean ms
		moves   map[string]int64
	}{
		{
			// By use b belongs up after the first cycle: 1 10 10 10 | 10 1 1 1.
			name: "steady", extents: repeat(2, a, b, b, b), cycles: 2,
			want:  map[string]float64{simulate.Static: 62. / 8, simulate.Planner: 44. / 8, simulate.LRU: 44. / 8, simulate.Clairvoyant: 26. / 8, simulate.Bound: 26. / 8},
			moves: map[string]int64{simulate.Static: 0, simulate.Planner: 2, simulate.LRU: 2, simulate.Clairvoyant: 2},
		},
		{
			// The last use of a cycle is always a's: who goes by that never moves.
			name: "last use misleads", extents: repeat(2, a, b, b, b, a), cycles: 2,
			want:  map[string]float64{simulate.Static: 64. / 10, simulate.Planner: 32./10 + 23./10, simulate.LRU: 64. / 10, simulate.Bound: 46. / 10},
			moves: map[string]int64{simulate.Static: 0, simulate.Planner: 2, simulate.LRU: 0},
		},
		{
			// b is a fifth warmer than a, less than the hysteresis of a quarter.
			name: "hysteresis", extents: repeat(2, a, b, b, a, b, a, b, a, b, b, a), cycles: 2,
			want:  map[string]float64{simulate.Static: 130. / 22, simulate.Planner: 130. / 22, simulate.Clairvoyant: 112. / 22, simulate.Bound: 112. / 22},
			moves: map[string]int64{simulate.Planner: 0, simulate.Clairvoyant: 2},
		},
		{
			// Only who is shown the future moves b up in time: 1 1 1 10 | 1 1 1 1.
			name: "change", extents: []int64{a, a, a, b, b, b, b, b}, cycles: 2,
			want: map[string]float64{simulate.Static: 53. / 8, simulate.Planner: 53. / 8, simulate.Clairvoyant: 17. / 8, simulate.Bound: 17. / 8},
		},
	}
	// What has just been counts for nothing where the future is known.
	tests = append(tests, tests[0])
	last := &tests[len(tests)-1]
	last.name, last.extents = "the past misleads", append(append(repeat(19, a), b), repeat(20, b)...)
	last.want, last.moves = map[string]float64{simulate.Clairvoyant: (19 + 10 + 20) / 40., simulate.Bound: (19 + 10 + 20) / 40.}, nil

	l := layout(t, "fast:1ms:50%,slow:10ms:rest")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rep := run(t, memSource(false, reads(tt.extents...)...), l, settings(tt.cycles), simulate.Policies()...)
			for name, want := range tt.want {
				near(t, name, byName(t, rep, name).MeanMS, want)
			}
			for name, want := range tt.moves {
				p := byName(t, rep, name)
				if got := p.Promotions + p.Demotions; got != want || p.MovedBytes != want*mib {
					t.Errorf("%s: %d moves and %d bytes, want %d", name, got, p.MovedBytes, want)
				}
			}
		})
	}
}

// TestLookahead: the best of the lookaheads counts. One exchange fits a cycle: x has to
// go up before the first, y before the second and z, in its place, before the third.
func TestLookahead(t *testing.T) {
	const a, b, x, y, z = 0, 1, 2, 3, 4
	var records []trace.Record
	for c, extents := range [][]int64{{a, b, x, y, z}, {x}, append(repeat(10, y), repeat(10, z)...)} {
		for _, r := range reads(extents...) {
			r.Time = time.Duration(c) * time.Second
			records = append(records, r)
		}
	}
	s := settings(1)
	s.Cycle = time.Second
	s.Budget = simulate.Budget{Bytes: 2 * mib}
	p := run(t, memSource(true, records...), layout(t, "fast:1ms:2MiB,slow:10ms:rest"), s, simulate.Clairvoyant).Policies[0]
	near(t, "mean", p.MeanMS, (32+1+20)/26.)
	if p.PreparedBytes != 2*mib || p.MovedBytes != 6*mib {
		t.Errorf("%d bytes moved, %d of them before the first cycle", p.MovedBytes, p.PreparedBytes)
	}
	if p.Lookahead != 2 {
		t.Errorf("looked ahead %d cycles, want 2", p.Lookahead)
	}
}

// TestBound: its share, its budget, and what it makes of writes that take longer.
func TestBound(t *testing.T) {
	l := layout(t, "fast:1ms:50%,slow:10ms:rest")
	steady := memSource(false, reads(repeat(2, 7, 3, 3, 3)...)...)
	s := settings(2)
	rep := run(t, steady, l, s, simulate.Planner, simulate.Bound)
	p, b := byName(t, rep, simulate.Planner), byName(t, rep, simulate.Bound)
	near(t, "share of the planner", *p.BoundShare, (62-44)/(62-26.))
	near(t, "share of the bound", *b.BoundShare, 1)
	if want := []float64{0.75, 0.25}; !slices.Equal(b.TierShare, want) || !*b.Optimal || b.BoundCycles != 2 {
		t.Errorf("shares %v, want %v; optimal %v, %d cycles", b.TierShare, want, *b.Optimal, b.BoundCycles)
	}

	// A move alone is no exchange where all is full, and no more is paid for.
	s.Budget = simulate.Budget{Bytes: mib}
	b = run(t, steady, l, s, simulate.Bound).Policies[0]
	near(t, "bound without an exchange", b.MeanMS, 62./8)
	if b.BoundShare != nil {
		t.Errorf("a share of %v of no gain", *b.BoundShare)
	}
	// But where extents come later a move need not be one of two: 3 goes up as 7 goes.
	s.Placement = simulate.HighestFirst
	late := memSource(false, reads(7, 7, 7, 7, 3, 3, 3, 3, 3, 3)...)
	near(t, "bound of what comes later", run(t, late, l, s, simulate.Bound).Policies[0].MeanMS, 19./10)

	// Three tiers: 3 accesses in the first, 2 in the next, 1 in the last.
	three := layout(t, "fast:1ms:1MiB,middle:3ms:1MiB,slow:10ms:rest")
	near(t, "bound of three tiers", run(t, memSource(false, reads(1, 2, 3, 2, 3, 3)...), three, settings(1), simulate.Bound).Policies[0].MeanMS, 19./6)

	// Three writes of one extent save a millisecond each, a read of the other saves nine.
	records := reads(1, 1, 1, 2)
	for i := range records[:3] {
		records[i].Write = true
	}
	l = layout(t, "fast:1ms:1MiB:write=5ms,slow:10ms:rest:write=6ms")
	b = run(t, memSource(false, records...), l, settings(1), simulate.Bound).Policies[0]
	if b.MeanMS > 19./4 || b.MeanMS < 19./4*0.998 || b.TierShare != nil {
		t.Errorf("bound with writes: %v ms, want %v; shares %v", b.MeanMS, 19./4, b.TierShare)
	}

	if got := run(t, steady, l, settings(96), simulate.Bound).Policies[0].BoundCycles; got != 24 {
		t.Errorf("a bound by %d cycles, want 24", got)
	}
}

// TestTierShare: three of four accesses are to what lies in the faster tier.
func TestTierShare(t *testing.T) {
	l := layout(t, "fast:1ms:1MiB,slow:10ms:1MiB")
	rep := run(t, memSource(false, reads(5, 5, 5, 9)...), l, settings(1), simulate.Static)
	p := rep.Policies[0]
	if want := []float64{0.75, 0.25}; !slices.Equal(p.TierShare, want) {
		t.Errorf("shares %v, want %v", p.TierShare, want)
	}
	near(t, "mean", p.MeanMS, 13./4)
}

// TestBudget: of two exchanges that pay, a budget for one makes the better one in
// each cycle.
func TestBudget(t *testing.T) {
	// Extents 1 and 2 lie high and are used once; 3 is used four times a cycle, 4
	// three times.
	cycle := []int64{1, 2, 3, 3, 3, 3, 4, 4, 4}
	l := layout(t, "fast:1ms:50%,slow:10ms:rest")
	s := settings(4)
	for _, b := range []simulate.Budget{{Share: 1.0 / 24}, {Bytes: 2 * mib}, {Bytes: 3*mib - 1}} {
		s.Budget = b
		rep := run(t, memSource(false, reads(repeat(4, cycle...)...)...), l, s, simulate.Planner, simulate.Bound)
		p := rep.Policies[0]
		near(t, "bound", rep.Policies[1].MeanMS*36, 45+3*27) // one exchange before the first cycle
		var got []float64
		for _, c := range p.Cycles {
			got = append(got, c.MeanMS*9)
			if c.MovedBytes > 2*mib {
				t.Errorf("budget %+v: %d bytes in a cycle", b, c.MovedBytes)
			}
		}
		// 2 at 1 and 7 at 10; then 3 at 1 instead of one of the others; then 4, too.
		want := []float64{72, 45, 27, 27}
		for i := range want {
			near(t, "cycle", got[i], want[i])
		}
	}
	s.Budget = simulate.Budget{}
	if p := run(t, memSource(false, reads(repeat(4, cycle...)...)...), l, s, simulate.Planner).Policies[0]; p.MovedBytes != 0 {
		t.Errorf("without a budget %d bytes moved", p.MovedBytes)
	}
}

// TestQueues holds the service-time model against figures worked out by hand.
func TestQueues(t *testing.T) {
	// In one second 20 accesses to one tier of two devices at 20 ms.
	records := timedReads(time.Second, repeat(20, 0)...)
	for i := range records[:5] {
		records[i].Write = true
	}
	records[19].Time = time.Second - 1 // the second ends with it
	for _, tt := range []struct {
		layout            string
		util, read, write float64
	}{
		{"disk:20ms:rest", 0, 20, 20},
		{"disk:20ms:rest:devices=2", 0.2, 25, 25},                                      // (15 + 5) * 20 ms / 2 s
		{"disk:20ms:rest:devices=2:raid=mirror", 0.25, 20 / 0.75, 20 / 0.75},           // (15 + 10)
		{"disk:20ms:rest:devices=2:raid=raid10", 0.25, 20 / 0.75, 20 / 0.75},           //
		{"disk:20ms:rest:devices=2:raid=raid5", 0.35, 20 / 0.65, 20 / 0.65},            // (15 + 20)
		{"disk:20ms:rest:devices=2:raid=raid6", 0.45, 20 / 0.55, 20 / 0.55},            // (15 + 30)
		{"disk:20ms:rest:devices=2:raid=raid5:write=40ms", 0.55, 20 / 0.45, 40 / 0.45}, // 15*20 + 20*40
	} {
		p := run(t, memSource(true, records...), layout(t, tt.layout), settings(1), simulate.Static).Policies[0]
		c := p.Cycles[0].Tiers[0]
		if math.Abs(c.Utilisation-tt.util) > 1e-6 {
			t.Errorf("%s: utilisation %v, want %v", tt.layout, c.Utilisation, tt.util)
		}
		if math.Abs(p.ReadMS-tt.read) > 1e-4 || math.Abs(p.WriteMS-tt.write) > 1e-4 || math.Abs(p.MeanMS-(15*tt.read+5*tt.write)/20) > 1e-4 {
			t.Errorf("%s: read %v, write %v, mean %v ms; want %v and %v", tt.layout, p.ReadMS, p.WriteMS, p.MeanMS, tt.read, tt.write)
		}
		if c.Reads != 15 || c.Writes != 5 || p.Overloaded != 0 {
			t.Errorf("%s: %d reads, %d writes, %d times overloaded", tt.layout, c.Reads, c.Writes, p.Overloaded)
		}
	}

	// The same at 200 a second, which two disks cannot serve.
	s := settings(1)
	s.Rate = 200
	p := run(t, memSource(true, records...), layout(t, "disk:20ms:rest:devices=2"), s, simulate.Static).Policies[0]
	if p.Overloaded != 1 || math.Abs(p.Cycles[0].Tiers[0].Utilisation-2) > 1e-6 {
		t.Errorf("overloaded %d times, utilisation %v", p.Overloaded, p.Cycles[0].Tiers[0].Utilisation)
	}
}

// TestMovesAreLoad: what is copied after a cycle keeps devices busy in the next.
func TestMovesAreLoad(t *testing.T) {
	l := layout(t, "fast:1ms:1MiB:devices=1:bandwidth=1MiB/s,slow:10ms:1MiB:devices=1:bandwidth=4MiB/s")
	records := timedReads(30*time.Second, repeat(3, 1, 2, 2, 2)...)
	s := settings(3)
	p := run(t, memSource(true, records...), l, s, simulate.Planner).Policies[0]
	if p.Promotions != 1 || p.Demotions != 1 {
		t.Fatalf("%d promotions, %d demotions", p.Promotions, p.Demotions)
	}
	// 27.5 s from first to last request, a third of it a cycle: 2 MiB are read and
	// written in each tier, beside 3 reads of 1 ms and 1 of 10 ms. Nothing moves later.
	const cycle = 27.5 / 3
	for i, want := range []float64{(2 + 0.003) / cycle, (0.5 + 0.010) / cycle} {
		if got := p.Cycles[1].Tiers[i].Utilisation; math.Abs(got-want) > 1e-6 {
			t.Errorf("tier %d: utilisation %v, want %v", i, got, want)
		}
	}
	if got := p.Cycles[2].Tiers[0].Utilisation; math.Abs(got-0.003/cycle) > 1e-6 {
		t.Errorf("utilisation %v after the moves, want %v", got, 0.003/cycle)
	}
}

// TestOverload: the planner is told the utilisation, and takes load from a faster tier
// that answers slower than the next.
func TestOverload(t *testing.T) {
	l := layout(t, "fast:5ms:50%:devices=1,slow:8ms:rest:devices=8")
	// Two extents with 90 accesses a second each in the faster tier: 0.9 of its time,
	// so 50 ms an access. With one of them gone it is 0.45, and 9 ms.
	records := timedReads(3*time.Second, append(append([]int64{1, 2}, repeat(269, 1, 2)...), 3, 4)...)
	rep := run(t, memSource(true, records...), l, settings(3), simulate.Static, simulate.Planner)
	for _, c := range byName(t, rep, simulate.Static).Cycles {
		if c.MeanMS < 45 {
			t.Errorf("static: %v ms, want 50", c.MeanMS)
		}
	}
	p := byName(t, rep, simulate.Planner)
	if got := p.Cycles[2].MeanMS; got > 10 {
		t.Errorf("planner: %v ms at last, want 9; %d moves down", got, p.Demotions)
	}
}

// TestPlacement: highest-first lets an extent that comes later have what was freed
// or never used.
func TestPlacement(t *testing.T) {
	// 1 and 2 would fill the faster tier beforehand either way; 3 is last.
	l := layout(t, "fast:1ms:2MiB,slow:10ms:rest")
	for _, pl := range []simulate.Placement{simulate.FirstTouch, simulate.HighestFirst} {
		s := settings(2)
		s.Placement = pl
		p := run(t, memSource(false, reads(1, 1, 2, 3)...), l, s, simulate.Static).Policies[0]
		near(t, string(pl), p.MeanMS, 13./4)
		want := int64(2)
		if pl == simulate.HighestFirst {
			want = 1 // only extent 1 was there in the first cycle
		}
		if got := p.Cycles[0].Tiers[0].Used; got != want {
			t.Errorf("%s: %d extents in the faster tier in the first cycle, want %d", pl, got, want)
		}
	}
}

// TestCycles: a trace with times is cut by them, one without by its requests.
func TestCycles(t *testing.T) {
	records := reads(1, 1, 1, 1)
	for i, at := range []time.Duration{0, time.Second, 2 * time.Second, 9 * time.Second} {
		records[i].Time = at
	}
	l := layout(t, "disk:10ms:rest")
	for _, tt := range []struct {
		timed bool
		set   func(s *simulate.Settings)
		want  []int64
	}{
		{false, func(s *simulate.Settings) { s.Cycles = 2 }, []int64{2, 2}},
		{true, func(s *simulate.Settings) { s.Cycles = 2 }, []int64{3, 1}},
		{true, func(s *simulate.Settings) { s.Cycle = 2 * time.Second }, []int64{2, 1, 0, 0, 1}},
		{false, func(s *simulate.Settings) { s.Rate, s.Cycle = 1, 2*time.Second }, []int64{2, 2}},
		{false, func(s *simulate.Settings) { s.Rate, s.Cycles = 3, 2 }, []int64{2, 2}},
		{true, func(s *simulate.Settings) { s.Rate, s.Cycle = 0.4, 2*time.Second }, []int64{2, 1, 0, 0, 0, 1}},
	} {
		s := settings(1)
		tt.set(&s)
		p := run(t, memSource(tt.timed, records...), l, s, simulate.Planner).Policies[0]
		var got []int64
		for _, c := range p.Cycles {
			got = append(got, c.Accesses)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("timed %v: %v accesses by cycle, want %v", tt.timed, got, tt.want)
		}
	}
}

// TestVolumes: the same address on two disks is two extents, and a request over two
// extents is an access to each.
func TestVolumes(t *testing.T) {
	records := []trace.Record{
		{Offset: mib - 512, Length: 1024},
		{Offset: 0, Length: 4096, Disk: 5, Write: true},
		{Offset: 512, Length: 0},
		{Flush: true},
		{Trim: true, Length: mib},
	}
	rep := run(t, memSource(false, records...), layout(t, "disk:10ms:rest"), settings(1), simulate.Static)
	got := rep.Trace
	if got.Requests != 3 || got.Accesses != 4 || got.Reads != 3 || got.Writes != 1 || got.Volumes != 2 || got.Extents != 3 || got.Ignored != 2 {
		t.Errorf("got %+v", got)
	}
}

// TestNothingToGain: a load that has no hot spot moves next to nothing, however long it
// goes on; one with a hot spot moves that.
func TestNothingToGain(t *testing.T) {
	const extents, seed = 640, 1
	rng := rand.New(rand.NewPCG(seed, 2))
	load := func(hot int64) (out []trace.Record) {
		for at := time.Duration(0); at < 200*time.Second; at += time.Duration(rng.ExpFloat64() * 4e6) {
			e := rng.Int64N(extents)
			if rng.IntN(4) == 0 && hot > 0 {
				e = extents - 1 - rng.Int64N(hot)
			}
			out = append(out, trace.Record{Time: at, Offset: e * mib, Length: 4096})
		}
		return out
	}
	s := simulate.Defaults()
	s.Cycle, s.Heat.ShortHalfLife, s.Heat.LongHalfLife = 2*time.Second, 20*time.Second, 120*time.Second
	s.Budget = simulate.Budget{Bytes: 14 * mib}
	l := layout(t, "ssd:1ms:64MiB,fc:4ms:256MiB,sata:12ms:rest")
	replay := func(hot int64) simulate.PolicyResult {
		return run(t, memSource(true, load(hot)...), l, s, simulate.Planner).Policies[0]
	}
	// Six make room for the headroom at first.
	if p := replay(0); p.Promotions+p.Demotions > 6+extents/100 {
		t.Errorf("seed %d: %d and %d moves for a uniform load, want %d at most", seed, p.Promotions, p.Demotions, 6+extents/100)
	}
	// A quarter of the accesses and a tenth of the others: 32.5 %.
	if p := replay(16); p.TierShare[0] < 0.31 || p.Promotions+p.Demotions > 100 {
		t.Errorf("seed %d: the fastest tier serves %.3f after %d and %d moves, want 0.325 and 100 at most", seed, p.TierShare[0], p.Promotions, p.Demotions)
	}
}

// TestBurstsThatDoNotComeBack: where frequency tells nothing of what comes next, every move
// loses. The planner notices that its moves do not pay, and loses little to doing nothing.
func TestBurstsThatDoNotComeBack(t *testing.T) {
	const extents = 3000
	for _, loops := range []int{1, 4} {
		var records []trace.Record
		for range loops {
			for e := range int64(extents) {
				for range 20 {
					records = append(records, trace.Record{Offset: e * mib, Length: 4096})
				}
			}
		}
		loss := func(audited bool) float64 {
			s := simulate.Defaults()
			s.Plan.Audited = audited
			rep := run(t, memSource(false, records...), simulate.PaperLayout(), s, simulate.Planner, simulate.Static)
			return rep.Policies[0].MeanMS/rep.Policies[1].MeanMS - 1
		}
		if got := loss(true); got > 0.02 {
			t.Errorf("%d loops: the planner loses %.1f %%, want 2 at most", loops, 100*got)
		}
		if got := loss(false); got < 0.03 {
			t.Errorf("%d loops: without looking it loses %.1f %%: the test tests nothing", loops, 100*got)
		}
	}
}
