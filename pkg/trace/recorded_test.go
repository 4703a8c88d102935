package trace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

var testHeader = Header{
	Volume: "home", UUID: [16]byte{1, 2, 3, 15: 16}, VolumeSize: 1 << 40, ExtentSize: 1 << 20, Start: time.Unix(1_800_000_000, 123456789),
}

// randomRecords makes records of every kind, with all the coincidences that the
// format has short forms for.
func randomRecords(rnd *rand.Rand, n int) []Record {
	var all []Record
	var r Record
	for range n {
		next := Record{Time: r.Time, Offset: rnd.Int64N(1 << 40), Length: rnd.Int64N(1 << 20)}
		if rnd.IntN(10) > 0 {
			next.Time += time.Duration(rnd.Int64N(1 << rnd.IntN(40)))
		}
		if rnd.IntN(2) == 0 {
			next.Offset, next.Length = next.Offset&^4095, (1+rnd.Int64N(8))*4096
		}
		if rnd.IntN(3) == 0 {
			next.Offset = r.Offset + r.Length // fits: it did for r
		}
		if rnd.IntN(3) == 0 {
			next.Length = r.Length
		}
		switch rnd.IntN(8) {
		case 0:
			next = Record{Time: next.Time, Flush: true}
		case 1:
			next.Trim, next.Zero = true, rnd.IntN(2) == 0
		case 2, 3:
			next.Write = true
		case 4:
			next.Offset = math.MaxInt64
		}
		next.Offset = min(next.Offset, math.MaxInt64-next.Length)
		all, r = append(all, next), next
	}
	return all
}

