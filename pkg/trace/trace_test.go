package trace

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

func vscsiRecord(op uint16, length uint32, block, us uint64) []byte {
	var b [vscsiSize]byte
	le := binary.LittleEndian
	le.PutUint32(b[4:], length)
	le.PutUint16(b[12:], op)
	le.PutUint16(b[14:], 0x0100)
	le.PutUint64(b[16:], block)
	le.PutUint64(b[24:], us)
	return b[:]
}

// blkparseText is what blkparse writes of a few requests: messages, other events
// of the same requests, a command that is passed through, and a summary.
const blkparseText = `  8,0    0        0     0.000000000     0  m   N cfq697S alloced
  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]
  8,0    3        2     0.000000829   697  G   W 223490 + 8 [kjournald]
  8,0    3        3     0.000001250   697  P   N [kjournald]
  8,0    3        4     0.000002500   697  D   W 223490 + 8 [kjournald]
259,3    1        1     0.001000001    12  Q  RA 10 + 1 [a b]
  8,0    1        2     0.002000000    12  Q  RM 20 + 1 [c]
  8,0    1        3     0.003000000    12  Q  DS 2048 + 2048 [fstrim]
  8,0    1        4     0.004000000    12  Q FWS [d]
  8,0    1        5     0.004000001    12  Q   R 6 (12 00 00 ..) [inquiry]
  8,0    1        6     0.005000000    12  Q FWFSM 0 + 8 [jbd2/sda1-8]
  8,0    0        7     0.005000100     0  C   W 223490 + 8 [0]
  8,0    0        8     0.005000200     0 UT   N [swapper] 1
  8,0    1        9     1.000000000    12  Q   R 8589934592 + 1 [e]
CPU0 (sda):
 Reads Queued:           3,        1KiB	 Writes Queued:           2,        8KiB

Total (sda):
 IO unplugs:             1        	 Timer unplugs:           1

Throughput (R/W): 1KiB/s / 8KiB/s
`

// samples has a small trace of each format and what it says.
func samples() map[string]struct {
	data  string
	name  string
	want  []Record
	timed bool
	skip  int64
} {
	vscsi := bytes.Join([][]byte{
		vscsiRecord(0x2a, 512, 8, 5_000_000),
		vscsiRecord(0x1a, 4, 0, 5_000_001), // MODE SENSE
		vscsiRecord(0x88, 4096, 1<<33, 5_000_010),
		vscsiRecord(0x35, 0, 0, 4_000_000), // an older time than the one before
	}, nil)
	var pages []byte
	for _, p := range []uint32{3, 0, 1_197_769} {
		pages = binary.LittleEndian.AppendUint32(pages, p)
	}
	const ms, us = time.Millisecond, time.Microsecond
	return map[string]struct {
		data  string
		name  string
		want  []Record
		timed bool
		skip  int64
	}{
		"vscsi": {string(vscsi), "x", []Record{
			{Write: true, Offset: 4096, Length: 512},
			{Time: 10 * us, Offset: 1 << 42, Length: 4096},
			{Time: 10 * us, Flush: true},
		}, true, 1},
		"pages": {string(pages), "x.trace", []Record{
			{Offset: 3 * 4096, Length: 4096},
			{Time: Tick, Length: 4096},
			{Time: 2 * Tick, Offset: 1_197_769 * 4096, Length: 4096},
		}, false, 0},
		"arc": {"230027 8 0 0\n\n1842745 64 0 1", "P3.lis", []Record{
			{Offset: 230027 * 512, Length: 4096},
			{Time: Tick, Offset: 1842745 * 512, Length: 32768},
		}, false, 1},
		"msr": {"Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n" +
			"128166372003061629,usr,0,Read,7014609920,24576,41286\n128166372013061629,usr,2,Write,512,0,1\n", "usr_0.csv", []Record{
			{Offset: 7014609920, Length: 24576},
			{Time: time.Second, Write: true, Offset: 512, Disk: 2},
		}, true, 1},
		"spc": {"0,20941264,8192,W,0.5\n1,20939840,8192,r,0.75,9\n", "Financial1.spc", []Record{
			{Write: true, Offset: 20941264 * 512, Length: 8192},
			{Time: 250 * ms, Offset: 20939840 * 512, Length: 8192, Disk: 1},
		}, true, 0},
		"iolog": {"fio version 2 iolog\n/dev/a add\n/dev/b open\n/dev/a wait 100\n/dev/a write 4096 512\n/dev/b wait 2000\n/dev/b read 0 8192\n/dev/a trim 0 4096\n/dev/a sync 0 0\n/dev/a close\n",
			"x.log", []Record{
				{Write: true, Offset: 4096, Length: 512},
				{Time: 2 * ms, Length: 8192, Disk: 1},
				{Time: 2 * ms, Trim: true, Length: 4096},
				{Time: 2 * ms, Flush: true},
			}, true, 5},
		"iolog3": {"fio version 3 iolog\n10 /dev/a open\n10 /dev/a read 4096 512\n17 /dev/a datasync 0 0\n", "x.log", []Record{
			{Offset: 4096, Length: 512},
			{Time: 7 * ms, Flush: true},
		}, true, 1},
		"blkparse": {blkparseText, "sda.txt", []Record{
			{Write: true, Offset: 223490 * 512, Length: 4096, Disk: 8 << 20},
			{Time: 1_000_001, Offset: 10 * 512, Length: 512, Disk: 259<<20 | 3},
			{Time: ms * 2, Offset: 20 * 512, Length: 512, Disk: 8 << 20},
			{Time: ms * 3, Trim: true, Offset: 2048 * 512, Length: 1 << 20, Disk: 8 << 20},
			{Time: ms * 4, Flush: true, Disk: 8 << 20},
			{Time: ms * 5, Write: true, Offset: 0, Length: 4096, Disk: 8 << 20},
			{Time: time.Second, Offset: 1 << 42, Length: 512, Disk: 8 << 20},
		}, true, 14},
		"blkparse without Q": {"8,0 3 1 7.5 1 D R 8 + 8 (     120) [a]\n8,0 3 1 7.6 1 C R 8 + 8 (     120) [0]\n", "x", []Record{
			{Offset: 4096, Length: 4096, Disk: 8 << 20},
		}, true, 1},
		"blkparse completed": {"8,0 3 1 7.5 0 C RA 8 + 8 [0]\n8,0 3 1 7.6 0 C FN 0 [0]\n", "x", []Record{
			{Offset: 4096, Length: 4096, Disk: 8 << 20},
			{Time: 100 * ms, Flush: true, Disk: 8 << 20},
		}, true, 0},
		"mqsim": {"4851300 1 524288 16 0\n\n4864300 1 8 1 1", "trace", []Record{
			{Write: true, Offset: 1 << 28, Length: 8192, Disk: 1},
			{Time: 13 * us, Offset: 4096, Length: 512, Disk: 1},
		}, true, 1},
		"mqsim by name": {"5 0 8 1 1\n4 0 8 1 0\n", "a.mqsim", []Record{
			{Offset: 4096, Length: 512},
			{Write: true, Offset: 4096, Length: 512},
		}, true, 0},
		"iolog without waits": {"fio version 2 iolog\na write 0 512\na write 512 512\n", "x", []Record{
			{Write: true, Length: 512},
			{Time: Tick, Write: true, Offset: 512, Length: 512},
		}, false, 0},
	}
}

