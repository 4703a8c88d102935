// Package simulate tells what tiers would do for a load before they are bought: it
// replays a trace of block I/O against layouts of tiers, and compares policies of
// placement by the mean time of an access.
//
// # Model
//
// The trace is cut into cycles. Within one, placement stands still: each access to
// an extent takes the time of the tier that the extent is in (Tier, model.go). At its end
// a Policy proposes moves within the cycle's budget, which take effect before the
// next. The policy "planner" is the daemon's own code, told a virtual time:
// heat.Tracker is given every request, with its length, kind and place, and
// plan.Next makes the moves. The others are there to compare with: "static" moves
// nothing; "lru" ranks by last use; "clairvoyant" is the planner's greedy choice
// shown the accesses to come, the best of looking 1, 2, 4 and 8 parts of 24 of the
// trace ahead (cycles, where these are longer), each worth 0.8 of the one before. It
// may move before the first cycle as well. "bound" is no placement, but what none can do
// better than that knows all and may do the same: package bound, and offline.go for
// what it is asked.
//
// Extents are those that the trace touches, and sizes given as shares are shares
// of these. Each disk of a trace is a volume.
//
// # What is left out
//
// Moves are made at once; while they take time, they are counted as load of the
// tiers they touch if the layout tells devices and bandwidth. Sequential accesses
// take as long as random ones. Trims and flushes are ignored.
//
// # Time
//
// A trace that has times is replayed at them, or stretched to a rate. One that has
// none takes a day, or what a rate makes of it, and counts by its requests: cycles are
// equal numbers of them.
//
// # Robustness
//
// Traces come from strangers: addresses may be anywhere, so heat is kept for
// the touched extents side by side, and extents, volumes and cycles have limits,
// beyond which ErrTooLarge says what to do. The same trace with the same settings
// gives the same report, to the last bit.
//
// The package opens no file (a Source does) and asks for no time.
package simulate
