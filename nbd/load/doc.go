// Package load puts load on an NBD export and measures, and where asked checks,
// what comes back. `tierctl bench` is its command line.
//
// # Model
//
// Run connects, then goes through phases that all have the same shape: fill,
// warm-up and measurement, verify pass. In a phase a source hands out operations,
// and one worker for each connection keeps up to Depth of them in flight. The
// worker's code runs where the client calls Done, so an answer leads to the
// next request without a change of goroutine; only operations that must wait
// (for a rate, for a trace's clock, for an overlapping operation) are sent by
// the worker's pacer.
//
// # Patterns
//
// uniform and sequential speak for themselves. zipf cuts the volume into regions
// of Grain bytes, gives rank k a share of 1/k^Theta, and spreads the ranks over
// the volume with a seeded permutation; inside a region all blocks are alike.
// With Grain equal to the block size the hot blocks are scattered one by one.
//
// # Verification
//
// The volume is cut into units of 4096 bytes (512 if the operations are not
// multiples of that). A unit that was written reads as follows, little-endian:
//
//	0  u64 magic "tierload"
//	8  u64 offset of the unit in the volume
//	16 u64 seed
//	24 u32 generation: counts the changes of this unit
//	28 u32 CRC-32C of all other bytes of the unit
//	32 ... pseudo-random bytes that depend on seed, offset and generation
//
// The ledger has one word for each unit: what the last answered change made of
// it. Operations that overlap a change in flight are held back, so each read
// has exactly one right answer. A change without an answer, or answered by an
// error, leaves a unit in doubt: either state is right until the next change
// is answered. A trimmed unit may read as zeroes or as anything it once held.
//
// The ledger can be kept in a file (Spec.State), written at the end of a run
// whatever its end was. A later run, with VerifyOnly or not, goes on from there:
// that is how to check that a server which was killed in between still has every
// answered write. After a power cut less is promised: with AfterCut a unit may
// hold whatever the last FLUSH answered before, or FUA, vouched for, or anything
// written later, even sectors of several of those (see durability). The file's
// layout is described at saveLedger.
//
// # Numbers
//
// Latency is counted from handing a request to the client until its answer, in
// histograms with an error of at most 1/64 of the value. With a rate or a
// trace's clock, Result.ScheduleLagMax tells how late operations were sent at most:
// where it is not small against the latencies, the server was overloaded and the
// latencies are too good to be true.
//
// Lock order: worker.mu, then the client's, then ledger.mu.
package load
