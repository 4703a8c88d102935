package crashstore

import (
	"context"
	"fmt"
	"math/rand"
	"sync"

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
	mu      sync.Mutex
	media   []*medium
	first   int64   // sequence number of the last event before the journal
	journal []event // event i has the sequence number first+1+i
}

// medium is the state of one Store beneath its handles.
type medium struct {
	index    int
	instance string
	base     *backing.Mem // what was there at Recorder.first, all of it durable
	live     *backing.Mem // what a read returns
	pending  []event      // unsynced events that Forget moved out of the journal
}

// event is one entry of the journal: a change, or a Sync.
type event struct {
	medium *medium
	off, n int64
	data   []byte // nil: zeroes
	sync   bool
}

// NewRecorder returns a Recorder without Stores.
func NewRecorder() *Recorder { return &Recorder{} }

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

// Now returns the sequence number of the last change or Sync.
func (r *Recorder) Now() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first + int64(len(r.journal))
}

// Crash is CrashAt now.
func (r *Recorder) Crash(c Cut) *Recorder { return r.CrashAt(r.Now(), c) }

// CrashAt returns what is found after the power failed right after event n:
// a Recorder of its own with the same Stores, closed ones included, in the same
// order, whose whole content is durable. It panics if n is after Now or before
// the last Forget.
func (r *Recorder) CrashAt(n int64, c Cut) *Recorder {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n < r.first || n > r.first+int64(len(r.journal)) {
		panic(fmt.Sprintf("crashstore: no event %d in [%d, %d]", n, r.first, r.first+int64(len(r.journal))))
	}
	if c.Unit == 0 {
		c.Unit = Sector
	}
	rng := rand.New(rand.NewSource(c.Seed))
	after := NewRecorder()
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

// eventsLocked returns the changes of m up to event n, and how many of them,
// from the front, a Sync made durable.
func (r *Recorder) eventsLocked(m *medium, n int64) (events []event, synced int) {
	events = append(events, m.pending...)
	for _, e := range r.journal[:n-r.first] {
		switch {
		case e.medium != m:
		case e.sync:
			synced = len(events)
		default:
			events = append(events, e)
		}
	}
	return events, synced
}

// Forget drops the journal up to now, so that no earlier instant can be cut at
// any more. What is unsynced stays unsynced.
func (r *Recorder) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.first + int64(len(r.journal))
	for _, m := range r.media {
		events, synced := r.eventsLocked(m, now)
		for _, e := range events[:synced] {
			apply(m.base, e)
		}
		m.pending = events[synced:]
	}
	r.first, r.journal = now, nil
}

// recordLocked applies an event to what reads see and appends it.
func (r *Recorder) recordLocked(e event) {
	if !e.sync {
		apply(e.medium.live, e)
	}
	r.journal = append(r.journal, e)
}

// apply writes the whole of a change. The range was checked when it came.
func apply(image *backing.Mem, e event) {
	var err error
	if e.data == nil {
		err = image.Zero(context.Background(), e.off, e.n)
	} else {
		err = image.WriteAt(context.Background(), e.data, e.off)
	}
	if err != nil {
		panic(fmt.Sprintf("crashstore: %v", err))
	}
}

// part returns the change to bytes [from, to) of the Store alone.
func (e event) part(from, to int64) event {
	p := event{medium: e.medium, off: from, n: to - from}
	if e.data != nil {
		p.data = e.data[from-e.off : to-e.off]
	}
	return p
}

// applyPart writes what of an unsynced change arrived.
func (c Cut) applyPart(image *backing.Mem, e event, rng *rand.Rand) {
	if rng.Intn(2) == 0 { // one fate for all of it
		if rng.Float64() < c.Keep {
			apply(image, e)
		}
		return
	}
	for from := e.off; from < e.off+e.n; {
		to := min(e.off+e.n, (from/c.Unit+1)*c.Unit)
		switch {
		case rng.Float64() < c.Keep:
			apply(image, e.part(from, to))
		case rng.Float64() < c.Torn:
			if tear := from + rng.Int63n(to-from); tear > from {
				apply(image, e.part(from, tear))
			}
		}
		from = to
	}
}
