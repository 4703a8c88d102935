package tiering

import (
	"sync"
	"sync/atomic"

	"tierd/tiering/extent"
)

// trimJoiner remembers the ragged ends of recent trims: the parts of extents
// that were trimmed while the rest was not. Whoever writes to such an extent
// makes it forget. All calls for one extent come from changes that exclude each
// other, in their order.
type trimJoiner struct {
	count atomic.Int32
	mu    sync.Mutex
	parts [16]trimPart // the first count of them, oldest first
}

type trimPart struct {
	index    extent.Index
	from, to int64
}

// pending reports whether anything is remembered.
func (j *trimJoiner) pending() bool { return j.count.Load() > 0 }

// add remembers a trimmed piece and reports whether now the whole extent, which
// has size bytes, has been trimmed; then it is forgotten again.
func (j *trimJoiner) add(pc extent.Piece, size int64) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	part := trimPart{pc.Index, pc.Within, pc.Within + pc.Len}
	for k := 0; k < int(j.count.Load()); {
		o := j.parts[k]
		if o.index != part.index {
			k++
			continue
		}
		if o.from > part.to || part.from > o.to {
			k++
			continue // apart: both are kept until something joins them
		}
		part.from, part.to = min(part.from, o.from), max(part.to, o.to)
		j.remove(k)
		k = 0 // the wider part may join others now
	}
	if part.from == 0 && part.to >= size {
		return true
	}
	if int(j.count.Load()) == len(j.parts) {
		j.remove(0)
	}
	j.parts[j.count.Load()] = part
	j.count.Add(1)
	return false
}

// drop forgets the extents first to last: they were written to, or unmapped.
func (j *trimJoiner) drop(first, last extent.Index) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for k := 0; k < int(j.count.Load()); {
		if i := j.parts[k].index; i >= first && i <= last {
			j.remove(k)
		} else {
			k++
		}
	}
}

// remove takes part k out. j.mu is held.
func (j *trimJoiner) remove(k int) {
	n := int(j.count.Load())
	copy(j.parts[k:n-1], j.parts[k+1:n])
	j.count.Add(-1)
}
