package bound_test

import (
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"tierd/pkg/trace"
	"tierd/tiering/simulate/bound"
)

// evaluation is the problem of the planner's evaluation for a trace: three tiers of
// 2, 10 and 20.5 ms for 5 %, 25 % and the rest of the 1 MiB extents that it touches,
// filled in the order of first touch, 24 cycles, and promotions of 2 % a cycle.
// Shares of the tiers are cut to whole extents, the budget is rounded. Every extent
// that a request touches has an access. Traces that have no time are cut by the
// number of the request.
//
// The reference figures were made in a setting that differs in three points: only
// the first extent of a request has an access, the budget is cut to whole extents,
// too, and promotions are made before cycle 0 as well.
func evaluation(tb testing.TB, name string, reference bool) bound.Problem {
	tb.Helper()
	const cycles, size = 24, 1 << 20
	path := filepath.Join("..", "..", "..", "..", "shared", "traces", name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		tb.Skipf("trace not available: %v", err)
	}
	r, err := trace.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer r.Close()
	type access struct {
		extent int64
		at     time.Duration
	}
	var accesses []access
	var requests, end time.Duration
	for {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			tb.Fatal(err)
		}
		at := rec.Time
		if !r.Timed() {
			at = requests
		}
		requests++
		end = at + 1
		for e := rec.Offset / size; e <= (rec.Offset+max(rec.Length, 1)-1)/size; e++ {
			accesses = append(accesses, access{e, at})
			if reference {
				break
			}
		}
	}

	p := bound.Problem{Cycles: cycles}
	ids := map[int64]int{}
	for _, a := range accesses {
		id, ok := ids[a.extent]
		if !ok {
			id = len(ids)
			ids[a.extent] = id
			p.Extents = append(p.Extents, bound.Extent{})
		}
		x := &p.Extents[id]
		c := int(a.at * cycles / end)
		if reference {
			c++ // cycle 0 has none
		}
		if k := len(x.Accesses); k > 0 && x.Accesses[k-1].Cycle == c {
			x.Accesses[k-1].Count++
		} else {
			x.Accesses = append(x.Accesses, bound.Access{Cycle: c, Count: 1})
		}
	}
	all := len(ids)
	p.Tiers = []bound.Tier{{Delay: 2, Extents: all * 5 / 100}, {Delay: 10, Extents: all * 25 / 100}, {Delay: 20.5, Extents: all}}
	p.Promotions = (all*2 + 50) / 100
	if reference {
		p.Cycles++
		p.Promotions = all * 2 / 100
	}
	for e := range p.Extents {
		for n := p.Tiers[0].Extents; e >= n; n += p.Tiers[p.Extents[e].Tier].Extents {
			p.Extents[e].Tier++
		}
	}
	return p
}

// TestTraces solves real traces, and holds what it finds against the reference
// figures, in mean milliseconds per access, to their last digit. In the setting of
// the planner's evaluation, the bound is higher.
func TestTraces(t *testing.T) {
	if testing.Short() {
		t.Skip("reads and solves millions of accesses")
	}
	for _, tc := range []struct {
		name             string
		reference, fixed float64
		evaluation       float64
	}{
		{"cloudPhysicsIO.vscsi", 6.73, 8.42, 6.889},
		{"cloudphysics-w106.trace.xz", 4.19, 4.77, 4.290},
		{"arc-P6.lis.zst", 5.24, 6.21, 5.401},
		{"arc-P3.lis.zst", 5.60, 7.44, 5.895},
	} {
		t.Run(tc.name, func(t *testing.T) {
			check := func(setting string, want float64, p bound.Problem) {
				r := solve(t, p)
				t.Logf("%s: %d extents, %d accesses, %d promotions: bound %.4f ms", setting, len(p.Extents), r.Accesses, p.Promotions, r.Mean)
				if math.Abs(r.Mean-want) > 0.00501 || !r.Optimal {
					t.Errorf("%s: bound %.4f ms, optimal %v, want %v", setting, r.Mean, r.Optimal, want)
				}
				for k, b := range r.Boundaries {
					t.Logf("  %d extents above serve %d, feasible %d, after %d rounds", b.Capacity, b.Served, b.Feasible, b.Rounds)
					if got, err := bound.Verify(p, k, b.Room, b.Entry); err != nil || got != b.Served {
						t.Errorf("%s: the prices of boundary %d prove %d, %v, want %d", setting, k, got, err, b.Served)
					}
				}
			}
			reference := evaluation(t, tc.name, true)
			check("reference", tc.reference, reference)
			check("evaluation", tc.evaluation, evaluation(t, tc.name, false))
			if got, err := bound.Fixed(reference); err != nil || math.Abs(got-tc.fixed) > 0.00501 {
				t.Errorf("fixed: got %.4f ms, %v, want %.2f", got, err, tc.fixed)
			}
		})
	}
}
