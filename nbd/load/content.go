package load

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

const (
	unitHeader = 32
	unitMagic  = 0x64616f6c72656974 // "tierload"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var le = binary.LittleEndian

// fillUnit writes the content of the unit at off in generation gen to b.
func fillUnit(b []byte, seed uint64, off int64, gen uint32) {
	le.PutUint64(b[0:], unitMagic)
	le.PutUint64(b[8:], uint64(off))
	le.PutUint64(b[16:], seed)
	le.PutUint32(b[24:], gen)
	x := stream(seed, off, gen)
	for p := b[unitHeader:]; len(p) >= 8; p = p[8:] {
		x += golden
		le.PutUint64(p, mix(x))
	}
	le.PutUint32(b[28:], unitCRC(b))
}

// isUnit reports whether b is exactly what fillUnit makes.
func isUnit(b []byte, seed uint64, off int64, gen uint32) bool {
	if le.Uint64(b) != unitMagic || le.Uint64(b[8:]) != uint64(off) || le.Uint64(b[16:]) != seed || le.Uint32(b[24:]) != gen {
		return false
	}
	x := stream(seed, off, gen)
	var diff uint64
	for p := b[unitHeader:]; len(p) >= 8; p = p[8:] {
		x += golden
		diff |= le.Uint64(p) ^ mix(x)
	}
	return diff == 0 && le.Uint32(b[28:]) == unitCRC(b)
}

// stream returns where the pseudo-random bytes of a unit begin.
func stream(seed uint64, off int64, gen uint32) uint64 {
	return mix(mix(seed+golden) ^ uint64(off) ^ uint64(gen)<<40)
}

func unitCRC(b []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, b[:28]), castagnoli, b[unitHeader:])
}

var zeroes [4096]byte

// isZero reports whether b, of at most 4096 bytes, is all zeroes.
func isZero(b []byte) bool { return bytes.Equal(b, zeroes[:len(b)]) }
