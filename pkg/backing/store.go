package backing

import (
	"context"
	"errors"
)

// A Store is one backing: a fixed-size range of bytes on a file, a block
// device or in memory. Every method is safe for concurrent use. Reads and
// writes are all or error: there are no short counts. Overlapping concurrent
// calls are ordered by the caller, and so are writes and zeroes that share a
// block of max(4096, logical block) bytes: a direct backing reads, modifies and
// writes whole blocks.
//
// A context is looked at before the work begins; a system call that has begun
// is not interrupted. A call of no bytes inside the range does nothing.
type Store interface {
	// Size returns the size in bytes. It does not change while the Store is open.
	Size() int64

	// TryReadAt fills p from off if that needs no waiting for a device: for a
	// file, if all of it is in the page cache. It reports whether p is filled;
	// false says nothing about errors, and ReadAt must be asked.
	TryReadAt(p []byte, off int64) (ok bool)

	// ReadAt fills p from off.
	ReadAt(ctx context.Context, p []byte, off int64) error

	// WriteAt writes p at off. The bytes may be lost by a power cut until a
	// Sync that began afterwards has returned nil.
	WriteAt(ctx context.Context, p []byte, off int64) error

	// Sync makes durable whatever was written, zeroed or discarded before it
	// began. After an error nothing is known about those bytes, and a later
	// nil does not make up for it: the caller must take the backing for
	// failed. It is never retried here.
	Sync(ctx context.Context) error

	// Zero makes [off, off+n) read as zeroes, guaranteed, giving the space
	// back where the medium can do that without weakening the guarantee.
	Zero(ctx context.Context, off, n int64) error

	// Discard hints that the bytes of [off, off+n) are no longer needed. What
	// they read as afterwards is undefined.
	Discard(ctx context.Context, off, n int64) error

	// StartWriteback asks for write-back of [off, off+n) to begin without
	// waiting for it and without consuming a write-back error.
	StartWriteback(off, n int64)

	// IsHole reports whether [off, off+n) is known to have no data, so that it
	// reads as zeroes without having been zeroed. False when unknown. A hole
	// made by a Zero is durable only after a Sync, like every other change.
	IsHole(ctx context.Context, off, n int64) (bool, error)

	// Instance names this very incarnation of the medium: it changes when the
	// page cache behind it cannot be the same any more (another inode, a
	// device that was detached and attached again).
	Instance() string

	// Close releases the Store without syncing it. It waits for the calls in
	// flight; calls that come later get ErrClosed. It is idempotent.
	Close() error
}

// A Reserver is a Store that can have holes and can fill some of them with space
// that stays theirs. Stores without holes need not be one.
type Reserver interface {
	// Reserve sees to it that writes to [off, off+n) do not run out of space, until
	// the range is zeroed or discarded. It changes no byte. Where the file system
	// cannot promise that, it does nothing.
	Reserve(ctx context.Context, off, n int64) error
}

var (
	// ErrClosed is returned by the methods of a closed Store.
	ErrClosed = errors.New("backing is closed")
	// ErrOutOfRange is returned when a call reaches past the end of the Store.
	ErrOutOfRange = errors.New("range is outside the backing")
)
