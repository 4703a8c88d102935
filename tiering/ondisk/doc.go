// Package ondisk is the format of a backing: what tierd writes on each file or
// device besides the data of its slots. This is format version 1.
//
// # Model
//
// The extent map of the pool is the truth (package extentmap). What is on the
// backings is the second record: it says whose a backing is, refuses a map
// that is older than the data, and lets the map be rebuilt.
//
//	0                          zeroes: no foreign signature survives
//	4 KiB                      front superblock, 256 KiB
//	260 KiB                    stamp, two blocks of 4 KiB
//	268 KiB                    volume table, two copies of 4 MiB
//	8460 KiB                   slot table, 32 bytes an entry
//	next multiple of the
//	  extent size              slot 0, 1, 2, ...
//	size rounded down to
//	  4 KiB, less 256 KiB      end superblock
//
// The slot table has room for four times the slots, so that a device that was
// made larger can be used without moving anything: 0.012 % of the space at
// extents of 1 MiB. The positions are stored in the superblock, which is at the
// places above in every version.
//
// # Invariants
//
//   - Superblock, stamp and volume table have two copies, and a write goes to
//     the older one. With the syncs that the functions ask for, one whole copy,
//     old or new, is on the backing at every moment, whichever sectors of the
//     write in progress arrived. The newer one has the higher generation.
//   - Only WriteSuperblock, Format and Wipe sync. All other writes are made
//     durable by the round of the pool that they belong to.
//   - Entries of the slot table do not cross sectors of 512 bytes, and are
//     written in whole blocks of 4 KiB.
//   - Nothing is believed without its CRC. That of the stamp and the slot table
//     is seeded with pool and backing, that of the volume table with the pool,
//     so that what an earlier pool left on the medium is not mistaken for ours.
//
// # The order of creation
//
// Format (which wipes superblocks first, durably), WriteSuperblock with
// BackingCreating, WriteVolumeTable, a sync, WriteSuperblock with
// BackingActive. A backing found in BackingCreating may be formatted again by
// the same create.
//
// # Locks
//
// Stamps and SlotTable each have a lock, held across the I/O of one call. The
// functions on superblocks and volume tables have none: one caller at a time
// for each backing.
//
// # Bytes
//
// Integers are little-endian. Text is a length of one byte, then UTF-8. A
// record begins with its length in two bytes, which count themselves; a later
// version may add fields at its end, which this one skips. CRC is CRC32C
// (Castagnoli).
//
// Superblock, stamp and volume table begin with the same head, in every
// version:
//
//	offset  size  field
//	0       8     magic: "tierdSB\n", "tierdST\n", "tierdVT\n"
//	8       4     format version: 1
//	12      4     CRC of bytes 0 to 11, the seed, bytes 16 to the length
//	16      4     length in bytes, a multiple of 4 KiB
//	20      4     spare, zero
//	24      8     generation
//
// Superblock (seed: none), up to 256 KiB:
//
//	32      24    feature bits: compatible, read-only compatible, incompatible, u64 each
//	56      16    pool id
//	72      16    backing uuid
//	88      2     backing id
//	90      2     lowest backing id never given out
//	92      1     tier id
//	93      1     state: 1 creating, 2 active, 3 removed
//	94      1     copy: 1 front, 2 end
//	95      1     spare, zero
//	96      8     incarnation
//	104     8     size of the backing
//	112     8     extent size
//	120     4     slots
//	124     4     slots the table has room for
//	128     8     size of a superblock area
//	136     8     offset of the front superblock
//	144     8     offset of the end superblock
//	152     16    offsets of the two stamp blocks
//	168     16    offsets of the two volume tables
//	184     8     size of either volume table
//	192     8     offset of the slot table
//	200     8     offset of slot 0
//	208     2     number of tiers, t
//	210     2     number of members, m
//	212     4     spare, zero
//	216     ...   t records: tier id u8, name text, media text
//	...     ...   m records: backing id u16, tier id u8, state u8 (1 ok, 2 draining,
//	              3 failed, 4 forgotten, 5 creating), uuid 16, incarnation u64
//	...     8     number of the last finished commit, 0: not recorded; missing if the
//	              length ends before it
//	...     ...   zeroes to the length
//
// Stamp (seed: pool id, backing uuid), one block:
//
//	32      8     number of the last finished commit
//	40      8     incarnation
//	48      1     1: that commit was a clean stop
//	49      1     1: the number of owners is given
//	50      6     spare, zero
//	56      8     generation of a volume table that was whole here before; 0: not recorded
//	64      8     highest sequence in the staged log; 0: none, or not recorded
//	72      8     number of owners in the slot table
//	80      ...   zeroes
//
// Volume table (seed: pool id), up to the size of its area:
//
//	32      4     number of volumes, n
//	36      4     lowest volume id never given out
//	40      8     spare, zero
//	48      ...   n records: volume id u32, state u8 (1 active, 2 deleting), read-only u8,
//	              uuid 16, size i64, created i64 (nanoseconds since 1970, 0: unknown),
//	              name text, policy text; where one of them is not 0 also
//	              reservation i64, quota i64, wait for room i64 (nanoseconds), and if
//	              there are any, clients: length u16, names, a newline between two
//	...     ...   zeroes to the length
//
// Slot table: entry s at 32*s. All zero: free. Else:
//
//	0       1     kind: 1 owner, 2 tombstone
//	1       3     spare, zero
//	4       4     volume id
//	8       8     extent
//	16      8     sequence: incarnation<<40 | counter
//	24      4     spare, zero
//	28      4     CRC of pool id, backing uuid, backing id u16, s u32, bytes 0 to 27
package ondisk
