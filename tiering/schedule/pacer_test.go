package schedule

import (
	"testing"
	"time"
)

// night is open from 22:00 to 06:00 in Berlin, and at noon of Sundays for an hour at a
// rate of its own.
func night(t *testing.T) Calendar {
	t.Helper()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skipf("no time zones: %v", err)
	}
	w, err := ParseWindow("daily", "22:00", "06:00", 0)
	if err != nil {
		t.Fatal(err)
	}
	noon, err := ParseWindow("sun", "12:00", "13:00", 500)
	if err != nil {
		t.Fatal(err)
	}
	return Calendar{Windows: []Window{w, noon}, Location: berlin}
}

func TestOpenTime(t *testing.T) {
	c := night(t)
	at := func(day, hour int) time.Time { return time.Date(2026, 3, day, hour, 0, 0, 0, c.Location) }
	for _, tc := range []struct {
		name     string
		from, to time.Time
		want     time.Duration
	}{
		{"a weekday", at(25, 0), at(26, 0), 8 * time.Hour},
		{"a Sunday in which the clock goes forward", at(29, 0), at(30, 0), 8 * time.Hour}, // 5 + 1 + 2
		{"part of a window", at(25, 5), at(25, 7), time.Hour},
		{"closed", at(25, 6), at(25, 22), 0},
		{"nothing", at(25, 5), at(25, 5), 0},
	} {
		if got := c.OpenTime(tc.from, tc.to); got != tc.want {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
	if got := (Calendar{}).OpenTime(at(25, 0), at(26, 0)); got != 24*time.Hour {
		t.Errorf("without windows: got %v, want a day", got)
	}
}

func TestForecast(t *testing.T) {
	c := night(t)
	at := func(day, hour, minute int) time.Time { return time.Date(2026, 3, day, hour, minute, 0, 0, c.Location) }
	hour := int64(100 * 3600) // bytes, at 100 a second
	for _, tc := range []struct {
		name    string
		c       Calendar
		now     time.Time
		n, rate int64
		want    time.Time
	}{
		{"within the window", c, at(25, 23, 0), hour, 100, at(26, 0, 0)},
		{"nothing to do", c, at(25, 23, 0), 0, 100, at(25, 23, 0)},
		{"waits for the window", c, at(25, 12, 0), hour, 100, at(25, 23, 0)},
		{"over two nights", c, at(25, 5, 0), 3 * hour, 100, at(26, 0, 0)},
		{"a window with a rate of its own", c, at(29, 12, 0), hour, 100, at(29, 12, 12)},
		{"no limit", c, at(25, 12, 0), hour, 0, at(25, 22, 0)},
		{"not within two weeks", c, at(25, 12, 0), 1 << 50, 1, time.Time{}},
		{"always open", Calendar{}, at(25, 12, 0), hour, 100, at(25, 13, 0)},
	} {
		if got := tc.c.Forecast(tc.now, tc.n, tc.rate); !got.Equal(tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestPacer: what may be taken grows with open time, and is kept up to the reserve.
func TestPacer(t *testing.T) {
	c := night(t)
	at := func(day, hour, minute int) time.Time { return time.Date(2026, 3, day, hour, minute, 0, 0, c.Location) }
	const perDay = 8000 // a thousand for each hour of the night
	var p Pacer
	taken := int64(500) // before there was a pacer
	for _, step := range []struct {
		now  time.Time
		take int64 // after the call
		want int64
	}{
		{at(25, 12, 0), 0, 1000},    // the reserve
		{at(25, 21, 0), 1000, 1000}, // no more than that
		{at(25, 22, 0), 0, 0},       // closed until now
		{at(25, 22, 30), 300, 500},  // half an hour
		{at(25, 23, 0), 0, 700},     // 200 kept
		{at(26, 3, 0), 2000, 1000},  // four hours, the reserve at most; a client takes more
		{at(26, 3, 30), 0, 0},       // it is 500 ahead
		{at(26, 4, 30), 0, 500},     // made good
		{at(25, 4, 0), 0, 1000},     // the clock went back: begin anew
		{at(27, 4, 0), 1000, 1000},  // two days later
		{at(27, 4, 0), 0, 0},        // the same moment
		{at(27, 4, 15), 0, 250},
	} {
		if got := p.Allow(step.now, c, perDay, taken); got < step.want-1 || got > step.want {
			t.Errorf("%v: got %d, want %d", step.now, got, step.want)
		}
		taken += step.take
	}
}
