package faultfs

import (
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Variables that tell the serving process what to do.
const (
	mountVariable  = "TIERD_FAULTFS_MOUNT"
	folderVariable = "TIERD_FAULTFS_FOLDER"
)

// Descriptors of the serving process.
const (
	requestFD = 3 + iota
	answerFD
)

// ErrUnavailable says why the file system cannot be had on this machine.
var ErrUnavailable = errors.New("faultfs needs root and /dev/fuse")

type request struct {
	Set    bool // else: tell the hits
	Faults []Fault
}

type answer struct {
	Hits []int
}

// Main serves and does not return if the process was started for that. A TestMain
// calls it before anything else.
func Main() {
	mount := os.Getenv(mountVariable)
	if mount == "" {
		return
	}
	if err := serve(mount, os.Getenv(folderVariable)); err != nil {
		fmt.Fprintln(os.Stderr, "faultfs:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(mount, folder string) error {
	var st syscall.Stat_t
	if err := syscall.Stat(folder, &st); err != nil {
		return err
	}
	data := &fs.LoopbackRoot{Path: folder, Dev: uint64(st.Dev)}
	root := &node{LoopbackNode: &fs.LoopbackNode{RootData: data}, faults: new(faults)}
	data.RootNode = root
	srv, err := fs.Mount(mount, root, &fs.Options{MountOptions: fuse.MountOptions{
		FsName: "faultfs", Name: "faultfs", DirectMountStrict: true, DisableXAttrs: true, MaxWrite: 1 << 20,
	}})
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	// Whatever happens, the mount must not stay: a path into a dead file system
	// hangs whoever looks at it.
	defer func() {
		root.faults.set(nil)
		_ = unix.Unmount(mount, unix.MNT_DETACH)
	}()
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
		a := answer{Hits: root.faults.hits()}
		if r.Set {
			root.faults.set(r.Faults)
			forget(root, r.Faults)
		}
		if err := out.Encode(a); err != nil {
			return nil
		}
	}
}

// forget empties the page cache of the files whose reads are to fail.
func forget(root *node, list []Fault) {
	for _, f := range list {
		if f.Op&Read == 0 {
			continue
		}
		for name, child := range root.Children() {
			if f.Name == "" || f.Name == name {
				_ = child.NotifyContent(0, 0)
			}
		}
	}
}

// FS is a mounted faultfs. It is safe for concurrent use.
type FS struct {
	mount, folder string
	cmd           *exec.Cmd

	mu      sync.Mutex
	out, in *os.File
	enc     *gob.Encoder
	dec     *gob.Decoder
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
	f := &FS{mount: filepath.Join(folder, "faulty"), folder: filepath.Join(folder, "healthy")}
	for _, dir := range []string{f.mount, f.folder} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
	}
	if err := f.start(); err != nil {
		return nil, fmt.Errorf("start faultfs: %w", err)
	}
	return f, nil
}

func (f *FS) start() error {
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		return err
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		return errors.Join(err, theirIn.Close(), ourOut.Close())
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	f.cmd = exec.Command(self)
	f.cmd.Env = append(os.Environ(), mountVariable+"="+f.mount, folderVariable+"="+f.folder)
	f.cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	f.cmd.Stderr = os.Stderr
	// It must see the end of the pipe even if an interrupt goes to the whole group.
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = f.cmd.Start()
	theirIn.Close()
	theirOut.Close()
	f.out, f.in = ourOut, ourIn
	f.enc, f.dec = gob.NewEncoder(ourOut), gob.NewDecoder(ourIn)
	if err == nil {
		var a answer
		if err = f.dec.Decode(&a); err == nil {
			return nil
		}
		ourOut.Close()
		err = errors.Join(fmt.Errorf("it does not serve: %w", err), f.cmd.Wait())
	}
	return errors.Join(err, ourIn.Close())
}

// Path returns the path of a file as it can fail.
func (f *FS) Path(name string) string { return filepath.Join(f.mount, name) }

// Healthy returns the path of the same file as it cannot.
func (f *FS) Healthy(name string) string { return filepath.Join(f.folder, name) }

func (f *FS) ask(r request) ([]int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var a answer
	err := f.enc.Encode(r)
	if err == nil {
		err = f.dec.Decode(&a)
	}
	if err != nil {
		return nil, fmt.Errorf("faultfs does not answer: %w", err)
	}
	return a.Hits, nil
}

// Set replaces the faults in force; without any, all is well again. Operations that
// a fault delays go on.
func (f *FS) Set(list ...Fault) error {
	_, err := f.ask(request{Set: true, Faults: list})
	return err
}

// Hits returns how often each of the faults in force has struck.
func (f *FS) Hits() ([]int, error) { return f.ask(request{}) }

// Close unmounts the file system and ends its process. What has files of it open
// gets errors.
func (f *FS) Close() error {
	f.out.Close()
	err := f.cmd.Wait()
	f.in.Close()
	return err
}
