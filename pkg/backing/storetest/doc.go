// Package storetest holds the tests that every backing.Store must pass. A new
// kind of Store, or a wrapper, calls Run with a function that makes an empty
// one of the given size:
//
//	storetest.Run(t, func(t *testing.T, size int64) backing.Store { return backing.NewMem(size) })
//
// Run closes what it was given; the maker cleans up the rest with t.Cleanup.
package storetest
