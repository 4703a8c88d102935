package model

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"tierd/tiering"
)

// Seed returns the seed of a run and prints it: a new one, or the one in
// MODEL_SEED.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("MODEL_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("MODEL_SEED: %v", err)
		}
	}
	t.Logf("MODEL_SEED=%d repeats this run", seed)
	return seed
}

// Run is one random sequence of operations on a World.
type Run struct {
	t       testing.TB
	w       *World
	rnd     *rand.Rand
	cuts    bool // power losses too, not only kills
	shadows map[string]*Shadow
	next    int // number of the next volume
	log     []string
}

// NewRun prepares a random sequence on a new World.
func NewRun(t testing.TB, cfg Config, seed uint64, cuts bool) *Run {
	r := &Run{t: t, rnd: rand.New(rand.NewPCG(seed, 7)), cuts: cuts, shadows: make(map[string]*Shadow)}
	r.w = NewWorld(t, cfg, nil)
	for i, n := range cfg.Volumes {
		r.shadows[fmt.Sprintf("v%d", i)] = NewShadow(n, cfg.ExtentSize)
	}
	r.next = len(cfg.Volumes)
	return r
}

func (r *Run) fail(err error) {
	r.t.Helper()
	for _, l := range r.log[max(0, len(r.log)-60):] {
		r.t.Log(l)
	}
	r.t.Fatal(err)
}

