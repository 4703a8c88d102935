package tiering

import "encoding/binary"

// allZero reports whether p has only zero bytes.
func allZero(p []byte) bool {
	for ; len(p) >= 64; p = p[64:] {
		q := p[:64:64]
		x := binary.LittleEndian.Uint64(q) | binary.LittleEndian.Uint64(q[8:]) |
			binary.LittleEndian.Uint64(q[16:]) | binary.LittleEndian.Uint64(q[24:]) |
			binary.LittleEndian.Uint64(q[32:]) | binary.LittleEndian.Uint64(q[40:]) |
			binary.LittleEndian.Uint64(q[48:]) | binary.LittleEndian.Uint64(q[56:])
		if x != 0 {
			return false
		}
	}
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}