func readAll(t testing.TB, r Reader) []Record {
	t.Helper()
	var got []Record
	for {
		rec, err := r.Next()
		if err == io.EOF {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, rec)
	}
}

func TestFormats(t *testing.T) {
	for name, s := range samples() {
		t.Run(name, func(t *testing.T) {
			r, err := NewReader(strings.NewReader(s.data), s.name, "")
			if err != nil {
				t.Fatal(err)
			}
			if got, want := string(r.Format()), strings.TrimRight(strings.Fields(name)[0], "3"); got != want {
				t.Errorf("format %q, want %q", got, want)
			}
			if got := readAll(t, r); !reflect.DeepEqual(got, s.want) {
				t.Errorf("got  %+v\nwant %+v", got, s.want)
			}
			if r.Timed() != s.timed || r.Skipped() != s.skip {
				t.Errorf("timed %v skipped %d, want %v %d", r.Timed(), r.Skipped(), s.timed, s.skip)
			}
			if _, err := r.Next(); err != io.EOF {
				t.Errorf("after the end: %v, want EOF again", err)
			}
		})
	}
}

func TestCompressed(t *testing.T) {
	s := samples()["pages"]
	pack := map[string]func(w io.Writer) (io.WriteCloser, error){
		".zst": func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)) },
		".xz":  func(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) },
		".gz":  func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil },
	}
	for ext, open := range pack {
		t.Run(ext, func(t *testing.T) {
			var b bytes.Buffer
			w, err := open(&b)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(w, s.data); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "p.trace"+ext)
			if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := readAll(t, r); !reflect.DeepEqual(got, s.want) {
				t.Errorf("got %+v, want %+v", got, s.want)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
			// A file cut short is an error, not a short trace.
			r, err = NewReader(bytes.NewReader(b.Bytes()[:b.Len()-5]), "p.trace"+ext, Pages)
			for err == nil {
				_, err = r.Next()
			}
			if err == io.EOF {
				t.Error("a torn file ended as if it were whole")
			}
		})
	}
}

