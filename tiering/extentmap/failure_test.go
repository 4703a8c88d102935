package extentmap

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"

	"tierd/tiering/extent"
)

func allocated(t testing.TB, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

// copyOf opens a copy of the file, as the next process would find it.
func copyOf(t *testing.T, path string) *DB {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return mustOpen(t, to, Options{})
}

// wantFailed checks that d is failed for good and still tells its last state.
func wantFailed(t *testing.T, d *DB, last State) {
	t.Helper()
	for range 2 {
		if _, err := d.Commit(context.Background(), &Changes{}); !errors.Is(err, ErrMetadataFailed) {
			t.Errorf("later Commit = %v, want ErrMetadataFailed", err)
		}
		err := d.LoadMap(1, func(extent.Index, []extent.Location) error { return nil })
		if !errors.Is(err, ErrMetadataFailed) {
			t.Errorf("later LoadMap = %v, want ErrMetadataFailed", err)
		}
	}
	if err := d.Err(); !errors.Is(err, ErrMetadataFailed) {
		t.Errorf("Err = %v, want ErrMetadataFailed", err)
	}
	if got := d.State(); !reflect.DeepEqual(got, last) {
		t.Errorf("State = %+v, want %+v", got, last)
	}
	if err := d.Close(); !errors.Is(err, ErrMetadataFailed) {
		t.Errorf("Close = %v, want ErrMetadataFailed", err)
	}
}

func TestCommitFails(t *testing.T) {
	broken := errors.New("injected")
	for _, tt := range []struct {
		point FaultPoint
		there bool // whether the failed commit is on disk
	}{{FaultBefore, false}, {FaultAfter, true}} {
		path := mustCreate(t)
		d := mustOpen(t, path, Options{Fault: func(p FaultPoint, n uint64) error {
			if p == tt.point && n == 2 {
				return broken
			}
			return nil
		}})
		mustCommit(t, d, &Changes{Map: []MapChange{change(1, 0, 1, 7)}})
		last := d.State()
		_, err := d.Commit(context.Background(), &Changes{Map: []MapChange{change(1, 0, 2, 8)}})
		if !errors.Is(err, ErrMetadataFailed) || !errors.Is(err, broken) {
			t.Errorf("Commit = %v, want ErrMetadataFailed and its cause", err)
		}
		wantFailed(t, d, last)

		// The lock is given up, so that the next process can open the file.
		next := mustOpen(t, path, Options{})
		want := loc(1, 7)
		if tt.there {
			want = loc(2, 8)
		}
		if got := loadAll(t, next, 1)[extent.Key{Volume: 1}]; got != want {
			t.Errorf("point %d: extent 0 in %v, want %v", tt.point, got, want)
		}
	}
}

// TestWriteFails takes the file descriptor away from bbolt.
func TestWriteFails(t *testing.T) {
	var file *os.File
	path := mustCreate(t)
	d := mustOpen(t, path, Options{OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
		file, err = os.OpenFile(name, flag, mode)
		return file, err
	}})
	mustCommit(t, d, &Changes{Map: []MapChange{change(1, 0, 1, 7)}})
	last := d.State()
	file.Close()
	if _, err := d.Commit(context.Background(), &Changes{}); !errors.Is(err, ErrMetadataFailed) || !errors.Is(err, os.ErrClosed) {
		t.Errorf("Commit = %v, want ErrMetadataFailed: file closed", err)
	}
	wantFailed(t, d, last)
	if got := loadAll(t, copyOf(t, path), 1)[extent.Key{Volume: 1}]; got != loc(1, 7) {
		t.Errorf("extent 0 in %v", got)
	}
}

// TestPageFault cuts the file short under the mapping: reading beyond its end
// raises the same signal as a page that the disk cannot give.
func TestPageFault(t *testing.T) {
	for _, how := range []string{"commit", "load"} {
		path := mustCreate(t)
		d := mustOpen(t, path, Options{})
		var c Changes
		for i := range 2000 {
			c.Map = append(c.Map, change(1, i*256, 1, i))
		}
		mustCommit(t, d, &c)
		last := d.State()
		if err := os.Truncate(path, 4*4096); err != nil {
			t.Fatal(err)
		}
		var err error
		if how == "commit" {
			_, err = d.Commit(context.Background(), &c)
		} else {
			err = d.LoadMap(1, func(extent.Index, []extent.Location) error { return nil })
		}
		if !errors.Is(err, ErrMetadataFailed) {
			t.Errorf("%s = %v, want ErrMetadataFailed", how, err)
		}
		wantFailed(t, d, last)
	}
}

