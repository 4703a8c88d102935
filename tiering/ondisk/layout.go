package ondisk

import (
	"context"
	"fmt"
	"math"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
)

// Sizes of the format, in bytes.
const (
	blockSize       = 4096
	superblockArea  = 256 << 10
	volumeTableArea = 4 << 20
	entrySize       = 32

	// tableReserve is how many times the slots the table has room for, so that
	// a device that was made larger can be used.
	tableReserve = 4
)

// EntriesPerBlock is how many neighbouring entries of the slot table are read and
// written together.
const EntriesPerBlock = blockSize / entrySize

// Layout says where everything is on a backing. All offsets and sizes are in
// bytes and multiples of 4 KiB; slots begin at multiples of the extent size.
type Layout struct {
	Size       int64 // of the backing, as far as it is used
	ExtentSize int64
	Slots      uint32
	TableSlots uint32 // entries the slot table has room for

	SuperblockArea    int64 // size of either superblock area
	FrontSuperblock   int64
	EndSuperblock     int64
	StampOffset       [2]int64
	VolumeTableOffset [2]int64
	VolumeTableSize   int64 // size of either copy
	SlotTableOffset   int64
	DataOffset        int64 // of slot 0
}

// NewLayout returns the layout of a backing of size bytes for extents of size
// es. It is ErrTooSmall, naming the least size, if there is no room for a slot.
func NewLayout(size int64, es extent.Size) (Layout, error) {
	n := es.Bytes()
	if n == 0 {
		return Layout{}, fmt.Errorf("lay out backing: %w: no extent size", ErrTooLarge)
	}
	end := endSuperblock(size)
	fits := func(slots int64) bool { return dataOffset(slots, n)+slots*n <= end }
	if size < 0 || !fits(1) {
		least := dataOffset(1, n) + n + superblockArea
		return Layout{}, fmt.Errorf("lay out backing: %w: %d bytes, must be at least %d for extents of %d bytes", ErrTooSmall, size, least, n)
	}
	// The table shrinks with the slots, so the first estimate errs on the small
	// side by a few slots at most.
	const maxSlots = math.MaxUint32 / EntriesPerBlock * EntriesPerBlock
	slots := min(end/n, maxSlots)
	slots = min(max((end-dataOffset(slots, n))/n, 1), maxSlots)
	for slots < maxSlots && fits(slots+1) {
		slots++
	}

	l := Layout{
		Size: size, ExtentSize: n,
		Slots: uint32(slots), TableSlots: uint32(tableSlots(slots)),
		SuperblockArea: superblockArea, FrontSuperblock: blockSize, EndSuperblock: end,
		VolumeTableSize: volumeTableArea,
	}
	at := l.FrontSuperblock + l.SuperblockArea
	for i := range l.StampOffset {
		l.StampOffset[i] = at
		at += blockSize
	}
	for i := range l.VolumeTableOffset {
		l.VolumeTableOffset[i] = at
		at += l.VolumeTableSize
	}
	l.SlotTableOffset = at
	l.DataOffset = dataOffset(slots, n)
	return l, l.validate()
}

// tableOffset is where the slot table begins: behind the zero block, the front
// superblock, the stamps and the volume tables.
const tableOffset = blockSize + superblockArea + 2*blockSize + 2*volumeTableArea

// endSuperblock returns the offset of the end superblock of a backing of size
// bytes. Size alone decides it, so that it is found without the front one.
func endSuperblock(size int64) int64 { return size/blockSize*blockSize - superblockArea }

func tableSlots(slots int64) int64 {
	n := (slots*tableReserve + EntriesPerBlock - 1) / EntriesPerBlock * EntriesPerBlock
	return min(n, math.MaxUint32/EntriesPerBlock*EntriesPerBlock)
}

// dataOffset returns where slot 0 is if there are this many slots of n bytes.
func dataOffset(slots, n int64) int64 {
	return (tableOffset + tableSlots(slots)*entrySize + n - 1) / n * n
}

// Grow returns the layout after the backing has grown to size bytes: nothing
// moves but the end superblock, and there are more slots, as far as the table
// has room for them. Growing takes effect when a superblock with the new
// layout is written.
func (l Layout) Grow(size int64) (Layout, error) {
	if size < l.Size {
		return l, fmt.Errorf("grow backing: %w: %d bytes, was %d", ErrTooSmall, size, l.Size)
	}
	l.Size = size
	l.EndSuperblock = endSuperblock(size)
	l.Slots = uint32(min((l.EndSuperblock-l.DataOffset)/l.ExtentSize, int64(l.TableSlots)))
	return l, l.validate()
}

// SlotOffset returns the offset of the first byte of slot s.
func (l Layout) SlotOffset(s extent.Slot) int64 { return l.DataOffset + int64(s)*l.ExtentSize }

// slotTableSize returns the size of the slot table in bytes.
func (l Layout) slotTableSize() int64 { return int64(l.TableSlots) * entrySize }

