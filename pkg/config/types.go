package config

import (
	"fmt"
	"log/slog"
	"math/bits"
	"net"
	"strconv"
	"strings"
	"time"

	"tierd/pkg/units"
)

// An ExtentSize is a pool's extent size in bytes; 0 means auto.
type ExtentSize units.Size

// Limits of an extent size; it is a power of two between them.
const (
	MinExtentSize = 64 * units.KiB
	MaxExtentSize = 64 * units.MiB
)

// Limits of an automatic extent size, and the number of extents it aims at.
const (
	minAutoExtentSize = 256 * units.KiB
	maxAutoExtentSize = 4 * units.MiB
	autoExtents       = 4 << 20
)

const autoWord = "auto"

// AutoExtentSize returns what `extent_size: auto` means for a pool of this many
// bytes: the smallest power of two from 256KiB to 4MiB that cuts the pool into
// no more than 4,194,304 extents, and 4MiB if none does. Small extents place
// better; many of them need memory.
func AutoExtentSize(poolBytes int64) units.Size {
	for size := minAutoExtentSize; size < maxAutoExtentSize; size *= 2 {
		if poolBytes <= int64(size)*autoExtents {
			return size
		}
	}
	return maxAutoExtentSize
}

// Resolve returns the size in bytes, for a pool of poolBytes if it is auto.
func (e ExtentSize) Resolve(poolBytes int64) units.Size {
	if e == 0 {
		return AutoExtentSize(poolBytes)
	}
	return units.Size(e)
}

// valid reports whether the extent size is one that a pool can have.
func (e ExtentSize) valid() bool {
	size := units.Size(e)
	return size >= MinExtentSize && size <= MaxExtentSize && bits.OnesCount64(uint64(size)) == 1
}

func (e ExtentSize) String() string {
	if e == 0 {
		return autoWord
	}
	return units.Size(e).String()
}

// UnmarshalText reads "auto" or a size. A size of 0 is refused here, since it
// would look like auto later on.
func (e *ExtentSize) UnmarshalText(text []byte) error {
	if string(text) == autoWord {
		*e = 0
		return nil
	}
	size, err := units.ParseSize(string(text))
	if err != nil || !ExtentSize(size).valid() {
		return fmt.Errorf("must be auto or a power of two from %s to %s (got %s)", MinExtentSize, MaxExtentSize, units.Quote(string(text)))
	}
	*e = ExtentSize(size)
	return nil
}

// Media is a starting point for the cost model of a tier.
type Media string

// The media; an empty Media leaves everything to measurement.
const (
	SSD Media = "ssd"
	HDD Media = "hdd"
)

// UnmarshalText reads ssd or hdd.
func (m *Media) UnmarshalText(text []byte) error {
	return oneOf(m, text, SSD, HDD)
}

// OnFull is how long a write that finds no room waits for some; 0: it fails at
// once.
type OnFull time.Duration

const maxOnFull = 24 * time.Hour

// ParseOnFull reads "error", or "wait" and a duration: "wait 60s".
func ParseOnFull(s string) (OnFull, error) {
	bad := fmt.Errorf(`must be error, or wait and a time up to %s, as in "wait 60s" (got %s)`, units.Duration(maxOnFull), units.Quote(s))
	if s == "error" {
		return 0, nil
	}
	text, found := strings.CutPrefix(s, "wait ")
	if !found {
		return 0, bad
	}
	d, err := units.ParseDuration(text)
	if err != nil || d <= 0 || time.Duration(d) > maxOnFull {
		return 0, bad
	}
	return OnFull(d), nil
}

// UnmarshalText is ParseOnFull.
func (o *OnFull) UnmarshalText(text []byte) (err error) {
	*o, err = ParseOnFull(string(text))
	return err
}

func (o OnFull) String() string {
	if o == 0 {
		return "error"
	}
	return "wait " + units.Duration(o).String()
}

// MarshalText returns String.
func (o OnFull) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// TLSMode says whether NBD clients may or must use TLS.
type TLSMode string

// The modes of nbd.tls.
const (
	TLSOff     TLSMode = "off"
	TLSAllow   TLSMode = "allow"
	TLSRequire TLSMode = "require"
)

// UnmarshalText reads off, allow or require.
func (m *TLSMode) UnmarshalText(text []byte) error {
	return oneOf(m, text, TLSOff, TLSAllow, TLSRequire)
}

// SameHost says what to do about file systems of this host on volumes that it serves
// itself, whose memory the daemon must not wait for.
type SameHost string

// The values of same_host.
const (
	SameHostOff    SameHost = "off"
	SameHostWarn   SameHost = "warn"   // protect the daemon as far as it may, and tell what it may not
	SameHostStrict SameHost = "strict" // do not start without all of it
)

// UnmarshalText reads off, warn or strict.
func (h *SameHost) UnmarshalText(text []byte) error {
	return oneOf(h, text, SameHostOff, SameHostWarn, SameHostStrict)
}

