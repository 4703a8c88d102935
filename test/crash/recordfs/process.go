package recordfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"tierd/test/fuseproc"
)

const fsName = "recordfs"

type request struct {
	Op      string // load, drop, journal
	Name    string
	Journal *Journal
}

type answer struct {
	Err     string
	Journal *Journal
}

// Main serves and does not return if the process was started for that. A TestMain
// calls it before anything else.
func Main() { fuseproc.Main(fsName, serve) }

func mapCounter(fd int) (*int64, error) {
	b, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map counter: %w", err)
	}
	return (*int64)(unsafe.Pointer(&b[0])), nil
}

func serve(mount string, _ []string) (*fuse.Server, func(request) answer, error) {
	counter, err := mapCounter(fuseproc.FirstFile)
	if err != nil {
		return nil, nil, err
	}
	s := newServer(counter)
	o := fuseproc.Options(fsName)
	srv, err := fuse.NewServer(s, mount, &o)
	if err != nil {
		return nil, nil, err
	}
	go srv.Serve()
	return srv, s.answer, nil
}

func (s *server) answer(r request) (a answer) {
	switch r.Op {
	case "load":
		s.load(r.Name, r.Journal)
	case "drop":
		s.mu.Lock()
		s.dropLocked(r.Name)
		s.mu.Unlock()
	case "journal":
		if a.Journal = s.journal(r.Name); a.Journal == nil {
			a.Err = "no folder " + r.Name
		}
	}
	return a
}

// FS is a mounted recordfs. It is safe for concurrent use.
type FS struct {
	counter *int64
	proc    *fuseproc.Process
}

// Start mounts a new file system below folder. fuseproc.ErrUnavailable says that this
// machine cannot.
func Start(folder string) (*FS, error) {
	fd, err := unix.MemfdCreate("recordfs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	shared := os.NewFile(uintptr(fd), "counter")
	defer shared.Close()
	if err := shared.Truncate(int64(os.Getpagesize())); err != nil {
		return nil, err
	}
	fs := new(FS)
	if fs.counter, err = mapCounter(fd); err != nil {
		return nil, err
	}
	mount, err := os.MkdirTemp(folder, "recordfs-")
	if err != nil {
		return nil, err
	}
	if fs.proc, err = fuseproc.Start(fsName, mount, nil, shared); err != nil {
		return nil, errors.Join(err, os.Remove(mount))
	}
	return fs, nil
}

// Next returns the next sequence number.
func (fs *FS) Next() int64 { return atomic.AddInt64(fs.counter, 1) }

// Path returns the path of a folder.
func (fs *FS) Path(name string) string { return filepath.Join(fs.proc.Mount, name) }

func (fs *FS) ask(r request) (*Journal, error) {
	var a answer
	err := fs.proc.Ask(r, &a)
	if err == nil && a.Err != "" {
		err = errors.New(a.Err)
	}
	if err != nil {
		return nil, fmt.Errorf("recordfs: %s %s: %w", r.Op, r.Name, err)
	}
	return a.Journal, nil
}

// Load makes a folder, or makes it anew, with what a Journal leaves. Its journal
// begins with that one.
func (fs *FS) Load(name string, j *Journal) error {
	_, err := fs.ask(request{Op: "load", Name: name, Journal: j})
	return err
}

// Drop removes a folder. What has a file of it open gets errors.
func (fs *FS) Drop(name string) error {
	_, err := fs.ask(request{Op: "drop", Name: name})
	return err
}

// Journal returns what happened to a folder.
func (fs *FS) Journal(name string) (*Journal, error) {
	return fs.ask(request{Op: "journal", Name: name})
}

// Close unmounts the file system and ends its process.
func (fs *FS) Close() error {
	err := fs.proc.Close()
	return errors.Join(err, os.Remove(fs.proc.Mount))
}
