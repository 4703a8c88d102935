package tiering_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tierd/test/model"
	"tierd/tiering"
)

// recording is a volume being recorded by a goroutine.
type recording struct {
	t      *testing.T
	cancel context.CancelFunc
	ended  chan error
	calls  atomic.Int64
	err    atomic.Pointer[error] // what the sink returns from now on

	got     []tiering.Access // to be read after stop
	dropped uint64
}

// record begins to record a volume and returns when every request is recorded.
func (e *env) record(name string) *recording {
	e.t.Helper()
	c, cancel := context.WithCancel(ctx)
	r := &recording{t: e.t, cancel: cancel, ended: make(chan error, 1)}
	v := e.volume(name)
	go func() {
		r.ended <- v.Record(c, time.Now(), time.Millisecond, func(a []tiering.Access, dropped uint64) error {
			r.got, r.dropped = append(r.got, a...), dropped
			r.calls.Add(1)
			if err := r.err.Load(); err != nil {
				return *err
			}
			return nil
		})
	}()
	eventually(e.t, "the recording begins", func() bool { return r.calls.Load() > 0 })
	return r
}

// stop ends the recording by its context.
func (r *recording) stop() []tiering.Access {
	r.t.Helper()
	r.cancel()
	if err := <-r.ended; !errors.Is(err, context.Canceled) {
		r.t.Fatalf("Record = %v, want the end of its context", err)
	}
	return r.got
}

// issued is a request without its time.
type issued struct {
	op     tiering.Op
	off, n int64
}

func withoutTime(all []tiering.Access) []issued {
	var out []issued
	for _, a := range all {
		out = append(out, issued{tiering.Op(a.Op), a.Off, a.Len})
	}
	return out
}

// Every kind of request is recorded once, as it was asked; FUA is no flush, and what
// a volume refuses or the pool does by itself is not there.
func TestRecordingHasWhatClientsAsked(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{12}, {12}, {12}}}, nil)
	e.write("v0", 0, ext, 1) // before the recording
	r := e.record("v0")
	v := e.volume("v0")
	p := make([]byte, 2*block)
	p[0] = 1
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(v.WriteAt(ctx, p, block, false))
	must(v.WriteAt(ctx, p, ext-block, true)) // two extents; staged, so that FUA takes a round
	if !v.TryRead(p, block) {
		must(v.ReadAt(ctx, p, block))
	}
	if !v.TryRead(p, ext-block) {
		must(v.ReadAt(ctx, p, ext-block))
	}
	must(v.ReadAt(ctx, p, 7*ext)) // unmapped
	if !v.TryRead(p, 7*ext) {
		t.Error("a read of an unmapped extent had to wait")
	}
	must(v.Flush(ctx))
	if !e.Relocate("v0", 0, 2) {
		t.Error("the extent was not moved")
	}
	must(v.WriteZeroes(ctx, 3*block, block, true, false))
	must(v.BeginWriteZeroes(ext, ext, false, true).Run(ctx, nil, false))
	wantErr(t, "fast zeroes that would have to be written", v.BeginWriteZeroes(0, block, true, true).Run(ctx, nil, false), tiering.ErrNotSupported)
	must(v.Trim(ctx, 0, ext, true))
	wantErr(t, "write behind the end", v.WriteAt(ctx, p, 8*ext-block, false), tiering.ErrOutOfRange)
	if v.TryRead(p, 8*ext-block) {
		t.Error("read behind the end")
	}
	must(v.WriteAt(ctx, nil, 0, false))
	e.write("v1", 0, block, 1) // another volume

	got := withoutTime(r.stop())
	want := []issued{
		{tiering.OpWrite, block, 2 * block}, {tiering.OpWrite, ext - block, 2 * block},
		{tiering.OpRead, block, 2 * block}, {tiering.OpRead, ext - block, 2 * block},
		{tiering.OpRead, 7 * ext, 2 * block}, {tiering.OpRead, 7 * ext, 2 * block},
		{tiering.OpFlush, 0, 0},
		{tiering.OpZero, 3 * block, block}, {tiering.OpZero, ext, ext},
		{tiering.OpTrim, 0, ext},
	}
	if !slices.Equal(got, want) {
		t.Errorf("recorded\n%v, want\n%v", got, want)
	}
	for i, a := range r.got {
		if a.At < 0 || i > 0 && a.At < r.got[i-1].At {
			t.Errorf("request %d came at %v, the one before at %v", i, a.At, r.got[max(i-1, 0)].At)
		}
	}
	e.write("v0", 0, block, 1)
	if n := len(r.got); n != len(want) {
		t.Errorf("%d requests, although the recording has ended", n)
	}
	e.Close()
}

