// Package extentmap keeps the metadata of a pool: the durable map from extents
// to slots, and the records of the pool, its tiers, backings and volumes. It is
// the only importer of bbolt. It also has Table, the map of one volume in
// memory, which is what the I/O path reads.
//
// # Model
//
// The file is the truth of placement. It is read once at open, by State and
// LoadMap, and changed by Commit alone. One Commit is one transaction of
// bbolt, shared by all requests that wait at that moment; it has a number,
// which rises by one each time and is stored in it. Within a transaction a
// later change of a key wins over an earlier one, in the order in which the
// requests were queued.
//
// # Invariants
//
//   - When Commit returns nil its changes are durable, whole, and part of every
//     later state.
//   - What State shows is on disk.
//   - A key is in at most one chunk, a chunk without mapped extents is absent.
//   - Whether two extents share a slot is the business of the caller; Check
//     finds it.
//
// # Failure
//
// After the first error of a transaction it is unknown what the file holds:
// bbolt may have written its new root to the page cache, where it shows even
// though it never reached the disk, and its list of free pages may name pages
// that the durable root still uses. A second try could overwrite them. So that
// error is for ever: Err returns it, as do all later Commits and LoadMaps, and
// the handle is not used again, not even to close it, because the failed
// transaction may hold its locks. Only the lock of the file is given up by
// Close. State goes on to give the last committed records.
//
// bbolt reads through a memory mapping, so that an unreadable page is a fault.
// All calls into it are made by one goroutine that asked the runtime to make
// faults panics (debug.SetPanicOnFault) and recovers them. A panic in a
// transaction or a read is treated like a failed commit.
//
// A full file system is kept from being such a failure: the file has 16 MiB
// allocated beyond what is in use, as far as the file system can do that.
//
// # Locks
//
// DB.mu guards the queue and the records in memory. It is held for moments,
// never across a call into bbolt. Functions given to Commit (Changes.Pool) run
// in the owner goroutine and must not call the DB. Functions given to LoadMap
// run in the caller's and may. Table has a lock for Grow and Close; its other
// methods take none.
//
// # File format, version 1
//
// A bbolt file, mode 0600, with these buckets. Records are JSON objects; a
// field that this version does not know is kept when the record is rewritten.
// Behind the JSON stand a newline and the CRC32C of bucket, key and JSON, as eight
// hexadecimal digits; a record without them, of an earlier program, is accepted.
//
//	bucket    key                          value
//	pool      "record"                     PoolRecord
//	tiers     tier id, u32 big-endian      TierRecord
//	members   backing id, u32 big-endian   Member
//	volumes   volume id, u32 big-endian    Volume
//	map       volume id, u32 big-endian,   chunk
//	          then extent/256, u64
//	          big-endian
//
// A chunk has the locations of up to 256 extents. Trailing unmapped ones are
// left out. Integers are little-endian.
//
//	offset  size  field
//	0       1     format of the chunk: 1
//	1       3     spare, zero
//	4       4     CRC32C of key, bytes 0 to 3, and bytes 8 to the end
//	8       8*n   n entries:
//	              +0  u16  backing, 1 to 1023; 0: unmapped
//	              +2  u32  slot
//	              +6  u16  spare, zero
//
// bbolt has checksums for its two root pages alone. The CRC of the chunk finds
// damage in the pages that matter most, and a chunk under a foreign key.
//
// PoolRecord.FormatVersion rises when an older program could not read the
// file; smaller extensions set a bit in PoolRecord.Features.
package extentmap
