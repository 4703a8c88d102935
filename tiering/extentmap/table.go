package extentmap

import (
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"tierd/tiering/extent"
)

// A segment is 2 MiB of address space: 2^18 entries.
const (
	segmentShift   = 18
	segmentEntries = 1 << segmentShift
	segmentMask    = segmentEntries - 1
	segmentBytes   = segmentEntries * 8
	maxSegments    = 1 << 26 // more than the address space has

	// A page is what the touched bits of a segment stand for.
	pageShift    = 9 // 512 entries, 4 KiB
	pageEntries  = 1 << pageShift
	segmentPages = segmentEntries / pageEntries
)

// segment is a piece of anonymous memory. The words are outside of the Go
// heap: the collector neither scans them nor counts them.
type segment struct {
	words *[segmentEntries]uint64

	// touched has a bit for each page that a Store has ever written, set
	// before the word is. Readers that sweep the table skip the rest, which
	// keeps the kernel from building page tables for it.
	touched [segmentPages / 64]atomic.Uint64
}

// Table is the lookup array of one volume: one atomic word per extent, all
// unmapped at first. Load, Store and CompareAndSwap may be called by any
// goroutine at any time between NewTable and Close, also while Grow runs. An
// index of Len or more is a fault of the caller and may panic.
//
// The words live in anonymous NORESERVE mappings, so that a sparse volume
// costs memory only where it is used. They are cut into segments so that Grow
// does not move them: a reader that holds an older list of segments sees the
// same words.
type Table struct {
	top atomic.Pointer[[]*segment]
	len atomic.Uint64

	mu     sync.Mutex // serialises Grow and Close
	closed bool

	ranging sync.RWMutex // held by Range for reading, and by Close; after mu
}

// NewTable returns a table of n unmapped extents. The error is the kernel's,
// when it refuses the address space.
func NewTable(n extent.Index) (*Table, error) {
	t := new(Table)
	t.top.Store(new([]*segment))
	if err := t.Grow(n); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Len returns the number of extents.
func (t *Table) Len() extent.Index { return extent.Index(t.len.Load()) }

// Load returns the entry of extent i.
func (t *Table) Load(i extent.Index) extent.Entry {
	return extent.Entry(atomic.LoadUint64(&(*t.top.Load())[i>>segmentShift].words[i&segmentMask]))
}

// Store sets the entry of extent i.
func (t *Table) Store(i extent.Index, e extent.Entry) {
	s := (*t.top.Load())[i>>segmentShift]
	s.touch(i & segmentMask)
	atomic.StoreUint64(&s.words[i&segmentMask], uint64(e))
}

// CompareAndSwap sets the entry of extent i to new if it is old, and reports
// whether it was.
func (t *Table) CompareAndSwap(i extent.Index, old, new extent.Entry) bool {
	s := (*t.top.Load())[i>>segmentShift]
	s.touch(i & segmentMask)
	return atomic.CompareAndSwapUint64(&s.words[i&segmentMask], uint64(old), uint64(new))
}

// touch sets the bit of the page that holds entry i of the segment. The load
// first keeps the cache line shared once the bit is set.
func (s *segment) touch(i extent.Index) {
	page := uint64(i) >> pageShift
	word, bit := &s.touched[page/64], uint64(1)<<(page%64)
	if word.Load()&bit == 0 {
		word.Or(bit)
	}
}

// Grow makes the table at least n extents long; the new ones are unmapped. It
// never shrinks it. After an error the table is as long as it was.
func (t *Table) Grow(n extent.Index) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return fmt.Errorf("grow lookup table: %w", ErrClosed)
	}
	if n <= t.Len() {
		return nil
	}
	old := *t.top.Load()
	need := int((n-1)>>segmentShift) + 1
	fresh, err := newSegments(need-len(old), int(n>>segmentShift)-len(old))
	if err != nil {
		return fmt.Errorf("map lookup table of %d extents: %w", n, err)
	}
	top := append(append(make([]*segment, 0, need), old...), fresh...)
	t.top.Store(&top)
	t.len.Store(uint64(n))
	return nil
}

// newSegments maps n segments at once. Those from whole on are not wholly used
// by the volume, and get no huge pages: ten thousand small volumes would take
// 2 MiB each.
func newSegments(n, whole int) ([]*segment, error) {
	if n == 0 {
		return nil, nil
	}
	if uint64(n) > maxSegments {
		return nil, unix.ENOMEM
	}
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(n)*segmentBytes, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	list := make([]*segment, n)
	for i := range list {
		words := unsafe.Add(p, i*segmentBytes)
		if i >= whole {
			// A kernel without huge pages refuses; then there is nothing to avoid.
			_ = unix.Madvise(unsafe.Slice((*byte)(words), segmentBytes), unix.MADV_NOHUGEPAGE)
		}
		list[i] = &segment{words: (*[segmentEntries]uint64)(words)}
	}
	return list, nil
}

func (s *segment) unmap() { _ = unix.MunmapPtr(unsafe.Pointer(s.words), segmentBytes) }

// AllMapped reports whether each extent from first to last, both included, has
// a slot. It is a snapshot extent by extent, not of the range as a whole.
func (t *Table) AllMapped(first, last extent.Index) bool {
	if last >= t.Len() {
		return false
	}
	top := *t.top.Load()
	for i := first; i <= last; i++ {
		if !extent.Entry(atomic.LoadUint64(&top[i>>segmentShift].words[i&segmentMask])).Mapped() {
			return false
		}
	}
	return true
}

// Range calls fn, in order, for each extent whose entry is not zero, until fn
// returns false. (An entry that was unmapped has a generation and is not zero.)
// Pages that were never stored to are skipped without a look. An extent that
// changes meanwhile is seen before or after its change. Unlike the others it may
// run beside Close, which waits for it, and after it, when there are no extents. fn
// must not call Close.
func (t *Table) Range(fn func(i extent.Index, e extent.Entry) bool) {
	t.ranging.RLock()
	defer t.ranging.RUnlock()
	n := t.Len()
	for si, s := range *t.top.Load() {
		for w := range s.touched {
			for set := s.touched[w].Load(); set != 0; set &= set - 1 {
				page := w*64 + bits.TrailingZeros64(set)
				for j := page * pageEntries; j < (page+1)*pageEntries; j++ {
					e := extent.Entry(atomic.LoadUint64(&s.words[j]))
					i := extent.Index(si)<<segmentShift + extent.Index(j)
					if e != 0 && i < n && !fn(i, e) {
						return
					}
				}
			}
		}
	}
}

// Close gives the memory back. No call may be running or follow, apart from
// Range and another Close: a reader still inside would touch memory that is gone.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	t.ranging.Lock()
	defer t.ranging.Unlock()
	top := *t.top.Load()
	t.len.Store(0)
	t.top.Store(new([]*segment))
	for _, s := range top {
		s.unmap()
	}
	return nil
}
