package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/zstd"
)

const (
	// blockSize is when a block is written, in bytes before compression: about
	// eight thousand records.
	blockSize = 64 << 10
	// maxRecord is the most that one record takes: its first byte and three numbers.
	maxRecord = 1 + 3*binary.MaxVarintLen64
	// MinSize is the least that the size of a recording can be bounded to.
	MinSize = 4096
)

// ErrFull is returned by Writer.Write for a record that does not fit any more.
var ErrFull = errors.New("recording is full")

// WriterOptions say how a Writer writes.
type WriterOptions struct {
	// MaxSize bounds the file, the end included: not one byte more is written. 0 is
	// no bound; MinSize is the least.
	MaxSize int64
	// Compress packs each block with zstd, if that makes it smaller.
	Compress bool
}

// A Writer writes a file of the recorded format. It is for one goroutine. After an
// error of the underlying writer it only repeats that.
type Writer struct {
	w   io.Writer
	o   WriterOptions
	enc *zstd.Encoder
	err error

	size    int64 // bytes written
	records uint64
	dropped uint64

	buf    []byte // records of the block to come
	n      uint32 // how many
	base   time.Duration
	told   uint64 // dropped requests that the file knows of
	last   time.Duration
	end    int64 // where the record before ended
	length int64 // its length
	packed []byte
	out    []byte
}

// NewWriter writes the header of a recording to w and returns a Writer for the rest.
func NewWriter(w io.Writer, h Header, o WriterOptions) (*Writer, error) {
	if o.MaxSize != 0 && o.MaxSize < MinSize {
		return nil, fmt.Errorf("record a trace: a bound of %d bytes is below %d", o.MaxSize, MinSize)
	}
	b, err := h.encode()
	if err != nil {
		return nil, err
	}
	t := &Writer{w: w, o: o}
	if o.Compress {
		// One goroutine, and the fastest level: records are small already.
		if t.enc, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false)); err != nil {
			return nil, fmt.Errorf("record a trace: %w", err)
		}
	}
	return t, t.write(b)
}

func (t *Writer) write(b []byte) error {
	n, err := t.w.Write(b)
	t.size += int64(n)
	if err != nil {
		t.err = fmt.Errorf("write recording: %w", err)
	}
	return t.err
}

// Records returns how many records were taken, Size how many bytes were written.
func (t *Writer) Records() uint64 { return t.records }

// Size returns how many bytes were written.
func (t *Writer) Size() int64 { return t.size }

// SetDropped tells how many requests are missing so far; the next block has it.
func (t *Writer) SetDropped(n uint64) { t.dropped = n }

// Write adds a record, whose Time counts from the start of the recording; one that
// is older than the record before gets that one's time. ErrFull, if the file has no
// room for it: then End is what remains.
func (t *Writer) Write(r Record) error {
	if t.err != nil {
		return t.err
	}
	if len(t.buf)+maxRecord > blockSize || !t.fits(maxRecord) {
		if err := t.Flush(); err != nil {
			return err
		}
		if !t.fits(maxRecord) {
			return ErrFull
		}
	}
	if t.n == 0 {
		t.base, t.end, t.length = t.last, 0, -1
	}
	t.encode(r)
	t.n++
	t.records++
	return nil
}

// fits reports whether the block to come, with n bytes more and not packed, fits
// before the end, which keeps its place free.
func (t *Writer) fits(n int) bool {
	return t.o.MaxSize == 0 || t.size+int64(blockHead+len(t.buf)+n+blockTail+endBytes) <= t.o.MaxSize
}

func (t *Writer) encode(r Record) {
	op := byte(opRead)
	switch {
	case r.Write:
		op = opWrite
	case r.Trim && r.Zero:
		op = opZero
	case r.Trim:
		op = opTrim
	case r.Flush:
		op = opFlush
	}
	at := max(r.Time, t.last)
	delta := uint64(at - t.last)
	t.last = at
	if op == opFlush {
		t.buf = binary.AppendUvarint(append(t.buf, op), delta)
		return
	}
	shift, distance := 0, r.Offset-t.end
	if distance == 0 {
		op |= flagFollows
	}
	if r.Length == t.length {
		op |= flagLength
	}
	if (distance|r.Length)%sector == 0 {
		op |= flagSectors
		shift = 9
	}
	t.buf = binary.AppendUvarint(append(t.buf, op), delta)
	if distance != 0 {
		t.buf = binary.AppendVarint(t.buf, distance>>shift)
	}
	if r.Length != t.length {
		t.buf = binary.AppendUvarint(t.buf, uint64(r.Length)>>shift)
	}
	t.end, t.length = r.Offset+r.Length, r.Length
}

// Flush writes the records taken so far, and news of dropped requests, as a block.
func (t *Writer) Flush() error {
	if t.err != nil || t.n == 0 && t.dropped == t.told {
		return t.err
	}
	if t.n == 0 {
		if !t.fits(0) {
			return nil // the end tells
		}
		t.base = t.last
	}
	k := block{kind: blockRecords, size: uint32(len(t.buf)), records: t.n, base: uint64(t.base), dropped: t.dropped}
	payload := t.buf
	if t.enc != nil {
		t.packed = t.enc.EncodeAll(t.buf, t.packed[:0])
		if len(t.packed) < len(t.buf) {
			k.kind, payload = blockCompressed, t.packed
		}
	}
	t.out = k.append(t.out[:0], payload)
	t.buf, t.n, t.told = t.buf[:0], 0, t.dropped
	return t.write(t.out)
}

// End writes what is left and the end, with the time since the start and the reason,
// of which 103 bytes are kept. The Writer is done then.
func (t *Writer) End(span time.Duration, reason string) error {
	if err := t.Flush(); err != nil {
		return err
	}
	k := block{kind: blockEnd, size: endPayload, base: uint64(t.last), dropped: t.dropped}
	err := t.write(k.append(t.out[:0], encodeEnd(t.records, t.dropped, max(span, 0), reason)))
	if t.err == nil {
		t.err = errors.New("recording has ended")
	}
	return err
}
