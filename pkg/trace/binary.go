package trace

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

const (
	vscsiSize = 32
	pageSize  = 4096
)

type vscsiParser struct{ r *bufio.Reader }

func (p *vscsiParser) timed() bool { return true }

func (p *vscsiParser) next() (Record, bool, error) {
	b, err := take(p.r, vscsiSize)
	if err != nil {
		return Record{}, false, err
	}
	le := binary.LittleEndian
	if v := le.Uint16(b[14:]); v>>8 != 1 {
		return Record{}, false, fmt.Errorf("%w: version %#04x, want 0x01xx", ErrMalformed, v)
	}
	rec := Record{Length: int64(le.Uint32(b[4:]))}
	switch le.Uint16(b[12:]) {
	case 0x08, 0x28, 0xa8, 0x88: // READ of 6, 10, 12 and 16 bytes
	case 0x0a, 0x2a, 0xaa, 0x8a: // WRITE of the same
		rec.Write = true
	case 0x35, 0x91: // SYNCHRONIZE CACHE
		rec.Flush, rec.Length = true, 0
	default:
		return Record{}, true, nil
	}
	if rec.Time, err = scaled(le.Uint64(b[24:]), time.Microsecond); err != nil {
		return Record{}, false, err
	}
	if !rec.Flush {
		rec.Offset, err = blocks(le.Uint64(b[16:]))
	}
	return rec, false, err
}

type pagesParser struct{ r *bufio.Reader }

func (p *pagesParser) timed() bool { return false }

func (p *pagesParser) next() (Record, bool, error) {
	b, err := take(p.r, 4)
	if err != nil {
		return Record{}, false, err
	}
	page := int32(binary.LittleEndian.Uint32(b))
	if page < 0 {
		return Record{}, false, fmt.Errorf("%w: page %d", ErrMalformed, page)
	}
	return Record{Offset: int64(page) * pageSize, Length: pageSize}, false, nil
}

// take returns the next n bytes, valid until the next call; io.EOF only if
// there is none at all.
func take(r *bufio.Reader, n int) ([]byte, error) {
	b, err := r.Peek(n)
	switch {
	case err == io.EOF && len(b) == 0:
		return nil, io.EOF
	case err == io.EOF:
		return nil, fmt.Errorf("%w: %d of %d bytes at the end", ErrMalformed, len(b), n)
	case err != nil:
		return nil, err
	}
	_, err = r.Discard(n)
	return b, err
}
