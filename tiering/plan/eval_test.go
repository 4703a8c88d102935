package plan_test

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"tierd/tiering/extent"
	"tierd/tiering/plan"
)

// access is one reference of a trace to a 1 MiB extent.
type access struct {
	at float64 // position in the trace, 0 to 1: time where it has any, else number
	e  uint32
}

const evalExtent = 1 << 20

// The traces are outside of the repository: the tests say so and skip where they
// are not at hand.
func openTrace(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "..", "shared", "traces", name))
	if err != nil {
		t.Skipf("trace not available: %v", err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// spread appends one access per extent that [off, off+n) touches.
func spread(out []access, off, n int64, at float64) []access {
	for e := off / evalExtent; e <= (off+max(n, 1)-1)/evalExtent; e++ {
		out = append(out, access{at: at, e: uint32(e)})
	}
	return out
}

// number makes the request number the time.
func number(a []access) []access {
	for i := range a {
		a[i].at = float64(i) / float64(len(a))
	}
	return a
}

func readVSCSI(t *testing.T, name string) []access {
	r := bufio.NewReader(openTrace(t, name))
	var out []access
	for {
		var rec [32]byte
		if _, err := io.ReadFull(r, rec[:]); err != nil {
			break
		}
		n := int64(binary.LittleEndian.Uint32(rec[4:]))
		lbn := int64(binary.LittleEndian.Uint64(rec[16:]))
		us := binary.LittleEndian.Uint64(rec[24:])
		out = spread(out, lbn*512, n, float64(us))
	}
	first, last := out[0].at, out[len(out)-1].at
	for i := range out {
		out[i].at = (out[i].at - first) / (last - first + 1)
	}
	return out
}

func readPages(t *testing.T, name string) []access {
	x, err := xz.NewReader(bufio.NewReader(openTrace(t, name)))
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(x)
	var out []access
	for {
		var rec [4]byte
		if _, err := io.ReadFull(r, rec[:]); err != nil {
			break
		}
		out = append(out, access{e: binary.LittleEndian.Uint32(rec[:]) / (evalExtent / 4096)})
	}
	return number(out)
}

func readARC(t *testing.T, name string) []access {
	z, err := zstd.NewReader(openTrace(t, name))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	var out []access
	for s := bufio.NewScanner(z); s.Scan(); {
		var f [4]int64
		i := 0
		for _, c := range s.Bytes() {
			if c == ' ' {
				i++
			} else if i < 4 {
				f[i] = f[i]*10 + int64(c-'0')
			}
		}
		out = spread(out, f[0]*512, f[1]*512, 0)
	}
	return number(out)
}

type evalOptions struct {
	cycles      int
	short, long float64 // half-lives in cycles
	weight      float64
	hysteresis  float64
	budget      float64 // share of the extents per cycle, as swaps
	static      bool
	base        plan.Policy // settings beyond these; the zero Policy has none in force
}

// the setting of the column "dual 1/16, w=.3, eta=.25"
func dual() evalOptions {
	return evalOptions{cycles: 24, short: 1, long: 16, weight: 0.3, hysteresis: 0.25, budget: 0.02}
}

var evalDelays = []float64{2.0, 10.0, 20.5}

type evalResult struct {
	ms    float64
	moves int
	top   float64 // share of accesses served by the top tier
}

// replay runs a trace against a pool of three tiers with 5, 25 and 70 % of the
// extents that the trace touches, preplaced in the order of first touch, and
// plans after each cycle.
func replay(t *testing.T, trace []access, o evalOptions) evalResult {
	ids := map[uint32]uint32{}
	for _, a := range trace {
		if _, ok := ids[a.e]; !ok {
			ids[a.e] = uint32(len(ids))
		}
	}
	n := len(ids)
	tiers := []plan.Tier{
		{ID: 0, Name: "ssd", Slots: int64(float64(n) * 0.05)},
		{ID: 1, Name: "fc", Slots: int64(float64(n) * 0.25)},
		{ID: 2, Name: "sata", Slots: int64(n)},
	}
	for i := range tiers {
		tiers[i].ServiceTime = time.Duration(evalDelays[i] * float64(time.Millisecond))
		tiers[i].Writable = true
		tiers[i].Bandwidth = 100e6
	}
	where := make([]extent.TierID, n)
	short, long, count := make([]float64, n), make([]float64, n), make([]float64, n)
	born, moved := make([]int, n), make([]int, n)
	used := make([]int64, len(tiers))
	for i := range where {
		born[i], moved[i] = -1, -1
		for int(where[i]) < len(tiers)-1 && used[where[i]] == tiers[where[i]].Slots {
			where[i]++
		}
		used[where[i]]++
	}
	for i := range tiers {
		tiers[i].Slots++ // to turn round in: exchanges need one free slot somewhere
		tiers[i].Free = tiers[i].Slots - used[i]
	}

	p := o.base
	p.ExtentSize = evalExtent
	p.Hysteresis = o.hysteresis
	p.Headroom = max(p.Headroom, 1e-9) // that one slot
	p.AccessTime = time.Second         // the heat below is a rate already
	p.BudgetBytes = 2 * int64(math.Round(o.budget*float64(n))) * evalExtent

	var res evalResult
	var sum float64
	next := 0
	for c := range o.cycles {
		end := float64(c+1) / float64(o.cycles)
		clear(count)
		for ; next < len(trace) && trace[next].at < end; next++ {
			e := ids[trace[next].e]
			sum += evalDelays[where[e]]
			if where[e] == 0 {
				res.top++
			}
			count[e]++
		}
		if o.static {
			continue
		}
		for e := range count {
			short[e] = short[e]*math.Exp2(-1/o.short) + count[e]
			long[e] = long[e]*math.Exp2(-1/o.long) + count[e]
			if born[e] < 0 && count[e] > 0 {
				born[e] = c
			}
		}
		// Rates per cycle: a decayed sum over what a steady rate of one would give.
		norm := func(h float64) float64 { return 1 - math.Exp2(-1/h) }
		view := plan.View{Tiers: tiers, Extents: func(yield func(plan.Extent) bool) {
			for e := range where {
				x := plan.Extent{
					Key:  extent.Key{Volume: 1, Index: extent.Index(e)},
					Tier: where[e], SinceMove: plan.NeverMoved,
				}
				if born[e] >= 0 {
					x.Age = uint32(c + 1 - born[e])
					young := func(h float64) float64 { return 1 - math.Exp2(-float64(x.Age)/h-1) }
					x.Heat = o.weight*short[e]*norm(o.short)/young(o.short) + (1-o.weight)*long[e]*norm(o.long)/young(o.long)
					x.Heat /= (5 * time.Minute).Seconds()
				}
				if moved[e] >= 0 {
					x.SinceMove = uint32(c - moved[e])
				}
				if !yield(x) {
					return
				}
			}
		}}
		got := plan.Next(view, p)
		if got.Bytes() > p.BudgetBytes {
			t.Fatalf("cycle %d: %d bytes planned, budget %d", c, got.Bytes(), p.BudgetBytes)
		}
		for _, m := range got.Moves {
			e := m.Key.Index
			where[e], moved[e] = m.To, c
			tiers[m.From].Free++
			tiers[m.To].Free--
		}
		res.moves += len(got.Moves)
	}
	res.ms = sum / float64(len(trace))
	res.top /= float64(len(trace))
	return res
}

// TestEvaluation reproduces the reference figures measured for this model on
// real traces, in mean milliseconds per access.
func TestEvaluation(t *testing.T) {
	if testing.Short() {
		t.Skip("replays millions of accesses")
	}
	for _, tc := range []struct {
		name         string
		read         func(t *testing.T, name string) []access
		static, dual float64
	}{
		{"cloudPhysicsIO.vscsi", readVSCSI, 15.70, 11.81},
		{"cloudphysics-w106.trace.xz", readPages, 6.95, 5.11},
		{"arc-P6.lis.zst", readARC, 12.98, 6.71},
		{"arc-P3.lis.zst", readARC, 14.96, 8.54},
	} {
		t.Run(tc.name, func(t *testing.T) {
			trace := tc.read(t, tc.name)
			static := dual()
			static.static = true
			if got := replay(t, trace, static); math.Abs(got.ms/tc.static-1) > 0.01 {
				t.Errorf("static first-touch: got %.2f ms, want %.2f within 1 %%", got.ms, tc.static)
			}
			got := replay(t, trace, dual())
			full := dual()
			full.base = plan.Defaults(evalExtent)
			defaults := replay(t, trace, full)
			t.Logf("with cost gate, residence, minimum age and headroom: %.2f ms, %d moves", defaults.ms, defaults.moves)
			if defaults.ms > tc.static*1.01 {
				t.Errorf("default settings: got %.2f ms, want no more than doing nothing, %.2f", defaults.ms, tc.static)
			}
			t.Logf("%d accesses: %.2f ms (reference %.2f), %d moves, top tier serves %.0f %%", len(trace), got.ms, tc.dual, got.moves, 100*got.top)
			if math.Abs(got.ms/tc.dual-1) > 0.02 {
				t.Errorf("dual: got %.2f ms, want %.2f within 2 %%", got.ms, tc.dual)
			}
		})
	}
}
