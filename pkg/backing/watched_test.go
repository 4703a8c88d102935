package backing_test

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"tierd/pkg/backing"
)

// gated is a Store whose syncs wait, and of which the first fails.
type gated struct {
	backing.Store
	gate  chan struct{}
	mu    sync.Mutex
	calls int
}

func (g *gated) Sync(context.Context) error {
	<-g.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.calls++; g.calls == 1 {
		return syscall.EIO
	}
	return nil
}

func TestWatched(t *testing.T) {
	g := &gated{Store: backing.NewMem(1 << 20), gate: make(chan struct{})}
	var mu sync.Mutex
	var reports []string
	w := backing.NewWatched(g, func(op string, err error) {
		mu.Lock()
		defer mu.Unlock()
		reports = append(reports, op)
	})
	now := time.Unix(1_700_000_000, 0)
	if d := w.Oldest(now); d != 0 {
		t.Errorf("without calls the oldest is %v", d)
	}
	errs := make(chan error, 2)
	for range 2 {
		go func() { errs <- w.Sync(context.Background()) }()
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		now = now.Add(time.Second)
		// Other calls come and go, and are younger.
		if err := w.WriteAt(context.Background(), []byte("x"), 0); err != nil {
			t.Fatal(err)
		}
		if w.Oldest(now) >= 10*time.Second {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a call that hangs is not seen")
		}
	}
	// An error is everybody's, also of a sync that was asked for before.
	close(g.gate)
	for range 2 {
		if err := <-errs; !errors.Is(err, syscall.EIO) {
			t.Errorf("sync = %v, want EIO", err)
		}
	}
	if err := w.Sync(context.Background()); !errors.Is(err, syscall.EIO) || g.calls != 1 {
		t.Errorf("later sync = %v after %d calls, want EIO without another call", err, g.calls)
	}
	w.Oldest(now)
	if d := w.Oldest(now.Add(time.Minute)); d != 0 {
		t.Errorf("when all have returned the oldest is %v", d)
	}
	if len(reports) != 3 || reports[0] != "sync" {
		t.Errorf("reports = %q, want three syncs", reports)
	}
}
