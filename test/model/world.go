package model

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"tierd/pkg/backing"
	"tierd/pkg/backing/crashstore"
	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/ondisk"
	"tierd/tiering/plan"
)

// Config is the shape of a World.
type Config struct {
	ExtentSize int64
	// Slots is how many slots each backing of each tier has: one inner list a tier.
	Slots [][]int
	// Volumes are the sizes of the first volumes, in bytes: v0, v1, ...
	Volumes []int64
}

// backingSize returns the size of a backing with just n slots.
func backingSize(t testing.TB, n int, extentSize int64) int64 {
	t.Helper()
	size, err := extent.NewSize(extentSize)
	if err != nil {
		t.Fatal(err)
	}
	for bytes := int64(8 << 20); ; bytes += min(extentSize, 64<<10) {
		if l, err := ondisk.NewLayout(bytes, size); err == nil && l.Slots >= uint32(n) {
			return bytes
		}
	}
}

// World is a pool in memory that outlives its opens.
type World struct {
	t     testing.TB
	cfg   Config
	dir   string
	rec   *crashstore.Recorder
	paths map[string]int // path to index in rec
	boot  int
	opts  func(*tiering.Options)
	wrap  func(path string, s backing.Store) backing.Store // each store when it is opened; nil: as it is

	// attached counts how often the devices of the running boot were attached anew.
	attached int
	instants *instants

	Pool *tiering.Pool
}

// NewWorld creates a pool and opens it. opts, if not nil, changes the options of
// each open.
func NewWorld(t testing.TB, cfg Config, opts func(*tiering.Options)) *World {
	t.Helper()
	w := &World{t: t, cfg: cfg, dir: metadataDir(t), paths: make(map[string]int), opts: opts, instants: new(instants)}
	w.rec = crashstore.NewRecorderOn(w.instants.event)
	o := tiering.CreateOptions{
		Metadata: w.metadata(), ExtentSize: cfg.ExtentSize, OpenStore: w.openStore,
		LogBytes: 64 << 10, // quick to make, and full now and then
	}
	for i, backings := range cfg.Slots {
		tier := tiering.TierSpec{Name: fmt.Sprintf("t%d", i), Media: backing.SSD}
		for j, n := range backings {
			tier.Backings = append(tier.Backings, tiering.BackingSpec{
				Path: fmt.Sprintf("/t%d/b%d", i, j), Size: backingSize(t, n, cfg.ExtentSize),
			})
		}
		o.Tiers = append(o.Tiers, tier)
	}
	for i, n := range cfg.Volumes {
		o.Volumes = append(o.Volumes, tiering.VolumeSpec{Name: fmt.Sprintf("v%d", i), Size: n})
	}
	if _, err := tiering.Create(context.Background(), o); err != nil {
		t.Fatalf("create pool: %v", err)
	}
	w.Open()
	t.Cleanup(func() {
		if w.Pool != nil {
			w.Pool.Kill()
		}
	})
	return w
}

// metadataDir returns a folder for the metadata; in memory where there is one,
// since thousands of pools are made.
func metadataDir(t testing.TB) string {
	if _, err := os.Stat("/dev/shm"); err == nil {
		dir, err := os.MkdirTemp("/dev/shm", "tierd-model-")
		if err == nil {
			t.Cleanup(func() { os.RemoveAll(dir) })
			return dir
		}
	}
	return t.TempDir()
}

// The files in the folder of a World.
const (
	metadataFile = "pool.db"
	logFile      = "pool.db.log"
)

func (w *World) metadata() string { return filepath.Join(w.dir, metadataFile) }

func (w *World) openStore(_ context.Context, spec tiering.BackingSpec, create, _ bool) (backing.Store, error) {
	i, ok := w.paths[spec.Path]
	switch {
	case ok:
		st := backing.Store(attachedStore{w.rec.Stores()[i].Reopen(), w.attached, i%2 == 1})
		if w.wrap != nil {
			st = w.wrap(spec.Path, st)
		}
		return st, nil
	case !create:
		return nil, &fs.PathError{Op: "open", Path: spec.Path, Err: fs.ErrNotExist}
	}
	w.paths[spec.Path] = len(w.rec.Stores())
	return attachedStore{w.rec.NewStore(spec.Size), w.attached, false}, nil
}

func (w *World) options() tiering.Options {
	o := tiering.Options{
		Metadata: w.metadata(), Backings: w.configured(), OpenStore: w.openStore, BootID: fmt.Sprintf("boot-%d", w.boot),
		Relocation: tiering.RelocationOptions{Workers: 1, Headroom: 0.0001},
	}
	if w.opts != nil {
		w.opts(&o)
	}
	o.Fault = w.instants.around(o.Fault)
	return o
}

// Open opens the pool.
func (w *World) Open() {
	w.t.Helper()
	p, err := tiering.Open(context.Background(), w.options())
	if err != nil {
		w.t.Fatalf("open pool: %v", err)
	}
	w.Pool = p
}

// Close stops the pool cleanly.
func (w *World) Close() {
	w.t.Helper()
	p := w.Pool
	w.Pool = nil
	if err := p.Close(); err != nil {
		w.t.Fatalf("close pool: %v", err)
	}
}

// Kill ends the pool as the death of the process does.
func (w *World) Kill() {
	w.Pool.Kill()
	w.Pool = nil
}

// Cut ends the pool as a power loss does: the next open is in another boot, and
// each unsynced sector is there or not.
func (w *World) Cut(seed uint64, keep float64) {
	w.Kill()
	w.boot++
	w.rec = w.rec.Crash(crashstore.Cut{Seed: int64(seed), Keep: keep})
}

// attachedStore is a device that was attached so many times.
type attachedStore struct {
	backing.Store
	times      int
	zeroWrites bool
}

// ZeroWrites makes some of the backings slow to zero.
func (s attachedStore) ZeroWrites() bool { return s.zeroWrites }

// Instance implements backing.Store.
func (s attachedStore) Instance() string { return fmt.Sprintf("%s#%d", s.Store.Instance(), s.times) }

// Reattach takes the devices away and attaches them again in the running boot: each
// unsynced sector is there or not, and the files of the metadata are as they were.
func (w *World) Reattach(seed uint64, keep float64) {
	w.Kill()
	w.attached++
	w.rec = w.rec.Crash(crashstore.Cut{Seed: int64(seed), Keep: keep})
}

// Forget drops the journal of the backings, which would otherwise grow.
func (w *World) Forget() { w.rec.Forget() }

// Check runs the offline check on the closed pool and fails on any damage.
func (w *World) Check() {
	w.t.Helper()
	o := w.options()
	r, err := tiering.Check(context.Background(), o)
	if err != nil {
		w.t.Fatalf("check: %v", err)
	}
	for _, f := range r.Findings {
		if f.Severity == tiering.Damage {
			w.t.Errorf("check: %s: %s", f.Where, f.Text)
		}
	}
}

// Relocate moves an extent to a tier if that can be done, and reports whether it
// was.
func (w *World) Relocate(volume string, off int64, to int) bool {
	w.t.Helper()
	moved, err := w.Pool.MoveExtent(context.Background(), volume, off, to)
	return moved && err == nil
}

// KeepMoving sets up a planner that always finds something to move.
func KeepMoving(p *plan.Policy) {
	p.Hysteresis, p.CostFactor, p.Residence, p.MinAge, p.Headroom = 0, 0, 0, 0, 0
}
