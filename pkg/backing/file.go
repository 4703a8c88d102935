package backing

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// file is the Store on a regular file or a block device. Its descriptor is
// used through pread and pwrite alone, so that it has no position.
type file struct {
	fd       int
	size     int64
	info     Info
	instance string
	guard    guard
	gate     *gate
	// tryMode is how TryReadAt reads; it only ever changes to tryNever.
	tryMode atomic.Int32
	// keepSpace: Zero and Discard must not give space back.
	keepSpace bool
	// direct I/O: granularity of offset and length, and of memory. 0: buffered.
	block, memAlign int
	// What the kernel or the file system turned out not to be able to do.
	noPunch, noZeroRange, noZeroOut, noDiscard atomic.Bool

	closeOnce sync.Once
	closeErr  error
}

const (
	tryNoWait int32 = iota // preadv2 with RWF_NOWAIT
	tryPlain               // a plain pread never waits here (tmpfs)
	tryNever
)

// Size implements Store.
func (f *file) Size() int64 { return f.size }

// Info tells what Open found.
func (f *file) Info() Info { return f.info }

// Deleted reports whether the file has no name any more: when it is closed, it is gone.
func (f *file) Deleted() bool {
	s := f.guard.stripe(nil)
	if !f.guard.enter(s) {
		return false
	}
	defer f.guard.leave(s)
	var st unix.Stat_t
	return unix.Fstat(f.fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 0
}

// Instance implements Store.
func (f *file) Instance() string { return f.instance }

// TryReadAt implements Store. A miss may start the read of the missing pages
// (ext4 does), which makes the ReadAt that follows faster. EAGAIN can also
// mean that a lock of the file was taken (XFS under writers), so false is not
// quite "not cached".
func (f *file) TryReadAt(p []byte, off int64) bool {
	mode := f.tryMode.Load()
	if mode == tryNever || off < 0 || off > f.size-int64(len(p)) {
		return false
	}
	s := f.guard.stripe(p)
	if !f.guard.enter(s) {
		return false
	}
	ok := f.tryRead(p, off, mode)
	f.guard.leave(s)
	return ok
}

func (f *file) tryRead(p []byte, off int64, mode int32) bool {
	if len(p) == 0 {
		return true
	}
	if mode == tryPlain {
		n, err := unix.Pread(f.fd, p, off)
		return err == nil && n == len(p)
	}
	n, errno := preadNoWait(f.fd, p, off)
	if errno == unix.EOPNOTSUPP || errno == unix.ENOSYS {
		f.tryMode.Store(tryNever)
	}
	return errno == 0 && n == len(p)
}

// preadNoWait is preadv2 of one buffer with RWF_NOWAIT. The one of x/sys
// allocates a slice of vectors for each call. The kernel takes the offset as
// two words and ignores the high one on 64-bit machines. The call is announced
// to the scheduler (Syscall6, not RawSyscall6), because a miss may submit the
// read, and submission can wait for a place in the disk's queue.
func preadNoWait(fd int, p []byte, off int64) (int, syscall.Errno) {
	iov := unix.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))}
	n, _, errno := unix.Syscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1,
		uintptr(off), 0, unix.RWF_NOWAIT)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// begin admits a blocking call on [off, off+n): the Store is open, the range
// inside it, ctx alive, and a place among the blocked free. After nil, end
// must follow with the same stripe.
func (f *file) begin(ctx context.Context, s *guardStripe, op string, off, n int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !f.guard.enter(s) {
		return fmt.Errorf("%s %s: %w", op, f.info.Path, ErrClosed)
	}
	if err := CheckRange(op, off, n, f.size); err != nil {
		f.guard.leave(s)
		return err
	}
	if err := f.gate.enter(ctx); err != nil {
		f.guard.leave(s)
		return fmt.Errorf("%s %s: %w", op, f.info.Path, err)
	}
	return nil
}

// beginChange is begin for calls that change the Store.
func (f *file) beginChange(ctx context.Context, s *guardStripe, op string, off, n int64) error {
	if f.info.ReadOnly {
		return fmt.Errorf("%s %s: %w", op, f.info.Path, ErrReadOnly)
	}
	return f.begin(ctx, s, op, off, n)
}

func (f *file) end(s *guardStripe) {
	f.gate.leave()
	f.guard.leave(s)
}

// fail wraps the error of a call with what it tried, and where.
func (f *file) fail(op string, off int64, err error) error {
	return fmt.Errorf("%s %s at %d: %w", op, f.info.Path, off, err)
}

// ReadAt implements Store.
func (f *file) ReadAt(ctx context.Context, p []byte, off int64) error {
	s := f.guard.stripe(p)
	if err := f.begin(ctx, s, "read", off, int64(len(p))); err != nil {
		return err
	}
	err := f.readAt(p, off)
	f.end(s)
	return err
}

