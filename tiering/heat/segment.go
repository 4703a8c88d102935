package heat

import (
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"tierd/tiering/extent"
)

// Extents are kept in segments that come into being with their first touch, and
// segments in chunks that are saved and scanned as one.
const (
	chunkShift   = 12
	chunkLen     = 1 << chunkShift // extents in a chunk
	segmentShift = 16
	segmentLen   = 1 << segmentShift // extents in a segment: 1 MiB
	chunksPer    = segmentLen / chunkLen
)

// cell is all that is known of an extent, 16 bytes.
type cell struct {
	// score: the sums S (low half) and L (high half) as float32, relative to the
	// tracker's landmark.
	score atomic.Uint64
	// stats: bits 0..23 I/Os since birth, 24..43 cycle of birth, 44..63 cycle of
	// the last move; cycle 0 is never.
	stats atomic.Uint64
}

// segment is a run of cells outside of the garbage collector's heap. Pages that
// were never written take no memory.
type segment struct {
	mem     []byte
	cells   *[segmentLen]cell
	touched atomic.Uint32 // bit per chunk: has something other than zeroes
	changed atomic.Uint32 // bit per chunk: not saved as it is
}

func newSegment() (*segment, error) {
	mem, err := unix.Mmap(-1, 0, segmentLen*int(unsafe.Sizeof(cell{})),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map heat segment: %w", err)
	}
	return &segment{mem: mem, cells: (*[segmentLen]cell)(unsafe.Pointer(unsafe.SliceData(mem)))}, nil
}

// free returns the memory. No one may use the segment any more.
func (s *segment) free() {
	if err := unix.Munmap(s.mem); err != nil {
		panic(fmt.Sprintf("unmap heat segment: %v", err)) // not a mapping of ours: memory is corrupt
	}
	s.mem, s.cells = nil, nil
}

// chunkBit returns the bit of extent i's chunk in the words of its segment.
func chunkBit(i extent.Index) uint32 { return 1 << (i >> chunkShift & (chunksPer - 1)) }

// mark notes that cell i holds something new.
func (s *segment) mark(i uint64) {
	bit := uint32(1) << (i >> chunkShift)
	if s.changed.Load()&bit == 0 {
		s.changed.Or(bit)
	}
	if s.touched.Load()&bit == 0 {
		s.touched.Or(bit)
	}
}

func packScore(s, l float32) uint64 {
	return uint64(math.Float32bits(s)) | uint64(math.Float32bits(l))<<32
}

func unpackScore(w uint64) (s, l float32) {
	return math.Float32frombits(uint32(w)), math.Float32frombits(uint32(w >> 32))
}

// MaxIOs is where Score.IOs stops counting.
const MaxIOs = 1<<iosBits - 1

const (
	iosBits   = 24
	cycleBits = 20
	maxIOs    = MaxIOs
	maxCycle  = 1<<cycleBits - 1
)

// stats is the content of cell.stats, unpacked.
type stats struct{ ios, born, moved uint32 }

func packStats(s stats) uint64 {
	return uint64(min(s.ios, maxIOs)) | uint64(s.born&maxCycle)<<iosBits | uint64(s.moved&maxCycle)<<(iosBits+cycleBits)
}

func unpackStats(w uint64) stats {
	return stats{
		ios:   uint32(w & maxIOs),
		born:  uint32(w >> iosBits & maxCycle),
		moved: uint32(w >> (iosBits + cycleBits) & maxCycle),
	}
}

// add applies n I/Os of which the sums grow by s and l.
func (c *cell) add(s, l float32, cycle uint32) {
	for {
		old := c.score.Load()
		os, ol := unpackScore(old)
		if c.score.CompareAndSwap(old, packScore(os+s, ol+l)) {
			break
		}
	}
	for {
		old := c.stats.Load()
		st := unpackStats(old)
		st.ios = min(st.ios+1, maxIOs)
		if st.born == 0 {
			st.born = cycle
		}
		if c.stats.CompareAndSwap(old, packStats(st)) {
			return
		}
	}
}

// scale multiplies the sums, when the landmark moves.
func (c *cell) scale(s, l float32) {
	for {
		old := c.score.Load()
		if old == 0 {
			return
		}
		os, ol := unpackScore(old)
		if c.score.CompareAndSwap(old, packScore(os*s, ol*l)) {
			return
		}
	}
}

// age moves the cycle numbers down, when they run out of bits. What would fall
// below 1 stays at 1: known for longer than can be told.
func (c *cell) age(by uint32) {
	down := func(cycle uint32) uint32 {
		if cycle == 0 {
			return 0
		}
		return max(cycle, by+1) - by
	}
	for {
		old := c.stats.Load()
		if old == 0 {
			return
		}
		st := unpackStats(old)
		st.born, st.moved = down(st.born), down(st.moved)
		if c.stats.CompareAndSwap(old, packStats(st)) {
			return
		}
	}
}
