package extentmap

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"tierd/tiering/extent"
)

// boltOptions are common to Create and Open.
//
// The list of free pages is the hash map, which does not slow down when a
// deleted volume leaves many of them. It is synced: without that, bbolt finds
// the free pages at open by walking all pages in a goroutine of its own, where
// an unreadable one would end the process and nothing could catch it.
func boltOptions(o Options) *bbolt.Options {
	return &bbolt.Options{
		Timeout:      o.LockTimeout,
		FreelistType: bbolt.FreelistMapType,
		ReadOnly:     o.ReadOnly,
		NoStatistics: true,
	}
}

// openBolt opens the file and loads the records. Owner goroutine.
func (d *DB) openBolt() (err error) {
	bo := boltOptions(d.opts)
	bo.OpenFile = func(name string, flag int, mode os.FileMode) (*os.File, error) {
		// bbolt would make a missing file, and initialise an empty one.
		f, err := d.opts.OpenFile(name, flag&^os.O_CREATE, mode)
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err == nil && (!info.Mode().IsRegular() || info.Size() == 0) {
			err = ErrNotBolt
		}
		if err == nil && !d.opts.ReadOnly {
			err = syncCached(f)
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		d.file = f
		return f, nil
	}
	opened := false
	err = protect(func() error {
		var err error
		d.bolt, err = bbolt.Open(d.path, fileMode, bo)
		if err != nil {
			return err
		}
		opened = true
		if err := d.checkLength(); err != nil {
			return err
		}
		if err := d.checkTree(); err != nil {
			return err
		}
		return d.bolt.View(d.records.load)
	})
	if err == nil {
		err = d.records.pool.checkFormat(d.opts.ReadOnly)
	}
	if err != nil {
		if errors.Is(err, errPanic) {
			// Locks may be held: the handle is lost. Its file lock need not be.
			d.unlock()
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if opened {
			d.bolt.Close()
		}
		return classify(err)
	}
	if !d.opts.ReadOnly {
		d.reserve(d.used())
	}
	return nil
}

// syncCached makes durable what a process before left in the page cache, and lets
// go of the cache. Without the first, a root that a killed process wrote and did
// not sync would be built upon, and be gone after a power cut. Without the second,
// so would one whose sync failed: its pages count as written and are not on disk.
func syncCached(f *os.File) error {
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync what was written before: %w", err)
	}
	// Best effort: some file systems have nothing but the cache.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	return nil
}

// classify gives the errors of opening their class.
func classify(err error) error {
	var e error
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e = ErrNotExist
	case errors.Is(err, berrors.ErrTimeout):
		return ErrLocked
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrVersionMismatch):
		return ErrNotBolt
	case errors.Is(err, berrors.ErrChecksum):
		e = ErrCorrupt
	default:
		return err
	}
	return fmt.Errorf("%w: %w", e, err)
}

// used returns how many bytes of the file bbolt has ever used.
func (d *DB) used() (n int64) {
	// The error would be that of a closed database.
	_ = d.bolt.View(func(tx *bbolt.Tx) error {
		n = tx.Size()
		return nil
	})
	return n
}

// checkLength refuses a file that was cut short: reading on would fault.
func (d *DB) checkLength() error {
	info, err := d.file.Stat()
	if err != nil {
		return err
	}
	if used := d.used(); info.Size() < used {
		return fmt.Errorf("%w: it has %d of %d bytes", ErrCorrupt, info.Size(), used)
	}
	return nil
}

// checkTree refuses a file with a damaged page. bbolt takes one of zeroes, which
// is how file systems lose blocks, for an empty part of the tree: its extents would
// read as never written, and their slots be zeroed. It costs one more reading of
// a file that is about to be read as a whole.
func (d *DB) checkTree() error {
	info, err := d.file.Stat()
	if err != nil {
		return err
	}
	first := ""
	problems := checkPages(d.file, info.Size(), func(format string, args ...any) bool {
		if first == "" {
			first = fmt.Sprintf(format, args...)
		}
		return true
	})
	if problems > 0 {
		return fmt.Errorf("%w: %s (of %d problems, see pool check)", ErrCorrupt, first, problems)
	}
	return nil
}

// reserve allocates file space for the used bytes and the slack, so that a
// full file system does not fail commits of ordinary size. bbolt itself only
// lengthens the file, which allocates nothing. It is a best effort: the space
// that cannot be had today is asked for again when more is used.
func (d *DB) reserve(used int64) {
	if d.opts.Slack < 0 || used+d.opts.Slack/2 <= d.reserved {
		return
	}
	want := used + d.opts.Slack
	if fallocate(d.file, want) == nil {
		d.reserved = want
	}
}

// fallocate allocates the first n bytes of f, without changing its length.
func fallocate(f *os.File, n int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, n)
		if err != unix.EINTR {
			return err
		}
	}
}

// closeBolt ends the use of the file. Owner goroutine.
func (d *DB) closeBolt() {
	if err := d.Err(); err != nil {
		d.closeErr = err
		d.unlock()
		return
	}
	if err := protect(d.bolt.Close); err != nil {
		d.closeErr = err
	}
}

// unlock gives up the lock of the file without touching bbolt's handle, so
// that the next process need not wait for the end of this one.
func (d *DB) unlock() {
	if d.file != nil {
		_ = unix.Flock(int(d.file.Fd()), unix.LOCK_UN)
	}
}