func (f *file) readAt(p []byte, off int64) error {
	if f.block != 0 && !f.aligned(p, off) {
		return f.readBounced(p, off)
	}
	return f.readFull(p, off)
}

// WriteAt implements Store.
func (f *file) WriteAt(ctx context.Context, p []byte, off int64) error {
	s := f.guard.stripe(p)
	if err := f.beginChange(ctx, s, "write", off, int64(len(p))); err != nil {
		return err
	}
	err := f.writeAt(p, off)
	f.end(s)
	return err
}

func (f *file) writeAt(p []byte, off int64) error {
	if f.block != 0 && !f.aligned(p, off) {
		return f.writeBounced(p, off)
	}
	return f.writeFull(p, off)
}

// readFull reads until p is full. A short read without an error is the end of
// the file: somebody truncated it.
func (f *file) readFull(p []byte, off int64) error {
	for len(p) > 0 {
		n, err := unix.Pread(f.fd, p, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return f.fail("read", off, err)
		}
		if n == 0 {
			return f.fail("read", off, ErrCutShort)
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// maxBufferedWrite is the most that one system call writes into the page cache.
// The kernel makes folios as large as the writes that fill them, and a later
// small write into a large folio of ext4 goes through the state of each of its
// blocks: in a file filled by writes of 1 MiB, a random write of 4 KiB takes ten
// times as long as in one filled by writes of 64 KiB.
const maxBufferedWrite = 64 << 10

// writeFull writes until p is written. A short write is followed by the error
// that cut it short, usually ENOSPC.
func (f *file) writeFull(p []byte, off int64) error {
	for len(p) > 0 {
		part := p
		if !f.info.Direct && len(part) > maxBufferedWrite {
			// To the next multiple, so that folios are aligned.
			part = part[:maxBufferedWrite-off&(maxBufferedWrite-1)]
		}
		n, err := unix.Pwrite(f.fd, part, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return f.fail("write", off, err)
		}
		if n == 0 {
			return f.fail("write", off, io.ErrShortWrite)
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// Sync implements Store by fdatasync, which is enough in every case. For a
// file it writes the data and whatever metadata a later read needs: the blocks
// that a write into a hole allocated, the change from unwritten to written of a
// preallocated one, and the holes that were punched. It leaves out times. The
// size never changes after creation, and creation syncs file and folder. For a
// device it writes the page cache and flushes the volatile cache of the disk.
//
// An error is reported once by the kernel and then forgotten, while the pages
// that were not written count as clean. So there is no second try.
//
// A file that was cut short under us is ErrCutShort.
func (f *file) Sync(ctx context.Context) error {
	s := f.guard.stripe(nil)
	if err := f.begin(ctx, s, "sync", 0, 0); err != nil {
		return err
	}
	defer f.end(s)
	if f.info.ReadOnly { // nothing can be unsynced by us, and nothing is to be written
		return nil
	}
	for {
		err := unix.Fdatasync(f.fd)
		if err == nil {
			return f.checkLength()
		}
		if err != unix.EINTR { // EINTR: not even begun, nothing was consumed
			return fmt.Errorf("sync %s: %w", f.info.Path, err)
		}
	}
}

// checkLength looks for a file that somebody has truncated.
func (f *file) checkLength() error {
	var st unix.Stat_t
	if f.info.IsDevice {
		return nil
	}
	if err := unix.Fstat(f.fd, &st); err != nil {
		return fmt.Errorf("sync %s: %w", f.info.Path, err)
	}
	if st.Size < f.size {
		return fmt.Errorf("sync %s: %w: it has %d bytes of %d", f.info.Path, ErrCutShort, st.Size, f.size)
	}
	return nil
}

// StartWriteback implements Store. The flag WRITE alone starts write-back of
// dirty pages that are not being written already; with either WAIT flag the
// call would also take, and so hide from Sync, an error of an earlier one. It
// can wait for a place in the disk's queue, and so it passes the gate.
func (f *file) StartWriteback(off, n int64) {
	if f.block != 0 || n <= 0 { // a length of 0 would mean: to the end
		return
	}
	s := f.guard.stripe(nil)
	if f.beginChange(context.Background(), s, "start write-back", off, n) != nil {
		return
	}
	_ = unix.SyncFileRange(f.fd, off, n, unix.SYNC_FILE_RANGE_WRITE) // a hint
	f.end(s)
}

// Close implements Store. Calls that queue get ErrClosed, those inside the
// kernel are waited for: after Close no late write can land.
func (f *file) Close() error {
	f.closeOnce.Do(func() {
		f.guard.shut()
		f.gate.shut()
		f.guard.wait()
		if err := unix.Close(f.fd); err != nil {
			f.closeErr = fmt.Errorf("close %s: %w", f.info.Path, err)
		}
	})
	return f.closeErr
}
