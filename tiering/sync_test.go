package tiering_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// calls counts what reached all stores.
func (e *env) calls(op faultstore.Op) int64 {
	var n int64
	for _, s := range e.stores {
		n += s.Count(op)
	}
	return n
}

const changes = faultstore.Write | faultstore.Sync | faultstore.Zero | faultstore.Discard

func TestNoSyncWithoutFlush(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.settle()
	before := e.calls(faultstore.Sync)
	v := e.volume("v0")
	for i := range int64(1000) {
		if err := v.WriteAt(ctx, []byte(fmt.Sprintf("%4096d", i)), i*7%(8*ext/block)*block, false); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.calls(faultstore.Sync) - before; n != 0 {
		t.Errorf("1000 writes made %d syncs, want 0", n)
	}
	e.flush("v0")
	if n := e.calls(faultstore.Sync) - before; n == 0 {
		t.Error("a flush made no sync")
	}

	// Nothing dirty, nothing staged: no call at all.
	before = e.calls(faultstore.All)
	commit := e.Pool.Info().Commit
	for range 10 {
		e.flush("v0")
		e.flush("v1")
	}
	if n := e.calls(faultstore.All) - before; n != 0 {
		t.Errorf("flushes of nothing made %d calls", n)
	}
	if got := e.Pool.Info().Commit; got != commit {
		t.Errorf("flushes of nothing made %d commits", got-commit)
	}

	// An overwrite of committed extents needs one sync of its backing and no commit.
	e.write("v0", 0, block, 1)
	before = e.calls(changes)
	e.flush("v0")
	if n := e.calls(faultstore.Sync); n == 0 {
		t.Error("no sync")
	}
	if got := e.Pool.Info().Commit; got != commit {
		t.Errorf("a flush of overwrites made %d commits", got-commit)
	}
	if n := e.calls(changes) - before; n > 2 { // the sync, and a stamp
		t.Errorf("a flush of overwrites made %d calls, want at most 2", n)
	}
}

// recorder notes the order of changes on the stores and commits of the metadata.
type recorder struct {
	mu     sync.Mutex
	events []string
	on     bool
}

func (r *recorder) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.on {
		r.events = append(r.events, fmt.Sprintf(format, args...))
	}
}

// take returns what was noted since the last take, and goes on noting.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	ev := r.events
	r.events, r.on = nil, true
	return ev
}

type recorded struct {
	backing.Store
	r    *recorder
	name string
	l    *ondisk.Layout
}

func (s *recorded) WriteAt(ctx context.Context, p []byte, off int64) error {
	what := "head"
	switch {
	case s.l == nil:
	case off >= s.l.DataOffset && off < s.l.EndSuperblock:
		what = "data"
	case off >= s.l.SlotTableOffset && off < s.l.DataOffset:
		what = "table"
	case off >= s.l.StampOffset[0] && off < s.l.VolumeTableOffset[0]:
		what = "stamp"
	}
	s.r.note("%s %s", s.name, what)
	return s.Store.WriteAt(ctx, p, off)
}

func (s *recorded) Zero(ctx context.Context, off, n int64) error {
	s.r.note("%s zero", s.name)
	return s.Store.Zero(ctx, off, n)
}

func (s *recorded) Sync(ctx context.Context) error {
	err := s.Store.Sync(ctx)
	s.r.note("%s sync", s.name)
	return err
}

// newRecorded makes an env whose order of events is noted.
func newRecorded(t *testing.T) (*env, *recorder) {
	t.Helper()
	r := new(recorder)
	e := newEnv(t, model.Config{}, func(o *tiering.Options) {
		inner := o.OpenStore
		o.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
			st, err := inner(ctx, spec, create, readOnly)
			if err != nil {
				return nil, err
			}
			s := &recorded{Store: st, r: r, name: strings.Split(spec.Path, "/")[1]}
			if sb, err := ondisk.ReadSuperblock(ctx, st); err == nil {
				s.l = &sb.Layout
			}
			return s, nil
		}
		o.Fault = func(p extentmap.FaultPoint, _ uint64) error {
			if p == extentmap.FaultAfter {
				r.note("commit")
			}
			return nil
		}
	})
	e.settle()
	r.take()
	return e, r
}

// withoutStamps leaves the stamps out, which a sync rewrites when it likes.
func withoutStamps(events []string) []string {
	return slices.DeleteFunc(events, func(s string) bool { return strings.HasSuffix(s, " stamp") })
}

