package tiering_test

import (
	"testing"

	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/alloc"
	"tierd/tiering/plan"
)

// TestNewBackingGetsItsShare: after `backing add` the fullest backing of the tier gives
// extents to the new one, within the budget, until half of the difference is gone; the
// data stays what it was.
func TestNewBackingGetsItsShare(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{20}, {4}}, Volumes: []int64{20 * ext}}, func(o *tiering.Options) {
		o.Relocation.Headroom, o.Relocation.Limits.PerCycle = 0, 5*(ext+2*ext)
	})
	e.populate("v0", 16, 1)
	e.settle()
	if ran, err := e.Pool.RunCycle(ctx, true); err != nil || len(ran.Moves) != 0 { // from here on they are known
		t.Fatalf("alone in its tier: %v, %v", ran.Moves, err)
	}
	before := e.backing(path(0, 0)).Slots
	e.add(tiering.AddOptions{Tier: "t0"}, 20)
	eventually(t, "clean slots", func() bool { return e.backing(newPath).Slots.Clean > 10 })

	p := e.Pool.PlanNow()
	if len(p.Moves) == 0 {
		t.Fatalf("no moves: %v; %+v", p.Rejected, before)
	}
	for _, m := range p.Moves {
		if m.Kind != plan.Rebalance || m.FromBacking != e.backing(path(0, 0)).ID || m.ToBacking != e.backing(newPath).ID {
			t.Errorf("planned %+v", m)
		}
	}
	for range 8 {
		if _, err := e.Pool.RunCycle(ctx, true); err != nil {
			t.Fatal(err)
		}
		e.settle()
	}
	moved := e.backing(newPath).Slots.Used
	if from, to := e.backing(path(0, 0)).Slots, e.backing(newPath).Slots; moved < 2 || share(from)-share(to) > 0.2 {
		t.Errorf("%d moved; %d of %d slots against %d of %d", moved, from.Used, from.Total, to.Used, to.Total)
	}
	if p := e.Pool.PlanNow(); len(p.Moves) != 0 {
		t.Errorf("evened out, and more is planned: %v", p.Moves)
	}
	e.expectFilled("v0", 16, 1)
}

func share(c alloc.Counts) float64 { return float64(c.Used) / float64(c.Total) }
