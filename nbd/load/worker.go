package load

import (
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"tierd/nbd/client"
	"tierd/nbd/wire"
)

// A request is one of a worker's places for an operation in flight.
type request struct {
	client.Request
	op    op
	start time.Duration // on the run's clock
	buf   []byte        // of the longest operation so far
	epoch uint32        // that a FLUSH covers
}

// A worker keeps one connection busy. Its methods run wherever an answer
// arrives, a phase begins or the pacer fires, always under mu.
type worker struct {
	run *run
	c   *client.Client

	mu       sync.Mutex
	rng      *rand.Rand
	phase    *phase // nil between phases
	free     []*request
	inFlight int
	next     op // drawn and not sent yet
	drawn    bool
	noMore   bool // the source is exhausted
	changes  int  // since the last FLUSH
	sent     int64
	wakeAt   time.Duration // when the pacer has to look again

	hist     [kinds]Histogram
	bytes    [kinds]int64
	errors   map[string]int64
	lagMax   time.Duration
	interval intervalStats

	poke chan struct{} // to the pacer
}

// intervalStats are what a Sample is made of.
type intervalStats struct {
	hist   Histogram
	bytes  [kinds]int64
	errors int64
}

func newWorker(r *run, c *client.Client, id int) *worker {
	w := &worker{run: r, c: c, rng: rand.New(rand.NewPCG(r.spec.Seed, uint64(id))),
		errors: map[string]int64{}, poke: make(chan struct{}, 1)}
	for range r.spec.Depth {
		q := &request{}
		q.Done = func(*client.Request) { w.done(q) }
		w.free = append(w.free, q)
	}
	return w
}

// begin starts a phase.
func (w *worker) begin(p *phase) {
	w.mu.Lock()
	w.phase, w.noMore, w.drawn, w.sent = p, false, false, 0
	w.fillLocked()
	w.mu.Unlock()
	w.c.Kick()
}

// wakeUp makes the worker look again at what it could not send.
func (w *worker) wakeUp() {
	w.mu.Lock()
	w.fillLocked()
	w.mu.Unlock()
	w.c.Kick()
}

// done takes the answer to q, and sends the next operations.
func (w *worker) done(q *request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.completeLocked(q)
	w.free = append(w.free, q)
	w.inFlight--
	w.fillLocked()
}

func (w *worker) completeLocked(q *request) {
	o, l := &q.op, w.run.ledger
	switch {
	case l == nil:
	case o.kind == opFlush:
		if q.Err == nil {
			l.endFlush(q.epoch)
		}
	default:
		switch {
		case o.kind == opRead && q.Err == nil:
			l.check(q.Buf, o.off)
		case o.kind != opRead:
			l.settle(o.off, o.n, wordKinds[o.kind], q.Err == nil, q.Flags&wire.CmdFlagFUA != 0)
		}
		l.unlock(o.off, o.n, o.kind != opRead)
	}
	if q.Err != nil {
		w.errors[errorName(q.Err)]++
		w.interval.errors++
		if errors.Is(q.Err, client.ErrDisconnected) {
			w.run.fatal(q.Err)
		}
		return
	}
	if p := w.phase; p.measured && q.start >= p.from {
		d := w.run.now() - q.start
		w.hist[o.kind].Add(d)
		w.bytes[o.kind] += o.n
		w.interval.hist.Add(d)
		w.interval.bytes[o.kind] += o.n
	}
}

var wordKinds = [kinds]word{opWrite: kindData, opTrim: kindTrim, opZero: kindZero}

// fillLocked sends operations as long as there are places, and ends the
// worker's part of the phase when nothing is left to do or to wait for.
func (w *worker) fillLocked() {
	p := w.phase
	if p == nil {
		return
	}
	for len(w.free) > 0 && !w.noMore && !p.stop.Load() {
		if !w.drawn && !w.drawLocked() {
			break
		}
		if d := w.next.at; d > 0 {
			// Times are kept up to the clock's granularity.
			if now := w.run.now() - p.begin; now < d {
				w.sleepLocked(p.begin + d)
				break
			} else if p.measured {
				w.lagMax = max(w.lagMax, now-d)
			}
		}
		if !w.lockLocked() {
			// Whoever holds the units may be on another connection, so time
			// decides when to look again, if no answer of our own comes before.
			w.sleepLocked(w.run.now() + retryAfter)
			break
		}
		w.sendLocked()
	}
	if w.inFlight == 0 && (w.noMore || p.stop.Load()) {
		w.phase = nil
		p.workers.Done()
	}
}

