package order

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tierd/nbd"
	"tierd/nbd/client"
	"tierd/nbd/wire"
	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering"
)

const (
	ext      = 64 << 10
	block    = 4096
	patience = 2 * time.Minute
)

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// device is a volume as the daemon shows it to the server; it counts the changes that
// have their place in line.
type device struct {
	*tiering.Volume
	begun *atomic.Int64
}

func (d device) BeginWrite(off, n int64) nbd.Mutation {
	defer d.begun.Add(1)
	return d.Volume.BeginWrite(off, n)
}

func (d device) BeginTrim(off, n int64) nbd.Mutation {
	defer d.begun.Add(1)
	return d.Volume.BeginTrim(off, n)
}

func (d device) BeginWriteZeroes(off, n int64, noHole, fast bool) nbd.Mutation {
	defer d.begun.Add(1)
	return d.Volume.BeginWriteZeroes(off, n, noHole, fast)
}

func (d device) Span(off, n int64) nbd.Span { return nbd.Span(d.Volume.Span(off, n)) }
func (d device) Close() error               { return nil }

// A rig is a pool of a fast and a slow tier, whose backings can be held, and a server.
type rig struct {
	*model.World
	t      *testing.T
	stores map[string]*faultstore.Store
	sock   string
	server *nbd.Server
	begun  atomic.Int64
}

func newRig(t *testing.T, maxInFlight int) *rig {
	t.Helper()
	r := &rig{t: t, stores: map[string]*faultstore.Store{}}
	r.World = model.NewWorld(t, model.Config{ExtentSize: ext, Slots: [][]int{{8}, {8}}, Volumes: []int64{4 * ext}}, func(o *tiering.Options) {
		inner := o.OpenStore
		o.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
			st, err := inner(ctx, spec, create, readOnly)
			if err != nil {
				return nil, err
			}
			fs := faultstore.New(st, 1)
			r.stores[spec.Path] = fs
			return fs, nil
		}
		o.RoundInterval, o.Relocation.Cycle = time.Hour, time.Hour
		o.Logger = slog.New(slog.DiscardHandler)
	})
	eventually(t, "clean slots", func() bool {
		for _, ti := range r.Pool.Tiers() {
			if ti.Slots.Clean == 0 {
				return false
			}
		}
		return true
	})
	r.serve(maxInFlight)
	return r
}

func (r *rig) serve(maxInFlight int) {
	r.t.Helper()
	dir, err := os.MkdirTemp("", "or")
	if err != nil {
		r.t.Fatal(err)
	}
	r.sock = filepath.Join(dir, "n")
	l, err := net.Listen("unix", r.sock)
	if err != nil {
		r.t.Fatal(err)
	}
	r.server = nbd.NewServer(nbd.Config{Exports: exports{r}, MaxInFlight: maxInFlight})
	server, served := r.server, make(chan error, 1)
	go func() { served <- server.Serve(context.Background(), l) }()
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			r.t.Errorf("Shutdown: %v", err)
		}
		<-served
		os.RemoveAll(dir)
	})
}

// exports is the one volume of a rig.
type exports struct{ r *rig }

func (e exports) List() []nbd.ExportInfo { return nil }
func (e exports) Info(string) (nbd.ExportInfo, error) {
	return nbd.ExportInfo{Name: "v0", Size: 4 * ext}, nil
}
func (e exports) Open(string) (nbd.Device, error) {
	v, err := e.r.Pool.Volume("v0")
	return device{v, &e.r.begun}, err
}

func (r *rig) dial() *client.Client {
	r.t.Helper()
	c, err := client.Dial(context.Background(), "unix:"+r.sock)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// hold has the next write of a backing's data wait until the channel is closed.
func (r *rig) hold(path string) (gate chan struct{}, held func() bool) {
	gate = make(chan struct{})
	in := r.stores[path].Inject(faultstore.Fault{Ops: faultstore.Write, From: 1 << 20, Times: 1, Wait: gate})
	return gate, func() bool { return in.Hits() > 0 }
}

func backingPath(tier int) string { return fmt.Sprintf("/t%d/b0", tier) }

// queue sends a change, and returns when the server has given it its place in line.
func (r *rig) queue(c *client.Client, q *client.Request, done *sync.WaitGroup) {
	r.t.Helper()
	before := r.begun.Load()
	done.Add(1)
	q.Done = func(*client.Request) { done.Done() }
	if err := c.Submit(q); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, "the change is in line", func() bool { return r.begun.Load() == before+1 })
}

