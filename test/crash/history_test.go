package crash

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// opKind is what an operation does to a volume.
type opKind uint8

const (
	opCreate opKind = iota + 1 // a volume of n bytes
	opGrow                     // to n bytes
	opDelete
	opWrite // of a content, which may be zeroes
	opFlush
	opCut  // the power failed: what was not durable is there or not, for ever
	opKill // the process died: what was under way happened or not
)

func (k opKind) String() string {
	return [...]string{"", "create", "grow", "delete", "write", "flush", "cut", "kill"}[k]
}

// op is an operation of a volume. It was answered at instant end; 0 if it never was,
// and then nobody knows how much of it happened.
type op struct {
	kind       opKind
	begin, end int64
	off, n     int64
	content    content
	fua        bool
}

func (o op) String() string {
	return fmt.Sprintf("%d-%d %v %d+%d content %d fua %v", o.begin, o.end, o.kind, o.off, o.n, o.content, o.fua)
}

// history is what was done to the volumes of a pool, for each in its order.
type history struct {
	mu   sync.Mutex
	vols map[string][]op
}

func newHistory() *history { return &history{vols: make(map[string][]op)} }

func (h *history) add(name string, o op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.vols[name] = append(h.vols[name], o)
}

func (h *history) clone() *history {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := newHistory()
	for name, ops := range h.vols {
		c.vols[name] = slices.Clone(ops)
	}
	return c
}

// after returns the history as it stands after a crash at instant n, to be gone on
// with.
func (h *history) after(n int64, how opKind) *history {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := newHistory()
	for name, ops := range h.vols {
		var kept []op
		for _, o := range ops {
			if o.begin > n {
				continue
			}
			if o.end > n {
				o.end = 0
			}
			kept = append(kept, o)
		}
		if len(kept) > 0 {
			c.vols[name] = append(kept, op{kind: how, begin: n, end: n})
		}
	}
	return c
}

// promises returns the crash points at which a flush or a FUA change of a run had
// just been answered, and nothing else has made durable since what that promised.
func (h *history) promises(from, to int64) (all []point) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ops := range h.vols {
		for _, o := range ops {
			switch {
			case o.end <= from || o.end > to:
			case o.kind == opFlush:
				all = append(all, point{o.end, "flush answered"})
			case o.fua:
				all = append(all, point{o.end, "FUA answered"})
			}
		}
	}
	slices.SortFunc(all, func(a, b point) int { return cmp.Compare(a.at, b.at) })
	return all
}

// expectation is what may be found of a volume.
type expectation struct {
	may, must bool    // exist
	sizes     []int64 // one of these
	sectors   [][]content
}

// expect returns what may be found of a volume at instant n, after a cut or after a
// kill. Its changes were made one after the other; flushes may have run beside them.
func (h *history) expect(name string, n int64, how opKind) expectation {
	h.mu.Lock()
	defer h.mu.Unlock()
	var x expectation
	// What a reader may see, and what may be there after a cut. Sets are shared, and
	// never changed in place.
	var seen, durable [][]content
	resize := func(bytes int64) {
		for int64(len(seen))*sector < bytes {
			seen, durable = append(seen, onlyZero), append(durable, onlyZero)
		}
	}
	ops := h.vols[name]
	flushed := flushedBefore(ops, n)
	for j, o := range ops {
		if o.begin > n {
			continue
		}
		answered := o.end != 0 && o.end <= n
		switch o.kind {
		case opCreate:
			x.may, x.must, x.sizes = true, answered, []int64{o.n}
			resize(o.n)
		case opGrow:
			if answered {
				x.sizes = nil
			}
			x.sizes = append(x.sizes, o.n)
			resize(o.n)
		case opDelete:
			x.must, x.may = false, x.may && !answered
		case opWrite:
			only := []content{o.content}
			for i := o.off / sector; i < (o.off+o.n)/sector; i++ {
				switch {
				case !answered:
					seen[i], durable[i] = with(seen[i], o.content), with(durable[i], o.content)
				case o.fua || o.end <= flushed[j]:
					seen[i], durable[i] = only, only
				default:
					seen[i], durable[i] = only, with(durable[i], o.content)
				}
			}
		case opCut:
			copy(seen, durable)
		}
	}
	x.sectors = seen
	if how == opCut {
		x.sectors = durable
	}
	return x
}

// flushedBefore returns, for each operation, the instant before which it must have
// been answered to be flushed by what was answered at n. A flush after a cut does
// nothing for what came before that.
func flushedBefore(ops []op, n int64) []int64 {
	before := make([]int64, len(ops))
	last := int64(0)
	for i := len(ops) - 1; i >= 0; i-- {
		switch o := ops[i]; {
		case o.kind == opCut && o.begin <= n:
			last = 0
		case o.kind == opFlush && o.end != 0 && o.end <= n:
			last = max(last, o.begin)
		}
		before[i] = last
	}
	return before
}

var onlyZero = []content{0}

func with(set []content, c content) []content {
	if slices.Contains(set, c) {
		return set
	}
	return append(set[:len(set):len(set)], c)
}

// check compares what was read of a volume, nil if it does not exist.
func (x expectation) check(p []byte) error {
	switch {
	case p == nil && x.must:
		return fmt.Errorf("it is gone")
	case p == nil:
		return nil
	case !x.may:
		return fmt.Errorf("it should not exist")
	case !slices.Contains(x.sizes, int64(len(p))):
		return fmt.Errorf("it has %d bytes, want one of %v", len(p), x.sizes)
	}
	for i := int64(0); i*sector < int64(len(p)); i++ {
		c, err := identify(p[i*sector:(i+1)*sector], i)
		if err != nil {
			return fmt.Errorf("sector %d: %w, want one of contents %v", i, err, x.sectors[i])
		}
		if !slices.Contains(x.sectors[i], c) {
			return fmt.Errorf("sector %d: content %d, want one of %v", i, c, x.sectors[i])
		}
	}
	return nil
}

func (h *history) names() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for name := range h.vols {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// String lists the last operations of each volume.
func (h *history) String() string {
	var b strings.Builder
	for _, name := range h.names() {
		ops := h.vols[name]
		for _, o := range ops[max(0, len(ops)-40):] {
			fmt.Fprintf(&b, "  %s %v\n", name, o)
		}
	}
	return b.String()
}
