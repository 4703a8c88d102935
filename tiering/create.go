package tiering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/google/uuid"

	"tierd/pkg/backing"
	"tierd/pkg/clock"
	"tierd/pkg/units"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
	"tierd/tiering/stagedlog"
)

// logBytes is the size of a new staged log: room for a quarter of a million
// changes that await their commit.
const logBytes = 16 << 20

// CreateOptions describe a pool to be made.
type CreateOptions struct {
	Metadata   string
	ExtentSize int64 // bytes
	Tiers      []TierSpec
	Volumes    []VolumeSpec
	// Force lists the paths of backings that may be overwritten whatever they
	// hold.
	Force     []string
	Clock     clock.Clock
	OpenStore OpenStore
	// LogBytes is the size of the staged log; 0 makes it 16 MiB.
	LogBytes int64
	// DryRun checks everything and changes nothing.
	DryRun bool
}

// Created tells what Create made.
type Created struct {
	ID         uuid.UUID
	ExtentSize int64
	Capacity   int64 // bytes in slots
	Backings   int
	Volumes    int
}

// Create makes a pool: superblocks and tables on the backings, the metadata file,
// the staged log and the volumes. It refuses backings that hold something, but
// for those listed in Force and for those left by a Create that was cut short,
// which can be run again. The pool exists from the last step on, one commit.
func Create(ctx context.Context, o CreateOptions) (Created, error) {
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	if o.OpenStore == nil {
		o.OpenStore = OpenBacking
	}
	c := &creation{o: o}
	defer c.close()
	if err := c.plan(); err != nil {
		return Created{}, err
	}
	if err := c.inspect(ctx); err != nil {
		return Created{}, err
	}
	if err := c.checkReservations(); err != nil {
		return Created{}, err
	}
	if o.DryRun {
		return c.result(), nil
	}
	if err := c.write(ctx); err != nil {
		return Created{}, err
	}
	return c.result(), nil
}

// creation is one run of Create.
type creation struct {
	o       CreateOptions
	size    extent.Size
	state   extentmap.State
	retry   uuid.UUID // the pool that an earlier run was creating; zero if none
	stores  []backing.Store
	layouts []ondisk.Layout
	specs   []BackingSpec
	fresh   []bool // the backing does not exist yet

	reserved int64 // extents promised to volumes
}

func (c *creation) close() {
	for _, st := range c.stores {
		if st != nil {
			_ = st.Close()
		}
	}
}

func (c *creation) result() Created {
	r := Created{ID: c.state.Pool.ID, ExtentSize: c.size.Bytes(), Backings: len(c.specs), Volumes: len(c.state.Volumes)}
	for _, l := range c.layouts {
		r.Capacity += int64(l.Slots) * c.size.Bytes()
	}
	return r
}

// plan makes the metadata's records from the options.
func (c *creation) plan() error {
	size, err := extent.NewSize(c.o.ExtentSize)
	if err != nil {
		return invalid("%w", err)
	}
	c.size = size
	if len(c.o.Tiers) == 0 {
		return invalid("a pool needs at least one tier")
	}
	now := c.o.Clock.Now().UTC().Truncate(time.Second)
	c.state.Pool = extentmap.PoolRecord{
		ID: uuid.New(), FormatVersion: extentmap.FormatVersion, ExtentSize: size.Bytes(), State: extentmap.PoolCreating,
		Created: now, Incarnation: 1, LogIncarnation: 1, Continuity: uuid.New(), CleanStop: true,
		NextVolume: 1, NextBacking: 1, VolumeGeneration: 1,
	}
	var names []string
	for i, t := range c.o.Tiers {
		if slices.Contains(names, t.Name) {
			return invalid("tier %s: the name is taken", t.Name)
		}
		if len(t.Backings) == 0 {
			return invalid("tier %s has no backing", t.Name)
		}
		names = append(names, t.Name)
		c.state.Tiers = append(c.state.Tiers, extentmap.TierRecord{ID: extent.TierID(i), Name: t.Name, Media: string(t.Media)})
		for _, b := range t.Backings {
			b.Media = t.Media
			c.specs = append(c.specs, b)
			c.state.Members = append(c.state.Members, extentmap.Member{
				ID: c.state.Pool.NextBacking, UUID: uuid.New(), Tier: extent.TierID(i), Path: b.Path,
				State: extentmap.MemberOK, Incarnation: 1,
			})
			c.state.Pool.NextBacking++
		}
	}
	if c.state.Pool.NextBacking > extent.MaxBackingID {
		return invalid("%d backings are more than %d", len(c.specs), extent.MaxBackingID)
	}
	for _, v := range c.o.Volumes {
		c.reserved += int64(size.Count(v.Reservation))
		r, err := newVolumeRecord(&c.state, size, v, now, names)
		if err != nil {
			return err
		}
		c.state.Volumes = append(c.state.Volumes, r)
		c.state.Pool.NextVolume++
	}
	return nil
}