// Under load from many goroutines, and while extents move, the requests of each come
// in its order, whole and once.
func TestRecordingUnderLoad(t *testing.T) {
	const workers, each = 8, 400
	e := newEnv(t, model.Config{Slots: [][]int{{12}, {12}, {12}}, Volumes: []int64{workers * ext, workers * ext}}, nil)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r0, r1 := e.record("v0"), e.record("v1")
	want := make([][]issued, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(w)))
			v := e.volume("v0")
			if w%2 == 1 {
				v = e.volume("v1")
			}
			p := make([]byte, 4*block)
			p[0] = byte(w)
			for range each {
				x := issued{tiering.Op(rnd.IntN(4)), int64(w)*ext + rnd.Int64N(8)*block, (1 + rnd.Int64N(4)) * block}
				var err error
				switch x.op {
				case tiering.OpRead:
					if !v.TryRead(p[:x.n], x.off) {
						err = v.ReadAt(ctx, p[:x.n], x.off)
					}
				case tiering.OpWrite:
					err = v.WriteAt(ctx, p[:x.n], x.off, rnd.IntN(20) == 0)
				case tiering.OpTrim:
					err = v.Trim(ctx, x.off, x.n, false)
				default:
					err = v.WriteZeroes(ctx, x.off, x.n, rnd.IntN(2) == 0, false)
				}
				if err != nil {
					t.Errorf("%v: %v", x, err)
					return
				}
				want[w] = append(want[w], x)
			}
		})
	}
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		for i := range 60 {
			e.Pool.MoveExtent(ctx, "v0", int64(i%workers)*ext, i%3)
		}
	}()
	wg.Wait()
	<-moved
	all := append(slices.Clone(r0.stop()), r1.stop()...)
	if d := r0.dropped + r1.dropped; d != 0 {
		t.Fatalf("%d requests were dropped", d)
	}
	got := make([][]issued, workers)
	for _, x := range withoutTime(all) {
		got[x.off/ext] = append(got[x.off/ext], x)
	}
	for w := range workers {
		if !slices.Equal(got[w], want[w]) {
			t.Errorf("goroutine %d: %d requests recorded, of %d issued, or in another order", w, len(got[w]), len(want[w]))
		}
	}
	e.Close()
	e.Check()
}

// What ends a recording, and that another can begin then.
func TestEndsOfARecording(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	r := e.record("v0")
	err := e.volume("v0").Record(ctx, time.Now(), time.Millisecond, func([]tiering.Access, uint64) error { return nil })
	wantErr(t, "a second recording", err, tiering.ErrBusy)
	r.stop()

	r = e.record("v0")
	e.write("v0", 0, block, 1)
	full := errors.New("disk is full")
	r.err.Store(&full)
	if err := <-r.ended; err != full {
		t.Errorf("Record = %v, want the error of the sink", err)
	}
	if len(r.got) != 1 {
		t.Errorf("%d requests, want the one before", len(r.got))
	}

	r = e.record("v0")
	e.write("v0", 0, block, 1)
	if err := e.Pool.DeleteVolume(ctx, "v0", false, false); err != nil {
		t.Fatal(err)
	}
	err = <-r.ended
	wantErr(t, "a recording of a volume that is deleted", err, tiering.ErrClosed)
	if len(r.got) != 1 {
		t.Errorf("%d requests, want the one before the deletion", len(r.got))
	}

	r = e.record("v1")
	e.write("v1", 0, block, 1)
	e.Close()
	wantErr(t, "a recording when the pool closes", <-r.ended, tiering.ErrClosed)
	if len(r.got) != 1 {
		t.Errorf("%d requests, want the one before the stop", len(r.got))
	}
}
