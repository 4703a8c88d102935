package faultfs

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// node is a file or a folder.
type node struct {
	*fs.LoopbackNode
	faults *faults
}

var (
	_ fs.NodeWrapChilder = (*node)(nil)
	_ fs.NodeReader      = (*node)(nil)
	_ fs.NodeWriter      = (*node)(nil)
	_ fs.NodeFsyncer     = (*node)(nil)
	_ fs.NodeAllocater   = (*node)(nil)
	_ fs.NodeLseeker     = (*node)(nil)
)

// WrapChild implements fs.NodeWrapChilder.
func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	return &node{LoopbackNode: ops.(*fs.LoopbackNode), faults: n.faults}
}

// handle is an open file. It hides the descriptor from go-fuse, which would have the
// kernel read and write past us.
type handle struct{ file *fs.LoopbackFile }

// Release implements fs.FileReleaser.
func (h *handle) Release(ctx context.Context) syscall.Errno { return h.file.Release(ctx) }

func hide(f fs.FileHandle, errno syscall.Errno) (fs.FileHandle, syscall.Errno) {
	if file, ok := f.(*fs.LoopbackFile); ok && errno == 0 {
		return &handle{file}, 0
	}
	return f, errno
}

func (n *node) name() string {
	name, _ := n.Parent()
	return name
}

// strike returns the fault that an operation on an open file meets.
func (n *node) strike(ctx context.Context, op Op, f fs.FileHandle, off, length int64) *Fault {
	fd := -1
	if h, ok := f.(*handle); ok {
		fd, _ = h.file.PassthroughFd()
	}
	return n.faults.strike(ctx, op, n.name(), fd, off, length)
}

// Open implements fs.NodeOpener.
func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if m := n.strike(ctx, Open, nil, 0, 0); m != nil && m.Errno != 0 {
		return nil, 0, m.Errno
	}
	f, fuseFlags, errno := n.LoopbackNode.Open(ctx, flags)
	f, errno = hide(f, errno)
	return f, fuseFlags, errno
}

// Create implements fs.NodeCreater.
func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	inode, f, fuseFlags, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	f, errno = hide(f, errno)
	return inode, f, fuseFlags, errno
}

// Read implements fs.NodeReader.
func (n *node) Read(ctx context.Context, f fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if m := n.strike(ctx, Read, f, off, int64(len(dest))); m != nil && m.Errno != 0 {
		return nil, m.Errno
	}
	return f.(*handle).file.Read(ctx, dest, off)
}

// Write implements fs.NodeWriter.
func (n *node) Write(ctx context.Context, f fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	m := n.strike(ctx, Write, f, off, int64(len(data)))
	if m == nil {
		return f.(*handle).file.Write(ctx, data, off)
	}
	switch {
	case m.Short > 0:
		written, errno := f.(*handle).file.Write(ctx, data[:min(m.Short, len(data))], off)
		if m.Errno != 0 {
			errno = m.Errno
		}
		return written, errno
	case m.Errno != 0:
		return 0, m.Errno
	}
	return f.(*handle).file.Write(ctx, data, off)
}

// Fsync implements fs.NodeFsyncer.
func (n *node) Fsync(ctx context.Context, f fs.FileHandle, flags uint32) syscall.Errno {
	if m := n.strike(ctx, Sync, f, 0, 0); m != nil && m.Errno != 0 {
		return m.Errno
	}
	if h, ok := f.(*handle); ok {
		return h.file.Fsync(ctx, flags)
	}
	return 0 // a folder
}

// Allocate implements fs.NodeAllocater.
func (n *node) Allocate(ctx context.Context, f fs.FileHandle, off, size uint64, mode uint32) syscall.Errno {
	if m := n.strike(ctx, Allocate, f, int64(off), int64(size)); m != nil && m.Errno != 0 {
		return m.Errno
	}
	return f.(*handle).file.Allocate(ctx, off, size, mode)
}

// Lseek implements fs.NodeLseeker.
func (n *node) Lseek(ctx context.Context, f fs.FileHandle, off uint64, whence uint32) (uint64, syscall.Errno) {
	if m := n.strike(ctx, Seek, f, int64(off), 1); m != nil && m.Errno != 0 {
		return 0, m.Errno
	}
	return f.(*handle).file.Lseek(ctx, off, whence)
}
