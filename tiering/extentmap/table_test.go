package extentmap

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"tierd/tiering/extent"
)

func mustTable(t testing.TB, n extent.Index) *Table {
	t.Helper()
	table, err := NewTable(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	return table
}

func TestTable(t *testing.T) {
	const n = 3*segmentEntries + 100
	table := mustTable(t, 10)
	if err := table.Grow(n); err != nil {
		t.Fatal(err)
	}
	if err := table.Grow(5); err != nil || table.Len() != n {
		t.Errorf("Len after a smaller Grow = %d, %v, want %d", table.Len(), err, n)
	}
	model := make(map[extent.Index]extent.Entry)
	rng := rand.New(rand.NewPCG(1, 2))
	set := func(i extent.Index) {
		e := table.Load(i).At(loc(1+rng.IntN(1000), rng.IntN(1<<32)))
		table.Store(i, e)
		model[i] = e
	}
	for _, i := range []extent.Index{0, 511, 512, segmentEntries - 1, segmentEntries, 3*segmentEntries - 1, n - 1} {
		set(i)
	}
	for range 1000 {
		// Segment 1 stays nearly untouched.
		set(extent.Index(rng.IntN(2))*2*segmentEntries + extent.Index(rng.IntN(100)))
	}
	last, seen := -1, 0
	table.Range(func(i extent.Index, e extent.Entry) bool {
		if int(i) <= last || model[i] != e {
			t.Fatalf("Range gives %v at %d after %d, want %v", e, i, last, model[i])
		}
		last = int(i)
		seen++
		return true
	})
	if seen != len(model) {
		t.Errorf("Range gives %d entries, want %d", seen, len(model))
	}
	seen = 0
	table.Range(func(extent.Index, extent.Entry) bool { seen++; return seen < 3 })
	if seen != 3 {
		t.Errorf("Range went on for %d calls, want 3", seen)
	}
}

// Close waits for a Range, and none sees anything after it.
func TestTableRangeBesideClose(t *testing.T) {
	table := mustTable(t, 1000)
	for i := range extent.Index(1000) {
		table.Store(i, extent.Entry(0).At(loc(1, 1)))
	}
	closed := make(chan error, 1)
	n := 0
	table.Range(func(extent.Index, extent.Entry) bool {
		if n++; n == 1 {
			go func() { closed <- table.Close() }()
			select {
			case <-closed:
				t.Error("Close has not waited")
				return false
			case <-time.After(50 * time.Millisecond):
			}
		}
		return true
	})
	if err := <-closed; err != nil || n != 1000 {
		t.Errorf("Close = %v after %d extents, want 1000", err, n)
	}
	table.Range(func(extent.Index, extent.Entry) bool { t.Error("an extent after Close"); return false })
}

func TestTableCompareAndSwap(t *testing.T) {
	table := mustTable(t, 1000)
	a := extent.Entry(0).At(loc(1, 1))
	if !table.CompareAndSwap(700, 0, a) || table.CompareAndSwap(700, 0, a) || table.Load(700) != a {
		t.Errorf("entry = %v", table.Load(700))
	}
	found := false
	table.Range(func(i extent.Index, _ extent.Entry) bool { found = i == 700; return true })
	if !found {
		t.Error("Range misses an entry set by CompareAndSwap")
	}
}

func TestAllMapped(t *testing.T) {
	const n = segmentEntries + 50
	table := mustTable(t, n)
	for i := extent.Index(segmentEntries - 10); i < segmentEntries+10; i++ {
		table.Store(i, extent.Entry(0).At(loc(1, int(i))))
	}
	hole := table.Load(segmentEntries + 5).At(extent.Location{})
	tests := []struct {
		first, last extent.Index
		want        bool
	}{
		{segmentEntries - 10, segmentEntries + 9, true},
		{segmentEntries - 10, segmentEntries + 10, false},
		{segmentEntries - 11, segmentEntries, false},
		{segmentEntries, segmentEntries, true},
		{0, 0, false},
		{n - 1, n, false},
	}
	for _, tt := range tests {
		if got := table.AllMapped(tt.first, tt.last); got != tt.want {
			t.Errorf("AllMapped(%d, %d) = %v, want %v", tt.first, tt.last, got, tt.want)
		}
	}
	table.Store(segmentEntries+5, hole)
	if table.AllMapped(segmentEntries, segmentEntries+9) {
		t.Error("AllMapped is true over an unmapped extent")
	}
}

func TestTableClosed(t *testing.T) {
	table := mustTable(t, 1)
	table.Close()
	if err := table.Grow(10); err == nil {
		t.Error("Grow of a closed table: no error")
	}
	if err := table.Close(); err != nil || table.Len() != 0 {
		t.Errorf("second Close = %v, Len = %d", err, table.Len())
	}
}

func TestTableTooLarge(t *testing.T) {
	if table, err := NewTable(1 << 46); err == nil {
		table.Close()
		t.Error("a table of 512 TiB: no error")
	}
}

// TestTableConcurrent is for the race detector, and for Grow under readers.
func TestTableConcurrent(t *testing.T) {
	table := mustTable(t, 100)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range extent.Index(20000) {
				k := (i*7 + extent.Index(g)) % table.Len()
				e := table.Load(k)
				table.CompareAndSwap(k, e, e.At(loc(1+g, int(k))))
				if l := table.Load(k).Location(); l.Slot != extent.Slot(k) {
					t.Errorf("extent %d is in %v", k, l)
					return
				}
			}
		})
	}
	for i := extent.Index(1); i < 6; i++ {
		if err := table.Grow(i * segmentEntries / 2); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}

func BenchmarkTableLoad(b *testing.B) {
	table := mustTable(b, 1<<20)
	for i := range extent.Index(1 << 20) {
		table.Store(i, 1)
	}
	b.ReportAllocs()
	var sum extent.Entry
	i := extent.Index(0)
	for b.Loop() {
		sum += table.Load(i)
		i = (i + 4099) & (1<<20 - 1)
	}
	_ = sum
}

func BenchmarkTableStore(b *testing.B) {
	table := mustTable(b, 1<<20)
	b.ReportAllocs()
	i := extent.Index(0)
	for b.Loop() {
		table.Store(i, 1)
		i = (i + 4099) & (1<<20 - 1)
	}
}

func BenchmarkTableRangeSparse(b *testing.B) {
	table := mustTable(b, 1<<27) // 32 TiB of 256 KiB extents
	for i := extent.Index(0); i < 1<<27; i += 1 << 20 {
		table.Store(i, 1)
	}
	for b.Loop() {
		table.Range(func(extent.Index, extent.Entry) bool { return true })
	}
}
