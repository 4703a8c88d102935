package tiering_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"tierd/pkg/clock"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/plan"
)

// oneTier is a pool of n slots on one backing, with volumes of as many extents.
func oneTier(t *testing.T, n int, change func(*tiering.Options)) *env {
	t.Helper()
	e := newEnv(t, model.Config{Slots: [][]int{{n}}, Volumes: []int64{int64(n+1) * ext, int64(n+1) * ext}}, change)
	e.settle()
	return e
}

// fill writes extents [from, to) of a volume and returns the first error.
func (e *env) fill(name string, from, to int64) error {
	e.t.Helper()
	for i := from; i < to; i++ {
		if err := e.volume(name).WriteAt(ctx, []byte{1}, i*ext, false); err != nil {
			return err
		}
	}
	return nil
}

func (e *env) setSpace(name string, s tiering.Space) {
	e.t.Helper()
	if err := e.Pool.SetSpace(ctx, name, s, false); err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) allocated(name string) (n int64) {
	e.t.Helper()
	for _, k := range e.volume(name).Info().Extents {
		n += k
	}
	return n
}

func TestSpaceSettings(t *testing.T) {
	e := oneTier(t, 8, nil)
	if err := e.fill("v1", 0, 3); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		s    tiering.Space
		want string // part of the error; "" if there is none
	}{
		{"nothing", tiering.Space{}, ""},
		{"all that is left", tiering.Space{Reservation: 5 * ext}, ""},
		{"more than is left", tiering.Space{Reservation: 6 * ext}, "neither allocated nor reserved"},
		{"a part of an extent counts", tiering.Space{Reservation: 5*ext + 1}, "neither allocated nor reserved"},
		{"more than its size", tiering.Space{Reservation: 10 * ext}, "more than the volume's size"},
		{"negative", tiering.Space{Reservation: -1}, "must not be negative"},
		{"negative quota", tiering.Space{Quota: -1}, "must not be negative"},
		{"quota below it", tiering.Space{Reservation: 2 * ext, Quota: ext}, "less than the reservation"},
		{"quota below an extent", tiering.Space{Quota: ext - 1}, "nothing could be written"},
		{"quota of an extent", tiering.Space{Quota: ext}, ""},
		{"wait", tiering.Space{OnFullWait: time.Minute}, ""},
		{"negative wait", tiering.Space{OnFullWait: -1}, "must be from 0"},
		{"endless wait", tiering.Space{OnFullWait: 25 * time.Hour}, "must be from 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := e.Pool.SetSpace(ctx, "v0", tt.s, true)
			if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, tiering.ErrInvalid) && !errors.Is(err, tiering.ErrBusy) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("SetSpace(%+v) = %v, want %q", tt.s, err, tt.want)
			}
		})
	}
	if got := e.volume("v0").Space(); got != (tiering.Space{}) {
		t.Errorf("dry runs left %+v", got)
	}

	// A new volume is held to the same, and settings outlive a restart.
	spec := tiering.VolumeSpec{Name: "v2", Size: 8 * ext, Space: tiering.Space{Reservation: 6 * ext}}
	wantErr(t, "create with too large a reservation", e.Pool.CreateVolume(ctx, spec, false), tiering.ErrBusy)
	spec.Space = tiering.Space{Reservation: 2 * ext, Quota: 4 * ext, OnFullWait: time.Second}
	if err := e.Pool.CreateVolume(ctx, spec, false); err != nil {
		t.Fatal(err)
	}
	e.Cut(1, 0)
	e.Open()
	if got := e.volume("v2").Space(); got != spec.Space {
		t.Errorf("after a restart the volume has %+v, want %+v", got, spec.Space)
	}
}

