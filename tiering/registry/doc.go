// Package registry orders the changes of the pool's extents: it is the one
// structure in which writes, trims, zeroes and the mover's switch meet.
//
// # Model
//
// A change enters the registry with its byte range, waits until no earlier
// overlapping change is left, runs, and leaves. The order of entering is the
// order of arrival, over all connections: entering takes every stripe the range
// touches, in ascending order, before it looks at any of them, so two changes
// that overlap anywhere see each other in the same order everywhere.
//
// There are three kinds of tickets:
//
//   - Write: changes bytes of a mapped extent. It conflicts with every
//     overlapping Write and Exclusive.
//   - Exclusive: alone in all the extents it touches. Changes of a mapping
//     (first writes, unmaps, the mover's switch) are exclusive. A Write becomes
//     Exclusive when it enters if one of its extents is unmapped, or if an
//     Exclusive is before it in one of them, since that one may unmap it.
//   - Shared: a read that lost too often against changes of the mapping. It
//     conflicts with Exclusive alone.
//
// Ordinary reads do not register at all: they check the extent's entry before
// and after, and read again if it changed.
//
// # Moves
//
// A Move is a relocation being copied. It holds a mark for each piece of its
// extent that the target does not have yet. A write sets the marks of the pieces
// it touched when it leaves, not when it enters: a piece copied while the write
// was under way could otherwise lose its mark to the copy that missed the bytes.
// The mover clears a mark, then copies the piece, and repeats until it finds
// none; the last pieces it copies under an Exclusive ticket, where no write is
// in flight.
//
// # Locks
//
// The registry has 1,024 stripes, each with a mutex; an extent belongs to the
// stripe of its volume and group of eight extents. Stripes are locked in
// ascending order. Nothing else is locked inside, and no I/O is done there.
package registry
