package nbd

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tierd/nbd/wire"
)

// A countingObserver counts.
type countingObserver struct {
	mu                               sync.Mutex
	accepted, requests, errors       int
	bytes                            uint64
	opened, closed, negativeDuration int
	reasons                          map[string]int
}

func (o *countingObserver) ConnAccepted() { o.mu.Lock(); o.accepted++; o.mu.Unlock() }
func (o *countingObserver) HandshakeFailed(reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reasons == nil {
		o.reasons = map[string]int{}
	}
	o.reasons[reason]++
}
func (o *countingObserver) ConnOpened(export, remote string) ConnObserver {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.opened++
	return o
}
func (o *countingObserver) Request(cmd wire.Cmd, n uint32, d time.Duration, errno wire.Errno) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.requests++
	o.bytes += uint64(n)
	if errno != wire.OK {
		o.errors++
	}
	if d < 0 {
		o.negativeDuration++
	}
}
func (o *countingObserver) Closed() { o.mu.Lock(); o.closed++; o.mu.Unlock() }

// TestBlockedChangeDoesNotHoldUpReads: a change served by the leader blocks; the
// hits behind it on the same connection, and the reply finished before it, come.
func TestBlockedChangeDoesNotHoldUpReads(t *testing.T) {
	d := newMemDevice(1 << 20)
	fill(d.data, 3)
	gate := make(chan struct{})
	d.runGate = func(off int64) <-chan struct{} {
		if off == 4096 {
			return gate
		}
		return nil
	}
	s, path := serveOne(t, d)
	r := open(t, path, "a")
	blocked := fill(make([]byte, 100), 9)
	script := message(wire.CmdRead, 0, 1, 0, 512)
	script = append(script, message(wire.CmdWrite, 0, 2, 4096, 100, blocked...)...)
	script = append(script, message(wire.CmdRead, 0, 3, 8192, 512)...)
	r.send(script)
	r.wantData(1, d.data[:512])
	r.wantData(3, d.data[8192:8704])
	for i := range 50 {
		// These overwrite the input buffer that the blocked payload would live
		// in, had it not been left to the blocked change.
		junk := fill(make([]byte, 5000), byte(i))
		r.send(message(wire.CmdRead, wire.CmdFlagDF, 5, 0, 1)) // refused
		r.want(5, wire.EINVAL)
		r.send(message(wire.CmdWrite, 0, 6, 1<<20, 5000, junk...)) // refused
		r.want(6, wire.ENOSPC)
		r.inSync()
	}
	if got := s.Snapshot(); got.Handoffs != 1 || got.InFlight != 1 {
		t.Errorf("got %d hand-offs and %d in flight, want 1 and 1", got.Handoffs, got.InFlight)
	}
	close(gate)
	r.want(2, wire.OK)
	r.send(message(wire.CmdRead, 0, 7, 4096, 100))
	r.wantData(7, blocked)
}

// TestBlockedReadDoesNotHoldUpReads is the same for a miss that the leader,
// having nothing else to do, serves itself.
func TestBlockedReadDoesNotHoldUpReads(t *testing.T) {
	d := newMemDevice(1 << 20)
	fill(d.data, 3)
	gate := make(chan struct{})
	d.readGate = func(off int64) <-chan struct{} {
		if off == 4096 {
			return gate
		}
		return nil
	}
	s, path := serveOne(t, d)
	r := open(t, path, "a")
	r.send(message(wire.CmdRead, 0, 1, 4096, 512))
	eventually(t, "the leader is relieved", func() bool { return s.Snapshot().Handoffs == 1 })
	for range 10 {
		r.inSync()
	}
	close(gate)
	r.wantData(1, d.data[4096:4608])
}

// TestLastReplyIsWritten: the blocked change is the last thing that happens on
// the connection, and disconnect and shutdown wait for it.
func TestLastReplyIsWritten(t *testing.T) {
	for _, disc := range []bool{false, true} {
		d := newMemDevice(1 << 20)
		gate := make(chan struct{})
		d.runGate = func(int64) <-chan struct{} { return gate }
		s, path := serveOne(t, d)
		r := open(t, path, "a")
		r.send(message(wire.CmdWrite, 0, 2, 4096, 1, 9))
		eventually(t, "the leader is relieved", func() bool { return s.Snapshot().Handoffs == 1 })
		if disc {
			r.send(message(wire.CmdDisc, 0, 0, 0, 0))
		}
		time.AfterFunc(10*time.Millisecond, func() { close(gate) })
		r.want(2, wire.OK)
		if disc {
			r.closed()
		}
	}
}

