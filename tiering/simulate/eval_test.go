package simulate_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tierd/pkg/trace"
	"tierd/tiering/simulate"
)

// traceFile returns a real trace. They are outside of the repository: the tests say
// so and skip where they are not at hand.
func traceFile(tb testing.TB, name string) simulate.Source {
	tb.Helper()
	path := filepath.Join("..", "..", "..", "shared", "traces", name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		tb.Skipf("trace not available: %v", err)
	}
	return inMemory(tb, simulate.Source{Name: name, Open: func() (trace.Reader, error) { return trace.Open(path) }})
}

// keptTrace is a trace of one disk, decoded once for several replays.
type keptTrace struct {
	chunks [][]keptRequest
	timed  bool
	format trace.Format
}

type keptRequest struct {
	at     time.Duration
	offset int64
	length int32
	write  bool
}

const keptChunk = 1 << 16

func inMemory(tb testing.TB, src simulate.Source) simulate.Source {
	tb.Helper()
	r, err := src.Open()
	if err != nil {
		tb.Fatal(err)
	}
	defer r.Close()
	k := &keptTrace{timed: r.Timed(), format: r.Format()}
	for n := 0; ; n++ {
		rec, err := r.Next()
		if err == io.EOF {
			return simulate.Source{Name: src.Name, Open: func() (trace.Reader, error) { return &keptReader{k: k}, nil }}
		}
		if err != nil {
			tb.Fatal(err)
		}
		if rec.Trim || rec.Flush || rec.Disk != 0 || rec.Length > math.MaxInt32 {
			tb.Fatalf("request %d: %+v", n, rec)
		}
		if n%keptChunk == 0 {
			k.chunks = append(k.chunks, make([]keptRequest, 0, keptChunk))
		}
		c := &k.chunks[len(k.chunks)-1]
		*c = append(*c, keptRequest{rec.Time, rec.Offset, int32(rec.Length), rec.Write})
	}
}

type keptReader struct {
	k *keptTrace
	n int
}

func (r *keptReader) Next() (trace.Record, error) {
	c, i := r.n/keptChunk, r.n%keptChunk
	if c == len(r.k.chunks) || i == len(r.k.chunks[c]) {
		return trace.Record{}, io.EOF
	}
	r.n++
	q := r.k.chunks[c][i]
	return trace.Record{Time: q.at, Offset: q.offset, Length: int64(q.length), Write: q.write}, nil
}
func (r *keptReader) Format() trace.Format { return r.k.format }
func (r *keptReader) Timed() bool          { return r.k.timed }
func (r *keptReader) Skipped() int64       { return 0 }
func (r *keptReader) Close() error         { return nil }

// TestEvaluation replays real traces in the setting of the reference figures, in
// mean milliseconds per access, and with the default settings.
func TestEvaluation(t *testing.T) {
	if testing.Short() {
		t.Skip("replays millions of accesses")
	}
	for _, tc := range []struct {
		name                                string
		static, planner, clairvoyant, bound float64
	}{
		{"cloudPhysicsIO.vscsi", 15.70, 11.81, 7.41, 6.73},
		{"cloudphysics-w106.trace.xz", 6.95, 5.11, 4.45, 4.19},
		{"arc-P6.lis.zst", 12.98, 6.71, 5.58, 5.24},
		{"arc-P3.lis.zst", 14.96, 8.54, 6.40, 5.60},
	} {
		t.Run(tc.name, func(t *testing.T) {
			src := traceFile(t, tc.name)
			evaluate := func(preset string, s simulate.Settings, policies ...string) *simulate.Report {
				rep, err := simulate.Run(context.Background(), src, []simulate.Layout{simulate.PaperLayout()}, policies, s)
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range rep.Policies {
					t.Logf("%-10s %-12s %6.3f ms, %3.0f %% of the bound's gain, %4d moves up, %4d down, top tier serves %2.0f %%",
						preset, p.Name, p.MeanMS, 100**p.BoundShare, p.Promotions, p.Demotions, 100*p.TierShare[0])
				}
				return rep
			}
			rep := evaluate("paper-eval", simulate.PaperEval(), simulate.Policies()...)
			for name, want := range map[string]float64{simulate.Static: tc.static, simulate.Clairvoyant: tc.clairvoyant, simulate.Bound: tc.bound} {
				if got := byName(t, rep, name).MeanMS; math.Abs(got/want-1) > 0.005 {
					t.Errorf("%s: got %.3f ms, want %.2f within 0.5 %%", name, got, want)
				}
			}
			if got := byName(t, rep, simulate.Planner).MeanMS; got > tc.planner*1.005 {
				t.Errorf("planner: got %.3f ms, want %.2f, 0.5 %% more at most", got, tc.planner)
			}
			if testing.Verbose() { // for comparison alone
				hourly := simulate.Defaults()
				hourly.Cycle, hourly.Cycles = 0, 24
				evaluate("24 cycles", hourly, simulate.Planner, simulate.Bound)
			}
			rep = evaluate("defaults", simulate.Defaults(), simulate.Planner, simulate.Bound)
			if got := rep.Policies[0].MeanMS; got > tc.planner {
				t.Errorf("defaults: got %.3f ms, want less than the reference of the model, %.2f", got, tc.planner)
			}
		})
	}
}

// BenchmarkReplay replays 5.3 million references with the daemon's heat and planner.
func BenchmarkReplay(b *testing.B) {
	src := traceFile(b, "cloudphysics-w106.trace.xz")
	for b.Loop() {
		_, err := simulate.Run(context.Background(), src, []simulate.Layout{simulate.PaperLayout()}, []string{simulate.Planner}, simulate.PaperEval())
		if err != nil {
			b.Fatal(err)
		}
	}
}
