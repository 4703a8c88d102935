package fuseproc

import (
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnavailable says that the file system cannot be had on this machine.
var ErrUnavailable = errors.New("needs root, /dev/fuse and the right to mount")

// endTime is how long a serving process may take to end.
const endTime = time.Minute

// A Process serves a file system. It is safe for concurrent use.
type Process struct {
	Mount string // where the file system is

	cmd *exec.Cmd

	mu      sync.Mutex
	out, in *os.File
	enc     *gob.Encoder
	dec     *gob.Decoder
}

// Start has the file system of that name mounted at an empty folder, and hands args
// and files to its Main. ErrUnavailable says that this machine cannot.
func Start(name, mount string, args []string, files ...*os.File) (*Process, error) {
	p, err := start(name, mount, args, files)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

func start(name, mount string, args []string, files []*os.File) (*Process, error) {
	if os.Geteuid() != 0 {
		return nil, ErrUnavailable
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirIn.Close()
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, ourOut.Close())
	}
	p := &Process{Mount: mount, out: ourOut, in: ourIn, enc: gob.NewEncoder(ourOut), dec: gob.NewDecoder(ourIn)}
	p.cmd = exec.Command(self)
	p.cmd.Env = append(os.Environ(), variable(name)+"="+strings.Join(append([]string{mount}, args...), "\n"))
	p.cmd.ExtraFiles = append([]*os.File{theirIn, theirOut}, files...)
	p.cmd.Stderr = os.Stderr
	// It must see the end of the pipe even if an interrupt goes to the whole group.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = p.cmd.Start()
	theirOut.Close()
	if err != nil {
		return nil, errors.Join(err, ourOut.Close(), ourIn.Close())
	}
	var h hello
	switch err := p.dec.Decode(&h); {
	case err != nil:
		return nil, errors.Join(fmt.Errorf("it does not serve: %w", err), p.Close())
	case h.Forbidden:
		return nil, errors.Join(fmt.Errorf("%w: %s", ErrUnavailable, h.Err), p.Close())
	case h.Err != "":
		return nil, errors.Join(errors.New(h.Err), p.Close())
	}
	return p, nil
}

// Ask sends a request and receives its answer, a pointer.
func (p *Process) Ask(request, answer any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.enc.Encode(request)
	if err == nil {
		err = p.dec.Decode(answer)
	}
	if err != nil {
		return fmt.Errorf("the file system at %s does not answer: %w", p.Mount, err)
	}
	return nil
}

// Kill ends the process at once. What has files of it open gets errors.
func (p *Process) Kill() { _ = p.cmd.Process.Kill() }

// Close unmounts the file system and ends its process, by force if need be. What has
// files of it open gets errors.
func (p *Process) Close() error {
	p.out.Close()
	force := time.AfterFunc(endTime, p.Kill)
	err := p.cmd.Wait()
	if !force.Stop() {
		err = fmt.Errorf("the file system at %s did not end in %s: %w", p.Mount, endTime, err)
	}
	p.in.Close()
	_ = unix.Unmount(p.Mount, unix.MNT_DETACH) // should it have been killed
	return err
}
