package tiering

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
	"tierd/tiering/ondisk"
)

// SurveyOptions say where to look for the backings of a pool.
type SurveyOptions struct {
	// Backings are where to look. A member is recognised by what its superblock
	// says, not by its path. One that is named twice is looked at once.
	Backings []BackingSpec
	// Pool is the pool that is looked for. Zero: the only one that is found.
	Pool uuid.UUID

	OpenStore OpenStore
}

// A Survey is what the backings of a pool say about it, without its metadata. The
// backings are open for reading alone, which locks them against a daemon; nothing
// is written. One goroutine may use it.
type Survey struct {
	Pool uuid.UUID // zero if no backing of any pool was found
	// Members are the backings of the pool, in order of their ids. Copies of one
	// backing stand beside each other.
	Members []*SurveyMember
	// Others are the backings that are none of the pool's, or that cannot be read.
	Others []SurveyOther
}

// A SurveyOther is a backing that is not known to be of the pool.
type SurveyOther struct {
	Path string
	// Pool is the pool that it is of instead, if its superblock can be read.
	Pool uuid.UUID
	// Err says what is wrong otherwise: fs.ErrNotExist, ondisk.ErrNoSuperblock,
	// ondisk.ErrCorrupt, ondisk.ErrNewerFormat, backing.ErrInUse, ...
	Err error
}

// A SurveyMember is one backing of a surveyed pool.
type SurveyMember struct {
	Spec       BackingSpec
	Superblock *ondisk.Superblock // the newest whole copy
	// Copies are the two places of the superblock.
	Copies [2]ondisk.SuperblockCopy
	// Short is set if the backing is shorter than its superblock says. Nothing
	// more of it has been read then.
	Short error

	Stamp       ondisk.Stamp // the newest that can be read
	StampCopies [2]ondisk.StampCopy
	StampErr    error // there may be a newer one

	Volumes      ondisk.VolumeTable // the newest whole copy
	VolumeCopies [2]ondisk.VolumeTableCopy
	VolumesErr   error

	Instance string // of the store
	store    backing.Store
}

// ID returns the number of the backing in its pool.
func (m *SurveyMember) ID() extent.BackingID { return m.Superblock.Backing }

// EachSlot calls fn for every slot of the backing, in order, with its entry in the
// slot table, until fn returns false. An entry with a bad checksum comes as a zero
// entry that is not valid; those that cannot be read come to unread. The table is read
// as a stream. The error is that of ctx.
func (m *SurveyMember) EachSlot(ctx context.Context, fn func(slot extent.Slot, e ondisk.SlotEntry, valid bool) bool, unread func(first extent.Slot, n uint32, err error)) error {
	sb := m.Superblock
	return ondisk.NewSlotTable(m.store, sb.PoolID, sb.BackingUUID, sb.Backing, sb.Layout).Salvage(ctx, fn, unread)
}

// OpenSurvey opens the backings and reads what is on them besides the slot tables.
// What is wrong with a backing is part of the result. The error says that the
// backings belong to more than one pool and none was asked for, or that ctx ended.
// The caller closes the survey.
func OpenSurvey(ctx context.Context, o SurveyOptions) (*Survey, error) {
	if o.OpenStore == nil {
		o.OpenStore = OpenBacking
	}
	s := &Survey{}
	var specs []BackingSpec
	for _, spec := range o.Backings {
		specs = addSpec(specs, spec)
	}
	for _, spec := range specs {
		if err := ctx.Err(); err != nil {
			s.Close()
			return nil, err
		}
		s.look(ctx, o.OpenStore, spec)
	}
	if err := s.choosePool(o.Pool); err != nil {
		s.Close()
		return nil, err
	}
	slices.SortStableFunc(s.Members, func(a, b *SurveyMember) int { return cmp.Compare(a.ID(), b.ID()) })
	for _, m := range s.Members {
		m.read(ctx)
	}
	return s, nil
}

