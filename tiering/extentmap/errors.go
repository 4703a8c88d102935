package extentmap

import (
	"errors"
	"syscall"
)

var (
	// ErrExists is returned by Create when there is a file at the path.
	ErrExists = errors.New("metadata file exists")
	// ErrNotExist is returned by Open when there is no file at the path.
	ErrNotExist = errors.New("metadata file does not exist")
	// ErrLocked is returned when another process, or another handle of this
	// one, has the file open.
	ErrLocked = errors.New("metadata file is in use")
	// ErrNotBolt is returned by Open when the file was never a metadata file.
	ErrNotBolt = errors.New("not a tierd metadata file")
	// ErrCorrupt is returned when the file is damaged.
	ErrCorrupt = errors.New("metadata file is corrupt")
	// ErrNewerFormat is returned by Open when the file needs a later program.
	ErrNewerFormat = errors.New("metadata format is newer than this program")
	// ErrReadOnlyFormat is returned by Open when the file uses an extension
	// that this program may read past, but not write past.
	ErrReadOnlyFormat = errors.New("metadata format allows this program reading only")
	// ErrReadOnly is returned by Commit on a handle that was opened to read.
	ErrReadOnly = errors.New("metadata is open read-only")
	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("metadata is closed")
	// ErrMetadataFailed is returned by every Commit and LoadMap from the first
	// failed commit on, for as long as the process lives. What the file holds
	// is unknown until it is opened again. Whatever errno the cause has, say that
	// of a full file system, a client has to see an I/O error: there is nothing it
	// could wait for, or free.
	ErrMetadataFailed error = ioError("metadata has failed")
	// ErrInvalidChange is returned by Commit for a request that no state of
	// the metadata would make right. Nothing was changed.
	ErrInvalidChange = errors.New("invalid change")
)

// ioError is a sentinel that is EIO as well.
type ioError string

func (e ioError) Error() string { return string(e) }

// Unwrap returns the errno.
func (e ioError) Unwrap() error { return syscall.EIO }
