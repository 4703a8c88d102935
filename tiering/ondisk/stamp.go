package ondisk

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"tierd/pkg/backing"
)

// Stamp tells of the newest commit of the extent map that was finished before
// a sync of the backing. A map of an older commit is a backup: slots may have
// changed owner since.
type Stamp struct {
	Commit      uint64 // number of the last finished commit
	Incarnation uint64
	// Clean: that commit was the clean stop of this incarnation, so that whoever
	// was of the pool then has a stamp of it, or of the one before if the stop was
	// cut short.
	Clean bool
	// VolumeGeneration is that of a volume table which was whole on the backing before
	// the stamp was written; 0: not recorded.
	VolumeGeneration uint64
	// Seq is the highest sequence that was in the staged log then; 0: it had none of
	// this incarnation, or not recorded.
	Seq uint64
	// Owners is how many entries of the slot table say whose a slot is, if Counted,
	// which goes with Clean.
	Counted bool
	Owners  uint64
}

const stampMagic = "tierdST\n"

// encode fills the block b with v, as the stamp of a generation.
func (v Stamp) encode(b []byte, generation uint64, seed []byte) {
	clear(b)
	binary.LittleEndian.PutUint64(b[headSize:], v.Commit)
	binary.LittleEndian.PutUint64(b[headSize+8:], v.Incarnation)
	if v.Clean {
		b[headSize+16] = 1
	}
	binary.LittleEndian.PutUint64(b[headSize+24:], v.VolumeGeneration)
	binary.LittleEndian.PutUint64(b[headSize+32:], v.Seq)
	if v.Counted {
		b[headSize+17] = 1
		binary.LittleEndian.PutUint64(b[headSize+40:], v.Owners)
	}
	sealHead(b, stampMagic, generation, seed)
}

// readStamp reads one block of a stamp; the stamp and its generation are zero if
// it is not valid.
func readStamp(ctx context.Context, st backing.Store, off int64, seed []byte) (v Stamp, generation uint64, state headState, err error) {
	b, state, err := readStructure(ctx, st, off, blockSize, stampMagic, seed)
	switch {
	case err != nil:
		return Stamp{}, 0, state, err
	case state == absent && !allZero(b):
		state = damaged
	case state == valid:
		h, _ := parseHead(b, stampMagic, blockSize)
		generation = h.generation
		v = Stamp{
			Commit:           binary.LittleEndian.Uint64(b[headSize:]),
			Incarnation:      binary.LittleEndian.Uint64(b[headSize+8:]),
			Clean:            b[headSize+16] == 1,
			VolumeGeneration: binary.LittleEndian.Uint64(b[headSize+24:]),
			Seq:              binary.LittleEndian.Uint64(b[headSize+32:]),
			Counted:          b[headSize+17] == 1,
			Owners:           binary.LittleEndian.Uint64(b[headSize+40:]),
		}
	}
	return v, generation, state, nil
}

// Stamps writes the stamp of one backing. It uses two blocks in turn, so that
// a torn write leaves the stamp before it. That holds if each write is synced
// before the next: at most one Write between two Syncs of the backing. It is
// safe for concurrent use.
type Stamps struct {
	st     backing.Store
	offset [2]int64
	seed   []byte

	mu         sync.Mutex
	known      bool // generation and newest are what the backing has
	generation uint64
	newest     int    // index of the block last written
	tables     uint64 // highest Stamp.VolumeGeneration on the backing
	block      []byte
}

// NewStamps returns the Stamps of a backing. Nothing is read yet.
func NewStamps(st backing.Store, poolID, backingUUID uuid.UUID, l Layout) *Stamps {
	return &Stamps{st: st, offset: l.StampOffset, seed: append(poolID[:], backingUUID[:]...), block: alignedBytes(blockSize)}
}

// Read returns the newest stamp on the backing, zero if none was ever written.
// It is ErrCorrupt if something is there and neither block is valid, and
// ErrNewerFormat if a later version wrote one.
func (s *Stamps) Read(ctx context.Context) (Stamp, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, err := s.readLocked(ctx)
	if err != nil {
		return Stamp{}, fmt.Errorf("read stamp: %w", err)
	}
	return v, nil
}

func (s *Stamps) readLocked(ctx context.Context) (best Stamp, err error) {
	s.generation, s.newest, s.tables, s.known = 0, 1, 0, false
	var sum headState
	for i, off := range s.offset {
		v, generation, state, err := readStamp(ctx, s.st, off, s.seed)
		if err != nil {
			return Stamp{}, err
		}
		sum = max(sum, state)
		if generation > s.generation {
			s.generation, s.newest, best = generation, i, v
		}
	}
	switch sum {
	case newer:
		return Stamp{}, ErrNewerFormat
	case damaged:
		return Stamp{}, ErrCorrupt
	}
	s.known, s.tables = true, best.VolumeGeneration
	return best, nil
}

// Write writes v into the block that does not hold the newest stamp. It does
// not sync, and reads the backing only the first time. After an error the
// other block is untouched, and the next Write uses the same one. VolumeGeneration
// never falls: what is written is the highest so far.
func (s *Stamps) Write(ctx context.Context, v Stamp) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		if _, err := s.readLocked(ctx); err != nil {
			return fmt.Errorf("write stamp: %w", err)
		}
	}
	v.VolumeGeneration = max(v.VolumeGeneration, s.tables)
	v.encode(s.block, s.generation+1, s.seed)
	if err := s.st.WriteAt(ctx, s.block, s.offset[1-s.newest]); err != nil {
		return fmt.Errorf("write stamp: %w", err)
	}
	s.generation++
	s.newest, s.tables = 1-s.newest, v.VolumeGeneration
	return nil
}

// VolumeGeneration returns the highest Stamp.VolumeGeneration that is known to be on
// the backing.
func (s *Stamps) VolumeGeneration() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tables
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
