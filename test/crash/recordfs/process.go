package recordfs

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// mountVariable names the mount point for the serving process.
const mountVariable = "TIERD_RECORDFS_MOUNT"

// Descriptors of the serving process: the shared counter, and the two directions
// of the requests.
const (
	counterFD = 3 + iota
	requestFD
	answerFD
)

// ErrUnavailable says why the file system cannot be had on this machine.
var ErrUnavailable = errors.New("recordfs needs root and /dev/fuse")

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
func Main() {
	mount := os.Getenv(mountVariable)
	if mount == "" {
		return
	}
	if err := serve(mount); err != nil {
		fmt.Fprintln(os.Stderr, "recordfs:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func mapCounter(fd int) (*int64, error) {
	b, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map counter: %w", err)
	}
	return (*int64)(unsafe.Pointer(&b[0])), nil
}

func serve(mount string) error {
	counter, err := mapCounter(counterFD)
	if err != nil {
		return err
	}
	s := newServer(counter)
	srv, err := fuse.NewServer(s, mount, &fuse.MountOptions{
		FsName: "recordfs", Name: "recordfs", DirectMountStrict: true, DisableXAttrs: true, MaxWrite: 1 << 20,
	})
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	go srv.Serve()
	// Whatever happens, the mount must not stay: a path into a dead file system
	// hangs whoever looks at it.
	defer func() { _ = unix.Unmount(mount, unix.MNT_DETACH) }()
	if err := srv.WaitMount(); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	in := gob.NewDecoder(os.NewFile(requestFD, "requests"))
	out := gob.NewEncoder(os.NewFile(answerFD, "answers"))
	if err := out.Encode(answer{}); err != nil {
		return err
	}
	for {
		var r request
		if err := in.Decode(&r); err != nil {
			return nil // who started it is gone
		}
		var a answer
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
		if err := out.Encode(a); err != nil {
			return nil
		}
	}
}

// FS is a mounted recordfs. It is safe for concurrent use.
type FS struct {
	mount   string
	counter *int64
	cmd     *exec.Cmd

	mu  sync.Mutex
	out io.Closer
	in  io.Closer
	enc *gob.Encoder
	dec *gob.Decoder
}

// Start mounts a new file system below folder. ErrUnavailable says that this
// machine cannot.
func Start(folder string) (*FS, error) {
	if os.Geteuid() != 0 {
		return nil, ErrUnavailable
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return nil, ErrUnavailable
	}
	mount, err := os.MkdirTemp(folder, "recordfs-")
	if err != nil {
		return nil, err
	}
	fs, err := start(mount)
	if err != nil {
		_ = os.Remove(mount)
		return nil, fmt.Errorf("start recordfs: %w", err)
	}
	return fs, nil
}

func start(mount string) (*FS, error) {
	fd, err := unix.MemfdCreate("recordfs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	shared := os.NewFile(uintptr(fd), "counter")
	defer shared.Close()
	if err := shared.Truncate(int64(os.Getpagesize())); err != nil {
		return nil, err
	}
	fs := &FS{mount: mount}
	if fs.counter, err = mapCounter(fd); err != nil {
		return nil, err
	}
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, theirIn.Close(), ourOut.Close())
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	fs.cmd = exec.Command(self)
	fs.cmd.Env = append(os.Environ(), mountVariable+"="+mount)
	fs.cmd.ExtraFiles = []*os.File{shared, theirIn, theirOut}
	fs.cmd.Stderr = os.Stderr
	// It must see the end of the pipe even if an interrupt goes to the whole group.
	fs.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = fs.cmd.Start()
	theirIn.Close()
	theirOut.Close()
	fs.out, fs.in = ourOut, ourIn
	fs.enc, fs.dec = gob.NewEncoder(ourOut), gob.NewDecoder(ourIn)
	if err == nil {
		var a answer
		if err = fs.dec.Decode(&a); err == nil {
			return fs, nil
		}
		err = errors.Join(fmt.Errorf("it does not serve: %w", err), fs.wait())
	}
	return nil, errors.Join(err, ourOut.Close(), ourIn.Close())
}

func (fs *FS) wait() error {
	fs.out.Close()
	return fs.cmd.Wait()
}

// Next returns the next sequence number.
func (fs *FS) Next() int64 { return atomic.AddInt64(fs.counter, 1) }

// Path returns the path of a folder.
func (fs *FS) Path(name string) string { return filepath.Join(fs.mount, name) }

func (fs *FS) ask(r request) (*Journal, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	var a answer
	err := fs.enc.Encode(r)
	if err == nil {
		err = fs.dec.Decode(&a)
	}
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
	err := fs.wait()
	fs.in.Close()
	return errors.Join(err, os.Remove(fs.mount))
}
