package slowdrive

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// serveVariable tells the serving process what to serve: mount point, file, IOPS
// and bandwidth, separated by newlines.
const serveVariable = "TIERD_SLOWDRIVE"

// fileName is the one file of the file system.
const fileName = "disk"

// Main serves and does not return if the process was started for that.
func Main() {
	what := os.Getenv(serveVariable)
	if what == "" {
		return
	}
	if err := serve(strings.Split(what, "\n")); err != nil {
		fmt.Fprintln(os.Stderr, "slowdrive:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("%d arguments, want 4", len(args))
	}
	mount := args[0]
	f, err := os.OpenFile(args[1], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	iops, err := strconv.ParseFloat(args[2], 64)
	if err != nil {
		return err
	}
	bandwidth, err := strconv.ParseFloat(args[3], 64)
	if err != nil {
		return err
	}
	d := &disk{file: f, size: st.Size(), iops: iops, bandwidth: bandwidth}
	srv, err := fs.Mount(mount, &root{disk: d}, &fs.Options{MountOptions: fuse.MountOptions{
		FsName: "slowdrive", Name: "slowdrive", DirectMountStrict: true, DisableXAttrs: true, MaxWrite: 1 << 20,
	}})
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	// Whatever happens, the mount must not stay: a path into a dead file system
	// hangs whoever looks at it.
	defer func() { _ = unix.Unmount(mount, unix.MNT_DETACH) }()
	if err := srv.WaitMount(); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until who started it is gone
	return nil
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
