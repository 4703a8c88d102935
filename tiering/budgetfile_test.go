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