// change makes a random change of the first two extents, and applies it to shadow.
func change(rnd *rand.Rand, shadow []byte, fill byte) *client.Request {
	// Ranges over both extents, and whole ones.
	off := int64(rnd.IntN(ext/block)) * block
	end := ext + int64(1+rnd.IntN(ext/block))*block
	if rnd.IntN(4) == 0 {
		off, end = 0, 2*ext
	}
	switch rnd.IntN(5) {
	case 0:
		q := &client.Request{Cmd: wire.CmdTrim, Offset: 0, Length: 2 * ext} // whole: what is left is certain
		clear(shadow)
		return q
	case 1:
		clear(shadow[off:end])
		return &client.Request{Cmd: wire.CmdWriteZeroes, Offset: off, Length: end - off}
	}
	p := bytes.Repeat([]byte{fill}, int(end-off))
	copy(shadow[off:end], p)
	return &client.Request{Cmd: wire.CmdWrite, Offset: off, Buf: p}
}

// TestOrderAcrossConnections: writers on four connections over two extents, with trims
// and zeroes between them, the first stuck in the slow tier, and the mover at one of
// the extents meanwhile. What is there in the end is what arrived last.
func TestOrderAcrossConnections(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range uint64(24) {
		rnd := rand.New(rand.NewPCG(seed, round))
		r := newRig(t, 0)
		var conns []*client.Client
		for range 4 {
			conns = append(conns, r.dial())
		}
		shadow := bytes.Repeat([]byte{1}, 2*ext)
		if err := conns[0].WriteAt(shadow, 0, false); err != nil {
			t.Fatal(err)
		}
		if err := conns[0].Flush(); err != nil {
			t.Fatal(err)
		}
		// One extent of the two is in the slow tier.
		if _, err := r.Pool.MoveExtent(context.Background(), "v0", int64(round%2)*ext, 1); err != nil {
			t.Fatal(err)
		}

		gate, held := r.hold(backingPath(1))
		var done sync.WaitGroup
		first := &client.Request{Cmd: wire.CmdWrite, Offset: ext - 2*block, Buf: bytes.Repeat([]byte{2}, 4*block)}
		copy(shadow[first.Offset:], first.Buf)
		r.queue(conns[0], first, &done)
		eventually(t, "the first is stuck", held)
		moved := make(chan struct{})
		go func() {
			defer close(moved)
			if round%3 == 0 {
				// It may succeed, or be called off by a trim.
				_, _ = r.Pool.MoveExtent(context.Background(), "v0", int64((round+1)%2)*ext, 1)
			}
		}()
		qs := []*client.Request{first}
		for i := range 7 {
			q := change(rnd, shadow, byte(3+i))
			qs = append(qs, q)
			r.queue(conns[rnd.IntN(4)], q, &done)
		}
		close(gate)
		done.Wait()
		<-moved
		for i, q := range qs {
			if q.Err != nil {
				t.Errorf("round %d: change %d: %v", round, i, q.Err)
			}
		}
		got := make([]byte, 2*ext)
		if err := conns[rnd.IntN(4)].ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, shadow) {
			i := 0
			for got[i] == shadow[i] {
				i++
			}
			t.Fatalf("round %d of seed %d: byte %d is %d, want %d", round, seed, i, got[i], shadow[i])
		}
	}
}

// TestFlushCoversOtherConnections: after a FLUSH on one connection a power cut takes
// nothing of what was answered on the others before it.
func TestFlushCoversOtherConnections(t *testing.T) {
	for round := range 8 {
		r := newRig(t, 0)
		want := make([]byte, 4*ext)
		for i := range 12 {
			c := r.dial()
			off := int64(i) * 5 * block
			p := bytes.Repeat([]byte{byte(i + 1)}, 3*block)
			if err := c.WriteAt(p, off, false); err != nil {
				t.Fatal(err)
			}
			copy(want[off:], p)
		}
		if err := r.dial().Flush(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		if err := r.server.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		r.Cut(uint64(round), 0.5)
		r.Open()
		r.serve(0)
		got := make([]byte, 4*ext)
		if err := r.dial().ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("round %d: what was flushed is not there", round)
		}
	}
}

// A raw connection sends bytes, and need not read answers.
type raw struct {
	t    *testing.T
	conn net.Conn
}

// open is a raw connection after the handshake; id 0 tells nothing of who it is.
func (r *rig) open(id byte, generation uint64) *raw {
	r.t.Helper()
	conn, err := net.Dial("unix", r.sock)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	w := &raw{r.t, conn}
	w.recv(wire.GreetingSize)
	w.send([]byte{0, 0, 0, 3})
	option := func(opt wire.Option, data []byte) {
		b := make([]byte, wire.OptionHeaderSize)
		wire.PutOption(b, opt, uint32(len(data)))
		w.send(append(b, data...))
		for {
			h := wire.ParseOptionReply(w.recv(wire.OptionReplySize))
			w.recv(int(h.Length))
			if h.Type == wire.RepAck {
				return
			}
			if wire.IsError(h.Type) {
				r.t.Fatalf("option %d: %s", opt, wire.ReplyName(h.Type))
			}
		}
	}
	if id != 0 {
		option(wire.OptClient, wire.AppendClient(nil, [16]byte{id}, generation))
	}
	option(wire.OptGo, wire.AppendInfoRequest(nil, ""))
	return w
}

