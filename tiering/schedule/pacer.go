package schedule

import "time"

// PaceReserve is the share of a day's amount that may be taken ahead of its time: what
// the last three hours of a day would get.
const PaceReserve = 1.0 / 8

// Pacer spreads a day's amount over the times of the day at which movement may run, so
// that it is not gone in the morning when the afternoon needs it. What may be taken grows
// evenly with open time, and what is not taken is kept, up to PaceReserve of the whole, for
// when there is more to do. (A token bucket, filled by the calendar.) It limits plans; the
// amount itself is kept by Budget, to the byte.
//
// The zero Pacer has its reserve. It is for one goroutine at a time.
type Pacer struct {
	at    time.Time // level is as of then; zero: not used yet
	level float64   // share of the day's amount that may be taken
	taken int64     // of Allow's last call
}

// Allow returns how many bytes may be taken now, of an amount of perDay. taken is how many
// were taken since the Pacer was made, by anybody.
func (p *Pacer) Allow(now time.Time, c Calendar, perDay, taken int64) int64 {
	if p.at.IsZero() || now.Before(p.at) {
		p.at, p.level, p.taken = now, PaceReserve, taken
	}
	p.level -= float64(taken-p.taken) / float64(perDay)
	p.taken = taken
	for p.at.Before(now) {
		from, to := c.day(p.at)
		until := now
		if to.Before(now) {
			until = to
		}
		if open := c.OpenTime(from, to); open > 0 {
			p.level += float64(c.OpenTime(p.at, until)) / float64(open)
		}
		p.level = min(p.level, PaceReserve)
		p.at = until
	}
	return max(int64(p.level*float64(perDay)), 0)
}

// day returns when the day of t begins and ends on the calendar's wall clock.
func (c Calendar) day(t time.Time) (from, to time.Time) {
	y, m, d := t.In(c.location()).Date()
	return time.Date(y, m, d, 0, 0, 0, 0, c.location()), time.Date(y, m, d+1, 0, 0, 0, 0, c.location())
}

// OpenTime returns for how long between two times a window is open.
func (c Calendar) OpenTime(from, to time.Time) time.Duration {
	var sum time.Duration
	for from.Before(to) {
		open, _, until := c.At(from)
		if until.IsZero() || until.After(to) {
			until = to
		}
		if open {
			sum += until.Sub(from)
		}
		from = until
	}
	return sum
}

// Forecast returns when n bytes will have been moved that begin to move at now, at the
// rates of the windows, or at rate where they have none; the zero time if they never will,
// or not within two weeks. A rate of 0 takes no time.
func (c Calendar) Forecast(now time.Time, n, rate int64) time.Time {
	end := now.Add(14 * 24 * time.Hour)
	for left, at := float64(n), now; at.Before(end); {
		open, r, until := c.At(at)
		if r == 0 {
			r = rate
		}
		if until.IsZero() {
			until = end
		}
		if open {
			if r == 0 || left <= 0 {
				return at
			}
			span := until.Sub(at).Seconds() * float64(r)
			if left <= span {
				return at.Add(time.Duration(left / float64(r) * float64(time.Second)))
			}
			left -= span
		}
		at = until
	}
	return time.Time{}
}
