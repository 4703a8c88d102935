package extent

import "fmt"

// Entry is one word of the extent map as it is kept in memory, read and
// written atomically:
//
//	bits  0..9   backing (0 = unmapped)
//	bits 10..41  slot
//	bits 42..51  generation, raised at each change of the mapping
//	bits 52..59  spare, zero (a length class, later)
//	bit  60      staged: visible, but not yet committed
//	bits 61..63  spare flags, zero
//
// The generation lets a reader that took no lock see that the mapping changed
// under it, even if the extent came back to the same slot in between. It lives
// in memory alone: after a restart there are no readers left to warn.
type Entry uint64

const (
	backingBits = 10
	slotBits    = 32
	genBits     = 10

	slotShift = backingBits
	genShift  = backingBits + slotBits

	backingMask = 1<<backingBits - 1
	slotMask    = 1<<slotBits - 1
	genMask     = 1<<genBits - 1

	// FlagStaged marks a mapping that no commit names yet.
	FlagStaged Entry = 1 << 60

	placeMask Entry = 1<<(backingBits+slotBits+genBits) - 1
)

// At returns the successor of e that maps its extent to l: the generation is
// one higher and the flags are clear. A zero l unmaps the extent.
func (e Entry) At(l Location) Entry {
	gen := (uint64(e)>>genShift + 1) & genMask
	return Entry(uint64(l.Backing)&backingMask | uint64(l.Slot)<<slotShift | gen<<genShift)
}

// Mapped reports whether the extent has a slot.
func (e Entry) Mapped() bool { return e&backingMask != 0 }

// Location returns the slot of the extent; zero if unmapped.
func (e Entry) Location() Location {
	if !e.Mapped() {
		return Location{}
	}
	return Location{Backing: BackingID(e & backingMask), Slot: Slot(e >> slotShift & slotMask)}
}

// Generation returns the change counter, modulo 1024.
func (e Entry) Generation() uint16 { return uint16(e >> genShift & genMask) }

// Staged reports whether the mapping awaits its commit.
func (e Entry) Staged() bool { return e&FlagStaged != 0 }

// SamePlace reports whether e and o have the same location and generation,
// whatever their flags: what was read under e is valid if o is current.
func (e Entry) SamePlace(o Entry) bool { return (e^o)&placeMask == 0 }

func (e Entry) String() string {
	return fmt.Sprintf("{%v gen %d staged %v}", e.Location(), e.Generation(), e.Staged())
}
