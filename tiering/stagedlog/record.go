package stagedlog

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/google/uuid"

	"tierd/tiering/extent"
)

var (
	// ErrExists is returned by Create when there is a file at the path.
	ErrExists = errors.New("staged log exists")
	// ErrNotLog is returned when a file has no size or contents of a log.
	ErrNotLog = errors.New("not a staged log")
	// ErrNotFile: what is at the path is no file, and no log can be made there.
	ErrNotFile = errors.New("it is no file; move it away: the log is then made anew, and answered writes that were not flushed may be lost")
	// ErrNewerFormat is returned when a later version wrote the log.
	ErrNewerFormat = errors.New("staged log format is newer than this program")
	// ErrMapOlder is returned by Read when the log knows of a commit that the
	// map does not have: the map is an old copy.
	ErrMapOlder = errors.New("extent map is older than the staged log")
	// ErrGap is returned by Read when a record is missing before others. The
	// records before the gap come with it; what was answered after is lost.
	ErrGap = errors.New("staged log has a gap")
	// ErrFull is returned by Append when there is no room until more records
	// are retired. Nothing was written.
	ErrFull = errors.New("staged log is full")
	// ErrInvalid is returned for records and identities that cannot be
	// expressed, and for sequences that do not rise. Nothing was written.
	ErrInvalid = errors.New("invalid staged log record")
	// ErrFailed is returned by Append from the first failed write on.
	ErrFailed = errors.New("staged log has failed")
	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("staged log is closed")
)

// Kind says what a record did to its extents.
type Kind uint8

const (
	Map        Kind = iota + 1 // First is in To; it was unmapped
	Unmap                      // First is unmapped; it was in From
	UnmapRange                 // Count extents from First are unmapped
	Move                       // First is in To; it was in From

	kindInstance Kind = 255
)

func (k Kind) String() string {
	if k >= Map && k <= Move {
		return [...]string{"map", "unmap", "unmap range", "move"}[k-1]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Record is one change of the extent map. It sets absolute state: From is for
// the reader's bookkeeping, not a condition.
type Record struct {
	Seq          uint64 // rises from record to record
	Kind         Kind
	Volume       extent.VolumeID
	First, Count extent.Index // Count is 1 except for UnmapRange
	To, From     extent.Location
}

// Identity says which log this is, and for which run of the machine and its
// backings it holds.
type Identity struct {
	PoolID      uuid.UUID
	Incarnation uint64
	BootID      string                      // up to 127 bytes
	Instances   map[extent.BackingID]string // backing.Store.Instance of each backing that is there
}

const (
	recordSize = 64
	crcAt      = 60
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// entry is a record as it is in the file.
type entry struct {
	Record
	ordinal uint64
}

// check says whether r can be recorded.
func (r *Record) check() error {
	ok := r.Kind >= Map && r.Kind <= Move && r.Seq != 0 && r.Volume != 0 &&
		r.To.Backing <= extent.MaxBackingID && r.From.Backing <= extent.MaxBackingID &&
		r.Count >= 1 && (r.Count == 1 || r.Kind == UnmapRange) && r.First+r.Count > r.First &&
		(r.Kind == Map || r.Kind == Move) == !r.To.IsZero()
	if !ok {
		return fmt.Errorf("%w: %+v", ErrInvalid, *r)
	}
	return nil
}

// encode writes e into b, 64 zero bytes.
func (e *entry) encode(b []byte, seed uint32) {
	le := binary.LittleEndian
	le.PutUint64(b, e.Seq)
	le.PutUint64(b[8:], e.ordinal)
	le.PutUint32(b[16:], uint32(e.Volume))
	b[20] = byte(e.Kind)
	le.PutUint16(b[22:], uint16(e.To.Backing))
	le.PutUint16(b[24:], uint16(e.From.Backing))
	le.PutUint32(b[28:], uint32(e.To.Slot))
	le.PutUint32(b[32:], uint32(e.From.Slot))
	le.PutUint64(b[40:], uint64(e.First))
	le.PutUint64(b[48:], uint64(e.Count))
	le.PutUint32(b[crcAt:], crc32.Update(seed, castagnoli, b[:crcAt]))
}

// decode takes e from b and reports whether its CRC is right.
func (e *entry) decode(b []byte, seed uint32) bool {
	le := binary.LittleEndian
	if crc32.Update(seed, castagnoli, b[:crcAt]) != le.Uint32(b[crcAt:]) {
		return false
	}
	*e = entry{ordinal: le.Uint64(b[8:]), Record: Record{
		Seq: le.Uint64(b), Kind: Kind(b[20]), Volume: extent.VolumeID(le.Uint32(b[16:])),
		First: extent.Index(le.Uint64(b[40:])), Count: extent.Index(le.Uint64(b[48:])),
		To:   extent.Location{Backing: extent.BackingID(le.Uint16(b[22:])), Slot: extent.Slot(le.Uint32(b[28:]))},
		From: extent.Location{Backing: extent.BackingID(le.Uint16(b[24:])), Slot: extent.Slot(le.Uint32(b[32:]))},
	}}
	return true
}

// instanceEntry records which instance of a backing the later records are for.
func instanceEntry(b extent.BackingID, instance string) entry {
	return entry{Record: Record{Kind: kindInstance, First: extent.Index(b), Count: extent.Index(instanceHash(instance))}}
}

func instanceHash(instance string) uint64 {
	h := sha256.Sum256([]byte(instance))
	return binary.LittleEndian.Uint64(h[:])
}
