package faultfs

import (
	"context"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Op is a set of operations on a file.
type Op uint8

// The operations.
const (
	Read     Op = 1 << iota
	Write       // of data
	Sync        // fsync and fdatasync
	Allocate    // fallocate, which punches holes as well
	Seek        // for data and holes
	Open
	All = Read | Write | Sync | Allocate | Seek | Open
)

// A Fault says what fails, when, and how.
type Fault struct {
	Op   Op
	Name string // of the file; "": of all files
	From int64  // bytes: what ends before this passes; syncs have no range
	To   int64  // what begins here or later passes; 0: no end
	// Times is how often it strikes; 0: for ever.
	Times int
	// Longer is how long what it strikes is at least, less one byte.
	Longer int64

	// Delay holds the operation back, until the faults are replaced at most.
	Delay time.Duration
	// Errno is what fails; 0: nothing.
	Errno syscall.Errno
	// Short is how many bytes of a write are written; what it returns is that number,
	// or Errno if there is one.
	Short int
	// Room is how many bytes can be written into holes of the file before Errno
	// strikes; negative: none. With Room, overwrites go on.
	Room int64
}

// armed is a Fault in force.
type armed struct {
	Fault
	hits  int
	bytes int64 // of what it struck
}

// faults are what is in force.
type faults struct {
	mu      sync.Mutex
	list    []*armed
	changed chan struct{} // closed when the list is replaced
}

// set replaces the faults.
func (f *faults) set(list []Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = nil
	for _, a := range list {
		f.list = append(f.list, &armed{Fault: a})
	}
	if f.changed != nil {
		close(f.changed)
	}
	f.changed = make(chan struct{})
}

// hits returns how often each fault struck, and the bytes that it struck.
func (f *faults) hits() (hits []int, bytes []int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.list {
		hits, bytes = append(hits, a.hits), append(bytes, a.bytes)
	}
	return hits, bytes
}

// strike returns the fault that an operation meets, after its delay; nil if none.
// fd is the file's own, -1 if there is none yet.
func (f *faults) strike(ctx context.Context, op Op, name string, fd int, off, n int64) *Fault {
	f.mu.Lock()
	var met *Fault
	for _, a := range f.list {
		if a.meets(op, name, fd, off, n) {
			a.hits++
			a.bytes += n
			met = &a.Fault
			break
		}
	}
	changed := f.changed
	f.mu.Unlock()
	if met != nil && met.Delay > 0 {
		select {
		case <-time.After(met.Delay):
		case <-changed:
		case <-ctx.Done():
			return &Fault{Errno: syscall.EINTR}
		}
	}
	return met
}

// meets is called with the lock of the faults held.
func (a *armed) meets(op Op, name string, fd int, off, n int64) bool {
	if a.Op&op == 0 || a.Name != "" && a.Name != name || a.Times > 0 && a.hits >= a.Times || n <= a.Longer && a.Longer > 0 {
		return false
	}
	if op&(Sync|Open) == 0 && (off+n <= a.From || a.To > 0 && off >= a.To) {
		return false
	}
	if a.Room == 0 {
		return true
	}
	if op != Write || fd < 0 || !hasHole(fd, off, n) {
		return false
	}
	if a.Room >= n {
		a.Room = max(a.Room-n, -1)
		if a.Room == 0 {
			a.Room = -1
		}
		return false
	}
	return true
}

// hasHole reports whether some of [off, off+n) has no space yet.
func hasHole(fd int, off, n int64) bool {
	at, err := unix.Seek(fd, off, unix.SEEK_HOLE)
	return err == nil && at < off+n
}
