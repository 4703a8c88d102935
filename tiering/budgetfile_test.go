package tiering_test

import (
	"testing"

	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/schedule"
)

// TestDayBudgetSurvivesRestart: what was moved today counts after a restart.
func TestDayBudgetSurvivesRestart(t *testing.T) {
	const perDay = 10 << 20
	w := newEnv(t, model.Config{
		ExtentSize: ext, Slots: [][]int{{4}, {4}}, Volumes: []int64{4 * ext},
	}, func(o *tiering.Options) { o.Relocation.Limits = schedule.Limits{PerDay: perDay} })
	v, err := w.Pool.Volume("v0")
	if err != nil {
		t.Fatal(err)
	}
	if err := v.WriteAt(ctx, []byte("x"), 0, false); err != nil {
		t.Fatal(err)
	}
	if !w.Relocate("v0", 0, 1) {
		t.Fatal("the extent did not move")
	}
	before := w.Pool.Relocation().DayLeft
	if before <= 0 || before > perDay-ext {
		t.Fatalf("left of the day after a move of %d bytes: %d of %d", ext, before, perDay)
	}
	w.Close()
	w.Open()
	if got := w.Pool.Relocation().DayLeft; got != before {
		t.Errorf("left of the day after a restart: %d, want %d", got, before)
	}
}

// TestBudgetSurvivesKill: after a kill no less counts as taken than was written, of the day
// and of a cycle that goes on.
func TestBudgetSurvivesKill(t *testing.T) {
	const perDay, perCycle = 64 << 20, 32 << 20
	w := newEnv(t, model.Config{
		ExtentSize: ext, Slots: [][]int{{4}, {4}}, Volumes: []int64{4 * ext},
	}, func(o *tiering.Options) { o.Relocation.Limits = schedule.Limits{PerDay: perDay, PerCycle: perCycle} })
	w.write("v0", 0, ext, 1)
	for i := range 3 {
		if !w.Relocate("v0", 0, (i+1)%2) {
			t.Fatal("the extent did not move")
		}
		w.settle()
	}
	before := w.Pool.Relocation()
	if before.MovedBytes < 3*ext || before.DayLeft > perDay-before.MovedBytes {
		t.Fatalf("%d bytes moved, %d left of the day", before.MovedBytes, before.DayLeft)
	}
	w.Kill()
	w.Open()
	after := w.Pool.Relocation()
	if after.DayLeft > before.DayLeft || after.DayLeft < before.DayLeft-perCycle/32-ext {
		t.Errorf("%d left of the day after a kill, %d before", after.DayLeft, before.DayLeft)
	}
	if after.CycleLeft > before.CycleLeft || !after.NextCycle.Equal(before.NextCycle) {
		t.Errorf("%d left of the cycle after a kill, %d before; it ends at %v, was to end at %v", after.CycleLeft, before.CycleLeft, after.NextCycle, before.NextCycle)
	}
}
