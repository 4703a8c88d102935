package recordfs_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.etcd.io/bbolt"

	"tierd/pkg/backing/crashstore"
	"tierd/test/crash/recordfs"
	"tierd/test/fuseproc"
)

func TestMain(m *testing.M) {
	recordfs.Main()
	os.Exit(m.Run())
}

func mount(t *testing.T) *recordfs.FS {
	t.Helper()
	fs, err := recordfs.Start(t.TempDir())
	if errors.Is(err, fuseproc.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	})
	return fs
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func journal(t *testing.T, fs *recordfs.FS, name string) *recordfs.Journal {
	t.Helper()
	j, err := fs.Journal(name)
	must(t, err)
	return j
}

// TestFates: what of a new file is there after a cut, by what was synced.
func TestFates(t *testing.T) {
	fs := mount(t)
	must(t, fs.Load("a", recordfs.Of(map[string][]byte{"old": []byte("before")})))
	dir := fs.Path("a")
	f, err := os.Create(filepath.Join(dir, "new"))
	must(t, err)
	defer f.Close()
	created := fs.Next()
	_, err = f.Write(bytes.Repeat([]byte{1}, 1024))
	must(t, err)
	written := fs.Next()
	must(t, f.Sync())
	synced := fs.Next()
	d, err := os.Open(dir)
	must(t, err)
	must(t, d.Sync())
	d.Close()
	named := fs.Next()
	must(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "old")))
	renamed := fs.Next()

	j := journal(t, fs, "a")
	for _, tt := range []struct {
		what     string
		at       int64
		keep     float64
		old, new int // lengths, -1 for none
	}{
		{"created, kept", created, 1, 6, 0},
		{"created, lost", created, 0, 6, -1},
		{"written, kept", written, 1, 6, 1024},
		{"synced without its name", synced, 0, 6, -1},
		{"named", named, 0, 6, 1024},
		{"renamed, lost", renamed, 0, 6, 1024},
		{"renamed, kept", renamed, 1, 1024, -1},
	} {
		after := j.CrashAt(tt.at, crashstore.Cut{Keep: tt.keep})
		length := func(name string) int {
			n, ok := after.Names[name]
			if !ok {
				return -1
			}
			return len(after.Files[n])
		}
		if gotOld, gotNew := length("old"), length("new"); gotOld != tt.old || gotNew != tt.new {
			t.Errorf("%s: lengths %d and %d, want %d and %d", tt.what, gotOld, gotNew, tt.old, tt.new)
		}
	}
	kinds := []recordfs.Kind{}
	for _, e := range j.Events {
		kinds = append(kinds, e.Kind)
	}
	want := []recordfs.Kind{
		recordfs.Create, recordfs.Write, recordfs.SyncBegan, recordfs.SyncEnded, recordfs.DirSyncBegan, recordfs.DirSyncEnded, recordfs.Rename,
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("events %v, want %v", kinds, want)
	}
}

// TestKillThenCut: after a kill the bytes are there, in the file system too, and
// the cut that comes next can still take them.
func TestKillThenCut(t *testing.T) {
	fs := mount(t)
	must(t, fs.Load("a", recordfs.Of(map[string][]byte{"f": make([]byte, 512)})))
	f, err := os.OpenFile(filepath.Join(fs.Path("a"), "f"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	_, err = f.WriteAt(bytes.Repeat([]byte{7}, 512), 0)
	must(t, err)
	must(t, fs.Load("b", journal(t, fs, "a").KillAt(fs.Next())))
	p, err := os.ReadFile(filepath.Join(fs.Path("b"), "f"))
	must(t, err)
	if p[0] != 7 {
		t.Errorf("after a kill: %d, want 7", p[0])
	}
	j := journal(t, fs, "b")
	if got := j.UnsyncedAt(fs.Next()); got != 1 {
		t.Errorf("UnsyncedAt = %d, want 1", got)
	}
	after := j.CrashAt(fs.Next(), crashstore.Cut{})
	if got := after.Files[after.Names["f"]][0]; got != 0 {
		t.Errorf("after the cut: %d, want 0", got)
	}
}

// TestBolt: a bbolt file opens after a cut at every instant, with all commits that
// were answered, and not with what was never begun.
func TestBolt(t *testing.T) {
	fs := mount(t)
	must(t, fs.Load("a", recordfs.Of(nil)))
	path := filepath.Join(fs.Path("a"), "db")
	db, err := bbolt.Open(path, 0o600, nil)
	must(t, err)
	var begun, done []int64
	for i := range byte(5) {
		begun = append(begun, fs.Next())
		must(t, db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("b"))
			if err != nil {
				return err
			}
			return b.Put([]byte{i}, bytes.Repeat([]byte{i}, 3000))
		}))
		done = append(done, fs.Next())
	}
	j := journal(t, fs, "a")
	must(t, db.Close())
	states := 0
	for _, e := range j.Events {
		if e.Seq <= begun[0] {
			continue
		}
		for _, keep := range []float64{0, 0.5, 1} {
			after := j.CrashAt(e.Seq, crashstore.Cut{Seed: e.Seq, Keep: keep})
			if _, ok := after.Names["db"]; !ok {
				continue // bbolt does not sync the folder
			}
			states++
			must(t, fs.Load("b", after))
			db, err := bbolt.Open(filepath.Join(fs.Path("b"), "db"), 0o600, nil)
			must(t, err)
			must(t, db.View(func(tx *bbolt.Tx) error {
				b := tx.Bucket([]byte("b"))
				for i := range done {
					there := b != nil && b.Get([]byte{byte(i)}) != nil
					if !there && done[i] <= e.Seq || there && begun[i] > e.Seq {
						t.Errorf("cut at %d: commit %d (%d to %d) there: %v", e.Seq, i, begun[i], done[i], there)
					}
				}
				return nil
			}))
			must(t, db.Close())
		}
	}
	if states == 0 {
		t.Error("no state was looked at")
	}
}
