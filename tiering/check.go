package tiering

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
	"tierd/tiering/stagedlog"
)

// CheckReport is the outcome of Check.
type CheckReport struct {
	Findings []Finding `json:"findings"`
	Volumes  int       `json:"volumes"`
	Extents  int64     `json:"extents"`
	Slots    int64     `json:"slots"` // whose table entries were looked at
	Commit   uint64    `json:"commit"`
	Clean    bool      `json:"clean_stop"`

	// Counts is how many findings of each severity there are, those that are counted
	// and not listed included.
	Counts map[Severity]int64 `json:"counts"`
}

// Damaged reports whether damage was found.
func (r CheckReport) Damaged() bool { return r.Counts[Damage] > 0 }

// Check looks at a pool that no daemon has open, and changes nothing: the pages of
// the metadata file, the map against the slots and against the slot tables, both
// copies of superblocks and volume tables, incarnations, stamps and the staged
// log. After an unclean stop, table entries that the last commit does not know are
// no damage: the next start mends them.
//
// The metadata file and the backings are locked against a daemon meanwhile. Memory
// is bounded: 12 bytes a slot and at most 96 MiB, since larger pools are looked at
// in several passes; one bit a page of the metadata file; and ten thousand findings.
//
// The error is for what keeps it from looking; what it finds is in the report.
func Check(ctx context.Context, o Options) (CheckReport, error) {
	o.setDefaults()
	c := &checker{o: o, readOnly: true}
	defer c.close()
	err := c.open()
	if err == nil {
		err = c.look(ctx)
	}
	return c.report(), err
}

// checker looks at a pool, for Check or Repair.
type checker struct {
	o        Options
	readOnly bool
	db       *extentmap.DB // nil: the metadata cannot be read
	locked   *extentmap.DB // the metadata of which db is a copy; nil: it is none

	// For Repair.
	mending  bool
	overlays map[string]overlay        // by path, in a dry run: what it would have written
	stale    map[extent.BackingID]bool // are to be used though they may be old copies

	lastLook
}

// lastLook is what one look at a pool has come to.
type lastLook struct {
	CheckReport
	found findings
	state extentmap.State
	size  extent.Size

	backings map[extent.BackingID]*checkedBacking
	lost     map[string]*checkedBacking // by path: those without a valid superblock
	tables   map[uint64][]*ondisk.VolumeTable

	told   []extentmap.Member // of whose failure superblocks know and the metadata do not
	agreed bool               // a volume table, which has a checksum, has the volumes as the metadata have them

	// What Repair works on; see repair.go.
	unheard  bool // a backing has not heard of the last repair
	mends    []mend
	problems []mapProblem                             // extents that are where they cannot be, maxProblems at most
	entries  func(*checkedBacking, []entryDiff) error // takes the entries that are wrong
	unknown  map[extent.VolumeID]*unknownVolume       // volumes that have a map and no record
}

func (c *checker) report() CheckReport {
	c.Findings = c.found.all()
	c.Counts = map[Severity]int64{Damage: c.found.count(Damage), Warning: c.found.count(Warning), Note: c.found.count(Note)}
	return c.CheckReport
}

func (c *checker) close() {
	c.closeBackings()
	for _, db := range []*extentmap.DB{c.db, c.locked} {
		if db != nil {
			_ = db.Close()
		}
	}
}

func (c *checker) progress(step string, done, total int64) {
	if c.o.Progress != nil {
		c.o.Progress(step, done, total)
	}
}

// open reads the pages of the metadata file and opens it. A file that is damaged
// is a finding.
func (c *checker) open() error {
	c.progress("metadata", 0, 1)
	pages, err := extentmap.CheckPages(c.o.Metadata)
	if errors.Is(err, extentmap.ErrNotBolt) {
		return c.unreadable(err)
	} else if err != nil {
		return lockedBy(c.o.Metadata, err)
	}
	if pages.Roots == 0 && len(pages.Problems) == 0 {
		return c.unreadable(errors.New("neither of the two roots of the file is valid"))
	}
	for _, p := range pages.Problems {
		c.found.damage(FoundMetadataPage, c.o.Metadata, mendRebuild, "%s", p)
	}
	if len(pages.Problems) > 0 {
		return c.unreadable(errors.New("its pages are damaged"))
	}
	db, err := extentmap.Open(c.o.Metadata, extentmap.Options{ReadOnly: c.readOnly, Fault: c.o.Fault})
	switch {
	case err == nil:
	case errors.Is(err, extentmap.ErrCorrupt), errors.Is(err, extentmap.ErrNotBolt):
		return c.unreadable(err)
	default:
		return lockedBy(c.o.Metadata, err)
	}
	c.db = db
	if c.overlays != nil {
		c.locked = db
		if c.db, err = openScratch(c.o.Metadata); err != nil {
			return err
		}
	}
	c.progress("metadata", 1, 1)
	c.state = db.State()
	if pages.Roots == 1 {
		c.second(FoundMetadataRoot, c.o.Metadata, mendStart, "one of the two roots of the file is not valid: a commit was cut short, or the page is damaged")
	}
	return nil
}

