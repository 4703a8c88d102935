package stagedlog

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"tierd/tiering/extent"
)

func testID() Identity {
	return Identity{
		PoolID: uuid.UUID{0: 1, 15: 2}, Incarnation: 5, BootID: "0f1e2d3c-boot",
		Instances: map[extent.BackingID]string{1: "8:1/77", 2: "loop0#4", 3: "8:1/78"},
	}
}

func mustCreate(t testing.TB, bytes int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "staged.log")
	if err := Create(path, bytes); err != nil {
		t.Fatal(err)
	}
	return path
}

func mustOpen(t testing.TB, path string, id Identity, commit, firstSeq uint64) *Log {
	t.Helper()
	l, err := Open(path, id, commit, firstSeq)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func mapRec(seq uint64, i, slot int) Record {
	return Record{Seq: seq, Kind: Map, Volume: 1, First: extent.Index(i), Count: 1, To: extent.Location{Backing: 1, Slot: extent.Slot(slot)}}
}

// wantRecords checks what Read gives for the log of id.
func wantRecords(t *testing.T, path string, id Identity, commit uint64, want []Record) {
	t.Helper()
	got, reason, err := Read(path, id, commit)
	if err != nil || reason != "" || !slices.Equal(got, want) {
		t.Errorf("Read = %v, %q, %v\nwant %v", got, reason, err, want)
	}
}

func TestAppendRead(t *testing.T) {
	path := mustCreate(t, 64<<10)
	info, err := os.Stat(path)
	if err != nil || info.Size() != 64<<10 {
		t.Fatal(info, err)
	}
	if err := Create(path, 64<<10); !errors.Is(err, ErrExists) {
		t.Errorf("second Create = %v, want ErrExists", err)
	}
	first := testID()
	first.Incarnation = 1
	wantRecords(t, path, first, 0, nil)
	if recs, reason, err := Read(path, testID(), 0); reason == "" || err != nil || len(recs) > 0 {
		t.Errorf("blank log of a pool that was opened before: %v, %q, %v; want it void", recs, reason, err)
	}
	l := mustOpen(t, path, testID(), 7, 100)
	wantRecords(t, path, testID(), 7, nil)
	at := func(b, s int) extent.Location {
		return extent.Location{Backing: extent.BackingID(b), Slot: extent.Slot(s)}
	}
	recs := []Record{
		{Seq: 100, Kind: Map, Volume: 1, First: 1 << 50, Count: 1, To: at(1, 1<<32-1)},
		{Seq: 101, Kind: Move, Volume: 1<<32 - 1, First: 5, Count: 1, To: at(2, 9), From: at(1, 1)},
		{Seq: 105, Kind: Unmap, Volume: 1, First: 5, Count: 1, From: at(2, 9)},
		{Seq: 1 << 63, Kind: UnmapRange, Volume: 2, First: 0, Count: 1 << 40},
	}
	for _, part := range [][]Record{recs[:1], recs[1:3], nil, recs[3:]} {
		if err := l.Append(part); err != nil {
			t.Fatal(err)
		}
	}
	wantRecords(t, path, testID(), 7, recs)
	wantRecords(t, path, testID(), 9, recs)
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	if err := l.Append(recs); !errors.Is(err, ErrClosed) {
		t.Errorf("Append after Close = %v, want ErrClosed", err)
	}
	wantRecords(t, path, testID(), 7, recs)

	// The same identity again: nothing of before may come back.
	l = mustOpen(t, path, testID(), 7, 1)
	wantRecords(t, path, testID(), 7, nil)
	if err := l.Append([]Record{mapRec(1, 1, 1)}); err != nil {
		t.Fatal(err)
	}
	wantRecords(t, path, testID(), 7, []Record{mapRec(1, 1, 1)})
}

func TestAppendRefuses(t *testing.T) {
	l := mustOpen(t, mustCreate(t, 64<<10), testID(), 7, 100)
	ok := mapRec(200, 1, 1)
	edit := func(fn func(*Record)) []Record { r := ok; fn(&r); return []Record{r} }
	for name, recs := range map[string][]Record{
		"below the first": edit(func(r *Record) { r.Seq = 99 }),
		"falling":         {ok, mapRec(200, 2, 2)},
		"no kind":         edit(func(r *Record) { r.Kind = 0 }),
		"internal kind":   edit(func(r *Record) { r.Kind = kindInstance }),
		"no volume":       edit(func(r *Record) { r.Volume = 0 }),
		"no place":        edit(func(r *Record) { r.To = extent.Location{} }),
		"large backing":   edit(func(r *Record) { r.To.Backing = 1024 }),
		"place of unmap":  edit(func(r *Record) { r.Kind = Unmap }),
		"count 0":         edit(func(r *Record) { r.Kind, r.To, r.Count = UnmapRange, extent.Location{}, 0 }),
		"count of map":    edit(func(r *Record) { r.Count = 2 }),
		"wrap":            edit(func(r *Record) { r.Kind, r.To, r.First, r.Count = UnmapRange, extent.Location{}, 2, 1<<64-1 }),
		"too many":        slices.Repeat([]Record{ok}, 1000),
	} {
		if name == "too many" {
			for i := range recs {
				recs[i].Seq += uint64(i)
			}
		}
		if err := l.Append(recs); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: Append = %v, want ErrInvalid", name, err)
		}
	}
	if err := l.Append([]Record{ok}); err != nil {
		t.Error(err)
	}
}

