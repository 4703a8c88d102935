package ondisk

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
)

// FormatVersion is the version of every structure that this code writes.
const FormatVersion = 1

// Feature bits that this program knows: none yet.
const (
	knownReadOnlyCompat = 0
	knownIncompat       = 0
)

// Features are the bits of format extensions that a backing uses. An unknown
// Compat bit can be ignored, an unknown ReadOnlyCompat bit allows reading
// alone, an unknown Incompat bit forbids even that.
type Features struct{ Compat, ReadOnlyCompat, Incompat uint64 }

// Check returns nil if this program may use a backing with these features, or
// ErrNewerFormat or ErrReadOnlyFormat, naming the bits.
func (f Features) Check(readOnly bool) error {
	if bits := f.Incompat &^ knownIncompat; bits != 0 {
		return fmt.Errorf("%w: incompatible features %#x", ErrNewerFormat, bits)
	}
	if bits := f.ReadOnlyCompat &^ knownReadOnlyCompat; bits != 0 && !readOnly {
		return fmt.Errorf("%w: features %#x", ErrReadOnlyFormat, bits)
	}
	return nil
}

// BackingState says how far the creation or the removal of a backing has come.
type BackingState uint8

const (
	BackingCreating BackingState = iota + 1 // the same create may begin anew
	BackingActive                           // a member of the pool
	BackingRemoved                          // no longer of the pool
)

func (s BackingState) String() string {
	return cmp.Or(map[BackingState]string{BackingCreating: "creating", BackingActive: "active", BackingRemoved: "removed"}[s], fmt.Sprintf("state %d", uint8(s)))
}

// MemberState is the state of a backing in the list of members.
type MemberState uint8

const (
	MemberOK        MemberState = iota + 1 // serves
	MemberDraining                         // serves, takes nothing new
	MemberFailed                           // lost written data; only an operator clears it
	MemberForgotten                        // given up by the operator; refused if it comes back
	MemberCreating                         // being added; holds nothing yet
)

// TierRecord names one tier; Name and Media have at most 255 bytes.
type TierRecord struct {
	ID          extent.TierID
	Name, Media string
}

// MemberRecord is one backing of the pool as all its backings know it.
type MemberRecord struct {
	ID          extent.BackingID
	UUID        uuid.UUID
	Tier        extent.TierID
	State       MemberState
	Incarnation uint64 // the last one written to that backing
}

// Superblock says whose a backing is, what is where on it, and who else is in
// the pool. It has two copies, near the front and at the end.
type Superblock struct {
	Version     uint32 // of the format; WriteSuperblock writes FormatVersion
	Features    Features
	PoolID      uuid.UUID
	BackingUUID uuid.UUID
	Backing     extent.BackingID
	Tier        extent.TierID
	State       BackingState
	Layout      Layout
	Incarnation uint64
	Generation  uint64 // rises with each write; the higher of two copies is the newer
	Commit      uint64 // number of the last finished commit when it was written; 0: not recorded
	NextBacking extent.BackingID
	Tiers       []TierRecord
	Members     []MemberRecord
}

const (
	superblockMagic = "tierdSB\n"
	maxTiers        = 256
	maxMembers      = int(extent.MaxBackingID)

	copyFront = 1
	copyEnd   = 2
)

// WriteSuperblock writes both copies of sb, one at a time, each followed by a
// sync. The copy that is older or invalid comes first, so that a valid one is
// on the backing at every moment. It raises sb.Generation above what it finds,
// and sets sb.Version.
//
// After an error the backing has at least one valid copy, old or new. An error
// of the Sync is to be treated as that of any other sync of the backing.
func WriteSuperblock(ctx context.Context, st backing.Store, sb *Superblock) error {
	if err := sb.check(); err != nil {
		return fmt.Errorf("write superblock: %w", err)
	}
	if sb.Layout.Size > st.Size() {
		return fmt.Errorf("write superblock: %w", ErrShort)
	}
	front := readCopy(ctx, st, sb.Layout.FrontSuperblock, copyFront)
	end := readCopy(ctx, st, sb.Layout.EndSuperblock, copyEnd)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("write superblock: %w", err)
	}
	first, second := uint8(copyFront), uint8(copyEnd)
	if front.state == valid && (end.state != valid || end.sb.Generation < front.sb.Generation) {
		first, second = copyEnd, copyFront
	}
	sb.Version = FormatVersion
	sb.Generation = max(sb.Generation, front.generation(), end.generation()) + 1
	for _, which := range []uint8{first, second} {
		off := sb.Layout.FrontSuperblock
		if which == copyEnd {
			off = sb.Layout.EndSuperblock
		}
		if err := st.WriteAt(ctx, sb.encode(which), off); err != nil {
			return fmt.Errorf("write superblock: %w", err)
		}
		if err := st.Sync(ctx); err != nil {
			return fmt.Errorf("write superblock: %w", err)
		}
	}
	return nil
}

