package tiering

import (
	"cmp"
	"fmt"
	"slices"
)

// Severity says what a finding of Check means.
type Severity string

// The severities, the worst first.
const (
	// Damage: something is wrong, or would be if the metadata were lost. The exit
	// code of a check that found any is 3.
	Damage Severity = "damage"
	// Warning: something is worth knowing that is neither wrong nor put right by
	// itself, such as a member that is away.
	Warning Severity = "warning"
	// Note: something that the next start puts right, or that explains a state.
	Note Severity = "note"
)

// FindingKind says what a finding is about. The words are stable: programs may
// look for them.
type FindingKind string

// The kinds of findings.
const (
	FoundMetadataPage   FindingKind = "metadata_page"     // pages of the metadata file do not form a tree
	FoundMetadataRoot   FindingKind = "metadata_root"     // one of the two roots of the metadata file is not valid
	FoundMetadataRecord FindingKind = "metadata_record"   // a record or a piece of the map does not decode, or makes no sense
	FoundMetadataOlder  FindingKind = "metadata_older"    // the metadata file is older than a backing or the staged log
	FoundCreating       FindingKind = "creating"          // the creation of the pool was not finished
	FoundUnclean        FindingKind = "unclean"           // the pool was not stopped cleanly
	FoundPastEnd        FindingKind = "past_end"          // an extent is past the end of its volume
	FoundNoVolume       FindingKind = "no_volume"         // the map has extents of a volume that does not exist
	FoundNoBacking      FindingKind = "no_backing"        // an extent is on a backing that is not in the pool
	FoundSlotRange      FindingKind = "slot_range"        // an extent is in a slot that its backing does not have
	FoundDoubleOwner    FindingKind = "double_owner"      // two extents are in one slot
	FoundMissing        FindingKind = "backing_missing"   // a member is not there
	FoundUnreadable     FindingKind = "backing_open"      // a backing cannot be opened or read
	FoundForeign        FindingKind = "backing_foreign"   // a configured backing is not of this pool
	FoundCopied         FindingKind = "backing_copied"    // two backings say that they are the same one
	FoundStale          FindingKind = "backing_stale"     // a backing is an old copy
	FoundShort          FindingKind = "backing_short"     // a backing was cut off
	FoundFailed         FindingKind = "backing_failed"    // a backing is marked as failed
	FoundSuperblockCopy FindingKind = "superblock_copy"   // a copy of a superblock is damaged, or older than the other
	FoundSuperblockLost FindingKind = "superblock_lost"   // no copy of a superblock is valid
	FoundSuperblock     FindingKind = "superblock"        // a superblock says otherwise than the metadata
	FoundStamp          FindingKind = "stamp"             // a stamp is damaged
	FoundVolumeCopy     FindingKind = "volume_table_copy" // a copy of a volume table is damaged
	FoundVolumeTable    FindingKind = "volume_table"      // a volume table says otherwise than the metadata
	FoundEntryDamaged   FindingKind = "slot_entry"        // an entry of a slot table has a bad checksum
	FoundEntryMissing   FindingKind = "slot_owner"        // a slot has another owner by the map than by its slot table
	FoundEntryOrphan    FindingKind = "slot_orphan"       // a slot is free by the map, and has an owner by its slot table
	FoundUncommitted    FindingKind = "uncommitted"       // an entry of a slot table is newer than the last commit
	FoundLog            FindingKind = "staged_log"        // the staged log is missing, damaged or void
	FoundMore           FindingKind = "more"              // so many more of a kind were found and not listed
)

// A Finding is one thing that Check came upon.
type Finding struct {
	Kind     FindingKind `json:"kind"`
	Severity Severity    `json:"severity"`
	Where    string      `json:"where"` // a path, or a volume
	Text     string      `json:"text"`
	Mend     string      `json:"mend"` // what puts it right; "" if there is nothing to be done
}

// What mends a finding.
const (
	mendStart   = "the next start"
	mendRepair  = "pool repair"
	mendRebuild = "pool rebuild"
)

// maxFindings is how many findings of a kind are listed for one place; the rest is
// counted.
const maxFindings = 100

// findings collects what is found, a bounded number of each kind at each place.
type findings struct {
	list []Finding
	seen map[findingPlace]int
	held map[findingPlace]Finding // the last one that was not listed
}

type findingPlace struct {
	where    string
	kind     FindingKind
	severity Severity
}

func (l *findings) add(f Finding) {
	if l.seen == nil {
		l.seen, l.held = make(map[findingPlace]int), make(map[findingPlace]Finding)
	}
	at := findingPlace{f.Where, f.Kind, f.Severity}
	if l.seen[at]++; l.seen[at] <= maxFindings {
		l.list = append(l.list, f)
	} else {
		l.held[at] = f
	}
}

// damage, warning and note add a finding of their severity.
func (l *findings) damage(k FindingKind, where, mend, format string, args ...any) {
	l.add(Finding{k, Damage, where, fmt.Sprintf(format, args...), mend})
}

func (l *findings) warning(k FindingKind, where, mend, format string, args ...any) {
	l.add(Finding{k, Warning, where, fmt.Sprintf(format, args...), mend})
}

func (l *findings) note(k FindingKind, where, mend, format string, args ...any) {
	l.add(Finding{k, Note, where, fmt.Sprintf(format, args...), mend})
}

// all returns the findings in the order in which they were made, and behind them
// how many more there are. What is not listed is of the severity that it had.
func (l *findings) all() []Finding {
	list := slices.Clone(l.list)
	var more []Finding
	for at, f := range l.held {
		more = append(more, Finding{FoundMore, at.severity, at.where,
			fmt.Sprintf("%d more of the kind %s", l.seen[at]-maxFindings, at.kind), f.Mend})
	}
	slices.SortFunc(more, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Where, b.Where), cmp.Compare(a.Text, b.Text))
	})
	return append(list, more...)
}
