package simulate

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"tierd/pkg/units"
)

// maxTiers bounds the tiers of a layout.
const maxTiers = 16

// RAID is how the devices of a tier are joined, of which only what a write costs
// matters here.
type RAID string

// The kinds of RAID. The zero RAID is none.
const (
	NoRAID RAID = "none"
	Mirror RAID = "mirror"
	RAID10 RAID = "raid10"
	RAID5  RAID = "raid5"
	RAID6  RAID = "raid6"
)

// penalties are the device operations that a small write makes: one on each copy;
// or data and parity read, and written again.
var penalties = map[RAID]float64{"": 1, NoRAID: 1, Mirror: 2, RAID10: 2, RAID5: 4, RAID6: 6}

// Tier is one tier of a layout.
type Tier struct {
	Name  string
	Time  time.Duration // T_S: service time of one device operation of a read
	Write time.Duration // the same of a write; 0: as Time

	// How much it holds: a share of the extents that the trace touches, bytes, or,
	// of the last tier, all the rest if both are 0.
	Share units.Percent
	Bytes units.Size

	Devices   int        // that share the load; 0: enough, so that nothing ever queues
	RAID      RAID       // of the devices
	Bandwidth units.Rate // of all devices together, for copies; 0: not known
}

// Layout is a choice of tiers, fastest first.
type Layout struct {
	Name  string
	Tiers []Tier
}

// ParseLayout reads a layout from one line of text:
//
//	layout = [name "="] tier { "," tier }
//	tier   = name ":" time ":" size { ":" option }
//	size   = percentage | bytes | "rest"
//	option = "devices=" number | "raid=" (none|mirror|raid10|raid5|raid6)
//	       | "write=" time | "bandwidth=" rate
//
// such as "ssd:2ms:5%,fc:10ms:25%,sata:20.5ms:rest". A layout without a name is
// called after its tiers and sizes. Errors tell every fault.
func ParseLayout(s string) (Layout, error) {
	var l Layout
	rest := s
	if name, after, found := strings.Cut(s, "="); found && !strings.ContainsAny(name, ":,") {
		l.Name, rest = strings.TrimSpace(name), after
		if l.Name == "" {
			return Layout{}, fmt.Errorf("layout %q: no name before =", s)
		}
	}
	var names []string
	var faults []error
	for _, part := range strings.Split(rest, ",") {
		f := strings.Split(part, ":")
		for i := range f {
			f[i] = strings.TrimSpace(f[i])
		}
		if len(f) < 3 {
			faults = append(faults, fmt.Errorf("tier %q: must be NAME:TIME:SIZE, such as ssd:2ms:5%%", part))
			continue
		}
		t, err := NewTier(f[0], f[1], f[2], f[3:]...)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		names = append(names, f[0]+" "+f[2])
		l.Tiers = append(l.Tiers, t)
	}
	if l.Name == "" {
		l.Name = strings.Join(names, " + ")
	}
	if len(faults) == 0 {
		faults = append(faults, l.Validate())
	}
	if err := errors.Join(faults...); err != nil {
		return Layout{}, fmt.Errorf("layout %q: %w", s, err)
	}
	return l, nil
}

// String returns l as ParseLayout reads it, with its name.
func (l Layout) String() string {
	var tiers []string
	for _, t := range l.Tiers {
		tiers = append(tiers, t.String())
	}
	return l.Name + "=" + strings.Join(tiers, ",")
}

// String returns t as ParseLayout reads it.
func (t Tier) String() string {
	parts := []string{t.Name, t.Time.String(), "rest"}
	switch {
	case t.Share > 0:
		parts[2] = t.Share.String()
	case t.Bytes > 0:
		parts[2] = t.Bytes.String()
	}
	if t.Devices > 0 {
		parts = append(parts, "devices="+strconv.Itoa(t.Devices))
	}
	if t.RAID != "" {
		parts = append(parts, "raid="+string(t.RAID))
	}
	if t.Write > 0 {
		parts = append(parts, "write="+t.Write.String())
	}
	if t.Bandwidth > 0 {
		parts = append(parts, "bandwidth="+t.Bandwidth.String())
	}
	return strings.Join(parts, ":")
}

