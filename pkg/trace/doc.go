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