// TestDamagedChunkFailsCommit changes a byte of a chunk behind bbolt's back.
func TestDamagedChunk(t *testing.T) {
	path := mustCreate(t)
	d := mustOpen(t, path, Options{})
	mustCommit(t, d, &Changes{Map: []MapChange{change(1, 3, 5, 0x11223344)}})
	d.Close()
	damage(t, path, []byte{5, 0, 0x44, 0x33, 0x22, 0x11}, 2)

	d = mustOpen(t, path, Options{})
	err := d.LoadMap(1, func(extent.Index, []extent.Location) error { return nil })
	if !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrMetadataFailed) {
		t.Errorf("LoadMap = %v, want ErrCorrupt alone", err)
	}
	last := d.State()
	_, err = d.Commit(context.Background(), &Changes{Map: []MapChange{change(1, 4, 5, 1)}})
	if !errors.Is(err, ErrCorrupt) || !errors.Is(err, ErrMetadataFailed) {
		t.Errorf("Commit = %v, want ErrMetadataFailed, ErrCorrupt", err)
	}
	wantFailed(t, d, last)
}

// TestLostSectors takes the later sectors of each page away in turn: zeroes must
// not pass for a part of the map without extents. Only a page that is free may be
// lost unnoticed.
func TestLostSectors(t *testing.T) {
	path := mustCreate(t)
	d := mustOpen(t, path, Options{Slack: -1})
	for round := range 3 { // leaves free pages behind
		var c Changes
		for i := range 400 {
			c.Map = append(c.Map, change(1, i*256, 1, i+round))
		}
		mustCommit(t, d, &c)
	}
	want := loadAll(t, d, 1)
	d.Close()
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for page := 2; page < len(good)/4096; page++ { // the two roots have checksums
		for _, from := range []int{0, 64, 512, 2048} {
			bad := bytes.Clone(good)
			clear(bad[page*4096+from : page*4096+4096])
			p := filepath.Join(t.TempDir(), "bad.db")
			if err := os.WriteFile(p, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			d, err := Open(p, Options{Slack: -1})
			if err != nil {
				refused++
				if !errors.Is(err, ErrCorrupt) {
					t.Errorf("page %d from %d: Open = %v, want ErrCorrupt", page, from, err)
				}
				continue
			}
			got := make(map[extent.Key]extent.Location)
			err = d.LoadMap(1, func(first extent.Index, locs []extent.Location) error {
				for i, l := range locs {
					if !l.IsZero() {
						got[extent.Key{Volume: 1, Index: first + extent.Index(i)}] = l
					}
				}
				return nil
			})
			if err == nil && !maps.Equal(got, want) {
				t.Errorf("page %d from %d: opened with %d extents, want %d", page, from, len(got), len(want))
			}
			d.Close()
		}
	}
	if refused == 0 {
		t.Error("nothing was refused")
	}
}

// TestFullFileSystem fills the file system that holds the metadata: commits of
// ordinary size go on, in the slack.
func TestFullFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=48m"); err != nil {
		t.Skipf("needs the right to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "pool.db")
	if err := Create(path, testState()); err != nil {
		t.Fatal(err)
	}
	d := mustOpen(t, path, Options{})
	hog, err := os.Create(filepath.Join(dir, "hog"))
	if err != nil {
		t.Fatal(err)
	}
	defer hog.Close()
	for err == nil {
		_, err = hog.Write(make([]byte, 1<<20))
	}
	for err = nil; err == nil; {
		_, err = hog.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	for i := range 200 {
		c := Changes{Map: []MapChange{change(1, i*256, 1, i), change(1, i*256+1, 1, i)}}
		if _, err := d.Commit(context.Background(), &c); err != nil {
			t.Fatalf("commit %d on a full file system: %v", i, err)
		}
	}
	if len(loadAll(t, d, 1)) != 400 {
		t.Error("extents are missing")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}