// ReadSuperblock returns the newest valid copy of the superblock.
//
// ErrNoSuperblock: there is none. ErrCorrupt: there was one, or there are two
// of different backings. ErrNewerFormat: there is one of a later version, or
// with an unknown incompatible feature. ErrShort comes with the superblock: the
// backing is shorter than when it was written. Whether the other features allow
// writing is for the caller to ask: see Features.Check.
//
// The end copy is found without the front one, at the end of the Store. If the
// backing has grown since, it is found by what the front copy says; if that is
// lost too, not at all.
func ReadSuperblock(ctx context.Context, st backing.Store) (*Superblock, error) {
	copies := []copyRead{
		readCopy(ctx, st, blockSize, copyFront),
		readCopy(ctx, st, endSuperblock(st.Size()), copyEnd),
	}
	if front := copies[0]; front.state == valid && front.sb.Layout.Size < st.Size() {
		copies = append(copies, readCopy(ctx, st, front.sb.Layout.EndSuperblock, copyEnd))
	}
	var best *Superblock
	var state headState
	var ioErr error
	for _, c := range copies {
		state = max(state, c.state)
		ioErr = errors.Join(ioErr, c.err)
		switch {
		case c.state != valid:
		case best == nil:
			best = c.sb
		case c.sb.PoolID != best.PoolID || c.sb.BackingUUID != best.BackingUUID:
			return nil, fmt.Errorf("read superblock: %w: one copy is of backing %v of pool %v, another of %v of %v",
				ErrCorrupt, best.BackingUUID, best.PoolID, c.sb.BackingUUID, c.sb.PoolID)
		case c.sb.Generation > best.Generation:
			best = c.sb
		}
	}
	if best != nil && state != newer {
		if best.Layout.Size > st.Size() {
			return best, fmt.Errorf("read superblock: %w: it has %d bytes, should have %d", ErrShort, st.Size(), best.Layout.Size)
		}
		return best, nil
	}
	switch {
	case state == newer:
		return nil, fmt.Errorf("read superblock: %w", ErrNewerFormat)
	case state == damaged:
		return nil, errors.Join(fmt.Errorf("read superblock: %w", ErrCorrupt), ioErr)
	case ioErr != nil:
		return nil, fmt.Errorf("read superblock: %w", ioErr)
	}
	return nil, ErrNoSuperblock
}

// copyRead is what one of the places of a superblock holds.
type copyRead struct {
	sb    *Superblock // if valid
	state headState
	err   error // of the Store
}

func (c copyRead) generation() uint64 {
	if c.state != valid {
		return 0
	}
	return c.sb.Generation
}

func readCopy(ctx context.Context, st backing.Store, off int64, which uint8) (c copyRead) {
	area := min(superblockArea, st.Size()-off)
	if off < 0 || area < blockSize {
		return c
	}
	b, state, err := readStructure(ctx, st, off, area, superblockMagic, nil)
	c.state, c.err = state, err
	if state == valid {
		if c.sb, err = decodeSuperblock(b, which); errors.Is(err, ErrNewerFormat) {
			c.state = newer
		} else if err != nil {
			c.state = damaged
		}
	}
	return c
}

// check says whether sb can be written.
func (sb *Superblock) check() error {
	if len(sb.Tiers) > maxTiers || len(sb.Members) > maxMembers {
		return fmt.Errorf("%w: %d tiers and %d members", ErrTooLarge, len(sb.Tiers), len(sb.Members))
	}
	for _, t := range sb.Tiers {
		if err := errors.Join(checkText("tier name", t.Name), checkText("media", t.Media)); err != nil {
			return err
		}
	}
	if sb.State < BackingCreating || sb.State > BackingRemoved || sb.Backing == 0 || sb.Backing > extent.MaxBackingID {
		return fmt.Errorf("%w: backing %d in %v", ErrTooLarge, sb.Backing, sb.State)
	}
	return sb.Layout.validate()
}

