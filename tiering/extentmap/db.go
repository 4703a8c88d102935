package extentmap

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"tierd/tiering/extent"
)

// FaultPoint is a place of a commit where a test can make it fail.
type FaultPoint uint8

const (
	// FaultBefore is ahead of the first write: nothing of the commit is on disk.
	FaultBefore FaultPoint = iota + 1
	// FaultAfter is behind the last write: all of the commit is on disk, and
	// it is reported as failed all the same.
	FaultAfter
)

// Options of Open. The zero value is fit for use.
type Options struct {
	ReadOnly    bool
	LockTimeout time.Duration // how long to wait for another holder; 0: half a second
	Slack       int64         // bytes kept allocated beyond what is used; 0: 16 MiB, negative: none

	// Fault, for tests, is asked at each point of commit number n; an error
	// is treated as the error of that commit.
	Fault func(p FaultPoint, n uint64) error
	// OpenFile, for tests, opens the file in place of os.OpenFile.
	OpenFile func(name string, flag int, mode os.FileMode) (*os.File, error)
}

const (
	defaultLockTimeout = 500 * time.Millisecond
	defaultSlack       = 16 << 20
	fileMode           = 0o600
)

// DB is the open metadata. Its methods are safe for concurrent use. One
// goroutine, started by Open and ended by Close, makes every call into bbolt.
type DB struct {
	path string
	opts Options

	// Of the owner goroutine alone.
	bolt     *bbolt.DB
	file     *os.File
	reserved int64 // bytes of the file known to be allocated

	wake chan struct{} // holds a token when the queue is not empty
	done chan struct{} // closed when the owner has ended

	mu       sync.Mutex
	queue    []*request
	closing  bool
	failed   error // wraps ErrMetadataFailed; set once
	closeErr error // of bbolt; valid once done is closed
	records  records
}

// request is a call that waits for the owner goroutine: a commit or a read.
type request struct {
	commit *prepared
	read   func(*bbolt.Tx) error

	done   chan struct{}
	number uint64
	err    error
}

// Open opens the metadata file at path and reads all of it but the map.
//
// The error is ErrNotExist, ErrLocked, ErrNotBolt, ErrCorrupt, ErrNewerFormat
// or ErrReadOnlyFormat, wrapped with the path, or that of the operating
// system. A read-only DB writes nothing at all and shares the file with other
// readers.
func Open(path string, o Options) (*DB, error) {
	if o.LockTimeout == 0 {
		o.LockTimeout = defaultLockTimeout
	}
	if o.Slack == 0 {
		o.Slack = defaultSlack
	}
	if o.OpenFile == nil {
		o.OpenFile = os.OpenFile
	}
	d := &DB{path: path, opts: o, wake: make(chan struct{}, 1), done: make(chan struct{})}
	opened := make(chan error)
	go d.ownerLoop(opened)
	if err := <-opened; err != nil {
		<-d.done
		return nil, fmt.Errorf("open metadata %s: %w", path, err)
	}
	return d, nil
}

// ownerLoop opens the file, reports the outcome, and then serves requests
// until Close.
func (d *DB) ownerLoop(opened chan<- error) {
	defer close(d.done)
	// bbolt reads through a mapping of the file: a page that the disk cannot
	// give is a fault, which this turns into a panic that protect catches.
	debug.SetPanicOnFault(true)

	err := protect(d.openBolt)
	opened <- err
	if err != nil {
		return
	}
	for range d.wake {
		for {
			batch, closing := d.takeBatch()
			if len(batch) == 0 {
				if closing {
					d.closeBolt()
					return
				}
				break
			}
			d.serve(batch)
		}
	}
}

// takeBatch removes what the owner does next from the queue: one read, or all
// commits up to the next read.
func (d *DB) takeBatch() (batch []*request, closing bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for n < len(d.queue) && d.queue[n].commit != nil {
		n++
	}
	if n == 0 && len(d.queue) > 0 {
		n = 1
	}
	batch, d.queue = d.queue[:n:n], d.queue[n:]
	return batch, d.closing
}

