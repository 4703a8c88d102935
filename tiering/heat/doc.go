// Package heat keeps how much each extent of a pool is used, and forgets it again
// over time. It proposes nothing and moves nothing: package plan ranks extents by
// the scores told here.
//
// # Model
//
// The heat of an extent is the share of time that the slowest tier's devices
// would spend on it. A request weighs, for each extent that it touches,
//
//	w = alpha_op * (p*(1-q) + bytes/BW)
//
// seconds: p is the positioning time and BW the bandwidth of the slowest tier,
// alpha a factor for reads and for writes, and q is 1 for requests of a
// sequential run (four consecutive requests or 512 KiB on the volume), which a
// slow disk serves nearly as well as a fast one. Per extent two sums are kept, S
// with a short half-life for bursts and L with a long one for habits. They are
// decayed forward (Cormode, Shkapenyuk, Srivastava and Xu, "Forward decay", ICDE
// 2009): an access at t adds w*2^((t-t0)/h), with a landmark t0 for all, and
// nothing has to be swept as time passes. Once t is 60 short half-lives beyond
// it, the landmark moves and all sums are scaled. The rate at t is
//
//	R = X * 2^(-(t-t0)/h) * ln2/h / (1 - 2^(-(age+h)/h))
//
// and the heat omega*R_S + (1-omega)*R_L. The divisor makes young extents
// comparable with old ones, which it doubles at most (score.go has the reason).
//
// Heat is a hint (invariant 1 of the project): losing it costs speed and
// nothing else. So touches may be dropped under overload, and are counted.
//
// # The way of an access
//
// Volume.Access is called for every request: it classifies it (stream.go, no
// lock), and pushes one touch per extent into one of 16 buffers picked at random
// (touch.go). Tracker.Drain, once a second, applies them to the cells
// (segment.go): 16 bytes an extent, in anonymous mappings of 1 MiB made on first
// touch, outside of the garbage collector's sight. Tracker.Tick begins a new
// cycle, the unit of an extent's age and of the time since its last move.
//
// # Who may call what
//
// Drain, Tick, Load and Save belong to one goroutine. All other methods may be
// called from anywhere at any time; those of a dropped volume do nothing. The
// cells are changed by compare-and-swap, so that Moved and Trimmed need no more
// than a read lock. Lock order: Tracker.drainMu, Tracker.mu; apart from them
// shard.mu, buffers.mu. Nothing is called back with a lock held, but for
// EncodeChunks, whose function must not call Drain, Tick or EncodeChunks.
//
// The package opens no file and is told the time.
//
// # Heat file
//
// One byte a score, on a logarithmic scale of four steps an octave: ranking by
// it loses less than 1 % of latency on real traces. Sums are stored as of the
// time in the chunk, so that a chunk that nobody touched stays right as it is,
// and only changed chunks are rewritten, each in its own place. All integers are
// little-endian.
//
//	header, 4,096 bytes
//	offset  size
//	0       8     "tierHEAT"
//	8       4     version, 1
//	12      4     size of a chunk, 16,448
//	16      16    pool id
//	32      4     CRC-32C of bytes 0 to 31
//	36            zero
//
//	chunk n, at 4,096 + n * 16,448, in any order
//	offset  size
//	0       8     "tierHCH1"
//	8       4     CRC-32C of the pool id, bytes 0 to 7 and 12 to the end
//	12      4     volume
//	16      8     first extent, a multiple of 4,096
//	24      8     time of the scores, nanoseconds since 1970
//	32      8     short half-life, nanoseconds
//	40      8     long half-life, nanoseconds
//	48      8     cycle, nanoseconds
//	56      8     zero
//	64      4096  S: 0, or 1 + 4*(log2(seconds) + 30)
//	4160    4096  L, likewise
//	8256    4096  I/Os: 0, or 1 + 8*log2(count)
//	12352   4096  age: 0 if never accessed, or 1 + 12*log2(cycles + 1)
//
// The time since the last move is not stored: a restart ends the residence.
package heat