func TestVoid(t *testing.T) {
	path := mustCreate(t, 64<<10)
	l := mustOpen(t, path, testID(), 7, 1)
	recs := []Record{mapRec(1, 1, 1)}
	if err := l.Append(recs); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		edit   func(*Identity)
		commit uint64
		reason string
		err    error
	}{
		{"pool", func(id *Identity) { id.PoolID[3]++ }, 7, "is of pool", nil},
		{"incarnation", func(id *Identity) { id.Incarnation++ }, 7, "is of incarnation 5, the map names 6", nil},
		{"boot", func(id *Identity) { id.BootID = "other" }, 7, "was started again", nil},
		{"instance", func(id *Identity) { id.Instances[2] = "loop0#5" }, 7, "backing 2 was attached anew", nil},
		{"older map", func(id *Identity) {}, 6, "knows commit 7, the map is of commit 6", ErrMapOlder},
		{"missing backing", func(id *Identity) { delete(id.Instances, 1) }, 7, "", nil},
		{"new backing", func(id *Identity) { id.Instances[9] = "x" }, 7, "", nil},
	}
	for _, tt := range tests {
		id := testID()
		tt.edit(&id)
		got, reason, err := Read(path, id, tt.commit)
		if !errors.Is(err, tt.err) || (reason == "") != (tt.reason == "") || !strings.Contains(reason, tt.reason) {
			t.Errorf("%s: Read = %q, %v, want %q, %v", tt.name, reason, err, tt.reason, tt.err)
		}
		if (tt.reason == "") != slices.Equal(got, recs) {
			t.Errorf("%s: records %v", tt.name, got)
		}
	}

	// A record of a backing that the log does not know cannot be trusted.
	r := mapRec(2, 2, 2)
	r.To.Backing = 4
	if err := l.Append([]Record{r}); err != nil {
		t.Fatal(err)
	}
	if _, reason, err := Read(path, testID(), 7); err != nil || !strings.Contains(reason, "backing 4") {
		t.Errorf("Read = %q, %v, want backing 4", reason, err)
	}
}

func TestSetInstance(t *testing.T) {
	path := mustCreate(t, 2*minHalf)
	l := mustOpen(t, path, testID(), 7, 1)
	if err := l.SetInstance(4, "new"); err != nil {
		t.Fatal(err)
	}
	id := testID()
	id.Instances[4] = "new"
	var want []Record
	for seq := uint64(1); seq < 300; seq++ {
		r := mapRec(seq, int(seq), 1)
		r.To.Backing = 4
		if err := l.Append([]Record{r}); err != nil {
			t.Fatal(err)
		}
		if err := l.Retire(seq, seq); err != nil {
			t.Fatal(err)
		}
		want = append(want, r)
	}
	got, reason, err := Read(path, id, 300)
	if n := len(got); err != nil || reason != "" || n < 50 || !slices.Equal(got, want[len(want)-n:]) {
		t.Errorf("Read gives %d records, %q, %v", len(got), reason, err)
	}
	id.Instances[4] = "newer"
	if _, reason, _ := Read(path, id, 300); reason == "" {
		t.Error("a changed instance does not void the log")
	}
	if err := l.SetInstance(0, "x"); !errors.Is(err, ErrInvalid) {
		t.Errorf("SetInstance(0) = %v, want ErrInvalid", err)
	}
}