// TestHandoffStress: changes that take around the time after which a leader is
// relieved, on several connections, each with its own ranges; all answers and
// all data must be right.
func TestHandoffStress(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const conns, depth, rounds, block = 4, 32, 40, 512
	d := &slowDevice{memDevice: newMemDevice(conns * depth * block)}
	o := &countingObserver{}
	e := newMemExports().add(ExportInfo{Name: "a"}, d)
	s, path := serve(t, Config{Exports: e, Observer: o})
	s.mu.Lock() // which orders this before the connections
	s.slowChanges = 2
	s.mu.Unlock()
	var wg sync.WaitGroup
	for i := range conns {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			r := open(t, path, "a")
			oracle := make([]byte, depth*block)
			base := uint64(i * depth * block)
			for round := range rounds {
				var script []byte
				kind := make([]int, depth)
				for j := range depth {
					kind[j] = rnd.IntN(3)
					off := uint64(j * block)
					if kind[j] == 0 {
						fill(oracle[off:off+block], byte(round+j))
						script = append(script, message(wire.CmdWrite, 0, uint64(j), base+off, block, oracle[off:off+block]...)...)
					} else {
						script = append(script, message(wire.CmdRead, 0, uint64(j), base+off, block)...)
					}
				}
				if _, err := r.nc.Write(script); err != nil {
					t.Error(err)
					return
				}
				seen := [depth]bool{}
				for range depth {
					var b [wire.SimpleReplySize]byte
					if _, err := io.ReadFull(r.nc, b[:]); err != nil {
						t.Error(err)
						return
					}
					h := wire.ParseSimpleReply(b[:])
					if h.Handle >= depth || seen[h.Handle] || h.Error != 0 {
						t.Errorf("got %+v", h)
						return
					}
					seen[h.Handle] = true
					if kind[h.Handle] != 0 {
						got := make([]byte, block)
						if _, err := io.ReadFull(r.nc, got); err != nil {
							t.Error(err)
							return
						}
						if !bytes.Equal(got, oracle[h.Handle*block:(h.Handle+1)*block]) {
							t.Errorf("round %d: data of %d differ", round, h.Handle)
							return
						}
					}
				}
			}
			r.nc.Close()
		})
	}
	wg.Wait()
	eventually(t, "all connections end", func() bool { return s.Snapshot().Open == 0 })
	st := s.Snapshot()
	t.Logf("%d hand-offs in %d requests", st.Handoffs, st.Requests)
	if st.Handoffs == 0 {
		t.Error("no hand-off: the test tested nothing")
	}
	if st.Requests != conns*depth*rounds || st.BudgetFree != s.cfg.MaxTotalBytes {
		t.Errorf("got %+v", st)
	}
	if d.begun.Load() != d.run.Load() {
		t.Errorf("%d changes begun and %d run", d.begun.Load(), d.run.Load())
	}
	if o.requests != conns*depth*rounds || o.errors != 0 || o.negativeDuration != 0 {
		t.Errorf("observer: %d requests, %d errors, %d negative durations", o.requests, o.errors, o.negativeDuration)
	}
}

// A slowDevice runs changes without an order, and now and then slowly.
type slowDevice struct {
	*memDevice
	n atomic.Int64
}

type slowMutation struct {
	d   *slowDevice
	off int64
}

func (d *slowDevice) BeginWrite(off, n int64) Mutation {
	d.begun.Add(1)
	return &slowMutation{d, off}
}

func (m *slowMutation) Run(_ context.Context, p []byte, _ bool) error {
	m.d.run.Add(1)
	if n := m.d.n.Add(1); n%7 == 0 {
		time.Sleep(time.Duration(n%5) * 400 * time.Microsecond)
	}
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	copy(m.d.data[m.off:], p)
	return nil
}
