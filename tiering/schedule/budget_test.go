package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"tierd/pkg/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var monday = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

func utcCalendar(w ...Window) Calendar { return Calendar{Windows: w, Location: time.UTC} }

// taker runs Take in the background.
func taker(ctx context.Context, b *Budget, n int64) <-chan error {
	done := make(chan error, 1)
	go func() { done <- b.Take(ctx, n) }()
	return done
}

// parked waits until n goroutines wait for the clock.
func parked(c *clock.Fake, n int) {
	for c.Waiters() < n {
		runtime.Gosched()
	}
}

func finished(t *testing.T, done <-chan error, want error) {
	t.Helper()
	if err := <-done; !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

func waiting(t *testing.T, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("take returned %v, want it to wait", err)
	default:
	}
}

func TestAmounts(t *testing.T) {
	ctx := t.Context()
	c := clock.NewFake(monday)
	b := NewBudget(c, utcCalendar(), Limits{PerCycle: 100, PerDay: 150})
	for _, step := range []struct {
		n          int64
		err        error
		cycle, day int64
	}{
		{0, nil, 100, 150},
		{101, ErrBudgetSpent{Cycle}, 100, 150},
		{60, nil, 40, 90},
		{41, ErrBudgetSpent{Cycle}, 40, 90},
		{40, nil, 0, 50},
		{1, ErrBudgetSpent{Cycle}, 0, 50},
		{-5, nil, 0, 50},
	} {
		if err := b.Take(ctx, step.n); err != step.err {
			t.Errorf("take %d: got %v, want %v", step.n, err, step.err)
		}
		if cycle, day := b.Left(); cycle != step.cycle || day != step.day {
			t.Errorf("after %d: got %d and %d left, want %d and %d", step.n, cycle, day, step.cycle, step.day)
		}
	}
	b.NewCycle(c.Now())
	if err := b.Take(ctx, 51); err != (ErrBudgetSpent{Day}) {
		t.Errorf("got %v, want the day spent", err)
	}
	if err := b.Take(ctx, 50); err != nil {
		t.Error(err)
	}
	c.Advance(12 * time.Hour) // midnight
	if _, day := b.Left(); day != 150 {
		t.Errorf("next day: got %d left, want 150", day)
	}
	if got, want := b.Spent(), (Totals{150, 50, 0}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}

	b.SetLimits(Limits{PerCycle: 20})
	if cycle, day := b.Left(); cycle != 0 || day != -1 {
		t.Errorf("lower limit: got %d and %d left, want 0 and no limit", cycle, day)
	}
	if err := b.Take(ctx, 1); err != (ErrBudgetSpent{Cycle}) || err.Error() == "" {
		t.Errorf("got %v", err)
	}
}