// recorded writes a recording. flush tells when to begin a new block.
func recorded(t testing.TB, o WriterOptions, records []Record, flush func(i int) bool) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, testHeader, o)
	for i := 0; err == nil && i < len(records); i++ {
		if flush(i) {
			err = w.Flush()
		}
		if err == nil {
			err = w.Write(records[i])
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	w.SetDropped(7)
	if err := w.End(time.Hour, "the test is over"); err != nil {
		t.Fatal(err)
	}
	if w.Records() != uint64(len(records)) || w.Size() != int64(b.Len()) {
		t.Fatalf("%d records in %d bytes counted, want %d in %d", w.Records(), w.Size(), len(records), b.Len())
	}
	return b.Bytes()
}

// since returns records as a Reader does: with times since the first.
func since(records []Record) []Record {
	var out []Record
	for _, r := range records {
		r.Time -= records[0].Time
		out = append(out, r)
	}
	return out
}

func TestRecordedFormat(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for _, compress := range []bool{false, true} {
		for _, n := range []int{0, 1, 100, 30_000} {
			records := randomRecords(rnd, n)
			b := recorded(t, WriterOptions{Compress: compress}, records, func(int) bool { return rnd.IntN(2000) == 0 })
			r, err := NewReader(bytes.NewReader(b), "x", "")
			if err != nil {
				t.Fatal(err)
			}
			got := readAll(t, r)
			if n > 0 && !reflect.DeepEqual(got, since(records)) {
				t.Errorf("compress %v, %d records: not what was written", compress, n)
			}
			info, ok := Recorded(r)
			want := Recording{Header: testHeader, Dropped: 7, Ended: true, Reason: "the test is over", Records: uint64(n), Span: time.Hour}
			if !ok || !info.Start.Equal(want.Start) {
				t.Errorf("Recorded = %+v, %v", info, ok)
			}
			if info.Start = want.Start; info != want || r.Format() != Tierd || !r.Timed() {
				t.Errorf("got %+v, want %+v", info, want)
			}
			end, err := ReadEnd(bytes.NewReader(b), int64(len(b)))
			if want.Header = (Header{}); err != nil || end != want {
				t.Errorf("ReadEnd = %+v, %v; want %+v", end, err, want)
			}
			t.Logf("compress %v: %d records in %d bytes", compress, n, len(b))
		}
	}
}

// The bytes of a small file are what the package's comment says, for good.
func TestRecordedBytes(t *testing.T) {
	records := []Record{
		{Time: 5, Write: true, Offset: 4096, Length: 4096},
		{Time: 300, Write: true, Offset: 8192, Length: 4096},
		{Time: 300, Offset: 8192, Length: 1},
		{Time: 301, Flush: true},
		{Time: 301, Trim: true, Zero: true, Offset: 0, Length: 1 << 20},
	}
	b := recorded(t, WriterOptions{}, records, func(i int) bool { return false })
	le := binary.LittleEndian
	header := "\x89TDT\r\n\x1a\n" + "\x01\x00" + "\x42\x00" + "\x00\x00\x00\x00" +
		"\x00\x00\x10\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x01\x00\x00" + string(le.AppendUint64(nil, 1_800_000_000_123456789)) +
		"\x01\x02\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x10" + "\x01" + "\x04home"
	payload := "\x21\x05\x10\x08" + // write, 5 ns, 8 sectors on, 8 sectors
		"\x39\xa7\x02" + // write, 295 ns, follows, same length
		"\x00\x00\xff\x3f\x01" + // read, at once, 4096 bytes back, 1 byte
		"\x04\x01" + // flush
		"\x03\x00\x81\x80\x01\x80\x80\x40" // zero, at once, 8193 bytes back, 1 MiB
	blockHeadBytes := "\x01\x00\x00\x00" + string(le.AppendUint32(nil, uint32(len(payload)))) + string(le.AppendUint32(nil, uint32(len(payload)))) +
		"\x05\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" + "\x07\x00\x00\x00\x00\x00\x00\x00"
	end := "\x03\x00\x00\x00" + "\x80\x00\x00\x00\x80\x00\x00\x00" + "\x00\x00\x00\x00" + "\x2d\x01\x00\x00\x00\x00\x00\x00" + "\x07\x00\x00\x00\x00\x00\x00\x00" +
		"\x05\x00\x00\x00\x00\x00\x00\x00" + "\x07\x00\x00\x00\x00\x00\x00\x00" + string(le.AppendUint64(nil, uint64(time.Hour))) + "\x10the test is over"
	end += strings.Repeat("\x00", blockHead+endPayload-len(end))
	var want []byte
	for _, part := range []string{header, blockHeadBytes + payload, end} {
		want = append(want, part...)
		want = le.AppendUint32(want, crc32.Checksum([]byte(part), crc32.MakeTable(crc32.Castagnoli)))
	}
	if !bytes.Equal(b, want) {
		t.Errorf("got  %q\nwant %q", b, want)
	}
}

// Wherever a file is cut, all whole blocks are read, and it ends without an error,
// unless the header is gone. The same holds if the lost tail became zeroes.
func TestRecordedTornTail(t *testing.T) {
	records := randomRecords(rand.New(rand.NewPCG(3, 4)), 60)
	for _, compress := range []bool{false, true} {
		b := recorded(t, WriterOptions{Compress: compress}, records, func(i int) bool { return i%20 == 0 })
		header := headerFixed + len(testHeader.Volume) + blockTail
		var ends []int // of blocks
		for at := header; at < len(b); {
			at += blockHead + int(binary.LittleEndian.Uint32(b[at+4:])) + blockTail
			ends = append(ends, at)
		}
		if len(ends) != 4 || ends[3] != len(b) {
			t.Fatalf("blocks end at %v of %d", ends, len(b))
		}
		for cut := range len(b) {
			whole := 0
			for i, e := range ends[:3] {
				if e <= cut {
					whole = (i + 1) * 20
				}
			}
			for _, tail := range [][]byte{nil, make([]byte, len(b)-cut)} {
				torn := append(bytes.Clone(b[:cut]), tail...)
				if bytes.Equal(torn, b) {
					continue // zeroes were there before
				}
				r, err := NewReader(bytes.NewReader(torn), "x", Tierd)
				if cut < header && bytes.Equal(torn[:min(header, len(torn))], b[:header]) {
					continue // the same for the header
				}
				if cut < header {
					if !errors.Is(err, ErrMalformed) {
						t.Fatalf("cut at %d, in the header: %v", cut, err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("cut at %d: %v", cut, err)
				}
				got := readAll(t, r)
				if len(got) != whole || whole > 0 && !reflect.DeepEqual(got, since(records[:whole])) {
					t.Fatalf("cut at %d with %d zeroes: %d records, want %d", cut, len(tail), len(got), whole)
				}
				if info, _ := Recorded(r); info.Ended {
					t.Fatalf("cut at %d: it claims to have ended", cut)
				}
				if end, err := ReadEnd(bytes.NewReader(torn), int64(len(torn))); err != nil || end.Ended {
					t.Fatalf("cut at %d: ReadEnd = %+v, %v", cut, end, err)
				}
			}
		}
	}
}

// A wrong byte anywhere is noticed: records behind it are not made up, and damage
// with blocks behind it is an error.
func TestRecordedDamage(t *testing.T) {
	records := randomRecords(rand.New(rand.NewPCG(5, 6)), 60)
	b := recorded(t, WriterOptions{}, records, func(i int) bool { return i%20 == 0 })
	want := since(records)
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 0x10
		r, err := NewReader(bytes.NewReader(bad), "x", Tierd)
		n := 0
		for err == nil {
			var rec Record
			if rec, err = r.Next(); err == nil {
				if n >= len(want) || rec != want[n] {
					t.Fatalf("byte %d changed: record %d is %+v", i, n, rec)
				}
				n++
			}
		}
		if err == io.EOF && n < 40 {
			t.Errorf("byte %d changed: the end after %d records, and no error", i, n)
		}
		if err != io.EOF && !errors.Is(err, ErrMalformed) {
			t.Errorf("byte %d changed: %v", i, err)
		}
	}
	r, err := NewReader(bytes.NewReader(append(bytes.Clone(b), b...)), "x", Tierd)
	for err == nil {
		_, err = r.Next()
	}
	if !errors.Is(err, ErrMalformed) {
		t.Errorf("two files in one: %v, want ErrMalformed", err)
	}
}

// The bound holds to the byte, and room that compression leaves is used.
func TestRecordedBound(t *testing.T) {
	records := randomRecords(rand.New(rand.NewPCG(7, 8)), 60_000)
	for _, compress := range []bool{false, true} {
		for _, bound := range []int64{MinSize, MinSize + 1, 10_000, 70_001, 200_000} {
			var b bytes.Buffer
			w, err := NewWriter(&b, testHeader, WriterOptions{MaxSize: bound, Compress: compress})
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for ; err == nil && n < len(records); n++ {
				err = w.Write(records[n])
				w.SetDropped(uint64(n)) // the end needs no more room for that
			}
			if n--; !errors.Is(err, ErrFull) {
				t.Fatalf("bound %d: %v after %d records", bound, err, n)
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			if err := w.End(time.Second, strings.Repeat("x", 1000)); err != nil {
				t.Fatal(err)
			}
			if size := int64(b.Len()); size > bound || size < bound-128 {
				t.Errorf("bound %d, compress %v: %d bytes", bound, compress, size)
			}
			r, err := NewReader(&b, "", "")
			if err != nil {
				t.Fatal(err)
			}
			if got := readAll(t, r); !reflect.DeepEqual(got, since(records[:n])) {
				t.Errorf("bound %d, compress %v: %d records read of %d", bound, compress, len(got), n)
			}
			if info, _ := Recorded(r); !info.Ended || len(info.Reason) != maxReason || info.Records != uint64(n) {
				t.Errorf("bound %d: %+v", bound, info)
			}
			t.Logf("bound %d, compress %v: %d records", bound, compress, n)
		}
	}
	if _, err := NewWriter(io.Discard, testHeader, WriterOptions{MaxSize: MinSize - 1}); err == nil {
		t.Error("a bound that is too small is taken")
	}
}

// A time that goes back is that of the record before.
func TestRecordedTimeIsMonotone(t *testing.T) {
	b := recorded(t, WriterOptions{}, []Record{{Time: 9, Flush: true}, {Time: 4, Flush: true}, {Time: 10, Flush: true}}, func(i int) bool { return i == 1 })
	r, err := NewReader(bytes.NewReader(b), "", "")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := readAll(t, r), []Record{{Flush: true}, {Flush: true}, {Time: 1, Flush: true}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// failingWriter takes so many bytes.
type failingWriter struct{ room int }

func (f *failingWriter) Write(p []byte) (int, error) {
	n := min(len(p), f.room)
	f.room -= n
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

func TestWriterRepeatsItsError(t *testing.T) {
	w, err := NewWriter(&failingWriter{room: 100}, testHeader, WriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(Record{Length: 1}); err != nil {
		t.Fatal(err)
	}
	for i, err := range []error{w.Flush(), w.Write(Record{}), w.Flush(), w.End(0, "")} {
		if !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("call %d: %v, want the error of the writer", i, err)
		}
	}
	if w.Size() != 100 {
		t.Errorf("%d bytes written, want 100", w.Size())
	}
	if _, err := NewWriter(&failingWriter{}, testHeader, WriterOptions{}); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("header: %v", err)
	}
	if _, err := NewWriter(io.Discard, Header{Volume: strings.Repeat("x", 256), ExtentSize: 1}, WriterOptions{}); err == nil {
		t.Error("a name of 256 bytes is taken")
	}
}

// withChecksum mends the checksums of a recording as far as its blocks can be told.
func withChecksum(b []byte) []byte {
	le := binary.LittleEndian
	if len(b) < headerFixed {
		return b
	}
	at := headerFixed + int(b[57]) + blockTail
	for start := 0; at <= len(b); {
		le.PutUint32(b[at-blockTail:], crc32.Checksum(b[start:at-blockTail], castagnoli))
		if at+blockHead > len(b) {
			break
		}
		start, at = at, at+blockHead+int(le.Uint32(b[at+4:])&0xffffff)+blockTail
	}
	return b
}

// FuzzTierd gets behind the checksums.
func FuzzTierd(f *testing.F) {
	for i, compress := range []bool{false, true} {
		records := randomRecords(rand.New(rand.NewPCG(1, uint64(i))), 50)
		f.Add(recorded(f, WriterOptions{Compress: compress}, records, func(i int) bool { return i%20 == 0 }), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, mend bool) {
		if mend {
			data = withChecksum(bytes.Clone(data))
		}
		if _, err := ReadEnd(bytes.NewReader(data), int64(len(data))); err != nil {
			t.Fatal(err)
		}
		r, err := NewReader(bytes.NewReader(data), "", Tierd)
		if err != nil {
			return
		}
		var last time.Duration
		for {
			rec, err := r.Next()
			if err != nil {
				if err != io.EOF && !errors.Is(err, ErrMalformed) {
					t.Fatal(err)
				}
				break
			}
			if rec.Offset < 0 || rec.Length < 0 || rec.Offset+rec.Length < 0 || rec.Time < last {
				t.Fatalf("%+v after %v", rec, last)
			}
			last = rec.Time
		}
	})
}

// FuzzWriter: whatever is written is read back.
func FuzzWriter(f *testing.F) {
	f.Add(uint64(1), uint16(100), true)
	f.Fuzz(func(t *testing.T, seed uint64, n uint16, compress bool) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		records := randomRecords(rnd, int(n))
		b := recorded(t, WriterOptions{Compress: compress}, records, func(int) bool { return rnd.IntN(100) == 0 })
		r, err := NewReader(bytes.NewReader(b), "", "")
		if err != nil {
			t.Fatal(err)
		}
		if got := readAll(t, r); len(records) > 0 && !reflect.DeepEqual(got, since(records)) {
			t.Fatal("not what was written")
		}
	})
}

func BenchmarkWriter(b *testing.B) {
	for _, compress := range []bool{false, true} {
		b.Run(fmt.Sprintf("zstd=%v", compress), func(b *testing.B) {
			rnd := rand.New(rand.NewPCG(1, 2))
			w, err := NewWriter(io.Discard, testHeader, WriterOptions{Compress: compress})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			var at time.Duration
			for range b.N {
				at += time.Duration(rnd.Int64N(4000))
				if err := w.Write(Record{Time: at, Write: at&3 == 0, Offset: rnd.Int64N(1<<18) << 12, Length: 4096}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(w.Size())/float64(b.N), "bytes/record")
		})
	}
}

// Blocks whose checksums are right and whose contents are not.
func TestRecordedMalformedBlocks(t *testing.T) {
	header, err := testHeader.encode()
	if err != nil {
		t.Fatal(err)
	}
	flush := "\x04\x00"
	tests := []struct {
		name    string
		k       block
		payload string
	}{
		{"too few records", block{kind: 1, records: 2}, flush},
		{"too many records", block{kind: 1, records: 1}, flush + flush},
		{"no record", block{kind: 1}, flush},
		{"flags of a flush", block{kind: 1, records: 1}, "\x0c\x00"},
		{"unknown operation", block{kind: 1, records: 1}, "\x05\x00\x00\x00"},
		{"unknown flag", block{kind: 1, records: 1}, "\x40\x00\x00\x00"},
		{"torn record", block{kind: 1, records: 1}, "\x00\x00\x00"},
		{"length before", block{kind: 1, records: 1}, "\x18\x00"},
		{"length", block{kind: 1, records: 1}, "\x30\x00\xff\xff\xff\xff\xff\xff\xff\xff\x7f"},
		{"range", block{kind: 1, records: 1}, "\x00\x00\x01\x00"},
		{"time", block{kind: 1, records: 1, base: math.MaxInt64}, "\x04\x01"},
		{"base", block{kind: 1, records: 1, base: math.MaxInt64 + 1}, flush},
		{"packed", block{kind: 2, records: 1, size: 3}, flush},
		{"kind", block{kind: 4, records: 1}, flush},
		{"size", block{kind: 1, records: 1, size: 3}, flush},
		{"end", block{kind: 3}, flush},
	}
	for _, tt := range tests {
		if tt.k.size == 0 {
			tt.k.size = uint32(len(tt.payload))
		}
		data := tt.k.append(bytes.Clone(header), []byte(tt.payload))
		whole := block{kind: blockEnd, size: endPayload}
		data = whole.append(data, encodeEnd(0, 0, 0, ""))
		r, err := NewReader(bytes.NewReader(data), "", "")
		for err == nil {
			_, err = r.Next()
		}
		if !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, want ErrMalformed", tt.name, err)
		}
	}
}