func TestFull(t *testing.T) {
	path := mustCreate(t, 2*minHalf)
	l := mustOpen(t, path, testID(), 7, 1)
	var want []Record
	seq := uint64(1)
	fill := func() {
		t.Helper()
		for ; ; seq++ {
			r := mapRec(seq, int(seq), 1)
			err := l.Append([]Record{r})
			if errors.Is(err, ErrFull) {
				return
			} else if err != nil {
				t.Fatal(err)
			}
			want = append(want, r)
		}
	}
	if got := l.Fill(); got != 0 {
		t.Errorf("Fill of an empty log = %v, want 0", got)
	}
	fill()
	// Two halves of 64 records each, less three instances.
	if len(want) != 2*(64-3) {
		t.Errorf("%d records fit, want 122", len(want))
	}
	if got := l.Fill(); got != 1 {
		t.Errorf("Fill = %v, want 1", got)
	}
	wantRecords(t, path, testID(), 7, want)
	if err := l.Retire(60, 8); err != nil {
		t.Fatal(err)
	}
	if err := l.Append([]Record{mapRec(seq, 1, 1)}); !errors.Is(err, ErrFull) {
		t.Errorf("half not wholly retired: Append = %v, want ErrFull", err)
	}
	if err := l.SetInstance(5, "x"); !errors.Is(err, ErrFull) {
		t.Errorf("SetInstance = %v, want ErrFull", err)
	}
	if err := l.Retire(61, 9); err != nil {
		t.Fatal(err)
	}
	if got := l.Fill(); got != 0.5 {
		t.Errorf("Fill = %v, want 0.5", got)
	}
	want = want[61:]
	fill()
	wantRecords(t, path, testID(), 9, want)
	if _, _, err := Read(path, testID(), 8); !errors.Is(err, ErrMapOlder) {
		t.Errorf("map of commit 8: %v, want ErrMapOlder", err)
	}
	// A batch goes into one half as a whole.
	if err := l.Retire(seq-1, 10); err != nil {
		t.Fatal(err)
	}
	if got := l.Fill(); got != 0 {
		t.Errorf("Fill with all retired = %v, want 0", got)
	}
	var batch []Record
	for range 40 {
		batch = append(batch, mapRec(seq, int(seq), 2))
		seq++
	}
	for range 3 {
		if err := l.Append(batch); err != nil {
			t.Fatal(err)
		}
		if err := l.Retire(seq, 11); err != nil {
			t.Fatal(err)
		}
		for i := range batch {
			batch[i].Seq = seq
			seq++
		}
	}
	got, reason, err := Read(path, testID(), 11)
	if err != nil || reason != "" || len(got) != 80 {
		t.Errorf("Read gives %d records, %q, %v, want the last two batches", len(got), reason, err)
	}
}

