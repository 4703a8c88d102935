package model

import (
	"bytes"
	"fmt"
)

const sector = 512

// Shadow is what one volume must read as. It knows, sector by sector, what is
// durable and what may be there after a power loss.
type Shadow struct {
	ExtentSize int64
	cur        []byte           // after all answered changes
	base       []byte           // durable
	maybe      map[int][][]byte // contents of sectors since they were durable, oldest first
	// trimmed are sectors that a trim covered without unmapping them: they read as
	// before, until another trim completes the extent and they read as zeroes.
	trimmed map[int]bool
}

// NewShadow returns the shadow of a new volume.
func NewShadow(size, extentSize int64) *Shadow {
	return &Shadow{ExtentSize: extentSize, cur: make([]byte, size), base: make([]byte, size), maybe: make(map[int][][]byte), trimmed: make(map[int]bool)}
}

// Size returns the size of the volume.
func (s *Shadow) Size() int64 { return int64(len(s.cur)) }

// Grow makes the volume larger.
func (s *Shadow) Grow(size int64) {
	more := make([]byte, size-s.Size())
	s.cur = append(s.cur, more...)
	s.base = append(s.base, more...)
}

// Write notes an answered write.
func (s *Shadow) Write(p []byte, off int64, fua bool) {
	copy(s.cur[off:], p)
	s.changed(off, int64(len(p)), fua)
}

// Zero notes an answered zeroing.
func (s *Shadow) Zero(off, n int64, fua bool) {
	clear(s.cur[off : off+n])
	s.changed(off, n, fua)
}

func (s *Shadow) changed(off, n int64, fua bool) {
	for i := int(off / sector); int64(i)*sector < off+n; i++ {
		now := s.sector(s.cur, i)
		delete(s.trimmed, i)
		if fua {
			copy(s.sector(s.base, i), now)
			delete(s.maybe, i)
		} else {
			s.maybe[i] = append(s.maybe[i], bytes.Clone(now))
		}
	}
}

func (s *Shadow) sector(b []byte, i int) []byte {
	return b[i*sector : min((i+1)*sector, len(b))]
}

// Flushed notes an answered flush.
func (s *Shadow) Flushed() {
	copy(s.base, s.cur)
	clear(s.maybe)
}

// Check compares what a read of whole sectors brought.
func (s *Shadow) Check(p []byte, off int64) error {
	for len(p) > 0 {
		i := int(off / sector)
		have := s.sector(s.cur, i)
		want := have[off-int64(i)*sector:]
		want = want[:min(len(want), len(p))]
		got := p[:len(want)]
		switch {
		case bytes.Equal(got, want):
		case s.trimmed[i] && allZero(got):
			clear(have)
			s.maybe[i] = append(s.maybe[i], bytes.Clone(have))
		default:
			return fmt.Errorf("sector %d (extent %d, %d within): got %x, want %x", i, off/s.ExtentSize, off%s.ExtentSize,
				got[:min(8, len(got))], want[:min(8, len(want))])
		}
		p, off = p[len(want):], off+int64(len(want))
	}
	return nil
}

func allZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}

// whole returns how many bytes from off on are of extents that lie wholly in a range;
// 0 if it begins within an extent.
func (s *Shadow) whole(off, n int64) int64 {
	if off%s.ExtentSize != 0 {
		return 0
	}
	if off+n == s.Size() {
		return n
	}
	return n / s.ExtentSize * s.ExtentSize
}

// Trimmed notes an answered trim of whole sectors. Whole extents read as zeroes
// now; of the rest nothing is promised but that it reads as before or as zeroes.
func (s *Shadow) Trimmed(off, n int64) {
	for start := off / s.ExtentSize * s.ExtentSize; start < off+n; start += s.ExtentSize {
		from, to := max(start, off), min(start+s.ExtentSize, s.Size(), off+n)
		if from == start && to == min(start+s.ExtentSize, s.Size()) {
			s.Zero(from, to-from, false)
			continue
		}
		for i := int(from / sector); int64(i)*sector < to; i++ {
			s.trimmed[i] = true
		}
	}
}

// Lost compares the whole volume after a power loss, sector by sector, and takes
// what it finds as the truth from then on.
func (s *Shadow) Lost(now []byte) error {
	for i := 0; i*sector < len(now); i++ {
		got := s.sector(now, i)
		ok := bytes.Equal(got, s.sector(s.base, i)) || s.trimmed[i] && allZero(got)
		for _, m := range s.maybe[i] {
			ok = ok || bytes.Equal(got, m)
		}
		if !ok {
			at := int64(i) * sector
			return fmt.Errorf("sector %d (extent %d) after a power loss: got %x..., durable was %x..., %d later contents fit neither",
				i, at/s.ExtentSize, got[:8], s.sector(s.base, i)[:8], len(s.maybe[i]))
		}
	}
	copy(s.cur, now)
	s.Flushed()
	clear(s.trimmed)
	return nil
}