func (r *Run) note(format string, args ...any) {
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

// pick returns a random volume with its shadow.
func (r *Run) pick() (string, *tiering.Volume, *Shadow) {
	names := make([]string, 0, len(r.shadows))
	for n := range r.shadows {
		names = append(names, n)
	}
	slices.Sort(names)
	name := names[r.rnd.IntN(len(names))]
	v, err := r.w.Pool.Volume(name)
	if err != nil {
		r.fail(err)
	}
	return name, v, r.shadows[name]
}

// span returns a random range of whole sectors: small, around the edge of an
// extent, or some extents long.
func (r *Run) span(s *Shadow) (off, n int64) {
	size, ext := s.Size(), s.ExtentSize
	off = r.rnd.Int64N(size/sector) * sector
	switch r.rnd.IntN(4) {
	case 0: // whole extents
		off = off / ext * ext
		n = ext * (1 + r.rnd.Int64N(3))
	case 1: // over an edge
		off = max(off/ext*ext-sector*(1+r.rnd.Int64N(16)), 0)
		n = sector * (1 + r.rnd.Int64N(64))
	default:
		n = sector * (1 + r.rnd.Int64N(24))
	}
	return off, min(n, size-off)
}

// content returns n random bytes; now and then all zero.
func (r *Run) content(n int64) []byte {
	p := make([]byte, n)
	if r.rnd.IntN(8) == 0 {
		return p
	}
	fill := byte(1 + r.rnd.IntN(255))
	for i := range p {
		p[i] = fill
		if i%sector == 0 {
			fill = byte(1 + r.rnd.IntN(255))
			p[i] = byte(r.rnd.IntN(256))
		}
	}
	return p
}

// Steps makes n random operations, each checked, and then compares everything.
func (r *Run) Steps(n int) {
	for range n {
		r.step()
	}
	r.CheckAll()
}

func (r *Run) step() {
	ctx := context.Background()
	switch k := r.rnd.IntN(100); {
	case k < 32:
		r.write(ctx)
	case k < 50:
		r.read(ctx)
	case k < 58:
		name, v, s := r.pick()
		off, n := r.span(s)
		fua := r.rnd.IntN(6) == 0
		r.note("trim %s %d+%d fua %v", name, off, n, fua)
		if err := v.Trim(ctx, off, n, fua); err != nil {
			r.fail(fmt.Errorf("trim: %w", err))
		}
		s.Trimmed(off, n)
		if whole := s.whole(off, n); whole > 0 {
			if got := v.Span(off, whole); !got.Hole || got.Len != whole {
				r.fail(fmt.Errorf("%d bytes at %d were trimmed: the span is %v", whole, off, got))
			}
		}
	case k < 66:
		r.zero(ctx)
	case k < 73:
		name, v, s := r.pick()
		r.note("flush %s", name)
		if err := v.Flush(ctx); err != nil {
			r.fail(fmt.Errorf("flush: %w", err))
		}
		s.Flushed()
	case k < 76:
		name, v, s := r.pick()
		off, n := r.span(s)
		r.note("promote %s %d+%d", name, off, n)
		if err := v.Promote(ctx, off, n); err != nil {
			r.fail(fmt.Errorf("promote: %w", err))
		}
	case k < 85:
		name, _, s := r.pick()
		off, _ := r.span(s)
		to := r.rnd.IntN(len(r.w.cfg.Slots))
		done := r.w.Relocate(name, off, to)
		r.note("relocate %s %d to tier %d: %v", name, off, to, done)
	case k < 86:
		r.grow(ctx)
	case k < 89:
		r.create(ctx)
	case k < 90:
		r.delete(ctx)
	case k < 93:
		did, err := r.w.Refit(ctx, r.rnd)
		r.note("%s", did.Done)
		if err != nil {
			r.fail(err)
		}
	case k < 95:
		r.note("close, open")
		r.closeAndCheck()
		for _, s := range r.shadows {
			s.Flushed()
		}
		r.w.Open()
	case k < 98 || !r.cuts:
		r.note("kill, open")
		r.w.Kill()
		r.w.Open()
	default:
		r.cut()
	}
}

func (r *Run) write(ctx context.Context) {
	name, v, s := r.pick()
	off, n := r.span(s)
	p := r.content(n)
	fua := r.rnd.IntN(5) == 0
	r.note("write %s %d+%d fua %v zero %v", name, off, n, fua, allZero(p))
	err := v.WriteAt(ctx, p, off, fua)
	if errors.Is(err, tiering.ErrNoSpace) {
		r.noSpace(v, s, p, off)
		return
	}
	if err != nil {
		r.fail(fmt.Errorf("write: %w", err))
	}
	s.Write(p, off, fua)
}

// noSpace takes over what a write that ran out of space left: whole extents of it
// are either written or as they were.
func (r *Run) noSpace(v *tiering.Volume, s *Shadow, p []byte, off int64) {
	r.note("  no space")
	now := make([]byte, len(p))
	if err := v.ReadAt(context.Background(), now, off); err != nil {
		r.fail(err)
	}
	for done := int64(0); done < int64(len(p)); {
		n := min(s.ExtentSize-(off+done)%s.ExtentSize, int64(len(p))-done)
		if got := now[done : done+n]; string(got) == string(p[done:done+n]) {
			s.Write(got, off+done, false)
		} else if err := s.Check(got, off+done); err != nil {
			r.fail(fmt.Errorf("after a write without space: %w", err))
		}
		done += n
	}
}

func (r *Run) read(ctx context.Context) {
	name, v, s := r.pick()
	off, n := r.span(s)
	p := make([]byte, n)
	r.note("read %s %d+%d", name, off, n)
	if r.rnd.IntN(2) == 0 || !v.TryRead(p, off) {
		if err := v.ReadAt(ctx, p, off); err != nil {
			r.fail(fmt.Errorf("read: %w", err))
		}
	}
	if err := s.Check(p, off); err != nil {
		r.fail(fmt.Errorf("read %s: %w", name, err))
	}
	r.checkSpans(v, p, off)
}

// checkSpans compares the spans of a range with what was read of it.
func (r *Run) checkSpans(v *tiering.Volume, p []byte, off int64) {
	for len(p) > 0 {
		s := v.Span(off, int64(len(p)))
		switch {
		case s.Len <= 0 || s.Len > int64(len(p)) || s.Hole != (s.Tier == 0):
			r.fail(fmt.Errorf("span at %d, of up to %d bytes: %v", off, len(p), s))
		case s.Hole && !allZero(p[:s.Len]):
			r.fail(fmt.Errorf("the hole at %d, of %d bytes, does not read as zeroes", off, s.Len))
		}
		p, off = p[s.Len:], off+s.Len
	}
}

func (r *Run) zero(ctx context.Context) {
	name, v, s := r.pick()
	off, n := r.span(s)
	noHole, fast, fua := r.rnd.IntN(3) == 0, r.rnd.IntN(3) == 0, r.rnd.IntN(6) == 0
	r.note("zero %s %d+%d no hole %v fast %v fua %v", name, off, n, noHole, fast, fua)
	err := v.BeginWriteZeroes(off, n, noHole, fast).Run(ctx, nil, fua)
	if fast && errors.Is(err, tiering.ErrNotSupported) {
		if err := s.Check(r.all(name), 0); err != nil {
			r.fail(fmt.Errorf("after zeroes that were not fast: %w", err))
		}
		return
	}
	if fast && noHole && err == nil {
		r.fail(errors.New("zeroes that keep their space were fast"))
	}
	if errors.Is(err, tiering.ErrNoSpace) {
		r.noSpace(v, s, make([]byte, n), off)
		return
	}
	if err != nil {
		r.fail(fmt.Errorf("write zeroes: %w", err))
	}
	s.Zero(off, n, fua)
}

func (r *Run) grow(ctx context.Context) {
	name, _, s := r.pick()
	size := s.Size() + 4096*(1+r.rnd.Int64N(32))
	r.note("grow %s to %d", name, size)
	if err := r.w.Pool.GrowVolume(ctx, name, size, false); err != nil {
		r.fail(fmt.Errorf("grow: %w", err))
	}
	s.Grow(size)
}

func (r *Run) create(ctx context.Context) {
	if len(r.shadows) >= 4 {
		return
	}
	name := fmt.Sprintf("v%d", r.next)
	r.next++
	size := 4096 * (1 + r.rnd.Int64N(128))
	policy := []string{"auto", "highest", "lowest", "t1"}[r.rnd.IntN(4)]
	r.note("create %s with %d, %s", name, size, policy)
	if err := r.w.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: name, Size: size, Policy: policy}, false); err != nil {
		r.fail(fmt.Errorf("create: %w", err))
	}
	r.shadows[name] = NewShadow(size, r.w.cfg.ExtentSize)
}

