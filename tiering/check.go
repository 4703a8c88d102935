package tiering

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// Severity says what a finding of Check means.
type Severity string

// The severities.
const (
	// Damage: something is wrong, or would be if the metadata were lost.
	Damage Severity = "damage"
	// Note: something that the next start puts right, or that explains a state.
	Note Severity = "note"
)

// A Finding is one thing that Check came upon.
type Finding struct {
	Severity Severity `json:"severity"`
	Where    string   `json:"where"`
	What     string   `json:"what"`
}

// CheckReport is the outcome of Check.
type CheckReport struct {
	Findings []Finding `json:"findings"`
	Volumes  int       `json:"volumes"`
	Extents  int64     `json:"extents"`
	Slots    int64     `json:"slots"`
	Commit   uint64    `json:"commit"`
	Clean    bool      `json:"clean_stop"`
}

// Damaged reports whether anything worse than a note was found.
func (r CheckReport) Damaged() bool {
	for _, f := range r.Findings {
		if f.Severity == Damage {
			return true
		}
	}
	return false
}

// checker is one run of Check.
type checker struct {
	CheckReport
	state  extentmap.State
	owners map[extent.Location]extent.Key // by the map
	seen   map[string]int                 // findings of a kind, to list only so many
}

// maxFindings is how many findings of a kind are listed; the rest is counted.
const maxFindings = 100

func (c *checker) add(s Severity, where, kind, format string, args ...any) {
	key := where + kind
	if c.seen[key]++; c.seen[key] <= maxFindings {
		c.Findings = append(c.Findings, Finding{s, where, fmt.Sprintf(format, args...)})
	}
}

// Check looks at a pool that no daemon has open, and changes nothing: the pages of
// the metadata file, the map against the slots and against the slot tables,
// superblocks, incarnations and stamps. After an unclean stop, table entries that
// the last commit does not know are no damage: the next start mends them.
//
// The error is for what keeps it from looking; what it finds is in the report.
func Check(ctx context.Context, o Options) (CheckReport, error) {
	o.setDefaults()
	c := &checker{owners: make(map[extent.Location]extent.Key), seen: make(map[string]int)}
	problems, err := extentmap.Check(o.Metadata)
	if err != nil {
		return c.CheckReport, err
	}
	for _, p := range problems {
		c.add(Damage, o.Metadata, "page", "%s", p)
	}
	db, err := extentmap.Open(o.Metadata, extentmap.Options{ReadOnly: true})
	if err != nil {
		return c.CheckReport, err
	}
	defer db.Close()
	c.state = db.State()
	c.Commit, c.Clean, c.Volumes = c.state.Pool.Commit, c.state.Pool.CleanStop, len(c.state.Volumes)
	if c.state.Pool.State != extentmap.PoolActive {
		c.add(Damage, o.Metadata, "state", "the creation of the pool was not finished; run pool create again")
		return c.CheckReport, nil
	}
	if !c.Clean {
		c.add(Note, o.Metadata, "clean", "the pool was not stopped cleanly; the next start recovers it")
	}
	if err := c.checkMap(db); err != nil {
		return c.CheckReport, err
	}
	op := &opening{o: o, db: db, state: c.state, found: make(map[extent.BackingID]*candidate)}
	defer func() {
		for _, f := range op.found {
			_ = f.store.Close()
		}
	}()
	c.checkBackings(ctx, op)
	for key, n := range c.seen {
		if n > maxFindings {
			c.Findings = append(c.Findings, Finding{Note, key, fmt.Sprintf("%d more of this kind", n-maxFindings)})
		}
	}
	return c.CheckReport, nil
}

