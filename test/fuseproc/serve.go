package fuseproc

import (
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Descriptors of the serving process. Those that Start was given follow.
const (
	requestFD = 3 + iota
	answerFD
	FirstFile
)

// hello is the first answer.
type hello struct {
	Err       string
	Forbidden bool // mounting is
}

// Main serves and does not return if the process was started for the file system of
// that name. A TestMain calls it before anything else. mount mounts it at a folder.
func Main[Request, Answer any](name string, mount func(at string, args []string) (*fuse.Server, func(Request) Answer, error)) {
	line := os.Getenv(variable(name))
	if line == "" {
		return
	}
	args := strings.Split(line, "\n")
	if err := serve(args[0], args[1:], mount); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func variable(name string) string { return "TIERD_FUSE_" + strings.ToUpper(name) }

// Options are the options of every mount.
func Options(name string) fuse.MountOptions {
	return fuse.MountOptions{FsName: name, Name: name, DirectMountStrict: true, DisableXAttrs: true, MaxWrite: 1 << 20}
}

func serve[Request, Answer any](at string, args []string, mount func(string, []string) (*fuse.Server, func(Request) Answer, error)) error {
	in := gob.NewDecoder(os.NewFile(requestFD, "requests"))
	out := gob.NewEncoder(os.NewFile(answerFD, "answers"))
	srv, answer, err := mount(at, args)
	if err == nil {
		defer func() { _ = unix.Unmount(at, unix.MNT_DETACH) }()
		err = srv.WaitMount()
	}
	if err != nil {
		err = fmt.Errorf("mount: %w", err)
		return out.Encode(hello{err.Error(), forbidden(err)})
	}
	if err := out.Encode(hello{}); err != nil {
		return err
	}
	for {
		var r Request
		if err := in.Decode(&r); err != nil {
			return nil // who started it is gone, or has closed it
		}
		if err := out.Encode(answer(r)); err != nil {
			return nil
		}
	}
}

// forbidden reports whether err says that this machine lets nobody do that, as is
// usual in containers, whatever their root may do else.
func forbidden(err error) bool {
	for _, no := range []syscall.Errno{syscall.EPERM, syscall.EACCES, syscall.ENODEV, syscall.ENXIO, syscall.ENOSYS} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}
