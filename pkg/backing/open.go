package backing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Open opens the regular file or block device at o.Path, or makes the file,
// and locks it until Close. Errors: ErrInUse if somebody else holds it, and
// otherwise what the system says, with the path; it changes nothing then, and
// a file that could not be made whole is removed again.
//
// A file is locked by flock, exclusively or, read-only, shared, and in the same way
// by an open file description lock, which is what virtual machines and the like
// use. A loop device takes no lock on the file under it, and is looked for. A
// device is opened with O_EXCL, which keeps out file systems, device-mapper and the
// like; the flock alone is what keeps out our own kind of readers.
func Open(ctx context.Context, o Options) (Device, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("open backing %q: %w", o.Path, err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f, err := openFile(ctx, o)
	if err != nil {
		return nil, err
	}
	if o.Simulate != nil {
		return NewSimulated(f, *o.Simulate, nil), nil
	}
	return f, nil
}

func openFile(ctx context.Context, o Options) (*file, error) {
	fd, isDevice, err := openPath(o)
	if err != nil {
		return nil, err
	}
	f := &file{fd: fd, gate: newGate(cmp.Or(o.MaxBlocked, DefaultMaxBlocked))}
	f.info = Info{Path: o.Path, IsDevice: isDevice, Direct: o.Direct, ReadOnly: o.ReadOnly, Media: o.Media}

	// From here on a failure takes back everything.
	if err := f.prepare(ctx, o); err != nil {
		_ = unix.Close(fd)
		if o.Create {
			_ = os.Remove(o.Path)
		}
		return nil, err
	}
	return f, nil
}

// openPath opens the descriptor and tells file from device. What is neither is
// refused before it is opened: opening a pipe or a tape has effects.
func openPath(o Options) (fd int, isDevice bool, err error) {
	flags := unix.O_RDWR | unix.O_CLOEXEC | unix.O_LARGEFILE | unix.O_NOCTTY
	if o.ReadOnly {
		flags = unix.O_RDONLY | unix.O_CLOEXEC | unix.O_LARGEFILE | unix.O_NOCTTY
	}
	if o.Direct {
		flags |= unix.O_DIRECT
	}
	if o.Create {
		flags |= unix.O_CREAT | unix.O_EXCL
	} else {
		st, err := os.Stat(o.Path)
		if err != nil {
			return -1, false, fmt.Errorf("open backing: %w", err)
		}
		switch st.Mode().Type() {
		case 0:
		case os.ModeDevice:
			isDevice = true
			if !o.ReadOnly {
				flags |= unix.O_EXCL
			}
		default:
			return -1, false, fmt.Errorf("open backing %s: neither a regular file nor a block device", o.Path)
		}
	}

	err = retry(func() (err error) { fd, err = unix.Open(o.Path, flags, 0o600); return err })
	switch {
	case err == nil:
		return fd, isDevice, nil
	case isDevice && err == unix.EBUSY:
		return -1, true, fmt.Errorf("open backing %s: %w (mounted, or opened exclusively by another program)", o.Path, ErrInUse)
	case o.Direct && err == unix.EINVAL:
		if o.Create { // the file was made before O_DIRECT was refused
			_ = os.Remove(o.Path)
		}
		return -1, isDevice, fmt.Errorf("open backing %s: the file system does not support direct I/O: %w", o.Path, err)
	}
	return -1, isDevice, fmt.Errorf("open backing %s: %w", o.Path, err)
}

// prepare locks, sizes and measures an open file.
func (f *file) prepare(ctx context.Context, o Options) error {
	if err := f.lock(ctx); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return fmt.Errorf("stat backing %s: %w", o.Path, err)
	}

	// Between stat and open the path may have come to name something else.
	if isDevice := st.Mode&unix.S_IFMT == unix.S_IFBLK; isDevice != f.info.IsDevice {
		return fmt.Errorf("open backing %s: it was replaced while being opened", o.Path)
	}
	if f.info.IsDevice {
		if err := f.prepareDevice(st.Rdev); err != nil {
			return err
		}
	} else if err := f.prepareFile(o, &st); err != nil {
		return err
	}

	if f.info.Direct {
		fallback := f.info.LogicalBlock
		if !f.info.IsDevice {
			fallback = 4096
		}
		f.block, f.memAlign = directAlign(f.fd, fallback)
		if f.block > bounceSize || f.memAlign > bounceAlign {
			return fmt.Errorf("open backing %s: direct I/O in blocks of %d bytes, aligned to %d in memory, is not supported",
				o.Path, f.block, f.memAlign)
		}
		f.info.LogicalBlock = f.block
		f.info.PhysicalBlock = max(f.block, f.info.PhysicalBlock)
		if f.size%int64(f.block) != 0 {
			return fmt.Errorf("open backing %s: its size of %d bytes is not a multiple of %d, the block of direct I/O",
				o.Path, f.size, f.block)
		}
	}
	if f.size == 0 {
		return fmt.Errorf("open backing %s: it is empty", o.Path)
	}
	if f.size < o.Size {
		return fmt.Errorf("open backing %s: it has %d bytes, fewer than the %d it should have", o.Path, f.size, o.Size)
	}
	if f.info.Media == "" {
		f.info.Media = SSD
		if r := f.info.Rotational; r != nil && *r {
			f.info.Media = HDD
		}
	}
	f.tryMode.Store(f.findTryMode())
	f.info.PageCacheReads = f.tryMode.Load() != tryNever
	return nil
}

// lockPatience is how long Open waits for a lock: programs that look what is
// on a device (udev) hold it for a moment.
const lockPatience = time.Second