func TestMalformed(t *testing.T) {
	tests := []struct {
		name   string
		format Format
		data   string
	}{
		{"torn vscsi", VSCSI, string(vscsiRecord(0x28, 1, 2, 3)[:31])},
		{"vscsi version", VSCSI, strings.Repeat("\x00", 32)},
		{"vscsi address", VSCSI, string(vscsiRecord(0x28, 1, 1<<60, 3))},
		{"vscsi range", VSCSI, string(vscsiRecord(0x28, 1<<31, 1<<54-1, 3))},
		{"vscsi time", VSCSI, string(vscsiRecord(0x28, 1, 1, 1<<63))},
		{"torn page", Pages, "abc"},
		{"negative page", Pages, "\xff\xff\xff\xff"},
		{"arc fields", ARC, "1 2 3 4\n1 2 3\n"},
		{"arc number", ARC, "1 2 3 4\n1 x 3 4\n"},
		{"arc range", ARC, "1 2 3 4\n18446744073709551615 1 0 1\n"},
		{"long line", ARC, "1 2 3 4\n" + strings.Repeat(" ", maxLine) + "\n"},
		{"msr operation", MSR, "128166372003061629,usr,0,Read,1,2,3\n128166372003061629,usr,0,Erase,1,2,3\n"},
		{"msr time", MSR, "128166372003061629,usr,0,Read,1,2,3\n18446744073709551615,usr,0,Read,1,2,3\n"},
		{"spc time", SPC, "0,1,2,r,0\n0,1,2,r,NaN\n"},
		{"spc length", SPC, "0,1,2,r,0\n0,1,-2,r,1\n"},
		{"blkparse torn", Blkparse, blkparseText + "  8,0    3        1     0.00"},
		{"blkparse time", Blkparse, "8,0 3 1 9223372036.0 697 Q W 223490 + 8 [k]\n"},
		{"blkparse fraction", Blkparse, "8,0 3 1 0.0000000001 697 Q W 223490 + 8 [k]\n"},
		{"blkparse kind", Blkparse, "8,0 3 1 0.0 697 Q X 223490 + 8 [k]\n"},
		{"blkparse letters", Blkparse, "8,0 3 1 0.0 697 Q W1 223490 + 8 [k]\n"},
		{"blkparse sector", Blkparse, "8,0 3 1 0.0 697 Q W 36028797018963968 + 8 [k]\n"},
		{"blkparse sectors", Blkparse, "8,0 3 1 0.0 697 Q W 8 + x [k]\n"},
		{"blkparse cpu", Blkparse, "8,0 - 1 0.0 697 Q W 8 + 8 [k]\n"},
		{"blkparse without events", Blkparse, "CPU0 (sda):\n"},
		{"mqsim fields", MQSim, "1 0 8 8 0\n2 0 8 8\n"},
		{"mqsim type", MQSim, "1 0 8 8 0\n2 0 8 8 2\n"},
		{"mqsim time", MQSim, "1 0 8 8 0\n9223372036854775808 0 8 8 0\n"},
		{"mqsim device", MQSim, "1 0 8 8 0\n2 2147483648 8 8 0\n"},
		{"iolog action", Iolog, "fio version 2 iolog\na erase 0 1\n"},
		{"iolog fields", Iolog, "fio version 2 iolog\na read 0\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := NewReader(strings.NewReader(tt.data), "", tt.format)
			for err == nil {
				_, err = r.Next()
			}
			if !errors.Is(err, ErrMalformed) {
				t.Fatalf("got %v, want ErrMalformed", err)
			}
			if _, again := r.Next(); again != err {
				t.Errorf("a second Next says %v, want %v", again, err)
			}
		})
	}
	for _, data := range []string{"", "hello\n", "\x00\x01"} {
		if _, err := NewReader(strings.NewReader(data), "x.bin", ""); !errors.Is(err, ErrUnknownFormat) {
			t.Errorf("%q: %v, want ErrUnknownFormat", data, err)
		}
	}
}

// Formats of numbers in columns, and binary ones that look like text, are told apart.
func TestDetect(t *testing.T) {
	tests := []struct {
		name, head string
		want       Format
	}{
		{"x", "1 8 0 0\n2 8 0 1\n", ARC},
		{"x.mqsim", "1 8 0 0\n2 8 0 1\n", ARC}, // four columns, whatever it is called
		{"x", "1 0 8 8 0\n2 0 8 8 1\n3 0 8", MQSim},
		{"x", "2 0 8 8 0\n1 0 8 8 1\n", ""}, // time goes back: some other five columns
		{"x.mqsim", "2 0 8 8 0\n1 0 8 8 1\n", MQSim},
		{"x", "1 0 8 8 0\n2 0 8 8 7\n", ""}, // no type of request
		{"x.mqsim", "2 0 8 8 7\n", ""},
		{"x", "0.5 0 8 8 0\n", ""}, // DiskSim's, whose times are fractions
		{"x.trace", "1 0 8 8 0\n", MQSim},
		{"x.trace", "\x01\x00\x00\x00", Pages},
		{"x.lis", "8,0 3 1 0.0 697 Q W 8 + 8 [k]\n", Blkparse},
		{"x", "CPU0 (sda):\n8,0 3 1 0.0 697 Q W 8 + 8 [a,b,w,1]\n", Blkparse},
		{"x", "0,1,2,r,0\n", SPC},
	}
	for _, tt := range tests {
		if got := Detect(tt.name, []byte(tt.head)); got != tt.want {
			t.Errorf("Detect(%q, %q) = %q, want %q", tt.name, tt.head, got, tt.want)
		}
	}
}

