// Package tap takes note of the requests of one volume for whoever records them,
// at a cost to the requests that is small and bounded.
//
// # Model
//
// A Tap is in place only while somebody records: Push is called by the goroutines
// of requests, Drain by the one that records. In between are buffers of fixed size,
// made with the Tap: nothing is allocated later on behalf of a request. A request
// that finds no room is not noted, and counted as dropped; it is never held up.
//
//	requests ---Push---> shards ---full---> Drain ---> in order, to a file
//	                       ^---------spare----'
//
// # Order
//
// Requests get numbers from one counter while they hold their shard, and Drain
// returns them in that order and without a gap: it reads the counter, then locks
// each shard in turn. Whoever took a number below what was read has left its shard
// by then, so its entry is there. Hence two requests pushed one after the other by
// one goroutine, or by two of which one waited for the other, never change places.
// What was numbered later is kept for the next Drain.
//
// # Locks
//
// Push only tries the locks of shards, of which there are many, and passes over one
// that is held, perhaps by a goroutine whose thread was descheduled. Buffers change
// hands through channels that are never waited for.
package tap
