package trace

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"time"

	"github.com/klauspost/compress/zstd"
)

// recordedParser reads the recorded format a block at a time.
type recordedParser struct {
	r      *bufio.Reader
	dec    *zstd.Decoder
	info   Recording
	blocks int64

	stored  []byte // the block with head and checksum
	plain   []byte // of a packed block
	payload []byte // what is left of it
	records uint32 // left in it
	at      uint64 // ns, of the record before
	end     int64
	length  int64
	err     error // of everything to come
}

func newRecordedParser(buf *bufio.Reader) (*recordedParser, error) {
	h, err := readHeader(buf)
	if err != nil {
		return nil, err
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxPayload), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("read zstd: %w", err)
	}
	return &recordedParser{r: buf, dec: d, info: Recording{Header: h}}, nil
}

// Recorded returns what a file of the recorded format tells of itself; ok is false
// for a reader of another format. Before the reader came to the end, the end is not
// known.
func Recorded(r Reader) (info Recording, ok bool) {
	rr, ok := r.(*reader)
	if !ok {
		return info, false
	}
	p, ok := rr.p.(*recordedParser)
	if !ok {
		return info, false
	}
	return p.info, true
}

func (p *recordedParser) timed() bool { return true }

func (p *recordedParser) next() (Record, bool, error) {
	for p.records == 0 {
		if p.err == nil {
			p.err = p.readBlock()
		}
		if p.err != nil {
			return Record{}, false, p.err
		}
	}
	r, err := p.decode()
	if err == nil && p.records == 0 && len(p.payload) > 0 {
		err = fmt.Errorf("%w: %d bytes behind the last record of block %d", ErrMalformed, len(p.payload), p.blocks)
	}
	return r, false, err
}

// readBlock reads the next block. A file that was cut short ends with its last whole
// block: io.EOF. So does one whose last block is wrong, since the kernel writes out
// the parts of a file in any order; wrong bytes before others that are right are
// damage.
func (p *recordedParser) readBlock() error {
	p.blocks++
	head, err := p.r.Peek(blockHead)
	if err == io.EOF {
		return io.EOF
	}
	if err != nil {
		return err
	}
	k, err := decodeBlock(head)
	if err != nil {
		_, _ = p.r.Discard(blockHead) // it was peeked at
		return p.unlessZero(fmt.Errorf("block %d: %w", p.blocks, err))
	}
	n := blockHead + int(k.stored) + blockTail
	if cap(p.stored) < n {
		p.stored = make([]byte, n)
	}
	b := p.stored[:n]
	if _, err := io.ReadFull(p.r, b); err == io.ErrUnexpectedEOF || err == io.EOF {
		return io.EOF
	} else if err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(b[n-blockTail:]) != crc32.Checksum(b[:n-blockTail], castagnoli) {
		return p.unlessZero(fmt.Errorf("%w: checksum of block %d", ErrMalformed, p.blocks))
	}
	return p.begin(k, b[blockHead:n-blockTail])
}

// unlessZero returns io.EOF if nothing but zeroes follows what was found to be wrong,
// which is how the lost tail of a file looks, and err if something does.
func (p *recordedParser) unlessZero(err error) error {
	for {
		b, rerr := p.r.ReadByte()
		switch {
		case rerr == io.EOF:
			return io.EOF
		case rerr != nil:
			return rerr
		case b != 0:
			return err
		}
	}
}

// begin takes the payload of a block.
func (p *recordedParser) begin(k block, payload []byte) error {
	p.info.Dropped = k.dropped
	switch k.kind {
	case blockEnd:
		p.info.decodeEnd(payload)
		if _, err := p.r.Peek(1); err != io.EOF {
			return fmt.Errorf("%w: something follows the end", ErrMalformed)
		}
		return io.EOF
	case blockCompressed:
		var err error
		if p.plain, err = p.dec.DecodeAll(payload, p.plain[:0]); err != nil {
			return fmt.Errorf("%w: unpack block %d: %w", ErrMalformed, p.blocks, err)
		}
		if len(p.plain) != int(k.size) {
			return fmt.Errorf("%w: block %d has %d bytes unpacked, want %d", ErrMalformed, p.blocks, len(p.plain), k.size)
		}
		payload = p.plain
	}
	if k.records == 0 && len(payload) > 0 {
		return fmt.Errorf("%w: %d bytes in block %d, and no record", ErrMalformed, len(payload), p.blocks)
	}
	p.payload, p.records = payload, k.records
	p.at, p.end, p.length = k.base, 0, -1
	return nil
}

// decode takes the next record from the payload.
func (p *recordedParser) decode() (rec Record, err error) {
	if len(p.payload) == 0 {
		return rec, p.bad()
	}
	op := p.payload[0]
	p.payload = p.payload[1:]
	delta, ok := p.uvarint()
	if !ok || op&^flagsKnown != 0 || delta > math.MaxInt64-p.at {
		return rec, p.bad()
	}
	p.records--
	p.at += delta
	rec.Time = time.Duration(p.at)
	switch op & opMask {
	case opFlush:
		if op != opFlush {
			return rec, p.bad()
		}
		rec.Flush = true
		return rec, nil
	case opRead:
	case opWrite:
		rec.Write = true
	case opTrim:
		rec.Trim = true
	case opZero:
		rec.Trim, rec.Zero = true, true
	default:
		return rec, p.bad()
	}
	shift := 0
	if op&flagSectors != 0 {
		shift = 9
	}
	distance := int64(0)
	if op&flagFollows == 0 {
		u, ok := p.uvarint()
		if !ok {
			return rec, p.bad()
		}
		distance = (int64(u>>1) ^ -int64(u&1)) << shift // zigzag, as binary.AppendVarint has it
	}
	rec.Length = p.length
	if op&flagLength == 0 {
		u, ok := p.uvarint()
		if !ok || u > math.MaxInt64>>shift {
			return rec, p.bad()
		}
		rec.Length = int64(u) << shift
	}
	rec.Offset = p.end + distance
	p.end, p.length = rec.Offset+rec.Length, rec.Length
	return rec, nil
}

func (p *recordedParser) bad() error {
	return fmt.Errorf("%w: a record of block %d", ErrMalformed, p.blocks)
}

func (p *recordedParser) uvarint() (uint64, bool) {
	u, n := binary.Uvarint(p.payload)
	if n <= 0 {
		return 0, false
	}
	p.payload = p.payload[n:]
	return u, true
}
