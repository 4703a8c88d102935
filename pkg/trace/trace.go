package trace

import (
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// Tick is the time between two requests of a trace that has no time.
const Tick = time.Millisecond

// sector is the unit of addresses in most formats, in bytes.
const sector = 512

var (
	// ErrMalformed is returned for bytes that are not of the trace's format.
	ErrMalformed = errors.New("malformed trace")
	// ErrUnknownFormat is returned by Open for a file that resembles none of the formats.
	ErrUnknownFormat = errors.New("unknown trace format")
)

// A Record is one request of a trace. At most one of Write, Trim and Flush is
// set; a record with none is a read.
type Record struct {
	// Time since the first record; see the package's comment for traces without time.
	Time time.Duration
	// Write tells a write from a read.
	Write bool
	// Trim: the range was given up.
	Trim bool
	// Zero, together with Trim: the range has to read as zeroes.
	Zero bool
	// Flush: the disk's cache was flushed; there is no range.
	Flush bool
	// Offset and Length are the range in bytes, neither of them negative, nor their sum.
	Offset, Length int64
	// Disk is the number of the disk where one trace tells of many (msr, spc, iolog,
	// mqsim, blkparse: major<<20 | minor).
	Disk int
}

// A Reader returns the records of one trace. It is for one goroutine.
type Reader interface {
	// Next returns the next record, and io.EOF after the last.
	Next() (Record, error)
	// Format is the format read.
	Format() Format
	// Timed reports whether the trace has time of its own.
	Timed() bool
	// Skipped is the number of entries passed over so far because they move no data.
	Skipped() int64
	// Close releases the file.
	Close() error
}

// A Format names how the records of a trace are written.
type Format string

// The formats.
const (
	VSCSI    Format = "vscsi"
	Pages    Format = "pages"
	ARC      Format = "arc"
	MSR      Format = "msr"
	SPC      Format = "spc"
	Iolog    Format = "iolog"
	Blkparse Format = "blkparse"
	MQSim    Format = "mqsim"
	Tierd    Format = "tierd"
)

// Formats lists every format.
func Formats() []Format { return []Format{VSCSI, Pages, ARC, MSR, SPC, Iolog, Blkparse, MQSim, Tierd} }

// A parser turns bytes into records of untreated time. skip is true for an
// entry that is no request.
type parser interface {
	next() (r Record, skip bool, err error)
	timed() bool
}

// reader gives a parser's records a common time and checks their ranges.
type reader struct {
	p       parser
	format  Format
	closers []io.Closer
	n       int64 // records returned
	skipped int64
	first   time.Duration
	last    time.Duration
	err     error
}

func (r *reader) Format() Format { return r.format }
func (r *reader) Timed() bool    { return r.p.timed() }
func (r *reader) Skipped() int64 { return r.skipped }

func (r *reader) Next() (Record, error) {
	if r.err != nil {
		return Record{}, r.err
	}
	for {
		rec, skip, err := r.p.next()
		switch {
		case err == io.EOF:
			r.err = err
			return Record{}, err
		case err != nil:
			r.err = fmt.Errorf("read record %d of %s trace: %w", r.n+r.skipped, r.format, err)
			return Record{}, r.err
		case skip:
			r.skipped++
			continue
		}
		if rec.Offset < 0 || rec.Length < 0 || rec.Offset > math.MaxInt64-rec.Length {
			r.err = fmt.Errorf("read record %d of %s trace: %w: range %d+%d", r.n+r.skipped, r.format, ErrMalformed, rec.Offset, rec.Length)
			return Record{}, r.err
		}
		rec.Time = r.time(rec.Time)
		r.n++
		return rec, nil
	}
}

// time returns the time since the first record for a record that says t.
func (r *reader) time(t time.Duration) time.Duration {
	if !r.p.timed() {
		return time.Duration(r.n) * Tick
	}
	if r.n == 0 {
		r.first = t
		return 0
	}
	// Compared before the subtraction, which could overflow otherwise.
	if t > r.first {
		if d := t - r.first; d > r.last {
			r.last = d
		}
	}
	return r.last
}

func (r *reader) Close() error {
	var errs []error
	for i := len(r.closers) - 1; i >= 0; i-- {
		errs = append(errs, r.closers[i].Close())
	}
	r.closers = nil
	if r.err == nil {
		r.err = errClosed
	}
	return errors.Join(errs...)
}

var errClosed = errors.New("trace is closed")

// blocks converts an address or a count of 512-byte blocks into bytes.
func blocks(n uint64) (int64, error) {
	if n > math.MaxInt64/sector {
		return 0, fmt.Errorf("%w: block %d is beyond any disk", ErrMalformed, n)
	}
	return int64(n) * sector, nil
}

// scaled returns n units as a duration.
func scaled(n uint64, unit time.Duration) (time.Duration, error) {
	if n > math.MaxInt64/uint64(unit) {
		return 0, fmt.Errorf("%w: time %d", ErrMalformed, n)
	}
	return time.Duration(n) * unit, nil
}
