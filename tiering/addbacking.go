package tiering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/google/uuid"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
	"tierd/tiering/stagedlog"
)

// AddOptions say what AddBacking adds, and where.
type AddOptions struct {
	Tier string
	// Before or After names the tier beside which Tier is made as a new one; neither:
	// it exists.
	Before, After string
	// Media of a new tier; "" asks the kernel.
	Media   backing.Media
	Backing BackingSpec
	Force   bool // overwrite whatever it holds
	DryRun  bool // check everything and change nothing
}

// Added tells what AddBacking made.
type Added struct {
	ID       extent.BackingID
	UUID     uuid.UUID
	Path     string
	Tier     string
	Rank     int
	NewTier  bool
	NewFile  bool
	Slots    int64
	Capacity int64 // bytes in slots
}

// AddBacking makes a file or device a backing of the pool. A backing that holds
// something is refused, as Create does it. The order of its steps makes a crash
// between them harmless: until the last one the backing is none of the pool, and can
// be added again.
//
//  1. An id is taken, durably, so that no other backing gets it.
//  2. The backing is formatted; its superblock says creating.
//  3. It gets the volume table and a superblock that says active and lists it.
//  4. The staged log learns of its instance.
//  5. One commit makes it a member, and with it the ranks of the tiers what they are.
//  6. It is used; the superblocks of the others follow. A crash before that is made
//     up for by the next open.
func (p *Pool) AddBacking(ctx context.Context, o AddOptions) (Added, error) {
	p.adminMu.Lock()
	defer p.adminMu.Unlock()
	if err := p.changeable(ctx); err != nil {
		return Added{}, err
	}
	a := &adding{p: p, o: o}
	defer a.close()
	err := a.plan()
	if err == nil {
		err = a.inspect(ctx)
	}
	if err == nil && !o.DryRun {
		err = a.write(ctx)
	}
	if err == nil && !o.DryRun {
		err = a.join()
	}
	if err != nil {
		return Added{}, err
	}
	return a.result(), nil
}

// adding is one run of AddBacking. Pool.adminMu is held.
type adding struct {
	p      *Pool
	o      AddOptions
	next   []*tier // all tiers, as they will be
	tier   *tier   // where the backing goes
	fresh  bool    // the tier is new
	create bool    // the file is
	store  backing.Store
	layout ondisk.Layout
	rec    extentmap.Member
	member *member // once it is one
}

func (a *adding) close() {
	if a.store != nil && a.member == nil {
		_ = a.store.Close()
	}
}

func (a *adding) result() Added {
	return Added{
		ID: a.rec.ID, UUID: a.rec.UUID, Path: a.o.Backing.Path, Tier: a.tier.name, Rank: int(a.rec.Tier), NewTier: a.fresh, NewFile: a.create,
		Slots: int64(a.layout.Slots), Capacity: int64(a.layout.Slots) * a.p.size.Bytes(),
	}
}

// checkTierName refuses names that policies, labels or configurations could
// stumble over.
func checkTierName(name string) error {
	switch {
	case name == "":
		return invalid("tier name is empty")
	case len(name) > 255:
		return invalid("tier name of %d bytes: at most 255 are allowed", len(name))
	case name == "auto" || name == "highest" || name == "lowest":
		return invalid("tier name %q is that of a policy", name)
	case strings.ContainsFunc(name, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || r == '/' }):
		return invalid("tier name %q has a space, a slash or a control character", name)
	}
	return nil
}

// tierNamed returns the tier of a name, or nil.
func (p *Pool) tierNamed(name string) *tier {
	for _, t := range p.ranks() {
		if t.name == name {
			return t
		}
	}
	return nil
}

