package model

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"tierd/pkg/backing/crashstore"
	"tierd/tiering"
	"tierd/tiering/extentmap"
)

// An Instant is a moment of a World at which it could crash: everything that is on
// the backings and in the files of the metadata then, whatever is under way.
type Instant struct {
	event  int64             // of the backings' journal, the last that has happened
	files  map[string][]byte // of the folder of the metadata, by name
	before uint64            // tick: what was answered before it had been answered
	after  uint64            // tick: what began after it had not begun
	commit uint64            // number of the last commit
}

// instants takes Instants of a World at given events. No change of a backing and no
// commit happens while one is taken.
type instants struct {
	ticks  atomic.Uint64
	commit atomic.Uint64
	gate   sync.RWMutex // read: a commit is under way

	mu   sync.Mutex
	next []int64 // events before which to take one, ascending
	more int     // that may be asked for by soon

	// The rest is the recorder's, under its lock.
	n     int64
	dir   string
	taken []*Instant
	err   error
}

func (s *instants) tick() uint64 { return s.ticks.Add(1) }

// event gives the next event of the backings its number. It has not happened yet.
func (s *instants) event() int64 {
	if s.due() {
		s.take()
	}
	s.n++
	return s.n
}

func (s *instants) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := false
	for len(s.next) > 0 && s.n >= s.next[0] {
		s.next, due = s.next[1:], true
	}
	return due
}

// soon asks for an Instant so many events from now: something goes on that a crash
// might catch.
func (w *World) soon(events int64) {
	n := w.rec.Now()
	s := w.instants
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.more > 0 {
		s.more--
		s.next = append(s.next, n+events)
		slices.Sort(s.next)
	}
}

func (s *instants) take() {
	in := &Instant{event: s.n, before: s.tick()}
	s.gate.Lock()
	defer s.gate.Unlock()
	in.commit = s.commit.Load()
	var err error
	if in.files, err = readFolder(s.dir); err != nil {
		s.err = err
	}
	in.after = s.tick()
	s.taken = append(s.taken, in)
}

// readFolder reads all files of a folder. Only the staged log changes meanwhile: it
// is read until two readings are the same.
func readFolder(dir string) (map[string][]byte, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("copy metadata: %w", err)
	}
	files := make(map[string][]byte)
	for _, e := range list {
		var last []byte
		for same := false; !same; {
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if os.IsNotExist(err) {
				break // a temporary file
			}
			if err != nil {
				return nil, fmt.Errorf("copy metadata: %w", err)
			}
			same, last = last != nil && bytes.Equal(b, last), b
		}
		if last != nil {
			files[e.Name()] = last
		}
	}
	return files, nil
}

// around keeps Instants out of commits, and counts these.
func (s *instants) around(inner tiering.MetadataFault) tiering.MetadataFault {
	return func(p extentmap.FaultPoint, n uint64) error {
		var err error
		if p == extentmap.FaultBefore {
			s.gate.RLock()
			if inner != nil {
				err = inner(p, n)
			}
			if err != nil {
				s.gate.RUnlock()
			}
			return err
		}
		s.commit.Store(n)
		s.gate.RUnlock()
		if inner != nil {
			err = inner(p, n)
		}
		return err
	}
}

// armInstants asks for Instants so many events from now, ascending, and allows some
// more of them.
func (w *World) armInstants(more int, events ...int64) {
	w.rec.Forget()
	s := w.instants
	s.taken, s.dir = nil, w.dir
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next, s.more = nil, more
	for _, e := range events {
		s.next = append(s.next, s.n+e)
	}
}

// takeInstants returns those that were taken. The pool must be closed.
func (w *World) takeInstants() []*Instant {
	w.t.Helper()
	s := w.instants
	if s.err != nil {
		w.t.Fatal(s.err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next, s.more = nil, 0
	return s.taken
}

// nowInstant returns the present moment of a closed World.
func (w *World) nowInstant() *Instant {
	s := w.instants
	s.dir, s.taken = w.dir, nil
	s.take()
	in := s.taken[0]
	s.taken = nil
	return in
}

// An ending says how a World ends at an Instant.
type ending int

const (
	kill     ending = iota // the process dies
	cut                    // power loss
	reattach               // the devices go away and come back, in the same boot
)

func (e ending) String() string { return [...]string{"kill", "power cut", "reattached devices"}[e] }

// loses reports whether e takes more than the process.
func (e ending) loses() bool { return e != kill }

// crashed returns the World as it is after it ended at an Instant. It is not open.
// w must not be used while it is.
func (w *World) crashed(in *Instant, e ending, c crashstore.Cut) *World {
	w.t.Helper()
	o := &World{t: w.t, cfg: w.cfg, dir: metadataDir(w.t), paths: w.paths, boot: w.boot, attached: w.attached, opts: w.opts, wrap: w.wrap, instants: w.instants}
	for name, b := range in.files {
		if err := os.WriteFile(filepath.Join(o.dir, name), b, 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	switch e {
	case kill:
		o.rec = w.rec.KillAt(in.event)
	case cut:
		o.boot++
		o.rec = w.rec.CrashAt(in.event, c)
	case reattach:
		o.attached++
		o.rec = w.rec.CrashAt(in.event, c)
	}
	return o
}

// drop closes w and removes its folder.
func (w *World) drop() {
	if w.Pool != nil {
		w.Kill()
	}
	os.RemoveAll(w.dir)
}
