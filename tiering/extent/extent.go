package extent

import (
	"fmt"
	"iter"
	"math/bits"
)

// VolumeID names a volume for ever: ids are never reused. 0 is no volume.
type VolumeID uint32

// BackingID names a backing within its pool, 1 to MaxBackingID. 0 means unmapped.
type BackingID uint16

// MaxBackingID is the largest BackingID that fits the entry word.
const MaxBackingID BackingID = 1<<10 - 1

// TierID is the rank of a tier, 0 being the fastest.
type TierID uint8

// Index is the number of an extent within its volume.
type Index uint64

// Slot is the number of an extent-sized place on a backing.
type Slot uint32

// Key names an extent within the pool.
type Key struct {
	Volume VolumeID
	Index  Index
}

func (k Key) String() string { return fmt.Sprintf("volume %d extent %d", k.Volume, k.Index) }

// Location names a slot within the pool. The zero Location is no place.
type Location struct {
	Backing BackingID
	Slot    Slot
}

// IsZero reports whether l names no place.
func (l Location) IsZero() bool { return l.Backing == 0 }

func (l Location) String() string { return fmt.Sprintf("backing %d slot %d", l.Backing, l.Slot) }

// Limits of the extent size, in bytes; it is a power of two between them.
const (
	MinSize = 64 << 10
	MaxSize = 64 << 20
)

// Size is the size of the pool's extents in bytes, with its logarithm kept
// beside it so that divisions are shifts. The zero Size is not usable.
type Size struct {
	bytes int64
	shift uint8
}

// NewSize returns the Size for an extent of n bytes. It is an error if n is
// not a power of two from MinSize to MaxSize.
func NewSize(n int64) (Size, error) {
	if n < MinSize || n > MaxSize || n&(n-1) != 0 {
		return Size{}, fmt.Errorf("extent size %d: must be a power of two from %d to %d bytes", n, int64(MinSize), int64(MaxSize))
	}
	return Size{bytes: n, shift: uint8(bits.TrailingZeros64(uint64(n)))}, nil
}

// Bytes returns the extent size in bytes.
func (s Size) Bytes() int64 { return s.bytes }

// Index returns the extent that holds the byte at off.
func (s Size) Index(off int64) Index { return Index(off >> s.shift) }

// Within returns the position of off within its extent.
func (s Size) Within(off int64) int64 { return off & (s.bytes - 1) }

// Start returns the offset of the first byte of extent i.
func (s Size) Start(i Index) int64 { return int64(i) << s.shift }

// Count returns how many extents a volume of n bytes has; the last may be ragged.
func (s Size) Count(n int64) Index { return Index((n + s.bytes - 1) >> s.shift) }

// Piece is the part of a byte range that lies in one extent.
type Piece struct {
	Index  Index
	Within int64 // first byte, from the start of the extent
	Len    int64 // bytes in this extent
	Done   int64 // bytes of the range before this piece
}

// Split cuts the byte range [off, off+n) into one Piece per extent, in order.
func (s Size) Split(off, n int64) iter.Seq[Piece] {
	return func(yield func(Piece) bool) {
		for done := int64(0); done < n; {
			within := s.Within(off + done)
			l := min(s.bytes-within, n-done)
			if !yield(Piece{Index: s.Index(off + done), Within: within, Len: l, Done: done}) {
				return
			}
			done += l
		}
	}
}
