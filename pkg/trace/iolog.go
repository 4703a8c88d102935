package trace

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"
	"time"
)

// maxFiles bounds the table of file names in an iolog.
const maxFiles = 1024

type iologParser struct {
	lines
	version int
	waits   bool
	now     time.Duration
	files   map[string]int
}

func newIologParser(buf *bufio.Reader, head []byte) (parser, error) {
	p := &iologParser{lines: lines{r: buf}, files: map[string]int{}}
	s, err := p.line()
	if err != nil {
		return nil, fmt.Errorf("read iolog heading: %w", err)
	}
	if p.version, err = iologVersion(s); err != nil {
		return nil, err
	}
	// Only time that shows up early makes a version 2 log a timed one: the
	// reader must know before the first record.
	p.waits = bytes.Contains(head, []byte(" wait "))
	return p, nil
}

func iologVersion(s string) (int, error) {
	var v int
	if _, err := fmt.Sscanf(s, "fio version %d iolog", &v); err != nil || v < 2 || v > 3 {
		return 0, fmt.Errorf("%w: not the heading of an iolog of version 2 or 3", ErrMalformed)
	}
	return v, nil
}

func (p *iologParser) timed() bool { return p.version == 3 || p.waits }

func (p *iologParser) next() (Record, bool, error) {
	s, err := p.line()
	if err != nil {
		return Record{}, false, err
	}
	f := strings.Fields(s)
	if len(f) == 0 {
		return Record{}, true, nil
	}
	if p.version == 3 {
		ms, err := number(f[0])
		if err != nil {
			return Record{}, false, err
		}
		if p.now, err = scaled(ms, time.Millisecond); err != nil {
			return Record{}, false, err
		}
		f = f[1:]
	}
	if len(f) < 2 {
		return Record{}, false, fmt.Errorf("%w: no action", ErrMalformed)
	}
	rec := Record{Time: p.now}
	switch f[1] {
	case "add", "open", "close":
		return Record{}, true, nil
	case "wait":
		return Record{}, true, p.wait(f)
	case "sync", "datasync":
		rec.Flush = true
		rec.Disk, err = p.file(f[0])
		return rec, false, err
	case "read":
	case "write":
		rec.Write = true
	case "trim":
		rec.Trim = true
	default:
		return Record{}, false, fmt.Errorf("%w: action %.40q", ErrMalformed, f[1])
	}
	if len(f) != 4 {
		return Record{}, false, fmt.Errorf("%w: %d fields after the file, want 3", ErrMalformed, len(f)-1)
	}
	if err := fill(&rec, "0", f[2], 1, f[3]); err != nil {
		return Record{}, false, err
	}
	rec.Disk, err = p.file(f[0])
	return rec, false, err
}

func (p *iologParser) wait(f []string) error {
	if len(f) < 3 {
		return fmt.Errorf("%w: wait without a time", ErrMalformed)
	}
	us, err := number(f[2])
	if err != nil {
		return err
	}
	d, err := scaled(us, time.Microsecond)
	if err != nil {
		return err
	}
	if p.version == 2 {
		if p.now+d < p.now {
			return fmt.Errorf("%w: waits add up to no time", ErrMalformed)
		}
		p.now += d
	}
	return nil
}

// file returns the number of a file, in order of appearance.
func (p *iologParser) file(name string) (int, error) {
	if n, ok := p.files[name]; ok {
		return n, nil
	}
	if len(p.files) == maxFiles {
		return 0, fmt.Errorf("%w: above %d files", ErrMalformed, maxFiles)
	}
	n := len(p.files)
	p.files[strings.Clone(name)] = n
	return n, nil
}
