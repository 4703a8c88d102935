package backing

import (
	"errors"
	"fmt"
)

// Media is the kind of medium behind a backing. It is a starting point for a
// cost model, which then measures.
type Media string

// The kinds of media. The empty Media means: ask the kernel.
const (
	SSD Media = "ssd"
	HDD Media = "hdd"
)

// DefaultMaxBlocked is how many calls of one Store may sit in blocking system
// calls at once unless Options says otherwise. Each of them holds a thread,
// and a process has 10,000 of them before the Go runtime gives up: one dead
// disk must not be able to take them all.
const DefaultMaxBlocked = 64

// Options says what Open opens and how. The zero value of each field but Path
// is usable.
type Options struct {
	Path string
	// Direct asks for O_DIRECT: no page cache. Any alignment is accepted;
	// what is not aligned goes through a bounce buffer.
	Direct bool
	// ReadOnly opens for reading and takes a shared lock.
	ReadOnly bool
	// Create makes a new file of Size bytes; that it exists already is an error.
	Create bool
	// Size is the size in bytes of a new file. Without Create it is what the
	// backing must have at least; 0 takes it as it is.
	Size int64
	// Preallocate reserves the whole file, and makes Zero keep the space.
	// Ignored for devices.
	Preallocate bool
	Media       Media
	// Simulate makes the backing behave like a slower disk; nil for as it is.
	Simulate *Simulate
	// MaxBlocked bounds the calls inside blocking system calls; 0 means
	// DefaultMaxBlocked. The rest queue first in, first out without a thread.
	MaxBlocked int
}

func (o Options) validate() error {
	var errs []error
	if o.Path == "" {
		errs = append(errs, errors.New("no path"))
	}
	if o.Size < 0 {
		errs = append(errs, fmt.Errorf("size %d is negative", o.Size))
	}
	if o.Create && o.Size == 0 {
		errs = append(errs, errors.New("a new file needs a size"))
	}
	if o.Create && o.ReadOnly {
		errs = append(errs, errors.New("a new file cannot be read-only"))
	}
	if o.MaxBlocked < 0 {
		errs = append(errs, fmt.Errorf("max blocked %d is negative", o.MaxBlocked))
	}
	switch o.Media {
	case "", SSD, HDD:
	default:
		errs = append(errs, fmt.Errorf("media %q is neither %q nor %q", o.Media, SSD, HDD))
	}
	if o.Simulate != nil {
		errs = append(errs, o.Simulate.validate())
	}
	return errors.Join(errs...)
}

// Info tells what Open found.
type Info struct {
	// Path is the path that was opened, symbolic links and all.
	Path string
	// IsDevice: a block device rather than a regular file.
	IsDevice bool
	// LogicalBlock is the smallest unit, in bytes, that the medium writes: for
	// Direct backings the unit of a read-modify-write. Writes in flight must
	// not share a range of max(4096, LogicalBlock) bytes.
	LogicalBlock int
	// PhysicalBlock is the unit, in bytes, the medium prefers.
	PhysicalBlock int
	Direct        bool
	ReadOnly      bool
	// Rotational is what the kernel says of the disk; nil when it says nothing.
	Rotational *bool
	// Media is Options.Media, or what Rotational makes of it, or SSD.
	Media Media
	// PageCacheReads: TryReadAt can succeed.
	PageCacheReads bool
	// Preallocated: all space is reserved, so that writes cannot run out of it.
	// True for devices.
	Preallocated bool
	// Simulated: Options.Simulate was given.
	Simulated bool
}

// A Device is a Store on a file or a block device, as Open returns it.
type Device interface {
	Store
	Info() Info
}
