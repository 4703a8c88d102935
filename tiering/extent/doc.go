// Package extent holds the leaf types of the tiering packages: the numbers
// that name volumes, extents, tiers, backings and slots, the split of a byte
// range into extent pieces, and the packed entry word of the extent map.
//
// An extent is a fixed-size piece of a volume and the unit of placement. A
// slot is an extent-sized place on one backing. The extent map says in which
// slot an extent lives; an extent without a slot is unmapped and reads as
// zeroes.
//
// The package imports the standard library alone, so that every other package
// can share these types. Each number has a type of its own: the compiler keeps
// a slot from being used as an extent index.
package extent