func TestRate(t *testing.T) {
	c := clock.NewFake(monday)
	b := NewBudget(c, utcCalendar(), Limits{Rate: 100})
	if err := b.Take(t.Context(), 200); err != nil { // the first goes through, and is paid off
		t.Fatal(err)
	}
	done := taker(t.Context(), b, 50)
	parked(c, 1)
	c.Advance(1999 * time.Millisecond)
	waiting(t, done)
	c.Advance(time.Millisecond)
	finished(t, done, nil)

	// A long silence is made up for by a quarter of a second, no more.
	c.Advance(time.Hour)
	if err := b.Take(t.Context(), 25); err != nil {
		t.Fatal(err)
	}
	if err := b.Take(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	done = taker(t.Context(), b, 1)
	parked(c, 1)
	c.Advance(500 * time.Millisecond)
	waiting(t, done)

	// A higher rate is felt at once: 50 bytes of debt at 1000.
	b.SetLimits(Limits{Rate: 1000})
	parked(c, 2) // the old timer and the new one
	c.Advance(50 * time.Millisecond)
	finished(t, done, nil)

	b.SetLimits(Limits{})
	for range 10 {
		if err := b.Take(t.Context(), 1<<40); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWindows(t *testing.T) {
	c := clock.NewFake(monday)
	b := NewBudget(c, utcCalendar(window(t, "mon", "20:00", "22:00", 10)), Limits{Rate: 1000})
	if open, rate, until := b.Open(); open || rate != 1000 || !until.Equal(monday.Add(8*time.Hour)) {
		t.Errorf("noon: got %v, %d, %v", open, rate, until)
	}
	done := taker(t.Context(), b, 100)
	parked(c, 1)
	c.Advance(8*time.Hour - 1)
	waiting(t, done)
	c.Advance(1)
	finished(t, done, nil)
	if open, rate, _ := b.Open(); !open || rate != 10 {
		t.Errorf("evening: got %v, %d, want open at 10", open, rate)
	}

	done = taker(t.Context(), b, 1) // ten seconds of debt at the window's rate
	parked(c, 1)
	c.Advance(9 * time.Second)
	waiting(t, done)
	c.Advance(time.Second)
	finished(t, done, nil)

	// A wait that reaches the end of the window goes on after the next start.
	c.Advance(2*time.Hour - 11*time.Second)
	if err := b.Take(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	done = taker(t.Context(), b, 1)
	parked(c, 1)
	c.Advance(time.Second) // 22:00
	parked(c, 1)
	waiting(t, done)
	b.SetCalendar(utcCalendar())
	parked(c, 2) // the next Monday, and the rest of the debt at 1000
	c.Advance(88 * time.Millisecond)
	finished(t, done, nil)
}

// TestRateAtTheEdge: a debt made at a low rate is paid at the rate of the window
// that follows.
func TestRateAtTheEdge(t *testing.T) {
	c := clock.NewFake(monday)
	b := NewBudget(c, utcCalendar(window(t, "mon", "12:00", "13:00", 10), window(t, "mon", "13:00", "14:00", 1000)), Limits{})
	c.Advance(time.Hour - time.Second)
	if err := b.Take(t.Context(), 500); err != nil {
		t.Fatal(err)
	}
	done := taker(t.Context(), b, 1)
	parked(c, 1)
	c.Advance(time.Second)
	parked(c, 1) // looked again at 13:00, with 487.5 bytes to go
	waiting(t, done)
	c.Advance(488 * time.Millisecond)
	finished(t, done, nil)
}

func TestPause(t *testing.T) {
	c := clock.NewFake(monday)
	b := NewBudget(c, utcCalendar(), Limits{PerCycle: 100})
	b.Pause()
	if !b.Paused() {
		t.Error("not paused")
	}
	if err := b.Take(t.Context(), 101); err != (ErrBudgetSpent{Cycle}) {
		t.Errorf("got %v, want the refusal at once", err)
	}
	done := taker(t.Context(), b, 100)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("shutting down")
	other := taker(ctx, b, 100)
	cancel(cause)
	finished(t, other, cause)
	waiting(t, done)
	b.Resume()
	finished(t, done, nil)
	if b.Paused() {
		t.Error("still paused")
	}

	cancelled, stop := context.WithCancel(t.Context())
	stop()
	b.NewCycle(c.Now())
	if err := b.Take(cancelled, 1); !errors.Is(err, context.Canceled) || b.Spent().Cycle != 0 {
		t.Errorf("got %v with %d spent, want nothing taken", err, b.Spent().Cycle)
	}
}

// TestState: what is saved counts after a restart, on the same day and in the same cycle.
func TestState(t *testing.T) {
	const cycle = 10 * time.Minute
	c := clock.NewFake(monday)
	b := NewBudget(c, utcCalendar(), Limits{PerDay: 100, PerCycle: 80})
	b.NewCycle(monday)
	if err := b.Take(t.Context(), 70); err != nil {
		t.Fatal(err)
	}
	saved, err := json.Marshal(b.State())
	if err != nil || string(saved) != `{"day":"2026-03-02","bytes":70,"cycle_began":"`+monday.Format(time.RFC3339)+`","cycle_bytes":70}` {
		t.Fatalf("got %s, %v", saved, err)
	}
	var s State
	if err := json.Unmarshal(saved, &s); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		after      time.Duration
		cycle, day int64
		goesOn     bool
	}{{0, 10, 30, true}, {9 * time.Minute, 10, 30, true}, {cycle, 80, 30, false}, {24 * time.Hour, 80, 100, false}, {-time.Minute, 80, 30, false}} {
		again := NewBudget(clock.NewFake(monday.Add(tc.after)), utcCalendar(), Limits{PerDay: 100, PerCycle: 80})
		began := again.Restore(s, cycle)
		if cycle, day := again.Left(); cycle != tc.cycle || day != tc.day || began.Equal(monday) != tc.goesOn {
			t.Errorf("%v later: got %d and %d left, the cycle began %v; want %d and %d, and that it goes on: %v", tc.after, cycle, day, began, tc.cycle, tc.day, tc.goesOn)
		}
	}
}

// TestKeptAcrossKills: whenever it is killed, and restored from what was kept, no cycle and
// no day gets more than its amount.
func TestKeptAcrossKills(t *testing.T) {
	const perCycle, perDay, cycle = 1000, 5000, time.Hour
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		c := clock.NewFake(monday)
		var kept State
		keeps, takes := 0, 0
		failing := false
		start := func() *Budget {
			b := NewBudget(c, utcCalendar(), Limits{PerCycle: perCycle, PerDay: perDay})
			b.KeepBy(func(s State) error {
				if failing {
					return errors.New("full disk")
				}
				keeps++
				kept = s
				return nil
			})
			if b.Restore(kept, cycle).IsZero() {
				b.NewCycle(c.Now())
			}
			return b
		}
		b := start()
		inDay, inCycle := map[string]int64{}, map[time.Time]int64{}
		for range 3000 {
			c.Advance(time.Duration(rng.IntN(60)) * time.Second)
			switch n := rng.IntN(100); {
			case n < 3:
				b = start() // killed
			case n < 5:
				if err := b.Keep(); err != nil {
					t.Fatal(err)
				}
			}
			if c.Now().Sub(b.State().CycleBegan) >= cycle {
				b.NewCycle(c.Now())
			}
			n := int64(1 + rng.IntN(20))
			failing = rng.IntN(50) == 0
			before := b.Spent()
			err := b.Take(t.Context(), n)
			failing = false
			var spent ErrBudgetSpent
			switch {
			case errors.As(err, &spent):
				continue
			case err != nil:
				if got := b.Spent(); got.Day != before.Day || got.Total != before.Total {
					t.Fatalf("seed %d: not kept, and taken: %+v, before %+v", seed, got, before)
				}
				continue
			}
			takes++
			inDay[c.Now().UTC().Format(time.DateOnly)] += n
			inCycle[b.State().CycleBegan] += n
		}
		for day, n := range inDay {
			if n > perDay {
				t.Errorf("seed %d: %d bytes on %s, at most %d", seed, n, day, int64(perDay))
			}
		}
		for began, n := range inCycle {
			if n > perCycle {
				t.Errorf("seed %d: %d bytes in the cycle of %v, at most %d", seed, n, began, int64(perCycle))
			}
		}
		if keeps*4 > takes*3 {
			t.Errorf("seed %d: %d files written for %d takes", seed, keeps, takes)
		}
	}
}

// TestReturn: what is given back can be taken again on the same day, not in the cycle.
func TestReturn(t *testing.T) {
	c := clock.NewFake(monday)
	b := NewBudget(c, utcCalendar(), Limits{PerCycle: 100, PerDay: 100})
	if err := b.Take(t.Context(), 60); err != nil {
		t.Fatal(err)
	}
	day := b.Today()
	b.Return(20, day)
	if cycle, left := b.Left(); cycle != 40 || left != 60 || b.Spent().Total != 40 {
		t.Errorf("%d and %d left, %+v spent; want 40, 60 and 40", cycle, left, b.Spent())
	}
	c.Advance(24 * time.Hour)
	b.Return(20, day)
	if _, left := b.Left(); left != 100 {
		t.Errorf("what was taken yesterday came back today: %d left", left)
	}
}

// TestPausedTaker: one that is not to wait for the end of a pause does not, whether it
// comes before or during it.
func TestPausedTaker(t *testing.T) {
	b := NewBudget(clock.NewFake(monday), utcCalendar(), Limits{Rate: 1})
	if err := b.TakeUnlessPaused(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- b.TakeUnlessPaused(t.Context(), 1) }()
	b.Pause()
	if err := <-ended; !errors.Is(err, ErrPaused) {
		t.Errorf("got %v, want %v", err, ErrPaused)
	}
	if err := b.TakeUnlessPaused(t.Context(), 1); !errors.Is(err, ErrPaused) {
		t.Errorf("got %v, want %v", err, ErrPaused)
	}
}

// TestDayOfTheCalendar: the day ends with the wall clock's, also where that day
// has 23 or 25 hours.
func TestDayOfTheCalendar(t *testing.T) {
	berlin := location(t, "Europe/Berlin")
	for _, tc := range []struct {
		day   time.Time
		hours int
	}{
		{time.Date(2026, 3, 28, 0, 0, 0, 0, berlin), 24},
		{time.Date(2026, 3, 29, 0, 0, 0, 0, berlin), 23},
		{time.Date(2026, 10, 25, 0, 0, 0, 0, berlin), 25},
	} {
		c := clock.NewFake(tc.day)
		b := NewBudget(c, Calendar{Location: berlin}, Limits{PerDay: 10})
		if err := b.Take(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		c.Advance(time.Duration(tc.hours)*time.Hour - 1)
		if _, day := b.Left(); day != 0 {
			t.Errorf("%v: got %d left before midnight, want 0", tc.day, day)
		}
		c.Advance(1)
		if _, day := b.Left(); day != 10 {
			t.Errorf("%v: got %d left after midnight, want 10", tc.day, day)
		}
	}
}

// TestBudgetProperties takes at random and holds what was taken against a plain
// account of it: amounts to the byte, the rate over every span.
func TestBudgetProperties(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		l := Limits{
			Rate:     rapid.Int64Range(0, 50).Draw(r, "rate"),
			PerCycle: rapid.Int64Range(0, 300).Draw(r, "per cycle"),
			PerDay:   rapid.Int64Range(0, 500).Draw(r, "per day"),
		}
		c := clock.NewFake(monday)
		b := NewBudget(c, utcCalendar(), l)
		type grant struct {
			at time.Time
			n  int64
		}
		var grants []grant
		var cycle, day int64
		date := monday.Day()
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			switch rapid.IntRange(0, 9).Draw(r, "step") {
			case 0:
				b.NewCycle(c.Now())
				cycle = 0
			case 1, 2, 3:
				c.Advance(time.Duration(rapid.IntRange(1, 20_000).Draw(r, "ms")) * time.Millisecond)
			case 4:
				c.Advance(5 * time.Hour)
			default:
				n := rapid.Int64Range(1, 100).Draw(r, "bytes")
				ok, wait, _, err := b.try(n)
				if d := c.Now().Day(); d != date {
					date, day = d, 0
				}
				switch fits := (l.PerCycle == 0 || cycle+n <= l.PerCycle) && (l.PerDay == 0 || day+n <= l.PerDay); {
				case fits != (err == nil):
					r.Fatalf("take %d with %d and %d spent of %+v: got %v", n, cycle, day, l, err)
				case ok:
					cycle, day = cycle+n, day+n
					grants = append(grants, grant{c.Now(), n})
				case err == nil && wait <= 0:
					r.Fatalf("take %d: neither taken nor told how long to wait", n)
				}
			}
		}
		if got := b.Spent(); got.Cycle != cycle {
			r.Fatalf("got %+v, want %d in the cycle", got, cycle)
		}
		if l.Rate == 0 {
			return
		}
		for i := range grants {
			sum := int64(0)
			for _, g := range grants[i:] {
				allowed := float64(l.Rate) * (g.at.Sub(grants[i].at) + burst).Seconds()
				if float64(sum) > allowed+1e-6 { // before the last one, which is paid off afterwards
					r.Fatalf("%d bytes in %v at %d a second", sum, g.at.Sub(grants[i].at), l.Rate)
				}
				sum += g.n
			}
		}
	})
}

// TestConcurrentTakers: the amount is shared out to the byte.
func TestConcurrentTakers(t *testing.T) {
	b := NewBudget(clock.NewFake(monday), utcCalendar(), Limits{PerCycle: 1000})
	var mu sync.Mutex
	var taken int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for b.Take(t.Context(), 3) == nil {
				mu.Lock()
				taken += 3
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if taken != 999 || b.Spent().Total != 999 {
		t.Errorf("got %d taken, %d accounted, want 999", taken, b.Spent().Total)
	}
}
