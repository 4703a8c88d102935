package load

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

// A word is what the ledger knows of a unit: two bits of kind above the
// generation. The zero word is a unit that nothing is known of.
type word uint32

const (
	genMask       = 1<<30 - 1
	kindMask word = 3 << 30
	kindData word = 0 << 30 // written; with generation 0: never touched
	kindZero word = 1 << 30 // zeroed
	kindTrim word = 2 << 30 // given up: zeroes, or any content up to this generation
)

func (w word) gen() uint32 { return uint32(w) & genMask }
func (w word) kind() word  { return w & kindMask }

// lockWords is the number of locks that units share; neighbours never do, so an
// operation of up to that many units does not collide with itself.
const (
	lockWords  = 1 << 16
	lockWriter = 1 << 31
)

// ledger remembers what every unit must read as. A unit's word is read and
// written only under the unit's lock.
type ledger struct {
	unit       int64
	size       int64
	seed       uint64
	expectZero bool
	afterCut   bool // check what FLUSH promised, not what was answered
	words      []word
	durability
	locks [lockWords]uint32

	mu       sync.Mutex
	doubts   map[int64][]word // further states that a unit may have, by unit
	doubtful atomic.Int64     // len(doubts)

	checked  atomic.Int64
	mismatch [len(faultNames)]atomic.Int64
	details  []string // of the first faults; under mu
}

// maxDetails is how many faults are described one by one.
const maxDetails = 32

func newLedger(size, unit int64, seed uint64, expectZero bool) *ledger {
	l := &ledger{unit: unit, size: size, seed: seed, expectZero: expectZero,
		words: make([]word, size/unit), doubts: map[int64][]word{}}
	l.init(size / unit)
	return l
}

// tryLock locks the units of [off, off+n), shared for reads. It takes all or none.
func (l *ledger) tryLock(off, n int64, exclusive bool) bool {
	first, last := off/l.unit, (off+n-1)/l.unit
	for u := first; u <= last; u++ {
		if !l.lock1(u, exclusive) {
			if u > first {
				l.unlock(off, (u-first)*l.unit, exclusive)
			}
			return false
		}
	}
	return true
}

func (l *ledger) lock1(u int64, exclusive bool) bool {
	p := &l.locks[u%lockWords]
	if exclusive {
		return atomic.CompareAndSwapUint32(p, 0, lockWriter)
	}
	for {
		v := atomic.LoadUint32(p)
		if v == lockWriter {
			return false
		}
		if atomic.CompareAndSwapUint32(p, v, v+1) {
			return true
		}
	}
}

func (l *ledger) unlock(off, n int64, exclusive bool) {
	for u := off / l.unit; u <= (off+n-1)/l.unit; u++ {
		if exclusive {
			atomic.StoreUint32(&l.locks[u%lockWords], 0)
		} else {
			atomic.AddUint32(&l.locks[u%lockWords], ^uint32(0))
		}
	}
}

// next returns the word of unit u after one more change of this kind.
func (l *ledger) next(u int64, kind word) word {
	g := l.words[u].gen()
	for _, d := range l.doubtsOf(u) {
		g = max(g, d.gen())
	}
	return kind | word(g+1)
}

func (l *ledger) doubtsOf(u int64) []word {
	if l.doubtful.Load() == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.doubts[u]
}

// prepare fills p with what a write at off has to write.
func (l *ledger) prepare(p []byte, off int64) {
	for ; len(p) > 0; p, off = p[l.unit:], off+l.unit {
		fillUnit(p[:l.unit], l.seed, off, l.next(off/l.unit, kindData).gen())
	}
}

// settle records the outcome of a change of [off, off+n); durable tells that it
// was made with FUA.
func (l *ledger) settle(off, n int64, kind word, answered, durable bool) {
	if kind != kindData {
		l.zeroed.Store(true)
	}
	for u := off / l.unit; u < (off+n)/l.unit; u++ {
		if kind == kindTrim && l.words[u] == 0 && !l.expectZero {
			continue // nothing was known and nothing is
		}
		w := l.next(u, kind)
		if answered {
			l.change(u, l.words[u], durable)
			l.words[u] = w
		}
		if answered && l.doubtful.Load() == 0 {
			continue
		}
		l.mu.Lock()
		if !answered {
			l.doubts[u] = append(l.doubts[u], w)
		} else if kind != kindTrim {
			// After a trim the doubtful states are covered by its own rule,
			// which allows for all that the unit ever held.
			delete(l.doubts, u)
		}
		l.doubtful.Store(int64(len(l.doubts)))
		l.mu.Unlock()
	}
}

