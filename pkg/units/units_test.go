package units

import (
	"encoding"
	"errors"
	"math"
	"testing"
	"time"
)

func TestParseSize(t *testing.T) {
	tests := []struct {
		in   string
		want Size
		text string // what String makes of it
	}{
		{"0", 0, "0"},
		{"512", 512, "512"},
		{"512B", 512, "512"},
		{"64KiB", 64 * KiB, "64KiB"},
		{"1024", KiB, "1KiB"},
		{"200MiB", 200 * MiB, "200MiB"},
		{" 64 GiB ", 64 * GiB, "64GiB"},
		{"1.5TiB", 1536 * GiB, "1536GiB"},
		{"3PiB", 3 * PiB, "3PiB"},
		{"7EiB", 7 * EiB, "7EiB"},
		{"1.000KiB", KiB, "1KiB"},
		{"1kB", 1000, "1kB"},
		{"1KB", 1000, "1kB"},
		{"1000KiB", 1000 * KiB, "1000KiB"},
		{"2MB", 2e6, "2MB"},
		{"4.096kB", 4096, "4KiB"},
		{"1GB", 1e9, "1GB"},
		{"3TB", 3e12, "3TB"},
		{"1PB", 1e15, "1PB"},
		{"9223372036854775807", math.MaxInt64, "9223372036854775807"},
	}
	for _, tt := range tests {
		got, err := ParseSize(tt.in)
		if err != nil || got != tt.want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", tt.in, got, err, tt.want)
		}
		if got.String() != tt.text {
			t.Errorf("Size(%d).String() = %q, want %q", got, got.String(), tt.text)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	size := func(s string) error { _, err := ParseSize(s); return err }
	rate := func(s string) error { _, err := ParseRate(s); return err }
	percent := func(s string) error { _, err := ParsePercent(s); return err }
	duration := func(s string) error { _, err := ParseDuration(s); return err }
	const (
		wantSize     = "must be a size such as 64GiB, 1.5TiB, 200MB or 512"
		wantRate     = "must be a rate such as 100MiB/s"
		wantPercent  = "must be a percentage such as 5%"
		wantDuration = "must be a duration such as 30s, 5m, 24h or 7d"
	)
	tests := []struct {
		parse func(string) error
		in    string
		class error
		want  string
	}{
		{size, "", ErrFormat, wantSize + ` (got "")`},
		{size, "64G", ErrFormat, wantSize + ` (got "64G")`},
		{size, "64gib", ErrFormat, wantSize + ` (got "64gib")`},
		{size, "GiB", ErrFormat, wantSize + ` (got "GiB")`},
		{size, "1.2.3", ErrFormat, wantSize + ` (got "1.2.3")`},
		{size, "1.", ErrFormat, wantSize + ` (got "1.")`},
		{size, ".5KiB", ErrFormat, wantSize + ` (got ".5KiB")`},
		{size, "+1", ErrFormat, wantSize + ` (got "+1")`},
		{size, "1e9", ErrFormat, wantSize + ` (got "1e9")`},
		{size, "0.5", ErrFormat, `must be a whole number of bytes (got "0.5")`},
		{size, "1.0001KiB", ErrFormat, `must be a whole number of bytes (got "1.0001KiB")`},
		{size, "0.1234567890123456789EiB", ErrFormat, `must be a whole number of bytes (got "0.1234567890123456789EiB")`},
		{size, "-1GiB", ErrRange, `must be a size of 0 or more (got "-1GiB")`},
		{size, "8EiB", ErrRange, `must be below 8EiB (got "8EiB")`},
		{size, "9223372036854775808", ErrRange, `must be below 8EiB (got "9223372036854775808")`},
		{size, "99999999999999999999999", ErrRange, `must be below 8EiB (got "99999999999999999999999")`},
		{size, "18446744073709551615PiB", ErrRange, `must be below 8EiB (got "18446744073709551615PiB")`},
		{rate, "", ErrFormat, wantRate + ` (got "")`},
		{rate, "100MiB", ErrFormat, wantRate + ` (got "100MiB")`},
		{rate, "/s", ErrFormat, wantRate + ` (got "/s")`},
		{rate, "1MiB/s/s", ErrFormat, wantRate + ` (got "1MiB/s/s")`},
		{rate, "-1MiB/s", ErrRange, `must be a rate of 0 or more (got "-1MiB/s")`},
		{rate, "-1MiB", ErrRange, `must be a rate of 0 or more (got "-1MiB")`},
		{rate, "8EiB/s", ErrRange, `must be below 8EiB/s (got "8EiB/s")`},
		{percent, "", ErrFormat, wantPercent + ` (got "")`},
		{percent, "%", ErrFormat, wantPercent + ` (got "%")`},
		{percent, "5", ErrFormat, wantPercent + ` (got "5")`},
		{percent, "5%%", ErrFormat, wantPercent + ` (got "5%%")`},
		{percent, "0x5%", ErrFormat, wantPercent + ` (got "0x5%")`},
		{percent, "inf%", ErrFormat, wantPercent + ` (got "inf%")`},
		{percent, "-5%", ErrRange, `must be a percentage of 0% or more (got "-5%")`},
		{duration, "", ErrFormat, wantDuration + ` (got "")`},
		{duration, "5", ErrFormat, wantDuration + ` (got "5")`},
		{duration, "5 minutes", ErrFormat, wantDuration + ` (got "5 minutes")`},
		{duration, "1.5d", ErrFormat, wantDuration + ` (got "1.5d")`},
		{duration, "d", ErrFormat, wantDuration + ` (got "d")`},
		{duration, "1d-1h", ErrFormat, wantDuration + ` (got "1d-1h")`},
		{duration, "+1h", ErrFormat, wantDuration + ` (got "+1h")`},
		{duration, "-5m", ErrRange, `must be a duration of 0 or more (got "-5m")`},
		{duration, "200000d", ErrRange, `must be below 292 years (got "200000d")`},
		{duration, "106751d24h", ErrRange, `must be below 292 years (got "106751d24h")`},
		{duration, "99999999999h", ErrRange, `must be below 292 years (got "99999999999h")`},
	}
	for _, tt := range tests {
		err := tt.parse(tt.in)
		if !errors.Is(err, tt.class) {
			t.Errorf("parse %q: error %v, want one of class %q", tt.in, err, tt.class)
			continue
		}
		if err.Error() != tt.want {
			t.Errorf("parse %q: %s\nwant: %s", tt.in, err, tt.want)
		}
	}
}

func TestParseRate(t *testing.T) {
	tests := []struct {
		in   string
		want Rate
		text string
	}{
		{"0", 0, "0/s"},
		{"0/s", 0, "0/s"},
		{"100MiB/s", Rate(100 * MiB), "100MiB/s"},
		{"1.5 KiB/s", 1536, "1536/s"},
		{"1MB/s", 1e6, "1MB/s"},
	}
	for _, tt := range tests {
		got, err := ParseRate(tt.in)
		if err != nil || got != tt.want || got.String() != tt.text {
			t.Errorf("ParseRate(%q) = %s, %v; want %s", tt.in, got, err, tt.text)
		}
	}
}

func TestParsePercent(t *testing.T) {
	tests := []struct {
		in   string
		want Percent
		text string
	}{
		{"0%", 0, "0%"},
		{"5%", 5, "5%"},
		{"2.50 %", 2.5, "2.5%"},
		{"120%", 120, "120%"},
	}
	for _, tt := range tests {
		got, err := ParsePercent(tt.in)
		if err != nil || got != tt.want || got.String() != tt.text {
			t.Errorf("ParsePercent(%q) = %s, %v; want %s", tt.in, got, err, tt.text)
		}
	}
	if got, want := Percent(25).Fraction(), 0.25; got != want {
		t.Errorf("Percent(25).Fraction() = %v, want %v", got, want)
	}
}

func TestParseDuration(t *testing.T) {
	tests := []struct {
		in   string
		want time.Duration
		text string
	}{
		{"0", 0, "0s"},
		{"30s", 30 * time.Second, "30s"},
		{"90s", 90 * time.Second, "1m30s"},
		{"5m", 5 * time.Minute, "5m"},
		{"1h", time.Hour, "1h"},
		{"1h5s", time.Hour + 5*time.Second, "1h0m5s"},
		{"24h", 24 * time.Hour, "24h"},
		{"7d", 168 * time.Hour, "7d"},
		{"168h", 168 * time.Hour, "7d"},
		{"2d12h", 60 * time.Hour, "2d12h"},
		{"100ms", 100 * time.Millisecond, "100ms"},
		{"0.1ms", 100 * time.Microsecond, "100µs"},
	}
	for _, tt := range tests {
		got, err := ParseDuration(tt.in)
		if err != nil || got.Std() != tt.want || got.String() != tt.text {
			t.Errorf("ParseDuration(%q) = %s, %v; want %s", tt.in, got, err, tt.text)
		}
	}
}

func TestHuman(t *testing.T) {
	tests := []struct {
		in   Size
		want string
	}{
		{0, "0B"},
		{1023, "1023B"},
		{KiB, "1.00KiB"},
		{1536, "1.50KiB"},
		{-1536, "-1.50KiB"},
		{10*MiB + 512*KiB, "10.5MiB"},
		{300 * GiB, "300GiB"},
		{1023 * GiB, "1023GiB"},
		{TiB - 1, "1.00TiB"},
		{1500 * GiB, "1.46TiB"},
		{math.MaxInt64, "8.00EiB"},
	}
	for _, tt := range tests {
		if got := tt.in.Human(); got != tt.want {
			t.Errorf("Size(%d).Human() = %q, want %q", tt.in, got, tt.want)
		}
	}
	if got, want := Rate(102*MiB).Human(), "102MiB/s"; got != want {
		t.Errorf("Rate.Human() = %q, want %q", got, want)
	}
}

func TestQuoteIsShortAndOnOneLine(t *testing.T) {
	long := make([]byte, 5000)
	for i := range long {
		long[i] = '\n'
	}
	got := Quote(string(long))
	if len(got) > 200 {
		t.Errorf("Quote of 5000 bytes has %d", len(got))
	}
	for _, r := range got {
		if r == '\n' {
			t.Fatalf("Quote(newlines) = %s", got)
		}
	}
}

// text is what every type of the package can do.
type text[T any] interface {
	*T
	encoding.TextUnmarshaler
}

// roundTrip fails if a text that T accepts does not survive printing.
func roundTrip[T interface {
	comparable
	encoding.TextMarshaler
}, P text[T]](t *testing.T, in string) {
	t.Helper()
	var first, second T
	if err := P(&first).UnmarshalText([]byte(in)); err != nil {
		var parse *ParseError
		if !errors.As(err, &parse) || parse.Text != in {
			t.Fatalf("unmarshal %q: error %#v, want a *ParseError of that text", in, err)
		}
		return
	}
	printed, err := first.MarshalText()
	if err != nil {
		t.Fatalf("marshal %v: %v", first, err)
	}
	if err := P(&second).UnmarshalText(printed); err != nil || first != second {
		t.Fatalf("%q is %v, printed %q, read back as %v, %v", in, first, printed, second, err)
	}
}

func FuzzRoundTrip(f *testing.F) {
	for _, s := range []string{
		"0", "512", "64GiB", "1.5TiB", "7.999EiB", "100MiB/s", "0.1GB/s", "5%", "0.1%", "1e3%",
		"30s", "7d", "1d12h30m", "-5m", "9223372036854775807ns", "106751d23h47m16.854775807s", "1.5h", "8EiB",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		roundTrip[Size](t, in)
		roundTrip[Rate](t, in)
		roundTrip[Percent](t, in)
		roundTrip[Duration](t, in)
	})
}
