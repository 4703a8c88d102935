package backing

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tierd/pkg/clock"
)

// A sleeper tells the time and waits for it.
type sleeper interface {
	now() time.Time
	// until returns at t, not before, or with the error of ctx.
	until(ctx context.Context, t time.Time) error
	close()
}

// clockSleeper sleeps by a clock.Clock.
type clockSleeper struct{ clk clock.Clock }

func (s clockSleeper) now() time.Time { return s.clk.Now() }

func (s clockSleeper) until(ctx context.Context, t time.Time) error {
	d := t.Sub(s.clk.Now())
	if d <= 0 {
		return nil
	}
	select {
	case <-s.clk.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (clockSleeper) close() {}

// timerSleeper sleeps to within some tens of microseconds. The timers of the
// Go runtime do not: an idle process waits for them in epoll_wait, whose
// timeout is in milliseconds, so that 0.1 ms becomes 1.1 ms. The last stretch
// of a sleep is therefore a read from a timerfd, which wakes epoll_wait as any
// other descriptor does. It holds no thread.
type timerSleeper struct {
	mu     sync.Mutex
	idle   []*timerFD
	closed bool
}

type timerFD struct {
	fd   int
	file *os.File
	buf  [8]byte
}

// timerStretch is what is left to the timerfd. It is more than the 1 ms by
// which a timer of the runtime can be late, and short enough not to need ctx.
const timerStretch = 2500 * time.Microsecond

func newTimerSleeper() *timerSleeper { return &timerSleeper{} }

func (*timerSleeper) now() time.Time { return time.Now() }

func (s *timerSleeper) until(ctx context.Context, t time.Time) error {
	// The long part may be late by a millisecond, and can be cancelled. The zero
	// time is so long ago that a difference to it saturates: nothing may be
	// subtracted from that.
	if d := time.Until(t); d > timerStretch {
		timer := time.NewTimer(d - timerStretch)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}

	// The rest.
	d := time.Until(t)
	if d <= 0 {
		return nil
	}
	tf, err := s.get()
	if err != nil { // out of descriptors: late is better than not at all
		time.Sleep(d)
		return nil
	}
	defer s.put(tf)
	if err := tf.wait(d); err != nil {
		time.Sleep(time.Until(t))
	}
	return nil
}

func (s *timerSleeper) get() (*timerFD, error) {
	s.mu.Lock()
	if n := len(s.idle); n > 0 {
		tf := s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.mu.Unlock()
		return tf, nil
	}
	s.mu.Unlock()
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create timer: %w", err)
	}
	return &timerFD{fd: fd, file: os.NewFile(uintptr(fd), "timer")}, nil
}

func (s *timerSleeper) put(tf *timerFD) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = tf.file.Close()
		return
	}
	s.idle = append(s.idle, tf)
}

func (s *timerSleeper) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, tf := range s.idle {
		_ = tf.file.Close()
	}
	s.idle = nil
}

// wait returns once d > 0 has passed.
func (t *timerFD) wait(d time.Duration) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(d.Nanoseconds())}
	if err := unix.TimerfdSettime(t.fd, 0, &spec, nil); err != nil {
		return err
	}
	_, err := t.file.Read(t.buf[:])
	return err
}
