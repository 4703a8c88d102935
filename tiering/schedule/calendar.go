package schedule

import "time"

// Calendar says when background work may run. Without windows it always may. Where
// windows overlap, the one listed first sets the rate.
type Calendar struct {
	Windows  []Window
	Location *time.Location // whose wall clock the windows are read from; nil: local time
}

func (c Calendar) location() *time.Location {
	if c.Location == nil {
		return time.Local
	}
	return c.Location
}

// At returns whether a window is open at now, its rate in bytes per second (0: the
// default applies), and when either changes next; the zero time if never.
//
// A window is open whenever the wall clock shows a time within it. On the day that
// daylight saving begins, one that lies in the skipped hour does not open, and one
// that starts there opens when the hour is skipped; on the day it ends, the hour
// that comes twice counts twice.
func (c Calendar) At(now time.Time) (open bool, rate int64, until time.Time) {
	open, rate = c.stateAt(now)
	if len(c.Windows) == 0 {
		return open, rate, time.Time{}
	}

	// Something can change where a window begins or ends, at midnight, or where the
	// wall clock jumps. A week repeats itself, two days more are for its ends.
	y, m, d := now.In(c.location()).Date()
	for day := range 10 {
		var next time.Time
		consider := func(t time.Time) {
			if !t.After(now) || !next.IsZero() && !t.Before(next) {
				return
			}
			if o, r := c.stateAt(t); o != open || r != rate {
				next = t
			}
		}
		for _, w := range c.Windows {
			c.eachInstant(y, m, d+day, w.Start, consider)
			c.eachInstant(y, m, d+day, w.End%minutesPerDay, consider)
		}
		c.eachInstant(y, m, d+day, 0, consider)
		noon := time.Date(y, m, d+day, 12, 0, 0, 0, c.location())
		start, end := noon.ZoneBounds()
		consider(start)
		if !end.IsZero() && end.Sub(noon) < 12*time.Hour {
			consider(end)
		}
		if !next.IsZero() {
			return open, rate, next
		}
	}
	return open, rate, time.Time{}
}

func (c Calendar) stateAt(t time.Time) (open bool, rate int64) {
	if len(c.Windows) == 0 {
		return true, 0
	}
	t = t.In(c.location())
	minute := TimeOfDay(t.Hour()*60 + t.Minute())
	for _, w := range c.Windows {
		if w.openAt(t.Weekday(), minute) {
			return true, w.Rate
		}
	}
	return false, 0
}

// eachInstant calls fn with every moment at which the wall clock shows minute on
// the given day: none if it is skipped, two if it comes twice.
func (c Calendar) eachInstant(y int, m time.Month, d int, minute TimeOfDay, fn func(time.Time)) {
	utc := time.Date(y, m, d, int(minute)/60, int(minute)%60, 0, 0, time.UTC)
	previous := -1 << 31
	for _, around := range []time.Duration{-26 * time.Hour, 26 * time.Hour} {
		_, offset := utc.Add(around).In(c.location()).Zone()
		if offset == previous {
			continue
		}
		previous = offset
		t := utc.Add(-time.Duration(offset) * time.Second)
		if _, o := t.In(c.location()).Zone(); o == offset {
			fn(t.In(c.location()))
		}
	}
}
