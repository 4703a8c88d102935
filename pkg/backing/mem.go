package backing

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

const (
	memPage    = 16 << 10 // the unit of allocation of a Mem
	memStripes = 64       // pages are spread over this many locks
)

var memInstances atomic.Int64

// Mem is a Store in memory that holds only the pages that were written. It is
// for tests and models: everything in it is as durable as the process. Pages
// are copied under a lock, so that a reader that races with a writer on
// purpose, and throws its result away, is no data race.
type Mem struct {
	size     int64
	instance string
	closed   atomic.Bool
	stripes  [memStripes]memStripe
}

type memStripe struct {
	mu    sync.RWMutex
	pages map[int64]*[memPage]byte
}

// NewMem returns an empty Mem of size bytes.
func NewMem(size int64) *Mem {
	m := &Mem{size: size, instance: fmt.Sprintf("mem:%d", memInstances.Add(1))}
	for i := range m.stripes {
		m.stripes[i].pages = make(map[int64]*[memPage]byte)
	}
	return m
}

// Clone returns a Mem of its own with the same bytes. It must not run beside
// writes.
func (m *Mem) Clone() *Mem {
	c := NewMem(m.size)
	for i := range m.stripes {
		m.stripes[i].mu.RLock()
		for k, p := range m.stripes[i].pages {
			dup := *p
			c.stripes[i].pages[k] = &dup
		}
		m.stripes[i].mu.RUnlock()
	}
	return c
}

// Size implements Store.
func (m *Mem) Size() int64 { return m.size }

// TryReadAt implements Store: memory waits for no device.
func (m *Mem) TryReadAt(p []byte, off int64) bool {
	return m.ReadAt(context.Background(), p, off) == nil
}

func (m *Mem) check(ctx context.Context, op string, off, n int64) error {
	if m.closed.Load() {
		return fmt.Errorf("%s: %w", op, ErrClosed)
	}
	if err := CheckRange(op, off, n, m.size); err != nil {
		return err
	}
	return ctx.Err()
}

// eachPage calls fn for the part of every page that [off, off+n) touches.
func eachPage(off, n int64, fn func(page, within, length, done int64)) {
	for done := int64(0); done < n; {
		page, within := (off+done)/memPage, (off+done)%memPage
		length := min(memPage-within, n-done)
		fn(page, within, length, done)
		done += length
	}
}

// ReadAt implements Store.
func (m *Mem) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := m.check(ctx, "read", off, int64(len(p))); err != nil {
		return err
	}
	eachPage(off, int64(len(p)), func(page, within, length, done int64) {
		s := &m.stripes[page%memStripes]
		s.mu.RLock()
		defer s.mu.RUnlock()
		if pg := s.pages[page]; pg != nil {
			copy(p[done:done+length], pg[within:])
		} else {
			clear(p[done : done+length])
		}
	})
	return nil
}

// WriteAt implements Store.
func (m *Mem) WriteAt(ctx context.Context, p []byte, off int64) error {
	if err := m.check(ctx, "write", off, int64(len(p))); err != nil {
		return err
	}
	eachPage(off, int64(len(p)), func(page, within, length, done int64) {
		s := &m.stripes[page%memStripes]
		s.mu.Lock()
		defer s.mu.Unlock()
		pg := s.pages[page]
		if pg == nil {
			pg = new([memPage]byte)
			s.pages[page] = pg
		}
		copy(pg[within:], p[done:done+length])
	})
	return nil
}

// Zero implements Store: whole pages are given back.
func (m *Mem) Zero(ctx context.Context, off, n int64) error {
	if err := m.check(ctx, "zero", off, n); err != nil {
		return err
	}
	eachPage(off, n, func(page, within, length, _ int64) {
		s := &m.stripes[page%memStripes]
		s.mu.Lock()
		defer s.mu.Unlock()
		if length == memPage {
			delete(s.pages, page)
		} else if pg := s.pages[page]; pg != nil {
			clear(pg[within : within+length])
		}
	})
	return nil
}

// Discard implements Store as Zero does.
func (m *Mem) Discard(ctx context.Context, off, n int64) error { return m.Zero(ctx, off, n) }

// Sync implements Store; there is nothing to do.
func (m *Mem) Sync(ctx context.Context) error { return m.check(ctx, "sync", 0, 0) }

// StartWriteback implements Store; there is nothing to do.
func (m *Mem) StartWriteback(off, n int64) {}

// IsHole implements Store: true where no page is held.
func (m *Mem) IsHole(ctx context.Context, off, n int64) (bool, error) {
	if err := m.check(ctx, "find data", off, n); err != nil {
		return false, err
	}
	hole := true
	eachPage(off, n, func(page, _, _, _ int64) {
		s := &m.stripes[page%memStripes]
		s.mu.RLock()
		defer s.mu.RUnlock()
		hole = hole && s.pages[page] == nil
	})
	return hole, nil
}

// Instance implements Store.
func (m *Mem) Instance() string { return m.instance }

// Close implements Store. The bytes are kept until the Mem is collected.
func (m *Mem) Close() error {
	m.closed.Store(true)
	return nil
}
