package ondisk

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"unsafe"

	"github.com/google/uuid"

	"tierd/pkg/backing"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The head that superblock, stamp and volume table begin with.
//
//	offset  size  field
//	0       8     magic
//	8       4     format version
//	12      4     CRC32C of the structure from offset 16 to its length,
//	              seeded with bytes 0 to 11 and what the structure adds
//	16      4     length in bytes, a multiple of 4 KiB
//	20      4     spare, zero
//	24      8     generation
const headSize = 32

// head is what is known of a structure before its contents are looked at.
type head struct {
	version    uint32
	length     int64
	generation uint64
}

// headState is what reading a head, or a whole structure, came to.
type headState int

const (
	absent  headState = iota // zeroes, or another use of the medium
	damaged                  // the magic is there, the rest does not agree
	valid
	newer // whole, of a later version; counts more than a valid copy beside it
)

// parseHead decodes the head in b, which has a block or more. The length is
// checked against the bounds of the area, no more.
func parseHead(b []byte, magic string, area int64) (h head, ok bool) {
	if string(b[:8]) != magic {
		return h, false
	}
	h = head{
		version:    binary.LittleEndian.Uint32(b[8:]),
		length:     int64(binary.LittleEndian.Uint32(b[16:])),
		generation: binary.LittleEndian.Uint64(b[24:]),
	}
	return h, h.length >= blockSize && h.length <= area && h.length%blockSize == 0
}

// sealHead writes the head of the structure that fills b, its CRC last.
func sealHead(b []byte, magic string, generation uint64, seed []byte) {
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], FormatVersion)
	binary.LittleEndian.PutUint32(b[16:], uint32(len(b)))
	binary.LittleEndian.PutUint64(b[24:], generation)
	binary.LittleEndian.PutUint32(b[12:], headCRC(b, seed))
}

func headCRC(b, seed []byte) uint32 {
	crc := crc32.Update(0, castagnoli, b[:12])
	crc = crc32.Update(crc, castagnoli, seed)
	return crc32.Update(crc, castagnoli, b[16:])
}

// checkHead says what the structure that fills b is.
func checkHead(b []byte, magic string, seed []byte) headState {
	if string(b[:8]) != magic {
		return absent
	}
	h, ok := parseHead(b, magic, math.MaxUint32)
	if !ok || h.length != int64(len(b)) || headCRC(b, seed) != binary.LittleEndian.Uint32(b[12:]) {
		return damaged
	}
	if h.version > FormatVersion {
		return newer
	}
	return valid
}

// readStructure reads the structure at off in an area of this size. What comes
// back is absent with any bytes, or fills the returned slice. The error is
// that of the Store.
func readStructure(ctx context.Context, st backing.Store, off, area int64, magic string, seed []byte) ([]byte, headState, error) {
	b := alignedBytes(blockSize)
	if err := st.ReadAt(ctx, b, off); err != nil {
		return nil, absent, err
	}
	h, ok := parseHead(b, magic, area)
	if !ok {
		// A magic with a length that cannot be is damage, not absence.
		return b, checkHead(b, magic, seed), nil
	}
	if h.length > blockSize {
		whole := alignedBytes(int(h.length))
		if err := st.ReadAt(ctx, whole, off); err != nil {
			return nil, absent, err
		}
		b = whole
	}
	return b, checkHead(b, magic, seed), nil
}

// alignedBytes returns n zero bytes that begin at a multiple of 4 KiB, as
// direct I/O wants.
func alignedBytes(n int) []byte {
	b := make([]byte, n+blockSize-1)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (blockSize - 1)
	return b[skip : skip+n : skip+n]
}

// roundUp returns n rounded up to whole blocks.
func roundUp(n int) int { return (n + blockSize - 1) / blockSize * blockSize }

// encoder appends fields to a structure, little-endian.
type encoder struct{ b []byte }

func (e *encoder) u8(v uint8)       { e.b = append(e.b, v) }
func (e *encoder) u16(v uint16)     { e.b = binary.LittleEndian.AppendUint16(e.b, v) }
func (e *encoder) u32(v uint32)     { e.b = binary.LittleEndian.AppendUint32(e.b, v) }
func (e *encoder) u64(v uint64)     { e.b = binary.LittleEndian.AppendUint64(e.b, v) }
func (e *encoder) i64(v int64)      { e.u64(uint64(v)) }
func (e *encoder) uuid(v uuid.UUID) { e.b = append(e.b, v[:]...) }
func (e *encoder) zero(n int)       { e.b = append(e.b, make([]byte, n)...) }

// text appends a length of one byte and the bytes.
func (e *encoder) text(s string) {
	e.u8(uint8(len(s)))
	e.b = append(e.b, s...)
}

// record appends what fn appends, behind a length of two bytes that counts
// both. Later versions add fields at the end of a record.
func (e *encoder) record(fn func()) {
	at := len(e.b)
	e.u16(0)
	fn()
	binary.LittleEndian.PutUint16(e.b[at:], uint16(len(e.b)-at))
}

// decoder takes fields off a structure. Reading past the end sets short, and
// gives zeroes: the caller looks at short when it is through.
type decoder struct {
	b     []byte
	short bool
}

func (d *decoder) take(n int) []byte {
	if n > len(d.b) {
		d.short = true
		d.b = nil
		return make([]byte, n)
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) u8() uint8           { return d.take(1)[0] }
func (d *decoder) u16() uint16         { return binary.LittleEndian.Uint16(d.take(2)) }
func (d *decoder) u32() uint32         { return binary.LittleEndian.Uint32(d.take(4)) }
func (d *decoder) u64() uint64         { return binary.LittleEndian.Uint64(d.take(8)) }
func (d *decoder) i64() int64          { return int64(d.u64()) }
func (d *decoder) uuid() (v uuid.UUID) { copy(v[:], d.take(16)); return v }
func (d *decoder) text() string        { return string(d.take(int(d.u8()))) }

// record calls fn on the fields of the next record.
func (d *decoder) record(fn func(r *decoder)) {
	n := int(d.u16())
	if n < 2 {
		d.short = true
		d.b = nil
		return
	}
	r := &decoder{b: d.take(n - 2)}
	if d.short {
		return
	}
	fn(r)
	d.short = d.short || r.short
}

// checkText says whether s can be stored.
func checkText(what, s string) error {
	if len(s) > math.MaxUint8 {
		return fmt.Errorf("%w: %s of %d bytes, at most 255", ErrTooLarge, what, len(s))
	}
	return nil
}