func (r *Run) delete(ctx context.Context) {
	if len(r.shadows) < 2 {
		return
	}
	name, _, _ := r.pick()
	r.note("delete %s", name)
	if err := r.w.Pool.DeleteVolume(ctx, name, false, false); err != nil {
		r.fail(fmt.Errorf("delete: %w", err))
	}
	delete(r.shadows, name)
}

// closeAndCheck stops the pool cleanly. Its metadata have to be in order, and to
// come back from the backings alone.
func (r *Run) closeAndCheck() {
	r.w.AwaitHealed() // before that the backings may tell of rounds that were never committed
	r.w.Close()
	r.w.Check()
	if r.rnd.IntN(2) == 0 {
		if err := r.w.CheckRebuild(); err != nil {
			r.fail(err)
		}
	}
}

func (r *Run) cut() {
	keep := []float64{0, 0.5, 1}[r.rnd.IntN(3)]
	seed := r.rnd.Uint64()
	lose := r.rnd.IntN(2) == 0
	r.note("cut keep %v seed %d, metadata lost %v, open", keep, seed, lose)
	if lose {
		r.w.AwaitHealed()
	}
	r.w.Cut(seed, keep)
	if lose {
		r.w.LoseMetadata()
	}
	r.w.Open()
	for name, s := range r.shadows {
		if err := s.Lost(r.all(name)); err != nil {
			r.fail(fmt.Errorf("volume %s: %w", name, err))
		}
	}
}

// all reads a whole volume.
func (r *Run) all(name string) []byte {
	v, err := r.w.Pool.Volume(name)
	if err != nil {
		r.fail(err)
	}
	p := make([]byte, v.Size())
	if err := v.ReadAt(context.Background(), p, 0); err != nil {
		r.fail(fmt.Errorf("read volume %s: %w", name, err))
	}
	return p
}

// CheckAll compares all volumes, before and after a clean restart, and checks the
// pool in between.
func (r *Run) CheckAll() {
	for range 2 {
		for name, s := range r.shadows {
			if err := s.Check(r.all(name), 0); err != nil {
				r.fail(fmt.Errorf("volume %s at the end: %w", name, err))
			}
		}
		r.note("close, open")
		r.closeAndCheck()
		r.w.Open()
	}
	r.w.Close()
}
