package backing

import (
	"context"
	"sync/atomic"
	"time"
)

// smallRead is the largest read that tells what positioning costs: in larger ones the
// transfer counts.
const smallRead = 64 << 10

// meterStreams is how many ends of reads a Meter remembers, to tell runs.
const meterStreams = 64

// A Meter is a Store that measures how fast the device below answers, and for how much of
// the time it has something to do. Reads that a cache answers at once (TryReadAt) are not
// the device's.
//
// Random reads are small ones that do not begin where an earlier read ended, the others
// are sequential. Those that arrive while no other call is under way tell the service
// time, all together what waiting adds to it. A call costs a few atomic additions and two
// looks at the clock.
type Meter struct {
	Store
	now func() time.Time

	calls  atomic.Int64 // under way
	began  atomic.Int64 // when the device got busy, nanoseconds
	busy   atomic.Int64 // time that it was, nanoseconds
	ends   [meterStreams]atomic.Int64
	random struct{ all, idle meterSum }
	seq    meterSum
	bytes  atomic.Int64 // of sequential reads
}

type meterSum struct{ n, nanos atomic.Int64 }

func (s *meterSum) add(took time.Duration) {
	s.n.Add(1)
	s.nanos.Add(int64(took))
}

func (s *meterSum) read() Sum { return Sum{s.n.Load(), time.Duration(s.nanos.Load())} }

// A Sum is a number of calls and the time that they took together.
type Sum struct {
	N    int64
	Time time.Duration
}

// Minus returns what s has more than an earlier sum.
func (s Sum) Minus(earlier Sum) Sum { return Sum{s.N - earlier.N, s.Time - earlier.Time} }

// Mean returns the time of one call; 0 if there was none.
func (s Sum) Mean() time.Duration {
	if s.N <= 0 {
		return 0
	}
	return s.Time / time.Duration(s.N)
}

// Measures are sums since a Meter was made.
type Measures struct {
	Random          Sum // small reads out of any sequence
	RandomIdle      Sum // of these, those that found the device idle
	Sequential      Sum
	SequentialBytes int64
	Busy            time.Duration // with at least one call under way
}

// NewMeter wraps s, which it then owns. now is for tests; nil means the machine's clock.
func NewMeter(s Store, now func() time.Time) *Meter {
	if now == nil {
		now = time.Now
	}
	return &Meter{Store: s, now: now}
}

// Measures returns what was measured until now. Calls under way count when they end, but
// for the time that they have kept the device busy.
func (m *Meter) Measures() Measures {
	out := Measures{
		Random: m.random.all.read(), RandomIdle: m.random.idle.read(), Sequential: m.seq.read(),
		SequentialBytes: m.bytes.Load(), Busy: time.Duration(m.busy.Load()),
	}
	if m.calls.Load() > 0 {
		out.Busy += max(time.Duration(m.now().UnixNano()-m.began.Load()), 0)
	}
	return out
}

// enter notes that a call begins, and reports whether the device was idle.
func (m *Meter) enter() (start time.Time, idle bool) {
	start = m.now()
	if idle = m.calls.Add(1) == 1; idle {
		m.began.Store(start.UnixNano())
	}
	return start, idle
}

func (m *Meter) leave(start time.Time) time.Duration {
	end := m.now()
	if m.calls.Add(-1) == 0 {
		// If another call has just begun, began is the later one: a moment goes uncounted.
		m.busy.Add(max(end.UnixNano()-m.began.Load(), 0))
	}
	return end.Sub(start)
}

// continues reports whether a read at off continues an earlier one, and notes its end.
func (m *Meter) continues(off, n int64) bool {
	slot := func(at int64) *atomic.Int64 { return &m.ends[uint64(at)*0x9E3779B97F4A7C15>>(64-6)] }
	was := slot(off).Load() == off && off != 0
	slot(off + n).Store(off + n)
	return was
}

// ReadAt implements Store.
func (m *Meter) ReadAt(ctx context.Context, p []byte, off int64) error {
	n := int64(len(p))
	start, idle := m.enter()
	err := m.Store.ReadAt(ctx, p, off)
	took := m.leave(start)
	if err != nil {
		return err
	}
	if m.continues(off, n) || n > smallRead {
		m.seq.add(took)
		m.bytes.Add(n)
		return nil
	}
	m.random.all.add(took)
	if idle {
		m.random.idle.add(took)
	}
	return nil
}

// WriteAt implements Store.
func (m *Meter) WriteAt(ctx context.Context, p []byte, off int64) error {
	start, _ := m.enter()
	defer m.leave(start)
	return m.Store.WriteAt(ctx, p, off)
}

// Sync implements Store.
func (m *Meter) Sync(ctx context.Context) error {
	start, _ := m.enter()
	defer m.leave(start)
	return m.Store.Sync(ctx)
}

// Zero implements Store.
func (m *Meter) Zero(ctx context.Context, off, n int64) error {
	start, _ := m.enter()
	defer m.leave(start)
	return m.Store.Zero(ctx, off, n)
}

// Reserve implements Reserver.
func (m *Meter) Reserve(ctx context.Context, off, n int64) error {
	if r, ok := m.Store.(Reserver); ok {
		return r.Reserve(ctx, off, n)
	}
	return nil
}
