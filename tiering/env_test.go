package tiering_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

var ctx = context.Background()

const (
	ext   = 64 << 10 // extent size of most tests
	block = 4096
)

// env is a World whose stores and metadata can be made to fail. Nothing happens
// in it by itself: rounds run when asked for, unless change says otherwise.
type env struct {
	*model.World
	t      *testing.T
	change func(*tiering.Options)

	opt    tiering.Options // of the last open
	stores map[string]*faultstore.Store
	fault  atomic.Pointer[func(p extentmap.FaultPoint, n uint64) error]
	logs   *logBuffer
	onOpen func(path string, fs *faultstore.Store) // nil, or called with each store
}

// logBuffer collects what the pool logs.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newEnv makes a pool of three tiers with 4, 6 and 8 slots and two volumes of 8
// extents, unless cfg has something else.
func newEnv(t *testing.T, cfg model.Config, change func(*tiering.Options)) *env {
	t.Helper()
	if cfg.ExtentSize == 0 {
		cfg.ExtentSize = ext
	}
	if cfg.Slots == nil {
		cfg.Slots = [][]int{{4}, {6}, {8}}
	}
	if cfg.Volumes == nil {
		cfg.Volumes = []int64{8 * cfg.ExtentSize, 8 * cfg.ExtentSize}
	}
	e := &env{t: t, change: change, stores: make(map[string]*faultstore.Store), logs: new(logBuffer)}
	e.World = model.NewWorld(t, cfg, e.options)
	// Slots become clean backing by backing: until all have some, a first write may
	// land a tier lower than the test means.
	for i := range e.Pool.Tiers() {
		e.awaitClean(i)
	}
	return e
}

func (e *env) options(o *tiering.Options) {
	inner := o.OpenStore
	o.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
		st, err := inner(ctx, spec, create, readOnly)
		if err != nil {
			return nil, err
		}
		fs := faultstore.New(st, 1)
		if !readOnly {
			e.stores[spec.Path] = fs
		}
		if e.onOpen != nil {
			e.onOpen(spec.Path, fs)
		}
		return fs, nil
	}
	o.RoundInterval = time.Hour
	o.Relocation.Cycle = time.Hour
	o.Fault = func(p extentmap.FaultPoint, n uint64) error {
		if f := e.fault.Load(); f != nil {
			return (*f)(p, n)
		}
		return nil
	}
	o.Logger = slog.New(slog.NewTextHandler(e.logs, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if e.change != nil {
		e.change(o)
	}
	e.opt = *o
}

// failCommits makes every commit from now on fail at p.
func (e *env) failCommits(p extentmap.FaultPoint) {
	f := func(at extentmap.FaultPoint, _ uint64) error {
		if at == p {
			return syscall.EIO
		}
		return nil
	}
	e.fault.Store(&f)
}

// tryOpen opens the pool, with other options if edit is not nil.
func (e *env) tryOpen(edit func(*tiering.Options)) error {
	o := e.opt
	if edit != nil {
		edit(&o)
	}
	p, err := tiering.Open(ctx, o)
	if err == nil {
		e.Pool = p
	}
	return err
}

// closeBadly closes a pool that has reason to complain about it.
func (e *env) closeBadly() error {
	p := e.Pool
	e.Pool = nil
	return p.Close()
}

func (e *env) volume(name string) *tiering.Volume {
	e.t.Helper()
	v, err := e.Pool.Volume(name)
	if err != nil {
		e.t.Fatal(err)
	}
	return v
}

// write writes n bytes of fill at off of a volume.
func (e *env) write(name string, off, n int64, fill byte) {
	e.t.Helper()
	if err := e.volume(name).WriteAt(ctx, bytes.Repeat([]byte{fill}, int(n)), off, false); err != nil {
		e.t.Fatalf("write %s at %d: %v", name, off, err)
	}
}

func (e *env) flush(name string) {
	e.t.Helper()
	if err := e.volume(name).Flush(ctx); err != nil {
		e.t.Fatalf("flush %s: %v", name, err)
	}
}

func (e *env) trim(name string, off, n int64) {
	e.t.Helper()
	if err := e.volume(name).Trim(ctx, off, n, false); err != nil {
		e.t.Fatalf("trim %s at %d: %v", name, off, err)
	}
}

// expect checks that n bytes at off of a volume are all fill.
func (e *env) expect(name string, off, n int64, fill byte) {
	e.t.Helper()
	p := make([]byte, n)
	if err := e.volume(name).ReadAt(ctx, p, off); err != nil {
		e.t.Errorf("read %s at %d: %v", name, off, err)
		return
	}
	for i, b := range p {
		if b != fill {
			e.t.Errorf("%s at %d is %#x, want %#x", name, off+int64(i), b, fill)
			return
		}
	}
}

// slots returns the counts of a tier.
func (e *env) slots(tier int) (used, vacated, quarantined int64) {
	c := e.Pool.Tiers()[tier].Slots
	return c.Used, c.Vacated, c.Quarantined
}

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited too long: %s", what)
		}
	}
}

