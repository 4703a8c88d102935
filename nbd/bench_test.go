package nbd

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"tierd/nbd/wire"
)

// A fileDevice serves a file in the page cache as plainly as can be: what is
// measured with it is the server.
type fileDevice struct {
	*memDevice // for what benchmarks do not use
	fd         int
	size       int64
	write      fileWrite
	writes     atomic.Int64
}

type fileWrite struct{ d *fileDevice }

func (d *fileDevice) Size() int64 { return d.size }

func (d *fileDevice) TryRead(p []byte, off int64) bool {
	vec := [1][]byte{p}
	n, err := unix.Preadv2(d.fd, vec[:], off, unix.RWF_NOWAIT)
	return err == nil && n == len(p)
}

func (d *fileDevice) Span(_, n int64) Span { return Span{Len: n, Tier: 1} }

func (d *fileDevice) ReadAt(_ context.Context, p []byte, off int64) error {
	_, err := unix.Pread(d.fd, p, off)
	return err
}

func (d *fileDevice) BeginWrite(off, n int64) Mutation { return &d.write }

// Run writes at one place, so that it needs no allocation.
func (w *fileWrite) Run(_ context.Context, p []byte, _ bool) error {
	w.d.writes.Add(1)
	_, err := unix.Pwrite(w.d.fd, p, 0)
	return err
}

func benchFile(b *testing.B) string {
	const size = 16 << 20
	f, err := os.Create(filepath.Join(b.TempDir(), "f"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	if _, err := f.Write(fill(make([]byte, size), 1)); err != nil {
		b.Fatal(err)
	}
	d := &fileDevice{memDevice: newMemDevice(0), fd: int(f.Fd()), size: size}
	d.write.d = d
	_, path := serveOne(b, d)
	return path
}

// pump keeps depth requests in flight until b.N are answered; next makes one.
func pump(b *testing.B, nc net.Conn, depth, replySize int, next func(buf []byte, i int) []byte) {
	reply := make([]byte, depth*replySize)
	var buf []byte
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; {
		n := min(depth, b.N-done)
		buf = buf[:0]
		for i := range n {
			buf = next(buf, done+i)
		}
		if _, err := nc.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(nc, reply[:n*replySize]); err != nil {
			b.Fatal(err)
		}
		done += n
	}
}

func BenchmarkInlineRead4K(b *testing.B) {
	for _, depth := range []int{1, 32} {
		b.Run("depth="+strconv.Itoa(depth), func(b *testing.B) {
			r := open(b, benchFile(b), "a")
			var h [wire.RequestSize]byte
			b.SetBytes(4096)
			pump(b, r.nc, depth, wire.SimpleReplySize+4096, func(buf []byte, i int) []byte {
				wire.PutRequest(h[:], 0, wire.CmdRead, uint64(i), uint64(i*7919%4096*4096), 4096)
				return append(buf, h[:]...)
			})
		})
	}
}

// BenchmarkStructuredRead4K is BenchmarkInlineRead4K with structured replies.
func BenchmarkStructuredRead4K(b *testing.B) {
	for _, depth := range []int{1, 32} {
		b.Run("depth="+strconv.Itoa(depth), func(b *testing.B) {
			r, _ := openStructured(b, benchFile(b), "a")
			var h [wire.RequestSize]byte
			b.SetBytes(4096)
			pump(b, r.nc, depth, wire.DataChunkSize+4096, func(buf []byte, i int) []byte {
				wire.PutRequest(h[:], 0, wire.CmdRead, uint64(i), uint64(i*7919%4096*4096), 4096)
				return append(buf, h[:]...)
			})
		})
	}
}

func BenchmarkInlineWrite4K(b *testing.B) {
	for _, depth := range []int{1, 32} {
		b.Run("depth="+strconv.Itoa(depth), func(b *testing.B) {
			r := open(b, benchFile(b), "a")
			var h [wire.RequestSize + 4096]byte
			b.SetBytes(4096)
			pump(b, r.nc, depth, wire.SimpleReplySize, func(buf []byte, i int) []byte {
				wire.PutRequest(h[:], 0, wire.CmdWrite, uint64(i), 0, 4096)
				return append(buf, h[:]...)
			})
		})
	}
}
