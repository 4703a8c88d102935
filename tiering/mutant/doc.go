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
// extent protocol described in the tiering package.
const (
	NoReadValidation   Mutant = "no-read-validation"   // R1: a read does not look at the entry again
	NoRegistration     Mutant = "no-registration"      // R2: changes do not wait for those before them
	NoPieceMarks       Mutant = "no-piece-marks"       // R2: a write does not mark what the mover must copy again
	MarksAtEnter       Mutant = "marks-at-enter"       // R2: marks are set before the write instead of after it
	NoExclusion        Mutant = "no-exclusion"         // R4: the switch does not wait for writes in flight
	NoSwitchRecheck    Mutant = "no-switch-recheck"    // R4: the switch does not look whether the extent changed
	NoGeneration       Mutant = "no-generation"        // R1: the generation does not rise
	NoFirstMarks       Mutant = "no-first-marks"       // R3: a move starts without all marks set
	SharedUnmap        Mutant = "shared-unmap"         // R5: an unmap is not alone in its extents
	NoWidening         Mutant = "no-widening"          // R2: ranges are not widened to whole blocks
	EarlySlotReuse     Mutant = "early-slot-reuse"     // a slot is given out before the commit that vacates it
	NoZeroing          Mutant = "no-zeroing"           // a vacated slot is given out with its old bytes
	CommitBeforeSync   Mutant = "commit-before-sync"   // the map is committed before the data is durable
	MarkDirtyBefore    Mutant = "mark-dirty-before"    // a backing is marked dirty before the bytes land
	SwallowSyncError   Mutant = "swallow-sync-error"   // a failed sync counts as done
	IgnoreBootID       Mutant = "ignore-boot-id"       // a log of another boot is replayed
	CleanDirtySetAtRun Mutant = "no-sync-at-open"      // an unclean start does not sync the backings
	RecordAfterPublish Mutant = "record-after-publish" // a mapping is visible before the log names it
)

// All lists every Mutant.
func All() []Mutant {
	return []Mutant{
		NoReadValidation, NoRegistration, NoPieceMarks, MarksAtEnter, NoExclusion, NoSwitchRecheck, NoGeneration,
		NoFirstMarks, SharedUnmap, NoWidening, EarlySlotReuse, NoZeroing, CommitBeforeSync, MarkDirtyBefore, SwallowSyncError,
		IgnoreBootID, CleanDirtySetAtRun, RecordAfterPublish,
	}
}