func TestReservation(t *testing.T) {
	e := oneTier(t, 8, nil)
	e.setSpace("v0", tiering.Space{Reservation: 3 * ext})
	if err := e.fill("v1", 0, 5); err != nil {
		t.Fatal(err)
	}
	err := e.fill("v1", 5, 6)
	wantErr(t, "a sixth extent of the other volume", err, tiering.ErrNoSpace)
	if !strings.Contains(err.Error(), "reserved for other volumes") {
		t.Errorf("the error does not say why: %v", err)
	}
	if err := e.fill("v0", 0, 3); err != nil {
		t.Errorf("an extent within the reservation: %v", err)
	}
	wantErr(t, "an extent beyond it on a full pool", e.fill("v0", 3, 4), tiering.ErrNoSpace)

	// What is trimmed is reserved again, and what is given up is everybody's.
	e.trim("v0", 0, 3*ext)
	e.settle()
	wantErr(t, "the other volume after a trim", e.fill("v1", 5, 6), tiering.ErrNoSpace)
	e.setSpace("v0", tiering.Space{Reservation: ext})
	if err := e.fill("v1", 5, 7); err != nil {
		t.Error(err)
	}
	wantErr(t, "the last one", e.fill("v1", 7, 8), tiering.ErrNoSpace)
	if err := e.Pool.DeleteVolume(ctx, "v0", false, false); err != nil {
		t.Fatal(err)
	}
	if err := e.fill("v1", 7, 8); err != nil {
		t.Errorf("after the deletion of who had reserved it: %v", err)
	}
}

func TestQuota(t *testing.T) {
	e := oneTier(t, 8, nil)
	e.setSpace("v0", tiering.Space{Quota: 3*ext + ext/2}) // whole extents count
	if err := e.fill("v0", 0, 3); err != nil {
		t.Fatal(err)
	}
	err := e.fill("v0", 3, 4)
	wantErr(t, "a fourth extent", err, tiering.ErrNoSpace)
	if !strings.Contains(err.Error(), "quota") {
		t.Errorf("the error does not say why: %v", err)
	}
	e.write("v0", 0, ext, 2) // overwrites are free
	// A write over several extents takes all or nothing.
	e.trim("v0", 2*ext, ext)
	wantErr(t, "a write that needs two more", e.volume("v0").WriteAt(ctx, bytes.Repeat([]byte{2}, 2*ext), 4*ext, false), tiering.ErrNoSpace)
	e.expect("v0", 4*ext, 2*ext, 0)
	if got := e.allocated("v0"); got != 2 {
		t.Errorf("%d extents are allocated, want 2", got)
	}
	if err := e.fill("v0", 2, 3); err != nil {
		t.Error(err)
	}
	e.setSpace("v0", tiering.Space{Quota: 2 * ext}) // what is there stays
	e.expect("v0", 2*ext, 1, 1)
	wantErr(t, "beyond a smaller quota", e.fill("v0", 3, 4), tiering.ErrNoSpace)
	e.setSpace("v0", tiering.Space{})
	if err := e.fill("v0", 3, 8); err != nil {
		t.Error(err)
	}
}

