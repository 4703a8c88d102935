package simulate_test

import (
	"context"
	"errors"
	"io"
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"tierd/pkg/trace"
	"tierd/tiering/simulate"
)

// TestRulesHold: whatever the trace, layout and settings, no policy moves more than
// its budget or fills a tier beyond its size, every access is served once, nothing
// does better than the bound, and a second run gives the same report.
func TestRulesHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) trace.Record {
			return trace.Record{
				Offset: rapid.Int64Range(0, 40).Draw(t, "extent")*mib + rapid.SampledFrom([]int64{0, mib - 512}).Draw(t, "within"),
				Length: rapid.SampledFrom([]int64{0, 512, 4096, 3 * mib}).Draw(t, "length"),
				Write:  rapid.Bool().Draw(t, "write"),
				Disk:   rapid.IntRange(0, 2).Draw(t, "disk"),
			}
		}), 1, 300).Draw(t, "records")
		timed := rapid.Bool().Draw(t, "timed")
		for i := range records {
			records[i].Time = time.Duration(i) * 50 * time.Millisecond
		}
		s := simulate.Defaults()
		if rapid.Bool().Draw(t, "paper") {
			s = simulate.PaperEval()
		}
		s.Cycle, s.Cycles = 0, rapid.IntRange(1, 12).Draw(t, "cycles")
		s.CountOnly = rapid.Bool().Draw(t, "count only")
		s.Placement = rapid.SampledFrom([]simulate.Placement{simulate.FirstTouch, simulate.HighestFirst}).Draw(t, "placement")
		s.Budget = simulate.Budget{
			Share: rapid.SampledFrom([]float64{0, 0.02, 0.3, 1}).Draw(t, "share"),
			Bytes: rapid.SampledFrom([]int64{0, 3*mib + 5, 1 << 40}).Draw(t, "bytes"),
			Carry: rapid.SampledFrom([]float64{0, 0.5, 3, 24}).Draw(t, "carry"),
		}
		text := rapid.SampledFrom([]string{
			"a:1ms:5%,b:3ms:25%,c:10ms:rest", "a:1ms:2MiB,b:3ms:3MiB,c:10ms:rest", "a:1ms:50%,b:10ms:rest", "a:1ms:100%", "a:1ms:1MiB,b:1ms:1TiB",
			"a:1ms:10%:write=3ms,b:2ms:30%:write=9ms,c:10ms:rest", "a:1ms:30%:write=5ms,b:9ms:rest:write=2ms",
		}).Draw(t, "layout")
		if timed {
			text = rapid.SampledFrom([]string{text, "a:1ms:10%:devices=1,b:5ms:40%:devices=2:raid=raid5:bandwidth=1MiB/s,c:20ms:rest:devices=4:raid=raid6"}).Draw(t, "queued layout")
		}
		l, err := simulate.ParseLayout(text)
		if err != nil {
			t.Fatal(err)
		}

		replay := func() *simulate.Report {
			rep, err := simulate.Run(context.Background(), memSource(timed, records...), []simulate.Layout{l}, simulate.Policies(), s)
			if err != nil {
				t.Fatal(err)
			}
			return rep
		}
		rep := replay()
		least := byName(t, rep, simulate.Bound)
		for _, p := range rep.Policies {
			if p.Name != simulate.Bound {
				checkRules(t, rep, l, p)
			}
			if s.Budget.Carry == 0 && p.MeanMS < least.MeanMS*(1-1e-9) || s.Budget.Carry == 0 && p.BoundShare != nil && *p.BoundShare > 1+1e-9 {
				t.Fatalf("%s: %v ms, below the bound of %v", p.Name, p.MeanMS, least.MeanMS)
			}
		}
		if again := replay(); !reflect.DeepEqual(rep, again) {
			t.Fatalf("two runs differ:\n%+v\n%+v", rep, again)
		}
	})
}

