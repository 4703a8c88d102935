package tiering_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering/extentmap"
)

// crashRun is a random sequence of operations some of which fail, because a commit
// or a sync does, with the shadow of what may and what must be there afterwards.
type crashRun struct {
	e       *env
	rnd     *rand.Rand
	shadows map[string]*model.Shadow
	log     []string
	failed  int // operations
}

func newCrashRun(t *testing.T, seed uint64) *crashRun {
	volumes := []int64{5*ext + block, 6 * ext}
	r := &crashRun{
		e:   newEnv(t, model.Config{Slots: [][]int{{5}, {3, 3}, {6}}, Volumes: volumes}, nil),
		rnd: rand.New(rand.NewPCG(seed, 11)), shadows: make(map[string]*model.Shadow),
	}
	for i, n := range volumes {
		r.shadows[fmt.Sprintf("v%d", i)] = model.NewShadow(n, ext)
	}
	return r
}

// step makes one operation. One that fails may have been carried out, wholly or in
// part, and nothing of it is durable for sure.
func (r *crashRun) step() {
	name := fmt.Sprintf("v%d", r.rnd.IntN(2))
	s, v := r.shadows[name], r.e.volume(name)
	off := r.rnd.Int64N(s.Size()/block) * block
	n := min(block*(1+r.rnd.Int64N(20)), s.Size()-off)
	fua := r.rnd.IntN(5) == 0
	var err error
	what := ""
	switch k := r.rnd.IntN(10); {
	case k < 4:
		p := bytes.Repeat([]byte{byte(1 + r.rnd.IntN(255))}, int(n))
		what = fmt.Sprintf("write %d+%d fua %v", off, n, fua)
		if err = v.WriteAt(ctx, p, off, fua); err == nil {
			s.Write(p, off, fua)
		}
	case k < 5:
		off = off / ext * ext
		n = min(ext*(1+r.rnd.Int64N(2)), s.Size()-off)
		what = fmt.Sprintf("trim %d+%d fua %v", off, n, fua)
		if err = v.Trim(ctx, off, n, fua); err == nil {
			s.Zero(off, n, fua)
		}
	case k < 6:
		// Zeroes over a trim, or over what was never written, or over data.
		what = fmt.Sprintf("zero %d+%d fua %v", off, n, fua)
		if err = v.WriteAt(ctx, make([]byte, n), off, fua); err == nil {
			s.Zero(off, n, fua)
		}
	case k < 8:
		what = "flush"
		if err = v.Flush(ctx); err == nil {
			s.Flushed()
		}
		n = 0
	default:
		to := r.rnd.IntN(3)
		what = fmt.Sprintf("move %d to %d", off, to)
		var moved bool
		if moved, err = r.e.Pool.MoveExtent(ctx, name, off, to); moved && err == nil {
			s.Flushed()
		}
		err, n = nil, 0
	}
	r.log = append(r.log, fmt.Sprintf("%s %s: %v", name, what, err))
	if err != nil {
		r.failed++
		now := make([]byte, n) // what it has changed, before it failed
		if err := v.ReadAt(ctx, now, off); err != nil {
			r.e.t.Fatal(err)
		}
		s.Write(now, off, false)
	}
}

// lost compares all volumes after a power loss.
func (r *crashRun) lost(what string) {
	r.e.t.Helper()
	r.compare(what, (*model.Shadow).Lost)
}

// kept compares all volumes after a kill, which loses nothing that was answered.
func (r *crashRun) kept(what string) {
	r.e.t.Helper()
	r.compare(what, func(s *model.Shadow, p []byte) error { return s.Check(p, 0) })
}

func (r *crashRun) compare(what string, with func(*model.Shadow, []byte) error) {
	r.e.t.Helper()
	for name, s := range r.shadows {
		p := make([]byte, s.Size())
		err := r.e.volume(name).ReadAt(ctx, p, 0)
		if err == nil {
			err = with(s, p)
		}
		if err != nil {
			for _, l := range r.log {
				r.e.t.Log(l)
			}
			r.e.t.Fatalf("%s: %s: %v", what, name, err)
		}
	}
}

// TestCutAfterFailure loses power at some point after a commit or a sync has failed:
// every change that was answered as durable is there, and nothing is anywhere that
// was not written there. If the daemon is killed before, every change answered is
// there.
func TestCutAfterFailure(t *testing.T) {
	base := model.Seed(t)
	failed := 0
	for i := range uint64(100) {
		seed := base + i
		r := newCrashRun(t, seed)
		what := ""
		switch n := 1 + r.rnd.IntN(10); r.rnd.IntN(3) {
		case 0:
			what = fmt.Sprintf("commit %d fails at its start", n)
			r.e.failNth(extentmap.FaultBefore, n)
		case 1:
			what = fmt.Sprintf("commit %d fails at its end", n)
			r.e.failNth(extentmap.FaultAfter, n)
		default:
			p := path(r.rnd.IntN(3), 0)
			what = fmt.Sprintf("sync %d of %s fails", n, p)
			r.e.stores[p].Inject(faultstore.Fault{Ops: faultstore.Sync, Nth: n, Times: 1, Err: syscall.EIO})
		}
		what = fmt.Sprintf("seed %d: %s", seed, what)
		for range 30 {
			r.step()
		}
		r.e.fault.Store(nil)
		failed += r.failed
		if r.rnd.IntN(2) == 0 {
			r.e.Kill()
			r.e.Open()
			r.kept(what + ", kill")
		}
		r.e.Cut(seed, []float64{0, 0.5, 1}[r.rnd.IntN(3)])
		r.e.Open()
		r.lost(what)
		for range 10 {
			r.step()
		}
		r.e.Cut(seed+1, 0.5)
		r.e.Open()
		r.lost(what + ", second cut")
		r.e.Kill()
	}
	if failed == 0 {
		t.Error("no operation failed: the run shows nothing")
	}
}