// inspect opens what exists and refuses what must not be overwritten. It changes
// nothing.
func (c *creation) inspect(ctx context.Context) error {
	if err := checkServed(c.o.Metadata, c.specs); err != nil {
		return err
	}
	if err := c.inspectMetadata(); err != nil {
		return err
	}
	paths := make([]string, len(c.specs))
	for i, s := range c.specs {
		paths[i] = s.Path
	}
	if err := checkDistinct(c.o.Metadata, paths); err != nil {
		return err
	}
	c.stores = make([]backing.Store, len(c.specs))
	c.layouts = make([]ondisk.Layout, len(c.specs))
	c.fresh = make([]bool, len(c.specs))
	for i, spec := range c.specs {
		if isEmptyFile(spec) {
			c.fresh[i] = true
			var err error
			if c.layouts[i], err = ondisk.NewLayout(spec.Size, c.size); err != nil {
				return fmt.Errorf("backing %s: %w", spec.Path, err)
			}
			continue
		}
		st, err := c.o.OpenStore(ctx, spec, false, c.o.DryRun)
		if errors.Is(err, fs.ErrNotExist) {
			if spec.Size == 0 {
				return refuse("backing %s does not exist and has no size to be created with", spec.Path)
			}
			if err := checkNewFile(spec.Path); err != nil {
				return err
			}
			c.fresh[i] = true
			if c.layouts[i], err = ondisk.NewLayout(spec.Size, c.size); err != nil {
				return fmt.Errorf("backing %s: %w", spec.Path, err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("open backing %s: %w", spec.Path, err)
		}
		c.stores[i] = st
		if c.layouts[i], err = ondisk.NewLayout(st.Size(), c.size); err != nil {
			return fmt.Errorf("backing %s: %w", spec.Path, err)
		}
		if spec.Size != 0 && st.Size() != spec.Size {
			return refuse("backing %s exists with %d bytes, not the %d asked for", spec.Path, st.Size(), spec.Size)
		}
		if slices.Contains(c.o.Force, spec.Path) {
			continue
		}
		ours := func(sb *ondisk.Superblock) bool { return c.retry != uuid.Nil && sb.PoolID == c.retry }
		if err := inspectBacking(ctx, spec.Path, st, "--force "+spec.Path, ours); err != nil {
			return err
		}
	}
	return nil
}

// checkReservations refuses to promise more than there is.
func (c *creation) checkReservations() error {
	var slots int64
	for _, l := range c.layouts {
		slots += int64(l.Slots)
	}
	for i := range c.o.Tiers {
		var tier int64
		for j, m := range c.state.Members {
			if m.Tier == extent.TierID(i) {
				tier += int64(c.layouts[j].Slots)
			}
		}
		slots -= keptForMoves(tier, len(c.state.Members))
	}
	if c.reserved > slots {
		size := units.Size(c.size.Bytes())
		return invalid("the volumes' reservations take %s, and the pool has %s for them", units.Size(c.reserved)*size, units.Size(slots)*size)
	}
	return nil
}

// isEmptyFile reports whether there is nothing but a name, as a Create leaves it
// that was cut short between making a file and giving it its size.
func isEmptyFile(spec BackingSpec) bool {
	info, err := os.Lstat(spec.Path)
	return err == nil && info.Mode().IsRegular() && info.Size() == 0 && spec.Size != 0
}

// inspectMetadata refuses an existing pool. What a Create left that was cut short
// is remembered: its superblocks may be overwritten.
func (c *creation) inspectMetadata() error {
	db, err := extentmap.Open(c.o.Metadata, extentmap.Options{ReadOnly: true})
	if errors.Is(err, extentmap.ErrNotExist) {
		return nil
	}
	if err != nil {
		return lockedBy(c.o.Metadata, err)
	}
	defer db.Close()
	if p := db.State().Pool; p.State == extentmap.PoolCreating {
		c.retry = p.ID
		return nil
	}
	return refuse("metadata %s: a pool exists there already", c.o.Metadata)
}

// inspectBacking refuses a backing that holds anything, but for what an unfinished
// creation left and what ours says may be overwritten. Force is the flag that
// overwrites the rest.
func inspectBacking(ctx context.Context, path string, st backing.Store, force string, ours func(*ondisk.Superblock) bool) error {
	hint := "use " + force + " to overwrite it"
	sb, err := ondisk.ReadSuperblock(ctx, st)
	switch {
	case err == nil && (sb.State == ondisk.BackingCreating || ours(sb)):
		return nil
	case err == nil:
		return refuse("backing %s belongs to pool %s; %s", path, sb.PoolID, hint)
	case !errors.Is(err, ondisk.ErrNoSuperblock):
		return refuse("backing %s carries a superblock (%v); %s", path, err, hint)
	}
	name, err := backing.FindSignature(ctx, backing.ReaderAt(ctx, st), st.Size())
	if err != nil {
		return fmt.Errorf("look for signatures on backing %s: %w", path, err)
	}
	if name != "" {
		return refuse("backing %s carries %s; %s", path, name, hint)
	}
	head := make([]byte, min(1<<20, st.Size()))
	if err := st.ReadAt(ctx, head, 0); err != nil {
		return fmt.Errorf("read backing %s: %w", path, err)
	}
	if !allZero(head) {
		return refuse("backing %s holds data of an unknown kind; %s", path, hint)
	}
	return nil
}

// write makes the pool. Until the last commit it is in the state creating.
func (c *creation) write(ctx context.Context) error {
	if c.retry != uuid.Nil {
		if err := c.demote(ctx); err != nil {
			return err
		}
		if err := os.Remove(c.o.Metadata); err != nil {
			return fmt.Errorf("remove unfinished metadata: %w", err)
		}
	}
	for i := range c.specs {
		m := &c.state.Members[i]
		m.Size, m.Slots = c.layouts[i].Size, c.layouts[i].Slots
	}
	if err := extentmap.Create(c.o.Metadata, c.state); err != nil {
		return err
	}
	db, err := extentmap.Open(c.o.Metadata, extentmap.Options{})
	if err != nil {
		return err
	}
	defer db.Close()
	for i, spec := range c.specs {
		if err := c.writeBacking(ctx, i, spec, ondisk.BackingCreating); err != nil {
			return err
		}
	}
	logPath := stagedLogPath(c.o.Metadata)
	if err := os.Remove(logPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old staged log: %w", err)
	}
	if err := os.Remove(budgetPath(c.o.Metadata)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old budget: %w", err)
	}
	if err := os.Remove(heatPath(c.o.Metadata)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old heat: %w", err)
	}
	if err := stagedlog.Create(logPath, cmp.Or(c.o.LogBytes, logBytes)); err != nil {
		return err
	}
	for i, spec := range c.specs {
		if err := c.writeBacking(ctx, i, spec, ondisk.BackingActive); err != nil {
			return err
		}
	}
	members := slices.Clone(c.state.Members)
	for i, st := range c.stores {
		members[i].Instance = st.Instance()
	}
	_, err = db.Commit(ctx, &extentmap.Changes{
		Members: members,
		Pool:    func(p *extentmap.PoolRecord) { p.State = extentmap.PoolActive },
	})
	if err != nil {
		return fmt.Errorf("finish metadata: %w", err)
	}
	return nil
}

// demote takes back what an unfinished Create had finished: a backing that says it
// is active would be a stranger once the metadata is gone that knows its pool.
func (c *creation) demote(ctx context.Context) error {
	for i, st := range c.stores {
		if st == nil {
			continue
		}
		sb, err := ondisk.ReadSuperblock(ctx, st)
		if err != nil || sb.PoolID != c.retry || sb.State == ondisk.BackingCreating {
			continue // inspected before: there is none, or it is as it should be, or force is used
		}
		sb.State = ondisk.BackingCreating
		if err := ondisk.WriteSuperblock(ctx, st, sb); err != nil {
			return fmt.Errorf("write superblock of %s: %w", c.specs[i].Path, err)
		}
	}
	return nil
}

// writeBacking brings one backing to a state: creating clears it first.
func (c *creation) writeBacking(ctx context.Context, i int, spec BackingSpec, state ondisk.BackingState) error {
	if c.stores[i] == nil {
		if isEmptyFile(spec) {
			if err := os.Remove(spec.Path); err != nil {
				return fmt.Errorf("remove empty backing: %w", err)
			}
		}
		st, err := c.o.OpenStore(ctx, spec, true, false)
		if err != nil {
			return fmt.Errorf("create backing %s: %w", spec.Path, err)
		}
		c.stores[i] = st
	}
	st, l := c.stores[i], c.layouts[i]
	if state == ondisk.BackingCreating {
		if err := ondisk.Format(ctx, st, l); err != nil {
			return fmt.Errorf("format backing %s: %w", spec.Path, err)
		}
	} else {
		if err := ondisk.WriteVolumeTable(ctx, st, l, c.state.Pool.ID, volumeTableOf(c.state)); err != nil {
			return fmt.Errorf("write volume table of %s: %w", spec.Path, err)
		}
		if err := st.Sync(ctx); err != nil {
			return fmt.Errorf("sync backing %s: %w", spec.Path, err)
		}
	}
	sb := superblockOf(c.state, c.state.Members[i].ID, l, 1)
	sb.State = state
	if err := ondisk.WriteSuperblock(ctx, st, sb); err != nil {
		return fmt.Errorf("write superblock of %s: %w", spec.Path, err)
	}
	return nil
}

func stagedLogPath(metadata string) string { return metadata + ".log" }
func heatPath(metadata string) string      { return metadata + ".heat" }
