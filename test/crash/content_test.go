package crash

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync/atomic"
)

const (
	sector = 512
	block  = 4096
)

// lastContent is the number of the last content given out in this process. None is
// used twice, in any volume of any run: bytes that turn up where they do not belong
// are known.
var lastContent atomic.Uint32

// A content is what one write put into sectors; 0 is zeroes.
type content uint32

func newContent() content { return content(lastContent.Add(1)) }

// fill writes the content of sectors from at on into p: a pattern of its number and
// of the sector.
func (c content) fill(p []byte, at int64) {
	if c == 0 {
		clear(p)
		return
	}
	for i := 0; i < len(p); i += sector {
		binary.LittleEndian.PutUint64(p[i:], uint64(c)<<32|uint64(at))
		for n := 8; n < sector; n *= 2 {
			copy(p[i+n:i+sector], p[i:i+n])
		}
		at++
	}
}

// bytes returns n bytes of c at off.
func (c content) bytes(off, n int64) []byte {
	p := make([]byte, n)
	c.fill(p, off/sector)
	return p
}

var zeroSector [sector]byte

// identify returns whose content the sector at is. An error is for bytes that no
// write put there as they are.
func identify(p []byte, at int64) (content, error) {
	if bytes.Equal(p, zeroSector[:]) {
		return 0, nil
	}
	v := binary.LittleEndian.Uint64(p)
	c, found := content(v>>32), int64(uint32(v))
	// All of it repeats its first eight bytes.
	if c == 0 || !bytes.Equal(p[8:], p[:sector-8]) {
		return 0, fmt.Errorf("torn or foreign bytes %x...", p[:16])
	}
	if found != at {
		return 0, fmt.Errorf("content %d of sector %d", c, found)
	}
	return c, nil
}
