package ondisk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"tierd/tiering/extent"
)

func TestNewLayout(t *testing.T) {
	for _, es := range []int64{64 << 10, 1 << 20, 4 << 20, 64 << 20} {
		size := mustSize(t, es)
		_, err := NewLayout(1<<20, size)
		if !errors.Is(err, ErrTooSmall) {
			t.Fatalf("extents of %d on 1 MiB: %v, want ErrTooSmall", es, err)
		}
		var least int64
		text := err.Error()
		if _, err := fmt.Sscanf(text[strings.Index(text, "at least"):], "at least %d", &least); err != nil {
			t.Fatalf("%q names no least size", text)
		}
		if l, err := NewLayout(least, size); err != nil || l.Slots != 1 {
			t.Errorf("extents of %d on the least size, %d: %d slots, %v, want 1", es, least, l.Slots, err)
		}
		if _, err := NewLayout(least-1, size); !errors.Is(err, ErrTooSmall) {
			t.Errorf("one byte less: %v, want ErrTooSmall", err)
		}
		for _, n := range []int64{16 << 20, 100<<20 + 12345, 1 << 30, 1<<40 + 1, 20 << 40, 1 << 50} {
			l, err := NewLayout(n, size)
			if errors.Is(err, ErrTooSmall) && n < least {
				continue
			}
			if err != nil {
				t.Errorf("NewLayout(%d, %d): %v", n, es, err)
				continue
			}
			end := l.SlotOffset(extent.Slot(l.Slots))
			if end > l.EndSuperblock || l.Slots < math.MaxUint32/128*128 && l.EndSuperblock-end >= 2*es {
				t.Errorf("size %d, extents %d: slots end at %d, superblock is at %d", n, es, end, l.EndSuperblock)
			}
			if int64(l.TableSlots) < min(4*int64(l.Slots), math.MaxUint32-127) {
				t.Errorf("size %d, extents %d: table for %d, %d slots", n, es, l.TableSlots, l.Slots)
			}
		}
	}
}

func TestLayoutGrow(t *testing.T) {
	l := mustLayout(t, 64<<20, 1<<20)
	g, err := l.Grow(128 << 20)
	if err != nil || g.Slots != l.Slots+64 || g.DataOffset != l.DataOffset {
		t.Errorf("Grow = %+v, %v, from %+v", g, err, l)
	}
	if g, err = l.Grow(1 << 40); err != nil || g.Slots != l.TableSlots {
		t.Errorf("Grow beyond the table = %d slots, %v, want %d", g.Slots, err, l.TableSlots)
	}
	if _, err := l.Grow(1 << 20); !errors.Is(err, ErrTooSmall) {
		t.Errorf("Grow to less = %v, want ErrTooSmall", err)
	}
}

func TestSuperblockRoundTrip(t *testing.T) {
	l := mustLayout(t, testSize, 64<<10)
	st := newMem(testSize)
	if _, err := ReadSuperblock(bg, st); !errors.Is(err, ErrNoSuperblock) {
		t.Errorf("blank backing: %v, want ErrNoSuperblock", err)
	}
	if err := Format(bg, st, l); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSuperblock(bg, st); !errors.Is(err, ErrNoSuperblock) {
		t.Errorf("formatted backing: %v, want ErrNoSuperblock", err)
	}
	sb := testSuperblock(l)
	for gen := uint64(1); gen < 4; gen++ {
		sb.Incarnation++
		if err := WriteSuperblock(bg, st, sb); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadSuperblock(bg, st); err != nil || !reflect.DeepEqual(got, sb) || got.Generation != gen {
			t.Errorf("ReadSuperblock = %+v, %v\nwant %+v", got, err, sb)
		}
	}
	// A stale struct does not write an older generation.
	old := testSuperblock(l)
	if err := WriteSuperblock(bg, st, old); err != nil || old.Generation != 4 {
		t.Errorf("generation = %d, %v, want 4", old.Generation, err)
	}
	if len(st.dirty) != 0 {
		t.Error("WriteSuperblock left something unsynced")
	}
	if err := Wipe(bg, st, l); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSuperblock(bg, st); !errors.Is(err, ErrNoSuperblock) {
		t.Errorf("wiped backing: %v, want ErrNoSuperblock", err)
	}
}

