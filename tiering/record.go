package tiering

import (
	"context"
	"fmt"
	"time"

	"tierd/tiering/tap"
)

// An Access is one request of a client as a recording has it; Op(a.Op) says what
// was asked. Movement, and what else the pool does by itself, is none.
type Access = tap.Access

// Record calls sink with the requests of clients to the volume, in the order in
// which they came, until ctx ends or sink returns an error. Times count from start.
// sink is called once for every interval, without requests if there were none, more
// often if there are many, and once more in the end; dropped is how many requests so
// far are missing because sink took too long. The requests are valid during the
// call. No request ever waits for sink.
//
// A read is noted when it was answered without waiting, or else when it begins to
// wait; a change when it gets in line, fast zeroes when they are done. A
// read that a server answers in parts is one for each.
//
// The error is sink's if it returned one, else that of ctx; ErrBusy if somebody
// records the volume already; ErrClosed if the volume was deleted or the pool closes.
func (v *Volume) Record(ctx context.Context, start time.Time, interval time.Duration, sink func(accesses []Access, dropped uint64) error) error {
	t := tap.New(start)
	if !v.tap.CompareAndSwap(nil, t) {
		return busy("volume %s is being recorded", v.Name())
	}
	defer v.tap.Store(nil) // also if sink panics
	var told uint64        // of the dropped requests, to the metric
	drain := func() error {
		for {
			accesses, dropped := t.Drain(), t.Dropped()
			v.pool.unrecorded.Add(dropped - told)
			told = dropped
			if err := sink(accesses, dropped); err != nil || len(accesses) < tap.MaxDrain {
				return err
			}
			if ctx.Err() == nil && v.pool.ctx.Err() == nil {
				continue
			}
			v.tap.Store(nil) // or requests could come for ever as fast as they are taken out
		}
	}
	tick := v.pool.clock.After(interval)
	for {
		var ended error
		select {
		case <-ctx.Done():
			ended = ctx.Err()
		case <-v.pool.ctx.Done():
			ended = ErrClosed
		case <-t.Full():
		case <-tick:
			if v.gone.Load() {
				ended = fmt.Errorf("volume %s is deleted: %w", v.Name(), ErrClosed)
			}
			tick = v.pool.clock.After(interval)
		}
		if ended != nil {
			v.tap.Store(nil)
		}
		if err := drain(); err != nil {
			return err
		}
		if ended != nil {
			return ended
		}
	}
}

// note takes note of a request that came at a time, if the volume is being recorded.
func (v *Volume) note(op Op, off, n int64, at time.Time) {
	if t := v.tap.Load(); t != nil {
		t.Push(uint8(op), off, n, at)
	}
}