// NewTier returns a tier from the texts of ParseLayout. Errors name the tier.
func NewTier(name, serviceTime, size string, options ...string) (Tier, error) {
	t := Tier{Name: name}
	bad := func(err error) (Tier, error) { return Tier{}, fmt.Errorf("tier %q: %w", name, err) }
	d, err := parseTime(serviceTime)
	if err != nil {
		return bad(err)
	}
	t.Time = d
	switch {
	case size == "rest":
	case strings.HasSuffix(size, "%"):
		p, err := units.ParsePercent(size)
		if err != nil {
			return bad(fmt.Errorf("size: %w", err))
		}
		if t.Share = p; p <= 0 || p > 100 {
			return bad(fmt.Errorf("size must be above 0%% and at most 100%% (got %s)", size))
		}
	default:
		n, err := units.ParseSize(size)
		if err != nil {
			return bad(fmt.Errorf("size must be a percentage, bytes such as 64GiB, or rest: %w", err))
		}
		if t.Bytes = n; n == 0 {
			return bad(errors.New("size must be above 0"))
		}
	}
	for _, o := range options {
		if err := t.set(o); err != nil {
			return bad(err)
		}
	}
	return t, nil
}

// set applies one option.
func (t *Tier) set(option string) error {
	key, value, _ := strings.Cut(option, "=")
	var err error
	switch key {
	case "devices":
		t.Devices, err = strconv.Atoi(value)
		if err != nil || t.Devices < 1 {
			return fmt.Errorf("devices must be a number above 0 (got %q)", value)
		}
	case "raid":
		t.RAID = RAID(value)
		if penalties[t.RAID] == 0 || value == "" {
			return fmt.Errorf("raid must be none, mirror, raid10, raid5 or raid6 (got %q)", value)
		}
	case "write":
		if t.Write, err = parseTime(value); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	case "bandwidth":
		if t.Bandwidth, err = units.ParseRate(value); err != nil || t.Bandwidth == 0 {
			return fmt.Errorf("bandwidth must be a rate above 0 such as 200MB/s (got %q)", value)
		}
	default:
		return fmt.Errorf("option %q is not known; there are devices=, raid=, write= and bandwidth=", option)
	}
	return nil
}

func parseTime(s string) (time.Duration, error) {
	d, err := units.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("time: %w", err)
	}
	if d <= 0 || d.Std() > time.Hour {
		return 0, fmt.Errorf("time must be above 0 and at most 1h (got %q)", s)
	}
	return d.Std(), nil
}

// Validate returns every fault of l joined, or nil.
func (l Layout) Validate() error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(l.Tiers) == 0 || len(l.Tiers) > maxTiers {
		bad("has %d tiers, must have 1 to %d", len(l.Tiers), maxTiers)
	}
	seen := map[string]bool{}
	shares := units.Percent(0)
	for i, t := range l.Tiers {
		if !validName(t.Name) {
			bad("tier %d: no name, or one that is not printable, or has : , or = in it (got %q)", i+1, t.Name)
		}
		if seen[t.Name] {
			bad("tier %q is there twice", t.Name)
		}
		seen[t.Name] = true
		shares += t.Share
		if i > 0 && t.Time < l.Tiers[i-1].Time {
			bad("tier %q is faster than the one before it: fastest first", t.Name)
		}
		if t.Time <= 0 {
			bad("tier %q: time must be above 0", t.Name)
		}
		if t.Share == 0 && t.Bytes == 0 && i < len(l.Tiers)-1 {
			bad("tier %q: only the last can take the rest", t.Name)
		}
		if penalties[t.RAID] == 0 {
			bad("tier %q: raid %q is not known", t.Name, t.RAID)
		}
		if t.RAID != "" && t.Devices == 0 {
			bad("tier %q: raid needs devices=", t.Name)
		}
	}
	if shares > 100+1e-6 {
		bad("the sizes add up to %s, above 100%%", shares)
	}
	if !validName(l.Name) {
		bad("the layout's name must be printable, without : , and = (got %q)", l.Name)
	}
	return errors.Join(faults...)
}

func validName(s string) bool {
	return s != "" && s == strings.TrimSpace(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return !strconv.IsPrint(r) || strings.ContainsRune(":,=", r)
	})
}

// queues reports whether any tier's service depends on the arrival rate.
func (l Layout) queues() bool {
	for _, t := range l.Tiers {
		if t.Devices > 0 {
			return true
		}
	}
	return false
}

// slots returns how many extents of the given size each tier holds, of total that
// the trace touches. It is an error if they do not hold all.
func (l Layout) slots(total int, extentSize int64) ([]int64, error) {
	out := make([]int64, len(l.Tiers))
	sum := int64(0)
	for i, t := range l.Tiers {
		switch {
		case t.Share > 0:
			out[i] = int64(t.Share.Fraction()*float64(total) + 1e-6)
		case t.Bytes > 0:
			// More than all never makes a difference, but could overflow a sum.
			out[i] = min(int64(t.Bytes)/extentSize, int64(total))
		default:
			out[i] = int64(total)
		}
		sum += out[i]
	}
	if sum < int64(total) {
		return nil, fmt.Errorf("layout %q holds %d extents, the trace touches %d: give the last tier the rest", l.Name, sum, total)
	}
	return out, nil
}
