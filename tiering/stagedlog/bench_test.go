package stagedlog

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func BenchmarkAppend(b *testing.B) {
	l := mustOpen(b, mustCreate(b, 64<<20), testID(), 1, 1)
	b.ReportAllocs()
	recs := []Record{mapRec(1, 1, 1)}
	for b.Loop() {
		recs[0].Seq++
		if err := l.Append(recs); err != nil {
			b.Fatal(err)
		}
		if err := l.Retire(recs[0].Seq, 1); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPwrite is what an Append cannot be faster than.
func BenchmarkPwrite(b *testing.B) {
	f, err := os.OpenFile(mustCreate(b, 64<<20), os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	fd, off, p := int(f.Fd()), int64(0), make([]byte, recordSize)
	for b.Loop() {
		if _, err := unix.Pwrite(fd, p, off); err != nil {
			b.Fatal(err)
		}
		off = (off + recordSize) & (64<<20 - 1)
	}
}

func BenchmarkRead(b *testing.B) {
	path := mustCreate(b, 64<<20)
	l := mustOpen(b, path, testID(), 1, 1)
	var n uint64
	for ; ; n++ {
		if err := l.Append([]Record{mapRec(n+1, int(n), 1)}); errors.Is(err, ErrFull) {
			break
		} else if err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if recs, _, err := Read(path, testID(), 1); err != nil || uint64(len(recs)) != n {
			b.Fatal(len(recs), err)
		}
	}
}
