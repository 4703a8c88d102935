package backing

import (
	"context"
	"errors"
	"math/rand"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// waitQueued yields until n callers queue at g.
func waitQueued(g *gate, n int) {
	for {
		g.mu.Lock()
		queued := len(g.queue)
		g.mu.Unlock()
		if queued == n {
			return
		}
		runtime.Gosched()
	}
}

func TestGateIsFIFO(t *testing.T) {
	g := newGate(1)
	if err := g.enter(context.Background()); err != nil {
		t.Fatal(err)
	}
	const n = 10
	order := make(chan int, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := g.enter(context.Background()); err != nil {
				t.Errorf("enter = %v, want nil", err)
			}
			order <- i
			g.leave()
		})
		waitQueued(g, i+1)
	}
	g.leave()
	wg.Wait()
	for want := range n {
		if got := <-order; got != want {
			t.Fatalf("caller %d came in as number %d", got, want)
		}
	}
}

func TestGateCancel(t *testing.T) {
	g := newGate(1)
	if err := g.enter(context.Background()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error)
	go func() { got <- g.enter(ctx) }()
	waitQueued(g, 1)
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("enter = %v, want Canceled", err)
	}
	g.leave()
	if err := g.enter(context.Background()); err != nil {
		t.Errorf("enter after a cancelled one = %v, want nil", err)
	}
	g.leave()
	checkIdle(t, g)
}

func TestGateShut(t *testing.T) {
	g := newGate(1)
	if err := g.enter(context.Background()); err != nil {
		t.Fatal(err)
	}
	got := make(chan error)
	go func() { got <- g.enter(context.Background()) }()
	waitQueued(g, 1)
	g.shut()
	if err := <-got; !errors.Is(err, ErrClosed) {
		t.Errorf("enter = %v, want ErrClosed", err)
	}
	if err := g.enter(context.Background()); !errors.Is(err, ErrClosed) {
		t.Errorf("enter after shut = %v, want ErrClosed", err)
	}
	g.leave()
	checkIdle(t, g)
}

// TestGateBound has callers come, go and give up at random, and checks that
// never more than max are inside and that nothing is left over.
func TestGateBound(t *testing.T) {
	const seed, max, callers, rounds = 3, 3, 16, 3000
	t.Logf("seed %d", seed)
	g := newGate(max)
	var inside atomic.Int64
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			rng := rand.New(rand.NewSource(seed + int64(c)))
			for range rounds {
				ctx, cancel := context.WithCancel(context.Background())
				if rng.Intn(2) == 0 {
					go cancel()
				}
				if err := g.enter(ctx); err == nil {
					if n := inside.Add(1); n > max {
						t.Errorf("%d are inside, want at most %d", n, max)
					}
					runtime.Gosched()
					inside.Add(-1)
					g.leave()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	checkIdle(t, g)
}

func checkIdle(t *testing.T, g *gate) {
	t.Helper()
	if g.active.Load() != 0 || g.tokens != 0 || len(g.queue) != 0 {
		t.Errorf("idle gate has active %d, tokens %d, queue %d; want 0, 0, 0", g.active.Load(), g.tokens, len(g.queue))
	}
}

func TestGuardWaitsForCalls(t *testing.T) {
	var g guard
	a, b := &g.stripes[0], &g.stripes[5]
	if !g.enter(a) || !g.enter(b) || !g.enter(b) {
		t.Fatal("an open guard refuses")
	}
	g.shut()
	drained := make(chan struct{})
	go func() { g.wait(); close(drained) }()
	for range 3 { // refused entries must not count as the end of real ones
		if g.enter(a) || g.enter(b) {
			t.Fatal("a shut guard lets in")
		}
	}
	g.leave(a)
	g.leave(b)
	runtime.Gosched()
	select {
	case <-drained:
		t.Fatal("wait returned with a call in flight")
	default:
	}
	g.leave(b)
	<-drained
}

// TestCloseRacesWithCalls: whatever is let in is over when wait returns.
func TestCloseRacesWithCalls(t *testing.T) {
	for range 30 {
		var g guard
		var over atomic.Bool
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				s := &g.stripes[i%2]
				for g.enter(s) {
					if over.Load() {
						t.Error("a call is inside after wait returned")
					}
					g.leave(s)
				}
			})
		}
		runtime.Gosched()
		g.shut()
		g.wait()
		over.Store(true)
		wg.Wait()
	}
}

// TestGateEarlyToken: a place becomes free after its caller was counted and
// before it queues.
func TestGateEarlyToken(t *testing.T) {
	g := newGate(1)
	if err := g.enter(context.Background()); err != nil {
		t.Fatal(err)
	}
	g.active.Add(1) // the first half of enter
	g.leave()
	if err := g.wait(context.Background()); err != nil {
		t.Errorf("wait = %v, want nil", err)
	}
	g.leave()
	checkIdle(t, g)
}

// TestGateDebt: a caller gives up after its place became free and before it
// was told. The place must not be given to the next one on top of its own.
func TestGateDebt(t *testing.T) {
	g := newGate(1)
	if err := g.enter(context.Background()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error)
	go func() { got <- g.enter(ctx) }()
	waitQueued(g, 1)
	if n := g.active.Add(-1); n < g.max { // the first half of leave
		t.Fatalf("active = %d, want a caller that waits", n)
	}
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("enter = %v, want Canceled", err)
	}
	g.post() // the second half
	checkIdle(t, g)
}
