package trace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"time"
)

// The recorded format; doc.go has its bytes.
const (
	recordedMagic   = "\x89TDT\r\n\x1a\n" // not text, and mangled by whatever takes it for such
	recordedVersion = 1
	headerFixed     = 58 // bytes of the header in front of the name
	maxName         = 255
	clockMonotonic  = 1

	blockHead  = 32
	blockTail  = 4       // checksum
	maxPayload = 1 << 20 // of a block, packed or not
	endPayload = 128
	endBytes   = blockHead + endPayload + blockTail
	maxReason  = endPayload - 25

	blockRecords    = 1
	blockCompressed = 2
	blockEnd        = 3
)

// The first byte of a record.
const (
	opRead = iota
	opWrite
	opTrim
	opZero
	opFlush
	opMask      = 7
	flagLength  = 8  // the length of the record before
	flagFollows = 16 // begins where the record before ended
	flagSectors = 32 // distance and length are in units of 512 bytes
	flagsKnown  = opMask | flagLength | flagFollows | flagSectors
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A Header is what a recording tells of itself in the beginning.
type Header struct {
	Volume     string // its name, at most 255 bytes
	UUID       [16]byte
	VolumeSize int64     // bytes
	ExtentSize int64     // bytes
	Start      time.Time // when recording began; the times of records count from it
}

// A Recording is what a file of the recorded format tells beside its records.
type Recording struct {
	Header
	// Dropped is how many requests are missing, as of the last block read.
	Dropped uint64
	// Ended reports whether the end was read: the recording was ended in order. If
	// not, it was cut short, and all that was in whole blocks is there.
	Ended bool
	// Reason is why it ended, if it did.
	Reason string
	// Records is how many records there are, and Span the time from Start to the end,
	// if Ended.
	Records uint64
	Span    time.Duration
}

func (h *Header) encode() ([]byte, error) {
	if len(h.Volume) > maxName || h.VolumeSize < 0 || h.ExtentSize <= 0 {
		return nil, fmt.Errorf("record a trace: a name of %d bytes, a volume of %d, extents of %d", len(h.Volume), h.VolumeSize, h.ExtentSize)
	}
	le := binary.LittleEndian
	b := make([]byte, headerFixed, headerFixed+len(h.Volume)+blockTail)
	copy(b, recordedMagic)
	le.PutUint16(b[8:], recordedVersion)
	le.PutUint16(b[10:], uint16(headerFixed+len(h.Volume)+blockTail))
	le.PutUint64(b[16:], uint64(h.ExtentSize))
	le.PutUint64(b[24:], uint64(h.VolumeSize))
	le.PutUint64(b[32:], uint64(h.Start.UnixNano()))
	copy(b[40:], h.UUID[:])
	b[56] = clockMonotonic
	b[57] = byte(len(h.Volume))
	b = append(b, h.Volume...)
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// readHeader reads a header. A damaged one is ErrMalformed: without it the rest
// means little.
func readHeader(r io.Reader) (h Header, err error) {
	le := binary.LittleEndian
	b := make([]byte, headerFixed, headerFixed+maxName+blockTail)
	if _, err := io.ReadFull(r, b); err != nil {
		return h, fmt.Errorf("%w: no whole header: %w", ErrMalformed, err)
	}
	if !bytes.HasPrefix(b, []byte(recordedMagic)) {
		return h, fmt.Errorf("%w: no recording of tierd", ErrMalformed)
	}
	if v := le.Uint16(b[8:]); v != recordedVersion {
		return h, fmt.Errorf("%w: format version %d; this program knows %d", ErrMalformed, v, recordedVersion)
	}
	n := headerFixed + int(b[57]) + blockTail
	if _, err := io.ReadFull(r, b[headerFixed:n]); err != nil {
		return h, fmt.Errorf("%w: no whole header: %w", ErrMalformed, err)
	}
	b = b[:n]
	if le.Uint32(b[n-blockTail:]) != crc32.Checksum(b[:n-blockTail], castagnoli) {
		return h, fmt.Errorf("%w: checksum of the header", ErrMalformed)
	}
	h = Header{
		Volume: string(b[headerFixed : n-blockTail]), UUID: [16]byte(b[40:56]),
		ExtentSize: int64(le.Uint64(b[16:])), VolumeSize: int64(le.Uint64(b[24:])), Start: time.Unix(0, int64(le.Uint64(b[32:]))),
	}
	if int(le.Uint16(b[10:])) != n || le.Uint32(b[12:]) != 0 || b[56] != clockMonotonic || h.ExtentSize <= 0 || h.VolumeSize < 0 {
		return h, fmt.Errorf("%w: a header that this program does not understand", ErrMalformed)
	}
	return h, nil
}

// block is the head of a block.
type block struct {
	kind    byte
	stored  uint32 // bytes of payload in the file
	size    uint32 // bytes of payload, unpacked
	records uint32
	base    uint64 // ns since the start, from which the times of its records go on
	dropped uint64 // since the start
}

// appendBlock appends a block with a payload to b.
func (k *block) append(b, payload []byte) []byte {
	le := binary.LittleEndian
	start := len(b)
	b = append(b, k.kind, 0, 0, 0)
	b = le.AppendUint32(b, uint32(len(payload)))
	b = le.AppendUint32(b, k.size)
	b = le.AppendUint32(b, k.records)
	b = le.AppendUint64(b, k.base)
	b = le.AppendUint64(b, k.dropped)
	b = append(b, payload...)
	return le.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

func decodeBlock(b []byte) (k block, err error) {
	le := binary.LittleEndian
	k = block{
		kind: b[0], stored: le.Uint32(b[4:]), size: le.Uint32(b[8:]), records: le.Uint32(b[12:]),
		base: le.Uint64(b[16:]), dropped: le.Uint64(b[24:]),
	}
	switch {
	case k.kind < blockRecords || k.kind > blockEnd || b[1] != 0 || b[2] != 0 || b[3] != 0:
		err = fmt.Errorf("%w: a block of kind %d", ErrMalformed, k.kind)
	case k.size > maxPayload || k.stored > k.size || k.kind != blockCompressed && k.stored != k.size || k.kind == blockEnd && k.size != endPayload:
		err = fmt.Errorf("%w: a block of %d bytes, %d unpacked", ErrMalformed, k.stored, k.size)
	case k.base > math.MaxInt64:
		err = fmt.Errorf("%w: time %d", ErrMalformed, k.base)
	}
	return k, err
}

// encodeEnd returns the payload of the last block.
func encodeEnd(records, dropped uint64, span time.Duration, reason string) []byte {
	le := binary.LittleEndian
	reason = reason[:min(len(reason), maxReason)]
	b := make([]byte, endPayload)
	le.PutUint64(b, records)
	le.PutUint64(b[8:], dropped)
	le.PutUint64(b[16:], uint64(span))
	b[24] = byte(len(reason))
	copy(b[25:], reason)
	return b
}

func (r *Recording) decodeEnd(b []byte) {
	le := binary.LittleEndian
	r.Ended, r.Records, r.Dropped = true, le.Uint64(b), le.Uint64(b[8:])
	r.Span = time.Duration(min(le.Uint64(b[16:]), math.MaxInt64))
	r.Reason = string(b[25:][:min(b[24], maxReason)])
}

// ReadEnd reads what the last block of a recording of so many bytes tells, without
// reading the rest. Ended is false if it was cut short: then only a reader can tell
// how much there is. The Header is left empty.
func ReadEnd(f io.ReaderAt, size int64) (Recording, error) {
	var r Recording
	if size < endBytes {
		return r, nil
	}
	b := make([]byte, endBytes)
	if _, err := f.ReadAt(b, size-endBytes); err != nil && err != io.EOF {
		return r, fmt.Errorf("read the end of a recording: %w", err)
	}
	k, err := decodeBlock(b)
	if err != nil || k.kind != blockEnd || binary.LittleEndian.Uint32(b[endBytes-blockTail:]) != crc32.Checksum(b[:endBytes-blockTail], castagnoli) {
		return r, nil
	}
	r.decodeEnd(b[blockHead:])
	return r, nil
}
