package nbd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"tierd/nbd/wire"
)

func contextWithPatience() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func TestErrnoOf(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want wire.Errno
	}{
		{nil, wire.OK},
		{ErrNoSpace, wire.ENOSPC}, {fmt.Errorf("write extent: %w", ErrNoSpace), wire.ENOSPC},
		{ErrReadOnly, wire.EPERM}, {ErrForbidden, wire.EPERM}, {ErrShutdown, wire.ESHUTDOWN},
		{context.Canceled, wire.ESHUTDOWN}, {context.DeadlineExceeded, wire.EIO},
		{syscall.ENOSPC, wire.ENOSPC}, {syscall.EDQUOT, wire.ENOSPC}, {syscall.EFBIG, wire.ENOSPC},
		{&os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}, wire.ENOSPC},
		{syscall.EPERM, wire.EPERM}, {syscall.EROFS, wire.EPERM}, {syscall.EINVAL, wire.EINVAL},
		{syscall.ENOMEM, wire.ENOMEM}, {syscall.EOVERFLOW, wire.EOVERFLOW}, {syscall.ENOTSUP, wire.ENOTSUP},
		{syscall.EOPNOTSUPP, wire.ENOTSUP}, {syscall.ESHUTDOWN, wire.ESHUTDOWN},
		{syscall.EIO, wire.EIO}, {syscall.ENOENT, wire.EIO}, {syscall.EAGAIN, wire.EIO},
		{errors.New("anything"), wire.EIO}, {errPanic, wire.EIO},
	} {
		if got := errnoOf(tc.err); got != tc.want {
			t.Errorf("%v: got %s, want %s", tc.err, wire.ErrnoName(got), wire.ErrnoName(tc.want))
		}
	}
}
