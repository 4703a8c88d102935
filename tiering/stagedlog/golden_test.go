package stagedlog

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"tierd/tiering/extent"
)

var update = flag.Bool("update", false, "write the golden file; only a new format version may do that")

// goldenImage is a log of two halves that the first version could have written,
// with nonces that are known.
func goldenImage() ([]byte, []Record) {
	at := func(b, s int) extent.Location {
		return extent.Location{Backing: extent.BackingID(b), Slot: extent.Slot(s)}
	}
	recs := []Record{
		{Seq: 5<<40 | 1, Kind: Map, Volume: 0x01020304, First: 0x1112131415161718, Count: 1, To: at(1023, 0x21222324)},
		{Seq: 5<<40 | 2, Kind: Move, Volume: 7, First: 1, Count: 1, To: at(2, 8), From: at(1023, 9)},
		{Seq: 5<<40 | 3, Kind: Unmap, Volume: 7, First: 1, Count: 1, From: at(2, 8)},
		{Seq: 5<<40 | 9, Kind: UnmapRange, Volume: 7, First: 2, Count: 1 << 33},
	}
	image := make([]byte, 2*minHalf)
	id := testID()
	ordinal := uint64(1)
	for n := range 2 {
		h := header{
			half: uint32(n), block: uint32(n), epoch: uint64(3 + n), nonce: 0x4142434445464748 + uint64(n), poolID: id.PoolID,
			incarnation: id.Incarnation, commit: uint64(6 + n), firstSeq: recs[2*n].Seq, firstOrdinal: ordinal,
			halfSize: minHalf, bootID: id.BootID,
		}
		at := n * minHalf
		copy(image[at+n*blockSize:], h.encode())
		at += recordsAt
		list := []entry{instanceEntry(2, id.Instances[2]), instanceEntry(1023, "x")}
		for _, r := range recs[2*n : 2*n+2] {
			list = append(list, entry{Record: r})
		}
		for _, e := range list {
			e.ordinal = ordinal
			e.encode(image[at:], h.seed())
			at += recordSize
			ordinal++
		}
	}
	return image, recs
}

func TestGolden(t *testing.T) {
	file := filepath.Join("testdata", "log-v1.hex")
	image, want := goldenImage()
	if *update {
		var b bytes.Buffer
		for at := 0; at < len(image); at += blockSize {
			// One line a block, without the zeroes at its end.
			b.WriteString(hex.EncodeToString(bytes.TrimRight(image[at:at+blockSize], "\x00")) + "\n")
		}
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	stored := make([]byte, len(image))
	for i, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		if _, err := hex.Decode(stored[i*blockSize:], line); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(stored, image) {
		t.Error("what is written now differs from version 1")
	}
	id := testID()
	id.Instances[1023] = "x"
	got, reason, err := read(bytes.NewReader(stored), int64(len(stored)), id, 7)
	if err != nil || reason != "" || !slices.Equal(got, want) {
		t.Errorf("read = %v, %q, %v\nwant %v", got, reason, err, want)
	}
}

// FuzzRead changes a log at one place, with the CRCs of headers and records
// made right again if seal says so.
func FuzzRead(f *testing.F) {
	f.Add(0, []byte("tierd"), false)
	f.Add(80, []byte{9}, true)
	f.Add(recordsAt+8, []byte{1, 2, 3, 4, 5, 6, 7, 8}, true)
	f.Add(minHalf, make([]byte, blockSize), false)
	f.Fuzz(func(t *testing.T, at int, change []byte, seal bool) {
		image, recs := goldenImage()
		if at < 0 || at > len(image) {
			return
		}
		copy(image[at:], change)
		if seal {
			sealImage(image)
		}
		id := testID()
		id.Instances[1023] = "x"
		got, reason, err := read(bytes.NewReader(image), int64(len(image)), id, 7)
		if reason != "" && len(got) > 0 {
			t.Errorf("void (%s) and %d records", reason, len(got))
		}
		last := uint64(0)
		for _, r := range got {
			if err := r.check(); err != nil || r.Seq <= last {
				t.Errorf("record %+v after %d: %v", r, last, err)
			}
			last = r.Seq
		}
		// Without the right CRCs there is nothing to be read but what was written.
		if !seal && err == nil && reason == "" && !isRun(got, recs) {
			t.Errorf("read = %v", got)
		}
	})
}

// isRun reports whether got is a prefix of all, or of all from some record on.
func isRun(got, all []Record) bool {
	for from := range all {
		if len(got) <= len(all)-from && slices.Equal(got, all[from:from+len(got)]) {
			return true
		}
	}
	return len(got) == 0
}

func sealImage(image []byte) {
	for n := range 2 {
		half := image[n*minHalf : (n+1)*minHalf]
		block := half[n*blockSize : (n+1)*blockSize]
		binary.LittleEndian.PutUint32(block[12:], headerCRC(block))
		h, ok, err := decodeHeader(block, uint32(n), uint32(n))
		if !ok || err != nil {
			continue
		}
		for i := recordsAt; i < minHalf; i += recordSize {
			b := half[i : i+recordSize]
			var e entry
			if !bytes.Equal(b, make([]byte, recordSize)) && !e.decode(b, h.seed()) {
				reseal(b, h.seed())
			}
		}
	}
}

func reseal(b []byte, seed uint32) {
	binary.LittleEndian.PutUint32(b[crcAt:], crc32.Update(seed, castagnoli, b[:crcAt]))
}
