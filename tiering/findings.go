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
	FoundIncarnation    FindingKind = "incarnation"       // a backing has not heard of the last repair
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
	mendStart       = "the next start"
	mendRepair      = "pool repair"
	mendClear       = "pool repair --clear-failed"
	mendAcceptLoss  = "pool repair --accept-loss"
	mendAcceptStale = "pool repair --accept-stale"
	mendComplete    = "pool repair, when every backing can be read"
	mendRebuild     = "pool rebuild"
)

// maxFindings is how many findings of a kind are listed for one place, and maxListed
// how many in all; the rest is counted. Places beyond maxPlaces are counted as one.
const (
	maxFindings = 100
	maxListed   = 10000
	maxPlaces   = 1000
)

// findings collects what is found, a bounded number of each kind at each place.
type findings struct {
	list   []Finding
	places map[findingPlace]*placeCount
	counts map[findingClass]int64 // all, listed or not

	// outdated: the metadata are not the newest, or not whole, so that nothing follows
	// from them.
	outdated bool
}

type findingClass struct {
	kind     FindingKind
	severity Severity
}

type findingPlace struct {
	where string
	findingClass
}

// placeCount is what there is of a kind at one place.
type placeCount struct {
	listed, more int64
	mend         string // of the last one that is not listed
}

func (l *findings) add(f Finding) {
	if l.places == nil {
		l.places, l.counts = make(map[findingPlace]*placeCount), make(map[findingClass]int64)
	}
	l.outdated = l.outdated || f.Kind == FoundMetadataOlder || f.Kind == FoundCreating || f.Mend == mendRebuild
	class := findingClass{f.Kind, f.Severity}
	l.counts[class]++
	at := findingPlace{f.Where, class}
	if l.places[at] == nil {
		if len(l.places) >= maxPlaces {
			at.where = "elsewhere"
		}
		if l.places[at] == nil {
			l.places[at] = new(placeCount)
		}
	}
	if n := l.places[at]; n.listed < maxFindings && len(l.list) < maxListed {
		n.listed++
		l.list = append(l.list, f)
	} else {
		n.more++
		n.mend = f.Mend
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

// count returns how many findings of a severity there are, listed or not.
func (l *findings) count(s Severity) (n int64) {
	for class, k := range l.counts {
		if class.severity == s {
			n += k
		}
	}
	return n
}

// all returns the findings in the order in which they were made, and behind them
// how many more there are. What is not listed is of the severity that it had.
func (l *findings) all() []Finding {
	list := slices.Clone(l.list)
	var more []Finding
	for at, n := range l.places {
		if n.more > 0 {
			more = append(more, Finding{FoundMore, at.severity, at.where, fmt.Sprintf("and %d more of the kind %s", n.more, at.kind), n.mend})
		}
	}
	slices.SortFunc(more, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Where, b.Where), cmp.Compare(a.Text, b.Text), cmp.Compare(a.Severity, b.Severity))
	})
	return append(list, more...)
}
