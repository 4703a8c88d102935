package stagedlog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/google/uuid"

	"tierd/tiering/extent"
)

// Read returns the records of the log at path, in order, if it is the log of
// id; commit is the number of the last commit of the map. It writes nothing.
//
// If the log is void, it returns no records and the reason. ErrMapOlder comes
// with a reason too. ErrGap comes with the records before the gap. A blank
// log gives no records, no reason and no error, if the pool was never opened
// either: later it is a log that was lost. Other errors are
// ErrNotLog, ErrNewerFormat and those of the operating system.
func Read(path string, id Identity, commit uint64) (recs []Record, voidReason string, err error) {
	f, err := openFile(path, os.O_RDONLY)
	if err != nil {
		return nil, "", fmt.Errorf("read staged log: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, "", fmt.Errorf("read staged log: %w", err)
	}
	recs, voidReason, err = read(f, info.Size(), id, commit)
	if err != nil {
		err = fmt.Errorf("read staged log %s: %w", path, err)
	}
	return recs, voidReason, err
}

// openFile opens a log that is a file; fs.ErrNotExist, if there is nothing at all, and
// ErrNotFile for a folder, a pipe, or a link to nowhere.
func openFile(path string, flag int) (*os.File, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, lerr := os.Lstat(path); lerr == nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: ErrNotFile}
		}
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: path, Err: ErrNotFile}
	}
	return os.OpenFile(path, flag, 0)
}

// firstIncarnation is that of a pool just created, whose log has yet to begin.
const firstIncarnation = 1

func read(f io.ReaderAt, size int64, id Identity, commit uint64) (recs []Record, voidReason string, err error) {
	headers, blank, err := readHeaders(f, size)
	if err != nil {
		return nil, "", err
	}
	if len(headers) == 0 {
		if blank && id.Incarnation <= firstIncarnation {
			return nil, "", nil
		}
		return nil, "neither half of the log has a valid header", nil
	}
	newest := headers[len(headers)-1]
	if reason, err := judge(newest, id, commit); reason != "" {
		return nil, reason, err
	}
	run := &run{f: f, size: size, id: id, instances: make(map[extent.BackingID]uint64)}
	err = run.all(headers)
	if reason := run.changedInstance(); reason != "" {
		return nil, reason, nil
	}
	return run.recs, "", err
}

// readHeaders returns the newest valid header of each half that has one, the
// newer of two last, and whether all header blocks are zero.
func readHeaders(f io.ReaderAt, size int64) (list []header, blank bool, err error) {
	halfSize := size / 2 / blockSize * blockSize
	blank = true
	b := make([]byte, blockSize)
	for half := range uint32(2) {
		var best header
		found := false
		for block := range uint32(headerBlocks) {
			if err := readFull(f, b, int64(half)*halfSize+int64(block)*blockSize); err != nil {
				return nil, false, err
			}
			h, ok, err := decodeHeader(b, half, block)
			if err != nil {
				return nil, false, err
			}
			for _, c := range b {
				blank = blank && c == 0
			}
			if ok && (!found || h.epoch > best.epoch) {
				best, found = h, true
			}
		}
		if !found {
			continue
		}
		// A file that lost its tail is still divided as it was.
		if half == 0 {
			halfSize = best.halfSize
		} else if best.halfSize != halfSize {
			continue
		}
		list = append(list, best)
	}
	if len(list) == 2 && list[0].epoch > list[1].epoch {
		list[0], list[1] = list[1], list[0]
	}
	return list, blank, nil
}

// judge says why the log with this header is void, if it is.
func judge(h header, id Identity, commit uint64) (reason string, err error) {
	switch {
	case h.poolID != id.PoolID:
		return fmt.Sprintf("the log is of pool %v", h.poolID), nil
	case h.commit > commit:
		return fmt.Sprintf("the log knows commit %d, the map is of commit %d", h.commit, commit), ErrMapOlder
	case h.incarnation != id.Incarnation:
		return fmt.Sprintf("the log is of incarnation %d, the map names %d", h.incarnation, id.Incarnation), nil
	case h.bootID != id.BootID:
		return fmt.Sprintf("the machine was started again: boot %s then, %s now", h.bootID, id.BootID), nil
	}
	return "", nil
}

// run collects the records of one or two halves.
type run struct {
	f         io.ReaderAt
	size      int64 // of the file
	id        Identity
	recs      []Record
	instances map[extent.BackingID]uint64
	strange   string // first record of a backing without an instance
	next      uint64 // ordinal
	lastSeq   uint64
}

