package tiering

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// A missing member is a backing of the pool that was not there when the pool was
// opened. It is a member like others, so that the map can name it, and whatever
// asks err() leaves it alone. While it is away its extents can be unmapped; their
// slots are set aside. What it missed is made up for when it is back: it is synced,
// and its slot table brought into line with the map.

// newMissingMember returns the member that stands for m. Nothing is read from it,
// so that only the number of slots in its layout matters.
func newMissingMember(p *Pool, m extentmap.Member) *member {
	b := newMember(p, m, BackingSpec{Path: m.Path}, missingStore{m.Size}, ondisk.Layout{
		Size: m.Size, ExtentSize: p.size.Bytes(), Slots: m.Slots, TableSlots: m.Slots,
	})
	b.missing = true
	b.forgotten.Store(m.State == extentmap.MemberForgotten)
	return b
}

// missingStore is the store of a missing member.
type missingStore struct{ size int64 }

var _ backing.Store = missingStore{}

func (s missingStore) Size() int64                                { return s.size }
func (missingStore) TryReadAt([]byte, int64) bool                 { return false }
func (missingStore) ReadAt(context.Context, []byte, int64) error  { return ErrBackingMissing }
func (missingStore) WriteAt(context.Context, []byte, int64) error { return ErrBackingMissing }
func (missingStore) Sync(context.Context) error                   { return ErrBackingMissing }
func (missingStore) Zero(context.Context, int64, int64) error     { return ErrBackingMissing }
func (missingStore) Discard(context.Context, int64, int64) error  { return ErrBackingMissing }
func (missingStore) StartWriteback(int64, int64)                  {}
func (missingStore) IsHole(context.Context, int64, int64) (bool, error) {
	return false, ErrBackingMissing
}
func (missingStore) Instance() string { return "" }
func (missingStore) Close() error     { return nil }

