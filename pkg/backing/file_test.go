package backing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tierd/pkg/backing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

func newOptions(t *testing.T, size int64) backing.Options {
	return backing.Options{Path: filepath.Join(t.TempDir(), "store"), Size: size, Create: true}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	image := newImage(t, 8192)
	for _, tt := range []struct {
		name string
		o    backing.Options
		is   error  // nil: any
		says string // part of the message
	}{
		{"no path", backing.Options{}, nil, "no path"},
		{"missing", backing.Options{Path: filepath.Join(dir, "none")}, os.ErrNotExist, "none"},
		{"folder", backing.Options{Path: dir}, nil, "neither a regular file nor a block device"},
		{"character device", backing.Options{Path: "/dev/null"}, nil, "neither a regular file nor a block device"},
		{"create over a file", backing.Options{Path: image, Create: true, Size: 4096}, os.ErrExist, image},
		{"create without size", backing.Options{Path: filepath.Join(dir, "x"), Create: true}, nil, "needs a size"},
		{"create read-only", backing.Options{Path: filepath.Join(dir, "x"), Create: true, Size: 1, ReadOnly: true}, nil, "read-only"},
		{"create in no folder", backing.Options{Path: filepath.Join(dir, "no", "x"), Create: true, Size: 1}, os.ErrNotExist, ""},
		{"too small", backing.Options{Path: image, Size: 8193}, nil, "8192 bytes, fewer than the 8193"},
		{"empty", backing.Options{Path: newImage(t, 0)}, nil, "is empty"},
		{"media", backing.Options{Path: image, Media: "tape"}, nil, `"tape"`},
		{"simulate", backing.Options{Path: image, Simulate: &backing.Simulate{IOPS: -1}}, nil, "iops"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := backing.Open(ctx, tt.o)
			if err == nil || (tt.is != nil && !errors.Is(err, tt.is)) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Open = %v, want %v with %q", err, tt.is, tt.says)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("the message has more than one line: %q", err)
			}
		})
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("refused opens left %v behind", left)
	}
}

func TestOpenRemovesWhatItCannotFill(t *testing.T) {
	o := newOptions(t, 1<<62)
	o.Preallocate = true
	_, err := backing.Open(ctx, o)
	if err == nil {
		t.Fatal("Open of an impossible size = nil")
	}
	t.Logf("refused with: %v", err)
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EFBIG) && !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("Open = %v, want a lack of space", err)
	}
	if _, err := os.Stat(o.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file was left behind (%v)", err)
	}
}

func TestLock(t *testing.T) {
	o := newOptions(t, 8192)
	first := mustOpen(t, o)
	o.Create = false
	ro := o
	ro.ReadOnly = true
	for _, o := range []backing.Options{o, ro} {
		if _, err := backing.Open(ctx, o); !errors.Is(err, backing.ErrInUse) {
			t.Errorf("Open beside a writer (read-only %v) = %v, want ErrInUse", o.ReadOnly, err)
		}
	}
	first.Close()

	reader, second := mustOpen(t, ro), mustOpen(t, ro)
	if _, err := backing.Open(ctx, o); !errors.Is(err, backing.ErrInUse) {
		t.Errorf("Open beside readers = %v, want ErrInUse", err)
	}
	reader.Close()
	second.Close()
	mustOpen(t, o)
}

func TestReadOnly(t *testing.T) {
	path := newImage(t, 8192)
	s := mustOpen(t, backing.Options{Path: path, ReadOnly: true})
	for what, err := range map[string]error{
		"WriteAt": s.WriteAt(ctx, []byte{1}, 0),
		"Zero":    s.Zero(ctx, 0, 1),
		"Discard": s.Discard(ctx, 0, 4096),
	} {
		if !errors.Is(err, backing.ErrReadOnly) {
			t.Errorf("%s = %v, want ErrReadOnly", what, err)
		}
	}
	if err := s.Sync(ctx); err != nil {
		t.Errorf("Sync = %v, want nil", err)
	}
}

