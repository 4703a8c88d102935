package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"tierd/nbd/client"
	"tierd/nbd/wire"
)

// closeAfter is how long a run that was cancelled waits for answers.
const closeAfter = 5 * time.Second

// run is one call of Run.
type run struct {
	spec    Spec
	size    int64 // that is used: whole operations
	limit   int   // bytes of one request
	align   int64
	ledger  *ledger // nil without verification
	workers []*worker
	base    time.Time

	failed   chan struct{} // closed with failure set
	failOnce sync.Once
	failure  error
}

// A phase is what all workers do until its source ends or it is stopped.
type phase struct {
	source   source
	limit    int64 // operations, 0: none
	paced    bool  // the Spec's rate and FLUSHes apply
	measured bool
	begin    time.Duration
	from     time.Duration // operations sent before do not count

	drawn   atomic.Int64
	stop    atomic.Bool
	workers sync.WaitGroup
}

func (r *run) now() time.Duration { return time.Since(r.base) }

// fatal ends the run with an error; the first one counts.
func (r *run) fatal(err error) {
	r.failOnce.Do(func() {
		r.failure = err
		close(r.failed)
	})
}

// Run makes the load that spec describes. The Result is valid, as far as it
// goes, whenever it is not nil, with an error, too: a connection lost on the way
// wraps client.ErrDisconnected, a faulty spec ErrSpec, a trace that is too large
// ErrFit. Mismatches are no error: see Result.Damaged. If ctx ends, the run ends
// early and returns its error.
func Run(ctx context.Context, spec Spec) (*Result, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	r := &run{spec: spec, base: time.Now(), failed: make(chan struct{})}
	defer r.close()
	if err := r.connect(ctx); err != nil {
		return nil, err
	}
	quit := make(chan struct{})
	var pacers sync.WaitGroup
	for _, w := range r.workers {
		pacers.Go(func() { w.pacer(quit) })
	}
	defer func() { close(quit); pacers.Wait() }()

	res := &Result{Spec: r.spec, Size: r.workers[0].c.Size(), Errors: map[string]int64{}}
	err := r.phases(ctx, res)
	r.collect(res)
	if r.ledger != nil && spec.State != "" && !spec.VerifyOnly {
		err = errors.Join(err, saveLedger(spec.State, r.ledger))
	}
	return res, err
}

// connect opens the connections and fits the spec to the export.
func (r *run) connect(ctx context.Context) error {
	for i := range r.spec.Connections {
		c, err := client.Dial(ctx, r.spec.URI)
		if err != nil {
			return err
		}
		r.workers = append(r.workers, newWorker(r, c, i))
		if c.Size() != r.workers[0].c.Size() {
			return fmt.Errorf("connection %d sees a volume of %d bytes, the first one %d", i, c.Size(), r.workers[0].c.Size())
		}
	}
	c := r.workers[0].c
	size := c.Size()
	lo, _, hi := c.BlockSizes()
	r.limit = hi
	r.align = max(int64(lo), 512)
	bs := r.spec.BlockSize
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrSpec}, args...)...)
	}
	switch {
	case bs%int64(lo) != 0:
		return bad("the export wants multiples of %d bytes, the block size is %d", lo, bs)
	case bs > int64(hi):
		return bad("the export takes at most %d bytes at once, the block size is %d", hi, bs)
	case size < bs:
		return bad("a volume of %d bytes has no block of %d", size, bs)
	case r.spec.Connections > 1 && r.spec.checks() && c.Flags()&wire.FlagCanMultiConn == 0:
		return bad("the export does not promise that connections see each other's writes, so %d of them cannot be verified", r.spec.Connections)
	}
	r.size = size / r.align * r.align
	if r.spec.checks() {
		return r.openLedger(lo)
	}
	return nil
}