// checkMap looks for extents and slots out of range and for slots owned twice.
func (c *checker) checkMap(db *extentmap.DB) error {
	size, err := extent.NewSize(c.state.Pool.ExtentSize)
	if err != nil {
		c.add(Damage, "metadata", "size", "%v", err)
		return nil
	}
	slots := make(map[extent.BackingID]uint32)
	for _, m := range c.state.Members {
		slots[m.ID] = m.Slots
	}
	for _, v := range c.state.Volumes {
		where := "volume " + v.Name
		err := db.LoadMap(v.ID, func(first extent.Index, locs []extent.Location) error {
			for i, l := range locs {
				if l.IsZero() {
					continue
				}
				key := extent.Key{Volume: v.ID, Index: first + extent.Index(i)}
				c.Extents++
				n, member := slots[l.Backing]
				switch {
				case key.Index >= size.Count(v.Size):
					c.add(Damage, where, "range", "extent %d is past the end of the volume", key.Index)
				case !member:
					c.add(Damage, where, "backing", "extent %d is on backing %d, which the pool does not have", key.Index, l.Backing)
				case uint32(l.Slot) >= n:
					c.add(Damage, where, "slot", "extent %d is in slot %d of backing %d, which has %d", key.Index, l.Slot, l.Backing, n)
				}
				if other, taken := c.owners[l]; taken {
					c.add(Damage, where, "owner", "slot %d of backing %d belongs to extent %d and to %v", l.Slot, l.Backing, key.Index, other)
				}
				c.owners[l] = key
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read map of volume %s: %w", v.Name, err)
		}
	}
	return nil
}

// checkBackings looks at every member's superblock, stamp and tables.
func (c *checker) checkBackings(ctx context.Context, op *opening) {
	readOnly := op.o.OpenStore
	op.o.OpenStore = func(ctx context.Context, spec BackingSpec, create, _ bool) (backing.Store, error) {
		return readOnly(ctx, spec, create, true)
	}
	specs := append([]BackingSpec(nil), op.o.Backings...)
	known := make(map[string]bool)
	for _, s := range specs {
		known[s.Path] = true
	}
	for _, m := range c.state.Members {
		if !known[m.Path] {
			specs = append(specs, BackingSpec{Path: m.Path})
		}
	}
	for _, s := range specs {
		if err := op.tryCandidate(ctx, s); err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.add(Damage, s.Path, "open", "%v", err)
		}
	}
	for _, w := range op.warn {
		c.add(Note, "configuration", "warning", "%s", w)
	}
	for _, m := range c.state.Members {
		switch found := op.found[m.ID]; {
		case m.State == extentmap.MemberForgotten:
		case found == nil:
			c.add(Damage, m.Path, "missing", "backing %d (%s) is missing", m.ID, m.UUID)
		default:
			if m.State == extentmap.MemberFailed {
				c.add(Damage, m.Path, "failed", "backing has failed: %s", m.Error)
			}
			if err := op.checkMember(ctx, m, found); err != nil {
				c.add(Damage, m.Path, "member", "%v", err)
				continue
			}
			c.checkTables(ctx, m, found)
		}
	}
}

// checkTables compares the tables of one backing with the metadata.
func (c *checker) checkTables(ctx context.Context, m extentmap.Member, f *candidate) {
	// After an unclean stop the tables may be behind, or ahead of, the map.
	severity := Damage
	if !c.Clean {
		severity = Note
	}
	t := ondisk.NewSlotTable(f.store, c.state.Pool.ID, m.UUID, m.ID, f.sb.Layout)
	err := t.Scan(ctx, func(s extent.Slot, e ondisk.SlotEntry, valid bool) bool {
		c.Slots++
		key, owned := c.owners[extent.Location{Backing: m.ID, Slot: s}]
		switch {
		case !valid:
			c.add(severity, m.Path, "crc", "entry of slot %d has a bad checksum", s)
		case owned && (e.Kind != ondisk.Owner || e.Key != key):
			c.add(severity, m.Path, "entry", "slot %d holds %v by the map, and not by the slot table", s, key)
		case !owned && e.Kind == ondisk.Owner:
			c.add(severity, m.Path, "stale", "slot %d is free by the map, and holds %v by the slot table", s, e.Key)
		}
		return true
	})
	if err != nil {
		c.add(Damage, m.Path, "table", "slot table cannot be read: %v", err)
	}
	vt, err := ondisk.ReadVolumeTable(ctx, f.store, f.sb.Layout, c.state.Pool.ID)
	switch {
	case err != nil:
		c.add(Damage, m.Path, "volumes", "volume table cannot be read: %v", err)
	case vt.Generation != c.state.Pool.VolumeGeneration:
		c.add(severity, m.Path, "volumes", "volume table is of generation %d, the metadata of %d", vt.Generation, c.state.Pool.VolumeGeneration)
	}
}
