package schedule

import (
	"testing"
	"time"
	_ "time/tzdata"

	"pgregory.net/rapid"
)

func location(t testing.TB, name string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func window(t testing.TB, days, start, end string, rate int64) Window {
	t.Helper()
	w, err := ParseWindow(days, start, end, rate)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestParseDays(t *testing.T) {
	for _, tc := range []struct {
		in, out string
		bits    Days
	}{
		{"daily", "daily", 0b1111111},
		{"mon-fri", "mon-fri", 0b0011111},
		{"sat,sun", "sat,sun", 0b1100000},
		{"Sat - Sun", "sat,sun", 0b1100000},
		{"fri-mon", "mon,fri-sun", 0b1110001},
		{"wed", "wed", 0b0000100},
		{"mon, wed-thu ,sun", "mon,wed,thu,sun", 0b1001101},
		{"mon-sun", "daily", 0b1111111},
	} {
		got, err := ParseDays(tc.in)
		if err != nil || got != tc.bits || got.String() != tc.out {
			t.Errorf("%q: got %07b %q, %v, want %07b %q", tc.in, got, got, err, tc.bits, tc.out)
		}
	}
	for _, in := range []string{"", "monday", "mon-", "-fri", "mon,,tue", "mon-tue-wed", "never"} {
		if got, err := ParseDays(in); err == nil {
			t.Errorf("%q: got %v, want an error", in, got)
		}
	}
	if !Days(1).Has(time.Monday) || Days(1).Has(time.Sunday) || !Days(1<<6).Has(time.Sunday) {
		t.Error("bit 0 is not Monday")
	}
}

func TestParseTimeOfDay(t *testing.T) {
	for in, want := range map[string]TimeOfDay{"00:00": 0, "20:00": 1200, "6:05": 365, "23:59": 1439, "24:00": 1440} {
		if got, err := ParseTimeOfDay(in); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "20", "20:0", "20:60", "24:01", "25:00", "-1:00", "+1:00", "1:+1", "020:00", "20:00:00", "300:00"} {
		if got, err := ParseTimeOfDay(in); err == nil {
			t.Errorf("%q: got %v, want an error", in, got)
		}
	}
	for _, tc := range [][3]string{{"x", "20:00", "06:00"}, {"mon", "x", "06:00"}, {"mon", "24:00", "06:00"}, {"mon", "20:00", "x"}} {
		if _, err := ParseWindow(tc[0], tc[1], tc[2], 0); err == nil {
			t.Errorf("%v: got no error", tc)
		}
	}
	if _, err := ParseWindow("mon", "20:00", "06:00", -1); err == nil {
		t.Error("negative rate: got no error")
	}
	if got := window(t, "mon-fri", "20:00", "6:00", 0).String(); got != "mon-fri 20:00-06:00" {
		t.Errorf("got %q", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("mon-fri", "20:00")
	f.Add("sat,sun", "24:00")
	f.Fuzz(func(t *testing.T, days, at string) {
		if d, err := ParseDays(days); err == nil {
			if again, err := ParseDays(d.String()); err != nil || again != d {
				t.Errorf("%q: got %v, then %v, %v", days, d, again, err)
			}
		}
		if m, err := ParseTimeOfDay(at); err == nil {
			if again, err := ParseTimeOfDay(m.String()); err != nil || again != m {
				t.Errorf("%q: got %v, then %v, %v", at, m, again, err)
			}
		}
	})
}

func TestCalendar(t *testing.T) {
	berlin := location(t, "Europe/Berlin")
	nights := []Window{window(t, "mon-fri", "20:00", "06:00", 400)}
	at := func(s string) time.Time {
		got, err := time.ParseInLocation("2006-01-02 15:04", s, berlin)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	utc := func(s string) time.Time {
		got, err := time.Parse("2006-01-02 15:04", s)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, tc := range []struct {
		name    string
		windows []Window
		now     time.Time
		open    bool
		rate    int64
		until   time.Time
	}{
		{"no windows", nil, at("2026-03-02 12:00"), true, 0, time.Time{}},
		{"Monday noon", nights, at("2026-03-02 12:00"), false, 0, at("2026-03-02 20:00")},
		{"Monday evening", nights, at("2026-03-02 20:00"), true, 400, at("2026-03-03 06:00")},
		{"Tuesday, after midnight", nights, at("2026-03-03 05:59"), true, 400, at("2026-03-03 06:00")},
		{"Saturday, after midnight", nights, at("2026-03-07 05:59"), true, 400, at("2026-03-07 06:00")},
		{"Saturday morning", nights, at("2026-03-07 06:00"), false, 0, at("2026-03-09 20:00")},
		{"Monday, after midnight", nights, at("2026-03-09 01:00"), false, 0, at("2026-03-09 20:00")},
		{"whole day", []Window{window(t, "sun", "00:00", "00:00", 0)}, at("2026-03-08 00:00"), true, 0, at("2026-03-09 00:00")},
		{"to 24:00 and on", []Window{window(t, "sat", "22:00", "24:00", 0), window(t, "sun", "00:00", "02:00", 0)}, at("2026-03-07 23:00"), true, 0, at("2026-03-08 02:00")},
		{"rate changes at 24:00", []Window{window(t, "sat", "22:00", "24:00", 1), window(t, "sun", "00:00", "02:00", 2)}, at("2026-03-07 23:00"), true, 1, at("2026-03-08 00:00")},
		{"always", []Window{window(t, "daily", "00:00", "24:00", 7)}, at("2026-03-07 23:00"), true, 7, time.Time{}},
		{"first listed wins", []Window{window(t, "daily", "01:00", "02:00", 1), window(t, "daily", "00:00", "24:00", 2)}, at("2026-03-07 00:30"), true, 2, at("2026-03-07 01:00")},
		{"no day at all", []Window{{Start: 1, End: 2}}, at("2026-03-07 00:30"), false, 0, time.Time{}},

		// 2026-03-29: 02:00 becomes 03:00, at 01:00 UTC.
		{"night of spring is an hour shorter", []Window{window(t, "sat", "20:00", "06:00", 0)}, at("2026-03-28 20:00"), true, 0, utc("2026-03-29 04:00")},
		{"starts in the skipped hour", []Window{window(t, "sun", "02:30", "06:00", 0)}, at("2026-03-29 01:00"), false, 0, utc("2026-03-29 01:00")},
		{"ends in the skipped hour", []Window{window(t, "sun", "01:00", "02:30", 0)}, at("2026-03-29 01:30"), true, 0, utc("2026-03-29 01:00")},
		{"within the skipped hour", []Window{window(t, "daily", "02:15", "02:45", 0)}, at("2026-03-29 01:30"), false, 0, at("2026-03-30 02:15")},

		// 2026-10-25: 03:00 becomes 02:00, at 01:00 UTC.
		{"night of autumn is an hour longer", []Window{window(t, "sat", "20:00", "06:00", 0)}, at("2026-10-24 20:00"), true, 0, utc("2026-10-25 05:00")},
		{"ends in the hour that comes twice: first", []Window{window(t, "sun", "01:00", "02:30", 0)}, utc("2026-10-25 00:00"), true, 0, utc("2026-10-25 00:30")},
		{"and opens again with the second", []Window{window(t, "sun", "01:00", "02:30", 0)}, utc("2026-10-25 00:45"), false, 0, utc("2026-10-25 01:00")},
		{"to end for good", []Window{window(t, "sun", "01:00", "02:30", 0)}, utc("2026-10-25 01:00"), true, 0, utc("2026-10-25 01:30")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			open, rate, until := Calendar{tc.windows, berlin}.At(tc.now)
			if open != tc.open || rate != tc.rate || !until.Equal(tc.until) {
				t.Errorf("got %v, %d, %v, want %v, %d, %v", open, rate, until, tc.open, tc.rate, tc.until)
			}
		})
	}
}

// TestCalendarAgainstTheClock compares the next change with one found by looking
// at the wall clock every minute, around changes of the zone.
func TestCalendarAgainstTheClock(t *testing.T) {
	zones := []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Tokyo", "UTC"}
	rapid.Check(t, func(r *rapid.T) {
		loc := location(t, rapid.SampledFrom(zones).Draw(r, "zone"))
		c := Calendar{Location: loc}
		for range rapid.IntRange(1, 3).Draw(r, "windows") {
			c.Windows = append(c.Windows, Window{
				Days:  Days(rapid.IntRange(1, 127).Draw(r, "days")),
				Start: TimeOfDay(rapid.IntRange(0, 47).Draw(r, "start") * 30),
				End:   TimeOfDay(rapid.IntRange(0, 48).Draw(r, "end") * 30),
				Rate:  rapid.Int64Range(0, 2).Draw(r, "rate"),
			})
		}
		day := rapid.SampledFrom([]int{86, 87, 95, 96, 248, 249, 297, 304, 66, 276}).Draw(r, "day of the year")
		now := time.Date(2026, 1, day, rapid.IntRange(0, 23).Draw(r, "hour"), rapid.IntRange(0, 59).Draw(r, "minute"), 7, 0, loc)
		open, rate, until := c.At(now)

		limit := now.Add(50 * time.Hour)
		for m := now.Truncate(time.Minute).Add(time.Minute); m.Before(limit); m = m.Add(time.Minute) {
			o, rt := c.stateAt(m)
			switch {
			case (o != open || rt != rate) && !until.Equal(m):
				r.Fatalf("at %v: got a change at %v, want %v", now, until, m)
			case o != open || rt != rate:
				return
			case until.Equal(m):
				r.Fatalf("at %v: got a change at %v, where nothing changes", now, until)
			}
		}
		if !until.IsZero() && until.Before(limit) {
			r.Fatalf("at %v: got a change at %v, want none before %v", now, until, limit)
		}
	})
}

func BenchmarkCalendar(b *testing.B) {
	c := Calendar{[]Window{window(b, "mon-fri", "20:00", "06:00", 0), window(b, "sat,sun", "00:00", "24:00", 1)}, location(b, "Europe/Berlin")}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	b.ReportAllocs()
	for b.Loop() {
		c.At(now)
	}
}
