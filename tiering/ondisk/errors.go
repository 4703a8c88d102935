package ondisk

import "errors"

var (
	// ErrNoSuperblock is returned when a backing has no trace of a superblock.
	ErrNoSuperblock = errors.New("backing has no superblock")
	// ErrCorrupt is returned when neither copy of a structure is valid, or when
	// two valid copies contradict each other.
	ErrCorrupt = errors.New("backing metadata is corrupt")
	// ErrNewerFormat is returned when a backing needs a later program.
	ErrNewerFormat = errors.New("backing format is newer than this program")
	// ErrReadOnlyFormat is returned when a backing uses an extension that this
	// program may read past, but not write past.
	ErrReadOnlyFormat = errors.New("backing format allows this program reading only")
	// ErrShort is returned when a backing is shorter than its superblock says.
	ErrShort = errors.New("backing is shorter than its superblock says")
	// ErrTooSmall is returned when a backing has no room for a slot.
	ErrTooSmall = errors.New("backing is too small")
	// ErrTooLarge is returned when what is to be written does not fit its area,
	// or cannot be expressed in the format.
	ErrTooLarge = errors.New("does not fit the backing format")
)
