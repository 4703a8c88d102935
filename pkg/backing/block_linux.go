package backing

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// retry calls fn until it is not interrupted by a signal.
func retry(fn func() error) error {
	for {
		if err := fn(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// blkRange issues an ioctl that takes a {start, length} pair of bytes.
func blkRange(fd int, req uint, start, length int64) error {
	arg := [2]uint64{uint64(start), uint64(length)}
	return ioctl(fd, req, unsafe.Pointer(&arg))
}

func ioctl(fd int, req uint, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(req), uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// fallocate calls fallocate unless never is set, and sets it when the file
// system cannot do this mode. done reports that the work is done.
func (f *file) fallocate(never *atomic.Bool, mode uint32, off, n int64) (done bool, err error) {
	if never.Load() {
		return false, nil
	}
	err = retry(func() error { return unix.Fallocate(f.fd, mode, off, n) })
	if isUnsupported(err) {
		never.Store(true)
		return false, nil
	}
	return err == nil, err
}

// deviceSize returns the size in bytes of a block device.
func deviceSize(fd int) (int64, error) {
	var size uint64
	if err := ioctl(fd, unix.BLKGETSIZE64, unsafe.Pointer(&size)); err != nil {
		return 0, err
	}
	return int64(size), nil
}

// deviceBlocks returns the logical and physical block size of a device.
func deviceBlocks(fd int) (logical, physical int) {
	logical, physical = 512, 512
	var l int32
	if ioctl(fd, unix.BLKSSZGET, unsafe.Pointer(&l)) == nil && l >= 512 {
		logical, physical = int(l), int(l)
	}
	var p uint32
	if ioctl(fd, unix.BLKPBSZGET, unsafe.Pointer(&p)) == nil && int(p) > logical {
		physical = int(p)
	}
	return logical, physical
}

// directAlign returns the granularity of direct I/O of an open file: of offset
// and length, and of memory. Kernels before 6.1 and some file systems do not
// tell; then it is fallback, which is safe where it is the block size of the
// device, or 4096.
func directAlign(fd, fallback int) (block, mem int) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	if err != nil || st.Mask&unix.STATX_DIOALIGN == 0 || st.Dio_offset_align == 0 {
		return fallback, max(512, fallback)
	}
	return max(512, int(st.Dio_offset_align)), max(8, int(st.Dio_mem_align))
}

// fileInstance names an open file: the file system's device, the inode, and
// its time of birth, because a deleted inode's number is given out again. The
// sequence number of the disk is in it where there is one: a disk that was
// taken away and attached again has lost its page cache.
func fileInstance(fd int) (string, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return "", fmt.Errorf("statx: %w", err)
	}
	name := fmt.Sprintf("file:%d:%d:%d", st.Dev_major, st.Dev_minor, st.Ino)
	if st.Mask&unix.STATX_BTIME != 0 {
		name += fmt.Sprintf(":born%d.%09d", st.Btime.Sec, st.Btime.Nsec)
	}
	if seq := diskSeq(st.Dev_major, st.Dev_minor); seq != "" {
		name += ":seq" + seq
	}
	return name, nil
}

// deviceInstance names an attachment of a device: its number and diskseq,
// which the kernel raises at every attachment (since 5.15).
func deviceInstance(major, minor uint32) string {
	return fmt.Sprintf("dev:%d:%d:seq%s", major, minor, diskSeq(major, minor))
}

// sysBlock is the folder of the block devices in sysfs.
const sysBlock = "/sys/dev/block"

// sysAttr reads an attribute of a disk; for a partition that of its disk,
// whose folder is the one above. It returns "" if there is none.
func sysAttr(major, minor uint32, attr string) string {
	dir, err := filepath.EvalSymlinks(filepath.Join(sysBlock, fmt.Sprintf("%d:%d", major, minor)))
	if err != nil {
		return "" // not a disk: tmpfs, btrfs and network file systems have made-up numbers
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if b, err := os.ReadFile(filepath.Join(d, attr)); err == nil {
			return strings.TrimSpace(string(b))
		}
	}
	return ""
}

func diskSeq(major, minor uint32) string { return sysAttr(major, minor, "diskseq") }

// rotational is what the kernel says of a disk, nil if nothing.
func rotational(major, minor uint32) *bool {
	var r bool
	switch sysAttr(major, minor, "queue/rotational") {
	case "0":
	case "1":
		r = true
	default:
		return nil
	}
	return &r
}
