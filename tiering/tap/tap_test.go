package tap

import (
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Requests come out in the order in which each goroutine pushed them, none twice,
// and with the time, range and kind that they had; those that are missing are
// counted.
func TestOrder(t *testing.T) {
	const pushers, each = 8, 50_000
	start := time.Now()
	tp := New(start)
	var wg sync.WaitGroup
	var done atomic.Bool
	for p := range pushers {
		wg.Go(func() {
			for i := range each {
				tp.Push(uint8(p), int64(i), int64(p)<<32|int64(i), start.Add(time.Duration(i)))
				if i%1000 == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	go func() { wg.Wait(); done.Store(true) }()
	next := make([]int64, pushers)
	var got uint64
	for last := false; !last; {
		last = done.Load()
		for i, a := range tp.Drain() {
			if a.Off < next[a.Op] {
				t.Fatalf("request %d of goroutine %d comes after request %d", a.Off, a.Op, next[a.Op]-1)
			}
			if a.seq != got {
				t.Fatalf("access %d of a drain has number %d, want %d", i, a.seq, got)
			}
			if a.Len != int64(a.Op)<<32|a.Off || a.At != time.Duration(a.Off) {
				t.Fatalf("%+v is not what was pushed", a)
			}
			next[a.Op] = a.Off + 1
			got++
		}
	}
	if total := got + tp.Dropped(); total != pushers*each {
		t.Errorf("%d returned and %d dropped, of %d", got, tp.Dropped(), pushers*each)
	}
	if got == 0 {
		t.Error("everything was dropped")
	}
}

// One goroutine pushes and drains, so that numbers are handed out in every state of
// the buffers; a number above the mark waits for the next drain.
func TestDrainReturnsAllThatWasPushed(t *testing.T) {
	start := time.Now()
	tp := New(start)
	rnd := rand.New(rand.NewPCG(1, 2))
	pushed, drained := int64(0), int64(0)
	for range 200 {
		for range rnd.IntN(5 * batchLen) {
			tp.Push(0, pushed, 1, start)
			pushed++
		}
		for _, a := range tp.Drain() {
			if a.Off != drained {
				t.Fatalf("got access %d, want %d", a.Off, drained)
			}
			drained++
		}
		if drained != pushed {
			t.Fatalf("%d accesses were drained of %d", drained, pushed)
		}
	}
	if d := tp.Dropped(); d != 0 {
		t.Errorf("%d dropped although there was room", d)
	}
}

// Accesses that were taken out of a shard and have a number above the mark come
// with the next drain.
func TestNumbersAboveTheMark(t *testing.T) {
	tp := New(time.Now())
	tp.out = make([]Access, 1)
	tp.place([]Access{{Off: 7, seq: 3}, {Off: 5, seq: 0}, {Off: 8, seq: 1}}, 1)
	if tp.out[0].Off != 5 || len(tp.ahead) != 2 {
		t.Fatalf("out %+v, ahead %+v", tp.out, tp.ahead)
	}
	tp.next = 1
	tp.seq.Store(4)
	tp.shards[3].cur.accesses[0] = Access{Off: 9, seq: 2}
	tp.shards[3].cur.n = 1
	got := tp.Drain()
	if len(got) != 3 || got[0].Off != 8 || got[1].Off != 9 || got[2].Off != 7 {
		t.Errorf("got %+v", got)
	}
}

// Nothing is drained: what does not fit is counted, and what fits is kept.
func TestOverflow(t *testing.T) {
	start := time.Now()
	tp := New(start)
	const n = batchCount*batchLen + 5000
	for i := range int64(n) {
		tp.Push(0, i, 1, start)
	}
	select {
	case <-tp.Full():
	default:
		t.Error("nobody is asked to drain")
	}
	d := tp.Dropped()
	got := tp.Drain()
	if uint64(len(got))+d != n || d < 5000 {
		t.Errorf("%d kept and %d dropped, of %d", len(got), d, n)
	}
	// With all shards full the last ones were emptied in place; all goes on.
	tp.Push(3, 4, 5, start)
	if got := tp.Drain(); len(got) != 1 || got[0].Op != 3 || tp.Dropped() != d {
		t.Errorf("after the overflow: %+v, %d dropped, want %d", got, tp.Dropped(), d)
	}
}

// A shard that is held, by a goroutine that does not run, holds nobody up.
func TestHeldShards(t *testing.T) {
	tp := New(time.Now())
	for i := range tp.shards {
		tp.shards[i].mu.Lock()
	}
	tp.Push(0, 1, 1, time.Now())
	if d := tp.Dropped(); d != 1 {
		t.Errorf("%d dropped with all shards held, want 1", d)
	}
	tp.shards[5].mu.Unlock()
	tp.Push(0, 2, 1, time.Now())
	for i := range tp.shards {
		if i != 5 {
			tp.shards[i].mu.Unlock()
		}
	}
	if got := tp.Drain(); len(got) != 1 || got[0].Off != 2 {
		t.Errorf("got %+v, want the access that found a shard", got)
	}
}

func TestPushDoesNotAllocate(t *testing.T) {
	start := time.Now()
	tp := New(start)
	if n := testing.AllocsPerRun(2*batchCount*batchLen/100, func() {
		for range 100 {
			tp.Push(0, 1, 1, start)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
	if tp.Dropped() == 0 {
		t.Error("the overflow was not part of the measurement")
	}
}

func BenchmarkPush(b *testing.B) {
	start := time.Now()
	tp := New(start)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-tp.Full():
			case <-time.After(time.Millisecond):
			}
			for _, a := range tp.Drain() {
				_, _ = io.Discard.Write([]byte{byte(a.Off)})
			}
		}
	}()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := int64(0); pb.Next(); i++ {
			tp.Push(0, i, 4096, start)
		}
	})
	close(stop)
	<-ended
	b.ReportMetric(float64(tp.Dropped())/float64(b.N), "dropped/op")
}
