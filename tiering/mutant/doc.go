// Package mutant names deliberate bugs: single rules of the tiering packages
// that a test build can switch off, to show that the test suites notice.
//
// In an ordinary build On is the constant false and the compiler drops the
// broken branches. With the build tag "mutants" the environment variable
// TIERD_MUTANT, or Set, chooses one.
package mutant

// A Mutant is one rule that is not kept.
type Mutant string

// The rules, each named by what is missing. R1 to R5 are the rules of the
// extent protocol described in the tiering package; the others are those of its
// order of things.
const (
	// How an extent changes under readers and writers.
	NoReadValidation      Mutant = "no-read-validation"     // R1: a read does not look at the entry again
	NoGeneration          Mutant = "no-generation"          // R1: the generation does not rise
	NoRegistration        Mutant = "no-registration"        // R2: changes do not wait for those before them
	PiecewiseRegistration Mutant = "piecewise-registration" // R2: the pieces of a change get in line one after the other
	NoWidening            Mutant = "no-widening"            // R2: ranges are not widened to whole blocks
	NoPieceMarks          Mutant = "no-piece-marks"         // R2: a write does not mark what the mover must copy again
	MarksAtEnter          Mutant = "marks-at-enter"         // R2: marks are set before the write instead of after it
	NoFirstMarks          Mutant = "no-first-marks"         // R3: a move starts without all marks set
	NoExclusion           Mutant = "no-exclusion"           // R4: the switch does not wait for writes in flight
	NoSwitchRecheck       Mutant = "no-switch-recheck"      // R4: the switch does not look whether the extent changed
	SharedUnmap           Mutant = "shared-unmap"           // R5: an unmap is not alone in its extents

	// What a kill must not lose.
	RecordAfterPublish Mutant = "record-after-publish" // a change is visible, and answered, before the log names it
	ReplayOldest       Mutant = "replay-oldest"        // the first record of an extent counts, not the last
	SameIncarnation    Mutant = "same-incarnation"     // an open does not raise the incarnation
	DeleteInMemory     Mutant = "delete-in-memory"     // a deletion is answered before it is durable
	LaggardsRefused    Mutant = "laggards-refused"     // a member that was away, or has not heard of the last open, is refused

	// What a power cut must not lose.
	CommitBeforeSync   Mutant = "commit-before-sync"  // the map is committed before the data is durable
	MarkDirtyBefore    Mutant = "mark-dirty-before"   // a backing is marked dirty before the bytes land
	JoinRunningSync    Mutant = "join-running-sync"   // a waiter shares a sync or round that began before it asked
	FUAOvertakesRound  Mutant = "fua-overtakes-round" // FUA on a staged extent does not wait for the commit
	CleanDirtySetAtRun Mutant = "no-sync-at-open"     // an unclean start does not sync the backings
	IgnoreBootID       Mutant = "ignore-boot-id"      // a log of another boot is replayed
	IgnoreInstances    Mutant = "ignore-instances"    // a log is replayed although a device was attached anew
	KeepContinuity     Mutant = "keep-continuity"     // the continuity id stays although answered data is lost
	SwallowSyncError   Mutant = "swallow-sync-error"  // a failed sync counts as done
	FUAEatsError       Mutant = "fua-eats-error"      // a failed sync for FUA does not fail the backing
	ForgetFailure      Mutant = "forget-failure"      // a failed backing is as good as new after a restart
	ForgetFailedRound  Mutant = "forget-failed-round" // a volume flushes again after a round has failed
	CommitRetried      Mutant = "commit-retried"      // a failed commit is tried again

	// What a slot must not give away.
	EarlySlotReuse    Mutant = "early-slot-reuse"    // a slot is given out before the commit that vacates it
	NoZeroing         Mutant = "no-zeroing"          // a vacated slot is given out with its old bytes
	ZeroAfterRelease  Mutant = "zero-after-release"  // a slot is zeroed after it was given out
	CleanAfterUnclean Mutant = "clean-after-unclean" // a slot that was free at an unclean stop counts as clean
	CleanBeforeSync   Mutant = "clean-before-sync"   // a zeroed slot is given out before the zeroes are durable

	// What the loss of the map must not lose.
	TableBeforeContent Mutant = "table-before-content" // a table entry names a slot whose content is not durable
	NoTombstone        Mutant = "no-tombstone"         // an unmap leaves no tombstone
	ClearBeforeSync    Mutant = "clear-before-sync"    // an entry is cleared before the one that follows it is durable
	NoHeal             Mutant = "no-heal"              // the tables are not brought into line with the map after a cut
	NoVolumeTable      Mutant = "no-volume-table"      // changes of volumes do not reach the backings
	NoStamps           Mutant = "no-stamps"            // syncs do not say which commit they know
	OldMapAccepted     Mutant = "old-map-accepted"     // a map older than the backings is opened
	VolumeIDsReused    Mutant = "volume-ids-reused"    // a new volume gets the id of a deleted one
)

// All lists every Mutant.
func All() []Mutant {
	return []Mutant{
		NoReadValidation, NoGeneration, NoRegistration, PiecewiseRegistration, NoWidening, NoPieceMarks,
		MarksAtEnter, NoFirstMarks, NoExclusion, NoSwitchRecheck, SharedUnmap, RecordAfterPublish, ReplayOldest,
		SameIncarnation, DeleteInMemory, LaggardsRefused, CommitBeforeSync, MarkDirtyBefore, JoinRunningSync, FUAOvertakesRound,
		CleanDirtySetAtRun, IgnoreBootID, IgnoreInstances, KeepContinuity, SwallowSyncError, FUAEatsError,
		ForgetFailure, ForgetFailedRound, CommitRetried, EarlySlotReuse, NoZeroing, ZeroAfterRelease,
		CleanAfterUnclean, CleanBeforeSync, TableBeforeContent, NoTombstone, ClearBeforeSync, NoHeal, NoVolumeTable,
		NoStamps, OldMapAccepted, VolumeIDsReused,
	}
}
