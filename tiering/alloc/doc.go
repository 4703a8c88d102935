// Package alloc keeps the books of one backing's slots.
//
// A slot is in one of these states:
//
//	free        no owner; what it holds is unknown
//	cleaning    no owner; the cleaner is zeroing it
//	clean       no owner; reads as zeroes, durably
//	used        owned by an extent, or reserved for one
//	vacated     its owner left; it is not free before the commit that says so, and
//	            after an unclean stop not before all slot tables match the map
//	quarantined set aside because something about it is in doubt
//
// Only clean slots are given out, so the bytes of one extent can never show up
// in another. That a slot is clean is knowledge in memory alone: nothing here is
// persisted, and at open the books are rebuilt from the extent map, which says
// which slots are used; all others start out free.
package alloc
