package simulate

import "testing"

// LimitExtents sets the number of extents that a trace may touch, for one test.
func LimitExtents(t *testing.T, n int) {
	before := maxExtents
	maxExtents = n
	t.Cleanup(func() { maxExtents = before })
}