// Create makes the metadata file at path, holding init and an empty map. It is
// durable when Create returns nil, and either whole or absent after a cut.
//
// If there is a file already it is left alone: the error is ErrExists, and
// Open tells whose it is. Another Create of the same path at the same time is
// ErrLocked.
func Create(path string, init State) error {
	if err := create(path, init, nil, ""); err != nil {
		return fmt.Errorf("create metadata %s: %w", path, err)
	}
	return nil
}

// Build is Create with a map. fill calls put for every mapping, in ascending order
// of keys; put's error ends it. With keep, a file that is there already is replaced
// by the whole new one, in one step, and stays under that name, which must not be
// taken; ErrLocked if it is in use. The commit number is that of init.
func Build(path string, init State, keep string, fill func(put func(MapChange) error) error) error {
	if err := create(path, init, fill, keep); err != nil {
		return fmt.Errorf("build metadata %s: %w", path, err)
	}
	return nil
}

func create(path string, init State, fill func(put func(MapChange) error) error, keep string) error {
	var old *os.File
	switch _, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case keep == "":
		return ErrExists
	default:
		if old, err = lockOld(path); err != nil {
			return err
		}
		defer old.Close()
	}
	p, err := prepareState(init)
	if err != nil {
		return err
	}

	// 1. Take the temporary name. What an earlier try left there is reused.
	tmp := path + ".new"
	f, err := os.OpenFile(tmp, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := lockTemporary(f, tmp); err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(fileMode), f.Truncate(0)); err != nil {
		return err
	}

	// 2. Fill it. bbolt gets a descriptor that shares our lock. Nothing needs to be
	// durable before the whole is.
	bo := boltOptions(Options{LockTimeout: defaultLockTimeout})
	bo.OpenFile = func(string, int, os.FileMode) (*os.File, error) { return f, nil }
	bo.NoSync = true
	b, err := bbolt.Open(tmp, fileMode, bo)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := b.Update(p.writeAll); err != nil {
		return err
	}
	if fill != nil {
		if err := fillMap(b, fill); err != nil {
			return err
		}
	}
	// The error says no more than that the file system cannot do it.
	if info, err := f.Stat(); err == nil {
		_ = fallocate(f, info.Size()+defaultSlack)
	}
	if err := f.Sync(); err != nil {
		return err
	}

	// 3. Give it its name, unless somebody else has taken that.
	if old != nil {
		err = replace(tmp, path, keep)
	} else {
		err = renameNew(tmp, path)
	}
	if errors.Is(err, fs.ErrExist) {
		return errors.Join(ErrExists, os.Remove(tmp))
	} else if err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// renameNew renames a file, unless the new name is taken.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if err == unix.EINVAL || err == unix.ENOSYS {
		if err = os.Link(from, to); err == nil {
			err = os.Remove(from)
		}
	}
	return err
}

// replace puts a file in the place of another, which gets a second name first, so
// that at every moment there is one at the place, and the old one is not lost.
func replace(from, to, keep string) error {
	if err := os.Link(to, keep); err != nil {
		return err
	}
	return os.Rename(from, to)
}

// lockOld locks the file that is to be replaced: nobody may be using it.
func lockOld(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if err == unix.EWOULDBLOCK {
			return nil, ErrLocked
		}
		return nil, err
	}
	return f, nil
}

// fillChunks is how many pieces of the map Build puts into one transaction.
const fillChunks = 2048

// fillMap writes a map in order, in transactions of bounded size.
func fillMap(b *bbolt.DB, fill func(put func(MapChange) error) error) error {
	var (
		c     chunk
		key   []byte // of c; nil: none yet
		ready []keyValue
		last  extent.Key
	)
	flush := func() error {
		err := b.Update(func(tx *bbolt.Tx) error {
			bucket := tx.Bucket(bucketMap)
			bucket.FillPercent = 0.9 // keys come in order
			for _, kv := range ready {
				if err := bucket.Put(kv.key, kv.value); err != nil {
					return err
				}
			}
			return nil
		})
		ready = ready[:0]
		return err
	}
	endChunk := func() error {
		if v := c.encode(key); v != nil {
			ready = append(ready, keyValue{key, v})
		}
		c = chunk{}
		if len(ready) < fillChunks {
			return nil
		}
		return flush()
	}
	err := fill(func(m MapChange) error {
		if err := m.check(); err != nil {
			return err
		}
		if key != nil && (m.Key.Volume < last.Volume || m.Key.Volume == last.Volume && m.Key.Index <= last.Index) {
			return fmt.Errorf("%w: %v behind %v", ErrInvalidChange, m.Key, last)
		}
		if k := chunkKey(m.Key.Volume, m.Key.Index); !bytes.Equal(k, key) {
			if key != nil {
				if err := endChunk(); err != nil {
					return err
				}
			}
			key = k
		}
		last = m.Key
		c[m.Key.Index%ChunkEntries] = m.To
		return nil
	})
	if err != nil || key == nil {
		return err
	}
	if err := endChunk(); err != nil {
		return err
	}
	return flush()
}

type keyValue struct{ key, value []byte }

// lockTemporary locks f and makes sure that it still is the file called name:
// whoever held the lock before may have given the file its final name.
func lockTemporary(f *os.File, name string) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == unix.EWOULDBLOCK {
		return ErrLocked
	} else if err != nil {
		return err
	}
	ours, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Lstat(name)
	if err != nil || !os.SameFile(ours, there) {
		return ErrLocked
	}
	return nil
}

// syncFolder makes the names in the folder durable, which bbolt does not.
func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
