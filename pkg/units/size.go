package units

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// A Size is a number of bytes.
type Size int64

// The binary multiples, as in 64*GiB.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
	TiB Size = 1 << 40
	PiB Size = 1 << 50
	EiB Size = 1 << 60
)

type unit struct {
	name string
	size Size
}

// Letter case counts: "Mb" would mean bits to some and bytes to others, so it
// means nothing here.
var (
	iecUnits     = []unit{{"EiB", EiB}, {"PiB", PiB}, {"TiB", TiB}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}}
	decimalUnits = []unit{{"PB", 1e15}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}}
)

// multiplier returns what a suffix stands for.
func multiplier(suffix string) (n uint64, known bool) {
	switch suffix {
	case "", "B":
		return 1, true
	case "KB":
		return 1e3, true
	}
	for _, units := range [][]unit{iecUnits, decimalUnits} {
		for _, u := range units {
			if u.name == suffix {
				return uint64(u.size), true
			}
		}
	}
	return 0, false
}

// ParseSize reads a number of bytes: digits with an optional fraction, then an
// optional unit, which is binary (KiB to EiB) or decimal (kB to PB). The result
// must be a whole number of bytes below 8EiB. Errors are of type *ParseError.
func ParseSize(s string) (Size, error) {
	n, err := parseBytes(s, s, sizeWords)
	return Size(n), err
}

// String returns the size exactly, as a whole number of the unit that takes the
// fewest digits, binary units first: "64GiB", "1536MiB", "3TB", "513".
func (s Size) String() string {
	digits, suffix := strconv.FormatInt(int64(s), 10), ""
	if s == 0 {
		return digits
	}
	for _, units := range [][]unit{iecUnits, decimalUnits} {
		for _, u := range units {
			if s%u.size != 0 {
				continue
			}
			if n := strconv.FormatInt(int64(s/u.size), 10); len(n) < len(digits) {
				digits, suffix = n, u.name
			}
			break // smaller units of the kind take more digits
		}
	}
	return digits + suffix
}

// Human returns the size with three significant digits: "1.46TiB", "512B".
func (s Size) Human() string {
	// Rounding may reach the next unit: 1023.9KiB is 1.00MiB, not 1024KiB.
	for i := len(iecUnits) - 1; i >= 0; i-- {
		v := math.Abs(float64(s)) / float64(iecUnits[i].size)
		if v < 1 && i == len(iecUnits)-1 {
			break
		}
		if v < 1023.5 || i == 0 {
			return sign(s) + threeDigits(v) + iecUnits[i].name
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// MarshalText returns String.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is ParseSize.
func (s *Size) UnmarshalText(text []byte) error {
	v, err := ParseSize(string(text))
	if err == nil {
		*s = v
	}
	return err
}

func sign(s Size) string {
	if s < 0 {
		return "-"
	}
	return ""
}

// threeDigits prints v, at least 1, as 1.23, 12.3 or 1234.
func threeDigits(v float64) string {
	switch {
	case v < 9.995:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v < 99.95:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
}

// quantity words the errors about one type.
type quantity struct{ name, example, limit string }

var (
	sizeWords = quantity{name: "a size", example: "64GiB, 1.5TiB, 200MB or 512", limit: "8EiB"}
	rateWords = quantity{name: "a rate", example: "100MiB/s", limit: "8EiB/s"}
)

// parseBytes reads a number with a unit of bytes. whole is the text that an
// error repeats, of which s may be a part.
func parseBytes(s, whole string, q quantity) (int64, error) {
	fail := func(err error, format string, args ...any) (int64, error) {
		return 0, &ParseError{Text: whole, Must: fmt.Sprintf(format, args...), Err: err}
	}
	s = strings.TrimSpace(s)
	if strings.HasPrefix(s, "-") {
		return fail(ErrRange, "%s of 0 or more", q.name)
	}
	number, unit := splitNumber(s)
	mult, known := multiplier(strings.TrimSpace(unit))
	whole10, fraction, _ := strings.Cut(number, ".")
	if !known || whole10 == "" || strings.Count(number, ".") > 1 || strings.HasSuffix(number, ".") {
		return fail(ErrFormat, "%s such as %s", q.name, q.example)
	}

	// The value is digits * mult / 10^len(fraction), in 128 bits.
	fraction = strings.TrimRight(fraction, "0")
	if len(fraction) > 18 {
		return fail(ErrFormat, "a whole number of bytes")
	}
	digits, err := strconv.ParseUint(whole10+fraction, 10, 64)
	if err != nil {
		return fail(ErrRange, "below %s", q.limit)
	}
	pow := uint64(1)
	for range fraction {
		pow *= 10
	}
	hi, lo := bits.Mul64(digits, mult)
	if hi >= pow {
		return fail(ErrRange, "below %s", q.limit)
	}
	n, rest := bits.Div64(hi, lo, pow)
	if n > math.MaxInt64 {
		return fail(ErrRange, "below %s", q.limit)
	}
	if rest != 0 {
		return fail(ErrFormat, "a whole number of bytes")
	}
	return int64(n), nil
}

// splitNumber cuts s after its leading digits and dots.
func splitNumber(s string) (number, rest string) {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && c != '.' {
			return s[:i], s[i:]
		}
	}
	return s, ""
}
