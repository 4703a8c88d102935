package slowdrive

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrUnavailable says why a drive cannot be had on this machine.
var ErrUnavailable = errors.New("a slow drive needs root, /dev/fuse and loop devices")

// Options describe a drive.
type Options struct {
	Size      int64   // bytes
	IOPS      float64 // operations a second that do not go on where the one before ended
	Bandwidth float64 // bytes a second
	// MaxDirty bounds, in bytes, what the kernel keeps unwritten for the device
	// before it throttles writers; 0: no such bound.
	MaxDirty int64
}

// A Drive is an attached device.
type Drive struct {
	Path string // of the device

	loop  *os.File
	cmd   *exec.Cmd
	stdin io.Closer
	mount string
}

// Start makes a drive whose bytes are in a file in dir, an empty folder.
func Start(dir string, o Options) (*Drive, error) {
	if os.Getuid() != 0 {
		return nil, ErrUnavailable
	}
	for _, dev := range []string{"/dev/fuse", "/dev/loop-control"} {
		if _, err := os.Stat(dev); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
	d := &Drive{mount: filepath.Join(dir, "mount")}
	if err := d.start(dir, o); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Drive) start(dir string, o Options) error {
	store := filepath.Join(dir, "store")
	f, err := os.Create(store)
	if err != nil {
		return err
	}
	err = f.Truncate(o.Size)
	if err = errors.Join(err, f.Close(), os.Mkdir(d.mount, 0o700)); err != nil {
		return err
	}
	d.cmd = exec.Command("/proc/self/exe")
	d.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s\n%s\n%g\n%g", serveVariable, d.mount, store, o.IOPS, o.Bandwidth))
	d.cmd.Stderr = os.Stderr
	stdin, err := d.cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := d.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := d.cmd.Start(); err != nil {
		return fmt.Errorf("start server: %w", err)
	}
	d.stdin = stdin
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		return fmt.Errorf("%w: the server does not serve: %q, %w", ErrUnavailable, line, err)
	}
	if err := d.attach(filepath.Join(d.mount, fileName)); err != nil {
		return err
	}
	if o.MaxDirty > 0 {
		bdi := filepath.Join("/sys/block", filepath.Base(d.Path), "bdi")
		for name, v := range map[string]int64{"strict_limit": 1, "max_bytes": o.MaxDirty} {
			if err := os.WriteFile(filepath.Join(bdi, name), []byte(strconv.FormatInt(v, 10)), 0); err != nil {
				return fmt.Errorf("limit what is dirty: %w", err)
			}
		}
	}
	return nil
}

// attach puts a loop device on a file. It is detached when its last user closes it,
// so that nothing stays if this process is killed.
func (d *Drive) attach(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close()
	for range 100 { // others look for a free one, too
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return fmt.Errorf("find a free loop device: %w", err)
		}
		d.Path = fmt.Sprintf("/dev/loop%d", n)
		loop, err := os.OpenFile(d.Path, os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{
			Fd: uint32(f.Fd()), Size: 4096, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR},
		})
		if err == nil {
			d.loop = loop
			return nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("attach %s: %w", d.Path, err)
		}
	}
	return errors.New("no loop device stays free")
}

// Close detaches the drive, which nobody may use any more.
func (d *Drive) Close() error {
	var errs []error
	if d.loop != nil {
		errs = append(errs, d.loop.Close())
	}
	if d.stdin != nil {
		errs = append(errs, d.stdin.Close(), d.cmd.Wait())
	}
	_ = unix.Unmount(d.mount, unix.MNT_DETACH) // should the server have been killed
	return errors.Join(errs...)
}
