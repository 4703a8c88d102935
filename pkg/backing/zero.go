package backing

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// zeroStep bounds what one call to the kernel zeroes: it holds the inode
	// lock, and every read and write of the file waits for that.
	zeroStep = 8 << 20
	// zeroOutAlign is the alignment of what BLKZEROOUT gets. It drops the page
	// cache of its range, which must not cut a page that holds other data.
	zeroOutAlign = 4096
)

var zeroes = alignedBuffer(bounceSize)

// Zero implements Store. On a sparse file it punches a hole, which gives the
// space back; on a preallocated one it marks the range unwritten, which keeps
// it; on a direct device it is BLKZEROOUT, which the kernel guarantees to read as
// zeroes. Where any of these is refused, zeroes are written, as they are on a
// buffered device: there BLKZEROOUT drops the page cache of the range first, with
// writes that were answered, and a kill in the middle, or an error, leaves what the
// disk had before them. BLKDISCARD is never used: what a discarded range reads as
// is up to the disk.
func (f *file) Zero(ctx context.Context, off, n int64) error {
	s := f.guard.stripe(nil)
	if err := f.beginChange(ctx, s, "zero", off, n); err != nil {
		return err
	}
	defer f.end(s)
	return f.steps(ctx, off, n, f.zeroPart)
}

// steps calls fn for pieces of [off, off+n) that are aligned to zeroStep, and
// looks at ctx in between.
func (f *file) steps(ctx context.Context, off, n int64, fn func(off, n int64) error) error {
	for n > 0 {
		part := min(n, zeroStep-off%zeroStep)
		if err := fn(off, part); err != nil {
			return err
		}
		off, n = off+part, n-part
		if err := ctx.Err(); err != nil && n > 0 {
			return err
		}
	}
	return nil
}

func (f *file) zeroPart(off, n int64) error {
	if f.info.IsDevice {
		return f.zeroDevice(off, n)
	}
	if !f.keepSpace {
		done, err := f.fallocate(&f.noPunch, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if done || err != nil {
			return wrapZero(f, off, err)
		}
	}
	done, err := f.fallocate(&f.noZeroRange, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	if done || err != nil {
		return wrapZero(f, off, err)
	}
	return f.writeZeroes(off, n)
}

// ZeroWrites reports whether Zero may have to write the zeroes, as far as is known: of
// a file that is learned from the first call that the file system refuses.
func (f *file) ZeroWrites() bool {
	return f.info.IsDevice || f.noZeroRange.Load() && (f.keepSpace || f.noPunch.Load())
}

func wrapZero(f *file, off int64, err error) error {
	if err == nil {
		return nil
	}
	return f.fail("zero", off, err)
}

// zeroDevice zeroes the aligned middle by BLKZEROOUT, if it can, and writes the rest.
func (f *file) zeroDevice(off, n int64) error {
	align := max(int64(zeroOutAlign), int64(f.info.LogicalBlock))
	from, to := roundUp(off, align), (off+n)/align*align
	if from >= to || !f.info.Direct || f.noZeroOut.Load() {
		return f.writeZeroes(off, n)
	}
	err := retry(func() error { return blkRange(f.fd, unix.BLKZEROOUT, from, to-from) })
	if isUnsupported(err) || errors.Is(err, unix.EINVAL) {
		f.noZeroOut.Store(true)
		return f.writeZeroes(off, n)
	}
	if err != nil {
		return f.fail("zero", from, err)
	}
	if err := f.writeZeroes(off, from-off); err != nil {
		return err
	}
	return f.writeZeroes(to, off+n-to)
}

func (f *file) writeZeroes(off, n int64) error {
	for n > 0 {
		part := min(n, int64(len(zeroes)))
		if err := f.writeAt(zeroes[:part], off); err != nil {
			return err
		}
		off, n = off+part, n-part
	}
	return nil
}

// Reserve implements Reserver.
func (f *file) Reserve(ctx context.Context, off, n int64) error {
	s := f.guard.stripe(nil)
	if err := f.beginChange(ctx, s, "reserve", off, n); err != nil {
		return err
	}
	defer f.end(s)
	if f.info.IsDevice || n == 0 {
		return nil
	}
	err := retry(func() error { return unix.Fallocate(f.fd, unix.FALLOC_FL_KEEP_SIZE, off, n) })
	if err != nil && !isUnsupported(err) {
		return f.fail("reserve space", off, err)
	}
	return nil
}

// Discard implements Store. It does nothing where the medium has no use for
// the hint, and on a preallocated file, whose space is to stay.
func (f *file) Discard(ctx context.Context, off, n int64) error {
	s := f.guard.stripe(nil)
	if err := f.beginChange(ctx, s, "discard", off, n); err != nil {
		return err
	}
	defer f.end(s)
	return f.steps(ctx, off, n, f.discardPart)
}

func (f *file) discardPart(off, n int64) error {
	if !f.info.IsDevice {
		if f.keepSpace {
			return nil
		}
		_, err := f.fallocate(&f.noPunch, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if err != nil {
			return f.fail("discard", off, err)
		}
		return nil
	}
	align := max(int64(zeroOutAlign), int64(f.info.LogicalBlock))
	from, to := roundUp(off, align), (off+n)/align*align
	if from >= to || f.noDiscard.Load() {
		return nil
	}
	err := retry(func() error { return blkRange(f.fd, unix.BLKDISCARD, from, to-from) })
	if isUnsupported(err) || errors.Is(err, unix.EINVAL) {
		f.noDiscard.Store(true)
		return nil
	}
	if err != nil {
		return f.fail("discard", from, err)
	}
	return nil
}

// IsHole implements Store by SEEK_DATA. A file system without it calls
// everything data. A device is never known to have a hole.
func (f *file) IsHole(ctx context.Context, off, n int64) (bool, error) {
	s := f.guard.stripe(nil)
	if err := f.begin(ctx, s, "find data in", off, n); err != nil {
		return false, err
	}
	defer f.end(s)
	if f.info.IsDevice {
		return false, nil
	}
	if n == 0 {
		return true, nil
	}
	// The position that this moves is shared by the descriptor and used by nobody.
	data, err := unix.Seek(f.fd, off, unix.SEEK_DATA)
	switch {
	case err == unix.ENXIO: // no data up to the end
		return true, nil
	case err == unix.EINVAL || isUnsupported(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("find data in %s at %d: %w", f.info.Path, off, err)
	}
	return data >= off+n, nil
}

func roundUp(v, align int64) int64 { return (v + align - 1) / align * align }
