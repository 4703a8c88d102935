package backing

import (
	"context"
	"testing"
	"time"
)

// stepStore takes a given time for each call, on a clock of its own.
type stepStore struct {
	Store
	at   time.Time
	took time.Duration
	err  error
	// within is called in the middle of a read.
	within func()
}

func (s *stepStore) now() time.Time { return s.at }

func (s *stepStore) ReadAt(context.Context, []byte, int64) error {
	s.at = s.at.Add(s.took / 2)
	if fn := s.within; fn != nil {
		s.within = nil
		fn()
	}
	s.at = s.at.Add(s.took / 2)
	return s.err
}

func (s *stepStore) Sync(context.Context) error {
	s.at = s.at.Add(s.took)
	return nil
}

func TestMeter(t *testing.T) {
	const ms = time.Millisecond
	s := &stepStore{at: time.Unix(100, 0), took: 8 * ms}
	m := NewMeter(s, s.now)
	read := func(off, n int64) {
		t.Helper()
		if err := m.ReadAt(t.Context(), make([]byte, n), off); err != nil {
			t.Fatal(err)
		}
	}

	read(0, 4096)
	read(1<<20, 4096) // random: 8 ms each
	s.took = 2 * ms
	read(1<<20+4096, 4096) // continues
	read(1<<20+8192, 4096) // continues
	read(9<<20, 128<<10)   // too large to tell what positioning takes
	s.at = s.at.Add(time.Second)
	if err := m.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := Measures{
		Random: Sum{2, 16 * ms}, RandomIdle: Sum{2, 16 * ms}, Sequential: Sum{3, 6 * ms}, SequentialBytes: 2*4096 + 128<<10,
		Busy: 24 * ms,
	}
	if got := m.Measures(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}

	// A second read that comes while the first is under way: from 1 to 4 ms of it.
	s.took, s.within = 2*ms, func() {
		s.took = 3 * ms
		read(50<<20, 4096)
		s.took = 2 * ms
	}
	read(60<<20, 4096)
	want.Random, want.RandomIdle, want.Busy = Sum{4, 24 * ms}, Sum{3, 21 * ms}, 29*ms
	if got := m.Measures(); got != want {
		t.Errorf("two at a time: got %+v, want %+v", got, want)
	}

	// What fails tells nothing of the time that a read takes; while a call is under way
	// the device is busy.
	s.err, s.within = context.Canceled, func() {
		if got := m.Measures().Busy; got != want.Busy+ms {
			t.Errorf("in the middle: busy %v, want %v", got, want.Busy+ms)
		}
	}
	if err := m.ReadAt(t.Context(), make([]byte, 4096), 70<<20); err == nil {
		t.Error("the error is lost")
	}
	want.Busy += 2 * ms
	if got := m.Measures(); got != want {
		t.Errorf("a failed read: got %+v, want %+v", got, want)
	}

	if got := (Sum{10, time.Second}).Minus(Sum{8, 900 * ms}); got != (Sum{2, 100 * ms}) || got.Mean() != 50*ms || (Sum{}).Mean() != 0 {
		t.Errorf("difference %+v, mean %v", got, got.Mean())
	}
}
