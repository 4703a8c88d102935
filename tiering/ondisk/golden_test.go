package ondisk

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files; only a new format version may do that")

// golden compares got with the file, which is a hex dump without the zeroes at
// the end, and returns its bytes padded to the length of got.
func golden(t *testing.T, name string, got []byte) []byte {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, dump(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(string(bytes.ReplaceAll(text, []byte("\n"), nil)))
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, make([]byte, len(got)-len(want))...)
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from what is written now:\n%s", file, dump(got))
	}
	return want
}

func dump(b []byte) []byte {
	b = bytes.TrimRight(b, "\x00")
	var out bytes.Buffer
	for len(b) > 0 {
		n := min(32, len(b))
		out.WriteString(hex.EncodeToString(b[:n]) + "\n")
		b = b[n:]
	}
	return out.Bytes()
}

// TestGolden reads structures that the first version wrote.
func TestGolden(t *testing.T) {
	l := mustLayout(t, testSize, 64<<10)
	written := newMem(testSize)
	wantSB := testSuperblock(l)
	wantStamp := Stamp{Commit: 0x0102030405060708, Incarnation: 0x1112131415161718}
	wantEntries := []SlotUpdate{{1, entry(Owner, 0x01020304, 0x1112131415161718, 0x2122232425262728)}, {3, entry(Tombstone, 2, 3, 4)}}
	wantVolumes := testVolumes(9, 3)
	wantVolumes.Volumes[1].State = VolumeDeleting
	for _, err := range []error{
		WriteSuperblock(bg, written, wantSB),
		NewStamps(written, poolA, backA, l).Write(bg, wantStamp),
		mustTable(written, l).Write(bg, wantEntries),
		WriteVolumeTable(bg, written, l, poolA, wantVolumes),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}

	st := newMem(testSize)
	for name, off := range map[string]int64{
		"superblock-front-v1.hex": l.FrontSuperblock,
		"superblock-end-v1.hex":   l.EndSuperblock,
		"stamp-v1.hex":            l.StampOffset[0],
		"slottable-v1.hex":        l.SlotTableOffset,
		"volumetable-v1.hex":      l.VolumeTableOffset[0],
	} {
		copy(st.now[off:], golden(t, name, written.now[off:off+blockSize]))
	}
	if got, err := ReadSuperblock(bg, st); err != nil || !reflect.DeepEqual(got, wantSB) {
		t.Errorf("superblock = %+v, %v\nwant %+v", got, err, wantSB)
	}
	clear(st.now[:superblockArea])
	if got, err := ReadSuperblock(bg, st); err != nil || !reflect.DeepEqual(got, wantSB) {
		t.Errorf("end superblock = %+v, %v\nwant %+v", got, err, wantSB)
	}
	if got, err := NewStamps(st, poolA, backA, l).Read(bg); err != nil || got != wantStamp {
		t.Errorf("stamp = %+v, %v", got, err)
	}
	for _, u := range wantEntries {
		if got, valid, err := mustTable(st, l).Read(bg, u.Slot); err != nil || !valid || got != u.Entry {
			t.Errorf("slot %d: %v, %v, %v, want %v", u.Slot, got, valid, err, u.Entry)
		}
	}
	if got, err := ReadVolumeTable(bg, st, l, poolA); err != nil || !reflect.DeepEqual(got, wantVolumes) {
		t.Errorf("volume table = %+v, %v\nwant %+v", got, err, wantVolumes)
	}
}
