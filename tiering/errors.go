package tiering

import (
	"errors"
	"fmt"
	"syscall"

	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// Errors of the pool. What a client is told over NBD follows from the errno a
// sentinel unwraps to.
var (
	// ErrNoSpace is returned by a write that needs a slot when no backing that
	// may take new extents has one left.
	ErrNoSpace = error(&coded{"pool is full", syscall.ENOSPC})
	// ErrBackingFailed is returned by I/O on, and by flushes that cover
	// unsynced data of, a backing that failed to make written data durable.
	ErrBackingFailed = error(&coded{"backing has failed", syscall.EIO})
	// ErrBackingMissing is returned by I/O on a backing that was not there when
	// the pool was opened.
	ErrBackingMissing = error(&coded{"backing is missing", syscall.EIO})
	// ErrReadOnly is returned by changes of a read-only volume.
	ErrReadOnly = error(&coded{"volume is read-only", syscall.EPERM})
	// ErrClosed is returned by calls on a pool or a volume that is closed or
	// being deleted.
	ErrClosed = error(&coded{"volume is closed", syscall.ESHUTDOWN})
	// ErrNotSupported is returned by a zeroing that was to be fast and would not be.
	ErrNotSupported = error(&coded{"zeroes would have to be written", syscall.ENOTSUP})
	// ErrOutOfRange is returned for a range past the end of a volume.
	ErrOutOfRange = error(&coded{"range is outside the volume", syscall.EINVAL})

	// ErrMetadataFailed is returned by whatever needs a change of the extent
	// map after a commit has failed once.
	ErrMetadataFailed = extentmap.ErrMetadataFailed
	// ErrLocked is returned when another process has the metadata open.
	ErrLocked = extentmap.ErrLocked
	// ErrNoMetadata is returned when there is no metadata file.
	ErrNoMetadata = extentmap.ErrNotExist

	// ErrNotFound is returned when no volume or backing has the name given.
	ErrNotFound = errors.New("not found")
	// ErrExists is returned when the name given is taken.
	ErrExists = errors.New("exists already")
	// ErrBusy is returned when something is in use and force was not given.
	ErrBusy = errors.New("in use")
	// ErrLossNotAccepted is returned by ForgetBacking when data would be lost and
	// nobody has accepted that.
	ErrLossNotAccepted = errors.New("the loss is not accepted")
	// ErrInvalid is returned for an argument that makes no sense.
	ErrInvalid = errors.New("invalid")
	// ErrRefused is wrapped by every refusal to create or open a pool because
	// of what is found on a backing or in the metadata.
	ErrRefused = errors.New("refused")
)

// coded is a sentinel that also is an errno.
type coded struct {
	text  string
	errno syscall.Errno
}

func (e *coded) Error() string { return e.text }
func (e *coded) Unwrap() error { return e.errno }

// classed is an error with a class that one can test for and that its text, which
// an operator reads, need not repeat.
type classed struct {
	error
	class error
}

func (e *classed) Unwrap() []error { return []error{e.error, e.class} }

// advise adds to an error of the metadata file what to do about it.
func advise(err error) error {
	switch {
	case errors.Is(err, extentmap.ErrNewerFormat), errors.Is(err, ondisk.ErrNewerFormat):
		return fmt.Errorf("%w; use the version of tierd that wrote it, or a later one", err)
	case errors.Is(err, extentmap.ErrReadOnlyFormat), errors.Is(err, ondisk.ErrReadOnlyFormat):
		return fmt.Errorf("%w; use the version of tierd that wrote it, or a later one, or start with --read-only", err)
	case errors.Is(err, extentmap.ErrCorrupt), errors.Is(err, extentmap.ErrNotBolt):
		return fmt.Errorf("%w; tierctl pool check says what is damaged, tierctl pool rebuild makes the metadata anew from the backings", err)
	}
	return err
}

func refuse(format string, args ...any) error {
	return &classed{fmt.Errorf(format, args...), ErrRefused}
}

func invalid(format string, args ...any) error {
	return &classed{fmt.Errorf(format, args...), ErrInvalid}
}

func busy(format string, args ...any) error {
	return &classed{fmt.Errorf(format, args...), ErrBusy}
}
