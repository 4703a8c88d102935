package tiering_test

import (
	"errors"
	"testing"
	"time"

	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/schedule"
)

// TestSettle: a change that takes many cycles' budgets is made in one go, within the day's,
// and its end has a reason.
func TestSettle(t *testing.T) {
	const extents = 16
	// A move takes an extent and two pieces more, which are as large here.
	closed := schedule.Calendar{Location: time.UTC, Windows: []schedule.Window{{Days: 0, Start: 0, End: 1}}} // on no day
	for _, tc := range []struct {
		name   string
		limits schedule.Limits
		cal    schedule.Calendar
		slots  [][]int
		want   tiering.Settled
		moved  func(n int64) bool
	}{
		{"in many cycles", schedule.Limits{PerCycle: 8 * ext}, schedule.Calendar{}, [][]int{{20}, {24}}, tiering.SettledDone, func(n int64) bool { return n == extents }},
		{"the day is spent", schedule.Limits{PerCycle: 8 * ext, PerDay: 12 * ext}, schedule.Calendar{}, [][]int{{20}, {24}}, tiering.SettledBudget, func(n int64) bool { return n > 0 && n < extents }},
		{"closed", schedule.Limits{}, closed, [][]int{{20}, {24}}, tiering.SettledWindow, func(n int64) bool { return n == 0 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEnv(t, model.Config{Slots: tc.slots, Volumes: []int64{extents * ext}}, func(o *tiering.Options) {
				o.Relocation.Limits, o.Relocation.Calendar = tc.limits, tc.cal
				o.Relocation.Headroom = 0
			})
			e.populate("v0", extents, 1)
			if got, n, err := e.Pool.Settle(ctx); tc.want != tiering.SettledWindow && (got != tiering.SettledDone || n != 0 || err != nil) {
				t.Errorf("with nothing to do: %s, %d, %v", got, n, err)
			}
			if err := e.Pool.SetPolicy(ctx, "v0", "t1", false); err != nil {
				t.Fatal(err)
			}
			got, n, err := e.Pool.Settle(ctx)
			if got != tc.want || !tc.moved(n) || err != nil {
				t.Errorf("got %s after %d moves, %v; want %s", got, n, err, tc.want)
			}
			if there := e.volume("v0").Info().Extents[1]; there != n {
				t.Errorf("%d extents are there, %d are said to have moved", there, n)
			}
			if spent := e.Pool.Relocation(); tc.limits.PerDay > 0 && spent.MovedBytes > tc.limits.PerDay {
				t.Errorf("%d bytes moved, the day has %d", spent.MovedBytes, tc.limits.PerDay)
			}
			e.expectFilled("v0", extents, 1)
		})
	}

	t.Run("paused", func(t *testing.T) {
		e := newEnv(t, model.Config{}, nil)
		e.Pool.PauseRelocation()
		if _, _, err := e.Pool.Settle(ctx); !errors.Is(err, tiering.ErrBusy) {
			t.Errorf("got %v, want %v", err, tiering.ErrBusy)
		}
	})
}
