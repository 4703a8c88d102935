package alloc

import (
	"math/rand/v2"
	"testing"

	"tierd/tiering/extent"
)

func makeClean(t *testing.T, s *Slots, n int) {
	t.Helper()
	for range n {
		slot, ok := s.TakeFree()
		if !ok {
			t.Fatal("no free slot to clean")
		}
		s.Cleaned(slot)
	}
}

func TestOnlyCleanSlotsAreGivenOut(t *testing.T) {
	s := New(4)
	if _, ok := s.Reserve(); ok {
		t.Fatal("a slot was given out before any was clean")
	}
	if err := s.Claim(1); err != nil {
		t.Fatal(err)
	}
	makeClean(t, s, 2)
	for _, want := range []extent.Slot{0, 2} {
		if got, ok := s.Reserve(); !ok || got != want {
			t.Errorf("Reserve = %d, %v; want %d", got, ok, want)
		}
	}
	if got, ok := s.Reserve(); ok {
		t.Errorf("Reserve gave out %d, which is not clean", got)
	}
	s.Vacate(0)
	makeClean(t, s, 1) // slot 3: a vacated slot is not free yet
	if got, _ := s.Reserve(); got != 3 {
		t.Errorf("Reserve = %d, want 3", got)
	}
	if _, ok := s.TakeFree(); ok {
		t.Error("a vacated slot was cleaned before its commit")
	}
	s.Free(0)
	makeClean(t, s, 1)
	if got, ok := s.Reserve(); !ok || got != 0 {
		t.Errorf("Reserve = %d, %v; want 0", got, ok)
	}
}

func TestClaimRefuses(t *testing.T) {
	s := New(4)
	if err := s.Claim(4); err == nil {
		t.Error("a slot past the end was claimed")
	}
	if err := s.Claim(3); err != nil {
		t.Error(err)
	}
	if err := s.Claim(3); err == nil {
		t.Error("a slot was claimed twice")
	}
}

func TestWrongTransitionsPanic(t *testing.T) {
	tests := map[string]func(*Slots){
		"free of a used slot":      func(s *Slots) { s.Free(0) },
		"vacate of a free slot":    func(s *Slots) { s.Vacate(1) },
		"vacate twice":             func(s *Slots) { s.Vacate(0); s.Vacate(0) },
		"cleaned without cleaning": func(s *Slots) { s.Cleaned(1) },
	}
	for name, f := range tests {
		t.Run(name, func(t *testing.T) {
			s := New(2)
			if err := s.Claim(0); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f(s)
		})
	}
}

// TestRandomWalk drives the books with random calls against a plain map.
func TestRandomWalk(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	const n = 50
	s := New(n)
	var used, vac, taken []extent.Slot
	take := func(l *[]extent.Slot) (extent.Slot, bool) {
		if len(*l) == 0 {
			return 0, false
		}
		i := rnd.IntN(len(*l))
		v := (*l)[i]
		(*l)[i] = (*l)[len(*l)-1]
		*l = (*l)[:len(*l)-1]
		return v, true
	}
	owners := map[extent.Slot]bool{}
	for range 20000 {
		switch rnd.IntN(6) {
		case 0, 1:
			if slot, ok := s.Reserve(); ok {
				if owners[slot] {
					t.Fatalf("slot %d given out twice", slot)
				}
				owners[slot] = true
				used = append(used, slot)
			}
		case 2:
			if slot, ok := take(&used); ok {
				s.Vacate(slot)
				vac = append(vac, slot)
			}
		case 3:
			if slot, ok := take(&vac); ok {
				s.Free(slot)
				delete(owners, slot)
			}
		case 4:
			if slot, ok := s.TakeFree(); ok {
				if owners[slot] {
					t.Fatalf("slot %d is cleaned under its owner", slot)
				}
				taken = append(taken, slot)
			}
		case 5:
			if slot, ok := take(&taken); ok {
				if rnd.IntN(4) == 0 {
					s.NotCleaned(slot)
				} else {
					s.Cleaned(slot)
				}
			}
		}
		c := s.Counts()
		if c.Used != int64(len(used)) || c.Vacated != int64(len(vac)) || c.Cleaning != int64(len(taken)) ||
			c.Free+c.Cleaning+c.Clean+c.Used+c.Vacated != n {
			t.Fatalf("counts %+v with %d used, %d vacated, %d cleaning", c, len(used), len(vac), len(taken))
		}
	}
}
