package tiering

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tierd/pkg/backing"
)

// TestDirtyMap compares what the map counts with a plain set.
func TestDirtyMap(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		var m dirtyMap
		set := make(map[int64]bool)
		var sum load
		const span = 1000
		for step := range 200 {
			b := rng.Int64N(span)
			off, n := b<<paceShift+rng.Int64N(paceBlock), 1+rng.Int64N(1<<(1+rng.IntN(21)))
			covered := true
			for at := off >> paceShift; at <= (off+n-1)>>paceShift; at++ {
				covered = covered && set[at]
			}
			if got := m.covers(off, n); got != covered {
				t.Fatalf("step %d: covers(%d, %d) = %v, want %v", step, off, n, got, covered)
			}
			sum = sum.plus(m.add(off, n))
			for at := off >> paceShift; at <= (off+n-1)>>paceShift; at++ {
				set[at] = true
			}
			var want load
			for at := range set {
				want.blocks++
				if !set[at-1] {
					want.runs++
				}
			}
			if sum != want {
				t.Fatalf("step %d: after [%d, +%d) the map counts %+v, want %+v", step, off, n, sum, want)
			}
		}
		m.clear()
		if got := m.add(0, span<<paceShift); got != (load{span, 1}) {
			t.Fatalf("after clear = %+v", got)
		}
	}
}

func TestPackedLoad(t *testing.T) {
	var p packedLoad
	for _, l := range []load{{5, 1}, {0, -3}, {-2, 1}, {1 << 30, 1 << 20}, {-1 << 30, -1 << 20}} {
		before := p.get()
		if got := p.add(l); got != before.plus(l) || p.get() != got {
			t.Errorf("%+v + %+v = %+v", before, l, got)
		}
	}
	if got := p.take(); got != (load{3, -1}) || p.get() != (load{}) {
		t.Errorf("take = %+v and leaves %+v", got, p.get())
	}
}

// A fakeDisk is what a pace is tried on: time is its own.
type fakeDisk struct {
	*pace
	now    time.Time
	syncs  atomic.Int64 // asked for
	writeb atomic.Int64
	page   int64 // of the next random write
}

func newFakeDisk(m backing.Media) *fakeDisk {
	d := &fakeDisk{pace: new(pace), now: time.Unix(1e9, 0)}
	d.init(m)
	d.startSync = func() { d.syncs.Add(1) }
	d.startWriteback = func() { d.writeb.Add(1) }
	return d
}

// write makes one write that must not have to wait; it reports whether it would.
func (d *fakeDisk) write(t *testing.T, off, n int64) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	waited, err := d.enter(ctx, off, n)
	if waited != (err != nil) {
		t.Fatalf("enter = %v, %v", waited, err)
	}
	if waited {
		return false
	}
	d.left(off, n, d.now)
	return true
}

// random makes one write of 4 KiB far from all others.
func (d *fakeDisk) random(t *testing.T) bool {
	d.page += 3
	return d.write(t, d.page<<paceShift, paceBlock)
}

// fill writes at random until writes would wait, and returns how many it made.
func (d *fakeDisk) fill(t *testing.T) int {
	n := 0
	for d.random(t) {
		n++
	}
	return n
}

func (d *fakeDisk) sync(took time.Duration) {
	d.begin(d.now)
	d.now = d.now.Add(took)
	d.end(d.now)
}

func TestPaceBoundsRandomWrites(t *testing.T) {
	d := newFakeDisk(backing.HDD)
	d.seeks = 200
	d.publish()
	n := d.fill(t)
	if n < 190 || n > 200 {
		t.Errorf("%d random writes fit at 200 a second, want nearly 200", n)
	}
	if d.writeb.Load() == 0 || d.writeb.Load() > 4 || d.syncs.Load() == 0 {
		t.Errorf("write-back began %d times and %d syncs were asked for", d.writeb.Load(), d.syncs.Load())
	}
	if got := d.info(); got.unsynced != int64(n)*paceBlock || got.estimate < 900*time.Millisecond || got.estimate > 1100*time.Millisecond {
		t.Errorf("info = %+v after %d writes", got, n)
	}
	// While a sync runs, what it covers counts.
	d.begin(d.now)
	if d.random(t) {
		t.Error("a write got in beside a sync of a full second")
	}
	d.end(d.now.Add(time.Second))
	if got := d.info(); got.unsynced != 0 || got.estimate != 0 {
		t.Errorf("info = %+v after the sync", got)
	}
	if !d.random(t) {
		t.Error("no write gets in after the sync")
	}
}

