// Package stagedlog keeps what must survive the death of the daemon, though not
// of the machine: the mappings that were made, moved or removed since they were
// last committed to the extent map. It is one file beside the metadata,
// preallocated, written without ever being synced: the page cache outlives the
// process.
//
// # Model
//
// A change of a mapping is recorded before any other request can see it. Each
// record sets absolute state: extent so-and-so is in this slot, or in none,
// whatever was before. Replaying any contiguous run of the history, in order
// and up to its end, on top of the committed map therefore gives the right
// map, as long as the run has every record that is not committed: an extent
// without a record in the run has its committed location, any other ends at
// its last record. Records that are committed already do no harm, and neither
// does a second replay.
//
// The file has two halves, which fill in turn. A half is used again when all
// its records are committed (Retire); until then an Append that needs it is
// ErrFull, and the caller runs a round of commits.
//
// # What voids a log
//
// Read gives nothing, and says why, if the log is of another pool, another
// incarnation, another boot of the machine (its pages may never have reached
// the disk), or if the medium of a backing was attached anew since (its page
// cache is gone). If the log knows a later commit than the map, the map is a
// backup: that is ErrMapOlder, and must not be opened. A backing that is not
// there at all does not void the log: its extents are mapped and unreachable.
//
// # Opening a pool
//
//  1. Read with the recorded LogIncarnation, and replay.
//  2. Commit the replayed changes together with the new LogIncarnation.
//  3. Open under that incarnation, which empties the log.
//
// A kill before 2 changes nothing. A kill between 2 and 3 leaves a log of an
// incarnation that the map does not name: void, and all of it is committed.
//
// # Failed writes
//
// After a failed write the log takes no more records (ErrFailed). What the
// write may have left is overwritten with zeroes, as far as that can be done:
// a record that its caller gave up must not come back.
//
// # Locks
//
// Log has one lock, held across the write of an Append. The caller hands out
// sequences and appends under a lock of its own, since they must rise.
//
// # File format, version 1
//
// Integers are little-endian, CRC is CRC32C. A half begins at 0 and at the half
// size, which is that of the file divided by two, in whole blocks of 4 KiB. It
// has two header blocks, used in turn, of which the one with the higher epoch
// counts, then records of 64 bytes to its end.
//
//	header
//	0       8     magic "tierdSL\n"
//	8       4     format version: 1
//	12      4     CRC of bytes 0 to 11 and 16 to 4095
//	16      4     half: 0 or 1
//	20      4     header block: 0 or 1
//	24      8     epoch: rises with each use of either half
//	32      8     nonce: random for each use of a half
//	40      16    pool id
//	56      8     incarnation
//	64      8     number of the last commit that is known
//	72      8     lowest sequence in this half
//	80      8     ordinal of the first record
//	88      8     half size in bytes
//	96      1     length of the boot id, up to 127
//	97      127   boot id
//	224     ...   zeroes
//
//	record
//	0       8     sequence; that of an instance record is 0
//	8       8     ordinal: one more than that of the record before, from 1 at each Open
//	16      4     volume
//	20      1     kind: 1 map, 2 unmap, 3 unmap range, 4 move, 255 instance
//	21      1     spare, zero
//	22      2     backing of the new location
//	24      2     backing of the old location
//	26      2     spare, zero
//	28      4     slot of the new location
//	32      4     slot of the old location
//	36      4     spare, zero
//	40      8     first extent; instance: the backing
//	48      8     number of extents; instance: first 8 bytes of its SHA-256
//	56      4     spare, zero
//	60      4     CRC of pool id, incarnation, half (4 bytes), nonce, bytes 0 to 59
//
// The instances of all backings are the first records of each half, so that it
// is whole without the other; one that changes is recorded in between. A record
// never crosses a page of the page cache, so that a kill leaves it whole or
// absent; should it be torn all the same, its CRC ends the run before it. A
// header that is torn leaves the one before, under which the records of the
// half, all of them committed, are still whole. The nonce keeps the records of
// one use of a half apart from those of another.
package stagedlog