func (w *raw) send(b []byte) {
	w.t.Helper()
	if _, err := w.conn.Write(b); err != nil {
		w.t.Fatal(err)
	}
}

func (w *raw) recv(n int) []byte {
	w.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(w.conn, b); err != nil {
		w.t.Fatal(err)
	}
	return b
}

func (w *raw) write(cookie uint64, off int64, fill byte) {
	w.t.Helper()
	b := make([]byte, wire.RequestSize)
	wire.PutRequest(b, wire.CmdFlagFUA, wire.CmdWrite, cookie, uint64(off), block)
	w.send(append(b, bytes.Repeat([]byte{fill}, block)...))
}

func (w *raw) want(cookie uint64) {
	w.t.Helper()
	if h := wire.ParseSimpleReply(w.recv(wire.SimpleReplySize)); h.Handle != cookie || h.Error != wire.OK {
		w.t.Fatalf("reply %+v, want success of %d", h, cookie)
	}
}

// TestSentAgain (H21): a client whose connection is not read, since its requests are
// stuck in the slow tier, sends a write again over another one, and then another write
// to the same place. The first copy, which the server finds in the old socket at last,
// must not take effect: not after a hang-up, and not when the client says who it is.
func TestSentAgain(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		r := newRig(t, 1)
		c := r.dial()
		if err := c.WriteAt(bytes.Repeat([]byte{1}, 2*ext), 0, true); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Pool.MoveExtent(context.Background(), "v0", 0, 1); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		gate, held := r.hold(backingPath(1))
		id := byte(0)
		if fenced {
			id = 7
		}
		old := r.open(id, 1)
		begun := r.begun.Load()
		old.write(1, 0, 'h') // stuck; and no more is let in
		eventually(t, "it is stuck", held)
		old.write(2, ext, 'o') // the write that is sent again
		if !fenced {
			// A hang-up is seen after a pause of a second. Nothing shows that the server
			// has begun to wait, so the pause is made longer than it can take to.
			time.Sleep(3 * time.Second)
			// Half of it is enough, and keeps the failure of writing an answer from
			// telling the same.
			if err := old.conn.(*net.UnixConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		fresh := r.open(id, 2)
		fresh.write(3, ext, 'o')
		fresh.want(3)
		fresh.write(4, ext, 'n')
		fresh.want(4)
		close(gate)
		eventually(t, "the old connection has ended", func() bool { return r.server.Snapshot().Open == 1 })
		if got := r.begun.Load() - begun; got != 3 {
			t.Errorf("fenced %v: %d changes were begun, want the stuck one and two new ones", fenced, got)
		}
		p := make([]byte, block)
		v, err := r.Pool.Volume("v0")
		if err != nil {
			t.Fatal(err)
		}
		if err := v.ReadAt(context.Background(), p, ext); err != nil || p[0] != 'n' {
			t.Errorf("fenced %v: read %q, %v, want n", fenced, p[0], err)
		}
		// The stuck one was begun and never answered: it may be there.
		if err := v.ReadAt(context.Background(), p, 0); err != nil || p[0] != 'h' && p[0] != 1 {
			t.Errorf("fenced %v: where the stuck write is: %q, %v", fenced, p[0], err)
		}
	}
}

// TestHitsPassTheSlowTier: on one connection, reads of the fast tier are answered while
// as many reads and writes as a kernel client may have are stuck in the slow one.
func TestHitsPassTheSlowTier(t *testing.T) {
	r := newRig(t, 0)
	c := r.dial()
	if err := c.WriteAt(bytes.Repeat([]byte{9}, 2*ext), 0, true); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Pool.MoveExtent(context.Background(), "v0", ext, 1); err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	r.stores[backingPath(1)].Inject(faultstore.Fault{Ops: faultstore.TryRead, Err: syscall.EAGAIN}) // no hits there
	stuck := r.stores[backingPath(1)].Inject(faultstore.Fault{Ops: faultstore.Write | faultstore.Read, From: 1 << 20, Wait: gate})
	var done sync.WaitGroup
	for i := range int64(127) {
		q := &client.Request{Cmd: wire.CmdRead, Offset: ext + i%8*block, Buf: make([]byte, block), Done: func(*client.Request) { done.Done() }}
		if i%2 == 0 {
			q.Cmd = wire.CmdWrite
			q.Offset = ext + (8+i%8)*block
		}
		done.Add(1)
		if err := c.Submit(q); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "some are stuck", func() bool { return stuck.Hits() > 16 })
	p := make([]byte, block)
	for i := range 1000 {
		if err := c.ReadAt(p, int64(i%16)*block); err != nil || p[0] != 9 {
			t.Fatalf("hit %d: %d, %v", i, p[0], err)
		}
	}
	if n := c.Outstanding(); n != 127 {
		t.Errorf("%d requests are outstanding, want the 127 that are stuck", n)
	}
	close(gate)
	done.Wait()
}
