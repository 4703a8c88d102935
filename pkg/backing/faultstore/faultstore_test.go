package faultstore_test

import (
	"bytes"
	"context"
	"errors"
	"syscall"
	"testing"

	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
)

var ctx = context.Background()

func newStore() *faultstore.Store { return faultstore.New(backing.NewMem(64<<10), 1) }

func TestEveryOpFails(t *testing.T) {
	p := make([]byte, 512)
	for _, tt := range []struct {
		op   faultstore.Op
		call func(s *faultstore.Store) error
	}{
		{faultstore.Read, func(s *faultstore.Store) error { return s.ReadAt(ctx, p, 0) }},
		{faultstore.Write, func(s *faultstore.Store) error { return s.WriteAt(ctx, p, 0) }},
		{faultstore.Sync, func(s *faultstore.Store) error { return s.Sync(ctx) }},
		{faultstore.Zero, func(s *faultstore.Store) error { return s.Zero(ctx, 0, 512) }},
		{faultstore.Discard, func(s *faultstore.Store) error { return s.Discard(ctx, 0, 512) }},
		{faultstore.IsHole, func(s *faultstore.Store) error { _, err := s.IsHole(ctx, 0, 512); return err }},
		{faultstore.TryRead, func(s *faultstore.Store) error {
			if s.TryReadAt(p, 0) {
				return nil
			}
			return syscall.EIO // a miss is how it fails
		}},
	} {
		s := newStore()
		other := s.Inject(faultstore.Fault{Ops: faultstore.All &^ tt.op, Err: syscall.ENOMEM})
		if err := tt.call(s); err != nil {
			t.Errorf("%v without a fault of its own = %v, want nil", tt.op, err)
		}
		mine := s.Inject(faultstore.Fault{Ops: tt.op, Err: syscall.EIO})
		if err := tt.call(s); !errors.Is(err, syscall.EIO) {
			t.Errorf("%v = %v, want EIO", tt.op, err)
		}
		if other.Hits() != 0 || mine.Hits() != 1 || s.Count(tt.op) != 2 || s.Count(faultstore.All) != 2 {
			t.Errorf("%v: hits %d and %d, count %d of %d; want 0, 1, 2, 2",
				tt.op, other.Hits(), mine.Hits(), s.Count(tt.op), s.Count(faultstore.All))
		}
		s.Clear()
		if err := tt.call(s); err != nil {
			t.Errorf("%v after Clear = %v, want nil", tt.op, err)
		}
	}
}

// outcomes runs n syncs and returns E for each that failed and o for the others.
func outcomes(s *faultstore.Store, n int) string {
	var b []byte
	for range n {
		if s.Sync(ctx) != nil {
			b = append(b, 'E')
		} else {
			b = append(b, 'o')
		}
	}
	return string(b)
}

func TestWhen(t *testing.T) {
	for _, tt := range []struct {
		name  string
		fault faultstore.Fault
		want  string
	}{
		{"always", faultstore.Fault{}, "EEEEE"},
		{"from the third", faultstore.Fault{Nth: 3}, "ooEEE"},
		{"twice", faultstore.Fault{Times: 2}, "EEooo"},
		{"the second alone", faultstore.Fault{Nth: 2, Times: 1}, "oEooo"},
	} {
		tt.fault.Ops, tt.fault.Err = faultstore.Sync, syscall.EIO
		s := newStore()
		i := s.Inject(tt.fault)
		if got := outcomes(s, 5); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		i.Disable()
		if got := outcomes(s, 2); got != "oo" {
			t.Errorf("%s, disabled: %s, want oo", tt.name, got)
		}
	}

	some := func() string {
		s := newStore()
		s.Inject(faultstore.Fault{Ops: faultstore.Sync, Err: syscall.EIO, Probability: 0.3})
		return outcomes(s, 200)
	}
	a := some()
	if n := bytes.Count([]byte(a), []byte("E")); n < 30 || n > 90 {
		t.Errorf("probability 0.3 struck %d of 200 times", n)
	}
	if b := some(); a != b {
		t.Error("one seed gave two outcomes")
	}
}

func TestEnable(t *testing.T) {
	s := newStore()
	i := s.Inject(faultstore.Fault{Ops: faultstore.Sync, Err: syscall.EIO})
	got := outcomes(s, 1)
	i.Disable()
	got += outcomes(s, 1)
	i.Enable()
	got += outcomes(s, 1)
	if want := "EoE"; got != want {
		t.Errorf("outcomes = %s, want %s", got, want)
	}
}

func TestRange(t *testing.T) {
	s := newStore()
	s.Inject(faultstore.Fault{Ops: faultstore.Read, Err: syscall.EIO, From: 4096, To: 8192})
	for _, tt := range []struct {
		off, n int64
		fails  bool
	}{{0, 4096, false}, {0, 4097, true}, {5000, 10, true}, {8191, 1, true}, {8192, 512, false}} {
		if err := s.ReadAt(ctx, make([]byte, tt.n), tt.off); (err != nil) != tt.fails {
			t.Errorf("ReadAt(%d bytes, %d) = %v, want a failure %v", tt.n, tt.off, err, tt.fails)
		}
	}
}

func TestTorn(t *testing.T) {
	s := newStore()
	s.Inject(faultstore.Fault{Ops: faultstore.Write, Err: syscall.EIO, Torn: 2})
	if err := s.WriteAt(ctx, bytes.Repeat([]byte{1}, 2048), 256); !errors.Is(err, syscall.EIO) {
		t.Errorf("WriteAt = %v, want EIO", err)
	}
	got := make([]byte, 4096)
	if err := s.ReadAt(ctx, got, 0); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 4096)
	copy(want[256:1024], bytes.Repeat([]byte{1}, 768)) // sectors 0 (half of it) and 1
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes landed, want 768 up to the end of the second sector", bytes.Count(got, []byte{1}))
	}
}

func TestWait(t *testing.T) {
	s := newStore()
	gate := make(chan struct{})
	s.Inject(faultstore.Fault{Ops: faultstore.Write, Wait: gate})
	done := make(chan error)
	go func() { done <- s.WriteAt(ctx, []byte{1}, 0) }()
	select {
	case err := <-done:
		t.Fatalf("WriteAt = %v before it was freed", err)
	case gate <- struct{}{}:
	}
	if err := <-done; err != nil {
		t.Errorf("WriteAt = %v, want nil", err)
	}
	p := []byte{0}
	if err := s.ReadAt(ctx, p, 0); err != nil || p[0] != 1 {
		t.Errorf("ReadAt = %d, %v; want the byte that was freed", p[0], err)
	}

	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.WriteAt(cancelled, []byte{2}, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("WriteAt = %v, want Canceled", err)
	}
}

func TestOpString(t *testing.T) {
	if got, want := (faultstore.Read | faultstore.Sync).String(), "read+sync"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
}
