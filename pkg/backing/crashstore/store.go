package crashstore

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"

	"tierd/pkg/backing"
)

// Store is a handle on one Store of a Recorder.
type Store struct {
	rec    *Recorder
	m      *medium
	closed atomic.Bool
}

// New returns a Store of size bytes with a Recorder of its own.
func New(size int64) *Store { return NewRecorder().NewStore(size) }

// Recorder returns what the Store belongs to.
func (s *Store) Recorder() *Recorder { return s.rec }

// Reopen returns a new handle on the same bytes, as a process gets that comes
// after one that was killed. It does not close this one, which a test may keep
// to play the writes of a process that lives on.
func (s *Store) Reopen() *Store { return &Store{rec: s.rec, m: s.m} }

// Crash returns this Store as it is after the power fails now; the rest of its
// Recorder is left behind. For several Stores at one instant use the Recorder.
func (s *Store) Crash(c Cut) *Store { return s.rec.Crash(c).Stores()[s.m.index] }

// Unsynced returns how many changes no Sync has made durable.
func (s *Store) Unsynced() int {
	s.rec.mu.Lock()
	defer s.rec.mu.Unlock()
	events, synced := s.rec.eventsLocked(s.m, s.rec.nowLocked())
	return len(events) - synced
}

func (s *Store) check(ctx context.Context, op string, off, n int64) error {
	if s.closed.Load() {
		return fmt.Errorf("%s: %w", op, backing.ErrClosed)
	}
	if err := backing.CheckRange(op, off, n, s.Size()); err != nil {
		return err
	}
	return ctx.Err()
}

// record checks and appends a change.
func (s *Store) record(ctx context.Context, op string, e event) error {
	if err := s.check(ctx, op, e.Off, e.N); err != nil || e.N == 0 {
		return err
	}
	s.rec.Pause()
	s.rec.record(s.m, e)
	return nil
}

// Size implements backing.Store.
func (s *Store) Size() int64 { return s.m.live.Size() }

// Instance implements backing.Store. It is the same after a crash, as the
// inode of a file is: only the boot id tells.
func (s *Store) Instance() string { return s.m.instance }

// TryReadAt implements backing.Store.
func (s *Store) TryReadAt(p []byte, off int64) bool {
	return !s.closed.Load() && s.m.live.TryReadAt(p, off)
}

// ReadAt implements backing.Store.
func (s *Store) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := s.check(ctx, "read", off, int64(len(p))); err != nil {
		return err
	}
	return s.m.live.ReadAt(ctx, p, off)
}

// WriteAt implements backing.Store.
func (s *Store) WriteAt(ctx context.Context, p []byte, off int64) error {
	return s.record(ctx, "write", event{Event: Event{Kind: Write, Off: off, N: int64(len(p))}, data: bytes.Clone(p)})
}

// Zero implements backing.Store.
func (s *Store) Zero(ctx context.Context, off, n int64) error {
	return s.record(ctx, "zero", event{Event: Event{Kind: Zero, Off: off, N: n}})
}

// Discard implements backing.Store as Zero does.
func (s *Store) Discard(ctx context.Context, off, n int64) error {
	return s.record(ctx, "discard", event{Event: Event{Kind: Zero, Off: off, N: n}})
}

// Sync implements backing.Store.
func (s *Store) Sync(ctx context.Context) error {
	if err := s.check(ctx, "sync", 0, 0); err != nil {
		return err
	}
	end := s.BeginSync()
	s.rec.Pause()
	end()
	return nil
}

// BeginSync begins a Sync, which ends with the call of what it returns: until then
// its work may be done or not.
func (s *Store) BeginSync() (end func()) {
	began := s.rec.record(s.m, event{Event: Event{Kind: SyncBegan}})
	return func() { s.rec.record(s.m, event{Event: Event{Kind: SyncEnded}, began: began}) }
}

// StartWriteback implements backing.Store; Cut decides what was written back.
func (s *Store) StartWriteback(off, n int64) {}

// IsHole implements backing.Store.
func (s *Store) IsHole(ctx context.Context, off, n int64) (bool, error) {
	if err := s.check(ctx, "find data", off, n); err != nil {
		return false, err
	}
	return s.m.live.IsHole(ctx, off, n)
}

// Close implements backing.Store. It closes this handle alone.
func (s *Store) Close() error {
	s.closed.Store(true)
	return nil
}