// TestPaceHalfAtATime: with a sync under way for one half, the other half may be
// written meanwhile, so that the disk is never idle.
func TestPaceHalfAtATime(t *testing.T) {
	d := newFakeDisk(backing.HDD)
	d.seeks = 200
	d.publish()
	for d.syncs.Load() == 0 && d.random(t) {
	}
	d.begin(d.now)
	if n := d.fill(t); n < 90 || n > 105 {
		t.Errorf("%d writes fit beside the sync of one half, want about 100", n)
	}
}

func TestPaceCountsWhatTheDiskWillSee(t *testing.T) {
	d := newFakeDisk(backing.HDD)
	// The same blocks again and again.
	for i := range int64(10000) {
		if !d.write(t, i%20*10<<paceShift, paceBlock) {
			t.Fatalf("overwrite %d has to wait", i)
		}
	}
	if got := d.info().unsynced; got != 20<<paceShift {
		t.Errorf("unsynced = %d after overwrites of 20 blocks", got)
	}
	d.sync(time.Second / 10)
	// Four streams, interleaved: 16 MiB at 100 MB/s.
	for i := range int64(1024) {
		for s := range int64(4) {
			if !d.write(t, s<<26+i<<paceShift, paceBlock) {
				t.Fatalf("block %d of stream %d has to wait", i, s)
			}
		}
	}
	if got := d.info().estimate; got > 250*time.Millisecond {
		t.Errorf("16 MiB in 4 streams are thought to take %v", got)
	}
	if d.syncs.Load() != 0 {
		t.Errorf("%d syncs", d.syncs.Load())
	}
}

// TestPaceCountsOverwritesAfterWriteback: a block that was given to write-back
// and is written again has to be written again.
func TestPaceCountsOverwritesAfterWriteback(t *testing.T) {
	d := newFakeDisk(backing.HDD)
	d.write(t, 0, paceBlock)
	for d.writeb.Load() == 0 {
		d.random(t)
	}
	before := d.info().unsynced
	d.write(t, 0, paceBlock)
	if got := d.info().unsynced - before; got != paceBlock {
		t.Errorf("an overwrite after write-back counts for %d bytes, want %d", got, paceBlock)
	}
}

// TestPaceLearns runs disks of many speeds behind both kinds of media: after some
// syncs what is let in takes about a second, and not much less than half.
func TestPaceLearns(t *testing.T) {
	for _, media := range []backing.Media{backing.HDD, backing.SSD} {
		for _, iops := range []float64{60, 200, 1000, 20000} {
			d := newFakeDisk(media)
			for range 25 {
				d.fill(t)
				d.begin(d.now)
				d.now = d.now.Add(time.Duration(float64(d.syncing.runs) / iops * 1e9))
				d.end(d.now)
			}
			if got := d.fill(t); float64(got) < iops*0.45 || float64(got) > iops*1.3 {
				t.Errorf("%s with %v writes a second: %d are let in", media, iops, got)
			}
		}
		for _, rate := range []float64{20e6, 100e6, 2e9} {
			d := newFakeDisk(media)
			off := int64(0)
			fill := func() (n int64) {
				for d.write(t, off, 1<<20) {
					off, n = off+1<<20, n+1<<20
				}
				return n
			}
			for range 25 {
				fill()
				d.begin(d.now)
				d.now = d.now.Add(time.Duration(float64(d.syncing.bytes()) / rate * 1e9))
				d.end(d.now)
			}
			if got := float64(fill()); got < rate*0.45 || got > rate*1.3 {
				t.Errorf("%s with %v bytes a second: %v are let in", media, rate, got)
			}
		}
	}
}

