package slowdrive

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"tierd/test/fuseproc"
)

const fsName = "slowdrive"

// fileName is the one file of the file system.
const fileName = "disk"

// Main serves and does not return if the process was started for that.
func Main() { fuseproc.Main(fsName, serve) }

// serve serves a file, with IOPS and bandwidth. There is nothing to ask it for.
func serve(mount string, args []string) (*fuse.Server, func(bool) bool, error) {
	if len(args) != 3 {
		return nil, nil, fmt.Errorf("%d arguments, want 3", len(args))
	}
	f, err := os.OpenFile(args[0], os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	iops, err := strconv.ParseFloat(args[1], 64)
	if err != nil {
		return nil, nil, err
	}
	bandwidth, err := strconv.ParseFloat(args[2], 64)
	if err != nil {
		return nil, nil, err
	}
	d := &disk{file: f, size: st.Size(), iops: iops, bandwidth: bandwidth}
	srv, err := fs.Mount(mount, &root{disk: d}, &fs.Options{MountOptions: fuseproc.Options(fsName)})
	return srv, func(bool) bool { return true }, err
}

// A disk is a file behind a head.
type disk struct {
	file            *os.File
	size            int64
	iops, bandwidth float64

	mu   sync.Mutex
	head int64     // where the last operation ended
	free time.Time // when the last one ends
}

// busy waits for the head and keeps it for an operation of n bytes at off.
func (d *disk) busy(off, n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if d.free.Before(now) {
		d.free = now
	}
	if off != d.head {
		d.free = d.free.Add(time.Duration(1e9 / d.iops))
	}
	d.free = d.free.Add(time.Duration(float64(n) * 1e9 / d.bandwidth))
	d.head = off + n
	time.Sleep(d.free.Sub(now))
}

type root struct {
	fs.Inode
	disk *disk
}

var _ fs.NodeOnAdder = (*root)(nil)

func (r *root) OnAdd(ctx context.Context) {
	r.AddChild(fileName, r.NewPersistentInode(ctx, &node{disk: r.disk}, fs.StableAttr{Mode: syscall.S_IFREG}), false)
}

type node struct {
	fs.Inode
	disk *disk
}

var (
	_ fs.NodeOpener    = (*node)(nil)
	_ fs.NodeGetattrer = (*node)(nil)
	_ fs.NodeReader    = (*node)(nil)
	_ fs.NodeWriter    = (*node)(nil)
	_ fs.NodeFsyncer   = (*node)(nil)
	_ fs.NodeAllocater = (*node)(nil)
)

func (n *node) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (n *node) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size, out.Blksize = 0o600, uint64(n.disk.size), 4096
	return 0
}

func (n *node) Read(_ context.Context, _ fs.FileHandle, p []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	got, err := n.disk.file.ReadAt(p, off)
	if err != nil && err != io.EOF {
		return nil, fs.ToErrno(err)
	}
	n.disk.busy(off, int64(got))
	return fuse.ReadResultData(p[:got]), 0
}

func (n *node) Write(_ context.Context, _ fs.FileHandle, p []byte, off int64) (uint32, syscall.Errno) {
	if off+int64(len(p)) > n.disk.size {
		return 0, syscall.ENOSPC
	}
	n.disk.busy(off, int64(len(p)))
	if _, err := n.disk.file.WriteAt(p, off); err != nil {
		return 0, fs.ToErrno(err)
	}
	return uint32(len(p)), 0
}

// Allocate punches holes and zeroes ranges at the price of a seek, so that the
// kernel need not write zeroes.
func (n *node) Allocate(_ context.Context, _ fs.FileHandle, off, size uint64, mode uint32) syscall.Errno {
	n.disk.busy(int64(off), 0)
	return fs.ToErrno(unix.Fallocate(int(n.disk.file.Fd()), mode, int64(off), int64(size)))
}

// Fsync has nothing to do: a write that was answered is on the medium.
func (n *node) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno { return 0 }
