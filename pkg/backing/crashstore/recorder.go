package crashstore

import (
	"context"
	"fmt"
	"math/rand"
	"runtime"
	"sync"
	"sync/atomic"

	"tierd/pkg/backing"
)

// Sector is the default unit that a medium writes whole, in bytes.
const Sector = 512

// Cut says what of the unsynced changes is found after the power is back.
type Cut struct {
	Seed int64
	// Keep is the probability with which an unsynced change, or a unit of one,
	// arrived: 0 nothing, 1 everything.
	Keep float64
	// Torn is the probability with which a unit that did not arrive did so in
	// part. 0 for media that write a unit whole.
	Torn float64
	// Unit in bytes; 0 means Sector.
	Unit int64
}

// A Recorder keeps the journal of a group of Stores.
type Recorder struct {
	// Pause is called before a change lands, and between the two ends of a Sync: a
	// test lets others run there. It is set before the Stores are used, and passed on
	// by CrashAt and KillAt. By default others get a turn.
	Pause func()

	next func() int64 // gives out sequence numbers

	mu      sync.Mutex
	media   []*medium
	first   int64   // instants before this one are forgotten
	journal []event // in order of their numbers
}

// medium is the state of one Store beneath its handles.
type medium struct {
	index    int
	instance string
	base     *backing.Mem // what was there at Recorder.first, all of it durable
	live     *backing.Mem // what a read returns
	pending  []event      // unsynced changes that Forget moved out of the journal
}

// EventKind says what an Event is.
type EventKind uint8

// The kinds of events.
const (
	Write EventKind = iota + 1
	Zero            // a discard too
	SyncBegan
	SyncEnded // it made durable what was there when it began
)

func (k EventKind) String() string {
	return map[EventKind]string{Write: "write", Zero: "zero", SyncBegan: "sync began", SyncEnded: "sync ended"}[k]
}

// Event is one entry of the journal as Events shows it.
type Event struct {
	Seq    int64
	Store  int // index in Stores
	Kind   EventKind
	Off, N int64 // of a change
}

// event is one entry of the journal.
type event struct {
	Event
	data  []byte // of a Write
	began int64  // of SyncEnded: the number of its SyncBegan
}

func (e event) change() bool { return e.Kind == Write || e.Kind == Zero }

// NewRecorder returns a Recorder without Stores that counts its events from 1.
func NewRecorder() *Recorder {
	var n atomic.Int64
	return NewRecorderOn(func() int64 { return n.Add(1) })
}

// NewRecorderOn returns a Recorder whose events get their numbers from next, which
// must give rising ones and may be called from several goroutines.
func NewRecorderOn(next func() int64) *Recorder { return &Recorder{Pause: runtime.Gosched, next: next} }

// NewStore adds a Store of size bytes that reads as zeroes.
func (r *Recorder) NewStore(size int64) *Store {
	return r.add(backing.NewMem(size), "")
}

func (r *Recorder) add(base *backing.Mem, instance string) *Store {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := &medium{index: len(r.media), base: base, live: base.Clone(), instance: instance}
	if instance == "" {
		m.instance = "crash:" + base.Instance()
	}
	r.media = append(r.media, m)
	return &Store{rec: r, m: m}
}

// Stores returns a new open handle on each Store, in the order of their making.
func (r *Recorder) Stores() []*Store {
	r.mu.Lock()
	defer r.mu.Unlock()
	stores := make([]*Store, len(r.media))
	for i, m := range r.media {
		stores[i] = &Store{rec: r, m: m}
	}
	return stores
}

// Now returns the sequence number of the last event.
func (r *Recorder) Now() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nowLocked()
}

func (r *Recorder) nowLocked() int64 {
	if n := len(r.journal); n > 0 {
		return r.journal[n-1].Seq
	}
	return r.first
}

// Events returns the journal since the last Forget.
func (r *Recorder) Events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := make([]Event, len(r.journal))
	for i, e := range r.journal {
		events[i] = e.Event
	}
	return events
}

// UnsyncedAt returns how many changes of all Stores a power cut right after event n
// may take back.
func (r *Recorder) UnsyncedAt(n int64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	unsynced := 0
	for _, m := range r.media {
		events, synced := r.eventsLocked(m, n)
		unsynced += len(events) - synced
	}
	return unsynced
}

// Crash is CrashAt now.
func (r *Recorder) Crash(c Cut) *Recorder { return r.CrashAt(r.Now(), c) }

