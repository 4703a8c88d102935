package ondisk

import (
	"errors"
	"testing"
)

func TestStamps(t *testing.T) {
	l := mustLayout(t, testSize, 64<<10)
	st := newMem(testSize)
	s := NewStamps(st, poolA, backA, l)
	if got, err := s.Read(bg); err != nil || got != (Stamp{}) {
		t.Errorf("blank: %v, %v", got, err)
	}
	for i := uint64(1); i < 6; i++ {
		want := Stamp{Commit: i * 100, Incarnation: i}
		if err := s.Write(bg, want); err != nil {
			t.Fatal(err)
		}
		if got, err := NewStamps(st, poolA, backA, l).Read(bg); err != nil || got != want {
			t.Errorf("Read = %v, %v, want %v", got, err, want)
		}
		if i == 3 {
			s = NewStamps(st, poolA, backA, l) // goes on without a Read
		}
	}
	if st.syncs != 0 {
		t.Errorf("%d syncs, want none", st.syncs)
	}
	for name, other := range map[string]*Stamps{
		"pool":    NewStamps(st, poolB, backA, l),
		"backing": NewStamps(st, poolA, poolB, l),
	} {
		if _, err := other.Read(bg); !errors.Is(err, ErrCorrupt) {
			t.Errorf("stamp of another %s: %v, want ErrCorrupt", name, err)
		}
		if err := other.Write(bg, Stamp{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("write over that of another %s: %v, want ErrCorrupt", name, err)
		}
	}
}

func TestStampTorn(t *testing.T) {
	rng := seeded(t)
	l := mustLayout(t, testSize, 64<<10)
	st := newMem(testSize)
	s := NewStamps(st, poolA, backA, l)
	for i := uint64(1); i < 5; i++ {
		if err := s.Write(bg, Stamp{Commit: i, Incarnation: 1}); err != nil {
			t.Fatal(err)
		}
		st.everyCut(rng, func(c *memStore) {
			got, err := NewStamps(c, poolA, backA, l).Read(bg)
			if err != nil || got.Commit != i && got.Commit != i-1 {
				t.Fatalf("after a cut in stamp %d: %v, %v", i, got, err)
			}
		})
		if err := st.Sync(bg); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStampWriteFails(t *testing.T) {
	l := mustLayout(t, testSize, 64<<10)
	st := newMem(testSize)
	s := NewStamps(st, poolA, backA, l)
	for i := uint64(1); i < 4; i++ {
		if err := s.Write(bg, Stamp{Commit: i}); err != nil {
			t.Fatal(err)
		}
		st.failAt = 1
		if err := s.Write(bg, Stamp{Commit: 99}); !errors.Is(err, errInjected) {
			t.Fatalf("Write = %v", err)
		}
		if got, err := NewStamps(st, poolA, backA, l).Read(bg); err != nil || got.Commit != i {
			t.Errorf("Read = %v, %v, want commit %d", got, err, i)
		}
	}
}
