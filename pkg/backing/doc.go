// Package backing opens files and block devices that hold a tier's slots, and
// says what a backing must be able to do: the Store interface.
//
// # What is where
//
//   - store.go: Store, with what each method promises. Everything else here
//     implements it or wraps it.
//   - open.go, options.go: Open makes a Device (a Store with Info) from a path:
//     lock, size, block sizes, identity.
//   - file.go, direct.go, zero.go, block_linux.go: the Store on a descriptor.
//   - guard.go, gate.go: what surrounds each call, see below.
//   - mem.go: a Store in memory. simulate.go: a slower disk around any Store.
//   - signature.go: what is on a medium already, so that it is not overwritten.
//   - faultstore, crashstore, storetest: failing on purpose, losing power on
//     purpose, and the suite that every Store must pass.
//
// # A call on a file
//
//	guard.enter      the descriptor stays open until guard.leave
//	gate.enter       at most MaxBlocked calls go on, the rest park in order
//	pread, pwrite, fdatasync, fallocate, ioctl ...
//	gate.leave
//	guard.leave
//
// TryReadAt passes the guard alone: it waits for nothing. It costs one system
// call and no allocation, as do ReadAt and WriteAt of a buffered backing, and
// of a direct one whose buffer, offset and length are aligned.
//
// # Invariants
//
//   - A read or write is whole or an error. An error names operation, path and
//     offset, and wraps the errno.
//   - A sync that failed is reported and never repeated, and no other call here
//     takes write-back errors away from it: write-back is started by
//     sync_file_range with the flag WRITE alone.
//   - Zero is never done by a discard. On a preallocated file neither Zero nor
//     Discard gives space back.
//   - A direct backing reads, modifies and writes whole blocks. It has no lock
//     for that: the caller keeps apart writes and zeroes that share a block of
//     max(4096, Info.LogicalBlock) bytes.
//   - After Close no call is in the kernel, so none can meet a descriptor number
//     that was given out again.
//   - The lock on the medium is held as long as the Store is open.
//
// # Locks
//
// gate.mu, Simulated.mu, timerSleeper.mu and the stripes of Mem are leaves:
// none is held while another is taken or while a system call that can block
// runs (closing idle timers excepted).
//
// # Limits
//
// Linux alone. A file's size is taken at Open and does not follow a change; a
// device must keep its size while it is open. Direct I/O wants a size that is
// a multiple of its block. A system call on a dead disk cannot be interrupted:
// it holds its place, and Close waits for it.
package backing
