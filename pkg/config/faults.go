package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrInvalid is wrapped by every *Error.
var ErrInvalid = errors.New("invalid configuration")

// A Fault is one thing wrong with a configuration.
type Fault struct {
	Line int    // from 1; 0 if the configuration did not come from a file
	Path string // such as tiers[1].backings[0].size; "" for the file as a whole
	Text string // such as "must be above 0 (got 0)"
}

// String returns "line 12: tiers[1].backings[0].size: must be above 0 (got 0)".
func (f Fault) String() string {
	var b strings.Builder
	if f.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", f.Line)
	}
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.Text)
	return b.String()
}

// An Error is all that is wrong with a configuration, in the order of the file.
type Error struct {
	File   string // "" if the configuration did not come from a file
	Faults []Fault
}

// Error returns a heading and one line for each fault.
func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File + ": ")
	}
	if len(e.Faults) == 1 {
		b.WriteString("1 fault in the configuration")
	} else {
		fmt.Fprintf(&b, "%d faults in the configuration", len(e.Faults))
	}
	for _, f := range e.Faults {
		b.WriteString("\n" + f.String())
	}
	return b.String()
}

// Unwrap returns ErrInvalid.
func (e *Error) Unwrap() error { return ErrInvalid }

// newError returns the faults, sorted, as an error; nil if there are none.
func newError(file string, faults []Fault) error {
	if len(faults) == 0 {
		return nil
	}
	slices.SortStableFunc(faults, func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
	return &Error{File: file, Faults: faults}
}

// path returns list[i].
func path(list string, i int) string { return fmt.Sprintf("%s[%d]", list, i) }

// at returns the path of a key within the mapping at parent.
func at(parent, key string) string {
	if parent == "" {
		return key
	}
	return parent + "." + key
}

// parentOf cuts the last key or index off a path.
func parentOf(p string) string {
	if i := strings.LastIndexAny(p, ".["); i >= 0 {
		return p[:i]
	}
	return ""
}