// plan finds the tier and looks whether there is another backing of that path.
func (a *adding) plan() error {
	p, o := a.p, a.o
	if !filepath.IsAbs(o.Backing.Path) {
		return invalid("backing %q: the path must be absolute", o.Backing.Path)
	}
	var taken error
	p.eachMember(func(b *member) {
		if b.path == o.Backing.Path {
			taken = fmt.Errorf("backing %s is a member of tier %s: %w", b.path, b.tier.name, ErrExists)
		}
	})
	if taken != nil {
		return taken
	}
	if err := checkServed(p.opts.Metadata, []BackingSpec{o.Backing}); err != nil {
		return err
	}
	paths := []string{o.Backing.Path}
	p.eachMember(func(b *member) { paths = append(paths, b.path) })
	if err := checkDistinct(p.opts.Metadata, paths); err != nil {
		return err
	}
	a.tier = p.tierNamed(o.Tier)
	a.next = p.ranks()
	beside := cmp.Or(o.Before, o.After)
	switch {
	case o.Before != "" && o.After != "":
		return invalid("a new tier goes before one tier or after one, not both")
	case beside == "" && a.tier == nil:
		return fmt.Errorf("tier %q: %w; say where a new one goes", o.Tier, ErrNotFound)
	case beside != "" && a.tier != nil:
		return fmt.Errorf("tier %q: %w", o.Tier, ErrExists)
	case beside == "":
		if o.Media != "" && o.Media != a.tier.media {
			return invalid("tier %s is of media %s, not %s", a.tier.name, a.tier.media, o.Media)
		}
	default:
		if err := checkTierName(o.Tier); err != nil {
			return err
		}
		other := p.tierNamed(beside)
		if other == nil {
			return fmt.Errorf("tier %q: %w", beside, ErrNotFound)
		}
		at := int(other.rank())
		if o.After != "" {
			at++
		}
		if len(a.next) > maxTierRank {
			return invalid("the pool has %d tiers, and cannot have more", len(a.next))
		}
		a.fresh = true
		a.tier = newTier(o.Tier, o.Media)
		a.next = slices.Insert(slices.Clone(a.next), at, a.tier)
	}
	if p.db.Pool().NextBacking >= extent.MaxBackingID {
		return invalid("the pool has had %d backings, and cannot have more", extent.MaxBackingID-1)
	}
	return nil
}

// maxTierRank is the highest rank that an id of a tier can say.
const maxTierRank = 255

// inspect opens the backing, if it exists, and refuses what must not be
// overwritten. It changes nothing.
func (a *adding) inspect(ctx context.Context) error {
	spec := a.spec()
	if isEmptyFile(spec) {
		a.create = true
	} else {
		st, err := a.p.opts.OpenStore(ctx, spec, false, a.o.DryRun)
		switch {
		case errors.Is(err, fs.ErrNotExist) && spec.Size == 0:
			return refuse("backing %s does not exist and has no size to be created with", spec.Path)
		case errors.Is(err, fs.ErrNotExist):
			if err := checkNewFile(spec.Path); err != nil {
				return err
			}
			a.create = true
		case err != nil:
			return fmt.Errorf("open backing %s: %w", spec.Path, err)
		default:
			a.store = st
		}
	}
	size := spec.Size
	if a.store != nil {
		if size != 0 && size != a.store.Size() {
			return refuse("backing %s exists with %d bytes, not the %d asked for", spec.Path, a.store.Size(), size)
		}
		size = a.store.Size()
		if err := a.inspectContent(ctx); err != nil {
			return err
		}
	}
	var err error
	if a.layout, err = ondisk.NewLayout(size, a.p.size); err != nil {
		return &classed{fmt.Errorf("backing %s: %w", spec.Path, err), ErrRefused}
	}
	return nil
}

func (a *adding) spec() BackingSpec {
	spec := a.o.Backing
	spec.Media = a.tier.media
	return spec
}

// inspectContent refuses what is in use, and without force what holds something.
// What an addition or a removal left that was cut short may be overwritten: it is of
// this pool and no member, and nothing was ever put on it, or all of it was moved
// away. A backing that this metadata does not know yet is none of these.
func (a *adding) inspectContent(ctx context.Context) error {
	state := a.p.db.State()
	path := a.o.Backing.Path
	if sb, err := ondisk.ReadSuperblock(ctx, a.store); err == nil && sb.PoolID == state.Pool.ID {
		for _, m := range state.Members {
			if m.UUID == sb.BackingUUID && m.State != extentmap.MemberForgotten {
				return fmt.Errorf("backing %s is a member (id %d, at %s): %w", path, m.ID, m.Path, ErrExists)
			}
		}
	}
	if a.o.Force {
		return nil
	}
	return inspectBacking(ctx, path, a.store, "--force", func(sb *ondisk.Superblock) bool { return leftBehind(state, sb) })
}

