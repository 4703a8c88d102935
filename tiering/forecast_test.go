package tiering_test

import (
	"reflect"
	"testing"
	"time"

	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/plan"
	"tierd/tiering/schedule"
)

// TestPlanDoesWhatItSaid: what PlanNow tells is what RunCycle moves, and where it ends up;
// the forecast adds up to it.
func TestPlanDoesWhatItSaid(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{6}, {12}, {20}}, Volumes: []int64{16 * ext}}, func(o *tiering.Options) {
		o.Relocation.Headroom = 0
		o.Relocation.Limits = schedule.Limits{PerCycle: 40 * ext, Rate: 1 << 30}
	})
	if err := e.Pool.SetPolicy(ctx, "v0", "t2", false); err != nil {
		t.Fatal(err)
	}
	e.populate("v0", 16, 1)
	if err := e.Pool.SetPolicy(ctx, "v0", "auto", false); err != nil {
		t.Fatal(err)
	}
	e.settle()
	buf := make([]byte, block)
	for i := range int64(12) { // the later, the hotter: in steps that hysteresis does not hide
		for range 2 << i {
			if err := e.volume("v0").ReadAt(ctx, buf, i*ext); err != nil {
				t.Fatal(err)
			}
		}
	}

	type move struct {
		m       plan.Move
		bytes   int64
		reasons plan.Reason
	}
	list := func(p plan.Plan) (out []move) {
		for _, m := range p.Moves {
			m.Gain, m.Rate, m.Saves = 0, 0, 0 // a moment passes
			out = append(out, move{m, m.Bytes, m.Reason})
		}
		return out
	}
	now := time.Now()
	said := e.Pool.PlanNow()
	f := e.Pool.Forecast(said, now)
	if len(said.Moves) < 4 {
		t.Fatalf("planned %v, rejected %v", said.Moves, said.Rejected)
	}
	if again := e.Pool.PlanNow(); !reflect.DeepEqual(list(again), list(said)) {
		t.Errorf("looking at it changed the plan:\n%v\n%v", list(said), list(again))
	}
	did, err := e.Pool.RunCycle(ctx, true)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(list(did), list(said)) {
		t.Errorf("said %v, did %v", list(said), list(did))
	}
	if !reflect.DeepEqual(did.Rejected, said.Rejected) {
		t.Errorf("said that %v stay, %v did", said.Rejected, did.Rejected)
	}
	e.settle()
	for _, m := range said.Moves {
		if got := e.tierOf("v0", int64(m.Key.Index)*ext); got != e.Pool.Tiers()[m.To].Name {
			t.Errorf("extent %d was to go to tier %d, and is in %s", m.Key.Index, m.To, got)
		}
	}
	e.expectFilled("v0", 16, 1)

	// The forecast.
	var in, out int64
	for i, x := range f.Tiers {
		in, out = in+x.In(), out+x.Out
		if got := e.Pool.Tiers()[i].Slots.Used; i < 2 && got != x.In()-x.Out {
			t.Errorf("tier %d holds %d extents, %+v were foretold", i, got, x)
		}
	}
	if in != int64(len(said.Moves)) || out != in {
		t.Errorf("%d come and %d leave by %d moves", in, out, len(said.Moves))
	}
	if !(f.Latency > f.LatencyAfter) || f.LatencyAfter <= 0 {
		t.Errorf("latency %v, afterwards %v", f.Latency, f.LatencyAfter)
	}
	if want := now.Add(time.Duration(float64(said.Bytes()) / (1 << 30) * 1e9)); f.Done.Sub(want).Abs() > time.Millisecond {
		t.Errorf("done at %v, want %v", f.Done, want)
	}
	for id, x := range f.Backings {
		if x.In()+x.Out == 0 {
			t.Errorf("backing %d has nothing to do", id)
		}
	}
}
