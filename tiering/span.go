package tiering

import "tierd/tiering/extent"

// A Span is a run of bytes of a volume in one state.
type Span struct {
	Len  int64 // bytes
	Hole bool  // unmapped: reads as zeroes, and a write there needs a slot
	Tier int   // place of the tier it is on, 1 for the fastest; 0: unmapped
}

// Span returns the longest run from off on that is in one state, up to off+n. It
// looks at the map alone and never waits. The range must be within the volume and
// not empty.
func (v *Volume) Span(off, n int64) Span {
	size := v.pool.size
	first := size.Index(off)
	last := size.Index(off + n - 1)
	s := v.spanAt(first)
	i := first + 1
	for i <= last && v.spanAt(i) == s {
		i++
	}
	s.Len = n
	if i <= last {
		s.Len = size.Start(i) - off
	}
	return s
}

// spanAt returns the state of an extent, without a length.
func (v *Volume) spanAt(i extent.Index) Span {
	e := v.table.Load(i)
	if !e.Mapped() {
		return Span{Hole: !v.gone.Load()} // deleted, it loses its extents: nothing reads as zeroes for that
	}
	return Span{Tier: int(v.pool.member(e.Location()).tier.rank()) + 1}
}
