package ondisk

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"tierd/tiering/extent"
)

func mustTable(st *memStore, l Layout) *SlotTable { return NewSlotTable(st, poolA, backA, 2, l) }

func entry(k Kind, v, i, seq int) SlotEntry {
	return SlotEntry{Kind: k, Key: extent.Key{Volume: extent.VolumeID(v), Index: extent.Index(i)}, Seq: uint64(seq)}
}

func TestSlotTableModel(t *testing.T) {
	rng := seeded(t)
	l := mustLayout(t, 1<<30, 64<<10)
	st := newMem(l.DataOffset)
	table := mustTable(st, l)
	model := make(map[extent.Slot]SlotEntry)
	for range 30 {
		var ups []SlotUpdate
		for range rng.IntN(500) {
			s := extent.Slot(rng.IntN(int(l.Slots)))
			if rng.IntN(2) == 0 {
				s = extent.Slot(rng.IntN(300))
			}
			e := entry(Kind(rng.IntN(3)), 1+rng.IntN(5), rng.IntN(1<<40), rng.Int())
			if e.Kind == Free {
				e = SlotEntry{}
			}
			ups = append(ups, SlotUpdate{s, e})
			model[s] = e
		}
		before := append([]SlotUpdate(nil), ups...)
		if err := table.Write(bg, ups); err != nil {
			t.Fatal(err)
		}
		for i := range ups {
			if ups[i] != before[i] {
				t.Fatal("Write changed its argument")
			}
		}
	}
	next := extent.Slot(0)
	err := mustTable(st, l).Scan(bg, func(s extent.Slot, e SlotEntry, valid bool) bool {
		if s != next || !valid || e != model[s] {
			t.Fatalf("slot %d (want %d): %v %v, want %v", s, next, e, valid, model[s])
		}
		next++
		return true
	})
	if err != nil || uint32(next) != l.Slots {
		t.Errorf("Scan saw %d slots of %d, %v", next, l.Slots, err)
	}
	for s, want := range model {
		if got, valid, err := table.Read(bg, s); err != nil || !valid || got != want {
			t.Errorf("Read(%d) = %v, %v, %v, want %v", s, got, valid, err, want)
		}
	}
	if st.syncs != 0 {
		t.Errorf("%d syncs, want none", st.syncs)
	}
	if err := table.Zero(bg); err != nil {
		t.Fatal(err)
	}
	n := 0
	err = table.Scan(bg, func(_ extent.Slot, e SlotEntry, valid bool) bool {
		if e.Kind != Free || !valid {
			t.Errorf("entry after Zero: %v", e)
		}
		n++
		return n < 10
	})
	if err != nil || n != 10 {
		t.Errorf("Scan stopped after %d, %v, want 10", n, err)
	}
}

// TestSlotEntryIsTied checks that an entry is valid in its place alone.
func TestSlotEntryIsTied(t *testing.T) {
	l := mustLayout(t, testSize, 64<<10)
	st := newMem(testSize)
	want := entry(Owner, 3, 4, 5)
	if err := mustTable(st, l).Write(bg, []SlotUpdate{{7, want}}); err != nil {
		t.Fatal(err)
	}
	others := map[string]*SlotTable{
		"pool":         NewSlotTable(st, poolB, backA, 2, l),
		"backing uuid": NewSlotTable(st, poolA, poolB, 2, l),
		"backing id":   NewSlotTable(st, poolA, backA, 3, l),
	}
	for name, table := range others {
		if e, valid, err := table.Read(bg, 7); valid || err != nil {
			t.Errorf("entry of another %s: %v is valid, %v", name, e, err)
		}
	}
	at := l.SlotTableOffset + 7*entrySize
	copy(st.now[at+entrySize:], st.now[at:at+entrySize])
	for i := range int64(entrySize) {
		st.now[at+i] ^= 0x10
		if e, valid, _ := mustTable(st, l).Read(bg, 7); valid {
			t.Errorf("byte %d changed: %v is valid", i, e)
		}
		st.now[at+i] ^= 0x10
	}
	bad := 0
	err := mustTable(st, l).Scan(bg, func(s extent.Slot, e SlotEntry, valid bool) bool {
		if !valid {
			bad++
		}
		if s == 8 && valid || s == 7 && e != want {
			t.Errorf("slot %d: %v, %v", s, e, valid)
		}
		return true
	})
	if err != nil || bad != 1 {
		t.Errorf("Scan finds %d bad entries, %v, want 1", bad, err)
	}
	// A write beside it leaves the bad entry alone.
	if err := mustTable(st, l).Write(bg, []SlotUpdate{{9, want}}); err != nil {
		t.Fatal(err)
	}
	if _, valid, _ := mustTable(st, l).Read(bg, 8); valid {
		t.Error("a bad entry became valid")
	}
}