// A fault is a way for a unit to be wrong.
type fault int

const (
	faultZero      fault = iota // zeroes instead of data: lost
	faultStale                  // an older generation: a lost write
	faultNewer                  // a generation that was never answered nor in doubt
	faultMisplaced              // whole, but of another offset
	faultForeign                // whole, but of another seed
	faultCorrupt                // no generation of any unit
)

var faultNames = [...]string{"zeroes", "stale", "newer", "misplaced", "foreign", "corrupt"}

// check compares what was read from off with what the ledger knows.
func (l *ledger) check(p []byte, off int64) {
	l.checked.Add(int64(len(p)) / l.unit)
	for ; len(p) > 0; p, off = p[l.unit:], off+l.unit {
		b := p[:l.unit]
		w := l.words[off/l.unit]
		if l.afterCut {
			if w = l.durable(off/l.unit, w); l.acceptCut(b, off, w) {
				continue
			}
		} else if l.accept(b, off, w) || slices.ContainsFunc(l.doubtsOf(off/l.unit), func(d word) bool { return l.accept(b, off, d) }) {
			continue
		}
		f, text := l.diagnose(b, off, w)
		l.mismatch[f].Add(1)
		l.mu.Lock()
		if len(l.details) < maxDetails {
			l.details = append(l.details, text)
		}
		l.mu.Unlock()
	}
}

// accept reports whether b can be the unit at off in state w.
func (l *ledger) accept(b []byte, off int64, w word) bool {
	switch {
	case w == 0:
		return !l.expectZero || isZero(b)
	case w.kind() == kindZero:
		return isZero(b)
	case w.kind() == kindTrim:
		g := le.Uint32(b[24:])
		return isZero(b) || g < w.gen() && isUnit(b, l.seed, off, g)
	}
	return isUnit(b, l.seed, off, w.gen())
}

func (l *ledger) diagnose(b []byte, off int64, w word) (fault, string) {
	want := fmt.Sprintf("generation %d", w.gen())
	if w == 0 || w.kind() == kindZero {
		want = "zeroes"
	} else if w.kind() == kindTrim {
		want = fmt.Sprintf("zeroes or a generation below %d", w.gen())
	}
	at, seed, gen := le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint32(b[24:])
	whole := le.Uint64(b) == unitMagic && le.Uint32(b[28:]) == unitCRC(b)
	switch {
	case isZero(b):
		return faultZero, fmt.Sprintf("offset %d: zeroes, want %s", off, want)
	case !whole:
		return faultCorrupt, fmt.Sprintf("offset %d: corrupt (CRC does not match), want %s", off, want)
	case seed != l.seed:
		return faultForeign, fmt.Sprintf("offset %d: data of another run (seed %d), want %s", off, seed, want)
	case at != uint64(off):
		return faultMisplaced, fmt.Sprintf("offset %d: the data of offset %d, generation %d, want %s", off, at, gen, want)
	case gen > w.gen():
		return faultNewer, fmt.Sprintf("offset %d: generation %d, want %s", off, gen, want)
	case gen == w.gen() && w.kind() == kindData:
		return faultCorrupt, fmt.Sprintf("offset %d: corrupt (header and CRC match, content does not), want %s", off, want)
	}
	return faultStale, fmt.Sprintf("offset %d: generation %d, want %s", off, gen, want)
}

// known reports whether any unit of [off, off+n) has a state to check.
func (l *ledger) known(off, n int64) bool {
	if l.expectZero {
		return true
	}
	for u := off / l.unit; u < (off+n)/l.unit; u++ {
		if l.words[u] != 0 {
			return true
		}
	}
	return false
}

// faults returns the number of mismatches so far.
func (l *ledger) faults() int64 {
	var n int64
	for i := range l.mismatch {
		n += l.mismatch[i].Load()
	}
	return n
}
