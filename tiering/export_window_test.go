package tiering

// SetWindowSlots makes Check look at so many slots at once, until the function that
// it returns is called.
func SetWindowSlots(n int64) (restore func()) {
	old := windowSlots
	windowSlots = n
	return func() { windowSlots = old }
}
