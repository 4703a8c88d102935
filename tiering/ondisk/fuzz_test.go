package ondisk

import (
	"encoding/binary"
	"reflect"
	"testing"

	"tierd/tiering/extent"
)

// reseal makes the head of b fit its contents, so that the fuzzer gets past
// the CRC.
func reseal(b []byte, magic string, seed []byte) []byte {
	p := make([]byte, max(blockSize, roundUp(len(b))))
	copy(p, b)
	sealHead(p, magic, binary.LittleEndian.Uint64(p[24:]), seed)
	return p
}

func FuzzSuperblock(f *testing.F) {
	l := mustLayout(f, testSize, 64<<10)
	f.Add(testSuperblock(l).encode(copyFront)[:512], true)
	f.Add([]byte(superblockMagic), false)
	f.Fuzz(func(t *testing.T, b []byte, whole bool) {
		if len(b) > 1<<16 {
			return
		}
		if whole {
			b = reseal(b, superblockMagic, nil)
		}
		st := newMem(2*superblockArea + 2*blockSize)
		copy(st.now[blockSize:], b)
		got, err := ReadSuperblock(bg, st)
		if got == nil {
			if err == nil {
				t.Error("no superblock and no error")
			}
			return
		}
		again, err := decodeSuperblock(got.encode(copyFront), copyFront)
		if got.Version = FormatVersion; err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("decode of encode = %+v, %v\nwant %+v", again, err, got)
		}
	})
}

func FuzzVolumeTable(f *testing.F) {
	b, err := encodeVolumeTable(testVolumes(3, 5), volumeTableArea, poolA)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[:700], true)
	f.Add([]byte(volumeMagic), false)
	l := Layout{VolumeTableOffset: [2]int64{0, 1 << 17}, VolumeTableSize: 1 << 17}
	f.Fuzz(func(t *testing.T, b []byte, whole bool) {
		if len(b) > 1<<16 {
			return
		}
		if whole {
			b = reseal(b, volumeMagic, poolA[:])
		}
		st := newMem(1 << 18)
		copy(st.now, b)
		got, err := ReadVolumeTable(bg, st, l, poolA)
		if err != nil {
			return
		}
		p, err := encodeVolumeTable(got, 1<<20, poolA)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := decodeVolumeTable(p); err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("decode of encode = %+v, %v\nwant %+v", again, err, got)
		}
	})
}

func FuzzStamp(f *testing.F) {
	f.Add(uint64(1), uint64(2), []byte("x"), true)
	l := Layout{StampOffset: [2]int64{0, blockSize}}
	f.Fuzz(func(t *testing.T, commit, incarnation uint64, other []byte, second bool) {
		st := newMem(2 * blockSize)
		want := Stamp{Commit: commit, Incarnation: incarnation}
		if err := NewStamps(st, poolA, backA, l).Write(bg, want); err != nil {
			t.Fatal(err)
		}
		if len(other) > blockSize {
			return
		}
		if second {
			copy(st.now[blockSize:], other)
		} else {
			copy(st.now, other)
		}
		got, err := NewStamps(st, poolA, backA, l).Read(bg)
		if second && (err != nil || got != want) || !second && err == nil && got != want && got != (Stamp{}) {
			t.Errorf("Read = %v, %v, want %v", got, err, want)
		}
	})
}

func FuzzSlotEntry(f *testing.F) {
	table := NewSlotTable(nil, poolA, backA, 1, Layout{})
	b := make([]byte, entrySize)
	table.encode(b, 5, entry(Owner, 1, 2, 3))
	f.Add(b, uint32(5))
	f.Fuzz(func(t *testing.T, b []byte, slot uint32) {
		if len(b) < entrySize {
			return
		}
		s := extent.Slot(slot)
		e, valid := table.decode(b, s)
		if !valid {
			if e != (SlotEntry{}) {
				t.Errorf("invalid entry %v", e)
			}
			// With the right CRC the rest is taken as it is.
			binary.LittleEndian.PutUint32(b[28:], table.crc(b, s))
			if e, valid = table.decode(b, s); !valid {
				return
			}
		}
		p := make([]byte, entrySize)
		table.encode(p, s, e)
		if again, ok := table.decode(p, s); !ok || again != e {
			t.Errorf("decode of encode = %v, %v, want %v", again, ok, e)
		}
	})
}