// validate checks that the areas are in order and do not overlap. A layout
// that was read from a backing is believed only after this.
func (l Layout) validate() error {
	bad := func(what string) error { return fmt.Errorf("%w: layout: %s", ErrCorrupt, what) }
	if _, err := extent.NewSize(l.ExtentSize); err != nil {
		return bad(err.Error())
	}
	const largest = math.MaxInt64 / 2
	areas := []struct {
		name     string
		at, size int64
	}{
		{"front superblock", l.FrontSuperblock, l.SuperblockArea},
		{"stamp", l.StampOffset[0], blockSize},
		{"second stamp", l.StampOffset[1], blockSize},
		{"volume table", l.VolumeTableOffset[0], l.VolumeTableSize},
		{"second volume table", l.VolumeTableOffset[1], l.VolumeTableSize},
		{"slot table", l.SlotTableOffset, l.slotTableSize()},
		{"data", l.DataOffset, int64(l.Slots) * l.ExtentSize},
		{"end superblock", l.EndSuperblock, l.SuperblockArea},
	}
	free := int64(blockSize)
	for _, a := range areas {
		if a.at < free || a.at > largest || a.size < blockSize || a.size > largest || a.at%blockSize != 0 || a.size%blockSize != 0 {
			return bad(fmt.Sprintf("%s at %d, %d bytes", a.name, a.at, a.size))
		}
		free = a.at + a.size
	}
	switch {
	case free > l.Size:
		return bad(fmt.Sprintf("ends at %d, the backing at %d", free, l.Size))
	case l.FrontSuperblock != blockSize || l.EndSuperblock != endSuperblock(l.Size) || l.SuperblockArea != superblockArea:
		return bad("superblocks are not where they are looked for")
	case l.Slots > l.TableSlots:
		return bad(fmt.Sprintf("%d slots, table for %d", l.Slots, l.TableSlots))
	case l.DataOffset%l.ExtentSize != 0:
		return bad("data is not aligned")
	case l.VolumeTableSize > maxVolumeTable:
		return bad(fmt.Sprintf("volume table of %d bytes", l.VolumeTableSize))
	}
	return nil
}

// Format clears whatever an earlier use has left in the areas of l, the first
// block included, where other formats keep their signatures, and syncs. The slots
// are not touched: they are zeroed before they are given out. A superblock comes
// after it and the volume table after that. On a sparse file it reserves the space
// of all of these, so that only data can meet a full file system.
//
// Cut short, it leaves either nothing but zeroes in front of the data or what says
// whose it was: of an active backing the superblocks go first, so that half a
// format is no backing; of one that is being created they go last.
func Format(ctx context.Context, st backing.Store, l Layout) error {
	tables := func() error {
		from := l.StampOffset[0]
		if err := st.Zero(ctx, from, l.DataOffset-from); err != nil {
			return fmt.Errorf("format backing: %w", err)
		}
		if err := st.Sync(ctx); err != nil {
			return fmt.Errorf("format backing: %w", err)
		}
		return nil
	}
	superblocks := func() error { return Wipe(ctx, st, l) }
	steps := []func() error{superblocks, tables}
	if sb, err := ReadSuperblock(ctx, st); err == nil && sb.State == BackingCreating {
		steps = []func() error{tables, superblocks}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return reserve(ctx, st, l)
}

// reserve keeps space for all that is not data of slots. On a sparse file a write
// to a table would take space at any time later, and a file system that is full
// just then would fail the backing.
func reserve(ctx context.Context, st backing.Store, l Layout) error {
	r, ok := st.(backing.Reserver)
	if !ok {
		return nil
	}
	for _, a := range [][2]int64{
		{0, l.SlotTableOffset + int64(roundUp(int(l.Slots)*entrySize))},
		{l.EndSuperblock, l.Size - l.EndSuperblock},
	} {
		if err := r.Reserve(ctx, a[0], a[1]); err != nil {
			return fmt.Errorf("format backing: %w", err)
		}
	}
	if err := st.Sync(ctx); err != nil {
		return fmt.Errorf("format backing: %w", err)
	}
	return nil
}

// Wipe clears the first block and both superblock areas, also the end area of
// the Store as it is now, and whatever else may lie behind that, and syncs.
// The backing is a stranger to every pool from then on.
func Wipe(ctx context.Context, st backing.Store, l Layout) error {
	for _, a := range [][2]int64{
		{0, l.FrontSuperblock + l.SuperblockArea},
		{l.EndSuperblock, l.Size - l.EndSuperblock},
		{endSuperblock(st.Size()), st.Size() - endSuperblock(st.Size())},
	} {
		if a[0] < 0 || a[0]+a[1] > st.Size() {
			return fmt.Errorf("wipe backing: %w", ErrShort)
		}
		if err := st.Zero(ctx, a[0], a[1]); err != nil {
			return fmt.Errorf("wipe backing: %w", err)
		}
	}
	if err := st.Sync(ctx); err != nil {
		return fmt.Errorf("wipe backing: %w", err)
	}
	return nil
}

// Erase takes everything of the format off a backing that was removed from its pool:
// then it looks like a new one, but for the bytes in the slots. After a crash on the
// way it is that, or its superblock can be read still: the tables go first, then the
// front copy, and of the end copy first the one sector without which there is none.
func Erase(ctx context.Context, st backing.Store, l Layout) error {
	const sector = 512
	if l.Size > st.Size() {
		return fmt.Errorf("erase backing: %w", ErrShort)
	}
	front := l.FrontSuperblock + l.SuperblockArea
	for _, a := range [][2]int64{
		{front, l.DataOffset - front},
		{0, front},
		{l.EndSuperblock, sector},
		{l.EndSuperblock + sector, l.Size - l.EndSuperblock - sector},
	} {
		if err := st.Zero(ctx, a[0], a[1]); err != nil {
			return fmt.Errorf("erase backing: %w", err)
		}
		if err := st.Sync(ctx); err != nil {
			return fmt.Errorf("erase backing: %w", err)
		}
	}
	return nil
}
