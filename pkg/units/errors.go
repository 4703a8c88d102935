package units

import (
	"errors"
	"fmt"
	"strconv"
)

var (
	// ErrFormat is wrapped by a ParseError for text that is not of the form
	// asked for.
	ErrFormat = errors.New("not understood")

	// ErrRange is wrapped by a ParseError for a number that is negative or
	// does not fit.
	ErrRange = errors.New("out of range")
)

// A ParseError says what a text must be and what it is.
type ParseError struct {
	Text string // as it was given
	Must string // reads on after "must be "
	Err  error  // ErrFormat or ErrRange
}

// Error returns `must be a size such as 64GiB (got "64G")`.
func (e *ParseError) Error() string {
	return fmt.Sprintf("must be %s (got %s)", e.Must, Quote(e.Text))
}

// Unwrap returns ErrFormat or ErrRange.
func (e *ParseError) Unwrap() error { return e.Err }

// quoteLimit is how many bytes of a foreign text an error message repeats.
const quoteLimit = 64

// Quote returns s in quotes and on one line, cut off after 64 bytes, for
// messages that repeat what was given.
func Quote(s string) string {
	if len(s) <= quoteLimit {
		return strconv.Quote(s)
	}
	return fmt.Sprintf("%s... of %d bytes", strconv.Quote(s[:quoteLimit]), len(s))
}
