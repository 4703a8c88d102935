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

// blkparseParser reads the default output of blkparse(1). One kind of event
// stands for a request, the others are skipped.
type blkparseParser struct {
	lines
	action string // Q, D or C
	events bool   // a line that is an event was seen
	strays bool   // and one that is none
}

// newBlkparseParser chooses the events that stand for requests by those that
// show up early: queued, which is what the file system asked for; else issued;
// else completed.
func newBlkparseParser(buf *bufio.Reader, head []byte) parser {
	p := &blkparseParser{lines: lines{r: buf}, action: "Q"}
	seen := map[string]bool{}
	for line := range bytes.Lines(head) {
		if e, err := parseEvent(string(line)); err == nil {
			seen[e.action] = true
		}
	}
	for _, a := range []string{"Q", "D", "C"} {
		if seen[a] {
			p.action = a
			break
		}
	}
	return p
}

func (p *blkparseParser) timed() bool { return true }

func (p *blkparseParser) next() (Record, bool, error) {
	s, err := p.line()
	if err != nil {
		if err == io.EOF && p.strays && !p.events {
			err = fmt.Errorf("%w: no line is an event of blkparse", ErrMalformed)
		}
		return Record{}, false, err
	}
	if !isEvent(s) { // the summary at the end, or an empty line
		p.strays = p.strays || s != ""
		return Record{}, true, nil
	}
	p.events = true
	e, err := parseEvent(s)
	if err != nil {
		return Record{}, false, err
	}
	if e.action != p.action {
		return Record{}, true, nil
	}
	return e.record()
}

// isEvent reports whether a line begins with the numbers of a device, as those of
// the summary do not.
func isEvent(s string) bool {
	for dev := range strings.FieldsSeq(s) {
		_, err := parseDevice(dev)
		return err == nil
	}
	return false
}

// An event is one line of blkparse, by its fields:
//
//	8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]
//	device cpu      number         time  pid  action rwbs sector + sectors ...
type event struct {
	disk   int
	time   time.Duration
	action string
	rwbs   string
	rest   []string
}

func parseEvent(s string) (event, error) {
	f := strings.Fields(s)
	if len(f) < 7 {
		return event{}, fmt.Errorf("%w: %d fields, want 7 and more", ErrMalformed, len(f))
	}
	e := event{action: f[5], rwbs: f[6], rest: f[7:]}
	var err error
	if e.disk, err = parseDevice(f[0]); err != nil {
		return event{}, err
	}
	for _, n := range []string{f[1], f[2], f[4]} {
		if _, err := number(n); err != nil {
			return event{}, err
		}
	}
	e.time, err = parseSeconds(f[3])
	return e, err
}

// parseDevice returns the number of a device "major,minor", as the kernel counts
// them: 20 bits of minor.
func parseDevice(s string) (int, error) {
	major, minor, ok := strings.Cut(s, ",")
	ma, err1 := strconv.ParseUint(major, 10, 11)
	mi, err2 := strconv.ParseUint(minor, 10, 20)
	if !ok || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("%w: %.40q is no device", ErrMalformed, s)
	}
	return int(ma<<20 | mi), nil
}

// parseSeconds parses "5.000000123" without the rounding of a float.
func parseSeconds(s string) (time.Duration, error) {
	whole, frac, _ := strings.Cut(s, ".")
	sec, err := number(whole)
	if err != nil {
		return 0, err
	}
	if len(frac) > 9 {
		return 0, fmt.Errorf("%w: time %.40q", ErrMalformed, s)
	}
	ns, err := number((frac + "000000000")[:9])
	if err != nil {
		return 0, err
	}
	if sec >= math.MaxInt64/uint64(time.Second) {
		return 0, fmt.Errorf("%w: time %.40q", ErrMalformed, s)
	}
	return time.Duration(sec)*time.Second + time.Duration(ns), nil
}

// record turns an event into a record. RWBS is made by fill_rwbs of blkparse: an F
// in front if the cache is to be flushed before, then D, W, R or N for the kind of
// request, then F, A, S, M for forced unit access, read-ahead, synchronous, and
// metadata, none of which makes it another request.
func (e event) record() (rec Record, skip bool, err error) {
	rec = Record{Time: e.time, Disk: e.disk}
	kind := strings.TrimLeft(e.rwbs, "F")
	flush := kind != e.rwbs
	if strings.Trim(e.rwbs, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return rec, false, fmt.Errorf("%w: RWBS %.40q", ErrMalformed, e.rwbs)
	}
	ranged := len(e.rest) >= 3 && e.rest[1] == "+"
	switch {
	case !ranged && flush:
		rec.Flush = true
		return rec, false, nil
	case !ranged, kind == "", kind[0] == 'N':
		return rec, true, nil // a command that is passed through, or no request at all
	case kind[0] == 'D':
		rec.Trim = true
	case kind[0] == 'W':
		rec.Write = true
	case kind[0] != 'R':
		return rec, false, fmt.Errorf("%w: RWBS %.40q", ErrMalformed, e.rwbs)
	}
	return rec, false, fillBlocks(&rec, e.rest[0], e.rest[2])
}

// fillBlocks parses offset and length, both in sectors, into rec.
func fillBlocks(rec *Record, offset, length string) error {
	for _, x := range []struct {
		s    string
		into *int64
	}{{offset, &rec.Offset}, {length, &rec.Length}} {
		n, err := number(x.s)
		if err != nil {
			return err
		}
		if *x.into, err = blocks(n); err != nil {
			return err
		}
	}
	return nil
}
