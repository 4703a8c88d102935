package heat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"
)

// Errors of Load.
var (
	// ErrNotHeat: the file does not begin like a heat file of this version.
	ErrNotHeat = errors.New("not a heat file")
	// ErrOtherPool: the file belongs to another pool.
	ErrOtherPool = errors.New("heat file of another pool")
)

const (
	fileHeader = 4096
	fileMagic  = "tierHEAT"
	// FileVersion is the version of the file's format.
	FileVersion = 1
)

// File places chunks in a file: a header, then slots of one chunk each. A chunk
// keeps its slot, so that saving rewrites the changed chunks alone and the file
// never has to be compacted; a slot torn by a crash fails its checksum and costs
// the heat of one chunk until it is saved again. What says where a chunk lies is
// the chunks themselves, read once by Load.
//
// A File does no more than place: the caller opens, syncs (or not: heat is a
// hint) and closes. Load and Save are called by one goroutine at a time.
type File struct {
	pool   PoolID
	slots  map[ChunkKey]int64
	free   []int64
	next   int64 // slots in the file
	headed bool  // the header is in the file
}

// LoadReport counts what Load found.
type LoadReport struct {
	Chunks  int // taken over
	Bad     int // damaged, skipped
	Unknown int // of volumes that are not tracked
}

// NewFile returns the File of a pool, empty until Load was called.
func NewFile(pool PoolID) *File {
	return &File{pool: pool, slots: map[ChunkKey]int64{}}
}

// Load reads the scores of all volumes that t tracks, from the size bytes of r.
// Damaged chunks are skipped and counted. An error wraps ErrNotHeat or
// ErrOtherPool, or is one of reading the header; whatever it is, the File can
// be used, and a Save then begins the file anew. An empty file is no error.
func (f *File) Load(t *Tracker, r io.ReaderAt, size int64, now time.Time) (LoadReport, error) {
	var rep LoadReport
	*f = *NewFile(f.pool)
	if size == 0 {
		return rep, nil
	}
	if err := f.readHeader(r); err != nil {
		return rep, fmt.Errorf("read heat file: %w", err)
	}
	f.headed = true

	at := map[ChunkKey]time.Time{}
	data := make([]byte, ChunkSize)
	for f.next = 0; fileHeader+f.next*ChunkSize < size; f.next++ {
		if _, err := r.ReadAt(data, fileHeader+f.next*ChunkSize); err != nil && !errors.Is(err, io.EOF) {
			rep.Bad++
			f.free = append(f.free, f.next)
			continue
		} else if err != nil && fileHeader+(f.next+1)*ChunkSize > size {
			clear(data) // the file ends within the slot
		}
		c, err := parseChunk(f.pool, data)
		old, twice := at[c.key]
		if err == nil && twice && !c.at.After(old) {
			f.free = append(f.free, f.next) // an older copy
			continue
		}
		if err == nil {
			_, err = t.DecodeChunk(f.pool, data, now)
		}
		switch {
		case err == nil && twice:
			f.free = append(f.free, f.slots[c.key])
		case err == nil:
			rep.Chunks++
		case errors.Is(err, ErrUnknownVolume):
			rep.Unknown++
		default:
			rep.Bad++
		}
		if err != nil {
			f.free = append(f.free, f.next)
			continue
		}
		at[c.key], f.slots[c.key] = c.at, f.next
	}
	return rep, nil
}

// Save writes the chunks that changed since they were last saved or loaded, and
// returns the bytes written. After an error what was not written still counts as
// changed.
func (f *File) Save(t *Tracker, w io.WriterAt, now time.Time) (n int64, err error) {
	if !f.headed {
		if _, err := w.WriteAt(f.header(), 0); err != nil {
			return 0, fmt.Errorf("write heat file header: %w", err)
		}
		f.headed = true
		n += fileHeader
	}
	f.forgetDropped(t)
	err = t.EncodeChunks(f.pool, now, true, func(key ChunkKey, data []byte) error {
		slot, ok := f.slots[key]
		if !ok {
			slot = f.take()
			f.slots[key] = slot
		}
		if _, err := w.WriteAt(data, fileHeader+slot*ChunkSize); err != nil {
			return fmt.Errorf("write heat chunk of volume %d: %w", key.Volume, err)
		}
		n += ChunkSize
		return nil
	})
	return n, err
}

// take returns a slot that holds nothing of use.
func (f *File) take() int64 {
	if n := len(f.free); n > 0 {
		slot := f.free[n-1]
		f.free = f.free[:n-1]
		return slot
	}
	f.next++
	return f.next - 1
}

// forgetDropped gives back the slots of volumes that are no more. Their content
// stays until it is overwritten; volume ids are never used twice.
func (f *File) forgetDropped(t *Tracker) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for key, slot := range f.slots {
		if t.volumes[key.Volume] == nil {
			delete(f.slots, key)
			f.free = append(f.free, slot)
		}
	}
}

func (f *File) header() []byte {
	h := make([]byte, fileHeader)
	copy(h, fileMagic)
	binary.LittleEndian.PutUint32(h[8:], FileVersion)
	binary.LittleEndian.PutUint32(h[12:], ChunkSize)
	copy(h[16:32], f.pool[:])
	binary.LittleEndian.PutUint32(h[32:], crc32.Checksum(h[:32], castagnoli))
	return h
}

func (f *File) readHeader(r io.ReaderAt) error {
	h := make([]byte, 36)
	if _, err := r.ReadAt(h, 0); errors.Is(err, io.EOF) {
		return ErrNotHeat // shorter than a header
	} else if err != nil {
		return err
	}
	le := binary.LittleEndian
	switch {
	case string(h[:8]) != fileMagic, le.Uint32(h[32:]) != crc32.Checksum(h[:32], castagnoli):
		return ErrNotHeat
	case le.Uint32(h[8:]) != FileVersion, le.Uint32(h[12:]) != ChunkSize:
		return fmt.Errorf("%w: version %d", ErrNotHeat, le.Uint32(h[8:]))
	case PoolID(h[16:32]) != f.pool:
		return ErrOtherPool
	}
	return nil
}
