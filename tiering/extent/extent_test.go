package extent

import (
	"slices"
	"testing"
)

func TestNewSize(t *testing.T) {
	for _, n := range []int64{0, -1, 1, 4096, MinSize - 1, MinSize + 1, MinSize * 3, MaxSize * 2} {
		if s, err := NewSize(n); err == nil {
			t.Errorf("NewSize(%d) = %v, want an error", n, s)
		}
	}
	for _, n := range []int64{MinSize, 1 << 20, MaxSize} {
		s, err := NewSize(n)
		if err != nil || s.Bytes() != n {
			t.Errorf("NewSize(%d) = %v, %v", n, s, err)
		}
	}
}

func TestSplit(t *testing.T) {
	s, err := NewSize(64 << 10)
	if err != nil {
		t.Fatal(err)
	}
	const k = 64 << 10
	tests := []struct {
		off, n int64
		want   []Piece
	}{
		{0, 0, nil},
		{0, 1, []Piece{{0, 0, 1, 0}}},
		{k - 1, 2, []Piece{{0, k - 1, 1, 0}, {1, 0, 1, 1}}},
		{k, k, []Piece{{1, 0, k, 0}}},
		{k + 5, 2 * k, []Piece{{1, 5, k - 5, 0}, {2, 0, k, k - 5}, {3, 0, 5, 2*k - 5}}},
	}
	for _, tt := range tests {
		if got := slices.Collect(s.Split(tt.off, tt.n)); !slices.Equal(got, tt.want) {
			t.Errorf("Split(%d, %d) = %v, want %v", tt.off, tt.n, got, tt.want)
		}
	}
}

func TestEntry(t *testing.T) {
	var e Entry
	if e.Mapped() || !e.Location().IsZero() {
		t.Errorf("zero entry %v is mapped", e)
	}
	l := Location{Backing: MaxBackingID, Slot: 1<<32 - 1}
	m := e.At(l)
	if got := m.Location(); got != l {
		t.Errorf("Location = %v, want %v", got, l)
	}
	if got := m.Generation(); got != 1 {
		t.Errorf("Generation = %d, want 1", got)
	}
	if s := m | FlagStaged; !s.Staged() || !s.SamePlace(m) || s.Location() != l {
		t.Errorf("flags change the place: %v", s)
	}
	if m.SamePlace(m.At(l)) {
		t.Error("a new generation at the same slot looks like the same place")
	}
	for range 1024 {
		e = e.At(l)
	}
	if got := e.Generation(); got != 0 {
		t.Errorf("Generation after 1024 changes = %d, want 0", got)
	}
	if e.At(Location{}).Mapped() {
		t.Error("an unmapped entry is mapped")
	}
}
