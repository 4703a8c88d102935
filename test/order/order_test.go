package order

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
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
	size     = 10 * ext // of the volume
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
	r.World = model.NewWorld(t, model.Config{ExtentSize: ext, Slots: [][]int{{16}, {16}}, Volumes: []int64{size}}, func(o *tiering.Options) {
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
	return nbd.ExportInfo{Name: "v0", Size: size}, nil
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

// wait waits for requests to be answered. They may be waiting for each other.
func (r *rig) wait(done *sync.WaitGroup) {
	r.t.Helper()
	all := make(chan struct{})
	go func() {
		done.Wait()
		close(all)
	}()
	select {
	case <-all:
	case <-time.After(patience):
		r.t.Fatal("requests are not answered")
	}
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

// apply makes q's change in shadow.
func apply(shadow []byte, q *client.Request) {
	if q.Cmd == wire.CmdWrite {
		copy(shadow[q.Offset:], q.Buf)
		return
	}
	clear(shadow[q.Offset : q.Offset+int64(q.Length)])
}

func writeOf(fill byte, off, end int64) *client.Request {
	return &client.Request{Cmd: wire.CmdWrite, Offset: off, Buf: bytes.Repeat([]byte{fill}, int(end-off))}
}

func zeroesOf(off, end int64) *client.Request {
	return &client.Request{Cmd: wire.CmdWriteZeroes, Offset: off, Length: end - off}
}

// trimOfAll trims both extents: of less, what is left would not be certain.
func trimOfAll() *client.Request { return &client.Request{Cmd: wire.CmdTrim, Length: 2 * ext} }

// change makes a random change of the first two extents.
func change(rnd *rand.Rand, fill byte) *client.Request {
	// Ranges over both extents, and whole ones.
	off := int64(rnd.IntN(ext/block)) * block
	end := ext + int64(1+rnd.IntN(ext/block))*block
	if rnd.IntN(4) == 0 {
		off, end = 0, 2*ext
	}
	switch rnd.IntN(5) {
	case 0:
		return trimOfAll()
	case 1:
		return zeroesOf(off, end)
	}
	return writeOf(fill, off, end)
}

// An order is a script of changes of the first two extents, of which one is in the slow
// tier. Each is sent when the one before has its place in line.
type order struct {
	slow    int64             // the index of that extent
	changes []*client.Request // the first waits for the slow tier until all are in line
	via     []int             // over which connection each goes
	moving  bool              // the other extent is being copied to the slow tier meanwhile
	first   int               // of these two, which may go on before the other
}

// play has both extents hold ones, plays o, and compares them with what the changes
// make of that in the order in which they arrived.
func (r *rig) play(conns []*client.Client, o order) {
	r.t.Helper()
	ctx := context.Background()
	want := bytes.Repeat([]byte{1}, 2*ext)
	if err := conns[0].WriteAt(want, 0, false); err != nil {
		r.t.Fatal(err)
	}
	if err := conns[0].Flush(); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.Pool.MoveExtent(ctx, "v0", o.slow*ext, 1); err != nil {
		r.t.Fatal(err)
	}

	var gates []chan struct{}
	moved := make(chan struct{})
	if o.moving {
		gate, held := r.hold(backingPath(1))
		gates = append(gates, gate)
		go func() {
			defer close(moved)
			// It may succeed, or be called off by a trim.
			_, _ = r.Pool.MoveExtent(ctx, "v0", (1-o.slow)*ext, 1)
		}()
		eventually(r.t, "the move copies", held)
	} else {
		close(moved)
	}
	gate, held := r.hold(backingPath(1))
	gates = append(gates, gate)
	var done sync.WaitGroup
	for i, q := range o.changes {
		r.queue(conns[o.via[i]], q, &done)
		apply(want, q)
		if i == 0 {
			eventually(r.t, "the first is stuck", held)
		}
	}
	for i := range gates {
		close(gates[(i+o.first)%len(gates)])
	}
	r.wait(&done)
	<-moved
	for i, q := range o.changes {
		if q.Err != nil {
			r.t.Errorf("change %d: %v", i, q.Err)
		}
	}
	got := make([]byte, 2*ext)
	if err := conns[len(conns)-1].ReadAt(got, 0); err != nil {
		r.t.Fatal(err)
	}
	for i := range got {
		if got[i] != want[i] {
			r.t.Fatalf("byte %d is %d, want %d", i, got[i], want[i])
		}
	}
}

func (r *rig) dialFour() []*client.Client {
	r.t.Helper()
	return []*client.Client{r.dial(), r.dial(), r.dial(), r.dial()}
}

// acrossBoth is a write over the border of the two extents, which waits for the slow one.
func acrossBoth() *client.Request { return writeOf(2, ext-2*block, ext+2*block) }

// TestOrderAcrossConnections: writers on four connections over two extents, with trims
// and zeroes between them, the first stuck in the slow tier, and the mover at one of
// the extents meanwhile. What is there in the end is what arrived last.
func TestOrderAcrossConnections(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for n := range uint64(24) {
		t.Run(fmt.Sprintf("round %d", n), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, n))
			r := newRig(t, 0)
			o := order{slow: int64(n % 2), changes: []*client.Request{acrossBoth()}, via: []int{0}, moving: n%3 > 0, first: rnd.IntN(2)}
			for i := range 7 {
				o.changes = append(o.changes, change(rnd, byte(3+i)))
				o.via = append(o.via, rnd.IntN(4))
			}
			r.play(r.dialFour(), o)
		})
	}
}

