package units

import (
	"math"
	"strconv"
	"strings"
)

// A Percent is a share in hundredths: Percent(5) is "5%". It may be above 100;
// where that makes no sense, whoever uses it says so.
type Percent float64

// ParsePercent reads digits with an optional fraction, then "%". Errors are of
// type *ParseError.
func ParsePercent(s string) (Percent, error) {
	trimmed := strings.TrimSpace(s)
	if strings.HasPrefix(trimmed, "-") {
		return 0, &ParseError{Text: s, Must: "a percentage of 0% or more", Err: ErrRange}
	}
	number, found := strings.CutSuffix(trimmed, "%")
	digits, rest := splitNumber(strings.TrimSpace(number))
	v, err := strconv.ParseFloat(digits, 64)
	switch {
	case !found, rest != "", digits == "", err != nil && !math.IsInf(v, 0):
		return 0, &ParseError{Text: s, Must: "a percentage such as 5%", Err: ErrFormat}
	case err != nil:
		return 0, &ParseError{Text: s, Must: "a percentage of a lesser number", Err: ErrRange}
	}
	return Percent(v), nil
}

// Fraction returns the share as a number: 0.05 for 5%.
func (p Percent) Fraction() float64 { return float64(p) / 100 }

// String returns the percentage exactly: "2.5%".
func (p Percent) String() string { return strconv.FormatFloat(float64(p), 'f', -1, 64) + "%" }

// MarshalText returns String.
func (p Percent) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is ParsePercent.
func (p *Percent) UnmarshalText(text []byte) error {
	v, err := ParsePercent(string(text))
	if err == nil {
		*p = v
	}
	return err
}