// A Level is the least severity that is logged. It is a slog.Leveler.
type Level slog.Level

var levels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

// Level implements slog.Leveler.
func (l Level) Level() slog.Level { return slog.Level(l) }

// UnmarshalText reads debug, info, warn or error.
func (l *Level) UnmarshalText(text []byte) error {
	level, ok := levels[strings.ToLower(string(text))]
	if !ok {
		return fmt.Errorf("must be debug, info, warn or error (got %s)", units.Quote(string(text)))
	}
	*l = Level(level)
	return nil
}

func (l Level) String() string { return strings.ToLower(l.Level().String()) }

// oneOf sets *v to the text if it is one of words.
func oneOf[T ~string](v *T, text []byte, words ...T) error {
	names := make([]string, len(words))
	for i, w := range words {
		if string(text) == string(w) {
			*v = w
			return nil
		}
		names[i] = string(w)
	}
	last := len(names) - 1
	return fmt.Errorf("must be %s or %s (got %s)", strings.Join(names[:last], ", "), names[last], units.Quote(string(text)))
}

// A Listener is an address to listen on, as net.Listen takes it.
type Listener struct {
	Network string // unix or tcp
	Address string // an absolute path, or host:port
}

// UnmarshalText reads "unix:/path" or "tcp:host:port".
func (l *Listener) UnmarshalText(text []byte) error {
	network, address, found := strings.Cut(string(text), ":")
	if !found || network != "unix" && network != "tcp" || address == "" {
		return fmt.Errorf(`must be "unix:/path" or "tcp:host:port" (got %s)`, units.Quote(string(text)))
	}
	*l = Listener{Network: network, Address: address}
	return nil
}

func (l Listener) String() string { return l.Network + ":" + l.Address }

// MarshalText returns String.
func (l Listener) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// loopback reports whether host can be reached from this machine alone.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Days is a set of weekdays: bit 1<<time.Monday and so on.
type Days uint8

// EveryDay is the set of all weekdays.
const EveryDay Days = 1<<7 - 1

const (
	dailyWord = "daily"
	dayWords  = `days such as "mon-fri", "sat,sun" or "daily"`
)

var dayNames = [7]string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// Has reports whether d is in the set.
func (s Days) Has(d time.Weekday) bool { return s&(1<<d) != 0 }

// UnmarshalText reads "daily" or a list of days and of ranges of days, which
// may go past the weekend: "mon-fri", "sat,sun", "fri-mon,wed".
func (s *Days) UnmarshalText(text []byte) error {
	bad := fmt.Errorf("must be %s (got %s)", dayWords, units.Quote(string(text)))
	var set Days
	for part := range strings.SplitSeq(string(text), ",") {
		if part = strings.TrimSpace(part); strings.EqualFold(part, dailyWord) {
			set = EveryDay
			continue
		}
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, last := weekday(from), weekday(to)
		if first < 0 || last < 0 {
			return bad
		}
		for d := first; ; d = (d + 1) % 7 {
			set |= 1 << d
			if d == last {
				break
			}
		}
	}
	*s = set
	return nil
}

// weekday returns the number of a day's name, Sunday being 0, or -1.
func weekday(name string) int {
	for i, n := range dayNames {
		if strings.EqualFold(strings.TrimSpace(name), n) {
			return i
		}
	}
	return -1
}

// String returns the days from Monday on, in a form UnmarshalText reads.
func (s Days) String() string {
	if s == EveryDay {
		return dailyWord
	}
	var parts []string
	for i := 1; i <= 7; i++ {
		if !s.Has(time.Weekday(i % 7)) {
			continue
		}
		first := i
		for i < 7 && s.Has(time.Weekday((i+1)%7)) {
			i++
		}
		switch name := dayNames[first%7]; i - first {
		case 0:
			parts = append(parts, name)
		case 1:
			parts = append(parts, name, dayNames[i%7])
		default:
			parts = append(parts, name+"-"+dayNames[i%7])
		}
	}
	return strings.Join(parts, ",")
}

// A TimeOfDay is a number of minutes since midnight, up to 24:00.
type TimeOfDay int

// UnmarshalText reads "HH:MM" or "H:MM", from 0:00 to 24:00.
func (t *TimeOfDay) UnmarshalText(text []byte) error {
	hour, minute, found := strings.Cut(string(text), ":")
	h, errHour := strconv.ParseUint(hour, 10, 8)
	m, errMinute := strconv.ParseUint(minute, 10, 8)
	total := TimeOfDay(h*60 + m)
	if !found || errHour != nil || errMinute != nil || len(hour) > 2 || len(minute) != 2 || m > 59 || total > 24*60 {
		return fmt.Errorf(`must be a time such as "20:00", up to "24:00" (got %s)`, units.Quote(string(text)))
	}
	*t = total
	return nil
}

func (t TimeOfDay) String() string { return fmt.Sprintf("%02d:%02d", int(t)/60, int(t)%60) }
