package ondisk

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"tierd/tiering/extent"
)

func testVolumes(gen uint64, n int) VolumeTable {
	t := VolumeTable{Generation: gen, NextVolume: extent.VolumeID(n + 1)}
	for i := range n {
		t.Volumes = append(t.Volumes, VolumeRecord{
			ID: extent.VolumeID(i + 1), UUID: uuid.UUID{byte(i), byte(gen)}, Name: fmt.Sprintf("vm-disk-%04d.example", i),
			Size: int64(i) << 30, Policy: "auto", State: VolumeActive, ReadOnly: i%2 == 1,
			Created: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC),
		})
		if i%7 == 5 {
			t.Volumes[i].Quota, t.Volumes[i].Clients = int64(i%2)<<30, strings.Repeat("client\n", i%50)+"last"
		}
	}
	return t
}

func TestVolumeTable(t *testing.T) {
	l := mustLayout(t, testSize, 64<<10)
	st := newMem(testSize)
	if got, err := ReadVolumeTable(bg, st, l, poolA); err != nil || !reflect.DeepEqual(got, VolumeTable{}) {
		t.Errorf("blank: %+v, %v", got, err)
	}
	if err := Format(bg, st, l); err != nil {
		t.Fatal(err)
	}
	for gen, n := range []int{3, 0, 10000, 1, 200} {
		want := testVolumes(uint64(gen+1), n)
		if err := WriteVolumeTable(bg, st, l, poolA, want); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadVolumeTable(bg, st, l, poolA); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("generation %d: table differs, %v", gen, err)
		}
	}
	if err := WriteVolumeTable(bg, st, l, poolA, testVolumes(5, 1)); !errors.Is(err, ErrCorrupt) {
		t.Errorf("same generation, other volumes: %v, want ErrCorrupt", err)
	}
	before := slices.Clone(st.now)
	if err := WriteVolumeTable(bg, st, l, poolA, testVolumes(5, 200)); err != nil || !slices.Equal(before, st.now) {
		t.Errorf("same table again: %v, want no error and no change", err)
	}
	if _, err := ReadVolumeTable(bg, st, l, poolB); !errors.Is(err, ErrCorrupt) {
		t.Errorf("table of another pool: %v, want ErrCorrupt", err)
	}
	st.now[l.VolumeTableOffset[1]+100] ^= 1
	if err := WriteVolumeTable(bg, st, l, poolA, testVolumes(5, 200)); err != nil {
		t.Errorf("same table again, beside a damaged copy: %v", err)
	}
	for i, c := range readVolumeCopies(bg, st, l, poolA) {
		if c.state != valid || c.table.Generation != 5 {
			t.Errorf("copy %d is not whole after that: state %d, generation %d", i, c.state, c.table.Generation)
		}
	}
	st.now[l.VolumeTableOffset[0]+100] ^= 1
	st.now[l.VolumeTableOffset[1]+100] ^= 1
	if _, err := ReadVolumeTable(bg, st, l, poolA); !errors.Is(err, ErrCorrupt) {
		t.Errorf("both damaged: %v, want ErrCorrupt", err)
	}
}

func TestVolumeTableRoom(t *testing.T) {
	l := mustLayout(t, testSize, 64<<10)
	st := newMem(testSize)
	long := testVolumes(1, 10000)
	for i := range long.Volumes {
		long.Volumes[i].Name = strings.Repeat("n", 255)
	}
	if err := WriteVolumeTable(bg, st, l, poolA, long); err != nil {
		t.Errorf("10,000 names of 255 bytes: %v", err)
	}
	for i := range long.Volumes {
		long.Volumes[i].Policy = long.Volumes[i].Name
	}
	if err := WriteVolumeTable(bg, st, l, poolA, long); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too much: %v, want ErrTooLarge", err)
	}
	long.Volumes[0].Name += "n"
	if err := WriteVolumeTable(bg, st, l, poolA, VolumeTable{Volumes: long.Volumes[:1]}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("name of 256 bytes: %v, want ErrTooLarge", err)
	}
}

func TestVolumeTableTorn(t *testing.T) {
	rng := seeded(t)
	l := mustLayout(t, testSize, 64<<10)
	st := newMem(testSize)
	if err := Format(bg, st, l); err != nil {
		t.Fatal(err)
	}
	if err := WriteVolumeTable(bg, st, l, poolA, VolumeTable{}); err != nil {
		t.Fatal(err)
	}
	if err := st.Sync(bg); err != nil {
		t.Fatal(err)
	}
	sizes := []int{0, 150, 40, 300}
	for gen := 1; gen < len(sizes); gen++ {
		if err := WriteVolumeTable(bg, st, l, poolA, testVolumes(uint64(gen), sizes[gen])); err != nil {
			t.Fatal(err)
		}
		st.everyCut(rng, func(c *memStore) {
			got, err := ReadVolumeTable(bg, c, l, poolA)
			if err != nil || int(got.Generation) != gen && int(got.Generation) != gen-1 || len(got.Volumes) != sizes[got.Generation] {
				t.Fatalf("after a cut in generation %d: generation %d of %d volumes, %v", gen, got.Generation, len(got.Volumes), err)
			}
		})
		if err := st.Sync(bg); err != nil {
			t.Fatal(err)
		}
	}
}