// awaitClean waits until a tier has clean slots.
func (e *env) awaitClean(tier int) {
	e.t.Helper()
	eventually(e.t, "clean slots", func() bool { return e.Pool.Tiers()[tier].Slots.Clean > 0 })
}

// settle waits until no slot is on its way and the books add up: every slot is in
// one state, and as many are used as extents are mapped.
func (e *env) settle() {
	e.t.Helper()
	for _, v := range e.Pool.Volumes() {
		if err := v.Flush(ctx); err != nil {
			e.t.Fatalf("flush: %v", err)
		}
	}
	eventually(e.t, "no slot vacated, free or being cleaned", func() bool {
		for _, ti := range e.Pool.Tiers() {
			if c := ti.Slots; c.Vacated+c.Cleaning+c.Free != 0 {
				return false
			}
		}
		return true
	})
	for i, ti := range e.Pool.Tiers() {
		c := ti.Slots
		if sum := c.Used + c.Clean + c.Free + c.Cleaning + c.Vacated + c.Quarantined; sum != c.Total {
			e.t.Errorf("tier %d: states add up to %d, want %d: %+v", i, sum, c.Total, c)
		}
		var mapped int64
		for _, v := range e.Pool.VolumeInfos() {
			mapped += v.Extents[i]
		}
		if c.Used != mapped {
			e.t.Errorf("tier %d: %d slots used, %d extents mapped", i, c.Used, mapped)
		}
	}
}

// superblock reads what a backing says of the pool.
func (e *env) superblock(path string) *ondisk.Superblock {
	e.t.Helper()
	st, err := e.opt.OpenStore(ctx, tiering.BackingSpec{Path: path}, false, true)
	if err != nil {
		e.t.Fatal(err)
	}
	defer st.Close()
	sb, err := ondisk.ReadSuperblock(ctx, st)
	if err != nil {
		e.t.Fatalf("superblock of %s: %v", path, err)
	}
	return sb
}

// state reads the metadata of a closed pool.
func (e *env) state() extentmap.State {
	e.t.Helper()
	db, err := extentmap.Open(e.opt.Metadata, extentmap.Options{ReadOnly: true})
	if err != nil {
		e.t.Fatal(err)
	}
	defer db.Close()
	return db.State()
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

// tierOf returns the name of the tier that holds an extent, "" if it is unmapped.
func (e *env) tierOf(name string, off int64) string {
	e.t.Helper()
	pl, err := e.Pool.Locate(name, off)
	if err != nil {
		e.t.Fatal(err)
	}
	return pl.Tier
}

func path(tier, backing int) string { return fmt.Sprintf("/t%d/b%d", tier, backing) }

func yield() { runtime.Gosched() }

// failing opens stores as inner does; from the start, the store at p fails in ops.
func failing(inner tiering.OpenStore, p string, ops faultstore.Op) tiering.OpenStore {
	return func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
		st, err := inner(ctx, spec, create, readOnly)
		if err != nil || spec.Path != p {
			return st, err
		}
		fs := faultstore.New(st, 1)
		fs.Inject(faultstore.Fault{Ops: ops, Err: syscall.EIO})
		return fs, nil
	}
}
