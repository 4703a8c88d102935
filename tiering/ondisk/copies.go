package ondisk

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
)

// CopyState says what the place of a copy holds.
type CopyState string

// The states of a copy.
const (
	CopyAbsent  CopyState = "absent"  // nothing, or another use of the medium
	CopyDamaged CopyState = "damaged" // there was one
	CopyValid   CopyState = "valid"
	CopyNewer   CopyState = "newer" // whole, of a later version
)

func copyState(s headState) CopyState {
	return [...]CopyState{absent: CopyAbsent, damaged: CopyDamaged, valid: CopyValid, newer: CopyNewer}[s]
}

// SuperblockCopy is what one of the two places of a superblock holds.
type SuperblockCopy struct {
	Place      string // front or end
	Offset     int64  // bytes
	State      CopyState
	Superblock *Superblock // if valid
	Err        error       // of reading it

	which uint8
}

// ReadSuperblockCopies returns both copies, front and end, each as it is. The end copy
// is looked for where the front one says, or else at the end of the Store.
func ReadSuperblockCopies(ctx context.Context, st backing.Store) [2]SuperblockCopy {
	look := func(which uint8, off int64) SuperblockCopy {
		c := readCopy(ctx, st, off, which)
		place := map[uint8]string{copyFront: "front", copyEnd: "end"}[which]
		return SuperblockCopy{Place: place, Offset: off, State: copyState(c.state), Superblock: c.sb, Err: c.err, which: which}
	}
	copies := [2]SuperblockCopy{look(copyFront, blockSize), look(copyEnd, endSuperblock(st.Size()))}
	front := copies[0].Superblock
	if front != nil && front.Layout.EndSuperblock != copies[1].Offset && front.Layout.Size <= st.Size() {
		copies[1] = look(copyEnd, front.Layout.EndSuperblock)
	}
	return copies
}

// MendSuperblock writes good, a valid copy, to the other place, with the same
// generation, and syncs.
func MendSuperblock(ctx context.Context, st backing.Store, good SuperblockCopy) error {
	sb := good.Superblock
	if good.State != CopyValid || sb.Layout.Size > st.Size() {
		return fmt.Errorf("mend superblock: %w", ErrCorrupt)
	}
	which, off := uint8(copyEnd), sb.Layout.EndSuperblock
	if good.which == copyEnd {
		which, off = copyFront, sb.Layout.FrontSuperblock
	}
	if err := st.WriteAt(ctx, sb.encode(which), off); err != nil {
		return fmt.Errorf("mend superblock: %w", err)
	}
	if err := st.Sync(ctx); err != nil {
		return fmt.Errorf("mend superblock: %w", err)
	}
	return nil
}

// SuperblockArea is how many bytes may belong to a copy of a superblock.
const SuperblockArea = superblockArea

// StampCopy is what one of the two places of a stamp holds.
type StampCopy struct {
	Offset     int64 // bytes
	State      CopyState
	Generation uint64
	Stamp      Stamp // if valid
}

// ReadStampCopies returns both blocks of the stamp, each as it is. One that cannot be
// read is absent, and the other is there beside the error.
func ReadStampCopies(ctx context.Context, st backing.Store, poolID, backingUUID uuid.UUID, l Layout) (copies [2]StampCopy, failed error) {
	seed := append(poolID[:], backingUUID[:]...)
	for i, off := range l.StampOffset {
		copies[i] = StampCopy{Offset: off, State: CopyAbsent}
		v, generation, state, err := readStamp(ctx, st, off, seed)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("read stamp: %w", err))
			continue
		}
		copies[i] = StampCopy{Offset: off, State: copyState(state), Generation: generation, Stamp: v}
	}
	return copies, failed
}

// NewestStamp returns the stamp that counts; its generation is 0 if there is none.
// It is sure to be the last one that was written if both blocks are as they were left.
func NewestStamp(copies [2]StampCopy) (newest StampCopy, sure bool) {
	sure = true
	for _, c := range copies {
		if c.State == CopyValid && c.Generation > newest.Generation {
			newest = c
		}
	}
	for _, c := range copies {
		sure = sure && (c.State == CopyValid || c.State == CopyAbsent && newest.Generation <= 1)
	}
	return newest, sure
}

// MendStamp writes v into block i of the stamp with this generation, whatever is
// there, and syncs.
func MendStamp(ctx context.Context, st backing.Store, poolID, backingUUID uuid.UUID, l Layout, i int, generation uint64, v Stamp) error {
	b := alignedBytes(blockSize)
	v.encode(b, generation, append(poolID[:], backingUUID[:]...))
	if err := st.WriteAt(ctx, b, l.StampOffset[i]); err != nil {
		return fmt.Errorf("mend stamp: %w", err)
	}
	if err := st.Sync(ctx); err != nil {
		return fmt.Errorf("mend stamp: %w", err)
	}
	return nil
}

// VolumeTableCopy is one of the two copies of a volume table.
type VolumeTableCopy struct {
	Offset int64 // bytes
	State  CopyState
	Table  VolumeTable // if valid
	Length int64       // of what is there, bytes
	Err    error       // of reading it
}

// ReadVolumeTableCopies returns both copies of the volume table, each as it is.
func ReadVolumeTableCopies(ctx context.Context, st backing.Store, l Layout, poolID uuid.UUID) (copies [2]VolumeTableCopy) {
	for i, c := range readVolumeCopies(ctx, st, l, poolID) {
		copies[i] = VolumeTableCopy{Offset: l.VolumeTableOffset[i], State: copyState(c.state), Table: c.table, Length: int64(len(c.raw)), Err: c.err}
	}
	return copies
}

// MendVolumeTable writes t over copy i, whatever is there, and syncs. The other
// copy must be valid, or of no use.
func MendVolumeTable(ctx context.Context, st backing.Store, l Layout, poolID uuid.UUID, i int, t VolumeTable) error {
	b, err := encodeVolumeTable(t, l.VolumeTableSize, poolID)
	if err != nil {
		return fmt.Errorf("mend volume table: %w", err)
	}
	if err := st.WriteAt(ctx, b, l.VolumeTableOffset[i]); err != nil {
		return fmt.Errorf("mend volume table: %w", err)
	}
	if err := st.Sync(ctx); err != nil {
		return fmt.Errorf("mend volume table: %w", err)
	}
	return nil
}

// Equal reports whether two tables are the same on disk, their generations apart.
func (t VolumeTable) Equal(o VolumeTable) bool {
	o.Generation = t.Generation
	a, errA := encodeVolumeTable(t, maxVolumeTable, uuid.Nil)
	b, errB := encodeVolumeTable(o, maxVolumeTable, uuid.Nil)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// Raw returns the bytes of the entry of one slot, whatever they are.
func (t *SlotTable) Raw(ctx context.Context, slot extent.Slot) ([]byte, error) {
	if uint32(slot) >= t.layout.TableSlots {
		return nil, fmt.Errorf("read slot table: %w: slot %d of %d", ErrTooLarge, slot, t.layout.TableSlots)
	}
	b := alignedBytes(blockSize)
	at := int64(slot) * entrySize
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.st.ReadAt(ctx, b, t.layout.SlotTableOffset+at/blockSize*blockSize); err != nil {
		return nil, fmt.Errorf("read slot table: %w", err)
	}
	return b[at%blockSize:][:entrySize], nil
}