func (r *run) openLedger(minBlock int) error {
	unit := int64(4096)
	if r.spec.Trace != nil || r.spec.BlockSize%unit != 0 {
		unit = 512
	}
	size := r.size
	var err error
	if r.spec.State != "" {
		r.ledger, err = loadLedger(r.spec.State, size, r.spec.ExpectZero)
	}
	switch {
	case r.spec.State == "" || errors.Is(err, os.ErrNotExist) && !r.spec.VerifyOnly:
		r.ledger = newLedger(size, unit, r.spec.Seed, r.spec.ExpectZero)
	case err != nil:
		return err
	}
	r.ledger.afterCut = r.spec.AfterCut
	unit = r.ledger.unit
	switch {
	case r.spec.BlockSize%unit != 0 && !r.spec.VerifyOnly:
		return fmt.Errorf("%w: the block size must be a multiple of the state's unit of %d bytes", ErrSpec, unit)
	case unit%int64(minBlock) != 0:
		return fmt.Errorf("%w: the export wants multiples of %d bytes, which cannot be verified in units of %d", ErrSpec, minBlock, unit)
	}
	r.size = size / unit * unit
	r.align = unit
	return nil
}

// phases goes through what the spec asks for.
func (r *run) phases(ctx context.Context, res *Result) error {
	piece := min(int64(r.limit)/r.align*r.align, 1<<20)
	s := &r.spec
	if s.Fill && !s.VerifyOnly {
		t := r.now()
		err := r.phase(ctx, &phase{source: &sweepSource{kind: opWrite, size: r.size, piece: piece}}, 0, 0)
		res.FillSeconds = (r.now() - t).Seconds()
		if err != nil {
			return fmt.Errorf("fill: %w", err)
		}
	}
	if !s.VerifyOnly {
		p := &phase{paced: true, measured: true, limit: s.Ops}
		if s.Trace != nil {
			p.source = &traceSource{spec: s, size: r.size, align: r.align, limit: piece}
		} else {
			p.source = newPatternSource(s, r.size)
		}
		begin := r.now() + s.Warmup
		err := r.phase(ctx, p, s.Warmup, s.Duration)
		elapsed := max(r.now()-begin, 0)
		r.measure(res, elapsed)
		if err != nil {
			return fmt.Errorf("run: %w", err)
		}
	}
	if s.VerifyPass || s.VerifyOnly {
		t := r.now()
		piece = min(piece, 64*r.ledger.unit)
		err := r.phase(ctx, &phase{source: &sweepSource{kind: opRead, size: r.size, piece: piece, want: r.ledger.known}}, 0, 0)
		res.VerifySeconds = (r.now() - t).Seconds()
		if err != nil {
			return fmt.Errorf("verify: %w", err)
		}
	}
	return nil
}

// phase runs one phase for at most warmup and duration (0: until its source ends).
func (r *run) phase(ctx context.Context, p *phase, warmup, duration time.Duration) error {
	p.begin = r.now()
	p.from = p.begin + warmup
	p.workers.Add(len(r.workers))
	for _, w := range r.workers {
		w.begin(p)
	}
	ended := make(chan struct{})
	go func() { p.workers.Wait(); close(ended) }()

	var over <-chan time.Time
	if duration > 0 {
		over = time.After(warmup + duration)
	}
	ticks := newTicker(r, p)
	defer ticks.stop()
	for {
		select {
		case <-ticks.c:
			ticks.tick()
			continue
		case <-ended:
		case <-over:
		case <-r.failed:
		case <-ctx.Done():
		}
		break
	}
	// What is in flight is waited for, the next operations are not sent.
	p.stop.Store(true)
	for _, w := range r.workers {
		w.wakeUp()
	}
	select {
	case <-ended:
	case <-r.failed:
	case <-ctx.Done():
	}
	if ctx.Err() != nil || r.isFailed() {
		select {
		case <-ended:
		case <-time.After(closeAfter):
			// Nobody hangs on a dead server: what is still outstanding gets no
			// answer and is in doubt.
			r.close()
		}
	}
	<-ended
	if r.now()-ticks.last >= r.spec.Interval/4 {
		ticks.tick()
	}
	if r.isFailed() {
		return r.failure
	}
	return ctx.Err()
}