// leftBehind reports whether sb is of a backing of the pool that was being added, or
// was removed, so that it holds nothing. Its id is none that the metadata has yet to
// give out: then they would be older than the backing.
func leftBehind(state extentmap.State, sb *ondisk.Superblock) bool {
	if sb.PoolID != state.Pool.ID || sb.Backing >= state.Pool.NextBacking || sb.Incarnation > state.Pool.Incarnation {
		return false
	}
	return !slices.ContainsFunc(state.Members, func(m extentmap.Member) bool { return m.ID == sb.Backing })
}

// write is steps 1 to 3.
func (a *adding) write(ctx context.Context) error {
	p, spec := a.p, a.spec()
	a.rec = extentmap.Member{
		ID: p.db.Pool().NextBacking, UUID: uuid.New(), Tier: extent.TierID(slices.Index(a.next, a.tier)), Path: spec.Path,
		Size: a.layout.Size, Slots: a.layout.Slots, State: extentmap.MemberOK, Incarnation: p.incarnation,
		Direct: spec.Direct, Preallocate: spec.Preallocate,
	}
	if _, err := p.commitNow(&extentmap.Changes{Pool: func(r *extentmap.PoolRecord) { r.NextBacking = a.rec.ID + 1 }}); err != nil {
		return fmt.Errorf("take an id for backing %s: %w", spec.Path, err)
	}
	if a.store == nil {
		if isEmptyFile(spec) {
			if err := os.Remove(spec.Path); err != nil {
				return fmt.Errorf("remove empty backing: %w", err)
			}
		}
		st, err := p.opts.OpenStore(ctx, spec, true, false)
		if err != nil {
			return fmt.Errorf("create backing %s: %w", spec.Path, err)
		}
		a.store = st
	}
	a.rec.Instance = a.store.Instance()
	if a.fresh && a.tier.media == "" {
		a.tier.media = detectMedia(a.store)
	}
	ctx = context.Background() // from here on it is finished
	if err := ondisk.Format(ctx, a.store, a.layout); err != nil {
		return fmt.Errorf("format backing %s: %w", spec.Path, err)
	}
	if err := a.writeSuperblock(ctx, ondisk.BackingCreating); err != nil {
		return err
	}
	if err := ondisk.WriteVolumeTable(ctx, a.store, a.layout, p.id, volumeTableOf(p.db.State())); err != nil {
		return fmt.Errorf("write volume table of %s: %w", spec.Path, err)
	}
	if err := a.store.Sync(ctx); err != nil {
		return fmt.Errorf("sync backing %s: %w", spec.Path, err)
	}
	return a.writeSuperblock(ctx, ondisk.BackingActive)
}

// detectMedia asks the kernel what a backing is made of.
func detectMedia(st backing.Store) backing.Media {
	if d, ok := st.(interface{ Info() backing.Info }); ok {
		if m := d.Info().Media; m != "" {
			return m
		}
	}
	return backing.SSD
}

// writeSuperblock writes the superblock of a pool of which the backing is a member.
func (a *adding) writeSuperblock(ctx context.Context, state ondisk.BackingState) error {
	s := a.p.db.State()
	a.apply(&s)
	sb := superblockOf(s, a.rec.ID, a.layout, a.p.incarnation)
	sb.State = state
	if err := ondisk.WriteSuperblock(ctx, a.store, sb); err != nil {
		return fmt.Errorf("write superblock of %s: %w", a.rec.Path, err)
	}
	return nil
}