// serve carries out a batch and answers its requests.
func (d *DB) serve(batch []*request) {
	err := d.Err()
	switch {
	case err != nil:
		for _, r := range batch {
			r.err = err
		}
	case batch[0].read != nil:
		r := batch[0]
		fault := protect(func() error {
			r.err = d.bolt.View(r.read)
			return nil
		})
		if fault != nil {
			r.err = d.fail(fault)
		}
	default:
		d.commitBatch(batch)
	}
	for _, r := range batch {
		close(r.done)
	}
}

// submit queues r and waits until it is carried out.
func (d *DB) submit(r *request) error {
	r.done = make(chan struct{})
	d.mu.Lock()
	if d.closing {
		d.mu.Unlock()
		return ErrClosed
	}
	if d.failed != nil {
		defer d.mu.Unlock()
		return d.failed
	}
	d.queue = append(d.queue, r)
	d.mu.Unlock()
	d.signal()
	<-r.done
	return r.err
}

func (d *DB) signal() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// fail makes the metadata failed for good, if it is not yet, and returns the
// error that says so.
func (d *DB) fail(cause error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failed == nil {
		d.failed = fmt.Errorf("%w: %w", ErrMetadataFailed, cause)
	}
	return d.failed
}

// Err returns nil, or ErrMetadataFailed with its cause.
func (d *DB) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed
}

// protect runs fn and turns a panic into an error. bbolt panics on pages that
// make no sense, and the runtime does on pages that cannot be read.
func protect(fn func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			if cause, ok := r.(error); ok {
				err = fmt.Errorf("%w: %w", errPanic, cause)
			} else {
				err = fmt.Errorf("%w: %v", errPanic, r)
			}
		}
	}()
	return fn()
}

// errPanic marks what protect caught.
var errPanic = errors.New("unreadable or senseless page")

// LoadMap calls fn for each stored chunk of vol, in order: locs has the
// locations of the extents from first on, zero where unmapped, and is valid
// until fn returns. The chunks are as of some commit each, so that a whole
// picture needs a time without commits. An error of fn ends it and is
// returned.
func (d *DB) LoadMap(vol extent.VolumeID, fn func(first extent.Index, locs []extent.Location) error) error {
	const perRead = 64
	type loaded struct {
		first extent.Index
		locs  chunk
	}
	buf := make([]loaded, perRead)
	for next, more := extent.Index(0), true; more; {
		n := 0
		more = false
		err := d.submit(&request{read: func(tx *bbolt.Tx) error {
			c := tx.Bucket(bucketMap).Cursor()
			for k, v := c.Seek(chunkKey(vol, next)); k != nil; k, v = c.Next() {
				id, first, err := parseChunkKey(k)
				if err != nil {
					return err
				}
				if id != vol {
					break
				}
				if n == len(buf) {
					next, more = first, true
					break
				}
				buf[n].first = first
				if err := buf[n].locs.decode(k, v); err != nil {
					return err
				}
				n++
			}
			return nil
		}})
		if err != nil {
			return fmt.Errorf("load map of volume %d: %w", vol, err)
		}
		for i := range buf[:n] {
			if err := fn(buf[i].first, buf[i].locs[:]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close waits for the requests that are queued, closes the file and ends the
// owner goroutine. It is idempotent. After a failure it leaves bbolt's handle
// alone, because a failed commit may still hold its locks: it gives up the
// lock of the file, keeps the rest until the process ends, and returns
// ErrMetadataFailed with its cause.
func (d *DB) Close() error {
	d.mu.Lock()
	d.closing = true
	d.mu.Unlock()
	d.signal()
	<-d.done
	if d.closeErr != nil {
		return fmt.Errorf("close metadata %s: %w", d.path, d.closeErr)
	}
	return nil
}