// TestTruncatedBelow: bytes that somebody cut off are an error, not zeroes.
func TestTruncatedBelow(t *testing.T) {
	path := newImage(t, 64<<10)
	s := mustOpen(t, backing.Options{Path: path})
	if err := os.Truncate(path, 8192); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 8192)
	err := s.ReadAt(ctx, p, 4096)
	if !errors.Is(err, backing.ErrCutShort) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "at 8192") {
		t.Errorf("ReadAt = %v, want ErrCutShort with path and offset", err)
	}
	if s.TryReadAt(p, 4096) {
		t.Error("TryReadAt = true, want false")
	}
	if err := s.WriteAt(ctx, p[:4096], 32<<10); err != nil { // makes zeroes of what is before it
		t.Fatal(err)
	}
	if err := s.Sync(ctx); !errors.Is(err, backing.ErrCutShort) {
		t.Errorf("Sync = %v, want ErrCutShort", err)
	}
}

// TestSpace: what Zero and Discard give back, and what they must keep.
func TestSpace(t *testing.T) {
	const size, off, n = 8 << 20, 1 << 20, 4 << 20
	for _, tt := range []struct {
		prealloc bool
		want     int64 // bytes allocated after Zero
	}{{false, size - n}, {true, size}} {
		t.Run(fmt.Sprintf("preallocated %v", tt.prealloc), func(t *testing.T) {
			o := newOptions(t, size)
			o.Preallocate = tt.prealloc
			s := mustOpen(t, o)
			if got := s.Info().Preallocated; got != tt.prealloc {
				t.Errorf("Info.Preallocated = %v, want %v", got, tt.prealloc)
			}
			if err := s.WriteAt(ctx, bytes.Repeat([]byte{1}, size), 0); err != nil {
				t.Fatal(err)
			}
			if err := s.Sync(ctx); err != nil {
				t.Fatal(err)
			}
			full := allocated(t, o.Path)
			if full < size {
				t.Skipf("needs a file system without compression: %d bytes hold %d", full, size)
			}
			for what, call := range map[string]func(context.Context, int64, int64) error{"Zero": s.Zero, "Discard": s.Discard} {
				if err := call(ctx, off, n); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if err := s.Sync(ctx); err != nil {
					t.Fatal(err)
				}
				got := allocated(t, o.Path)
				if tt.prealloc && got < tt.want || !tt.prealloc && got > tt.want+(full-size) {
					t.Errorf("%d bytes allocated after %s, want %d", got, what, tt.want)
				}
			}
		})
	}
}

func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// TestReserveAgain: a preallocated file that lost its space, as a sparse copy
// does, gets it back at open, with its bytes as they were.
func TestReserveAgain(t *testing.T) {
	const size = 4 << 20
	path := newImage(t, size)
	s := mustOpen(t, backing.Options{Path: path})
	if err := s.WriteAt(ctx, []byte("kept"), 1<<20); err != nil {
		t.Fatal(err)
	}
	s.Close()

	s = mustOpen(t, backing.Options{Path: path, Preallocate: true})
	if !s.Info().Preallocated {
		t.Skip("needs a file system that preallocates")
	}
	if got := allocated(t, path); got < size {
		t.Errorf("%d bytes allocated, want %d", got, size)
	}
	p := make([]byte, 4)
	if err := s.ReadAt(ctx, p, 1<<20); err != nil || string(p) != "kept" {
		t.Errorf("ReadAt = %q, %v; want kept", p, err)
	}
}

// TestDirectEdges: a small write on a direct backing leaves its neighbours in
// the block alone, wherever it lies, and whether memory is aligned or not.
func TestDirectEdges(t *testing.T) {
	const size = 1 << 20
	o := newOptions(t, size)
	o.Direct = true
	s := mustOpen(t, o)
	if s.Info().PageCacheReads {
		t.Error("Info.PageCacheReads of a direct backing = true, want false")
	}
	model := bytes.Repeat([]byte{0xaa}, size)
	if err := s.WriteAt(ctx, model, 0); err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct{ off, n int }{
		{1, 1}, {511, 1}, {511, 2}, {512, 512}, {600, 5000}, {4096, 4096}, {8191, 4098}, {size - 1, 1}, {100_000, 600_001},
		{256<<10 - 1, 256<<10 + 2}, {7, 256 << 10},
	} {
		p := bytes.Repeat([]byte{byte(i + 1)}, tt.n+1)[i%2:][:tt.n] // every second one odd in memory
		copy(model[tt.off:], p)
		if err := s.WriteAt(ctx, p, int64(tt.off)); err != nil {
			t.Fatalf("WriteAt(%d, %d): %v", tt.n, tt.off, err)
		}
		got := make([]byte, size+1)[i%2:][:size]
		if err := s.ReadAt(ctx, got, 0); err != nil || !bytes.Equal(got, model) {
			t.Fatalf("after WriteAt(%d bytes, %d) the backing differs from the model (%v)", tt.n, tt.off, err)
		}
	}
}

