package backing

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tierd/pkg/clock"
)

// Simulate describes a disk that is slower than the one a backing is on. The
// zero value of a field leaves that property as it is.
type Simulate struct {
	// Latency is added to every read and write; those of many callers overlap.
	Latency time.Duration
	// IOPS is how many reads and writes are served in a second, all callers
	// together. An idle disk saves nothing up: there are no bursts.
	IOPS float64
	// Bandwidth is in bytes per second, all callers together.
	Bandwidth int64
}

func (s Simulate) validate() error {
	var errs []error
	if s.Latency < 0 {
		errs = append(errs, fmt.Errorf("simulated latency %v is negative", s.Latency))
	}
	if !(s.IOPS >= 0) || s.IOPS > 1e9 {
		errs = append(errs, fmt.Errorf("simulated iops %v is not between 0 and 1e9", s.IOPS))
	}
	if s.Bandwidth < 0 {
		errs = append(errs, fmt.Errorf("simulated bandwidth %d is negative", s.Bandwidth))
	}
	return errors.Join(errs...)
}

// service is how long the disk is busy with one operation of n bytes.
func (s Simulate) service(n int) time.Duration {
	var d float64
	if s.IOPS > 0 {
		d += float64(time.Second) / s.IOPS
	}
	if s.Bandwidth > 0 {
		d += float64(n) * float64(time.Second) / float64(s.Bandwidth)
	}
	return time.Duration(d)
}

// Simulated is a Store that answers like a slower disk: a single server that
// takes reads and writes in the order in which they come, each for
// 1/IOPS + bytes/Bandwidth, and answers each Latency after its service ends.
// There is no cache in front: TryReadAt always misses. Sync waits until the
// writes that were issued before it are answered. Zero, Discard and
// StartWriteback cost what they cost below.
type Simulated struct {
	Store
	sim   Simulate
	sleep sleeper

	mu        sync.Mutex
	free      time.Time // when the server is done with all it has taken
	lastWrite time.Time // when the last write issued is answered
}

// NewSimulated wraps s, which it then owns. clk is for tests; nil means the
// machine's clock, with sleeps more precise than those of package time.
func NewSimulated(s Store, sim Simulate, clk clock.Clock) *Simulated {
	d := &Simulated{Store: s, sim: sim, sleep: newTimerSleeper()}
	if clk != nil {
		d.sleep = clockSleeper{clk}
	}
	return d
}

// Info tells about the Store below, if that can tell.
func (d *Simulated) Info() Info {
	var info Info
	if dev, ok := d.Store.(interface{ Info() Info }); ok {
		info = dev.Info()
	}
	info.Simulated, info.PageCacheReads = true, false
	return info
}

// ZeroWrites reports whether Zero may have to write the zeroes.
func (d *Simulated) ZeroWrites() bool {
	if z, ok := d.Store.(interface{ ZeroWrites() bool }); ok {
		return z.ZeroWrites()
	}
	return d.Info().IsDevice
}

// Deleted reports whether the Store is a file that has no name any more.
func (d *Simulated) Deleted() bool {
	f, ok := d.Store.(interface{ Deleted() bool })
	return ok && f.Deleted()
}

// admit puts an operation of n bytes into the queue of the server and returns
// when it is answered.
func (d *Simulated) admit(n int, write bool) time.Time {
	now := d.sleep.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.free.Before(now) {
		d.free = now
	}
	d.free = d.free.Add(d.sim.service(n))
	answer := d.free.Add(d.sim.Latency)
	if write {
		d.lastWrite = answer
	}
	return answer
}

// TryReadAt implements Store: always a miss.
func (d *Simulated) TryReadAt([]byte, int64) bool { return false }

// ReadAt implements Store.
func (d *Simulated) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := CheckRange("read", off, int64(len(p)), d.Size()); err != nil {
		return err
	}
	answer := d.admit(len(p), false)
	if err := d.Store.ReadAt(ctx, p, off); err != nil {
		return err
	}
	return d.sleep.until(ctx, answer)
}

// WriteAt implements Store. The bytes can be read before it returns, as on a
// real disk.
func (d *Simulated) WriteAt(ctx context.Context, p []byte, off int64) error {
	if err := CheckRange("write", off, int64(len(p)), d.Size()); err != nil {
		return err
	}
	answer := d.admit(len(p), true)
	if err := d.Store.WriteAt(ctx, p, off); err != nil {
		return err
	}
	return d.sleep.until(ctx, answer)
}

// Sync implements Store.
func (d *Simulated) Sync(ctx context.Context) error {
	d.mu.Lock()
	last := d.lastWrite
	d.mu.Unlock()
	if err := d.sleep.until(ctx, last); err != nil {
		return err
	}
	return d.Store.Sync(ctx)
}

// Close implements Store. Calls that still sleep finish their sleep.
func (d *Simulated) Close() error {
	err := d.Store.Close()
	d.sleep.close()
	return err
}
