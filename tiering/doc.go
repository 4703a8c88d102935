// Package tiering is a pool of storage: thin volumes whose extents lie in slots of
// backings of several tiers, under one persistent extent map, and move between
// them while they are read and written.
//
// # Model
//
// A volume is cut into extents of the pool's extent size. An extent is unmapped,
// and reads as zeroes, or it is mapped to a slot of one backing. A first write
// gives it a slot; a trim or zeroing of the whole extent takes the slot away; a
// relocation gives it another one. There is one copy of each extent.
//
// The extent map in the metadata file is the durable truth of where extents are.
// What is changed and not yet committed is staged: visible, recorded in the staged
// log, and lost by a power cut but not by the death of the process. The backings
// carry slot tables and volume tables, a second record from which the map can be
// rebuilt if the metadata is lost.
//
// # Invariants
//
//  1. Free slots are derived from the map; heat and plans are hints, whose loss
//     costs speed alone.
//  2. Data is durable before the map entry that names it, and the entry before the
//     slot it leaves can be zeroed. Only a slot zeroed and synced is given out.
//  3. A slot has at most one owner. Bytes of a mapped extent that were never
//     written read as zeroes, whatever the slot held before.
//  4. A flush covers every change answered before it was asked for, on any
//     connection. An answered change survives a kill.
//  5. Movement never changes what a read returns, and holds a write back for at
//     most two pieces of copying.
//  6. A proposal to move is looked at again by the mechanism; one that is out of
//     date is skipped with a reason.
//  7. A failed sync is not retried into success: the backing is failed, durably,
//     before anybody is told, and the flushes concerned fail from then on.
//
// # How an extent changes under readers and writers
//
// R1: a read loads the extent's entry, reads, and loads the entry again. If place
// or generation differ, it reads again; the third time it registers as a shared
// reader. It takes no lock. A slot that is freed waits for no reader: what was
// read from it is thrown away.
//
// R2: a write, trim or zeroing registers its range before it looks at the entry
// and waits for those before it (package registry). When it leaves, it marks the
// pieces of a move in progress that it touched, and only then is answered.
//
// R3: a move reserves its target, registers with all pieces marked, and remembers
// the entry it starts from.
//
// R4: it clears a mark, copies the piece, and repeats until no mark is left; it
// syncs the target; then it takes the extent for itself, looks whether the entry
// is still the one it started from, copies at most two more pieces, records,
// and publishes the new entry. No sync and no commit happens in there.
//
// A move that verifies reads each copy back and compares checksums before that, also
// of the pieces copied again, and of the last ones within the exclusion.
//
// R5: an unmap is alone in its extents. It calls their moves off; the mover gives
// its target back itself.
//
// # What a flush does
//
// A flush is a round of one volume (flush.go): cut what is staged; write slot-table
// entries; sync the backings the volume dirtied; commit; hand vacated slots to the
// cleaner. Syncs of a backing are shared by all who wait for one, and a waiter gets
// one that began after it asked. One committer merges the rounds that are ready.
//
// A first write: reserve a clean slot, record, publish, write the data, mark the
// backing dirty, leave, answer. No sync is on that path.
//
// # When a backing fails beside a move
//
// A move whose source has failed before the switch is given up. If the source fails
// after it the move stands, since clients have gone on at the target. If the target
// fails before the commit the move is left out of it: the flushed bytes are at the
// source. In each case answered data may be lost of which the map says nothing
// afterwards: the commit remembers that with it (extentmap.LostWrites).
//
// # What a backing that hangs may hold up
//
// Its own requests, and the rounds of volumes with unsynced data there; nothing else.
// A move in a call that hangs is left behind with its mover, and another mover takes
// the place (relocate.go). No move begins from or to a backing known to hang, so
// that few are ever left behind. Moves of a volume whose rounds hang are given up
// once 64 of them await their commit, and those of others go on. Each backing whose
// calls fail is fled from by a goroutine of its own (flee.go).
//
// # Locks
//
// In this order; none is held over I/O on a backing or over a commit, but for the
// first two, which no request waits for, Pool.memberMu and ondisk.SlotTable:
//
//	Pool.adminMu     changes of volumes, tiers and backings
//	member.superMu   writing the superblock of a backing
//	monitor.cycling  one cycle of planning at a time
//	registry stripes, ascending
//	Pool.memberMu    editing the members' records
//	ondisk.SlotTable the blocks of a slot table
//	stager.mu        the staged log and what each volume has staged
//	Pool.volMu       the tables of volumes
//	space.mu         what volumes may take of the pool
//	Volume.mu        a volume's settings
//	alloc.Slots      the books of a backing
//	monitor.mu, relocator.mu, cleaner.mu, drainer.mu, member.tableMu,
//	shared.mu, pace.mu, health.mu: leaves
//
// stager.mu is held while 64 bytes are written to the staged log, which is not
// synced.
//
// # Where to start reading
//
// mutation.go and volume.go are the foreground, with provision.go, discard.go and
// space.go; stage.go and flush.go order what becomes durable, committer.go and share.go
// merge what many ask for, pace.go says how much may be unsynced; cleaner.go hands out
// slots; mover.go and relocate.go move extents; condition.go follows how well backings
// serve, flee.go moves extents off bad ones, copies.go keeps the records on all of
// them, metafail.go is what happens when the metadata fail; evacuate.go and drain.go
// empty a backing; monitor.go plans, and budgetfile.go keeps what was used of the
// budget.
//
// open.go, findmembers.go, recover.go and heal.go bring a pool up; addbacking.go and
// removebacking.go change what the pool consists of, tier.go and member.go hold it;
// missing.go, forget.go and readonly.go serve a pool that is not whole or not to be
// changed; distinct.go keeps it from lying on itself. waits.go counts what requests
// were held up by; record.go hands the requests to a volume to whoever records them.
//
// create.go, check.go, repair.go and dump.go work on one that is down: findings.go
// collects what is found, aside.go keeps what is replaced. survey.go looks at one whose
// metadata may be gone, and rebuild.go, rebuild_judge.go, claim.go and restore.go make
// them anew.
package tiering
