// Package faultstore wraps a backing.Store and makes it fail as told, for
// tests. A Fault says which operations it meets (kind, byte range), when (on
// the nth, some times, with a seeded probability) and what happens: an error,
// a torn write, a wait. Inject arms it and returns an Injection, by which it
// is switched off and on and its hits are counted. Every operation is counted
// whether it fails or not.
//
//	fs := faultstore.New(store, 1)
//	fs.Inject(faultstore.Fault{Ops: faultstore.Sync, Err: syscall.EIO, Nth: 2}) // the second sync fails
//	... fs.Count(faultstore.Sync) ...
//
// All methods are safe for concurrent use. With one goroutine at work the
// outcome depends on the seed alone. The lock of the wrapper is not held while
// the Store below works or a fault waits.
package faultstore