func TestFlushOrder(t *testing.T) {
	e, r := newRecorded(t)
	check := func(what string, want ...string) {
		t.Helper()
		if got := withoutStamps(r.take()); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	e.write("v0", 0, block, 1)
	check("first write", "t0 data")
	e.flush("v0")
	check("flush of a provision", "t0 table", "t0 sync", "commit")
	e.write("v0", 0, block, 2)
	e.flush("v0")
	check("flush of an overwrite", "t0 data", "t0 sync")
	if err := e.volume("v0").WriteAt(ctx, []byte("fua"), 0, true); err != nil {
		t.Fatal(err)
	}
	check("FUA on a committed extent", "t0 data", "t0 sync")
	if err := e.volume("v0").WriteAt(ctx, []byte("fua"), ext, true); err != nil {
		t.Fatal(err)
	}
	check("FUA on a new extent", "t0 data", "t0 table", "t0 sync", "commit")

	// A move: copy, sync, and after the switch a sync of its own before the entry.
	if moved, err := e.Pool.MoveExtent(ctx, "v0", 0, 1); !moved || err != nil {
		t.Fatalf("MoveExtent = %v, %v", moved, err)
	}
	got := withoutStamps(r.take())
	want := []string{"t1 data", "t1 sync", "t1 sync", "t1 table", "t1 sync", "commit"}
	if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
		t.Errorf("move: %q, want %q first", got, want)
	}
	// Behind the commit the source's entry is cleared and synced before its slot is
	// zeroed and synced.
	e.settle()
	got = append(got[len(want):], withoutStamps(r.take())...)
	if want := []string{"t0 table", "t0 sync", "t0 zero", "t0 sync"}; !slices.Equal(got, want) {
		t.Errorf("after the move: %q, want %q", got, want)
	}

	// An unmap: the tombstone is synced before the commit, the slot zeroed behind it.
	e.trim("v0", 0, ext)
	check("trim")
	e.flush("v0")
	e.settle()
	check("flush of a trim", "t1 table", "t1 sync", "commit", "t1 zero", "t1 sync")
}

// TestWaiterGetsLaterSync: who asks while a sync is running is answered by the
// next one.
func TestWaiterGetsLaterSync(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	e.write("v1", 0, ext, 1)
	e.flush("v0")
	e.flush("v1")
	e.settle()
	for _, second := range []string{"v0", "v1"} { // a round of the same volume, a sync of the same backing
		gate := make(chan struct{})
		s := e.stores[path(0, 0)]
		held := s.Inject(faultstore.Fault{Ops: faultstore.Sync, Wait: gate})
		e.write("v0", 0, block, 2)
		first := make(chan error, 1)
		go func() { first <- e.volume("v0").Flush(ctx) }()
		eventually(t, "the first sync", func() bool { return held.Hits() == 1 })
		e.write(second, block, block, 3)
		later := make(chan error, 2)
		go func() { later <- e.volume(second).Flush(ctx) }()
		go func() { later <- e.volume(second).WriteAt(ctx, []byte("fua"), 2*block, true) }()
		gate <- struct{}{}
		if err := <-first; err != nil {
			t.Errorf("first flush: %v", err)
		}
		eventually(t, "the second sync", func() bool { return held.Hits() == 2 })
		select {
		case err := <-later:
			t.Errorf("second flush of %s = %v by a sync that had begun before it", second, err)
		default:
		}
		close(gate)
		for range 2 {
			if err := <-later; err != nil {
				t.Errorf("second flush of %s: %v", second, err)
			}
		}
		s.Clear()
	}
}

// slowSync notes when each sync began and ended, in an order of its own.
type slowSync struct {
	backing.Store
	order   *atomic.Int64
	mu      sync.Mutex
	began   int64           // of the last sync that has ended
	written [8]atomic.Int64 // when the last write of one byte ended, by that byte
}

func (s *slowSync) WriteAt(ctx context.Context, p []byte, off int64) error {
	err := s.Store.WriteAt(ctx, p, off)
	if len(p) == 1 {
		s.written[p[0]].Store(s.order.Add(1))
	}
	return err
}

func (s *slowSync) Sync(ctx context.Context) error {
	began := s.order.Add(1)
	for range 2 { // let others in between
		s.order.Add(1)
		yield()
	}
	err := s.Store.Sync(ctx)
	s.mu.Lock()
	s.began = began
	s.mu.Unlock()
	return err
}

func (s *slowSync) lastBegan() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began
}

// TestFlushNeverOvertakes: whatever flushes run at the same time, a flush is
// answered only after a sync that began behind the bytes written before it has ended.
func TestFlushNeverOvertakes(t *testing.T) {
	var order atomic.Int64
	var slow []*slowSync
	e := newEnv(t, model.Config{Slots: [][]int{{8}}}, func(o *tiering.Options) {
		inner := o.OpenStore
		o.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
			st, err := inner(ctx, spec, create, readOnly)
			if err != nil {
				return nil, err
			}
			slow = append(slow, &slowSync{Store: st, order: &order})
			return slow[len(slow)-1], nil
		}
	})
	e.write("v0", 0, 8*ext, 1)
	e.flush("v0")
	s := slow[len(slow)-1]
	v := e.volume("v0")
	var wg sync.WaitGroup
	var bad atomic.Int64
	for g := range int64(3) {
		wg.Go(func() {
			for range 5000 {
				if err := v.WriteAt(ctx, []byte{byte(g)}, g*ext, false); err != nil {
					t.Error(err)
					return
				}
				if err := v.Flush(ctx); err != nil {
					t.Error(err)
					return
				}
				if s.lastBegan() < s.written[g].Load() {
					bad.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := bad.Load(); n > 0 {
		t.Errorf("%d flushes were answered before a sync that covers them had ended", n)
	}
}
