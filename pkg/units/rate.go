package units

import "strings"

// A Rate is a number of bytes per second.
type Rate int64

const perSecond = "/s"

// ParseRate reads a Size followed by "/s"; "0" alone is a rate, too. Errors
// are of type *ParseError.
func ParseRate(s string) (Rate, error) {
	trimmed := strings.TrimSpace(s)
	if trimmed == "0" {
		return 0, nil
	}
	size, found := strings.CutSuffix(trimmed, perSecond)
	if !found {
		// The missing "/s" is the likely slip, but a sign comes first.
		if _, err := parseBytes(trimmed, s, rateWords); err != nil {
			return 0, err
		}
		return 0, &ParseError{Text: s, Must: "a rate such as " + rateWords.example, Err: ErrFormat}
	}
	n, err := parseBytes(size, s, rateWords)
	return Rate(n), err
}

// String returns the rate exactly: "100MiB/s".
func (r Rate) String() string { return Size(r).String() + perSecond }

// Human returns the rate with three significant digits: "97.3MiB/s".
func (r Rate) Human() string { return Size(r).Human() + perSecond }

// MarshalText returns String.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is ParseRate.
func (r *Rate) UnmarshalText(text []byte) error {
	v, err := ParseRate(string(text))
	if err == nil {
		*r = v
	}
	return err
}