// retryAfter is when to try again to send an operation that overlaps another.
const retryAfter = 200 * time.Microsecond

func (w *worker) sleepLocked(until time.Duration) {
	w.wakeAt = until
	select {
	case w.poke <- struct{}{}:
	default:
	}
}

// drawLocked gets the next operation; false if there is none.
func (w *worker) drawLocked() bool {
	p := w.phase
	if p.limit > 0 && p.drawn.Add(1) > p.limit {
		w.noMore = true
		return false
	}
	if every := w.run.spec.FlushEvery; every > 0 && p.paced && w.changes >= every {
		w.changes = 0
		w.next = op{kind: opFlush}
	} else {
		o, err := p.source.next(w.rng)
		if err != nil {
			w.noMore = true
			if err != io.EOF {
				w.run.fatal(err)
			}
			return false
		}
		w.next = o
	}
	if p.paced && w.run.spec.Rate > 0 {
		// Worker i of n sends every nth operation of the common schedule.
		n := float64(w.run.spec.Connections)
		w.next.at = max(w.next.at, time.Duration(float64(w.sent)*n/w.run.spec.Rate*float64(time.Second)))
	}
	w.sent++
	w.drawn = true
	return true
}

// lockLocked locks the units of the next operation. A free operation goes
// elsewhere in its region if they are taken.
func (w *worker) lockLocked() bool {
	l := w.run.ledger
	if l == nil || w.next.kind == opFlush {
		return true
	}
	for try := 0; ; try++ {
		if l.tryLock(w.next.off, w.next.n, w.next.kind != opRead) {
			return true
		}
		if !w.next.free || try == 8 {
			return false
		}
		w.phase.source.redraw(w.rng, &w.next)
	}
}

func (w *worker) sendLocked() {
	q := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	w.inFlight++
	w.drawn = false
	o := w.next
	q.op = o
	q.Offset, q.Length, q.Flags = o.off, o.n, 0
	switch o.kind {
	case opRead:
		q.Cmd = wire.CmdRead
		q.Buf = w.buffer(q)
	case opWrite:
		q.Cmd = wire.CmdWrite
		q.Buf = w.buffer(q)
		if l := w.run.ledger; l != nil {
			l.prepare(q.Buf, o.off)
		} else if len(q.Buf) >= 8 {
			// No two writes alike, lest deduplication or compression helps.
			le.PutUint64(q.Buf, w.rng.Uint64())
		}
	case opTrim:
		q.Cmd = wire.CmdTrim
	case opZero:
		q.Cmd = wire.CmdWriteZeroes
	case opFlush:
		q.Cmd = wire.CmdFlush
		if l := w.run.ledger; l != nil {
			q.epoch = l.beginFlush()
		}
	}
	if o.kind.changes() {
		w.changes++
		if w.run.spec.FUA {
			q.Flags = wire.CmdFlagFUA
		}
	}
	q.start = w.run.now()
	if err := w.c.Queue(&q.Request); err != nil {
		w.refusedLocked(q, err)
	}
}

// refusedLocked takes back an operation that the client did not accept.
func (w *worker) refusedLocked(q *request, err error) {
	if l := w.run.ledger; l != nil && q.op.kind != opFlush {
		l.unlock(q.op.off, q.op.n, q.op.kind != opRead)
	}
	w.free = append(w.free, q)
	w.inFlight--
	w.noMore = true
	w.run.fatal(err)
}

// buffer returns q's buffer at the length of its operation.
func (w *worker) buffer(q *request) []byte {
	n := int(q.op.n)
	if cap(q.buf) < n {
		q.buf = make([]byte, n)
		x := w.rng.Uint64()
		for p := q.buf; len(p) >= 8; p = p[8:] {
			x += golden
			le.PutUint64(p, mix(x))
		}
	}
	return q.buf[:n]
}

// pacer sends what had to wait. It ends with quit.
func (w *worker) pacer(quit <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-w.poke:
			w.mu.Lock()
			d := w.wakeAt - w.run.now()
			w.mu.Unlock()
			timer.Reset(d)
		case <-timer.C:
			w.wakeUp()
		case <-quit:
			return
		}
	}
}
