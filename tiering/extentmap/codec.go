package extentmap

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"

	"tierd/tiering/extent"
)

// ChunkEntries is the number of extents in one value of the map bucket.
const ChunkEntries = 256

const (
	chunkFormat = 1
	chunkHeader = 8
	entryBytes  = 8

	// entryUsed is the part of an entry that version 1 gives a meaning.
	entryUsed = 6
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// chunk is one decoded value of the map bucket.
type chunk [ChunkEntries]extent.Location

// chunkKey returns the key of the chunk that holds extent i of volume v.
func chunkKey(v extent.VolumeID, i extent.Index) []byte {
	k := make([]byte, 12)
	binary.BigEndian.PutUint32(k, uint32(v))
	binary.BigEndian.PutUint64(k[4:], uint64(i)/ChunkEntries)
	return k
}

// parseChunkKey returns the volume and first extent that a key stands for.
func parseChunkKey(k []byte) (v extent.VolumeID, first extent.Index, err error) {
	if len(k) != 12 {
		return 0, 0, fmt.Errorf("%w: key of %d bytes in the map", ErrCorrupt, len(k))
	}
	n := binary.BigEndian.Uint64(k[4:])
	if n > maxIndex/ChunkEntries {
		return 0, 0, fmt.Errorf("%w: chunk number %d in the map", ErrCorrupt, n)
	}
	return extent.VolumeID(binary.BigEndian.Uint32(k)), extent.Index(n * ChunkEntries), nil
}

// maxIndex bounds extent numbers, so that arithmetic on them cannot wrap: no
// volume has more bytes than an int64 counts.
const maxIndex = 1<<63/extent.MinSize - 1

// encode returns the value for key, nil if no extent is mapped. Trailing
// unmapped extents are left out.
func (c *chunk) encode(key []byte) []byte {
	n := ChunkEntries
	for n > 0 && c[n-1].IsZero() {
		n--
	}
	if n == 0 {
		return nil
	}
	b := make([]byte, chunkHeader+n*entryBytes)
	b[0] = chunkFormat
	for i, l := range c[:n] {
		e := b[chunkHeader+i*entryBytes:]
		if !l.IsZero() {
			binary.LittleEndian.PutUint16(e, uint16(l.Backing))
			binary.LittleEndian.PutUint32(e[2:], uint32(l.Slot))
		}
	}
	binary.LittleEndian.PutUint32(b[4:], chunkCRC(key, b))
	return b
}

// chunkCRC covers the key, the first four bytes and the entries: a value that
// bbolt finds under another key than it was put is seen too.
func chunkCRC(key, b []byte) uint32 {
	crc := crc32.Update(0, castagnoli, key)
	crc = crc32.Update(crc, castagnoli, b[:4])
	return crc32.Update(crc, castagnoli, b[chunkHeader:])
}

// decode fills c from the value b of key; a nil b is a chunk without mappings.
func (c *chunk) decode(key, b []byte) error {
	*c = chunk{}
	if b == nil {
		return nil
	}
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%w: map chunk %x: %s", ErrCorrupt, key, fmt.Sprintf(format, args...))
	}
	if len(b) < chunkHeader || (len(b)-chunkHeader)%entryBytes != 0 || (len(b)-chunkHeader)/entryBytes > ChunkEntries {
		return fail("length %d", len(b))
	}
	if b[0] != chunkFormat {
		return fail("format %d", b[0])
	}
	if got, want := chunkCRC(key, b), binary.LittleEndian.Uint32(b[4:]); got != want {
		return fail("checksum %08x, want %08x", got, want)
	}
	for i := range (len(b) - chunkHeader) / entryBytes {
		e := b[chunkHeader+i*entryBytes:]
		l := extent.Location{
			Backing: extent.BackingID(binary.LittleEndian.Uint16(e)),
			Slot:    extent.Slot(binary.LittleEndian.Uint32(e[2:])),
		}
		if l.Backing > extent.MaxBackingID || l.IsZero() && l.Slot != 0 {
			return fail("entry %d names %v", i, l)
		}
		if spare := binary.LittleEndian.Uint16(e[entryUsed:]); spare != 0 {
			return fail("entry %d uses its spare bytes (%04x)", i, spare)
		}
		c[i] = l
	}
	return nil
}

// mergeJSON returns v as JSON together with those fields of old that v does
// not have: a record written by a later version keeps what this one cannot
// name.
func mergeJSON(old []byte, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil || old == nil {
		return b, err
	}
	var was, is map[string]json.RawMessage
	if err := json.Unmarshal(old, &was); err != nil {
		return nil, fmt.Errorf("%w: record: %w", ErrCorrupt, err)
	}
	if err := json.Unmarshal(b, &is); err != nil {
		return nil, err
	}
	extra := false
	for k, raw := range was {
		if _, known := is[k]; !known {
			is[k], extra = raw, true
		}
	}
	if !extra {
		return b, nil
	}
	return json.Marshal(is)
}
