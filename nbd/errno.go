package nbd

import (
	"context"
	"errors"
	"syscall"

	"tierd/nbd/wire"
)

// Errors that Devices and Exports return to say what a client is to be told.
var (
	// ErrNoExport is returned when there is no export of that name.
	ErrNoExport = errors.New("no such export")
	// ErrForbidden is returned when the export exists and may not be used now.
	ErrForbidden = errors.New("export may not be used")
	// ErrReadOnly is returned for a change of something that cannot be changed.
	ErrReadOnly = errors.New("read-only")
	// ErrNoSpace is returned when a change needs space that is not there.
	ErrNoSpace = errors.New("no space left")
	// ErrNotSupported is returned by a zeroing that was to be fast and would not be.
	ErrNotSupported = errors.New("not supported")
	// ErrShutdown is returned when the service is going away.
	ErrShutdown = errors.New("shutting down")
)

// errPanic stands for a panic in a Device; the connection is closed after it.
var errPanic = errors.New("panic in device")

// errnoOf is the only place where an error becomes what the wire carries. What
// is not known is EIO: the client must never take a failure for a success.
func errnoOf(err error) wire.Errno {
	switch {
	case err == nil:
		return wire.OK
	case errors.Is(err, context.Canceled), errors.Is(err, ErrShutdown):
		return wire.ESHUTDOWN
	case errors.Is(err, ErrNoSpace):
		return wire.ENOSPC
	case errors.Is(err, ErrNotSupported):
		return wire.ENOTSUP
	case errors.Is(err, ErrReadOnly), errors.Is(err, ErrForbidden):
		return wire.EPERM
	}
	var no syscall.Errno
	if !errors.As(err, &no) {
		return wire.EIO
	}
	switch no {
	case syscall.EPERM, syscall.EROFS:
		return wire.EPERM
	case syscall.ENOMEM:
		return wire.ENOMEM
	case syscall.EINVAL:
		return wire.EINVAL
	case syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG:
		return wire.ENOSPC
	case syscall.EOVERFLOW:
		return wire.EOVERFLOW
	case syscall.ENOTSUP:
		return wire.ENOTSUP
	case syscall.ESHUTDOWN:
		return wire.ESHUTDOWN
	}
	return wire.EIO
}
