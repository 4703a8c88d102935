package units

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// A Duration is a time.Duration that can be written in days: "7d", "1d12h".
type Duration time.Duration

const (
	day           = 24 * time.Hour
	durationWords = "a duration such as 30s, 5m, 24h or 7d"
	tooLong       = "below 292 years"
)

// ParseDuration reads what time.ParseDuration reads, without a sign, after an
// optional whole number of days. A day has 24 hours. Errors are of type
// *ParseError.
func ParseDuration(s string) (Duration, error) {
	fail := func(err error, must string) (Duration, error) {
		return 0, &ParseError{Text: s, Must: must, Err: err}
	}
	rest := strings.TrimSpace(s)
	if strings.HasPrefix(rest, "-") {
		return fail(ErrRange, "a duration of 0 or more")
	}
	if rest == "" || strings.HasPrefix(rest, "+") {
		return fail(ErrFormat, durationWords)
	}

	var total time.Duration
	if days, after, found := strings.Cut(rest, "d"); found {
		number, junk := splitNumber(days)
		if junk != "" || number == "" || strings.Contains(number, ".") {
			return fail(ErrFormat, durationWords)
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n > int64(math.MaxInt64/day) {
			return fail(ErrRange, tooLong)
		}
		total, rest = time.Duration(n)*day, after
		if rest == "" {
			return Duration(total), nil
		}
		if rest[0] == '-' || rest[0] == '+' {
			return fail(ErrFormat, durationWords)
		}
	}
	more, err := time.ParseDuration(rest)
	if err != nil {
		// time.ParseDuration does not tell what is malformed from what is too
		// large. The latter is good again once its digits are small.
		if _, again := time.ParseDuration(smallDigits(rest)); again == nil {
			return fail(ErrRange, tooLong)
		}
		return fail(ErrFormat, durationWords)
	}
	if more > math.MaxInt64-total {
		return fail(ErrRange, tooLong)
	}
	return Duration(total + more), nil
}

// smallDigits replaces each run of digits in s by "1".
func smallDigits(s string) string {
	var b strings.Builder
	inDigits := false
	for _, r := range s {
		isDigit := r >= '0' && r <= '9'
		switch {
		case !isDigit:
			b.WriteRune(r)
		case !inDigits:
			b.WriteByte('1')
		}
		inDigits = isDigit
	}
	return b.String()
}

// Std returns the duration as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String returns the duration exactly, without the parts that are zero, and in
// days from 48 hours on: "90s" is "1m30s", "168h" is "7d".
func (d Duration) String() string {
	std := time.Duration(d)
	if std < 2*day {
		return trimZeroParts(std)
	}
	days := strconv.FormatInt(int64(std/day), 10) + "d"
	if rest := std % day; rest != 0 {
		return days + trimZeroParts(rest)
	}
	return days
}

// trimZeroParts prints d like time.Duration does, but "5m" for "5m0s".
func trimZeroParts(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText returns String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is ParseDuration.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := ParseDuration(string(text))
	if err == nil {
		*d = v
	}
	return err
}