func (f *file) lock(ctx context.Context) error {
	how := unix.LOCK_EX
	if f.info.ReadOnly {
		how = unix.LOCK_SH
	}
	deadline := time.Now().Add(lockPatience)
	for {
		err := retry(func() error { return unix.Flock(f.fd, how|unix.LOCK_NB) })
		switch {
		case err == nil:
			return f.lockRange()
		case err != unix.EWOULDBLOCK:
			return fmt.Errorf("lock backing %s: %w", f.info.Path, err)
		case !f.info.IsDevice || time.Now().After(deadline):
			return f.inUse()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// lockRange locks a file as a whole for those who look at locks of ranges alone. A
// file system without such locks has nobody who holds one.
func (f *file) lockRange() error {
	if f.info.IsDevice {
		return nil
	}
	l := unix.Flock_t{Type: unix.F_WRLCK}
	if f.info.ReadOnly {
		l.Type = unix.F_RDLCK
	}
	err := retry(func() error { return unix.FcntlFlock(uintptr(f.fd), unix.F_OFD_SETLK, &l) })
	if err == unix.EAGAIN || err == unix.EACCES {
		return f.inUse()
	}
	return nil
}

// inUse is ErrInUse with the one who uses it, as far as that is known.
func (f *file) inUse() error {
	who := "another process has it open, or this one twice"
	if h := Holder(f.info.Path); h != "" {
		who = "by " + h
	}
	return fmt.Errorf("lock backing %s: %w (%s)", f.info.Path, ErrInUse, who)
}

func (f *file) prepareDevice(rdev uint64) (err error) {
	if f.size, err = deviceSize(f.fd); err != nil {
		return fmt.Errorf("find size of backing %s: %w", f.info.Path, err)
	}
	major, minor := unix.Major(rdev), unix.Minor(rdev)
	f.info.LogicalBlock, f.info.PhysicalBlock = deviceBlocks(f.fd)
	f.info.Rotational = rotational(major, minor)
	f.info.Preallocated = true
	f.instance = deviceInstance(major, minor)
	return nil
}

func (f *file) prepareFile(o Options, st *unix.Stat_t) (err error) {
	if !f.info.ReadOnly && !o.Create {
		if loop := attachedLoop(fileID(st)); loop != "" {
			return fmt.Errorf("open backing %s: %w (%s is attached to it)", o.Path, ErrInUse, loop)
		}
	}
	f.size = st.Size
	f.info.LogicalBlock, f.info.PhysicalBlock = 512, int(st.Blksize)
	f.info.Rotational = rotational(unix.Major(st.Dev), unix.Minor(st.Dev))
	f.keepSpace = o.Preallocate
	if o.Create {
		if err := f.create(o); err != nil {
			return err
		}
	} else if o.Preallocate {
		f.info.Preallocated = f.reserve(st)
	}
	if f.instance, err = fileInstance(f.fd); err != nil {
		return fmt.Errorf("name instance of backing %s: %w", o.Path, err)
	}
	return nil
}

// create gives a new file its size and makes it durable: the inode, and its
// name in the folder. Space is reserved before the size is set, so that a file
// left by a process that died in between is empty: nobody takes it for whole.
func (f *file) create(o Options) error {
	if o.Preallocate {
		err := retry(func() error { return unix.Fallocate(f.fd, unix.FALLOC_FL_KEEP_SIZE, 0, o.Size) })
		switch {
		case isUnsupported(err):
			return fmt.Errorf("preallocate backing %s: the file system cannot: %w", o.Path, err)
		case err != nil:
			return fmt.Errorf("preallocate backing %s, %d bytes: %w", o.Path, o.Size, err)
		}
	}
	if err := retry(func() error { return unix.Ftruncate(f.fd, o.Size) }); err != nil {
		return fmt.Errorf("give backing %s its size of %d bytes: %w", o.Path, o.Size, err)
	}
	f.size = o.Size
	f.info.Preallocated = o.Preallocate
	if err := retry(func() error { return unix.Fsync(f.fd) }); err != nil {
		return fmt.Errorf("sync new backing %s: %w", o.Path, err)
	}
	return SyncFolder(filepath.Dir(o.Path))
}

// reserve fills the holes of an existing file that should have none, say of
// one that was copied, and reports whether the whole of it is reserved now. A
// full file system is no reason not to open: then it reports false.
func (f *file) reserve(st *unix.Stat_t) bool {
	if st.Blocks*512 >= st.Size {
		return true
	}
	if f.info.ReadOnly {
		return false
	}
	err := retry(func() error { return unix.Fallocate(f.fd, unix.FALLOC_FL_KEEP_SIZE, 0, st.Size) })
	return err == nil
}

// SyncFolder makes the names in a folder durable.
func SyncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync folder %s: %w", path, err)
	}
	err = errors.Join(d.Sync(), d.Close())
	if err != nil {
		return fmt.Errorf("sync folder %s: %w", path, err)
	}
	return nil
}

// findTryMode asks the file itself how TryReadAt may read. Direct I/O has no
// page cache: with RWF_NOWAIT it would still wait for the disk.
func (f *file) findTryMode() int32 {
	if f.info.Direct {
		return tryNever
	}
	if !f.info.IsDevice {
		var fs unix.Statfs_t
		if unix.Fstatfs(f.fd, &fs) == nil && fs.Type == unix.TMPFS_MAGIC {
			return tryPlain
		}
	}
	var b [1]byte
	if _, errno := preadNoWait(f.fd, b[:], 0); errno == unix.EOPNOTSUPP || errno == unix.ENOSYS {
		return tryNever
	}
	return tryNoWait
}
