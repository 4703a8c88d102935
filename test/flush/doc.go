// Flush measures how long FLUSH takes when a tier is slow, against pass marks: with
// a burst of writes on a disk of 200 random operations a second (test/slowdrive),
// FLUSH takes at most 3 s there, and at most 50 ms for a volume that has nothing
// there; both are 99th percentiles. A real daemon serves a pool of two tiers, a
// file and the slow drive, through a Unix socket; each scenario runs through the
// page cache and with direct I/O.
//
//	go run ./test/flush [-seconds 15] [-scenarios random,moves] [-o text|markdown]
//
// In each scenario clients keep the slow volume busy with 32 requests in flight,
// one more flushes it about once a second, and another writes 4 KiB to the fast
// volume and flushes it, 20 times a second; every fourth time that write takes a
// new extent, so that the flush needs a commit.
//
//	random      4 KiB anywhere, first in extents that get their slots by it
//	sequential  128 KiB, one after the other
//	mixed       half of the clients the one, half the other
//	overwrite   the same 64 blocks again and again
//	trims       4 KiB anywhere, and trims of whole extents
//	moves       4 KiB anywhere, while extents move onto the slow drive
//	volumes     4 KiB anywhere in 8 volumes, each flushed
//
// With -isolation it measures instead, on one connection, the 99th percentile of 4 KiB
// hits in the fast tier with and without 16 requests that the slow drive has: reads,
// writes past the page cache, and writes whose dirty pages are throttled. Rounds with and
// without take turns; the median of their ratios is at most 1.3, for one hit at a time.
// Sixteen at a time are measured too, and have no mark.
//
//	go run ./test/flush -isolation -seconds 1 -dir /var/tmp
//
// The exit code is 0 if all marks are met, 1 if not or if something failed, 2 for a
// bad command line.
package main
