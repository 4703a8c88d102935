package alloc

import (
	"fmt"
	"sync"

	"tierd/tiering/extent"
)

type state uint8

const (
	free state = iota
	cleaning
	clean
	used
	vacated
	quarantined
	stateCount
)

var stateNames = [stateCount]string{"free", "cleaning", "clean", "used", "vacated", "quarantined"}

// Counts are the numbers of slots by state.
type Counts struct {
	Total, Free, Cleaning, Clean, Used, Vacated, Quarantined int64
}

// Slots are the books of one backing. Safe for concurrent use.
type Slots struct {
	mu     sync.Mutex
	state  []state
	used   []uint64 // a bit for each slot that was ever used since New
	counts [stateCount]int64
	// queue holds the clean slots in the order in which they became clean,
	// which is ascending where the cleaner works through fresh space, so that a
	// volume written from front to back lies on the backing in that order.
	queue  []extent.Slot
	head   int
	cursor int // where the search for a free slot goes on
	shut   bool
}

// New returns the books of n slots, all free.
func New(n uint32) *Slots {
	s := &Slots{state: make([]state, n), used: make([]uint64, (n+63)/64)}
	s.counts[free] = int64(n)
	return s
}

// set moves slot from one of the states in from to the state to. A slot in any
// other state means that the books are wrong, and with them somebody's data.
func (s *Slots) set(slot extent.Slot, to state, from ...state) {
	was := s.state[slot]
	for _, f := range from {
		if was == f {
			s.state[slot] = to
			s.counts[was]--
			s.counts[to]++
			if to == used {
				s.used[slot/64] |= 1 << (slot % 64)
			}
			return
		}
	}
	panic(fmt.Sprintf("slot %d cannot become %s: it is %s", slot, stateNames[to], stateNames[was]))
}

// Claim marks a free slot as used when the books are built from the extent map.
// It is an error if the slot does not exist or is not free.
func (s *Slots) Claim(slot extent.Slot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int64(slot) >= int64(len(s.state)) {
		return fmt.Errorf("slot %d is past the last slot, %d", slot, len(s.state)-1)
	}
	if was := s.state[slot]; was != free {
		return fmt.Errorf("slot %d is %s already", slot, stateNames[was])
	}
	s.set(slot, used, free)
	return nil
}

// Shut says whether slots may be given out and cleaned: once Shut(true) has
// returned, none is before Shut(false). Those given out before stay with their
// owners.
func (s *Slots) Shut(shut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut = shut
}

// Reserve takes the clean slot that has waited longest. ok is false if there is
// none, or if the books are shut.
func (s *Slots) Reserve() (slot extent.Slot, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut || s.head == len(s.queue) {
		return 0, false
	}
	slot = s.queue[s.head]
	s.head++
	if s.head == len(s.queue) {
		s.queue, s.head = s.queue[:0], 0
	} else if s.head > 1024 && s.head*2 > len(s.queue) {
		s.queue = s.queue[:copy(s.queue, s.queue[s.head:])]
		s.head = 0
	}
	s.set(slot, used, clean)
	return slot, true
}

// Unreserve gives back a slot that was reserved and never written.
func (s *Slots) Unreserve(slot extent.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(slot, clean, used)
	s.queue = append(s.queue, slot)
}

// Vacate notes that slot's owner left it, in memory.
func (s *Slots) Vacate(slot extent.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(slot, vacated, used)
}

// Free makes a vacated slot free: the commit that vacates it is durable.
func (s *Slots) Free(slot extent.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(slot, free, vacated)
}

// Quarantine sets a slot aside for good, whatever its state but clean.
func (s *Slots) Quarantine(slot extent.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(slot, quarantined, free, cleaning, used, vacated)
}

// QuarantineFree sets a free slot aside and reports whether it was free.
func (s *Slots) QuarantineFree(slot extent.Slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state[slot] != free {
		return false
	}
	s.set(slot, quarantined, free)
	return true
}

// SetAside reports whether slot is set aside.
func (s *Slots) SetAside(slot extent.Slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state[slot] == quarantined
}

// Hold makes a free slot vacated, until Free, and reports whether it was free.
func (s *Slots) Hold(slot extent.Slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state[slot] != free {
		return false
	}
	s.set(slot, vacated, free)
	return true
}

// TakeFree takes a free slot for cleaning. ok is false if there is none, or if the
// books are shut.
func (s *Slots) TakeFree() (slot extent.Slot, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut || s.counts[free] == 0 {
		return 0, false
	}
	for s.state[s.cursor] != free {
		s.cursor = (s.cursor + 1) % len(s.state)
	}
	slot = extent.Slot(s.cursor)
	s.set(slot, cleaning, free)
	return slot, true
}

// WasUsed reports whether slot was used since New: what it reads as may differ
// from what is durable there.
func (s *Slots) WasUsed(slot extent.Slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used[slot/64]&(1<<(slot%64)) != 0
}

// Cleaned notes that a slot taken by TakeFree is zeroed, durably.
func (s *Slots) Cleaned(slot extent.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(slot, clean, cleaning)
	s.queue = append(s.queue, slot)
}

// NotCleaned puts back a slot taken by TakeFree that could not be zeroed.
func (s *Slots) NotCleaned(slot extent.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(slot, free, cleaning)
}

// Counts returns the numbers of slots by state.
func (s *Slots) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.counts
	return Counts{
		Total: int64(len(s.state)), Free: c[free], Cleaning: c[cleaning], Clean: c[clean],
		Used: c[used], Vacated: c[vacated], Quarantined: c[quarantined],
	}
}