// TestEveryOrder: two writes that cross each other over the two extents, a trim and
// zeroes, each over a connection of its own, in every order of arrival.
func TestEveryOrder(t *testing.T) {
	r := newRig(t, 0)
	conns := r.dialFour()
	var places [][]int
	permute([]int{0, 1, 2, 3}, 0, func(p []int) { places = append(places, slices.Clone(p)) })
	for n, p := range places {
		four := []*client.Request{writeOf(3, block, ext+5*block), trimOfAll(), writeOf(4, 3*block, 2*ext), zeroesOf(2*block, ext+block)}
		o := order{slow: int64(n % 2), changes: []*client.Request{acrossBoth()}, via: []int{n % 4}, moving: n%4 > 1, first: n / 4 % 2}
		for _, i := range p {
			o.changes = append(o.changes, four[i])
			o.via = append(o.via, i)
		}
		t.Logf("order %v", p)
		r.play(conns, o)
	}
}

// permute calls f with each order of p.
func permute(p []int, from int, f func([]int)) {
	if from == len(p) {
		f(p)
		return
	}
	for i := from; i < len(p); i++ {
		p[from], p[i] = p[i], p[from]
		permute(p, from+1, f)
		p[from], p[i] = p[i], p[from]
	}
}

// TestCrossedWriters: changes of one range over two extents, begun on four connections at
// the same time. Whatever their order is, it is one order: the range is all of one
// change, although parts of it live in two tiers.
func TestCrossedWriters(t *testing.T) {
	r := newRig(t, 0)
	conns := r.dialFour()
	if err := conns[0].WriteAt(bytes.Repeat([]byte{9}, 2*ext), 7*ext, true); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Pool.MoveExtent(context.Background(), "v0", 8*ext, 1); err != nil {
		t.Fatal(err)
	}
	// Extents are in line in groups of eight: these two are so in different places.
	const off, n = 8*ext - block, 2 * block
	got := make([]byte, n)
	for round := range 2000 {
		var done sync.WaitGroup
		start := make(chan struct{})
		errs := make([]error, len(conns))
		for i, c := range conns {
			done.Go(func() {
				p := bytes.Repeat([]byte{byte(i)}, n) // those of the first are zeroes
				<-start
				if i == 0 {
					errs[i] = c.WriteZeroes(off, n, false, false)
				} else {
					errs[i] = c.WriteAt(p, off, false)
				}
			})
		}
		close(start)
		r.wait(&done)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if err := conns[round%4].ReadAt(got, off); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, bytes.Repeat(got[:1], n)) {
			t.Fatalf("round %d: the range begins with %d and ends with %d", round, got[0], got[n-1])
		}
	}
}

// TestFlushCoversOtherConnections: after a FLUSH on one connection a power cut takes
// nothing of what was answered on the others before it.
func TestFlushCoversOtherConnections(t *testing.T) {
	for round := range 8 {
		r := newRig(t, 0)
		want := make([]byte, size)
		copy(want, bytes.Repeat([]byte{99}, 3*ext))
		if err := r.dial().WriteAt(want[:3*ext], 0, true); err != nil {
			t.Fatal(err)
		}
		// Some of what is flushed below is in the slow tier.
		if _, err := r.Pool.MoveExtent(context.Background(), "v0", ext, 1); err != nil {
			t.Fatal(err)
		}
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
		got := make([]byte, size)
		if err := r.dial().ReadAt(got, 0); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("round %d: what was flushed is not there", round)
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
