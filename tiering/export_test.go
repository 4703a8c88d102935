package tiering

import "time"

// SetWindowSlots makes Check look at so many slots at once, until the function that
// it returns is called.
func SetWindowSlots(n int64) (restore func()) {
	old := windowSlots
	windowSlots = n
	return func() { windowSlots = old }
}

// SetOpenPatience makes Open say what it waits for after d, until the function that it
// returns is called.
func SetOpenPatience(d time.Duration) (restore func()) {
	old := openPatience
	openPatience = d
	return func() { openPatience = old }
}

// SetWipePatience makes a removal wait for d for the backing to be wiped, until the
// function that it returns is called.
func SetWipePatience(d time.Duration) (restore func()) {
	old := wipePatience
	wipePatience = d
	return func() { wipePatience = old }
}

// SetBeneath has another function tell what lies on which NBD device, until the one that
// is returned is called.
func SetBeneath(fn func(path string) (device, backend string)) (restore func()) {
	was := beneath
	beneath = fn
	return func() { beneath = was }
}

// BeginCycle begins a cycle whose plan is never made.
func (p *Pool) BeginCycle() { p.reloc.beginCycle(p.clock.Now()) }