func TestGap(t *testing.T) {
	path := mustCreate(t, 2*minHalf)
	l := mustOpen(t, path, testID(), 7, 1)
	var want []Record
	for seq := uint64(1); seq <= 100; seq++ {
		want = append(want, mapRec(seq, int(seq), 1))
		if err := l.Append(want[seq-1:]); err != nil {
			t.Fatal(err)
		}
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	place := func(seq int64) int64 { // where record seq is
		if seq <= 61 {
			return recordsAt + (seq+2)*recordSize
		}
		return minHalf + recordsAt + (seq-62+3)*recordSize
	}
	for _, seq := range []int64{1, 30, 60, 61, 62, 99} {
		bad := bytes.Clone(good)
		bad[place(seq)+9] ^= 4
		got, reason, err := read(bytes.NewReader(bad), int64(len(bad)), testID(), 7)
		if !errors.Is(err, ErrGap) || reason != "" || !slices.Equal(got, want[:seq-1]) {
			t.Errorf("record %d damaged: %d records, %q, %v, want ErrGap", seq, len(got), reason, err)
		}
	}
	bad := bytes.Clone(good)
	bad[place(100)+9] ^= 4
	if got, reason, err := read(bytes.NewReader(bad), int64(len(bad)), testID(), 7); err != nil || reason != "" || !slices.Equal(got, want[:99]) {
		t.Errorf("last record torn: %d records, %q, %v, want 99", len(got), reason, err)
	}
	clear(bad[:recordsAt])
	if got, _, err := read(bytes.NewReader(bad), int64(len(bad)), testID(), 7); !errors.Is(err, ErrGap) || len(got) != 0 {
		t.Errorf("first half without header: %d records, %v, want ErrGap", len(got), err)
	}
	bad[minHalf+100] ^= 1
	bad[minHalf+blockSize+100] ^= 1
	if _, reason, err := read(bytes.NewReader(bad), int64(len(bad)), testID(), 7); err != nil || reason == "" {
		t.Errorf("no header: %q, %v, want a reason", reason, err)
	}
}

// TestFailedWrite makes writes fail half-way: what was refused must not come
// back in a replay.
func TestFailedWrite(t *testing.T) {
	for _, short := range []int{0, 64, 100, 4095} {
		path := mustCreate(t, 64<<10)
		l := mustOpen(t, path, testID(), 7, 1)
		ok := []Record{mapRec(1, 1, 1)}
		if err := l.Append(ok); err != nil {
			t.Fatal(err)
		}
		calls := 0
		l.pwrite = func(fd int, p []byte, off int64) (int, error) {
			switch calls++; calls {
			case 1:
				return 0, unix.EINTR
			case 2:
				n, err := unix.Pwrite(fd, p[:min(short, len(p))], off)
				if n > 0 {
					return n, err
				}
				return 0, unix.EIO
			case 3:
				if short > 0 {
					return 0, unix.EIO
				}
			}
			return unix.Pwrite(fd, p, off)
		}
		var batch []Record
		for i := range 100 {
			batch = append(batch, mapRec(uint64(i+2), i, 9))
		}
		if err := l.Append(batch); !errors.Is(err, ErrFailed) || !errors.Is(err, unix.EIO) {
			t.Errorf("Append = %v, want ErrFailed", err)
		}
		if err := l.Append([]Record{mapRec(500, 1, 1)}); !errors.Is(err, ErrFailed) {
			t.Errorf("later Append = %v, want ErrFailed", err)
		}
		if err := l.Retire(1, 9); err != nil {
			t.Errorf("Retire = %v", err)
		}
		wantRecords(t, path, testID(), 9, ok)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	small := filepath.Join(dir, "small")
	if err := os.WriteFile(small, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(small, testID(), 1, 1); !errors.Is(err, ErrNotLog) {
		t.Errorf("Open of 100 bytes = %v, want ErrNotLog", err)
	}
	if _, err := Open(filepath.Join(dir, "none"), testID(), 1, 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Open of nothing = %v, want not exist", err)
	}
	if _, _, err := Read(filepath.Join(dir, "none"), testID(), 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Read of nothing = %v, want not exist", err)
	}
	if err := Create(filepath.Join(dir, "tiny"), 100); !errors.Is(err, ErrInvalid) {
		t.Errorf("Create of 100 bytes = %v, want ErrInvalid", err)
	}
	id := testID()
	id.BootID = strings.Repeat("b", 128)
	path := mustCreate(t, 64<<10)
	if _, err := Open(path, id, 1, 1); !errors.Is(err, ErrInvalid) {
		t.Errorf("long boot id: %v, want ErrInvalid", err)
	}
	id = testID()
	for i := range extent.MaxBackingID {
		id.Instances[i+1] = "x"
	}
	if _, err := Open(path, id, 1, 1); !errors.Is(err, ErrNotLog) {
		t.Errorf("too small for its backings: %v, want ErrNotLog", err)
	}
	l := mustOpen(t, mustCreate(t, 1<<20), id, 1, 1)
	if err := l.Append([]Record{mapRec(1, 1, 1)}); err != nil {
		t.Error(err)
	}
}

func TestConcurrentAppend(t *testing.T) {
	path := mustCreate(t, 256<<10)
	l := mustOpen(t, path, testID(), 7, 1)
	var mu sync.Mutex
	var seq uint64
	var want []Record
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				mu.Lock()
				seq++
				r := mapRec(seq, int(seq), 1)
				want = append(want, r)
				err := l.Append([]Record{r})
				mu.Unlock()
				if err != nil {
					t.Error(err)
				}
				l.Fill()
			}
		})
	}
	wg.Go(func() {
		for s := range uint64(100) {
			if err := l.Retire(s, 7); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	wantRecords(t, path, testID(), 7, want)
}
