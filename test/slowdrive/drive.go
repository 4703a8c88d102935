package slowdrive

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"tierd/test/fuseproc"
)

// closeTime is how long the kernel may take to write what it keeps for a drive.
const closeTime = 5 * time.Minute

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

	loop *os.File
	proc *fuseproc.Process
}

// Start makes a drive whose bytes are in a file in dir, an empty folder.
// fuseproc.ErrUnavailable says that this machine cannot.
func Start(dir string, o Options) (*Drive, error) {
	d := new(Drive)
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
	mount := filepath.Join(dir, "mount")
	err = f.Truncate(o.Size)
	if err = errors.Join(err, f.Close(), os.Mkdir(mount, 0o700)); err != nil {
		return err
	}
	d.proc, err = fuseproc.Start(fsName, mount, []string{store, fmt.Sprint(o.IOPS), fmt.Sprint(o.Bandwidth)})
	if err != nil {
		return err
	}
	if err := d.attach(filepath.Join(mount, fileName)); err != nil {
		return available(err)
	}
	if o.MaxDirty > 0 {
		bdi := filepath.Join("/sys/block", filepath.Base(d.Path), "bdi")
		for name, v := range map[string]int64{"strict_limit": 1, "max_bytes": o.MaxDirty} {
			if err := os.WriteFile(filepath.Join(bdi, name), []byte(strconv.FormatInt(v, 10)), 0); err != nil {
				return available(fmt.Errorf("limit what is dirty: %w", err))
			}
		}
	}
	return nil
}

// available makes ErrUnavailable of an error that says that this machine lets nobody
// do that, or has no loop devices.
func available(err error) error {
	for _, no := range []error{fs.ErrPermission, fs.ErrNotExist, unix.EROFS, unix.ENXIO, unix.ENODEV} {
		if errors.Is(err, no) {
			return fmt.Errorf("a slow drive %w, and loop devices: %w", fuseproc.ErrUnavailable, err)
		}
	}
	return err
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
			return err
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
		force := time.AfterFunc(closeTime, d.proc.Kill)
		errs = append(errs, d.loop.Close())
		force.Stop()
	}
	if d.proc != nil {
		errs = append(errs, d.proc.Close())
	}
	return errors.Join(errs...)
}
