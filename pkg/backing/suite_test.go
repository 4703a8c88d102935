package backing_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"tierd/pkg/backing"
	"tierd/pkg/backing/storetest"
)

func TestSuiteMem(t *testing.T) {
	storetest.Run(t, func(t *testing.T, size int64) backing.Store { return backing.NewMem(size) })
}

func TestSuiteSimulated(t *testing.T) {
	sim := backing.Simulate{Latency: 20 * time.Microsecond, IOPS: 50_000, Bandwidth: 4 << 30}
	storetest.Run(t, func(t *testing.T, size int64) backing.Store {
		return backing.NewSimulated(backing.NewMem(size), sim, nil)
	})
}

func TestSuiteMeter(t *testing.T) {
	storetest.Run(t, func(t *testing.T, size int64) backing.Store {
		return backing.NewWatched(backing.NewMeter(backing.NewMem(size), nil), func(string, error) {})
	})
}

func TestSuiteFile(t *testing.T) {
	shm := "/dev/shm"
	for _, tt := range []struct {
		name   string
		o      backing.Options
		folder string
		change func(backing.Device) backing.Device
	}{
		{name: "buffered"},
		{name: "preallocated", o: backing.Options{Preallocate: true}},
		{name: "direct", o: backing.Options{Direct: true}},
		{name: "direct preallocated", o: backing.Options{Direct: true, Preallocate: true}},
		{name: "one blocked call", o: backing.Options{MaxBlocked: 1}},
		{name: "simulated", o: backing.Options{Simulate: &backing.Simulate{IOPS: 100_000}}},
		{name: "tmpfs", folder: shm},
		{name: "no fallocate", change: backing.WithoutHelp},
		{name: "no hole punching", change: backing.WithoutPunch},
		{name: "direct, no fallocate", o: backing.Options{Direct: true}, change: backing.WithoutHelp},
	} {
		t.Run(tt.name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T, size int64) backing.Store {
				dir := t.TempDir()
				if tt.folder != "" {
					var err error
					if dir, err = os.MkdirTemp(tt.folder, "backing"); err != nil {
						t.Skipf("needs a writable %s: %v", tt.folder, err)
					}
					t.Cleanup(func() { os.RemoveAll(dir) })
				}
				o := tt.o
				o.Path, o.Size, o.Create = filepath.Join(dir, "store"), size, true
				if tt.change != nil {
					return tt.change(mustOpen(t, o))
				}
				return mustOpen(t, o)
			})
		})
	}
}

// mustOpen opens o, and skips the test where the file system cannot do what
// O_DIRECT or preallocation needs.
func mustOpen(t *testing.T, o backing.Options) backing.Device {
	t.Helper()
	d, err := backing.Open(context.Background(), o)
	if err != nil && (o.Direct && errors.Is(err, syscall.EINVAL) || o.Preallocate && errors.Is(err, syscall.EOPNOTSUPP)) {
		t.Skipf("needs a temporary folder on another file system: %v", err)
	}
	if err != nil {
		t.Fatalf("Open(%+v) = %v", o, err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func TestSuiteLoopDevice(t *testing.T) {
	for _, direct := range []bool{false, true} {
		t.Run(map[bool]string{false: "buffered", true: "direct"}[direct], func(t *testing.T) {
			storetest.Run(t, func(t *testing.T, size int64) backing.Store {
				return mustOpen(t, backing.Options{Path: loopDevice(t, size), Direct: direct})
			})
		})
	}
	t.Run("no help of the kernel", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T, size int64) backing.Store {
			return backing.WithoutHelp(mustOpen(t, backing.Options{Path: loopDevice(t, size)}))
		})
	})
}

// loopDevice attaches a loop device of size bytes until the test ends.
func loopDevice(t *testing.T, size int64) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to attach a loop device")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("needs loop devices: %v", err)
	}
	losetup, err := exec.LookPath("losetup")
	if err != nil {
		t.Skipf("needs losetup: %v", err)
	}
	image := newImage(t, size)
	out, err := exec.Command(losetup, "-f", "--show", image).CombinedOutput()
	if err != nil {
		t.Skipf("needs a free loop device: %v: %s", err, out)
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command(losetup, "-d", dev).CombinedOutput(); err != nil {
			t.Errorf("detach %s: %v: %s", dev, err, out)
		}
	})
	return dev
}
