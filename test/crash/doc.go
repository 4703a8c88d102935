// Package crash enumerates the states that a power cut or a kill can leave, and
// judges each of them.
//
// A row is an operation: provisioning, a move under writes, the deletion of a
// volume. It runs on a pool whose backings are crashstores and whose metadata, log,
// heat and budget lie on a recordfs, both on one counter: a number is one instant
// over all of them. Every event of the run, a write or one end of a sync, is a crash
// point; what it is (a slot-table write, the root of a commit, a sync of the log's
// folder) names the column, the step. At a crash point
//
//   - the machine may lose power: what is unsynced is kept, lost, or kept in part,
//     sector by sector, by a seed; or
//   - the process may be killed: nothing is lost, and what is unsynced still is.
//
// A cell of this matrix has so many states that they are sampled: so many instants
// of so many runs with so many seeds.
//
// Each state is judged three times, see judge.go: by opening it, by opening it
// twice with a kill or a cut in between, and by a rebuild without its map. What must
// be there is known from a history of the operations, see history.go, of which some
// were answered before the instant, one or the other was under way, and some had not
// begun.
package crash
