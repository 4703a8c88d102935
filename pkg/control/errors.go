package control

import (
	"context"
	"errors"
	"net/http"
)

// The classes of error that survive the wire. A Service wraps them, a Client
// returns errors that wrap them.
var (
	// ErrNotFound is returned when a name or a place does not exist.
	ErrNotFound = errors.New("not found")

	// ErrExists is returned when a name is taken.
	ErrExists = errors.New("already exists")

	// ErrBusy is returned when something is in use, or under way already.
	ErrBusy = errors.New("busy")

	// ErrUsage is returned for a request that makes no sense as it stands.
	ErrUsage = errors.New("bad request")

	// ErrUnavailable is returned when the pool cannot do it in its state:
	// failed metadata, no free space, a read-only pool.
	ErrUnavailable = errors.New("not available")

	// ErrNotRunning is returned by a Client whose socket nobody answers.
	ErrNotRunning = errors.New("daemon is not running")
)

// Code names a class of error on the wire.
type Code string

// classes maps each Code to its sentinel and HTTP status. What is in none of
// them is CodeInternal.
var classes = []struct {
	code   Code
	err    error
	status int
}{
	{"not_found", ErrNotFound, http.StatusNotFound},
	{"exists", ErrExists, http.StatusConflict},
	{"busy", ErrBusy, http.StatusConflict},
	{"usage", ErrUsage, http.StatusBadRequest},
	{"unavailable", ErrUnavailable, http.StatusServiceUnavailable},
	{"cancelled", context.Canceled, 499}, // the client went away
	{"timeout", context.DeadlineExceeded, http.StatusGatewayTimeout},
}

// CodeInternal is the code of an error of no class.
const CodeInternal Code = "internal"

// An Error is what a failed request is answered with.
type Error struct {
	Text string `json:"error"`
	Hint string `json:"hint,omitempty"` // what to do about it
	Code Code   `json:"code"`
}

// Error returns the text alone; a command line prints the hint below it.
func (e *Error) Error() string { return e.Text }

// Is reports whether target is the sentinel of the error's code.
func (e *Error) Is(target error) bool {
	for _, c := range classes {
		if c.code == e.Code {
			return c.err == target
		}
	}
	return false
}

// WithHint returns err with a hint for the operator, which travels over the
// wire; nil for nil.
func WithHint(err error, hint string) error {
	if err == nil {
		return nil
	}
	return &hinted{err, hint}
}

// Hint returns what WithHint, here or on the server, attached to err; "" if
// nothing.
func Hint(err error) string {
	var local *hinted
	if errors.As(err, &local) {
		return local.hint
	}
	var remote *Error
	if errors.As(err, &remote) {
		return remote.Hint
	}
	return ""
}

type hinted struct {
	error
	hint string
}

func (h *hinted) Unwrap() error { return h.error }

// toWire returns the error as it is sent, and the HTTP status to send it with.
func toWire(err error) (*Error, int) {
	wire := &Error{Text: err.Error(), Hint: Hint(err), Code: CodeInternal}
	for _, c := range classes {
		if errors.Is(err, c.err) {
			wire.Code = c.code
			return wire, c.status
		}
	}
	return wire, http.StatusInternalServerError
}