func TestSuperblockLargest(t *testing.T) {
	l := mustLayout(t, testSize, 64<<10)
	st := newMem(testSize)
	sb := testSuperblock(l)
	sb.Tiers, sb.Members = nil, nil
	name := strings.Repeat("n", 255)
	for i := range 256 {
		sb.Tiers = append(sb.Tiers, TierRecord{extent.TierID(i), name, name})
	}
	for i := range int(extent.MaxBackingID) {
		sb.Members = append(sb.Members, MemberRecord{ID: extent.BackingID(i + 1), State: MemberOK})
	}
	if err := WriteSuperblock(bg, st, sb); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadSuperblock(bg, st); err != nil || !reflect.DeepEqual(got, sb) {
		t.Errorf("ReadSuperblock differs, %v", err)
	}
	for what, edit := range map[string]func(*Superblock){
		"members": func(s *Superblock) { s.Members = append(s.Members, MemberRecord{}) },
		"name":    func(s *Superblock) { s.Tiers[0].Name += "n" },
		"backing": func(s *Superblock) { s.Backing = 0 },
	} {
		bad := *sb
		bad.Tiers = append([]TierRecord(nil), sb.Tiers...)
		edit(&bad)
		if err := WriteSuperblock(bg, st, &bad); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v, want ErrTooLarge", what, err)
		}
	}
}

