package stagedlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/google/uuid"
)

const (
	magic         = "tierdSL\n"
	formatVersion = 1
	blockSize     = 4096
	maxBootID     = 127

	// A half has two header blocks, used in turn: a torn header leaves the one
	// before it, and with that the records that are still there.
	headerBlocks = 2
	recordsAt    = headerBlocks * blockSize

	minHalf = recordsAt + blockSize
	maxHalf = 1 << 40
)

// header is one use of a half.
type header struct {
	version      uint32
	half         uint32
	block        uint32 // which of the header blocks of the half
	epoch        uint64
	nonce        uint64
	poolID       uuid.UUID
	incarnation  uint64
	commit       uint64
	firstSeq     uint64
	firstOrdinal uint64
	halfSize     int64
	bootID       string
}

// seed returns what the CRCs of the records of this half begin with.
func (h *header) seed() uint32 {
	b := append([]byte(nil), h.poolID[:]...)
	b = binary.LittleEndian.AppendUint64(b, h.incarnation)
	b = binary.LittleEndian.AppendUint32(b, h.half)
	b = binary.LittleEndian.AppendUint64(b, h.nonce)
	return crc32.Checksum(b, castagnoli)
}

func (h *header) encode() []byte {
	b := make([]byte, blockSize)
	le := binary.LittleEndian
	copy(b, magic)
	le.PutUint32(b[8:], formatVersion)
	le.PutUint32(b[16:], h.half)
	le.PutUint32(b[20:], h.block)
	le.PutUint64(b[24:], h.epoch)
	le.PutUint64(b[32:], h.nonce)
	copy(b[40:], h.poolID[:])
	le.PutUint64(b[56:], h.incarnation)
	le.PutUint64(b[64:], h.commit)
	le.PutUint64(b[72:], h.firstSeq)
	le.PutUint64(b[80:], h.firstOrdinal)
	le.PutUint64(b[88:], uint64(h.halfSize))
	b[96] = byte(len(h.bootID))
	copy(b[97:], h.bootID)
	le.PutUint32(b[12:], headerCRC(b))
	return b
}

func headerCRC(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:12], castagnoli), castagnoli, b[16:])
}

// decodeHeader returns the header in b, this block of this half; ok is false if
// there is none that is whole.
func decodeHeader(b []byte, half, block uint32) (h header, ok bool, err error) {
	le := binary.LittleEndian
	if string(b[:8]) != magic || le.Uint32(b[12:]) != headerCRC(b) {
		return h, false, nil
	}
	if v := le.Uint32(b[8:]); v > formatVersion {
		return h, false, fmt.Errorf("%w: version %d, known is %d", ErrNewerFormat, v, formatVersion)
	}
	h = header{
		version: le.Uint32(b[8:]), half: le.Uint32(b[16:]), block: le.Uint32(b[20:]), epoch: le.Uint64(b[24:]), nonce: le.Uint64(b[32:]),
		poolID: uuid.UUID(b[40:56]), incarnation: le.Uint64(b[56:]), commit: le.Uint64(b[64:]),
		firstSeq: le.Uint64(b[72:]), firstOrdinal: le.Uint64(b[80:]), halfSize: int64(le.Uint64(b[88:])),
	}
	n := int(b[96])
	if n > maxBootID || h.half != half || h.block != block || h.halfSize < minHalf || h.halfSize > maxHalf || h.halfSize%blockSize != 0 {
		return header{}, false, nil
	}
	h.bootID = string(b[97 : 97+n])
	return h, true, nil
}