func checkRules(t *rapid.T, rep *simulate.Report, l simulate.Layout, p simulate.PolicyResult) {
	accesses, moved := int64(0), p.PreparedBytes
	for n, c := range p.Cycles {
		moved += c.MovedBytes
		accesses += c.Accesses
		if rep.BudgetBytes >= 0 && (c.MovedBytes > rep.BudgetMost || moved > (rep.BudgetBytes+1)*int64(n+2)) || c.MovedBytes != (c.Promotions+c.Demotions)*mib {
			t.Fatalf("%s: cycle %d: %d bytes for %d and %d moves, budget %d", p.Name, n, c.MovedBytes, c.Promotions, c.Demotions, rep.BudgetBytes)
		}
		var served, used int64
		for i, tier := range c.Tiers {
			served += tier.Reads + tier.Writes
			used += tier.Used
			room := int64(rep.Trace.Extents)
			switch {
			case l.Tiers[i].Share > 0:
				room = int64(l.Tiers[i].Share.Fraction()*float64(room) + 1e-6)
			case l.Tiers[i].Bytes > 0:
				room = min(room, int64(l.Tiers[i].Bytes)/mib)
			}
			if tier.Used > room {
				t.Fatalf("%s: cycle %d: %d extents in tier %d, which holds %d", p.Name, n, tier.Used, i, room)
			}
		}
		if served != c.Accesses || used > int64(rep.Trace.Extents) {
			t.Fatalf("%s: cycle %d: %d of %d accesses, %d extents", p.Name, n, served, c.Accesses, used)
		}
	}
	share := 0.0
	for _, s := range p.TierShare {
		share += s
	}
	if accesses != rep.Trace.Accesses || moved != p.MovedBytes || math.Abs(share-1) > 1e-9 || len(p.Cycles) != rep.Cycles {
		t.Fatalf("%s: %d of %d accesses, %d of %d bytes, shares of %v, %d of %d cycles", p.Name, accesses, rep.Trace.Accesses, moved, p.MovedBytes, share, len(p.Cycles), rep.Cycles)
	}
}

// TestHostileTraces: what cannot be simulated is refused, and what can be takes
// memory by what it touches.
func TestHostileTraces(t *testing.T) {
	simulate.LimitExtents(t, 8000)
	l := []simulate.Layout{layout(t, "fast:1ms:50%,slow:10ms:rest")}
	simulated := func(src simulate.Source, s simulate.Settings) error {
		_, err := simulate.Run(context.Background(), src, l, simulate.Policies(), s)
		return err
	}
	disks := make([]trace.Record, 5000)
	for i := range disks {
		disks[i] = trace.Record{Disk: i * 1000, Length: 1}
	}
	slow := settings(1)
	slow.Rate = 1e-12
	fine := settings(1)
	fine.Cycle = 1
	errTorn := errors.New("torn")
	opened := 0
	for _, tt := range []struct {
		name string
		src  simulate.Source
		s    simulate.Settings
		want error
	}{
		{"nothing", memSource(false), settings(1), simulate.ErrEmpty},
		{"only trims", memSource(false, trace.Record{Trim: true, Length: mib}), settings(1), simulate.ErrEmpty},
		{"a request of half the world", memSource(false, trace.Record{Length: math.MaxInt64}), settings(1), simulate.ErrTooLarge},
		{"requests all over it", memSource(false, trace.Record{Length: 5000 * mib}, trace.Record{Offset: 10 << 40, Length: 5000 * mib}), settings(1), simulate.ErrTooLarge},
		{"very many disks", memSource(false, disks...), settings(1), simulate.ErrTooLarge},
		{"an endless trace", memSource(false, reads(1, 2)...), slow, simulate.ErrTooLarge},
		{"cycles of a nanosecond", memSource(true, timedReads(time.Hour, 1, 2)...), fine, simulate.ErrTooLarge},
		{"torn", simulate.Source{Open: func() (trace.Reader, error) { return &memReader{records: reads(1), err: errTorn}, nil }}, settings(1), errTorn},
		{"gone", simulate.Source{Open: func() (trace.Reader, error) { return nil, io.ErrClosedPipe }}, settings(1), io.ErrClosedPipe},
	} {
		if err := simulated(tt.src, tt.s); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}

	// Another trace at the second opening.
	for _, second := range [][]trace.Record{reads(1), reads(1, 2, 2), reads(1, 3), {{Disk: 1}, {}}} {
		opened = 0
		src := simulate.Source{Open: func() (trace.Reader, error) {
			if opened++; opened == 2 {
				return &memReader{records: second}, nil
			}
			return &memReader{records: reads(1, 2)}, nil
		}}
		if err := simulated(src, settings(1)); err == nil {
			t.Errorf("a trace that changed to %v is no error", second)
		}
	}

	// At both ends of the address space, and all of one moment.
	ends := []trace.Record{{Offset: math.MaxInt64}, {Offset: math.MaxInt64 - 1, Length: 1}, {Offset: 0}, {Disk: math.MaxInt32, Offset: 1 << 62}}
	for _, timed := range []bool{true, false} {
		for _, s := range []simulate.Settings{settings(1), settings(1000), simulate.Defaults()} {
			if err := simulated(memSource(timed, ends...), s); err != nil {
				t.Errorf("timed %v: %v", timed, err)
			}
		}
	}

	// A thousand extents, each on its own terabyte.
	var sparse []trace.Record
	for i := range int64(1000) {
		sparse = append(sparse, trace.Record{Offset: i << 40, Length: 4096})
	}
	if err := simulated(memSource(false, sparse...), settings(4)); err != nil {
		t.Error(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := simulate.Run(ctx, memSource(false, reads(1)...), l, simulate.Policies(), settings(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