// look opens one backing and reads its superblock.
func (s *Survey) look(ctx context.Context, open OpenStore, spec BackingSpec) {
	st, err := open(ctx, spec, false, true)
	if err != nil {
		s.Others = append(s.Others, SurveyOther{Path: spec.Path, Err: err})
		return
	}
	m := &SurveyMember{Spec: spec, store: st, Instance: st.Instance()}
	m.Superblock, err = ondisk.ReadSuperblock(ctx, st)
	if m.Superblock == nil {
		_ = st.Close()
		s.Others = append(s.Others, SurveyOther{Path: spec.Path, Err: err})
		return
	}
	m.Short = err // the only error that comes with a superblock
	s.Members = append(s.Members, m)
}

// choosePool parts the members of the pool from those of others.
func (s *Survey) choosePool(want uuid.UUID) error {
	s.Pool = want
	if want == uuid.Nil {
		paths := make(map[uuid.UUID][]string)
		for _, m := range s.Members {
			s.Pool = m.Superblock.PoolID
			paths[s.Pool] = append(paths[s.Pool], m.Spec.Path)
		}
		if len(paths) > 1 {
			var list []string
			for id, p := range paths {
				list = append(list, fmt.Sprintf("%s (%s)", id, strings.Join(p, ", ")))
			}
			slices.Sort(list)
			return refuse("the backings are of %d pools: %s; say which one is meant", len(paths), strings.Join(list, "; "))
		}
	}
	s.Members = slices.DeleteFunc(s.Members, func(m *SurveyMember) bool {
		if m.Superblock.PoolID == s.Pool {
			return false
		}
		_ = m.store.Close()
		s.Others = append(s.Others, SurveyOther{Path: m.Spec.Path, Pool: m.Superblock.PoolID})
		return true
	})
	return nil
}

// read takes what is on a backing besides its superblock and its slot table.
func (m *SurveyMember) read(ctx context.Context) {
	if m.Short != nil {
		return
	}
	sb := m.Superblock
	m.Copies = ondisk.ReadSuperblockCopies(ctx, m.store)
	m.readStamp(ctx)
	m.Volumes, m.VolumesErr = ondisk.ReadVolumeTable(ctx, m.store, sb.Layout, sb.PoolID)
	m.VolumeCopies = ondisk.ReadVolumeTableCopies(ctx, m.store, sb.Layout, sb.PoolID)
}

func (m *SurveyMember) readStamp(ctx context.Context) {
	sb := m.Superblock
	copies, err := ondisk.ReadStampCopies(ctx, m.store, sb.PoolID, sb.BackingUUID, sb.Layout)
	m.StampCopies = copies
	var generation uint64
	damaged := false
	for _, c := range copies {
		switch {
		case c.State == ondisk.CopyNewer:
			err = errors.Join(err, ondisk.ErrNewerFormat)
		case c.State == ondisk.CopyDamaged:
			damaged = true
		case c.State == ondisk.CopyValid && c.Generation > generation:
			m.Stamp, generation = c.Stamp, c.Generation
		}
	}
	if damaged && generation == 0 {
		err = errors.Join(err, ondisk.ErrCorrupt)
	}
	if err != nil {
		m.StampErr = fmt.Errorf("stamp: %w", err)
	}
}

// tableInDoubt reports whether a copy of the volume table is lost that may have been
// the newer one.
func (m *SurveyMember) tableInDoubt() bool {
	return slices.ContainsFunc(m.VolumeCopies[:], func(c ondisk.VolumeTableCopy) bool {
		return c.Err != nil || c.State == ondisk.CopyDamaged
	})
}

// Newest returns the member with the newest list of members, nil if there is none:
// that of the highest incarnation, and within one that written after the latest
// commit.
func (s *Survey) Newest() *SurveyMember {
	var best *SurveyMember
	for _, m := range s.Members {
		if m.Superblock.State == ondisk.BackingRemoved || m.Superblock.State == ondisk.BackingCreating {
			continue // its list is about another time
		}
		if best == nil || cmp.Or(
			cmp.Compare(m.Superblock.Incarnation, best.Superblock.Incarnation),
			cmp.Compare(m.Superblock.Commit, best.Superblock.Commit),
		) > 0 {
			best = m
		}
	}
	return best
}

// Close closes the backings.
func (s *Survey) Close() {
	for _, m := range s.Members {
		_ = m.store.Close()
	}
}
