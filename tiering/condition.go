package tiering

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"tierd/pkg/backing"
)

// A Condition says what can be expected of a backing. That it is being drained
// is not one: an operator's wish stands beside it.
type Condition string

// The conditions. Only ConditionFailed is remembered over restarts.
const (
	// ConditionOK: nothing is known against it.
	ConditionOK Condition = "ok"
	// ConditionSuspect: it serves, but calls failed, or do not return, or the
	// file system under it is full. New extents go elsewhere while there is
	// room. It is ok again after some time without another symptom.
	ConditionSuspect Condition = "suspect"
	// ConditionFailed: written data may be lost. It is read from and not written
	// to any more, until an operator clears it with the pool down.
	ConditionFailed Condition = "failed"
	// ConditionMissing: it was not there when the pool was opened.
	ConditionMissing Condition = "missing"
)

// Conditions are all of them, best first.
var Conditions = []Condition{ConditionOK, ConditionSuspect, ConditionFailed, ConditionMissing}

// A symptom is a reason to suspect a backing.
type symptom uint8

const (
	symptomError symptom = iota // calls fail: the data on it is better elsewhere
	symptomFull                 // the file system under it has no space: its data is well
	symptomHang                 // calls do not return
	symptoms
)

// quietTimes is how long a backing stays suspect after the last time a symptom
// showed. After an error that is long enough for its data to be moved away.
var quietTimes = [symptoms]time.Duration{symptomError: time.Hour, symptomFull: 10 * time.Minute, symptomHang: time.Minute}

const (
	// hangTime is how long a call may be under way before its backing counts as
	// hanging. Buffered writes to healthy disks were seen to take 4.5 s.
	hangTime = 10 * time.Second
	// watchInterval is how often that is looked at.
	watchInterval = time.Second
)

// health is what shows of a backing that has not failed.
type health struct {
	suspect atomic.Bool // a symptom is in force
	sick    atomic.Bool // errors are: its data is to be moved away
	hanging atomic.Bool // a call has been under way for more than hangTime

	mu    sync.Mutex
	until [symptoms]time.Time // when each symptom is forgotten; zero: not in force
	why   string              // what made it suspect
	since time.Time           // of the present condition; zero: since the pool was opened
}

// condition returns the condition of b, why it is not ok, and since when; the
// time is zero if that was so when the pool was opened.
func (b *member) condition() (c Condition, why string, since time.Time) {
	h := &b.health
	h.mu.Lock()
	defer h.mu.Unlock()
	switch err := b.err(); {
	case errors.Is(err, ErrBackingMissing):
		return ConditionMissing, err.Error(), h.since
	case err != nil:
		return ConditionFailed, err.Error(), h.since
	case h.suspect.Load():
		return ConditionSuspect, h.why, h.since
	}
	return ConditionOK, "", h.since
}

// suspect notes a symptom. Only the first one since b was ok is logged.
func (b *member) suspect(s symptom, why string) {
	h := &b.health
	now := b.pool.clock.Now()
	h.mu.Lock()
	h.until[s] = now.Add(quietTimes[s])
	if s == symptomError {
		h.sick.Store(true)
	}
	changed := !h.suspect.Swap(true)
	if changed {
		h.why, h.since = why, now
	}
	h.mu.Unlock()
	if changed && b.err() == nil {
		b.pool.log.Warn("backing is suspect", "backing", b.path, "why", why)
	}
}

// recover forgets the symptoms whose time is over.
func (b *member) recover(now time.Time) {
	h := &b.health
	h.mu.Lock()
	left := false
	for s := range h.until {
		if h.until[s].IsZero() {
			continue
		}
		if now.Before(h.until[s]) {
			left = true
			continue
		}
		h.until[s] = time.Time{}
		if symptom(s) == symptomError {
			h.sick.Store(false)
		}
	}
	changed := !left && h.suspect.Swap(false)
	if changed {
		h.since = now
	}
	h.mu.Unlock()
	if changed && b.err() == nil {
		b.pool.log.Info("backing is ok again", "backing", b.path)
	}
}

// watchLoop looks for calls on backings that do not return, and for what else
// nobody tells of.
func (p *Pool) watchLoop() {
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-p.clock.After(watchInterval):
		}
		now := p.clock.Now()
		p.eachMember(func(b *member) { b.watch(now) })
		if p.looking.CompareAndSwap(false, true) { // a file system that hangs holds up no watch
			p.wg.Go(func() {
				defer p.looking.Store(false)
				p.look()
			})
		}
		p.noteMetadata()
	}
}

// watch brings the condition of b up to date.
func (b *member) watch(now time.Time) {
	age := b.calls.Oldest(now)
	hanging := age >= hangTime
	if hanging {
		b.suspect(symptomHang, fmt.Sprintf("a call has been under way for %s", age.Round(time.Second)))
	}
	if was := b.health.hanging.Swap(hanging); hanging && !was {
		b.pool.hangs.broadcast()
	}
	b.recover(now)
}

// noteError looks what an error of a call on b's store says about b. It does no
// I/O: it is called from under every lock.
func (b *member) noteError(op string, err error) {
	switch {
	case harmless(err):
	case outOfSpace(err):
		b.suspect(symptomFull, sayOp(op, err))
	default:
		b.suspect(symptomError, sayOp(op, err))
	}
}

// sayOp returns the text of an error of a call. That of a file begins with the call,
// and its path.
func sayOp(op string, err error) string {
	if text := err.Error(); strings.HasPrefix(text, op+" /") {
		return text
	}
	return fmt.Sprintf("%s: %v", op, err)
}

// harmless reports whether err says nothing about the medium.
func harmless(err error) bool {
	for _, e := range []error{
		context.Canceled, context.DeadlineExceeded, backing.ErrClosed, backing.ErrOutOfRange, ErrBackingMissing,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// outOfSpace reports whether err says that the file system under a backing has no
// room: a write into a hole of a sparse file fails then, and no other.
func outOfSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

// deviceGone reports whether err says that the medium is not there any more, or a
// part of it. What was not synced is lost then, whatever a sync would say.
func deviceGone(err error) bool {
	if errors.Is(err, backing.ErrCutShort) {
		return true
	}
	for _, no := range []syscall.Errno{syscall.ENXIO, syscall.ENODEV, syscall.ENOMEDIUM, syscall.ESTALE, syscall.ENOTCONN} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// zeroError is ioError for the zeroing of a range. That may wait for write-back,
// and then its error is that of data written before, which no sync tells of again.
func (b *member) zeroError(err error) error {
	if err != nil && !harmless(err) && !outOfSpace(err) {
		b.fail("zero", err)
	}
	return err
}

// ioError is called with the error of a read or a write of b before that is told
// to anybody. It fails b if the medium is gone, and returns err.
func (b *member) ioError(op string, err error) error {
	if err != nil && deviceGone(err) {
		b.fail(op, err)
	}
	return err
}
