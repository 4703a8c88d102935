// Package trace reads block I/O traces, one record at a time and in constant
// memory, whatever the format and the compression of the file.
//
// Open looks at the first bytes of a file: zstd, xz and gzip are recognised by
// their magic numbers, and what is inside by its content, with the file's name
// as a tie-break (see Detect). OpenFormat skips the detection.
//
// # Formats
//
//	vscsi  binary, little-endian, 32 bytes a record, of virtual SCSI disks
//	       0  u32 sequence number      (ignored)
//	       4  u32 length in bytes
//	       8  u32 scatter-gather count (ignored)
//	       12 u16 SCSI operation code
//	       14 u16 version, 0x01xx
//	       16 u64 address in 512-byte blocks
//	       24 u64 time in microseconds
//	pages  binary, little-endian int32 numbers of 4 KiB pages; no time, no
//	       operation: every reference is a read of one page
//	arc    text, "start blocks ignored number": 512-byte blocks, reads only, no time
//	msr    text, "filetime,host,disk,Read|Write,offset,bytes,response": the time
//	       in units of 100 ns
//	spc    text, "asu,address,bytes,r|w,seconds[,...]": the address in 512-byte blocks
//	iolog  text of fio, versions 2 and 3. Version 2 tells time by "wait" lines
//	       alone, each with microseconds after the wait before it; version 3
//	       has milliseconds in front of each line
//	blkparse  the default output of blkparse(1), "device cpu number seconds pid
//	       action rwbs sector + sectors [process]", in sectors of 512 bytes, with
//	       what -t adds; options that change the format (-f) are not understood.
//	       One kind of event stands for a request: Q (queued), or D (issued) if
//	       the first 64 KiB have no Q, or C (completed) if neither. Other events,
//	       messages, commands passed through, and lines that do not begin with
//	       "major,minor", as those of the summary, are skipped. Of RWBS (see
//	       fill_rwbs in blkparse_fmt.c) D is a trim, a leading F without a range
//	       a flush, with one a write; S, M, A and F in the end change nothing.
//	       A request that passes through a stack of devices is there once for
//	       each: give blkparse one of them
//	mqsim  text of MQSim (traces of ASCII_Trace_Definition.h), "time device start
//	       sectors type": nanoseconds, 512-byte sectors, 0 for a write, 1 for a
//	       read. Recognised if all of the first 64 KiB are such lines in order of
//	       time, or by the file's name if it ends in .mqsim
//	tierd  what tierd records of a volume; see below
//
// # Recorded format
//
// Writer writes it, a Reader reads it like any other; Recorded tells what else is in
// it. All numbers are little-endian, checksums are CRC-32C of all bytes of the header
// or block in front of them.
//
//	header
//	0   8   magic 89 'T' 'D' 'T' 0d 0a 1a 0a
//	8   u16 version, 1
//	10  u16 length of the header
//	12  u32 0
//	16  u64 extent size in bytes
//	24  u64 size of the volume in bytes
//	32  i64 start, nanoseconds since 1970 in UTC
//	40  16  UUID of the volume
//	56  u8  clock of the times: 1, nanoseconds since the start by a monotonic clock
//	57  u8  n
//	58  n   name of the volume
//	    u32 checksum
//
//	block, any number of them
//	0   u8  kind: 1 records, 2 records packed with zstd, 3 end
//	1   3   0
//	4   u32 p, bytes of payload in the file
//	8   u32 bytes of payload unpacked, at most 1 MiB
//	12  u32 records
//	16  u64 time from which those of the records go on
//	24  u64 requests dropped since the start
//	32  p   payload
//	    u32 checksum
//
//	record; v is an unsigned number in groups of 7 bits, as in encoding/binary
//	u8      bits 0 to 2: 0 read, 1 write, 2 trim, 3 write zeroes, 4 flush; and flags
//	        8: length of the record before; 16: begins where the record before ended,
//	        at 0 for the first of a block; 32: the last two numbers are in units of
//	        512 bytes. A flush has no flags and is followed by its time alone
//	v       time since the record before
//	v       without flag 16: distance from the end of the record before, zigzag
//	v       without flag 8: length
//
//	payload of the end, 128 bytes
//	0   u64 records in the file
//	8   u64 requests dropped
//	16  u64 nanoseconds from the start to the end
//	24  u8  n
//	25  n   why the recording ended; zeroes behind it
//
// Blocks can be understood by themselves. A file that was cut short ends with its last
// whole block (Recording.Ended is false); so it does if the last block is wrong and
// nothing but zeroes follows. A wrong block with others behind it is ErrMalformed.
//
// # Time
//
// Record.Time counts from the first record and never decreases: a record that
// claims to be older than its predecessor gets its predecessor's time. A trace
// without time (Reader.Timed is false: pages, arc, a version 2 iolog without
// waits) counts requests instead: record n, from 0, has the time n*Tick, so
// Time/Tick is the request number.
//
// # Robustness
//
// Traces come from strangers. A record whose range does not fit an int64, a
// line longer than 4 KiB, a field that is not a number or a torn last record is
// ErrMalformed, with the number of the record; after an error the reader only
// repeats it. Operations that move no data and name no range (mode sense,
// inquiries, opening a file) are skipped and counted.
package trace
