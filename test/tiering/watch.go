package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"time"

	"tierd/pkg/control"
)

// A shot is what was moved up to a time.
type shot struct {
	at      time.Time
	cycle   uint64
	moved   int64 // bytes, of moves that have ended, as the daemon tells
	written int64 // bytes, as the file system below tells; 0 if it is not asked
}

// A watcher looks at the movement of a daemon all the time.
type watcher struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	shots  []shot
	err    error
}

// watchEvery is how often a watcher looks.
const watchEvery = 25 * time.Millisecond

// watch starts a watcher; written is nil if nothing below the daemon counts.
func (p *pool) watch(ctx context.Context, written func() (int64, error)) *watcher {
	w := new(watcher)
	ctx, w.cancel = context.WithCancel(ctx)
	w.done.Go(func() {
		for ctx.Err() == nil && w.err == nil {
			s, err := p.shot(ctx, written)
			if ctx.Err() != nil {
				return
			}
			w.err = err
			w.shots = append(w.shots, s)
			_ = sleep(ctx, watchEvery)
		}
	})
	return w
}

// stop ends the watcher and returns what it saw. It may be called again.
func (w *watcher) stop() ([]shot, error) {
	w.cancel()
	w.done.Wait()
	return w.shots, w.err
}

// shot looks once. What is written is asked for before and after the cycle is known, so
// that it belongs to that cycle.
func (p *pool) shot(ctx context.Context, written func() (int64, error)) (s shot, err error) {
	st, err := p.admin.RelocationStatus(ctx)
	if err != nil {
		return s, err
	}
	s = shot{at: time.Now(), cycle: st.Cycle, moved: movedBytes(st.Moved)}
	if written == nil {
		return s, nil
	}
	if s.written, err = written(); err != nil {
		return s, err
	}
	// A new cycle may have begun in between: then this belongs to neither.
	again, err := p.admin.RelocationStatus(ctx)
	if again.Cycle != s.cycle {
		return p.shot(ctx, written)
	}
	return s, err
}

func movedBytes(list []control.Moved) (n int64) {
	for _, m := range list {
		n += m.Bytes
	}
	return n
}

// An ended is a move that has ended, from the daemon's log.
type ended struct {
	at       time.Time
	extent   string // volume and index
	from, to int    // ranks of tiers
	done     bool
	bytes    int64
}

var endedLine = regexp.MustCompile(`(?m)^time=(\S+) .*msg="move ended" extent=("[^"]*"|\S+) from=(\d+) to=(\d+) .*outcome=(\w+) .*bytes=(\d+)`)

// movesOf returns the moves of which a log tells.
func movesOf(log string) ([]ended, error) {
	var list []ended
	for _, m := range endedLine.FindAllStringSubmatch(log, -1) {
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			return nil, fmt.Errorf("time of a log line: %w", err)
		}
		e := ended{at: at, extent: m[2], done: m[5] == "done"}
		// The expression lets through nothing but digits.
		e.from, _ = strconv.Atoi(m[3])
		e.to, _ = strconv.Atoi(m[4])
		if e.bytes, err = strconv.ParseInt(m[6], 10, 64); err != nil {
			return nil, fmt.Errorf("bytes of a log line: %w", err)
		}
		list = append(list, e)
	}
	return list, nil
}

// sum counts the bytes of moves, whatever became of them, and the extents that moved.
func sum(list []ended) (bytes, extents int64) {
	for _, e := range list {
		bytes += e.bytes
		if e.done {
			extents++
		}
	}
	return bytes, extents
}

// pingPongs counts the moves that take an extent the other way than its last one did,
// within that time.
func pingPongs(list []ended, within time.Duration) (n int64) {
	last := make(map[string]ended)
	for _, e := range list {
		if !e.done {
			continue
		}
		if l, ok := last[e.extent]; ok && e.at.Sub(l.at) <= within && (l.to > l.from) != (e.to > e.from) {
			n++
		}
		last[e.extent] = e
	}
	return n
}

// excess returns by how many bytes more was moved than the budgets of the cycles allow
// that have begun by then; the daemon counts both from its start.
func excess(shots []shot, perCycle int64) (most int64) {
	for _, s := range shots {
		most = max(most, s.moved-perCycle*int64(s.cycle+1))
	}
	return most
}

// excessWritten returns by how many bytes more was written within one cycle than its
// budget allows, and the most that was written in one.
func excessWritten(shots []shot, perCycle int64) (over, most int64) {
	first := make(map[uint64]int64)
	for _, s := range shots {
		if _, ok := first[s.cycle]; !ok {
			first[s.cycle] = s.written
		}
		most = max(most, s.written-first[s.cycle])
	}
	return max(0, most-perCycle), most
}

// burst returns how many bytes more were written in some span of time than the rate
// allows for it, at most.
func burst(shots []shot, rate float64) (most float64) {
	low := 0.0
	for i, s := range shots {
		ahead := float64(s.written-shots[0].written) - rate*s.at.Sub(shots[0].at).Seconds()
		if i == 0 || ahead < low {
			low = ahead
		}
		most = max(most, ahead-low)
	}
	return most
}