// TestReservationsHoldUnderRaces: however many write at once, nobody gets into
// what is reserved for another, and nobody is refused what is.
func TestReservationsHoldUnderRaces(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for round := range 20 {
		n := 8 + r.IntN(8)
		e := oneTier(t, n, nil)
		kept := int64(1 + r.IntN(n-2))
		quota := int64(r.IntN(n)) + 1
		e.setSpace("v0", tiering.Space{Reservation: kept * ext})
		e.setSpace("v1", tiering.Space{Quota: quota * ext})
		var wg sync.WaitGroup
		for _, name := range []string{"v0", "v1"} {
			for i := range int64(n) {
				wg.Go(func() {
					if err := e.fill(name, i, i+1); err != nil && !errors.Is(err, tiering.ErrNoSpace) {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		a, b := e.allocated("v0"), e.allocated("v1")
		if a < kept || b > min(quota, int64(n)-kept) || a+b != int64(n) && b != quota {
			t.Fatalf("round %d: of %d slots, %d reserved: v0 has %d, v1 %d with a quota of %d", round, n, kept, a, b, quota)
		}
		e.Pool.Kill()
		e.Pool = nil
	}
}

func TestOnFullWaits(t *testing.T) {
	fake := clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	e := newEnv(t, model.Config{Slots: [][]int{{4}}, Volumes: []int64{8 * ext, 8 * ext}}, nil)
	e.settle()
	e.Pool.Kill()
	e.change = func(o *tiering.Options) { o.Clock = fake }
	e.Open()
	e.awaitClean(0)
	if err := e.fill("v0", 0, 4); err != nil {
		t.Fatal(err)
	}
	e.flush("v0")
	e.setSpace("v1", tiering.Space{OnFullWait: time.Minute})
	write := func(ctx context.Context, i int64) chan error {
		done := make(chan error, 1)
		go func() { done <- e.volume("v1").WriteAt(ctx, []byte{7}, i*ext, false) }()
		eventually(t, "the write waits", func() bool { return e.volume("v1").Info().WaitingForSpace > 0 || len(done) > 0 })
		return done
	}
	answer := func(done chan error) error {
		t.Helper()
		select {
		case err := <-done:
			return err
		case <-time.After(2 * time.Minute):
			t.Fatal("the write is not answered")
			return nil
		}
	}

	// Room is made: it goes on.
	done := write(ctx, 0)
	fake.Advance(30 * time.Second)
	if len(done) > 0 {
		t.Fatalf("the write did not wait: %v", <-done)
	}
	e.trim("v0", 0, ext)
	if err := answer(done); err != nil {
		t.Fatalf("a write after room was made: %v", err)
	}
	e.expect("v1", 0, 1, 7)

	// No room is made: it fails after its time and not before.
	done = write(ctx, 1)
	for range 59 {
		fake.Advance(time.Second)
	}
	if len(done) > 0 {
		t.Fatalf("the write failed early: %v", <-done)
	}
	eventually(t, "the end of the wait", func() bool { fake.Advance(time.Second); return len(done) > 0 })
	wantErr(t, "a write after its wait", answer(done), tiering.ErrNoSpace)

	// The client leaves, the setting changes, or the pool closes: the wait ends.
	cctx, cancel := context.WithCancel(ctx)
	done = write(cctx, 1)
	cancel()
	wantErr(t, "a write whose client left", answer(done), context.Canceled)
	done = write(ctx, 1)
	e.setSpace("v1", tiering.Space{})
	wantErr(t, "a write that need not wait any more", answer(done), tiering.ErrNoSpace)

	// A raised quota lets a waiting write go on.
	e.trim("v0", ext, 3*ext)
	e.setSpace("v1", tiering.Space{Quota: ext, OnFullWait: time.Hour})
	done = write(ctx, 1)
	e.setSpace("v1", tiering.Space{Quota: 2 * ext, OnFullWait: time.Hour})
	if err := answer(done); err != nil {
		t.Errorf("a write after its quota was raised: %v", err)
	}
	if got := e.volume("v1").Info().NoSpace; got != 2 {
		t.Errorf("%d writes were refused for want of room, want 2", got)
	}
}

// TestSlotsKeptForMoves: extents of a full pool can still change places.
func TestSlotsKeptForMoves(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{16}, {16}}, Volumes: []int64{64 * ext}}, func(o *tiering.Options) {
		o.Relocation.Headroom = 0.02
		o.Relocation.Planner = func(p *plan.Policy) { p.CostFactor, p.Residence, p.MinAge = 0, 0, 0 }
	})
	e.settle()
	wantErr(t, "filling the pool", e.fill("v0", 0, 64), tiering.ErrNoSpace)
	if got := e.allocated("v0"); got != 30 {
		t.Fatalf("%d extents are allocated, want 30 of 32: each tier keeps one slot", got)
	}
	e.flush("v0")
	// Heat the ones that came last, in the lower tier.
	buf := make([]byte, block)
	for range 400 {
		for i := int64(26); i < 30; i++ {
			if err := e.volume("v0").ReadAt(ctx, buf, i*ext); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := e.Pool.RunCycle(ctx, true); err != nil {
		t.Fatal(err)
	}
	e.flush("v0")
	for i := int64(26); i < 30; i++ {
		if got := e.tierOf("v0", i*ext); got != "t0" {
			t.Errorf("hot extent %d is on %s of a full pool, want t0", i, got)
		}
	}
}

func TestLowWater(t *testing.T) {
	e := oneTier(t, 20, func(o *tiering.Options) { o.LowWater = 0.25 })
	told := func() (warned, over int) {
		return strings.Count(e.logs.String(), "free space is below"), strings.Count(e.logs.String(), "fail for want of space")
	}
	for _, tt := range []struct {
		do           func()
		below        bool
		events       int64
		warned, full int
	}{
		{func() { _ = e.fill("v0", 0, 15) }, false, 0, 0, 0},
		{func() { _ = e.fill("v0", 15, 16) }, true, 1, 1, 0},
		{func() { _ = e.fill("v1", 0, 8); _ = e.fill("v1", 8, 12) }, true, 1, 1, 1},
		{func() { e.trim("v1", 0, ext) }, true, 1, 1, 1},
		{func() { e.trim("v0", 0, 10*ext) }, false, 1, 1, 1},
		{func() { _ = e.fill("v0", 0, 20) }, true, 2, 2, 2},
	} {
		tt.do()
		e.flush("v0")
		e.flush("v1")
		e.Pool.SetLowWater(0.25) // looks at once
		below, events := e.Pool.LowWater()
		warned, full := told()
		if below != tt.below || events != tt.events || warned != tt.warned || full != tt.full {
			t.Errorf("below %t, events %d, warned %d and %d times; want %t, %d, %d and %d", below, events, warned, full, tt.below, tt.events, tt.warned, tt.full)
		}
	}
}

// TestFullPoolCanFreeSpace: on a full pool everything that gives space back works.
func TestFullPoolCanFreeSpace(t *testing.T) {
	for _, tt := range []struct {
		name string
		free func(e *env) error
	}{
		{"trim", func(e *env) error { return e.volume("v0").Trim(ctx, 0, ext, false) }},
		{"write zeroes", func(e *env) error { return e.volume("v0").WriteZeroes(ctx, 0, ext, false, true) }},
		{"delete", func(e *env) error { return e.Pool.DeleteVolume(ctx, "v0", false, false) }},
		{"smaller reservation", func(e *env) error { return e.Pool.SetSpace(ctx, "v2", tiering.Space{}, false) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t, model.Config{Slots: [][]int{{6}}, Volumes: []int64{8 * ext, 8 * ext, 8 * ext}}, nil)
			e.settle()
			e.setSpace("v2", tiering.Space{Reservation: ext})
			wantErr(t, "filling the pool", e.fill("v0", 0, 8), tiering.ErrNoSpace)
			e.flush("v0")
			if err := tt.free(e); err != nil {
				t.Fatal(err)
			}
			eventually(t, "room for one more", func() bool { return e.fill("v1", 0, 1) == nil })
			e.expect("v1", 0, 1, 1)
		})
	}
}

func TestReservationsAtCreation(t *testing.T) {
	dir := t.TempDir()
	o := tiering.CreateOptions{Metadata: filepath.Join(dir, "pool.db"), ExtentSize: ext, DryRun: true}
	for _, name := range []string{"a", "b"} {
		o.Tiers = append(o.Tiers, tiering.TierSpec{Name: name, Backings: []tiering.BackingSpec{{Path: filepath.Join(dir, name), Size: 64 << 20}}})
	}
	c, err := tiering.Create(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		reserve int64
		ok      bool
	}{{c.Capacity - 2*ext, true}, {c.Capacity - ext, false}} { // each tier keeps a slot for moves
		o.Volumes = []tiering.VolumeSpec{{Name: "v", Size: 1 << 30, Space: tiering.Space{Reservation: tt.reserve}}}
		_, err := tiering.Create(ctx, o)
		if (err == nil) != tt.ok || err != nil && !errors.Is(err, tiering.ErrInvalid) {
			t.Errorf("a pool of %d bytes with %d reserved: %v", c.Capacity, tt.reserve, err)
		}
	}
}

// TestWaitingForRoomEnds: a write that may wait for a day holds up neither the
// deletion of its volume nor the stop of the pool.
func TestWaitingForRoomEnds(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(e *env) error
	}{
		{"deletion", func(e *env) error { return e.Pool.DeleteVolume(ctx, "v0", true, false) }},
		{"stop", func(e *env) error { e.Pool.Leave(); return nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := oneTier(t, 4, nil)
			e.setSpace("v0", tiering.Space{OnFullWait: 24 * time.Hour})
			if err := e.fill("v0", 0, 4); err != nil {
				t.Fatal(err)
			}
			v := e.volume("v0")
			v.Opened()
			defer v.Released()
			done := make(chan error, 1)
			go func() { done <- v.WriteAt(ctx, []byte{1}, 4*ext, false) }()
			eventually(t, "the write waits", func() bool { return v.Info().WaitingForSpace > 0 || len(done) > 0 })
			if err := tt.end(e); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-done:
				wantErr(t, "the write that waited", err, tiering.ErrClosed)
			case <-time.After(2 * time.Minute):
				t.Fatal("the write still waits")
			}
			if tt.name == "deletion" {
				eventually(t, "the space of the deleted volume", func() bool { return e.fill("v1", 0, 4) == nil })
			}
		})
	}
}
