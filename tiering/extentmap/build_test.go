package extentmap

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"tierd/tiering/extent"
)

// fillWith returns the fill of Build that puts these changes.
func fillWith(changes []MapChange) func(func(MapChange) error) error {
	return func(put func(MapChange) error) error {
		for _, c := range changes {
			if err := put(c); err != nil {
				return err
			}
		}
		return nil
	}
}

func TestBuild(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pool.db")
	// Enough pieces for more than one transaction, with holes, over two volumes.
	var want []MapChange
	for i := range extent.Index(3 * fillChunks) {
		for _, within := range []extent.Index{0, 7, ChunkEntries - 1}[:1+i%3] {
			want = append(want, MapChange{extent.Key{Volume: 1, Index: i*ChunkEntries + within}, extent.Location{Backing: 1, Slot: extent.Slot(len(want))}})
		}
	}
	for i := range extent.Index(10) {
		want = append(want, MapChange{extent.Key{Volume: 3, Index: i}, extent.Location{Backing: 2, Slot: extent.Slot(i)}})
	}
	if err := Build(path, testState(), "", fillWith(want)); err != nil {
		t.Fatal(err)
	}
	d := mustOpen(t, path, Options{})
	if got := d.State().Pool.Commit; got != testState().Pool.Commit {
		t.Errorf("commit = %d, want %d", got, testState().Pool.Commit)
	}
	n := 0
	for _, vol := range []extent.VolumeID{1, 3} {
		err := d.LoadMap(vol, func(first extent.Index, locs []extent.Location) error {
			for i, l := range locs {
				if l.IsZero() {
					continue
				}
				if got := (MapChange{extent.Key{Volume: vol, Index: first + extent.Index(i)}, l}); got != want[n] {
					t.Fatalf("mapping %d = %v, want %v", n, got, want[n])
				}
				n++
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n != len(want) {
		t.Errorf("%d mappings, want %d", n, len(want))
	}
}

func TestBuildReplaces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, keep := filepath.Join(dir, "pool.db"), filepath.Join(dir, "pool.db.old")
	one := []MapChange{{extent.Key{Volume: 1}, extent.Location{Backing: 1}}}
	if err := Create(path, testState()); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := Build(path, testState(), "", fillWith(one)); !errors.Is(err, ErrExists) {
		t.Fatalf("Build over a file = %v, want %v", err, ErrExists)
	}
	d := mustOpen(t, path, Options{})
	if err := Build(path, testState(), keep, fillWith(one)); !errors.Is(err, ErrLocked) {
		t.Fatalf("Build over a file in use = %v, want %v", err, ErrLocked)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Build(path, testState(), keep, fillWith(one)); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(keep); err != nil || !os.SameFile(before, after) {
		t.Errorf("the old file is not kept: %v", err)
	}
	// Taken names are not taken away.
	if err := Build(path, testState(), keep, fillWith(one)); !errors.Is(err, ErrExists) {
		t.Errorf("Build with a taken name = %v, want %v", err, ErrExists)
	}
}

func TestBuildWantsOrder(t *testing.T) {
	t.Parallel()
	at := func(v extent.VolumeID, i extent.Index) MapChange {
		return MapChange{extent.Key{Volume: v, Index: i}, extent.Location{Backing: 1, Slot: extent.Slot(i)}}
	}
	for _, bad := range [][]MapChange{{at(1, 5), at(1, 5)}, {at(1, 5), at(1, 4)}, {at(2, 0), at(1, 1)}, {at(0, 1)}} {
		path := filepath.Join(t.TempDir(), "pool.db")
		if err := Build(path, testState(), "", fillWith(bad)); !errors.Is(err, ErrInvalidChange) {
			t.Errorf("Build of %v = %v, want %v", bad, err, ErrInvalidChange)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("Build of %v left a file", bad)
		}
	}
}
