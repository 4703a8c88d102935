package crash

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tierd/pkg/backing"
	"tierd/pkg/backing/crashstore"
	"tierd/test/crash/recordfs"
	"tierd/tiering"
)

var ctx = context.Background()

// patience is how long something may take that happens by itself.
const patience = 2 * time.Minute

// image is the media of a machine: what its disks hold, and after a kill what its
// page cache does.
type image struct {
	files *recordfs.Journal
	disks *crashstore.Recorder
	at    map[string]disk
	boot  string // of the machine that wrote them
}

// disk says which store of the recorder lies at a path, and since when.
type disk struct {
	index int
	since int64
}

// cut returns what is left after the power fails right after instant n.
func (im *image) cut(n int64, c crashstore.Cut) *image {
	return im.kept(n, im.files.CrashAt(n, c), im.disks.CrashAt(n, c), newBoot())
}

// kill returns what is left after the process dies right after instant n.
func (im *image) kill(n int64) *image {
	return im.kept(n, im.files.KillAt(n), im.disks.KillAt(n), im.boot)
}

func (im *image) kept(n int64, files *recordfs.Journal, disks *crashstore.Recorder, boot string) *image {
	at := maps.Clone(im.at)
	maps.DeleteFunc(at, func(_ string, d disk) bool { return d.since > n })
	return &image{files: files, disks: disks, at: at, boot: boot}
}

// unsyncedAt returns how many changes a cut at instant n may take back.
func (im *image) unsyncedAt(n int64) int { return im.files.UnsyncedAt(n) + im.disks.UnsyncedAt(n) }

// copy returns an image of its own, for one of several who go on with it.
func (im *image) copy() *image {
	return im.kept(math.MaxInt64, im.files, im.disks.KillAt(im.disks.Now()), im.boot)
}

var boots, machines atomic.Int64

func newBoot() string { return fmt.Sprintf("boot-%d", boots.Add(1)) }

// machine is a running computer: media, and perhaps an open pool.
type machine struct {
	fs     *recordfs.FS
	folder string
	shape  *shape
	boot   string

	mu    sync.Mutex
	disks *crashstore.Recorder
	at    map[string]disk

	pool *tiering.Pool
	hist *history
	logs *logBuffer
}

// start makes a machine with the media of an image, which must not be used again.
func start(fsys *recordfs.FS, sh *shape, im *image, h *history) (*machine, error) {
	m := &machine{
		fs: fsys, folder: fmt.Sprintf("m%d", machines.Add(1)), shape: sh, boot: im.boot,
		disks: im.disks, at: maps.Clone(im.at), hist: h, logs: new(logBuffer),
	}
	return m, fsys.Load(m.folder, im.files)
}

// blank is the image of new disks.
func blank(fsys *recordfs.FS) *image {
	disks := crashstore.NewRecorderOn(fsys.Next)
	// Some calls take longer than others, so that much can come between.
	disks.Pause = func() {
		if rand.IntN(4) == 0 {
			time.Sleep(time.Duration(rand.IntN(600)) * time.Microsecond)
		} else {
			runtime.Gosched()
		}
	}
	return &image{files: recordfs.Of(nil), disks: disks, at: make(map[string]disk), boot: newBoot()}
}

// off kills what runs and forgets the machine.
func (m *machine) off() error {
	m.killPool()
	return m.fs.Drop(m.folder)
}

func (m *machine) killPool() {
	if m.pool != nil {
		m.pool.Kill()
		m.pool = nil
	}
}

// media returns the image of the machine's media. The pool must be down.
func (m *machine) media() (*image, error) {
	j, err := m.fs.Journal(m.folder)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return &image{files: j, disks: m.disks, at: maps.Clone(m.at), boot: m.boot}, nil
}

func (m *machine) metadata() string { return filepath.Join(m.fs.Path(m.folder), "pool.db") }

func (m *machine) openStore(_ context.Context, spec tiering.BackingSpec, create, _ bool) (backing.Store, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.at[spec.Path]
	switch {
	case ok && create:
		return nil, &fs.PathError{Op: "create", Path: spec.Path, Err: fs.ErrExist}
	case ok:
		return m.disks.Stores()[d.index].Reopen(), nil
	case !create:
		return nil, &fs.PathError{Op: "open", Path: spec.Path, Err: fs.ErrNotExist}
	}
	m.at[spec.Path] = disk{len(m.disks.Stores()), m.fs.Next()}
	return m.disks.NewStore(spec.Size), nil
}

func (m *machine) options() tiering.Options {
	o := tiering.Options{
		Metadata: m.metadata(), OpenStore: m.openStore, BootID: m.boot,
		RoundInterval: time.Hour,
		Relocation:    tiering.RelocationOptions{Cycle: time.Hour, Workers: 1, Headroom: 0.0001},
		Logger:        slog.New(slog.NewTextHandler(m.logs, &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(m.at)) {
		o.Backings = append(o.Backings, tiering.BackingSpec{Path: path})
	}
	return o
}

// open opens the pool.
func (m *machine) open() error {
	p, err := tiering.Open(ctx, m.options())
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	m.pool = p
	return nil
}

// close stops the pool cleanly.
func (m *machine) close() error {
	p := m.pool
	m.pool = nil
	if err := p.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// settled waits until the slot tables are in line and no slot is on its way.
func (m *machine) settled() error {
	return m.await("slot tables in line and slots clean", func() bool {
		if m.pool.Info().Healed < 1 {
			return false
		}
		for _, b := range m.pool.Backings() {
			// One that is being emptied has no use for clean slots.
			if c := b.Slots; c.Free+c.Cleaning != 0 && !b.Draining {
				return false
			}
		}
		return true
	})
}

func (m *machine) await(what string, cond func() bool) error {
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("waited too long for %s", what)
		}
	}
	return nil
}

// check runs the offline check and returns an error that lists the damage.
func (m *machine) check() error {
	r, err := tiering.Check(ctx, m.options())
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	var errs []error
	for _, f := range r.Findings {
		if f.Severity == tiering.Damage {
			errs = append(errs, fmt.Errorf("check: %s: %s", f.Where, f.Text))
		}
	}
	return errors.Join(errs...)
}

// read returns all of a volume, nil if there is none of the name. Of a backing that
// is in the pool it returns no bytes.
func (m *machine) read(name string) ([]byte, error) {
	if name[0] == '/' {
		for _, b := range m.pool.Backings() {
			if b.Path == name {
				return []byte{}, nil
			}
		}
		return nil, nil
	}
	v, err := m.pool.Volume(name)
	if errors.Is(err, tiering.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p := make([]byte, v.Size())
	if err := v.ReadAt(ctx, p, 0); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return p, nil
}

// logBuffer keeps what the pool logs.
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
