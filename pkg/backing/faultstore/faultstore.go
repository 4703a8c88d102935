package faultstore

import (
	"context"
	"fmt"
	"math/rand"
	"strings"
	"sync"

	"tierd/pkg/backing"
)

// Op is a set of kinds of operation.
type Op uint16

// The kinds of operation, one for each method of a Store that does I/O.
const (
	Read Op = 1 << iota
	TryRead
	Write
	Sync
	Zero
	Discard
	Writeback
	IsHole

	opCount = 8
	// All is every kind.
	All Op = 1<<opCount - 1
)

var opNames = [opCount]string{"read", "try-read", "write", "sync", "zero", "discard", "write-back", "is-hole"}

// String names the kinds in the set.
func (o Op) String() string {
	var names []string
	for i, name := range opNames {
		if o&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// Sector is the unit in which a torn write lands, in bytes.
const Sector = 512

// A Fault says what fails, when, and how. An operation meets a Fault if its
// kind is in Ops and its range touches [From, To); Sync has no range and is
// met by kind alone.
type Fault struct {
	Ops Op
	// From and To limit the range in bytes; To 0 means up to the end.
	From, To int64
	// Nth lets the first Nth-1 operations that meet the Fault pass.
	Nth int
	// Times bounds how often it strikes; 0 means for ever.
	Times int
	// Probability that it strikes, above Nth; 0 means always.
	Probability float64

	// Wait holds the operation until it can receive: a send frees one, a close
	// all. The context of the operation ends the wait with its error.
	Wait <-chan struct{}
	// Err is returned, and the Store below is not called. TryReadAt misses, and
	// StartWriteback does nothing. Nil: the operation goes on after Wait.
	Err error
	// Torn: a write or zero that fails with Err first lands its first Torn
	// sectors of Sector bytes (cut at the multiples of Sector of the Store).
	Torn int
}

// An Injection is an armed Fault.
type Injection struct {
	s     *Store
	fault Fault
	off   bool
	met   int
	hits  int
}

// Disable lets operations pass; Nth goes on counting from where it is.
func (i *Injection) Disable() { i.set(true) }

// Enable arms the fault again.
func (i *Injection) Enable() { i.set(false) }

func (i *Injection) set(off bool) {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	i.off = off
}

// Hits returns how often the fault struck.
func (i *Injection) Hits() int {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	return i.hits
}

// Store is a backing.Store that fails as told.
type Store struct {
	backing.Store

	mu         sync.Mutex
	rng        *rand.Rand
	injections []*Injection
	counts     [opCount]int64
}

// New wraps s, which it then owns. The seed decides every Probability.
func New(s backing.Store, seed int64) *Store {
	return &Store{Store: s, rng: rand.New(rand.NewSource(seed))}
}

// Inject arms f. Of several that an operation meets, the first armed whose
// time has come strikes, alone.
func (s *Store) Inject(f Fault) *Injection {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := &Injection{s: s, fault: f}
	s.injections = append(s.injections, i)
	return i
}

// Clear disarms every fault for good. The counts stay.
func (s *Store) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.injections = nil
}

// Count returns how many operations of the kinds in ops were called, failed
// ones included.
func (s *Store) Count(ops Op) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var n int64
	for i, c := range s.counts {
		if ops&(1<<i) != 0 {
			n += c
		}
	}
	return n
}

// strike counts an operation and returns the fault that it suffers, if any.
func (s *Store) strike(op Op, off, n int64) (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.counts {
		if op == 1<<i {
			s.counts[i]++
		}
	}
	for _, i := range s.injections {
		if i.strikesLocked(op, off, n) {
			return i.fault, true
		}
	}
	return Fault{}, false
}

func (i *Injection) strikesLocked(op Op, off, n int64) bool {
	f := &i.fault
	if f.Ops&op == 0 || i.off {
		return false
	}
	if op != Sync && (off+n <= f.From || (f.To > 0 && off >= f.To)) {
		return false
	}
	i.met++
	if i.met < f.Nth || (f.Times > 0 && i.hits >= f.Times) {
		return false
	}
	if f.Probability > 0 && i.s.rng.Float64() >= f.Probability {
		return false
	}
	i.hits++
	return true
}

// before runs what comes before the Store below is called. A non-nil error
// ends the operation.
func (s *Store) before(ctx context.Context, op Op, off, n int64) (Fault, error) {
	f, ok := s.strike(op, off, n)
	if !ok {
		return f, nil
	}
	if f.Wait != nil {
		select {
		case <-f.Wait:
		case <-ctx.Done():
			return Fault{}, ctx.Err()
		}
	}
	if f.Err != nil {
		return f, fmt.Errorf("%v at %d: injected: %w", op, off, f.Err)
	}
	return f, nil
}

// tornPart returns how many bytes of [off, off+n) land.
func tornPart(f Fault, off, n int64) int64 {
	if f.Torn == 0 {
		return 0
	}
	return min(n, (off/Sector+int64(f.Torn))*Sector-off)
}

// TryReadAt implements backing.Store.
func (s *Store) TryReadAt(p []byte, off int64) bool {
	if _, err := s.before(context.Background(), TryRead, off, int64(len(p))); err != nil {
		return false
	}
	return s.Store.TryReadAt(p, off)
}

// ReadAt implements backing.Store.
func (s *Store) ReadAt(ctx context.Context, p []byte, off int64) error {
	if _, err := s.before(ctx, Read, off, int64(len(p))); err != nil {
		return err
	}
	return s.Store.ReadAt(ctx, p, off)
}

// WriteAt implements backing.Store.
func (s *Store) WriteAt(ctx context.Context, p []byte, off int64) error {
	f, err := s.before(ctx, Write, off, int64(len(p)))
	if err == nil {
		return s.Store.WriteAt(ctx, p, off)
	}
	if n := tornPart(f, off, int64(len(p))); n > 0 {
		_ = s.Store.WriteAt(ctx, p[:n], off) // err says it all
	}
	return err
}

// Sync implements backing.Store.
func (s *Store) Sync(ctx context.Context) error {
	if _, err := s.before(ctx, Sync, 0, 0); err != nil {
		return err
	}
	return s.Store.Sync(ctx)
}

// Zero implements backing.Store.
func (s *Store) Zero(ctx context.Context, off, n int64) error {
	f, err := s.before(ctx, Zero, off, n)
	if err == nil {
		return s.Store.Zero(ctx, off, n)
	}
	if n := tornPart(f, off, n); n > 0 {
		_ = s.Store.Zero(ctx, off, n) // err says it all
	}
	return err
}

// Discard implements backing.Store.
func (s *Store) Discard(ctx context.Context, off, n int64) error {
	if _, err := s.before(ctx, Discard, off, n); err != nil {
		return err
	}
	return s.Store.Discard(ctx, off, n)
}

// StartWriteback implements backing.Store.
func (s *Store) StartWriteback(off, n int64) {
	if _, err := s.before(context.Background(), Writeback, off, n); err == nil {
		s.Store.StartWriteback(off, n)
	}
}

// IsHole implements backing.Store.
func (s *Store) IsHole(ctx context.Context, off, n int64) (bool, error) {
	if _, err := s.before(ctx, IsHole, off, n); err != nil {
		return false, err
	}
	return s.Store.IsHole(ctx, off, n)
}