// CrashAt returns what is found after the power failed right after event n, or
// between n and the next one: a Recorder of its own, on the same counter if that is
// not its own, with the same Stores, closed ones included, in the same order, whose
// whole content is durable. It panics if n is before the last Forget.
func (r *Recorder) CrashAt(n int64, c Cut) *Recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checkLocked(n)
	if c.Unit == 0 {
		c.Unit = Sector
	}
	rng := rand.New(rand.NewSource(c.Seed))
	after := &Recorder{Pause: r.Pause, next: r.next}
	for _, m := range r.media {
		image := m.base.Clone()
		events, synced := r.eventsLocked(m, n)
		for i, e := range events {
			if i < synced {
				apply(image, e)
			} else {
				c.applyPart(image, e, rng)
			}
		}
		after.add(image, m.instance)
	}
	return after
}

// KillAt returns what is there after the process died right after event n and the
// machine lived on: a Recorder with the same Stores, in which what was unsynced
// still is. It panics if n is before the last Forget.
func (r *Recorder) KillAt(n int64) *Recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checkLocked(n)
	after := &Recorder{Pause: r.Pause, next: r.next}
	after.first = n
	for _, m := range r.media {
		image := m.base.Clone()
		events, synced := r.eventsLocked(m, n)
		for _, e := range events[:synced] {
			apply(image, e)
		}
		s := after.add(image, m.instance)
		for _, e := range events[synced:] {
			apply(s.m.live, e)
			s.m.pending = append(s.m.pending, e)
		}
	}
	return after
}

func (r *Recorder) checkLocked(n int64) {
	if n < r.first {
		panic(fmt.Sprintf("crashstore: instant %d is forgotten, the first is %d", n, r.first))
	}
}

// eventsLocked returns the changes of m up to event n, and how many of them,
// from the front, a Sync made durable.
func (r *Recorder) eventsLocked(m *medium, n int64) (events []event, synced int) {
	events = append(events, m.pending...)
	durable := int64(0) // changes before this number are
	for _, e := range r.journal {
		switch {
		case e.Seq > n:
		case e.Store != m.index:
		case e.change():
			events = append(events, e)
		case e.Kind == SyncEnded:
			durable = max(durable, e.began)
		}
	}
	for synced < len(events) && events[synced].Seq < durable {
		synced++
	}
	return events, synced
}

// Forget drops the journal up to now, so that no earlier instant can be cut at
// any more. What is unsynced stays unsynced.
func (r *Recorder) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.nowLocked()
	for _, m := range r.media {
		events, synced := r.eventsLocked(m, now)
		for _, e := range events[:synced] {
			apply(m.base, e)
		}
		m.pending = events[synced:]
	}
	r.first, r.journal = now, nil
}

// record applies an event to what reads see and appends it. It returns its number.
func (r *Recorder) record(m *medium, e event) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.Store, e.Seq = m.index, r.next()
	if e.change() {
		apply(m.live, e)
	}
	r.journal = append(r.journal, e)
	return e.Seq
}

// apply writes the whole of a change. The range was checked when it came.
func apply(image *backing.Mem, e event) {
	var err error
	if e.Kind == Zero {
		err = image.Zero(context.Background(), e.Off, e.N)
	} else {
		err = image.WriteAt(context.Background(), e.data, e.Off)
	}
	if err != nil {
		panic(fmt.Sprintf("crashstore: %v", err))
	}
}

// part returns the change to bytes [from, to) of the Store alone.
func (e event) part(from, to int64) event {
	p := e
	p.Off, p.N = from, to-from
	if e.data != nil {
		p.data = e.data[from-e.Off : to-e.Off]
	}
	return p
}

// applyPart writes what of an unsynced change arrived.
func (c Cut) applyPart(image *backing.Mem, e event, rng *rand.Rand) {
	c.Arrived(rng, e.Off, e.N, func(from, to int64) { apply(image, e.part(from, to)) })
}

// Arrived calls fn for the parts of an unsynced change to [off, off+n) that are
// found after the cut. Recorders of other kinds than this package's decide with it
// too.
func (c Cut) Arrived(rng *rand.Rand, off, n int64, fn func(from, to int64)) {
	if rng.Intn(2) == 0 { // one fate for all of it
		if rng.Float64() < c.Keep {
			fn(off, off+n)
		}
		return
	}
	unit := c.Unit
	if unit == 0 {
		unit = Sector
	}
	for from := off; from < off+n; {
		to := min(off+n, (from/unit+1)*unit)
		switch {
		case rng.Float64() < c.Keep:
			fn(from, to)
		case rng.Float64() < c.Torn:
			if tear := from + rng.Int63n(to-from); tear > from {
				fn(from, tear)
			}
		}
		from = to
	}
}
