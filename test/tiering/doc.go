// Tiering measures what the movement of extents is worth, with a real daemon on three
// tiers that are slowed down to the speed of an SSD, of fast disks and of large slow ones:
// how long it takes from cold to a good placement, how good that is beside the ideal one,
// what clients feel of the movement, and whether every budget is kept.
//
//	go run ./test/tiering [-scenarios converge,uniform] [-seed 1] [-o text|markdown|json] [-json FILE]
//
// The load is zipf 1.2 over extents in scattered order, 250 requests of 4 KiB a second,
// 70 % reads; the same seed makes the same requests. -rate 0 keeps -depth requests in
// flight instead, whatever that comes to.
//
// # Scenarios
//
// converge fills a volume in the order of its offsets, measures while nothing may move,
// and lets the daemon find a placement. A second pool is filled hottest extent first, by
// the load's true ranking, so that each extent has the fastest place there is: the load
// runs on both in turns, the same requests on each, and the mark is the median ratio of
// the mean latencies, at most 1.10. Then the hot regions move elsewhere, and it
// begins again. At last hot blocks of 4 KiB lie all over the volume: an extent is as hot
// as all of its blocks together, and how little of the load the best extents can carry
// is told beside what came of it.
//
// foreground measures 99th percentiles with and without movement where the placement
// is the same: the load is on volumes whose policies name their tiers, and another
// volume is sent from the one slow tier to the other and back. Halves take turns, also
// which is first; the mark is the median ratio, at most 1.25.
//
// uniform has a load that all extents share alike, so that there is nothing to gain: at
// most 1 % of the volume may move.
//
// budget runs on a file system that counts the bytes written to the backings
// (test/faultfs), apart from what the daemon tells, with a kill in the middle of moves,
// and a restart after which next to nothing of the day's budget is left. The limits of the cycle and of the day
// hold to the byte; the rate allows a quarter of a second's worth ahead and the last
// bytes taken, and an extent is paid for before it is copied.
//
// The other scenarios hold each daemon's figures against its log, move by move, and
// against the budgets of the cycles.
//
// The exit code is 0 if all marks are met, 1 if not or if something failed, 2 for a
// bad command line. With -quick all is small and takes about a minute; budgets alone are judged
// then, which do not depend on the machine.
package main
