package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"
	"time"

	"tierd/nbd/client"
)

// A disk is a connection to a volume, for tests that need no foreign client.
type disk struct {
	*client.Client
	t testing.TB
}

// dial connects to a volume.
func (s *site) dial(volume string) disk {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, s.uri(volume))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return disk{c, s.t}
}

// hangUp ends the connection as a client does that is done.
func (d disk) hangUp() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.Disconnect(ctx); err != nil {
		d.t.Fatal(err)
	}
}

// content is n bytes that belong to an offset and a generation.
func content(off int64, n int, gen uint32) []byte {
	p := make([]byte, n)
	for i := 0; i+16 <= n; i += 16 {
		binary.LittleEndian.PutUint64(p[i:], uint64(off)+uint64(i))
		binary.LittleEndian.PutUint64(p[i+8:], uint64(gen)<<32|0x5eed)
	}
	return p
}

// write writes the content of a generation.
func (d disk) write(off int64, n int, gen uint32) {
	d.t.Helper()
	if err := d.WriteAt(content(off, n, gen), off, false); err != nil {
		d.t.Fatal(err)
	}
}

// check reads the content of a generation back; generation 0 is zeroes.
func (d disk) check(off int64, n int, gen uint32) {
	d.t.Helper()
	got, want := make([]byte, n), make([]byte, n)
	if gen != 0 {
		want = content(off, n, gen)
	}
	if err := d.ReadAt(got, off); err != nil {
		d.t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		at := 0
		for got[at] == want[at] {
			at++
		}
		d.t.Fatalf("byte %d is %#x, want %#x (generation %d)", off+int64(at), got[at], want[at], gen)
	}
}
