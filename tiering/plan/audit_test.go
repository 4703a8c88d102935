package plan_test

import (
	"math"
	"testing"

	"tierd/tiering/extent"
	"tierd/tiering/plan"
)

// counts are the accesses of extents of volume 1; others are not known.
type counts map[extent.Index]uint32

func (c counts) accesses(k extent.Key) (uint32, bool) {
	n, ok := c[k.Index]
	return n, ok && k.Volume == 1
}

func auditKey(i extent.Index) extent.Key { return extent.Key{Volume: 1, Index: i} }

// TestAudit follows an exchange: extent 1, of 3 accesses a second, saves 10 ms each; extent
// 2, of 1, makes room and loses 10 ms each. A cycle is 100 s, and it is judged after eight:
// 16 s of latency are expected.
func TestAudit(t *testing.T) {
	exchange := []plan.Move{
		{Key: auditKey(2), Swap: true, Reason: plan.ReasonCold, Bytes: mib, Rate: 1, Saves: -0.010},
		{Key: auditKey(1), Swap: true, Reason: plan.ReasonHot, Bytes: mib, Rate: 3, Saves: 0.010},
	}
	for _, tc := range []struct {
		name          string
		moves         []plan.Move
		after         counts
		predicted     float64
		realised      float64
		share         float64
		heatBytes     int64 // of a mean of 10 extents a cycle
		limited       bool
		stillFollowed bool
	}{
		{"as expected", exchange, counts{1: 100 + 2400, 2: 200 + 800}, 16, 16, 1, 0, false, false},
		{"a tenth of it will do", exchange, counts{1: 100 + 160, 2: 200}, 16, 1.6, 1, 0, false, false},
		{"half of that, half the budget", exchange, counts{1: 100 + 80, 2: 200}, 16, 0.8, 0.5, 5 * mib, true, false},
		{"nothing: a little goes on", exchange, counts{1: 100, 2: 200}, 16, 0, 0.05, mib / 2, true, false},
		{"a loss", exchange, counts{1: 100, 2: 200 + 5000}, 16, -50, 0.05, mib / 2, true, false},
		{"one was trimmed: who knows", exchange, counts{1: 99, 2: 200}, 0, 0, 1, 0, false, false},
		{"one is gone", exchange, counts{2: 200}, 0, 0, 1, 0, false, false},
		{"a policy is not for the audit", []plan.Move{{Key: auditKey(1), Reason: plan.ReasonPolicy, Bytes: mib, Rate: 3, Saves: 0.01}}, counts{1: 100}, 0, 0, 1, 0, false, false},
		{"into a free slot", []plan.Move{{Key: auditKey(1), Reason: plan.ReasonHot, Bytes: mib, Rate: 1, Saves: 0.02}}, counts{1: 100 + 400}, 16, 8, 1, 0, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var a plan.Audit
			before := counts{1: 100, 2: 200}
			a.Note(5, tc.moves, before.accesses)
			a.Judge(12, 100, tc.after.accesses)
			if p, r := a.Totals(); p != 0 || r != 0 || a.Share() != 1 {
				t.Errorf("judged too early: %v and %v, share %v", p, r, a.Share())
			}
			c := a.Clone()
			a.Judge(13, 100, tc.after.accesses)
			a.Judge(14, 100, tc.after.accesses) // once is enough
			p, r := a.Totals()
			if math.Abs(p-tc.predicted) > 1e-9 || math.Abs(r-tc.realised) > 1e-9 || math.Abs(a.Share()-tc.share) > 1e-9 {
				t.Errorf("got %v expected, %v saved, share %v; want %v, %v, %v", p, r, a.Share(), tc.predicted, tc.realised, tc.share)
			}
			pol := plan.Defaults(mib)
			a.Begin(mib, 10*mib)
			a.Limit(&pol)
			if pol.HeatLimited != tc.limited || pol.HeatBytes != tc.heatBytes {
				t.Errorf("limited %v to %d, want %v, %d", pol.HeatLimited, pol.HeatBytes, tc.limited, tc.heatBytes)
			}
			if p, _ := c.Totals(); p != 0 {
				t.Error("a copy was changed with its original")
			}
			c.Judge(13, 100, tc.after.accesses)
			if q, _ := c.Totals(); q != p {
				t.Errorf("the copy found %v, the original %v", q, p)
			}
		})
	}
}

// TestAuditTrickle: parts of a move add up to one, and no further.
func TestAuditTrickle(t *testing.T) {
	var a plan.Audit
	none := counts{1: 1}
	a.Note(0, []plan.Move{{Key: auditKey(1), Reason: plan.ReasonHot, Bytes: mib, Rate: 1, Saves: 1}}, none.accesses)
	a.Judge(8, 1, none.accesses)
	var got []int64
	for range 6 {
		a.Begin(mib, 10*mib)
		pol := plan.Defaults(mib)
		a.Limit(&pol)
		got = append(got, pol.HeatBytes)
	}
	want := []int64{mib / 2, mib, 3 * mib / 2, 2 * mib, 2 * mib, 2 * mib}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
	a.Note(20, []plan.Move{{Key: auditKey(1), Reason: plan.ReasonHot, Bytes: mib, Rate: 1, Saves: 1}}, none.accesses)
	a.Begin(mib, 10*mib)
	pol := plan.Defaults(mib)
	if a.Limit(&pol); pol.HeatBytes != 3*mib/2 {
		t.Errorf("after a move %d, want %d", pol.HeatBytes, 3*mib/2)
	}
	pol = plan.Policy{ExtentSize: mib}
	if a.Limit(&pol); pol.HeatLimited {
		t.Error("a policy that wants no audit is limited")
	}
}

// TestHeatLimited: what moves for heat may write does not bind policies.
func TestHeatLimited(t *testing.T) {
	v := view(threeTiers(9, 9, 9), at(0, 2, 5), at(1, 2, 4), at(2, 2, 3),
		with(at(3, 2, 0), func(e *plan.Extent) { e.Want = plan.Want{Kind: plan.WantTier, Tier: 1} }))
	p := with(policy(), func(p *plan.Policy) { p.HeatLimited, p.HeatBytes = true, 2*mib-1 })
	got := plan.Next(v, p)
	if len(got.Moves) != 2 || got.Moves[0].Reason != plan.ReasonPolicy || got.Moves[1].Key.Index != 0 || got.Rejected[plan.ReasonBudget] != 2 {
		t.Errorf("got %+v, %v", got.Moves, got.Rejected)
	}
}