// unreadable adds that nothing can be read from the metadata file. It is no error:
// there is damage, and a way on.
func (c *checker) unreadable(err error) error {
	c.found.damage(FoundMetadataRecord, c.o.Metadata, mendRebuild,
		"%v: tierctl pool rebuild makes it anew from the backings, tierctl pool restore from a dump and the backings", err)
	return nil
}

// second adds a finding about a second record: damage if all was settled when the
// pool was stopped, else what may be on its way.
func (c *checker) second(k FindingKind, where, mend, format string, args ...any) {
	if c.state.Pool.CleanStop {
		c.found.damage(k, where, mend, format, args...)
	} else {
		c.found.warning(k, where, mend, format, args...)
	}
}

// look looks at everything, given the metadata.
func (c *checker) look(ctx context.Context) error {
	if c.db == nil {
		return c.lookWithoutMap(ctx)
	}
	pr := c.state.Pool
	c.Commit, c.Clean, c.Volumes = pr.Commit, pr.CleanStop, len(c.state.Volumes)
	if pr.State != extentmap.PoolActive {
		c.found.damage(FoundCreating, c.o.Metadata, "pool create", "the creation of the pool was not finished")
		return nil
	}
	var err error
	if c.size, err = extent.NewSize(pr.ExtentSize); err != nil {
		c.found.damage(FoundMetadataRecord, c.o.Metadata, mendRebuild, "extent size: %v", err)
		return nil
	}
	if !pr.CleanStop {
		c.found.note(FoundUnclean, c.o.Metadata, mendStart, "the pool was not stopped cleanly; the next start recovers it")
	}
	c.checkBackings(ctx)
	c.checkRecords()
	c.checkLog()
	if err := c.checkMap(ctx); err != nil {
		return err
	}
	if !c.agreed && c.found.counts[findingClass{FoundPastEnd, Damage}] > 0 {
		c.keepVolumeTables()
	}
	return nil
}

// checkLog looks whether the staged log is there and whether its header is of this
// map.
func (c *checker) checkLog() {
	path := stagedLogPath(c.o.Metadata)
	pr := c.state.Pool
	boot := c.o.BootID
	if boot == "" {
		boot, _ = bootID() // without it the log is void, as it is for the next start
	}
	id := stagedlog.Identity{PoolID: pr.ID, Incarnation: pr.LogIncarnation, BootID: boot, Instances: make(map[extent.BackingID]string)}
	for _, b := range c.backings {
		id.Instances[b.m.ID] = b.store.Instance()
	}
	recs, void, err := stagedlog.Read(path, id, pr.Commit)
	lost := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		if pr.CleanStop {
			// Nothing is in it: the next start begins a new one.
			c.found.note(FoundLog, path, mendStart, "%s; it is not needed after a clean stop", text)
		} else {
			c.found.warning(FoundLog, path, mendStart, "%s: answered writes that were not flushed may be lost", text)
		}
	}
	if err == nil && void == "" && !pr.CleanStop {
		for _, b := range c.backings {
			if unlogged(b.stamp, pr.LogIncarnation, pr, recs) {
				c.found.damage(FoundMetadataOlder, path, mendRebuild, "the metadata and the staged log are older than backing %s: they were restored from a copy", b.spec.Path)
			}
		}
	}
	switch {
	case errors.Is(err, stagedlog.ErrMapOlder):
		c.found.damage(FoundMetadataOlder, path, mendRebuild, "the metadata is older than the staged log: %s", void)
	case errors.Is(err, stagedlog.ErrNotFile):
		c.found.damage(FoundLog, path, "move it away", "the pool cannot be started: %v", err)
	case errors.Is(err, fs.ErrNotExist):
		lost("there is no staged log")
	case errors.Is(err, stagedlog.ErrGap) && pr.CleanStop:
	case err != nil:
		lost("the staged log cannot be used (%v)", err)
	case void != "" && !pr.CleanStop:
		lost("the staged log is void (%s)", void)
	case len(recs) > 0 && !pr.CleanStop:
		c.found.note(FoundLog, path, mendStart, "%d changes are in the staged log; the next start replays them", len(recs))
	}
}
