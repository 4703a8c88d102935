package stagedlog

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"tierd/tiering/extent"
)

// Log is the open log. It is safe for concurrent use.
type Log struct {
	file   *os.File
	fd     int
	pwrite func(fd int, p []byte, off int64) (int, error) // unix.Pwrite, except in tests

	mu        sync.Mutex
	id        Identity
	instances []entry // of all backings, in order of id
	halves    [2]half
	active    int
	header    header // of the active half
	seed      uint32 // of the active half
	ordinal   uint64 // of the next record
	lastSeq   uint64
	retired   uint64
	commit    uint64
	buf       []byte
	failed    error // wraps ErrFailed
	closed    bool
}

// half is what Append knows of a half.
type half struct {
	block   uint32 // header block of its last use
	used    int64  // bytes, headers included; 0: no records that matter
	lastSeq uint64 // of its last record
}

// Create makes the log file: bytes long at least, its space allocated, full of
// zeroes, and durable. It is ErrExists if there is a file, and an error if the
// file system has no room.
func Create(path string, bytes int64) error {
	if err := create(path, bytes); err != nil {
		return fmt.Errorf("create staged log %s: %w", path, err)
	}
	return nil
}

func create(path string, bytes int64) error {
	bytes = (bytes + 2*blockSize - 1) / (2 * blockSize) * (2 * blockSize)
	if bytes < 2*minHalf || bytes > 2*maxHalf {
		return fmt.Errorf("%w: %d bytes, must be from %d to %d", ErrInvalid, bytes, 2*minHalf, int64(2*maxHalf))
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return ErrExists
	} else if err != nil {
		return err
	}
	defer f.Close()
	if err := fill(f, bytes); err != nil {
		// Half a log is in the way of the next Create.
		return errors.Join(err, os.Remove(path))
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// fill writes zeroes rather than to rely on fallocate alone: a first write into
// an allocated but unwritten block costs the file system a change of its own
// metadata each time.
func fill(f *os.File, bytes int64) error {
	zero := make([]byte, 1<<20)
	for off := int64(0); off < bytes; off += int64(len(zero)) {
		if _, err := f.WriteAt(zero[:min(int64(len(zero)), bytes-off)], off); err != nil {
			return err
		}
	}
	return f.Sync()
}

// Open empties the log at path and begins a new one under id, after commit and
// with records from firstSeq on. What Read would have given is gone: see the
// order in the package documentation.
func Open(path string, id Identity, commit, firstSeq uint64) (*Log, error) {
	l, err := open(path, id, commit, firstSeq)
	if err != nil {
		return nil, fmt.Errorf("open staged log %s: %w", path, err)
	}
	return l, nil
}

func open(path string, id Identity, commit, firstSeq uint64) (*Log, error) {
	if len(id.BootID) > maxBootID {
		return nil, fmt.Errorf("%w: boot id of %d bytes", ErrInvalid, len(id.BootID))
	}
	f, err := openFile(path, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	l := &Log{file: f, fd: int(f.Fd()), pwrite: unix.Pwrite, id: id, commit: commit, ordinal: 1}
	l.id.Instances = nil
	for _, b := range slices.Sorted(maps.Keys(id.Instances)) {
		l.instances = append(l.instances, instanceEntry(b, id.Instances[b]))
	}
	if firstSeq > 0 {
		l.lastSeq = firstSeq - 1
	}
	l.retired = l.lastSeq
	if err := l.begin(firstSeq); err != nil {
		f.Close()
		return nil, err
	}
	return l, nil
}

// begin starts half 0 of a newly opened log.
func (l *Log) begin(firstSeq uint64) error {
	info, err := l.file.Stat()
	if err != nil {
		return err
	}
	l.header.halfSize = info.Size() / 2 / blockSize * blockSize
	if !info.Mode().IsRegular() || l.header.halfSize < minHalf || l.header.halfSize > maxHalf {
		return fmt.Errorf("%w: %d bytes", ErrNotLog, info.Size())
	}
	old, _, err := readHeaders(l.file, info.Size())
	if err != nil {
		return err
	}
	for _, h := range old {
		l.header.epoch = max(l.header.epoch, h.epoch)
		l.halves[h.half].block = h.block
	}
	if int64(len(l.instances)+1)*recordSize > l.header.halfSize-recordsAt {
		return fmt.Errorf("%w: %d bytes are too few for %d backings", ErrNotLog, info.Size(), len(l.instances))
	}
	return l.startHalf(0, firstSeq, nil)
}

// startHalf makes half n the active one: its header, then the instances and
// recs in one write.
func (l *Log) startHalf(n int, firstSeq uint64, recs []Record) error {
	var nonce [8]byte
	rand.Read(nonce[:])
	h := l.header
	h.half, h.block = uint32(n), 1-l.halves[n].block
	h.nonce = binary.LittleEndian.Uint64(nonce[:])
	h.epoch++
	h.poolID, h.incarnation, h.bootID = l.id.PoolID, l.id.Incarnation, l.id.BootID
	h.commit, h.firstSeq, h.firstOrdinal = l.commit, firstSeq, l.ordinal
	if err := l.writeAll(h.encode(), int64(n)*h.halfSize+int64(h.block)*blockSize); err != nil {
		return err
	}
	l.header, l.seed, l.active = h, h.seed(), n
	l.halves[n] = half{block: h.block, used: recordsAt}
	return l.write(l.instances, recs)
}

// room returns the free bytes of the active half.
func (l *Log) room() int64 { return l.header.halfSize - l.halves[l.active].used }

// Append writes recs, in order, in one write, into the page cache. The
// sequences are the caller's, and rise from call to call.
//
// ErrFull: wait for a Retire. ErrInvalid: nothing was written. ErrFailed: the
// log can take no more.
func (l *Log) Append(recs []Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.appendLocked(recs); err != nil {
		return fmt.Errorf("append to staged log: %w", err)
	}
	return nil
}

func (l *Log) appendLocked(recs []Record) error {
	if err := l.usable(); err != nil || len(recs) == 0 {
		return err
	}
	last := l.lastSeq
	for i := range recs {
		if err := recs[i].check(); err != nil {
			return err
		}
		if recs[i].Seq <= last {
			return fmt.Errorf("%w: sequence %d follows %d", ErrInvalid, recs[i].Seq, last)
		}
		last = recs[i].Seq
	}
	if int64(len(recs))*recordSize <= l.room() {
		return l.write(nil, recs)
	}
	// The active half has no room. What is left of it stays unused.
	other := 1 - l.active
	if int64(len(l.instances)+len(recs))*recordSize > l.header.halfSize-recordsAt {
		return fmt.Errorf("%w: %d records at once", ErrInvalid, len(recs))
	}
	if o := l.halves[other]; o.used > 0 && o.lastSeq > l.retired {
		return ErrFull
	}
	return l.startHalf(other, recs[0].Seq, recs)
}

// usable returns why the log takes nothing, if so.
func (l *Log) usable() error {
	if l.closed {
		return ErrClosed
	}
	return l.failed
}

// write puts instances and recs behind what the active half has.
func (l *Log) write(instances []entry, recs []Record) error {
	n := (len(instances) + len(recs)) * recordSize
	if cap(l.buf) < n {
		l.buf = make([]byte, n)
	}
	l.buf = l.buf[:n]
	clear(l.buf)
	h := &l.halves[l.active]
	at, ordinal := 0, l.ordinal
	for _, e := range instances {
		e.ordinal = ordinal
		e.encode(l.buf[at:], l.seed)
		at += recordSize
		ordinal++
	}
	for i := range recs {
		e := entry{Record: recs[i], ordinal: ordinal}
		e.encode(l.buf[at:], l.seed)
		at += recordSize
		ordinal++
	}
	if err := l.writeAll(l.buf, int64(l.active)*l.header.halfSize+h.used); err != nil {
		return err
	}
	h.used += int64(n)
	l.ordinal = ordinal
	if len(recs) > 0 {
		l.lastSeq = recs[len(recs)-1].Seq
		h.lastSeq = l.lastSeq
	}
	return nil
}

// writeAll writes p at off. An error fails the log.
func (l *Log) writeAll(p []byte, off int64) error {
	done := 0
	for done < len(p) {
		n, err := l.pwrite(l.fd, p[done:], off+int64(done))
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = unix.EIO
		}
		if err != nil {
			// A record of which the caller is told that it failed must not be
			// replayed, and some may be there.
			_, _ = l.pwrite(l.fd, make([]byte, len(p)), off)
			l.failed = fmt.Errorf("%w: %w", ErrFailed, err)
			return l.failed
		}
		done += n
	}
	return nil
}

// SetInstance records the instance of a backing that came after Open, before
// any record names it. It is ErrFull like Append.
func (l *Log) SetInstance(b extent.BackingID, instance string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.setInstanceLocked(b, instance); err != nil {
		return fmt.Errorf("record instance in staged log: %w", err)
	}
	return nil
}

func (l *Log) setInstanceLocked(b extent.BackingID, instance string) error {
	if err := l.usable(); err != nil {
		return err
	}
	if b == 0 || b > extent.MaxBackingID {
		return fmt.Errorf("%w: backing %d", ErrInvalid, b)
	}
	e := instanceEntry(b, instance)
	all := slices.DeleteFunc(slices.Clone(l.instances), func(o entry) bool { return o.First == e.First })
	all = append(all, e)
	if int64(len(all)+1)*recordSize > l.header.halfSize-recordsAt {
		return fmt.Errorf("%w: no room for %d backings", ErrInvalid, len(all))
	}
	if l.room() >= recordSize {
		if err := l.write([]entry{e}, nil); err != nil {
			return err
		}
		l.instances = all
		return nil
	}
	other := 1 - l.active
	if o := l.halves[other]; o.used > 0 && o.lastSeq > l.retired {
		return ErrFull
	}
	before := l.instances
	l.instances = all
	if err := l.startHalf(other, l.lastSeq+1, nil); err != nil {
		l.instances = before
		return err
	}
	return nil
}

// Retire says that every record up to seq is committed, the last of them by
// this commit. It makes room when a half is wholly retired.
func (l *Log) Retire(seq, commit uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retired = max(l.retired, seq)
	l.commit = max(l.commit, commit)
	if l.closed {
		return fmt.Errorf("retire staged records: %w", ErrClosed)
	}
	return nil
}

// Fill returns the share of the log that is not to be had for new records: the
// halves that hold a record not yet retired, as far as they are written. At 1/2
// one half is full and a round should run; near 1 Append is about to be ErrFull.
func (l *Log) Fill() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n int64
	for _, h := range l.halves {
		if h.used > 0 && h.lastSeq > l.retired {
			n += h.used - recordsAt
		}
	}
	return float64(n) / float64(2*(l.header.halfSize-recordsAt))
}

// Close closes the file. It is idempotent. The records stay for Read.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("close staged log: %w", err)
	}
	return nil
}