func TestSuperblockFoundAfterDamage(t *testing.T) {
	l := mustLayout(t, testSize+100, 64<<10) // the size is no multiple of anything
	garbage := func(off int64) func(*memStore) {
		return func(m *memStore) {
			for i := range m.now[off : off+1<<20] {
				if off+int64(i) < m.Size() {
					m.now[off+int64(i)] = byte(i * 7)
				}
			}
		}
	}
	foreign := func(m *memStore) {
		other := newMem(m.Size())
		sb := testSuperblock(l)
		sb.PoolID = poolB
		if err := WriteSuperblock(bg, other, sb); err != nil {
			t.Fatal(err)
		}
		copy(m.now[:1<<20], other.now)
	}
	patch := func(at int64, v uint32) func(*memStore) {
		return func(m *memStore) {
			for _, off := range []int64{l.FrontSuperblock, l.EndSuperblock} {
				b := m.now[off : off+int64(binary.LittleEndian.Uint32(m.now[off+16:]))]
				binary.LittleEndian.PutUint32(b[at:], v)
				binary.LittleEndian.PutUint32(b[12:], headCRC(b, nil))
			}
		}
	}
	tests := []struct {
		name   string
		damage func(*memStore)
		want   error
		sb     bool
	}{
		{"none", func(*memStore) {}, nil, true},
		{"front lost", garbage(0), nil, true},
		{"end lost", garbage(l.EndSuperblock - (1<<20 - superblockArea - 100)), nil, true},
		{"front zeroed", func(m *memStore) { clear(m.now[:1<<20]) }, nil, true},
		{"both zeroed", func(m *memStore) { clear(m.now) }, ErrNoSuperblock, false},
		{"both damaged", func(m *memStore) { m.now[l.FrontSuperblock+40] ^= 1; m.now[l.EndSuperblock+40] ^= 1 }, ErrCorrupt, false},
		{"bad length", func(m *memStore) { m.now[l.FrontSuperblock+16] ^= 1; clear(m.now[l.EndSuperblock:]) }, ErrCorrupt, false},
		{"another pool in front", foreign, ErrCorrupt, false},
		{"later version", patch(8, 2), ErrNewerFormat, false},
		{"incompatible feature", patch(48, 1), ErrNewerFormat, false},
		{"end copy in front", func(m *memStore) {
			copy(m.now[l.FrontSuperblock:], m.now[l.EndSuperblock:])
			clear(m.now[l.EndSuperblock:])
		}, ErrCorrupt, false},
		{"cut short", func(m *memStore) { m.now = m.now[:10<<20] }, ErrShort, true},
		{"grown", func(m *memStore) { m.now = append(m.now, make([]byte, 1<<20)...); clear(m.now[4096:8192]) }, ErrNoSuperblock, false},
		{"grown, front whole", func(m *memStore) { m.now = append(m.now, make([]byte, 1<<20)...) }, nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			st := newMem(testSize + 100)
			want := testSuperblock(l)
			if err := WriteSuperblock(bg, st, want); err != nil {
				t.Fatal(err)
			}
			tt.damage(st)
			got, err := ReadSuperblock(bg, st)
			if !errors.Is(err, tt.want) || (got != nil) != tt.sb {
				t.Errorf("ReadSuperblock = %v, %v, want %v", got, err, tt.want)
			}
			if got != nil && !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestFeatures(t *testing.T) {
	tests := []struct {
		f        Features
		readOnly bool
		want     error
	}{
		{Features{}, false, nil},
		{Features{Compat: 1}, false, nil},
		{Features{ReadOnlyCompat: 2}, true, nil},
		{Features{ReadOnlyCompat: 2}, false, ErrReadOnlyFormat},
		{Features{Incompat: 4}, true, ErrNewerFormat},
	}
	for _, tt := range tests {
		if err := tt.f.Check(tt.readOnly); !errors.Is(err, tt.want) {
			t.Errorf("%+v.Check(%v) = %v, want %v", tt.f, tt.readOnly, err, tt.want)
		}
	}
}

// TestSuperblockTorn cuts the power at each sync of a write, with every kind
// of subset of the sectors lost, from sound and from half-written beginnings,
// and with superblocks of several blocks.
func TestSuperblockTorn(t *testing.T) {
	rng := seeded(t)
	l := mustLayout(t, testSize, 64<<10)
	long := func(inc uint64) *Superblock {
		sb := testSuperblock(l)
		sb.Incarnation = inc
		for i := range 400 {
			sb.Members = append(sb.Members, MemberRecord{ID: extent.BackingID(i + 10), Incarnation: inc, State: MemberOK})
		}
		return sb
	}
	base := newMem(testSize)
	if err := WriteSuperblock(bg, base, long(10)); err != nil {
		t.Fatal(err)
	}
	starts := map[string]*memStore{"sound": base}
	for name, off := range map[string]int64{"front torn": l.FrontSuperblock, "end torn": l.EndSuperblock} {
		c := base.clone()
		clear(c.now[off+512 : off+1024])
		starts[name] = c
	}
	for name, start := range starts {
		cuts := 0
		st := start.clone()
		st.onSync = func(st *memStore) {
			st.everyCut(rng, func(c *memStore) {
				cuts++
				got, err := ReadSuperblock(bg, c)
				if err != nil || got.Incarnation != 10 && got.Incarnation != 11 || !reflect.DeepEqual(got.Members, long(got.Incarnation).Members) {
					t.Fatalf("%s, after a cut: %+v, %v", name, got, err)
				}
			})
		}
		if err := WriteSuperblock(bg, st, long(11)); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadSuperblock(bg, st); err != nil || got.Incarnation != 11 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if cuts == 0 {
			t.Error("nothing was tried")
		}
	}
}

func TestSuperblockWriteFails(t *testing.T) {
	l := mustLayout(t, testSize, 64<<10)
	for n := 1; n <= 4; n++ {
		st := newMem(testSize)
		sb := testSuperblock(l)
		if err := WriteSuperblock(bg, st, sb); err != nil {
			t.Fatal(err)
		}
		st.failAt = n
		sb.Incarnation = 99
		if err := WriteSuperblock(bg, st, sb); !errors.Is(err, errInjected) {
			t.Errorf("call %d fails: %v", n, err)
		}
		got, err := ReadSuperblock(bg, st.cut(func(int, int64) bool { return false }))
		if err != nil || (got.Incarnation == 99) != (n >= 3) {
			t.Errorf("call %d fails: incarnation %d, %v", n, got.Incarnation, err)
		}
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	st := newMem(testSize)
	if err := WriteSuperblock(ctx, st, testSuperblock(l)); !errors.Is(err, context.Canceled) || !bytes.Equal(st.now, st.durable) {
		t.Errorf("cancelled: %v", err)
	}
}