// isAbsent reports whether an error of opening a backing, or of reading its
// superblock, means that there is no such backing, or none that can be used. What
// somebody has to look into first (it is locked, cut off, a stranger's, of a later
// format) is none of that.
func isAbsent(err error) bool {
	for _, e := range []error{
		fs.ErrNotExist, syscall.ENXIO, syscall.ENODEV, syscall.ENOTDIR, syscall.EIO, syscall.EREMOTEIO, syscall.ETIMEDOUT, ondisk.ErrCorrupt,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return errNoMedium(err)
}

// errNoMedium reports whether a drive is there without a disk in it.
func errNoMedium(err error) bool { return errors.Is(err, syscall.ENOMEDIUM) }

// errNotOurs is why a backing is missing at whose path there is something else.
var errNotOurs = errors.New("what is at its path has no superblock")

// judgeMissing decides whether to go on without the backings that are missing, and
// says what to do if not.
func (op *opening) judgeMissing() error {
	if len(op.missing) == 0 {
		return nil
	}
	if len(op.found) == 0 {
		return refuse("none of the %d backings of the pool is there, first %s", len(op.missing), op.missing[0].Path)
	}
	var list []string
	for _, m := range op.missing {
		text := fmt.Sprintf("backing %s of tier %s is missing (id %d, %s)", m.Path, op.tierName(m.Tier), m.ID, m.UUID)
		if why := op.why[m.Path]; why != nil && !errors.Is(why, fs.ErrNotExist) {
			text += fmt.Sprintf(": %v", why)
		}
		list = append(list, text)
	}
	if op.o.Degraded {
		for _, text := range list {
			op.o.Logger.Warn(text) // not a warning of the start: forgetting the backing ends it
		}
		return nil
	}
	return refuse("%s; attach it again, or start tierd with --degraded: then the rest serves, and what is there answers with errors", strings.Join(list, ", "))
}

// rememberLost adds to r what it does not have.
func rememberLost(r *extentmap.PoolRecord, lost []extentmap.LostWrites) {
	for _, l := range lost {
		if !slices.Contains(r.LostWrites, l) {
			r.LostWrites = append(slices.Clip(r.LostWrites), l)
		}
	}
}

// lostBy returns the volumes that have lost writes on a backing.
func lostBy(r extentmap.PoolRecord, b extent.BackingID) (volumes []extent.VolumeID) {
	for _, l := range r.LostWrites {
		if l.Backing == b {
			volumes = append(volumes, l.Volume)
		}
	}
	return volumes
}

// forgetLost removes from r what was lost on a backing, or by a volume; 0 is none.
func forgetLost(r *extentmap.PoolRecord, b extent.BackingID, v extent.VolumeID) {
	r.LostWrites = slices.DeleteFunc(slices.Clone(r.LostWrites), func(l extentmap.LostWrites) bool { return l.Backing == b || l.Volume == v })
}

// failUnsynced makes the flushes fail of volumes with extents on missing backings
// that were perhaps not synced, and of those that have lost writes by a move that
// was taken back, and of no others: nobody knows what of the volumes' answered data
// was on its way there.
func (p *Pool) failUnsynced() {
	unsynced := make(map[extent.BackingID]error)
	state := p.db.State()
	for _, m := range state.Members {
		if b := p.members[m.ID].Load(); b != nil && b.missing && m.Unsynced && m.State != extentmap.MemberForgotten {
			unsynced[m.ID] = b.err()
		}
	}
	for _, v := range p.allVolumes() {
		var failure error
		if i := slices.IndexFunc(state.Pool.LostWrites, func(l extentmap.LostWrites) bool { return l.Volume == v.id }); i >= 0 {
			failure = p.lossOf(state.Pool.LostWrites[i].Backing)
		} else if len(unsynced) > 0 && v.lost.Load() > 0 {
			v.table.Range(func(_ extent.Index, e extent.Entry) bool {
				if e.Mapped() {
					failure = unsynced[e.Location().Backing]
				}
				return failure == nil
			})
		}
		if failure == nil {
			v.unsynced.Store(nil)
			continue
		}
		failure = fmt.Errorf("flush volume %s: answered data may be lost: %w", v.Name(), failure)
		v.unsynced.Store(&failure)
	}
}

// lossOf is why flushes fail of a volume that lost writes on a backing.
func (p *Pool) lossOf(id extent.BackingID) error {
	b := p.members[id].Load()
	if b == nil || b.err() == nil {
		return fmt.Errorf("%w: a move to or from backing %d lost writes; look at the volume, then let pool repair --clear-failed %d forget it", ErrBackingFailed, id, id)
	}
	return fmt.Errorf("a move there or away lost writes: %w", b.err())
}

// failConcerned makes the flushes fail of volumes with extents on failed backings:
// what was not synced when they failed is forgotten, the failure is not. It comes
// after the replay of the staged log, by which alone an extent may be there.
func (p *Pool) failConcerned() {
	failed := false
	p.eachMember(func(b *member) { failed = failed || b.failure.Load() != nil })
	if !failed {
		return
	}
	for _, v := range p.allVolumes() {
		v.table.Range(func(_ extent.Index, e extent.Entry) bool {
			if !e.Mapped() {
				return true
			}
			b := p.member(e.Location())
			if b.failure.Load() == nil {
				return true
			}
			v.fail(b.err())
			return false
		})
	}
}

// A LostRange is a part of a volume that cannot be read, since its backing is
// missing.
type LostRange struct {
	Offset, Length int64 // bytes
	Backing        extent.BackingID
	Path           string
}

// Lost returns the ranges of the volume whose backings are missing, in order and
// merged where they lie side by side on the same backing.
func (v *Volume) Lost() (ranges []LostRange) {
	v.eachLost(func(off, n int64, b *member) {
		if k := len(ranges) - 1; k >= 0 && ranges[k].Backing == b.id && ranges[k].Offset+ranges[k].Length == off {
			ranges[k].Length += n
		} else {
			ranges = append(ranges, LostRange{off, n, b.id, b.path})
		}
	})
	return ranges
}

// LostBytes returns how much of the volume cannot be read, bytes.
func (v *Volume) LostBytes() int64 { return v.lostOn(nil) }

// lostOn returns how much of the volume is on the missing backing on, or on any if
// that is nil, bytes.
func (v *Volume) lostOn(on *member) (bytes int64) {
	v.eachLost(func(_, n int64, b *member) {
		if on == nil || b == on {
			bytes += n
		}
	})
	return bytes
}

// eachLost calls fn, in order, for each extent on a missing backing: it is n bytes
// at off.
func (v *Volume) eachLost(fn func(off, n int64, b *member)) {
	if v.lost.Load() == 0 {
		return
	}
	v.table.Range(func(i extent.Index, e extent.Entry) bool {
		if e.Mapped() {
			if b := v.pool.member(e.Location()); b.missing {
				fn(v.pool.size.Start(i), v.extentBytes(i), b)
			}
		}
		return true
	})
}