// encode returns the copy of sb for one of its places; see doc.go for the bytes.
func (sb *Superblock) encode(which uint8) []byte {
	var e encoder
	e.zero(headSize)
	e.u64(sb.Features.Compat)
	e.u64(sb.Features.ReadOnlyCompat)
	e.u64(sb.Features.Incompat)
	e.uuid(sb.PoolID)
	e.uuid(sb.BackingUUID)
	e.u16(uint16(sb.Backing))
	e.u16(uint16(sb.NextBacking))
	e.u8(uint8(sb.Tier))
	e.u8(uint8(sb.State))
	e.u8(which)
	e.zero(1)
	e.u64(sb.Incarnation)
	l := &sb.Layout
	e.i64(l.Size)
	e.i64(l.ExtentSize)
	e.u32(l.Slots)
	e.u32(l.TableSlots)
	for _, v := range []int64{
		l.SuperblockArea, l.FrontSuperblock, l.EndSuperblock, l.StampOffset[0], l.StampOffset[1],
		l.VolumeTableOffset[0], l.VolumeTableOffset[1], l.VolumeTableSize, l.SlotTableOffset, l.DataOffset,
	} {
		e.i64(v)
	}
	e.u16(uint16(len(sb.Tiers)))
	e.u16(uint16(len(sb.Members)))
	e.zero(4)
	for _, t := range sb.Tiers {
		e.record(func() {
			e.u8(uint8(t.ID))
			e.text(t.Name)
			e.text(t.Media)
		})
	}
	for _, m := range sb.Members {
		e.record(func() {
			e.u16(uint16(m.ID))
			e.u8(uint8(m.Tier))
			e.u8(uint8(m.State))
			e.uuid(m.UUID)
			e.u64(m.Incarnation)
		})
	}
	e.u64(sb.Commit)
	b := alignedBytes(roundUp(len(e.b)))
	copy(b, e.b)
	sealHead(b, superblockMagic, sb.Generation, nil)
	return b
}

// decodeSuperblock decodes a structure whose head is valid.
func decodeSuperblock(b []byte, which uint8) (*Superblock, error) {
	bad := func(what string) error { return fmt.Errorf("%w: superblock: %s", ErrCorrupt, what) }
	h, ok := parseHead(b, superblockMagic, superblockArea)
	if !ok {
		return nil, bad("head")
	}
	sb := &Superblock{Version: h.version, Generation: h.generation}
	d := &decoder{b: b[headSize:]}
	sb.Features = Features{Compat: d.u64(), ReadOnlyCompat: d.u64(), Incompat: d.u64()}
	if err := sb.Features.Check(true); err != nil {
		return nil, err // what follows may have another meaning
	}
	sb.PoolID = d.uuid()
	sb.BackingUUID = d.uuid()
	sb.Backing = extent.BackingID(d.u16())
	sb.NextBacking = extent.BackingID(d.u16())
	sb.Tier = extent.TierID(d.u8())
	sb.State = BackingState(d.u8())
	if got := d.u8(); got != which {
		return nil, bad("copy is in the other one's place")
	}
	d.take(1)
	sb.Incarnation = d.u64()
	l := &sb.Layout
	l.Size, l.ExtentSize, l.Slots, l.TableSlots = d.i64(), d.i64(), d.u32(), d.u32()
	for _, v := range []*int64{
		&l.SuperblockArea, &l.FrontSuperblock, &l.EndSuperblock, &l.StampOffset[0], &l.StampOffset[1],
		&l.VolumeTableOffset[0], &l.VolumeTableOffset[1], &l.VolumeTableSize, &l.SlotTableOffset, &l.DataOffset,
	} {
		*v = d.i64()
	}
	tiers, members := int(d.u16()), int(d.u16())
	d.take(4)
	for range tiers {
		d.record(func(r *decoder) {
			sb.Tiers = append(sb.Tiers, TierRecord{ID: extent.TierID(r.u8()), Name: r.text(), Media: r.text()})
		})
	}
	for range members {
		d.record(func(r *decoder) {
			m := MemberRecord{ID: extent.BackingID(r.u16()), Tier: extent.TierID(r.u8()), State: MemberState(r.u8())}
			m.UUID, m.Incarnation = r.uuid(), r.u64()
			sb.Members = append(sb.Members, m)
		})
	}
	if d.short {
		return nil, bad("records end too soon")
	}
	if len(d.b) >= 8 {
		sb.Commit = d.u64() // earlier programs ended here, mostly with zeroes to come
	}
	return sb, sb.check()
}