func (r *run) isFailed() bool {
	select {
	case <-r.failed:
		return true
	default:
		return false
	}
}

// close ends all connections. Outstanding requests are failed by it.
func (r *run) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, w := range r.workers {
		if w.c.Outstanding() == 0 {
			// An error here tells of a server that is gone already.
			_ = w.c.Disconnect(ctx)
		} else {
			_ = w.c.Close()
		}
	}
}

// measure fills the figures of the measurement into res.
func (r *run) measure(res *Result, elapsed time.Duration) {
	res.Elapsed = elapsed.Seconds()
	res.ByOp = map[string]OpStats{}
	var total Histogram
	var bytes int64
	for k := range kinds {
		var h Histogram
		var n int64
		for _, w := range r.workers {
			w.mu.Lock()
			h.Merge(&w.hist[k])
			n += w.bytes[k]
			res.ScheduleLagMax = max(res.ScheduleLagMax, int64(w.lagMax))
			w.mu.Unlock()
		}
		if h.Count() > 0 {
			res.ByOp[kindNames[k]] = newOpStats(&h, n, elapsed)
		}
		total.Merge(&h)
		bytes += n
	}
	res.Total, res.Latencies = newOpStats(&total, bytes, elapsed), &total
}

// collect fills errors and verification into res.
func (r *run) collect(res *Result) {
	for _, w := range r.workers {
		w.mu.Lock()
		for name, n := range w.errors {
			res.Errors[name] += n
		}
		w.mu.Unlock()
	}
	l := r.ledger
	if l == nil {
		return
	}
	v := &VerifyStats{Unit: l.unit, Checked: l.checked.Load(), Faults: map[string]int64{}, Details: []string{}, Doubts: l.doubtful.Load()}
	for i, name := range faultNames {
		if n := l.mismatch[i].Load(); n > 0 {
			v.Faults[name] = n
			v.Mismatches += n
		}
	}
	l.mu.Lock()
	v.Details = append(v.Details, l.details...)
	l.mu.Unlock()
	res.Verify = v
}

// ticker makes Samples.
type ticker struct {
	run  *run
	p    *phase
	t    *time.Ticker
	c    <-chan time.Time // nil: no samples
	last time.Duration
	bad  int64
}

func newTicker(r *run, p *phase) *ticker {
	t := &ticker{run: r, p: p, last: p.from}
	if p.measured && r.spec.OnInterval != nil && r.spec.Interval > 0 {
		t.t = time.NewTicker(r.spec.Interval)
		t.c = t.t.C
	}
	return t
}

func (t *ticker) stop() {
	if t.t != nil {
		t.t.Stop()
	}
}

// tick reports what happened since the last one.
func (t *ticker) tick() {
	now := t.run.now()
	if t.c == nil || now <= t.last {
		return
	}
	var sum intervalStats
	for _, w := range t.run.workers {
		w.mu.Lock()
		sum.hist.Merge(&w.interval.hist)
		for k := range kinds {
			sum.bytes[k] += w.interval.bytes[k]
		}
		sum.errors += w.interval.errors
		w.interval = intervalStats{}
		w.mu.Unlock()
	}
	d := now - t.last
	s := Sample{At: now - t.p.from, Length: d, Ops: sum.hist.Count(), Errors: sum.errors,
		IOPS:        float64(sum.hist.Count()) / d.Seconds(),
		ReadPerSec:  float64(sum.bytes[opRead]) / d.Seconds(),
		WritePerSec: float64(sum.bytes[opWrite]) / d.Seconds(),
		Mean:        sum.hist.Mean(), P50: sum.hist.Quantile(0.5), P99: sum.hist.Quantile(0.99), Max: sum.hist.Max()}
	if l := t.run.ledger; l != nil {
		n := l.faults()
		s.Mismatches, t.bad = n-t.bad, n
	}
	t.last = now
	t.run.spec.OnInterval(s)
}