func TestSlotTableRefuses(t *testing.T) {
	l := mustLayout(t, testSize, 64<<10)
	table := mustTable(newMem(testSize), l)
	beyond := extent.Slot(l.TableSlots)
	if err := table.Write(bg, []SlotUpdate{{beyond, entry(Owner, 1, 1, 1)}}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Write beyond the table = %v, want ErrTooLarge", err)
	}
	if _, _, err := table.Read(bg, beyond); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Read beyond the table = %v, want ErrTooLarge", err)
	}
	if err := table.Write(bg, []SlotUpdate{{1, SlotEntry{Kind: 3}}}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Write of kind 3 = %v, want ErrTooLarge", err)
	}
}

// TestSlotTableTorn: whatever sectors arrive, each entry is old or new.
func TestSlotTableTorn(t *testing.T) {
	rng := seeded(t)
	l := mustLayout(t, testSize, 64<<10)
	st := newMem(testSize)
	table := mustTable(st, l)
	write := func(seq int) {
		var ups []SlotUpdate
		for s := extent.Slot(0); s < 100; s += 3 {
			ups = append(ups, SlotUpdate{s, entry(Owner, 1, int(s), seq)})
		}
		if err := table.Write(bg, ups); err != nil {
			t.Fatal(err)
		}
	}
	write(1)
	if err := st.Sync(bg); err != nil {
		t.Fatal(err)
	}
	write(2)
	st.everyCut(rng, func(c *memStore) {
		err := mustTable(c, l).Scan(bg, func(s extent.Slot, e SlotEntry, valid bool) bool {
			if owned := s < 100 && s%3 == 0; !valid || owned && e.Seq != 1 && e.Seq != 2 || !owned && e.Kind != Free {
				t.Fatalf("slot %d after a cut: %v, %v", s, e, valid)
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// countingStore counts calls, and holds back reads until enough of them wait.
type countingStore struct {
	*memStore
	mu            sync.Mutex
	reads, writes int
	together      int // reads that go on together
	arrived       chan struct{}
}

func (s *countingStore) ReadAt(ctx context.Context, p []byte, off int64) error {
	s.mu.Lock()
	s.reads++
	if s.reads == s.together {
		close(s.arrived)
	}
	wait := s.together > 0
	s.mu.Unlock()
	if wait {
		select {
		case <-s.arrived:
		case <-time.After(time.Minute):
			return errors.New("the reads of a write come one after the other")
		}
	}
	return s.memStore.ReadAt(ctx, p, off)
}

func (s *countingStore) WriteAt(ctx context.Context, p []byte, off int64) error {
	s.mu.Lock()
	s.writes++
	s.mu.Unlock()
	return s.memStore.WriteAt(ctx, p, off)
}

// calls returns how many there were since the last time.
func (s *countingStore) calls() [2]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := [2]int{s.reads, s.writes}
	s.reads, s.writes, s.together = 0, 0, 0
	return n
}

// TestSlotTableCalls: runs of blocks are read and written side by side, one call
// for neighbours, and a block that was written before is not read again.
func TestSlotTableCalls(t *testing.T) {
	l := mustLayout(t, 1<<30, 64<<10)
	st := &countingStore{memStore: newMem(l.DataOffset), together: 3, arrived: make(chan struct{})}
	table := NewSlotTable(st, poolA, backA, 2, l)
	write := func(blocks ...int) {
		t.Helper()
		var ups []SlotUpdate
		for i, b := range blocks {
			ups = append(ups, SlotUpdate{extent.Slot(b*EntriesPerBlock + i), entry(Owner, 1, b, 1)})
		}
		if err := table.Write(bg, ups); err != nil {
			t.Fatal(err)
		}
	}
	write(0, 1, 10, 20)
	if got, want := st.calls(), [2]int{3, 3}; got != want {
		t.Errorf("blocks 0, 1, 10 and 20: %v reads and writes, want %v", got, want)
	}
	write(0, 20)
	if got, want := st.calls(), [2]int{0, 2}; got != want {
		t.Errorf("blocks 0 and 20 again: %v reads and writes, want %v", got, want)
	}
	write(1, 2)
	if got, want := st.calls(), [2]int{1, 1}; got != want {
		t.Errorf("a known block and a new one: %v reads and writes, want %v", got, want)
	}
	for _, b := range []int{0, 1, 2, 10, 20} {
		found := 0
		err := mustTable(st.memStore, l).ScanRange(bg, extent.Slot(b*EntriesPerBlock), EntriesPerBlock, func(_ extent.Slot, e SlotEntry, valid bool) bool {
			if !valid {
				t.Errorf("block %d has a bad entry", b)
			}
			if e.Kind == Owner {
				found++
			}
			return true
		})
		if want := map[int]int{0: 1, 1: 2, 2: 1, 10: 1, 20: 2}[b]; err != nil || found != want {
			t.Errorf("block %d has %d entries, %v, want %d", b, found, err, want)
		}
	}

	// What a failed write left behind is looked at.
	st.failAt = 1
	if err := table.Write(bg, []SlotUpdate{{5, entry(Owner, 1, 1, 1)}}); !errors.Is(err, errInjected) {
		t.Fatalf("Write = %v", err)
	}
	st.calls()
	write(0)
	if got, want := st.calls(), [2]int{1, 1}; got != want {
		t.Errorf("after a failed write: %v reads and writes, want %v", got, want)
	}
}

func TestSlotTableWriteIf(t *testing.T) {
	l := mustLayout(t, testSize, 64<<10)
	st := &countingStore{memStore: newMem(testSize)}
	table := NewSlotTable(st, poolA, backA, 2, l)
	old := entry(Owner, 1, 1, 9)
	if err := table.Write(bg, []SlotUpdate{{3, old}}); err != nil {
		t.Fatal(err)
	}
	st.calls()
	older := func(u SlotUpdate, now SlotEntry, valid bool) bool { return valid && now.Seq < u.Entry.Seq }
	n, err := table.WriteIf(bg, []SlotUpdate{{3, entry(Owner, 2, 2, 5)}, {4, entry(Owner, 2, 3, 5)}}, older)
	if n != 1 || err != nil {
		t.Errorf("WriteIf = %d, %v, want 1", n, err)
	}
	if n, err := table.WriteIf(bg, []SlotUpdate{{3, entry(Owner, 2, 2, 5)}}, older); n != 0 || err != nil {
		t.Errorf("WriteIf of nothing = %d, %v", n, err)
	}
	if got := st.calls()[1]; got != 1 {
		t.Errorf("%d writes, want that of the entry that is wanted", got)
	}
	for s, want := range map[extent.Slot]SlotEntry{3: old, 4: entry(Owner, 2, 3, 5)} {
		if got, _, err := table.Read(bg, s); err != nil || got != want {
			t.Errorf("slot %d: %v, %v, want %v", s, got, err, want)
		}
	}
}

// TestSlotTableMemory: no more blocks are kept than agreed, whatever is written.
func TestSlotTableMemory(t *testing.T) {
	l := mustLayout(t, 4<<30, 64<<10)
	table := mustTable(newMem(l.DataOffset), l)
	for b := range 2 * recentBlocks {
		s := extent.Slot(b * EntriesPerBlock % int(l.Slots))
		if err := table.Write(bg, []SlotUpdate{{s, entry(Owner, 1, b, 1)}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(table.recent); n != recentBlocks {
		t.Errorf("%d blocks are kept, want %d", n, recentBlocks)
	}
}
