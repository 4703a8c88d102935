package extentmap

import (
	"fmt"
	"io"
	"math"
	"os"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"tierd/tiering/extent"
)

// maxProblems bounds the list of CheckPages: damage tends to repeat itself.
const maxProblems = 1000

// PageReport is what CheckPages found.
type PageReport struct {
	// Problems say what is wrong, one line each. A file with any must not be
	// opened for writing: Open refuses it.
	Problems []string
	// Roots is how many of the two roots of the file are valid. With one, the file
	// is as it was before the commit that was being written, or damaged where that
	// commit wrote its root.
	Roots int
}

// CheckPages reads the whole file at path and returns what is wrong with its pages:
// what cannot be read, does not form a tree, is used twice, or neither used nor
// free. It reads the file as such, not through a memory mapping, so that no damage
// can end the process. Nothing is written. The error says that there was nothing to
// check, and is one of Open's. Memory: one bit a page.
func CheckPages(path string) (r PageReport, err error) {
	fail := func(err error) (PageReport, error) {
		return PageReport{}, fmt.Errorf("check metadata %s: %w", path, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return fail(classify(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fail(err)
	}
	if !info.Mode().IsRegular() {
		return fail(ErrNotBolt)
	}
	// A daemon that writes meanwhile would look like damage.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == unix.EWOULDBLOCK {
		return fail(ErrLocked)
	} else if err != nil {
		return fail(err)
	}
	report := func(format string, args ...any) bool {
		if len(r.Problems) < maxProblems {
			r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
		}
		return len(r.Problems) < maxProblems
	}
	if n, err := io.Copy(io.Discard, f); err != nil {
		report("read at byte %d: %v", n, err)
		return r, nil
	}
	_, r.Roots = newestMeta(f)
	checkPages(f, info.Size(), report)
	return r, nil
}

// ScanMap calls fn for each stored piece of the map, in order of volumes and
// extents, those of volumes that have no record included. A piece that does not
// decode comes as an error, without locations. locs is valid until fn returns; an
// error of fn ends the scan and is returned. Like LoadMap it wants a time without
// commits.
func (d *DB) ScanMap(fn func(vol extent.VolumeID, first extent.Index, locs []extent.Location, bad error) error) error {
	const perRead = 64
	type loaded struct {
		vol   extent.VolumeID
		first extent.Index
		locs  chunk
		bad   error
	}
	buf := make([]loaded, perRead)
	var next []byte
	for more := true; more; {
		n := 0
		more = false
		err := d.submit(&request{read: func(tx *bbolt.Tx) error {
			c := tx.Bucket(bucketMap).Cursor()
			for k, v := c.Seek(next); k != nil; k, v = c.Next() {
				if n == len(buf) {
					next, more = append([]byte(nil), k...), true
					break
				}
				l := &buf[n]
				if l.vol, l.first, l.bad = parseChunkKey(k); l.bad == nil {
					l.bad = l.locs.decode(k, v)
				}
				n++
			}
			return nil
		}})
		if err != nil {
			return fmt.Errorf("scan map: %w", err)
		}
		for i := range buf[:n] {
			l := &buf[i]
			locs := l.locs[:]
			if l.bad != nil {
				locs = nil
			}
			if err := fn(l.vol, l.first, locs, l.bad); err != nil {
				return err
			}
		}
	}
	return nil
}

// MapVolumes returns the volumes that the map has extents of, in order.
func (d *DB) MapVolumes() (list []extent.VolumeID, err error) {
	err = d.submit(&request{read: func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketMap).Cursor()
		for k, _ := c.First(); k != nil; {
			id, _, err := parseChunkKey(k)
			if err != nil {
				return err
			}
			list = append(list, id)
			if id == math.MaxUint32 {
				return nil
			}
			k, _ = c.Seek(chunkKey(id+1, 0))
		}
		return nil
	}})
	if err != nil {
		return nil, fmt.Errorf("list volumes of the map: %w", err)
	}
	return list, nil
}
