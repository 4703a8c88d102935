package load

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"tierd/pkg/trace"
)

// kind is what an operation does.
type kind int

const (
	opRead kind = iota
	opWrite
	opTrim
	opZero
	opFlush
	kinds
)

var kindNames = [kinds]string{"read", "write", "trim", "zero", "flush"}

// changes reports whether operations of this kind change data.
func (k kind) changes() bool { return k == opWrite || k == opTrim || k == opZero }

// An op is one operation. Reads and writes are never longer than a request may be.
type op struct {
	kind kind
	off  int64
	n    int64
	// at is when to send it, counted from the begin of the phase.
	at time.Duration
	// free: the offset was drawn at random and may be drawn again.
	free bool
	// region is where it was drawn from.
	region int64
}

// A source hands out operations to all workers.
type source interface {
	// next returns the next operation; io.EOF after the last.
	next(rng *rand.Rand) (op, error)
	// redraw changes the offset of a free operation, in the same region.
	redraw(rng *rand.Rand, o *op)
}

// patternSource draws operations after a Spec.
type patternSource struct {
	spec    *Spec
	blocks  int64 // in the volume
	regions int64
	grain   int64 // blocks in a region
	zipf    *zipf
	place   *permutation
	cursor  atomic.Int64
}

func newPatternSource(s *Spec, size int64) *patternSource {
	p := &patternSource{spec: s, blocks: size / s.BlockSize, regions: 1}
	p.grain = p.blocks
	if s.Pattern == Zipf {
		p.grain = min(max(1, s.Grain/s.BlockSize), p.blocks)
		p.regions = p.blocks / p.grain
		p.zipf = newZipf(p.regions, s.Theta)
		p.place = newPermutation(p.regions, cmp.Or(s.Place, s.Seed))
	}
	return p
}

// Ranking returns the offsets of the regions of zipf in a volume of size bytes, hottest
// first: what rank k, counted from 1, is drawn in proportion to 1/k^Theta.
func (s *Spec) Ranking(size int64) []int64 {
	p := newPatternSource(s, size)
	if p.place == nil {
		return nil
	}
	offsets := make([]int64, p.regions)
	for k := range offsets {
		offsets[k] = p.place.at(int64(k)) * p.grain * s.BlockSize
	}
	return offsets
}

func (p *patternSource) next(rng *rand.Rand) (op, error) {
	o := op{n: p.spec.BlockSize, free: true}
	if rng.Float64() >= p.spec.ReadShare {
		o.kind = opWrite
		if p.spec.TrimShare+p.spec.ZeroShare > 0 {
			switch v := rng.Float64(); {
			case v < p.spec.TrimShare:
				o.kind = opTrim
			case v < p.spec.TrimShare+p.spec.ZeroShare:
				o.kind = opZero
			}
		}
	}
	if p.spec.Pattern == Sequential {
		o.free = false
		o.off = (p.cursor.Add(1) - 1) % p.blocks * p.spec.BlockSize
		return o, nil
	}
	if p.zipf != nil {
		o.region = p.place.at(p.zipf.rank(rng) - 1)
	}
	p.redraw(rng, &o)
	return o, nil
}

func (p *patternSource) redraw(rng *rand.Rand, o *op) {
	o.off = (o.region*p.grain + rng.Int64N(p.grain)) * p.spec.BlockSize
}

// sweepSource goes over the volume once, in pieces. It skips those that want
// does not want.
type sweepSource struct {
	kind   kind
	size   int64
	piece  int64
	want   func(off, n int64) bool
	cursor atomic.Int64
}

func (s *sweepSource) next(*rand.Rand) (op, error) {
	for {
		off := (s.cursor.Add(1) - 1) * s.piece
		if off >= s.size {
			return op{}, io.EOF
		}
		n := min(s.piece, s.size-off)
		if s.want == nil || s.want(off, n) {
			return op{kind: s.kind, off: off, n: n}, nil
		}
	}
}

func (s *sweepSource) redraw(*rand.Rand, *op) {}

// traceSource replays a trace.
type traceSource struct {
	spec  *Spec
	size  int64
	align int64 // of offsets and lengths
	limit int64 // length of one operation

	mu   sync.Mutex
	rest op // of a record that is longer than one operation
	err  error
}

// ErrFit is returned for a trace with a range beyond the end of the volume.
var ErrFit = errors.New("trace does not fit the volume")

func (s *traceSource) next(*rand.Rand) (op, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.rest.n == 0 {
		if s.err != nil {
			return op{}, s.err
		}
		rec, err := s.spec.Trace.Next()
		if err == nil {
			var o op
			if o, err = s.convert(rec); err == nil && o.kind == opFlush {
				return o, nil
			}
			s.rest = o
		}
		s.err = err
	}
	o := s.rest
	o.n = min(o.n, s.limit)
	s.rest.off += o.n
	s.rest.n -= o.n
	return o, nil
}

func (s *traceSource) redraw(*rand.Rand, *op) {}

// convert makes an operation of a record, widened to the alignment.
func (s *traceSource) convert(rec trace.Record) (op, error) {
	var o op
	if s.spec.Speed > 0 {
		o.at = time.Duration(float64(rec.Time) / s.spec.Speed)
	}
	switch {
	case rec.Flush:
		o.kind = opFlush
		return o, nil
	case rec.Trim:
		o.kind = opTrim
	case rec.Write:
		o.kind = opWrite
	}
	off, end := rec.Offset, rec.Offset+rec.Length
	switch s.spec.Fit {
	case FitWrap:
		off %= s.size
		end = min(off+rec.Length, s.size)
	case FitScale:
		if s.spec.TraceSpan > s.size {
			off = int64(float64(off) / float64(s.spec.TraceSpan) * float64(s.size))
			end = min(off+rec.Length, s.size)
		}
	}
	if end > s.size {
		return o, fmt.Errorf("%w: range %d+%d, size %d; wrap or scale it", ErrFit, rec.Offset, rec.Length, s.size)
	}
	if end == off {
		return o, nil // nothing to do
	}
	o.off = off / s.align * s.align
	// The last aligned end stays inside: the size is a multiple, or cut to one.
	whole := s.size / s.align * s.align
	up := end
	if r := end % s.align; r != 0 {
		up = min(end-r+s.align, whole)
	}
	o.n = max(0, min(up, whole)-o.off)
	return o, nil
}