// TestRealTraces counts the records of the traces beside the repository
// against what is published with them.
func TestRealTraces(t *testing.T) {
	tests := []struct {
		file     string
		format   Format
		records  int
		distinct int // 4 KiB pages, where known
		writes   bool
	}{
		{"cloudPhysicsIO.vscsi", VSCSI, 113_872, 0, true},
		{"cloudphysics-w106.trace.xz", Pages, 5_292_456, 275_171, false},
		{"arc-P3.lis.zst", ARC, 238_578, 0, false},
		{"arc-P6.lis.zst", ARC, 519_711, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			r, err := Open(filepath.Join("../../../shared/traces", tt.file))
			if errors.Is(err, os.ErrNotExist) {
				t.Skip("the folder of real traces is not beside the repository")
			}
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if r.Format() != tt.format {
				t.Errorf("format %s, want %s", r.Format(), tt.format)
			}
			n, writes, pages := 0, 0, map[int64]struct{}{}
			var last time.Duration
			for {
				rec, err := r.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if rec.Time < last {
					t.Fatalf("record %d goes back in time", n)
				}
				last = rec.Time
				n++
				if rec.Write {
					writes++
				}
				if tt.distinct > 0 {
					pages[rec.Offset] = struct{}{}
				}
			}
			if n != tt.records || r.Skipped() != 0 {
				t.Errorf("%d records and %d skipped, want %d and 0", n, r.Skipped(), tt.records)
			}
			if (writes > 0) != tt.writes {
				t.Errorf("%d writes, want some: %v", writes, tt.writes)
			}
			if tt.distinct > 0 && len(pages) != tt.distinct {
				t.Errorf("%d distinct pages, want %d", len(pages), tt.distinct)
			}
			t.Logf("%d records, %d writes, %v", n, writes, last)
		})
	}
}

func TestNextDoesNotAllocateForBinary(t *testing.T) {
	data := bytes.Repeat(vscsiRecord(0x28, 4096, 1, 1), 10_000)
	r, err := NewReader(bytes.NewReader(data), "", VSCSI)
	if err != nil {
		t.Fatal(err)
	}
	if got := testing.AllocsPerRun(1000, func() {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}); got != 0 {
		t.Errorf("%v allocations a record, want 0", got)
	}
}

func fuzzFormat(f *testing.F, format Format) {
	for name, s := range samples() {
		if strings.HasPrefix(name, string(format)) {
			f.Add([]byte(s.data))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := NewReader(bytes.NewReader(data), "f.trace", format)
		if err != nil {
			return
		}
		var last time.Duration
		for n := 0; ; n++ {
			rec, err := r.Next()
			if err != nil {
				break
			}
			if rec.Offset < 0 || rec.Length < 0 || rec.Offset+rec.Length < 0 || rec.Time < last || n > len(data) {
				t.Fatalf("record %d: %+v after %v", n, rec, last)
			}
			last = rec.Time
		}
		_ = r.Close()
	})
}

func FuzzVSCSI(f *testing.F) { fuzzFormat(f, VSCSI) }
func FuzzPages(f *testing.F) { fuzzFormat(f, Pages) }
func FuzzARC(f *testing.F)   { fuzzFormat(f, ARC) }
func FuzzMSR(f *testing.F)   { fuzzFormat(f, MSR) }
func FuzzSPC(f *testing.F)   { fuzzFormat(f, SPC) }
func FuzzIolog(f *testing.F) { fuzzFormat(f, Iolog) }

func FuzzBlkparse(f *testing.F) { fuzzFormat(f, Blkparse) }
func FuzzMQSim(f *testing.F)    { fuzzFormat(f, MQSim) }

// FuzzDetect lets any bytes through the detection and the decompressors.
func FuzzDetect(f *testing.F) {
	for _, s := range samples() {
		f.Add([]byte(s.data), s.name)
	}
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		r, err := NewReader(bytes.NewReader(data), name, "")
		if err != nil {
			return
		}
		for range 1000 {
			if _, err := r.Next(); err != nil {
				break
			}
		}
		_ = r.Close()
	})
}
