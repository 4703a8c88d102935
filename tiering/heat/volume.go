package heat

import (
	"time"

	"tierd/tiering/extent"
)

// Volume takes the accesses of one volume and tells the heat of its extents.
type Volume struct {
	t       *Tracker
	id      extent.VolumeID
	ref     uint32
	size    extent.Size
	streams streams

	// Under t.mu.
	extents  extent.Index
	segments []*segment // nil: never touched
}

func (v *Volume) growLocked(extents extent.Index) {
	if extents <= v.extents {
		return
	}
	v.extents = extents
	if n := int((extents + segmentLen - 1) >> segmentShift); n > len(v.segments) {
		v.segments = append(v.segments, make([]*segment, n-len(v.segments))...)
	}
}

// segmentLocked returns the segment of extent i, made if need be. nil if the
// volume has no such extent.
func (v *Volume) segmentLocked(i extent.Index) (*segment, error) {
	if i >= v.extents {
		return nil, nil
	}
	p := &v.segments[i>>segmentShift]
	if *p == nil {
		s, err := newSegment()
		if err != nil {
			return nil, err
		}
		*p = s
	}
	return *p, nil
}

// Access notes a request of n bytes at off. Its weight, in seconds of the slowest
// tier's device, is for each extent it touches
//
//	w = alpha_op * (p*(1-q) + bytes/BW)
//
// with q = 1 if the request belongs to a sequential run. Access allocates
// nothing but, now and then, a buffer for a thousand accesses, and takes no lock
// that it would have to wait for, except to change a full buffer.
func (v *Volume) Access(off, n int64, write bool) {
	if n <= 0 || off < 0 {
		return
	}
	w := &v.t.reads
	if write {
		w = &v.t.writes
	}
	position := w.position
	if v.streams.request(off, n) {
		position = 0
	}
	for n > 0 {
		piece := min(v.size.Bytes()-v.size.Within(off), n)
		v.t.buf.push(touch{
			index:  v.size.Index(off),
			volume: v.ref,
			weight: float32(position + float64(piece)*w.perByte),
		})
		off += piece
		n -= piece
	}
}

// cellLocked returns the cell of extent i, or nil if it was never touched. t.mu is
// held for reading.
func (v *Volume) cellLocked(i extent.Index) (*segment, *cell) {
	if i >= v.extents {
		return nil, nil
	}
	s := v.segments[i>>segmentShift]
	if s == nil {
		return nil, nil
	}
	return s, &s.cells[i&(segmentLen-1)]
}

// Heat returns the score of extent i at now. Accesses since the last Drain are
// not in it.
func (v *Volume) Heat(i extent.Index, now time.Time) Score {
	v.t.mu.RLock()
	defer v.t.mu.RUnlock()
	_, c := v.cellLocked(i)
	if c == nil {
		return Score{SinceMove: NeverMoved}
	}
	m := v.t.momentLocked(now)
	return m.score(c)
}

// Range calls fn with the score at now of every extent that has one, in
// ascending order, until fn returns false. It returns whether it came to the
// end. Extents never touched are left out: their score is zero. No lock is held
// while fn runs, and none for longer than a chunk of 4,096 extents takes.
func (v *Volume) Range(now time.Time, fn func(i extent.Index, s Score) bool) bool {
	type scored struct {
		i extent.Index
		s Score
	}
	buf := make([]scored, 0, chunkLen)
	for first := extent.Index(0); ; {
		buf = buf[:0]
		v.t.mu.RLock()
		first = v.nextChunkLocked(first)
		if first >= v.extents {
			v.t.mu.RUnlock()
			return true
		}
		m := v.t.momentLocked(now)
		cells := v.segments[first>>segmentShift].cells[first&(segmentLen-1):][:min(chunkLen, v.extents-first)]
		for k := range cells {
			if cells[k].stats.Load() != 0 {
				buf = append(buf, scored{first + extent.Index(k), m.score(&cells[k])})
			}
		}
		v.t.mu.RUnlock()

		for _, x := range buf {
			if !fn(x.i, x.s) {
				return false
			}
		}
		first += chunkLen
	}
}

// nextChunkLocked returns the first extent of the next chunk from first on that
// was ever touched, or something beyond the volume's end.
func (v *Volume) nextChunkLocked(first extent.Index) extent.Index {
	for ; first < v.extents; first += chunkLen {
		s := v.segments[first>>segmentShift]
		if s == nil {
			first |= segmentLen - chunkLen // to the last chunk of the segment
			continue
		}
		if s.touched.Load()&chunkBit(first) != 0 {
			return first
		}
	}
	return first
}

// Scores fills out with the scores at now of the extents from first on, zero ones
// included, for a caller that walks the extent map in step. It returns how many
// of out the volume has.
func (v *Volume) Scores(first extent.Index, out []Score, now time.Time) int {
	return v.scores(first, out, now, 0)
}

// NextScores is Scores as it will be when the cycle has ended, if that is now.
func (v *Volume) NextScores(first extent.Index, out []Score, now time.Time) int {
	return v.scores(first, out, now, 1)
}

func (v *Volume) scores(first extent.Index, out []Score, now time.Time, ahead uint32) int {
	v.t.mu.RLock()
	defer v.t.mu.RUnlock()
	if first >= v.extents {
		return 0
	}
	m := v.t.momentLocked(now)
	m.cycle += ahead
	n := int(min(extent.Index(len(out)), v.extents-first))
	for k := 0; k < n; {
		i := first + extent.Index(k)
		piece := out[k:min(n, k+int(chunkLen-i&(chunkLen-1)))] // what lies in i's chunk
		k += len(piece)
		s := v.segments[i>>segmentShift]
		if s == nil || s.touched.Load()&chunkBit(i) == 0 {
			for j := range piece {
				piece[j] = Score{SinceMove: NeverMoved}
			}
			continue
		}
		cells := s.cells[i&(segmentLen-1):][:len(piece)]
		for j := range cells {
			piece[j] = m.score(&cells[j])
		}
	}
	return n
}

// Moved notes that extent i has just been moved.
func (v *Volume) Moved(i extent.Index) {
	v.t.mu.RLock()
	s, c := v.cellLocked(i)
	cycle := v.t.cycle
	if c == nil {
		// Never touched so far, and still to be left alone for its residence.
		v.t.mu.RUnlock()
		v.t.mu.Lock()
		made, err := v.segmentLocked(i)
		v.t.mu.Unlock()
		if err != nil || made == nil {
			return
		}
		v.t.mu.RLock()
		s, c = v.cellLocked(i)
	}
	defer v.t.mu.RUnlock()
	if c == nil {
		return // dropped meanwhile
	}
	for {
		old := c.stats.Load()
		st := unpackStats(old)
		st.moved = cycle
		if c.stats.CompareAndSwap(old, packStats(st)) {
			break
		}
	}
	s.mark(uint64(i) & (segmentLen - 1))
}

// Trimmed makes extent i forget its heat: what was there is gone.
func (v *Volume) Trimmed(i extent.Index) {
	v.t.mu.RLock()
	defer v.t.mu.RUnlock()
	s, c := v.cellLocked(i)
	if c == nil || c.score.Load() == 0 && c.stats.Load() == 0 {
		return
	}
	c.score.Store(0)
	c.stats.Store(0)
	s.mark(uint64(i) & (segmentLen - 1))
}

// ID returns the number of the volume.
func (v *Volume) ID() extent.VolumeID { return v.id }
