package backing

import (
	"errors"
	"fmt"
	"syscall"
)

var (
	// ErrInUse is returned by Open when another process, or this one, holds
	// the backing, or when a device is mounted.
	ErrInUse = errors.New("backing is in use")
	// ErrReadOnly is returned by every call that would change a Store that
	// was opened read-only.
	ErrReadOnly = errors.New("backing is opened read-only")
	// ErrCutShort is returned by ReadAt and Sync when the file is shorter than the
	// Store: what was behind its end is lost, and the next write there would make
	// zeroes of it.
	ErrCutShort = errors.New("backing was cut short")
)

// CheckRange returns nil if [off, off+n) lies inside [0, size), and otherwise
// an error that wraps ErrOutOfRange and names op. Stores of other packages
// use it too, so that all of them refuse alike. n may be 0.
func CheckRange(op string, off, n, size int64) error {
	if off >= 0 && n >= 0 && off <= size-n {
		return nil
	}
	return fmt.Errorf("%s %d bytes at %d of %d: %w", op, n, off, size, ErrOutOfRange)
}

// isUnsupported reports whether a system call said that this file, device or
// kernel cannot do it at all, as against having failed at it.
func isUnsupported(err error) bool {
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.ENOTTY)
}
