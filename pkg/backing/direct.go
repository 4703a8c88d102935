package backing

import (
	"sync"
	"unsafe"
)

const (
	bounceSize  = 256 << 10
	bounceAlign = 4096 // enough for the memory alignment of every known disk
)

// bounces holds buffers of bounceSize bytes aligned to bounceAlign.
var bounces = sync.Pool{New: func() any {
	b := alignedBuffer(bounceSize)
	return &b
}}

// alignedBuffer returns n bytes that start at a multiple of bounceAlign. The
// garbage collector does not move memory, so that it stays there.
func alignedBuffer(n int) []byte {
	b := make([]byte, n+bounceAlign)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (bounceAlign - 1)
	return b[skip : skip+n : skip+n]
}

// aligned reports whether a direct call with p at off needs no bounce buffer.
func (f *file) aligned(p []byte, off int64) bool {
	addr := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
	return (off|int64(len(p)))&int64(f.block-1) == 0 && addr&uintptr(f.memAlign-1) == 0
}

// widen returns the whole blocks around the first part of [off, off+n) that
// fits one bounce buffer, and the length of that part.
func (f *file) widen(off int64, n int) (from, to int64, part int) {
	mask := int64(f.block - 1)
	from = off &^ mask
	part = min(n, int(from+bounceSize-off))
	return from, (off + int64(part) + mask) &^ mask, part
}

// readBounced reads whole blocks into a bounce buffer and copies from there.
func (f *file) readBounced(p []byte, off int64) error {
	bp := bounces.Get().(*[]byte)
	defer bounces.Put(bp)
	for len(p) > 0 {
		from, to, part := f.widen(off, len(p))
		b := (*bp)[:to-from]
		if err := f.readFull(b, from); err != nil {
			return err
		}
		copy(p[:part], b[off-from:])
		p, off = p[part:], off+int64(part)
	}
	return nil
}

// writeBounced writes whole blocks from a bounce buffer. The blocks at the
// ragged ends are read first: the caller guarantees that no other write is
// under way in them.
func (f *file) writeBounced(p []byte, off int64) error {
	bp := bounces.Get().(*[]byte)
	defer bounces.Put(bp)
	block := int64(f.block)
	for len(p) > 0 {
		from, to, part := f.widen(off, len(p))
		b := (*bp)[:to-from]

		// Fill the ragged ends; a single block is read once.
		end := off + int64(part)
		if off != from {
			if err := f.readFull(b[:block], from); err != nil {
				return err
			}
		}
		if end != to && (off == from || to-from > block) {
			if err := f.readFull(b[to-from-block:], to-block); err != nil {
				return err
			}
		}
		copy(b[off-from:], p[:part])
		if err := f.writeFull(b, from); err != nil {
			return err
		}
		p, off = p[part:], end
	}
	return nil
}
