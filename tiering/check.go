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
	found  findings
}

// Check looks at a pool that no daemon has open, and changes nothing: the pages of
// the metadata file, the map against the slots and against the slot tables,
// superblocks, incarnations and stamps. After an unclean stop, table entries that
// the last commit does not know are no damage: the next start mends them.
//
// The error is for what keeps it from looking; what it finds is in the report.
func Check(ctx context.Context, o Options) (CheckReport, error) {
	o.setDefaults()
	c := &checker{owners: make(map[extent.Location]extent.Key)}
	err := c.run(ctx, o)
	c.Findings = c.found.all()
	return c.CheckReport, err
}

func (c *checker) run(ctx context.Context, o Options) error {
	problems, err := extentmap.Check(o.Metadata)
	if err != nil {
		return lockedBy(o.Metadata, err)
	}
	for _, p := range problems {
		c.found.add(Finding{FoundMetadataPage, Damage, o.Metadata, fmt.Sprintf("%s", p), ""})
	}
	db, err := extentmap.Open(o.Metadata, extentmap.Options{ReadOnly: true})
	if err != nil {
		return lockedBy(o.Metadata, err)
	}
	defer db.Close()
	c.state = db.State()
	c.Commit, c.Clean, c.Volumes = c.state.Pool.Commit, c.state.Pool.CleanStop, len(c.state.Volumes)
	if c.state.Pool.State != extentmap.PoolActive {
		c.found.add(Finding{FoundCreating, Damage, o.Metadata, fmt.Sprintf("the creation of the pool was not finished; run pool create again"), ""})
		return nil
	}
	if !c.Clean {
		c.found.add(Finding{FoundUnclean, Note, o.Metadata, fmt.Sprintf("the pool was not stopped cleanly; the next start recovers it"), ""})
	}
	if err := c.checkMap(db); err != nil {
		return err
	}
	op := &opening{o: o, db: db, state: c.state, found: make(map[extent.BackingID]*candidate)}
	defer func() {
		for _, f := range op.found {
			_ = f.store.Close()
		}
	}()
	c.checkBackings(ctx, op)
	return nil
}

// checkMap looks for extents and slots out of range and for slots owned twice.
func (c *checker) checkMap(db *extentmap.DB) error {
	size, err := extent.NewSize(c.state.Pool.ExtentSize)
	if err != nil {
		c.found.add(Finding{FoundMetadataRecord, Damage, "metadata", fmt.Sprintf("%v", err), ""})
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
					c.found.add(Finding{FoundPastEnd, Damage, where, fmt.Sprintf("extent %d is past the end of the volume", key.Index), ""})
				case !member:
					c.found.add(Finding{FoundNoBacking, Damage, where, fmt.Sprintf("extent %d is on backing %d, which the pool does not have", key.Index, l.Backing), ""})
				case uint32(l.Slot) >= n:
					c.found.add(Finding{FoundSlotRange, Damage, where, fmt.Sprintf("extent %d is in slot %d of backing %d, which has %d", key.Index, l.Slot, l.Backing, n), ""})
				}
				if other, taken := c.owners[l]; taken {
					c.found.add(Finding{FoundDoubleOwner, Damage, where, fmt.Sprintf("slot %d of backing %d belongs to extent %d and to %v", l.Slot, l.Backing, key.Index, other), ""})
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
			c.found.add(Finding{FoundUnreadable, Damage, s.Path, fmt.Sprintf("%v", err), ""})
		}
	}
	for _, w := range op.warn {
		c.found.add(Finding{FoundForeign, Note, "configuration", fmt.Sprintf("%s", w), ""})
	}
	for _, m := range c.state.Members {
		switch found := op.found[m.ID]; {
		case m.State == extentmap.MemberForgotten:
		case found == nil:
			c.found.add(Finding{FoundMissing, Damage, m.Path, fmt.Sprintf("backing %d (%s) is missing", m.ID, m.UUID), ""})
		default:
			if m.State == extentmap.MemberFailed {
				c.found.add(Finding{FoundFailed, Damage, m.Path, fmt.Sprintf("backing has failed: %s", m.Error), ""})
			}
			if err := op.checkMember(ctx, m, found); err != nil {
				c.found.add(Finding{FoundStale, Damage, m.Path, fmt.Sprintf("%v", err), ""})
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
			c.found.add(Finding{FoundEntryDamaged, severity, m.Path, fmt.Sprintf("entry of slot %d has a bad checksum", s), ""})
		case owned && (e.Kind != ondisk.Owner || e.Key != key):
			c.found.add(Finding{FoundEntryMissing, severity, m.Path, fmt.Sprintf("slot %d holds %v by the map, and not by the slot table", s, key), ""})
		case !owned && e.Kind == ondisk.Owner:
			c.found.add(Finding{FoundEntryOrphan, severity, m.Path, fmt.Sprintf("slot %d is free by the map, and holds %v by the slot table", s, e.Key), ""})
		}
		return true
	})
	if err != nil {
		c.found.add(Finding{FoundUnreadable, Damage, m.Path, fmt.Sprintf("slot table cannot be read: %v", err), ""})
	}
	vt, err := ondisk.ReadVolumeTable(ctx, f.store, f.sb.Layout, c.state.Pool.ID)
	switch {
	case err != nil:
		c.found.add(Finding{FoundVolumeTable, Damage, m.Path, fmt.Sprintf("volume table cannot be read: %v", err), ""})
	case vt.Generation != c.state.Pool.VolumeGeneration:
		c.found.add(Finding{FoundVolumeTable, severity, m.Path, fmt.Sprintf("volume table is of generation %d, the metadata of %d", vt.Generation, c.state.Pool.VolumeGeneration), ""})
	}
}
