package trace

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestSummarize(t *testing.T) {
	var b strings.Builder
	b.WriteString("fio version 3 iolog\n0 a open\n")
	// Extents 0 to 19 of 1000 bytes are touched; extent 0 eighty times.
	for range 61 {
		b.WriteString("1 a read 0 100\n")
	}
	b.WriteString("2 a write 0 20000\n") // all of them
	for range 18 {
		b.WriteString("3 a write 999 1\n")
	}
	b.WriteString("4 a trim 50000 1000\n5 a sync 0 0\n2001 a read 0 0\n")
	r, err := NewReader(strings.NewReader(b.String()), "", "")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Summarize(r, 1000)
	if err != nil {
		t.Fatal(err)
	}
	want := Summary{
		Records: 83, Span: 2 * time.Second, Reads: 62, Writes: 19, Trims: 1, Flushes: 1,
		ReadBytes: 6100, WrittenBytes: 20018, TrimmedBytes: 1000, Disks: 1, Extents: 20, Accesses: 99,
		Top: []float64{80. / 99, 80. / 99, 81. / 99, 83. / 99},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}

	for name, tt := range map[string]struct {
		data string
		size int64
	}{
		"malformed":   {"fio version 2 iolog\na read 0 1\na read 0\n", 1000},
		"huge":        {"fio version 2 iolog\na read 0 1048577000\n", 1000},
		"extent size": {"fio version 2 iolog\na read 0 1\n", 0},
	} {
		r, err := NewReader(strings.NewReader(tt.data), "", Iolog)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Summarize(r, tt.size); err == nil || tt.size > 0 && !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r, err = NewReader(strings.NewReader("fio version 2 iolog\n"), "", Iolog)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Summarize(r, 1000); err != nil || !reflect.DeepEqual(got, Summary{Top: make([]float64, 4)}) {
		t.Errorf("an empty trace: %+v, %v", got, err)
	}
}