// TestPaceIsNotFooled: a sync that is fast because its work was done before it
// does not make the disk look faster.
func TestPaceIsNotFooled(t *testing.T) {
	d := newFakeDisk(backing.HDD)
	for range 100 {
		d.fill(t)
		d.now = d.now.Add(time.Second) // the kernel writes back meanwhile
		d.sync(time.Millisecond)
	}
	if got := d.info().seeks; got > 200 {
		t.Errorf("learned %v writes a second from syncs with nothing to do", got)
	}
	// Small syncs with a large overhead do not make it look slow.
	d = newFakeDisk(backing.SSD)
	before := d.info()
	for range 100 {
		for range 20 {
			d.random(t)
		}
		d.sync(50 * time.Millisecond)
	}
	if got := d.info(); got.seeks != before.seeks || got.bandwidth != before.bandwidth {
		t.Errorf("learned %v and %v from small syncs", got.seeks, got.bandwidth)
	}
}

func waitForLine(t *testing.T, p *pace, n int64) {
	t.Helper()
	for end := time.Now().Add(time.Minute); p.waiting.Load() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d wait, want %d", p.waiting.Load(), n)
		}
	}
}

// TestPaceTakesTurns: who waits gets in in the order of arrival, large and small
// alike, and one that gives up holds up nobody.
func TestPaceTakesTurns(t *testing.T) {
	d := newFakeDisk(backing.HDD)
	d.fill(t)
	var in [12]atomic.Bool
	var wg sync.WaitGroup
	cancelled, cancel := context.WithCancel(context.Background())
	const quitter = 4
	for i := range in {
		ctx := context.Background()
		if i == quitter {
			ctx = cancelled
		}
		size := int64(paceBlock)
		if i%3 == 0 {
			size = 64 << 20
		}
		wg.Go(func() {
			waited, err := d.enter(ctx, 1<<40, size)
			if !waited || (err != nil) != (i == quitter) {
				t.Errorf("enter of %d = %v, %v", i, waited, err)
			}
			in[i].Store(true)
		})
		waitForLine(t, d.pace, int64(i+1))
	}
	cancel()
	waitForLine(t, d.pace, int64(len(in))-1)
	steps := 0
	for waiting := int64(len(in)) - 1; waiting > 0; steps++ {
		d.sync(time.Second)
		// What was let in is written and synced next.
		d.mu.Lock()
		d.aged = d.total.get()
		d.mu.Unlock()
		left := d.waiting.Load()
		if left >= waiting {
			t.Fatalf("a sync let nobody in, %d wait", left)
		}
		waiting = left
		first := len(in) - int(left) // who is the first in line
		if left > int64(len(in)-1-quitter) {
			first = len(in) - 1 - int(left)
		}
		for i := range first {
			for end := time.Now().Add(time.Minute); !in[i].Load(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d is not in, though %d wait", i, left)
				}
			}
		}
		for i := first; i < len(in); i++ {
			if i != quitter && in[i].Load() {
				t.Fatalf("%d is in before its turn: %d wait", i, left)
			}
		}
	}
	wg.Wait()
	if steps < 3 {
		t.Errorf("all were let in by %d syncs", steps)
	}
}

// TestPaceStops: when a backing fails, nobody waits for it any more.
func TestPaceStops(t *testing.T) {
	d := newFakeDisk(backing.HDD)
	d.fill(t)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { _, _ = d.enter(context.Background(), 1<<40, paceBlock) })
	}
	wg.Go(func() { _ = d.background(context.Background(), backgroundShare) })
	wg.Go(func() { _ = d.background(context.Background(), backgroundShare) })
	waitForLine(t, d.pace, 3)
	d.stop()
	wg.Wait()
}

