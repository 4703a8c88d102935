package trace

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

const maxLine = 4096

// lines reads a text a line at a time.
type lines struct {
	r    *bufio.Reader
	seen bool // a record was read, so a heading is no longer possible
}

// line returns the next line without its end and blanks around it.
func (l *lines) line() (string, error) {
	b, err := l.r.ReadSlice('\n')
	switch {
	case err == bufio.ErrBufferFull || len(b) > maxLine:
		return "", fmt.Errorf("%w: a line above %d bytes", ErrMalformed, maxLine)
	case err == io.EOF && len(b) == 0:
		return "", io.EOF
	case err != nil && err != io.EOF:
		return "", err
	}
	return string(bytes.TrimSpace(b)), nil
}

// record parses the next line; an empty line and a heading before the first
// record are skipped.
func (l *lines) record(parse func(string) (Record, error)) (Record, bool, error) {
	s, err := l.line()
	if err != nil {
		return Record{}, false, err
	}
	if s == "" {
		return Record{}, true, nil
	}
	rec, err := parse(s)
	if err != nil {
		if !l.seen {
			l.seen = true
			return Record{}, true, nil
		}
		return Record{}, false, err
	}
	l.seen = true
	return rec, false, nil
}

type arcParser struct{ lines }

func (p *arcParser) timed() bool { return false }

func (p *arcParser) next() (Record, bool, error) { return p.record(parseARC) }

func parseARC(s string) (Record, error) {
	f := strings.Fields(s)
	if len(f) != 4 {
		return Record{}, fmt.Errorf("%w: %d fields, want 4", ErrMalformed, len(f))
	}
	var n [4]uint64
	for i := range f {
		var err error
		if n[i], err = number(f[i]); err != nil {
			return Record{}, err
		}
	}
	off, err := blocks(n[0])
	if err != nil {
		return Record{}, err
	}
	length, err := blocks(n[1])
	return Record{Offset: off, Length: length}, err
}

type mqsimParser struct{ lines }

func (p *mqsimParser) timed() bool { return true }

func (p *mqsimParser) next() (Record, bool, error) { return p.record(parseMQSim) }

// parseMQSim parses "4851300 1 524288 16 0".
func parseMQSim(s string) (Record, error) {
	f := strings.Fields(s)
	if len(f) != 5 {
		return Record{}, fmt.Errorf("%w: %d fields, want 5", ErrMalformed, len(f))
	}
	ns, err := number(f[0])
	if err != nil {
		return Record{}, err
	}
	var rec Record
	if rec.Time, err = scaled(ns, time.Nanosecond); err != nil {
		return Record{}, err
	}
	switch f[4] {
	case "0":
		rec.Write = true
	case "1":
	default:
		return Record{}, fmt.Errorf("%w: operation %.40q", ErrMalformed, f[4])
	}
	disk, err := number(f[1])
	if err != nil {
		return Record{}, err
	}
	if disk > math.MaxInt32 {
		return Record{}, fmt.Errorf("%w: device %d", ErrMalformed, disk)
	}
	rec.Disk = int(disk)
	return rec, fillBlocks(&rec, f[2], f[3])
}

// isMQSim reports whether head, which may end in the middle of a line, has nothing
// but lines of an MQSim trace, in order of time, as MQSim wants them. Lines of five
// numbers, the last of them 0 or 1, are so common that one line is no proof.
func isMQSim(head []byte) bool {
	var last time.Duration
	n := 0
	for line := range bytes.Lines(head) {
		if n > 0 && !bytes.HasSuffix(line, []byte{'\n'}) {
			break
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		rec, err := parseMQSim(string(line))
		if err != nil || rec.Time < last {
			return false
		}
		last = rec.Time
		n++
	}
	return n > 0
}

type msrParser struct{ lines }

func (p *msrParser) timed() bool { return true }

func (p *msrParser) next() (Record, bool, error) { return p.record(parseMSR) }

// parseMSR parses "128166372003061629,usr,0,Read,7014609920,24576,41286".
func parseMSR(s string) (Record, error) {
	f := strings.Split(s, ",")
	if len(f) < 6 || len(f) > 7 {
		return Record{}, fmt.Errorf("%w: %d fields, want 7", ErrMalformed, len(f))
	}
	ticks, err := number(f[0])
	if err != nil {
		return Record{}, err
	}
	// A FILETIME counts 100 ns since 1601 and does not fit a Duration, so the
	// count is taken from a base that leaves 146 years on either side.
	const base = 128_000_000_000_000_000 // 13 August 2006
	delta := int64(ticks) - base
	if ticks > math.MaxInt64 || delta > math.MaxInt64/100 || delta < math.MinInt64/100 {
		return Record{}, fmt.Errorf("%w: time %q", ErrMalformed, f[0])
	}
	rec := Record{Time: time.Duration(delta) * 100}
	switch strings.ToLower(strings.TrimSpace(f[3])) {
	case "read":
	case "write":
		rec.Write = true
	default:
		return Record{}, fmt.Errorf("%w: operation %q", ErrMalformed, f[3])
	}
	return rec, fill(&rec, f[2], f[4], 1, f[5])
}

type spcParser struct{ lines }

func (p *spcParser) timed() bool { return true }

func (p *spcParser) next() (Record, bool, error) { return p.record(parseSPC) }

// parseSPC parses "0,20941264,8192,W,0.551706".
func parseSPC(s string) (Record, error) {
	f := strings.Split(s, ",")
	if len(f) < 5 {
		return Record{}, fmt.Errorf("%w: %d fields, want 5", ErrMalformed, len(f))
	}
	var rec Record
	switch strings.ToLower(strings.TrimSpace(f[3])) {
	case "r":
	case "w":
		rec.Write = true
	default:
		return Record{}, fmt.Errorf("%w: operation %q", ErrMalformed, f[3])
	}
	sec, err := strconv.ParseFloat(strings.TrimSpace(f[4]), 64)
	if err != nil || !(sec >= 0 && sec < math.MaxInt64/1e9) {
		return Record{}, fmt.Errorf("%w: time %q", ErrMalformed, f[4])
	}
	rec.Time = time.Duration(sec * 1e9)
	return rec, fill(&rec, f[0], f[1], sector, f[2])
}

// fill parses disk, offset (in units) and length (in bytes) into rec.
func fill(rec *Record, disk, offset string, unit int64, length string) error {
	d, err := number(disk)
	if err != nil {
		return err
	}
	off, err := number(offset)
	if err != nil {
		return err
	}
	n, err := number(length)
	if err != nil {
		return err
	}
	if d > math.MaxInt32 || off > math.MaxInt64/uint64(unit) || n > math.MaxInt64 {
		return fmt.Errorf("%w: a number out of range", ErrMalformed)
	}
	rec.Disk, rec.Offset, rec.Length = int(d), int64(off)*unit, int64(n)
	return nil
}

func number(s string) (uint64, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %.40q is no number", ErrMalformed, s)
	}
	return n, nil
}