// all reads the newest half, and before it the other one, if the run begins
// there.
func (r *run) all(headers []header) error {
	newest := headers[len(headers)-1]
	if newest.firstOrdinal > 1 {
		if len(headers) < 2 || headers[0].epoch+1 != newest.epoch || headers[0].poolID != newest.poolID || headers[0].incarnation != newest.incarnation {
			return fmt.Errorf("%w: the half before record %d is not there", ErrGap, newest.firstOrdinal)
		}
		if err := r.half(headers[0], newest.firstOrdinal); err != nil {
			return err
		}
	}
	return r.half(newest, 0)
}

// half reads the records of one half: up to ordinal end, or if that is 0 up to
// the last one. It is ErrGap if there are records behind a missing one.
func (r *run) half(h header, end uint64) error {
	seed := h.seed()
	if r.next == 0 {
		r.next = h.firstOrdinal
	}
	// Behind the end of the file there is nothing to look at.
	start := int64(h.half) * h.halfSize
	stop := min(start+h.halfSize, (r.size+recordSize-1)/recordSize*recordSize)
	buf := make([]byte, min(1<<20, h.halfSize-recordsAt))
	ended := false
	for at := start + recordsAt; at < stop; at += int64(len(buf)) {
		buf = buf[:min(int64(cap(buf)), stop-at)]
		if err := readFull(r.f, buf, at); err != nil {
			return err
		}
		for i := 0; i < len(buf); i += recordSize {
			if end != 0 && r.next == end {
				return nil
			}
			var e entry
			ok := e.decode(buf[i:i+recordSize], seed)
			switch {
			case ok && ended:
				return fmt.Errorf("%w: record %d is missing, record %d is there", ErrGap, r.next, e.ordinal)
			case !ok:
				// Torn, or never written. Go on to see if it was the last.
				ended = true
			case e.ordinal != r.next:
				return fmt.Errorf("%w: record %d is in the place of %d", ErrGap, e.ordinal, r.next)
			default:
				if err := r.add(e); err != nil {
					return err
				}
			}
		}
	}
	if end != 0 && r.next != end {
		return fmt.Errorf("%w: records %d to %d are missing", ErrGap, r.next, end-1)
	}
	return nil
}

func (r *run) add(e entry) error {
	r.next++
	if e.Kind == kindInstance {
		r.instances[extent.BackingID(e.First)] = uint64(e.Count)
		return nil
	}
	if err := e.check(); err != nil {
		return fmt.Errorf("%w: record %d: %w", ErrGap, e.ordinal, err)
	}
	if e.Seq <= r.lastSeq {
		return fmt.Errorf("%w: sequence %d follows %d", ErrGap, e.Seq, r.lastSeq)
	}
	r.lastSeq = e.Seq
	if _, known := r.instances[e.To.Backing]; !known && !e.To.IsZero() && r.strange == "" {
		r.strange = fmt.Sprintf("record %d names backing %d, whose instance is not recorded", e.ordinal, e.To.Backing)
	}
	r.recs = append(r.recs, e.Record)
	return nil
}

// changedInstance says which backing is not the one that was written to, or
// returns "".
func (r *run) changedInstance() string {
	for b, now := range r.id.Instances {
		if then, known := r.instances[b]; known && then != instanceHash(now) {
			return fmt.Sprintf("backing %d was attached anew", b)
		}
	}
	return r.strange
}

// readFull fills b from off. What lies behind the end of the file is zero: a
// log that lost its tail is a log that ends there.
func readFull(f io.ReaderAt, b []byte, off int64) error {
	n, err := f.ReadAt(b, off)
	clear(b[n:])
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// LastUsed returns the highest commit number and incarnation that the log at path
// knows of, 0 if there is no log, or none of the pool. What the log says otherwise
// is not looked at.
func LastUsed(path string, pool uuid.UUID) (commit, incarnation uint64, err error) {
	f, err := openFile(path, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read staged log: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, 0, fmt.Errorf("read staged log: %w", err)
	}
	headers, _, err := readHeaders(f, info.Size())
	if errors.Is(err, ErrNotLog) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read staged log %s: %w", path, err)
	}
	for _, h := range headers {
		if h.poolID == pool {
			commit, incarnation = max(commit, h.commit), max(incarnation, h.incarnation)
		}
	}
	return commit, incarnation, nil
}
