package schedule

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Days is a set of weekdays, bit 0 being Monday.
type Days uint8

// Daily is every day of the week.
const Daily Days = 1<<7 - 1

var dayNames = [7]string{"mon", "tue", "wed", "thu", "fri", "sat", "sun"}

// ParseDays reads a comma-separated list of days and ranges of days: "mon-fri",
// "sat,sun", "fri-mon", or "daily". Case does not matter.
func ParseDays(s string) (Days, error) {
	var out Days
	for part := range strings.SplitSeq(strings.ToLower(s), ",") {
		part = strings.TrimSpace(part)
		if part == "daily" {
			out |= Daily
			continue
		}
		from, to, ranged := strings.Cut(part, "-")
		a := slices.Index(dayNames[:], strings.TrimSpace(from))
		b := a
		if ranged {
			b = slices.Index(dayNames[:], strings.TrimSpace(to))
		}
		if a < 0 || b < 0 {
			return 0, fmt.Errorf("days %q: must be daily, days like mon or ranges like mon-fri, with commas between", s)
		}
		for ; a != b; a = (a + 1) % 7 {
			out |= 1 << a
		}
		out |= 1 << b
	}
	return out, nil
}

// Has reports whether d holds w.
func (d Days) Has(w time.Weekday) bool { return d&(1<<((w+6)%7)) != 0 }

// String returns d in the form that ParseDays reads; "" for no day.
func (d Days) String() string {
	if d == Daily {
		return "daily"
	}
	var parts []string
	for i := 0; i < 7; i++ {
		if d&(1<<i) == 0 {
			continue
		}
		j := i
		for j < 6 && d&(1<<(j+1)) != 0 {
			j++
		}
		switch {
		case j-i >= 2:
			parts = append(parts, dayNames[i]+"-"+dayNames[j])
		default:
			parts = append(parts, dayNames[i:j+1]...)
		}
		i = j
	}
	return strings.Join(parts, ",")
}

// TimeOfDay is a time on the wall clock in minutes since midnight, 0 to 1440.
type TimeOfDay int

const minutesPerDay = 24 * 60

// ParseTimeOfDay reads "20:00". "24:00" is the end of the day.
func ParseTimeOfDay(s string) (TimeOfDay, error) {
	hour, minute, ok := strings.Cut(s, ":")
	h, err1 := strconv.ParseUint(hour, 10, 8)
	m, err2 := strconv.ParseUint(minute, 10, 8)
	t := TimeOfDay(h*60 + m)
	if !ok || err1 != nil || err2 != nil || len(minute) != 2 || len(hour) > 2 || m > 59 || t > minutesPerDay {
		return 0, fmt.Errorf("time %q: must be from 00:00 to 24:00", s)
	}
	return t, nil
}

// String returns t in the form that ParseTimeOfDay reads.
func (t TimeOfDay) String() string { return fmt.Sprintf("%02d:%02d", int(t)/60, int(t)%60) }

// Window is a span of the wall clock's day, on the days that it begins on. One
// whose end is not after its start ends on the next day; start and end alike are
// a whole day.
type Window struct {
	Days       Days
	Start, End TimeOfDay
	Rate       int64 // bytes per second while it is open; 0: the default
}

// ParseWindow makes a window of its parts as they are configured.
func ParseWindow(days, start, end string, rate int64) (Window, error) {
	d, err := ParseDays(days)
	if err != nil {
		return Window{}, err
	}
	s, err := ParseTimeOfDay(start)
	if err != nil {
		return Window{}, fmt.Errorf("start: %w", err)
	}
	if s == minutesPerDay {
		return Window{}, fmt.Errorf("start: time %q: must be before 24:00", start)
	}
	e, err := ParseTimeOfDay(end)
	if err != nil {
		return Window{}, fmt.Errorf("end: %w", err)
	}
	if rate < 0 {
		return Window{}, fmt.Errorf("rate: must not be negative")
	}
	return Window{Days: d, Start: s, End: e, Rate: rate}, nil
}

func (w Window) String() string { return fmt.Sprintf("%v %v-%v", w.Days, w.Start, w.End) }

// openAt reports whether the window is open at a time of the wall clock.
func (w Window) openAt(day time.Weekday, minute TimeOfDay) bool {
	yesterday := (day + 6) % 7
	if w.End > w.Start {
		return w.Days.Has(day) && w.Start <= minute && minute < w.End
	}
	return w.Days.Has(day) && minute >= w.Start || w.Days.Has(yesterday) && minute < w.End
}
