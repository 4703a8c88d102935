package ondisk

import (
	"errors"
	"testing"

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
