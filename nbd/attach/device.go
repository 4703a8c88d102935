package attach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ReadDevice reads the first block of a device from the server, past the page cache. It
// cannot be interrupted while the server is away, nor can the process that calls it end.
func ReadDevice(device string) error {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	const block = 4096
	buf := make([]byte, 2*block)
	skip := int(-uintptr(unsafe.Pointer(&buf[0])) & (block - 1))
	_, err = f.ReadAt(buf[skip:skip+block], 0)
	return err
}

// Users returns what keeps a device in use: where it or a partition of it is mounted, by
// whatever process, what is stacked on it, swap. procRoot and sysBlock are /proc and
// /sys/block.
func Users(procRoot, sysBlock, device string) ([]string, error) {
	name := filepath.Base(device)
	uses := make(map[string]bool)
	parts := make(map[string]bool) // by name, and by number
	dirs, err := filepath.Glob(filepath.Join(sysBlock, name, name+"p*"))
	if err != nil {
		return nil, err
	}
	for _, d := range append(dirs, filepath.Join(sysBlock, name)) {
		parts["/dev/"+filepath.Base(d)] = true
		if number, err := os.ReadFile(filepath.Join(d, "dev")); err == nil {
			parts[strings.TrimSpace(string(number))] = true
		}
		holders, err := os.ReadDir(filepath.Join(d, "holders"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, h := range holders {
			uses["used by /dev/"+h.Name()] = true
		}
	}
	// Those of other mount namespaces too. Processes may end meanwhile.
	tables, err := filepath.Glob(filepath.Join(procRoot, "[0-9]*", "mountinfo"))
	if err != nil {
		return nil, err
	}
	for _, table := range tables {
		b, _ := os.ReadFile(table)
		for line := range strings.Lines(string(b)) {
			before, after, _ := strings.Cut(line, " - ")
			f, what := strings.Fields(before), strings.Fields(after)
			if len(f) > 4 && (parts[f[2]] || len(what) > 1 && parts[what[1]]) {
				uses["mounted at "+f[4]] = true
			}
		}
	}
	swaps, err := os.ReadFile(filepath.Join(procRoot, "swaps"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(swaps)) {
		if f := strings.Fields(line); len(f) > 0 && parts[f[0]] {
			uses["used for swap"] = true
		}
	}
	users := slices.Sorted(maps.Keys(uses))
	for i, u := range users {
		users[i] = fmt.Sprintf("%s is %s", device, u)
	}
	return users, nil
}

// connected reports whether the device is set up. One that somebody has open, and that is
// not, is waited for.
func (a *attachment) connected(ctx context.Context) (bool, error) {
	for deadline := a.o.Clock.Now().Add(showTime); ; {
		on, err := a.k.Connected(a.index)
		if err != nil || !on || a.sys("pid") != "" {
			return on, err
		}
		if a.o.Clock.Now().After(deadline) {
			return false, fmt.Errorf("%s is not attached, but somebody has it open", a.o.Device)
		}
		select {
		case <-a.o.Clock.After(20 * time.Millisecond):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// awaitDevice returns when the device shows that it is set up. Before, udev hides it.
func (a *attachment) awaitDevice(ctx context.Context) error {
	pid := filepath.Join(a.o.SysBlock, filepath.Base(a.o.Device), "pid")
	for deadline := a.o.Clock.Now().Add(showTime); ; {
		if _, err := os.Stat(pid); err == nil {
			return nil
		}
		if a.o.Clock.Now().After(deadline) {
			return fmt.Errorf("%s does not show up: there is no %s", a.o.Device, pid)
		}
		select {
		case <-a.o.Clock.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sys returns what the kernel tells of the device in a file; "": nothing.
func (a *attachment) sys(name string) string {
	b, err := os.ReadFile(filepath.Join(a.o.SysBlock, filepath.Base(a.o.Device), name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// isOf reports whether the device is, as far as the kernel tells, still the one that was
// set up as s, and not by another program since: that would be given the sockets too.
func (a *attachment) isOf(s State) bool {
	backend := a.sys("backend") // since Linux 5.14
	return backend == s.backend(a.o.URI) || backend == "" && !s.Named
}

// gone reports whether the device was disconnected, or was and is another's by now.
func (a *attachment) gone() bool {
	on, err := a.k.Connected(a.index)
	return err == nil && (!on || !a.isOf(a.state))
}

// prove returns when the device has answered a read: then the kernel uses the new
// sockets. A read that waits for earlier sockets proves it for those that come. If these
// die meanwhile there is nothing to prove. An error is an answer too: it is the server's,
// as of a block on a backing that failed.
func (a *attachment) prove(ctx context.Context) error {
	select {
	case <-a.proving: // it may be of the sockets before these
		a.proving = nil
	default:
	}
	if a.proving == nil {
		done := make(chan error, 1)
		a.proving = done
		go func() { done <- a.o.Prove(a.o.Device) }()
	}
	timeout := a.o.Clock.After(proveTime)
	for {
		select {
		case err := <-a.proving:
			a.proving = nil
			if errors.Is(err, ErrNoProof) {
				a.log.Warn("the kernel has the new sockets, but not to know whether it uses them", "error", err)
				return nil
			}
			if err != nil && a.anyDead() {
				return errServerGone
			}
			if err != nil {
				a.log.Warn("the device answers with an error", "error", err)
			}
			return nil
		case <-a.o.Clock.After(lookEvery):
			if a.anyDead() {
				return errServerGone
			}
		case <-timeout:
			return errors.New("the device does not answer; the kernel may not have taken the new sockets")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