// TestPageCache: what was just written is a hit, what was dropped is a miss
// that does not wait, and the bytes are the same.
func TestPageCache(t *testing.T) {
	o := newOptions(t, 1<<20)
	s := mustOpen(t, o)
	if !s.Info().PageCacheReads {
		t.Skip("needs a file system with reads that do not wait")
	}
	want := bytes.Repeat([]byte{5}, 1<<20)
	if err := s.WriteAt(ctx, want, 0); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1<<20)
	if !s.TryReadAt(got, 0) || !bytes.Equal(got, want) {
		t.Error("TryReadAt of what was just written missed, or read other bytes")
	}
	if err := s.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil || fs.Type == unix.TMPFS_MAGIC {
		t.Skipf("needs a temporary folder that is not in memory (%v)", err)
	}
	if s.TryReadAt(got, 0) {
		t.Error("TryReadAt of 1 MiB that was dropped from the page cache = true, want a miss")
	}
	if err := s.ReadAt(ctx, got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("ReadAt after a miss differs (%v)", err)
	}
}

func TestDirectRefusesRaggedSize(t *testing.T) {
	_, err := backing.Open(ctx, backing.Options{Path: newImage(t, 8192+100), Direct: true})
	if err == nil || !(strings.Contains(err.Error(), "not a multiple") || errors.Is(err, syscall.EINVAL)) {
		t.Errorf("Open = %v, want a refusal", err)
	}
}

func TestInstance(t *testing.T) {
	o := newOptions(t, 8192)
	s := mustOpen(t, o)
	first := s.Instance()
	s.Close()
	o.Create = false
	s = mustOpen(t, o)
	if got := s.Instance(); got != first {
		t.Errorf("Instance after opening again = %q, want %q", got, first)
	}
	s.Close()
	if !strings.Contains(first, ":born") {
		t.Skipf("needs a file system that keeps times of birth; the instance is %s", first)
	}
	if err := os.Remove(o.Path); err != nil {
		t.Fatal(err)
	}
	o.Create = true
	if got := mustOpen(t, o).Instance(); got == first {
		t.Errorf("Instance of another file = %q, want another name", got)
	}
}

func TestDeviceInUse(t *testing.T) {
	dev := loopDevice(t, 4<<20)
	s := mustOpen(t, backing.Options{Path: dev})
	info := s.Info()
	if !info.IsDevice || info.LogicalBlock < 512 || !info.Preallocated || s.Size() != 4<<20 {
		t.Errorf("Info = %+v, size %d; want a device of 4 MiB", info, s.Size())
	}
	for _, readOnly := range []bool{false, true} {
		if _, err := backing.Open(ctx, backing.Options{Path: dev, ReadOnly: readOnly}); !errors.Is(err, backing.ErrInUse) {
			t.Errorf("Open beside a writer (read-only %v) = %v, want ErrInUse", readOnly, err)
		}
	}
	if got := s.Instance(); !strings.Contains(got, ":seq") || strings.HasSuffix(got, ":seq") {
		t.Errorf("Instance = %q, want a disk sequence number in it", got)
	}
}

// TestZeroWrites: zeroes are written to a file whose file system can neither punch
// holes nor zero ranges.
func TestZeroWrites(t *testing.T) {
	zeroWrites := func(d backing.Device) bool { return d.(interface{ ZeroWrites() bool }).ZeroWrites() }
	d := mustOpen(t, backing.Options{Path: newImage(t, 1<<20)})
	if zeroWrites(d) {
		t.Error("a sparse file writes zeroes")
	}
	if zeroWrites(backing.WithoutPunch(d)) {
		t.Error("a file whose ranges can be zeroed writes zeroes")
	}
	if !zeroWrites(backing.WithoutHelp(d)) {
		t.Error("a file without help writes no zeroes")
	}
	for _, below := range []backing.Device{d, backing.WithoutHelp(d)} {
		if got, want := backing.NewSimulated(below, backing.Simulate{IOPS: 1}, nil).ZeroWrites(), zeroWrites(below); got != want {
			t.Errorf("simulated slower, writes zeroes: got %v, want %v", got, want)
		}
	}
}