// apply makes of the metadata's records what they will be.
func (a *adding) apply(s *extentmap.State) {
	s.Tiers = tierRecords(a.next)
	s.Members = renumbered(s.Members, a.p.ranks(), a.next)
	s.Members = append(s.Members, a.rec)
}

// tierRecords returns the records of tiers in their order.
func tierRecords(tiers []*tier) []extentmap.TierRecord {
	recs := make([]extentmap.TierRecord, len(tiers))
	for i, t := range tiers {
		recs[i] = extentmap.TierRecord{ID: extent.TierID(i), Name: t.name, Media: string(t.media)}
	}
	return recs
}

// renumbered returns the members' records with the ranks that their tiers have in
// the order next. A forgotten backing, of which nothing is left, may be of a tier
// that goes.
func renumbered(members []extentmap.Member, now, next []*tier) []extentmap.Member {
	members = slices.Clone(members)
	for i := range members {
		m := &members[i]
		if at := slices.Index(next, now[m.Tier]); at >= 0 {
			m.Tier = extent.TierID(at)
		} else {
			m.Tier = min(m.Tier, extent.TierID(len(next)-1))
		}
	}
	return members
}

// join is steps 4 to 6.
func (a *adding) join() error {
	p := a.p
	if err := p.setInstance(a.rec.ID, a.rec.Instance); err != nil {
		return fmt.Errorf("add backing %s: %w", a.rec.Path, err)
	}
	if err := p.commitTiers(a.next, &a.rec, nil); err != nil {
		return fmt.Errorf("add backing %s: %w", a.rec.Path, err)
	}
	a.member = newMember(p, a.rec, a.spec(), a.store, a.layout)
	close(a.member.opened)
	p.addMember(a.member)
	p.wg.Go(a.member.cleanLoop)
	p.writeSuperblocks(nil, true)
	p.log.Info("backing added", "backing", a.rec.Path, "id", a.rec.ID, "tier", a.tier.name, "slots", a.layout.Slots)
	p.freed.broadcast()
	p.retryDrains()
	return nil
}

// setInstance records the instance of a new backing in the staged log, before any
// record names it.
func (p *Pool) setInstance(id extent.BackingID, instance string) error {
	set := func() error { return p.staged.log.SetInstance(id, instance) }
	for try := 0; ; try++ {
		err := set()
		if !errors.Is(err, stagedlog.ErrFull) || try == roomTries {
			return err
		}
		if err := p.makeLogRoom(context.Background(), set); !errors.Is(err, stagedlog.ErrFull) {
			return err
		}
	}
}

// commitTiers commits the tiers in a new order, and with it what their backings say
// of them, a backing that comes and one that goes; then it is in force. Ids of tiers
// are ranks: they change in one commit.
func (p *Pool) commitTiers(next []*tier, comes *extentmap.Member, goes *member) error {
	p.memberMu.Lock()
	defer p.memberMu.Unlock()
	state := p.db.State()
	c := &extentmap.Changes{Tiers: tierRecords(next), Members: renumbered(state.Members, p.ranks(), next)}
	for i := len(next); i < len(state.Tiers); i++ {
		c.DropTiers = append(c.DropTiers, extent.TierID(i))
	}
	if comes != nil {
		c.Members = append(c.Members, *comes)
	}
	if goes != nil {
		c.Members = slices.DeleteFunc(c.Members, func(m extentmap.Member) bool { return m.ID == goes.id })
		c.DropMembers = append(c.DropMembers, goes.id)
	}
	if _, err := p.commitNow(c); err != nil {
		return err
	}
	p.setRanks(next)
	names := tierNames(p.ranks())
	for _, v := range p.allVolumes() {
		v.mu.Lock()
		if pol, err := parsePolicy(v.policy.name, names); err == nil {
			v.policy = pol
		}
		v.mu.Unlock()
	}
	p.reloc.offer(nil, nil) // what a plan wanted is out of date
	return nil
}

// retryDrains makes drains look for room again at once.
func (p *Pool) retryDrains() {
	p.eachMember(func(b *member) {
		if order := b.drainOrder(); order.On && !order.Paused {
			b.applyOrder(order)
		}
	})
}
