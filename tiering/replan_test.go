package tiering_test

import (
	"testing"

	"tierd/test/model"
	"tierd/tiering"
)

// TestReplanMovesWithoutANewCycle: after a change of policy, Replan moves what is wanted
// elsewhere though the next cycle is far away, and however often it is asked for, no more
// than the budget of the cycle that goes on. Dry runs and pauses keep all where it is.
func TestReplanMovesWithoutANewCycle(t *testing.T) {
	const extents = 4
	tests := []struct {
		name     string
		perCycle int64
		dryRun   bool
		paused   bool
		want     int64 // extents that end up in the slow tier
	}{
		{name: "no limit", want: extents},
		// A move pays for its extent and for two copies of pieces that change; what it
		// did not need of that the worker keeps for its next one.
		{name: "budget for two", perCycle: 2*ext + 2*ext, want: 2},
		{name: "dry run", dryRun: true},
		{name: "paused", paused: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t, model.Config{Slots: [][]int{{8}, {8}}}, func(o *tiering.Options) {
				o.Relocation.Workers, o.Relocation.Limits.PerCycle = 1, tt.perCycle
			})
			e.populate("v0", extents, 1)
			e.settle()
			if tt.paused {
				e.Pool.PauseRelocation()
			}
			if err := e.Pool.SetPolicy(ctx, "v0", "lowest", tt.dryRun); err != nil {
				t.Fatal(err)
			}
			slow := func() int64 { return e.volume("v0").Info().Extents[1] }
			for range 5 { // each has been carried out before the next is asked for
				before := e.Pool.Relocation().LastTime
				e.Pool.Replan()
				eventually(t, "a plan", func() bool { return e.Pool.Relocation().LastTime.After(before) })
				eventually(t, "its moves", func() bool { r := e.Pool.Relocation(); return r.Queued+r.InFlight == 0 })
			}
			e.settle()
			r := e.Pool.Relocation()
			if got := slow(); got != tt.want {
				t.Errorf("%d extents moved, want %d; skipped %v, last plan %v", got, tt.want, r.Skipped, r.Last.Rejected)
			}
			if tt.perCycle > 0 && r.MovedBytes > tt.perCycle {
				t.Errorf("%d bytes moved, of %d that the cycle allows", r.MovedBytes, tt.perCycle)
			}
			if r.Cycle != 0 {
				t.Errorf("%d cycles begun, want none", r.Cycle)
			}
			e.expectFilled("v0", extents, 1)
		})
	}
}
