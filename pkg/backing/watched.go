package backing

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// watchSlots is how many times of arrival a Watched tells apart. It bounds how
// many hanging calls, one an interval, are followed one by one.
const watchSlots = 64

// Watched is a Store that knows for how long the oldest call on it has been under
// way, and tells of errors.
//
// The kernel tells the error of a write-back once, to whoever asks first. So Syncs
// run one at a time, and after one that failed all others fail too, those included
// that began while it ran.
//
// Calls are counted by the time of their arrival: those that come between two
// calls of Oldest share a counter, which is used for others again only once all of
// them have returned. A call costs two additions and looks at no clock.
type Watched struct {
	Store
	report func(op string, err error)

	current atomic.Int32 // the slot that arriving calls are counted in
	slots   [watchSlots]watchSlot
	mu      sync.Mutex // serialises Oldest

	syncMu  sync.Mutex // serialises Sync
	syncErr error      // of the Sync that failed
}

type watchSlot struct {
	calls atomic.Int64
	since time.Time // when it was current for the last time: its calls are older
	_     [32]byte  // a cache line of its own
}

// NewWatched wraps s, which it then owns. report is told every error of a call,
// with what it was doing, before the caller is; it must not call s.
func NewWatched(s Store, report func(op string, err error)) *Watched {
	return &Watched{Store: s, report: report}
}

// Oldest returns for how long the oldest call has been under way at least; 0 if
// there is none. It is to be called at regular intervals, by which it falls short
// of the truth: an Oldest that comes late makes no call look older than it is.
func (w *Watched) Oldest(now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	cur := int(w.current.Load())
	oldest := time.Duration(0)
	free := -1
	for i := range w.slots {
		switch s := &w.slots[i]; {
		case i == cur:
		case s.calls.Load() > 0:
			oldest = max(oldest, now.Sub(s.since))
		default:
			free = i
		}
	}
	if free >= 0 && w.slots[cur].calls.Load() > 0 {
		w.slots[cur].since = now
		w.current.Store(int32(free))
	}
	return oldest
}

func (w *Watched) enter() *watchSlot {
	s := &w.slots[w.current.Load()]
	s.calls.Add(1)
	return s
}

func (w *Watched) leave(s *watchSlot, op string, err error) error {
	s.calls.Add(-1)
	if err != nil {
		w.report(op, err)
	}
	return err
}

// ReadAt implements Store.
func (w *Watched) ReadAt(ctx context.Context, p []byte, off int64) error {
	s := w.enter()
	return w.leave(s, "read", w.Store.ReadAt(ctx, p, off))
}

// WriteAt implements Store.
func (w *Watched) WriteAt(ctx context.Context, p []byte, off int64) error {
	s := w.enter()
	return w.leave(s, "write", w.Store.WriteAt(ctx, p, off))
}

// Sync implements Store.
func (w *Watched) Sync(ctx context.Context) error {
	s := w.enter()
	return w.leave(s, "sync", w.sync(ctx))
}

func (w *Watched) sync(ctx context.Context) error {
	w.syncMu.Lock()
	defer w.syncMu.Unlock()
	if w.syncErr != nil {
		return w.syncErr
	}
	err := w.Store.Sync(ctx)
	if err != nil && !errors.Is(err, ErrClosed) && ctx.Err() == nil {
		w.syncErr = err
	}
	return err
}

// Zero implements Store.
func (w *Watched) Zero(ctx context.Context, off, n int64) error {
	s := w.enter()
	return w.leave(s, "zero", w.Store.Zero(ctx, off, n))
}

// Discard implements Store.
func (w *Watched) Discard(ctx context.Context, off, n int64) error {
	s := w.enter()
	return w.leave(s, "discard", w.Store.Discard(ctx, off, n))
}

// IsHole implements Store.
func (w *Watched) IsHole(ctx context.Context, off, n int64) (bool, error) {
	s := w.enter()
	hole, err := w.Store.IsHole(ctx, off, n)
	return hole, w.leave(s, "look for a hole", err)
}

// Reserve implements Reserver.
func (w *Watched) Reserve(ctx context.Context, off, n int64) error {
	r, ok := w.Store.(Reserver)
	if !ok {
		return nil
	}
	s := w.enter()
	return w.leave(s, "reserve", r.Reserve(ctx, off, n))
}
