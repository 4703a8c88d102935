package faultfs

import (
	"bytes"
	"errors"
	"os"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tierd/test/fuseproc"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

func mount(t *testing.T) *FS {
	t.Helper()
	f, err := Start(t.TempDir())
	if errors.Is(err, fuseproc.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func set(t *testing.T, f *FS, list ...Fault) {
	t.Helper()
	if err := f.Set(list...); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, f *FS, name string, size int64) *os.File {
	t.Helper()
	file, err := os.Create(f.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return file
}

func want(t *testing.T, what string, err, errno error) {
	t.Helper()
	if !errors.Is(err, errno) {
		t.Errorf("%s = %v, want %v", what, err, errno)
	}
}

func TestFaults(t *testing.T) {
	f := mount(t)
	a, b := create(t, f, "a", 1<<20), create(t, f, "b", 1<<20)
	block := bytes.Repeat([]byte("x"), 4096)
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	write := func(file *os.File, off int64) error { _, err := file.WriteAt(block, off); return err }
	read := func(file *os.File, off int64) error { _, err := file.ReadAt(make([]byte, 4096), off); return err }
	ok(write(a, 0))
	ok(write(b, 0))
	ok(read(a, 0))

	set(t, f, Fault{Op: Read, Name: "a", From: 0, To: 4096, Errno: syscall.EIO})
	want(t, "read", read(a, 0), syscall.EIO)
	ok(read(b, 0))
	ok(write(a, 0))
	set(t, f, Fault{Op: Write, Name: "a", From: 8192, To: 12288, Errno: syscall.EIO})
	want(t, "write", write(a, 8192), syscall.EIO)
	ok(write(a, 4096))
	ok(read(a, 0))
	set(t, f, Fault{Op: Sync, Name: "a", Times: 1, Errno: syscall.EIO})
	want(t, "first sync", unix.Fdatasync(int(a.Fd())), syscall.EIO)
	ok(a.Sync())
	ok(b.Sync())
	if n, err := f.Hits(); err != nil || len(n) != 1 || n[0] != 1 {
		t.Errorf("hits = %v, %v, want one", n, err)
	}

	// What has no consequence counts.
	set(t, f, Fault{Op: Write, Longer: 4096})
	ok(write(a, 0))
	if _, err := a.WriteAt(make([]byte, 4097), 4096); err != nil {
		t.Error(err)
	}
	if _, err := a.WriteAt(make([]byte, 128<<10), 65536); err != nil {
		t.Error(err)
	}
	if n, err := f.Bytes(); err != nil || len(n) != 1 || n[0] != 4097+128*1024 {
		t.Errorf("bytes = %v, %v, want %d", n, err, 4097+128*1024)
	}

	set(t, f, Fault{Op: Write, Name: "a", Times: 1, Short: 1000})
	if n, err := unix.Pwrite(int(a.Fd()), block, 16384); n != 1000 || err != nil {
		t.Errorf("short write = %d, %v, want 1000", n, err)
	}

	// Room for one block in holes; what has space is overwritten as before.
	set(t, f, Fault{Op: Write, Name: "b", Room: 4096, Errno: syscall.ENOSPC})
	ok(write(b, 0))
	ok(write(b, 65536))
	want(t, "write into a hole of a full file system", write(b, 131072), syscall.ENOSPC)
	ok(write(b, 65536))

	set(t, f, Fault{Op: All, Name: "a", Errno: syscall.ENXIO})
	want(t, "read", read(a, 0), syscall.ENXIO)
	want(t, "write", write(a, 0), syscall.ENXIO)
	want(t, "sync", a.Sync(), syscall.ENXIO)
	want(t, "punch", unix.Fallocate(int(a.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096), syscall.ENXIO)
	_, err := os.Open(f.Path("a"))
	want(t, "open", err, syscall.ENXIO)
	set(t, f)
	ok(read(a, 0))
}

func TestDelayEndsWithItsFault(t *testing.T) {
	f := mount(t)
	a := create(t, f, "a", 1<<20)
	set(t, f, Fault{Op: Write, Delay: time.Hour})
	done := make(chan error, 1)
	go func() {
		_, err := a.WriteAt([]byte("late"), 0)
		done <- err
	}()
	deadline := time.Now().Add(time.Minute)
	for hits := 0; hits == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the write does not arrive")
		}
		n, err := f.Hits()
		if err != nil {
			t.Fatal(err)
		}
		hits = n[0]
	}
	select {
	case err := <-done:
		t.Errorf("a delayed write = %v at once", err)
	default:
	}
	set(t, f)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestUnreadablePage maps a file and makes a page of it unreadable.
func TestUnreadablePage(t *testing.T) {
	f := mount(t)
	a := create(t, f, "a", 1<<20)
	m, err := unix.Mmap(int(a.Fd()), 0, 1<<20, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	touch := func() (fault any) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() { fault = recover() }()
		if m[4096] != 0 {
			t.Error("not zero")
		}
		return nil
	}
	if err := touch(); err != nil {
		t.Fatalf("healthy page: %v", err)
	}
	set(t, f, Fault{Op: Read, Name: "a", Errno: syscall.EIO})
	if touch() == nil {
		t.Error("an unreadable page was read")
	}
}