// TestPaceBackground: the share of movers and the cleaner is 8 MiB, whoever of
// them takes it, and a sync gives it back.
func TestPaceBackground(t *testing.T) {
	d := newFakeDisk(backing.HDD)
	none, cancel := context.WithCancel(context.Background())
	cancel()
	const piece = 128 << 10
	n := int64(0)
	for d.background(none, piece) == nil {
		d.wroteBackground(n, piece, d.now)
		n += piece
	}
	if n != backgroundShare {
		t.Errorf("%d bytes are let in, want %d", n, backgroundShare)
	}
	if d.syncs.Load() == 0 {
		t.Error("no sync was asked for")
	}
	d.begin(d.now)
	if d.background(none, piece) == nil {
		t.Error("the share came back before the sync ended")
	}
	d.end(d.now.Add(time.Second))
	if err := d.background(none, piece); err != nil {
		t.Errorf("after the sync: %v", err)
	}
	d.giveBack(piece)
	if err := d.background(none, 3*backgroundShare); err != nil {
		t.Errorf("one that is larger than the share, alone: %v", err)
	}
	if d.background(none, piece) == nil {
		t.Error("something got in beside it")
	}
}

// TestPaceRace has many writers, movers and syncs at once: at the end the books are
// empty, and never was more let in than the bound and what was under way allow.
func TestPaceRace(t *testing.T) {
	p := new(pace)
	p.init(backing.HDD)
	ask := make(chan struct{}, 1)
	p.startSync = func() {
		select {
		case ask <- struct{}{}:
		default:
		}
	}
	p.startWriteback = func() {}
	stop, synced := make(chan struct{}), make(chan struct{})
	var now atomic.Int64
	go func() {
		defer close(synced)
		for {
			select {
			case <-ask:
			case <-stop:
				return
			}
			p.begin(time.Unix(0, now.Add(1)))
			time.Sleep(time.Millisecond)
			p.end(time.Unix(0, now.Add(int64(500*time.Millisecond))))
		}
	}()
	var wg sync.WaitGroup
	const writers, each = 16, 200
	for w := range writers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for range each {
				off, n := rng.Int64N(1<<36), 1+rng.Int64N(64<<10)
				ctx, cancel := context.WithCancel(context.Background())
				if rng.IntN(8) == 0 {
					time.AfterFunc(time.Duration(rng.IntN(2000))*time.Microsecond, cancel)
				}
				if w%4 == 0 {
					if p.background(ctx, n) == nil {
						p.wroteBackground(off, n, time.Unix(0, now.Add(1)))
					}
				} else if _, err := p.enter(ctx, off, n); err == nil {
					if rng.IntN(10) == 0 {
						p.abandon(n)
					} else {
						p.left(off, n, time.Unix(0, now.Add(1)))
					}
				}
				cancel()
				if got := p.cost(p.total.get()); got > 1+writers*1.5 {
					t.Errorf("level = %v s", got)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	<-synced
	p.begin(time.Unix(0, now.Add(1)))
	p.end(time.Unix(0, now.Add(1)))
	i := p.info()
	if i.unsynced != 0 || i.background != 0 || i.waiting != 0 || p.bgReserved != 0 || len(p.bgLine) != 0 {
		t.Errorf("at the end: %+v, %d reserved, %d in line", i, p.bgReserved, len(p.bgLine))
	}
	if got := p.total.get(); got.blocks != 0 {
		t.Errorf("total = %+v at the end", got)
	}
}

func BenchmarkPace(b *testing.B) {
	p := new(pace)
	p.init(backing.SSD)
	p.bandwidth, p.seeks = 16<<30, 1e6
	p.publish()
	p.startSync = func() { p.begin(time.Time{}); p.end(time.Time{}) }
	p.startWriteback = func() {}
	ctx, now := context.Background(), time.Now()
	b.RunParallel(func(pb *testing.PB) {
		rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
		for pb.Next() {
			off := rng.Int64N(1<<18) << paceShift
			if _, err := p.enter(ctx, off, paceBlock); err != nil {
				b.Fatal(err)
			}
			p.left(off, paceBlock, now)
		}
	})
}
