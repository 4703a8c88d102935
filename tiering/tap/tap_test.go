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
	const pushers, each = 8, 20_000
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
		for _, a := range drainAll(tp) {
			if a.Off < next[a.Op] {
				t.Fatalf("request %d of goroutine %d comes after request %d", a.Off, a.Op, next[a.Op]-1)
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

// One goroutine pushes and drains, over many laps of the ring.
func TestDrainReturnsAllThatWasPushed(t *testing.T) {
	start := time.Now()
	tp := New(start)
	rnd := rand.New(rand.NewPCG(1, 2))
	pushed, drained := int64(0), int64(0)
	for range 80 {
		for range rnd.IntN(ringLen / 40) {
			tp.Push(0, pushed, 1, start)
			pushed++
		}
		for _, a := range drainAll(tp) {
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

// A place that is being written holds up those behind it, for Drain alone.
func TestUnpublishedPlace(t *testing.T) {
	start := time.Now()
	tp := New(start)
	tp.Push(1, 10, 1, start)
	slow := tp.head.Add(1) - 1 // a goroutine that has its place, and does not run
	tp.Push(3, 30, 1, start)
	if got := tp.Drain(); len(got) != 1 || got[0].Off != 10 {
		t.Errorf("before it is written: %+v", got)
	}
	tp.ring[slow].off = 20
	tp.ring[slow].published.Store(slow + 1)
	if got := tp.Drain(); len(got) != 2 || got[0].Off != 20 || got[1].Off != 30 || got[1].Op != 3 {
		t.Errorf("after it: %+v", got)
	}
}

// Nothing is drained: what does not fit is counted, and what fits is kept, in every
// lap of the ring.
func TestOverflow(t *testing.T) {
	start := time.Now()
	tp := New(start)
	const more = 5000
	next := int64(0)
	for lap := range uint64(2) {
		for range ringLen + more {
			tp.Push(0, next, 1, start)
			next++
		}
		select {
		case <-tp.Full():
		default:
			t.Error("nobody is asked to drain")
		}
		if d := tp.Dropped(); d != (lap+1)*more {
			t.Errorf("lap %d: %d dropped, want %d", lap, d, (lap+1)*more)
		}
		got := drainAll(tp)
		if len(got) != ringLen {
			t.Fatalf("lap %d: %d kept, want %d", lap, len(got), ringLen)
		}
		for i, a := range got {
			if want := next - ringLen - more + int64(i); a.Off != want {
				t.Fatalf("lap %d: access %d is %d, want %d", lap, i, a.Off, want)
			}
		}
	}
}

// drainAll drains until there is nothing.
func drainAll(tp *Tap) (all []Access) {
	for {
		got := tp.Drain()
		all = append(all, got...)
		if len(got) < MaxDrain {
			return all
		}
	}
}

func TestPushDoesNotAllocate(t *testing.T) {
	start := time.Now()
	tp := New(start)
	if n := testing.AllocsPerRun(2*ringLen/100, func() {
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
			for _, a := range drainAll(tp) {
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
