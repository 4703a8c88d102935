package tiering_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering"
)

func TestPolicyOrder(t *testing.T) {
	for _, tt := range []struct {
		policy string
		want   []string // tiers of the extents written one after the other
	}{
		{"auto", []string{"t0", "t0", "t1", "t1", "t1", "t2"}},
		{"highest", []string{"t0", "t0", "t1", "t1", "t1", "t2"}},
		{"lowest", []string{"t2", "t2", "t2", "t2", "t1", "t1"}},
		{"t1", []string{"t1", "t1", "t1", "t2", "t2", "t2", "t2", "t0"}},
		{"t2", []string{"t2", "t2", "t2", "t2", "t1"}},
	} {
		t.Run(tt.policy, func(t *testing.T) {
			e := newEnv(t, model.Config{Slots: [][]int{{2}, {3}, {4}}}, nil)
			if err := e.Pool.SetPolicy(ctx, "v0", tt.policy, false); err != nil {
				t.Fatal(err)
			}
			e.settle()
			for i, want := range tt.want {
				e.write("v0", int64(i)*ext, block, 1)
				if got := e.tierOf("v0", int64(i)*ext); got != want {
					t.Errorf("extent %d is on %q, want %s", i, got, want)
				}
			}
			e.settle()
		})
	}
}

// TestSpreadByFreeShare: backings of one tier fill in proportion to their sizes.
func TestSpreadByFreeShare(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{6, 12, 24}}, Volumes: []int64{42 * ext}}, nil)
	e.settle()
	total := map[string]int64{}
	for _, b := range e.Pool.Backings() {
		total[b.Path] = b.Slots.Total
	}
	for i := range int64(21) {
		e.write("v0", i*ext, block, 1)
	}
	for _, b := range e.Pool.Backings() {
		if got, want := b.Slots.Used, b.Slots.Total/2; got < want-1 || got > want+1 {
			t.Errorf("%s with %d of 42 slots holds %d of 21 extents, want about %d", b.Path, total[b.Path], got, want)
		}
	}
}

func TestZeroWriteMapsNothing(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.settle()
	before := e.calls(changes)
	for _, fua := range []bool{false, true} {
		if err := e.volume("v0").WriteAt(ctx, make([]byte, 3*ext), block, fua); err != nil {
			t.Fatal(err)
		}
		if err := e.volume("v0").WriteZeroes(ctx, block, 3*ext, false, fua); err != nil {
			t.Fatal(err)
		}
	}
	if info := e.volume("v0").Info(); info.Extents[0]+info.Extents[1]+info.Extents[2] != 0 || info.Staged != 0 {
		t.Errorf("writes of zeroes mapped %v extents, staged %d", info.Extents, info.Staged)
	}
	if n := e.calls(changes) - before; n != 0 {
		t.Errorf("writes of zeroes made %d calls", n)
	}
	// One byte other than zero in the second of three extents maps that one alone.
	p := make([]byte, 3*ext)
	p[ext+ext/2] = 1
	if err := e.volume("v0").WriteAt(ctx, p, 0, false); err != nil {
		t.Fatal(err)
	}
	if info := e.volume("v0").Info(); info.Extents[0] != 1 || e.tierOf("v0", ext) == "" {
		t.Errorf("extents %v, want the second one alone", info.Extents)
	}
	// Zeroes over mapped bytes count.
	if err := e.volume("v0").WriteAt(ctx, make([]byte, ext), ext, false); err != nil {
		t.Fatal(err)
	}
	e.expect("v0", 0, 3*ext, 0)
}

// TestNeverWrittenReadsAsZeroes: after slots changed hands, what their new owners
// did not write reads as zeroes.
func TestNeverWrittenReadsAsZeroes(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{4}}}, nil)
	e.write("v0", 0, 4*ext, 0xEE) // every slot
	e.flush("v0")
	for round := range 3 {
		e.trim("v0", 0, 4*ext)
		e.flush("v0")
		for i := range int64(4) {
			e.write("v1", (4+i)*ext+block, block, byte(round+1))
		}
		for i := range int64(4) {
			at := (4 + i) * ext
			e.expect("v1", at, block, 0)
			e.expect("v1", at+block, block, byte(round+1))
			e.expect("v1", at+2*block, ext-2*block, 0)
		}
		e.flush("v1")
		e.Cut(uint64(round), 0.5)
		e.Open()
		for i := range int64(4) {
			e.expect("v1", (4+i)*ext, block, 0)
			e.expect("v1", (4+i)*ext+2*block, ext-2*block, 0)
		}
		e.trim("v1", 4*ext, 4*ext)
		e.flush("v1")
		e.write("v0", 0, 4*ext, 0xEE)
		e.flush("v0")
	}
}

// TestUsedDisk: a backing that held something else before the pool was made does
// not show any of it, also after a power cut in the middle of its zeroing.
func TestUsedDisk(t *testing.T) {
	dir := t.TempDir()
	img := filepath.Join(dir, "a.img")
	if err := os.WriteFile(img, bytes.Repeat([]byte("foreign!"), 12<<20/8), 0o600); err != nil {
		t.Fatal(err)
	}
	o := tiering.CreateOptions{
		Metadata: filepath.Join(dir, "pool.db"), ExtentSize: ext,
		Tiers:   []tiering.TierSpec{{Name: "t0", Media: backing.SSD, Backings: []tiering.BackingSpec{{Path: img}}}},
		Volumes: []tiering.VolumeSpec{{Name: "v", Size: 32 * ext}},
	}
	if _, err := tiering.Create(ctx, o); !errors.Is(err, tiering.ErrRefused) {
		t.Fatalf("create over foreign data = %v, want it refused", err)
	}
	o.Force = []string{img}
	if _, err := tiering.Create(ctx, o); err != nil {
		t.Fatal(err)
	}
	p, err := tiering.Open(ctx, tiering.Options{Metadata: o.Metadata})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	v, err := p.Volume("v")
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, ext)
	for i := range int64(32) {
		if err := v.WriteAt(ctx, []byte{1}, i*ext+ext/2, false); err != nil {
			t.Fatal(err)
		}
		if err := v.ReadAt(ctx, got, i*ext); err != nil {
			t.Fatal(err)
		}
		got[ext/2]--
		if n := ext - bytes.Count(got, []byte{0}); n != 0 {
			t.Fatalf("extent %d has %d foreign bytes", i, n)
		}
	}
}

func TestPoolFull(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{2}, {2}}}, nil)
	e.write("v0", 0, 3*ext, 1)
	e.flush("v0")
	e.settle()

	// One slot is left: a write that needs two changes nothing.
	before := e.mapped("v1")
	err := e.volume("v1").WriteAt(ctx, bytes.Repeat([]byte{9}, 2*ext), 0, false)
	wantErr(t, "write without room for all of it", err, tiering.ErrNoSpace)
	wantErr(t, "write without room for all of it", err, syscall.ENOSPC)
	e.expect("v1", 0, 2*ext, 0)
	if got := e.mapped("v1"); got != before {
		t.Errorf("%d extents are mapped after a write without room, %d before", got, before)
	}
	err = e.volume("v0").WriteZeroes(ctx, 2*ext, 3*ext, true, false)
	wantErr(t, "reserving without room for all of it", err, tiering.ErrNoSpace)
	e.expect("v0", 2*ext, ext, 1)

	e.write("v1", 0, ext, 2)
	start := time.Now()
	wantErr(t, "write to a full pool", e.volume("v1").WriteAt(ctx, []byte("x"), 5*ext, false), tiering.ErrNoSpace)
	wantErr(t, "reserving in a full pool", e.volume("v1").WriteZeroes(ctx, 5*ext, ext, true, false), tiering.ErrNoSpace)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("ENOSPC took %v", took)
	}
	// Reads, overwrites and zero writes go on.
	e.expect("v0", 0, 3*ext, 1)
	e.write("v0", block, block, 3)
	e.expect("v0", block, block, 3)
	if err := e.volume("v1").WriteAt(ctx, make([]byte, ext), 5*ext, false); err != nil {
		t.Errorf("zeroes to an unmapped extent of a full pool: %v", err)
	}
	e.flush("v0")
	e.flush("v1")
	e.settle()

	// Space trimmed comes back without a flush by the client.
	for i := range int64(3) {
		e.trim("v0", i*ext, ext)
		e.write("v1", (5+i)*ext, ext, 4)
		e.expect("v1", (5+i)*ext, ext, 4)
	}
	e.settle()
	e.Close()
	e.Check()
	e.Open()
	for i := range int64(3) {
		e.expect("v1", (5+i)*ext, ext, 4)
		e.expect("v0", i*ext, ext, 0)
	}
}

// TestSpaceComesBackByTimer: rounds run now and then, so that trimmed space is free
// although nobody flushes and nobody writes.
func TestSpaceComesBackByTimer(t *testing.T) {
	e := newEnv(t, model.Config{}, func(o *tiering.Options) { o.RoundInterval = 20 * time.Millisecond })
	e.write("v0", 0, 4*ext, 1)
	e.trim("v0", 0, 4*ext)
	eventually(t, "the trim to be committed and the slots to be clean", func() bool {
		c := e.Pool.Tiers()[0].Slots
		return c.Clean == c.Total && e.volume("v0").Info().Staged == 0
	})
}

func TestNoHoleReserves(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{4}}}, nil)
	v := e.volume("v0")
	e.write("v0", 0, ext, 1)
	if err := v.WriteZeroes(ctx, 0, 3*ext, true, true); err != nil {
		t.Fatal(err)
	}
	if got := v.Info().Extents[0]; got != 3 {
		t.Errorf("%d extents are mapped, want 3", got)
	}
	e.write("v1", 0, ext, 5)
	wantErr(t, "write to a full pool", e.volume("v1").WriteAt(ctx, []byte("x"), ext, false), tiering.ErrNoSpace)
	e.write("v0", 2*ext, ext, 2) // was reserved
	e.expect("v0", 0, 2*ext, 0)
	e.Cut(1, 0)
	e.Open()
	if got := e.volume("v0").Info().Extents[0]; got != 3 {
		t.Errorf("%d extents are mapped after a power loss, want the 3 that were reserved with FUA", got)
	}
	// Without it, whole extents give their slots back.
	if err := e.volume("v0").WriteZeroes(ctx, 0, 3*ext-block, false, true); err != nil {
		t.Fatal(err)
	}
	if got := e.volume("v0").Info().Extents[0]; got != 1 {
		t.Errorf("%d extents are mapped, want the one zeroed in part", got)
	}
	e.expect("v0", 0, 3*ext, 0)
}

func TestCancelledWriteChangesNothing(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{2}}}, nil)
	e.write("v0", 0, 2*ext, 1)
	e.flush("v0")
	// The flush that a write to a full pool waits for hangs.
	gate := make(chan struct{})
	e.stores[path(0, 0)].Inject(faultstore.Fault{Ops: faultstore.Sync, Wait: gate})
	e.trim("v0", 0, ext)
	c, cancel := context.WithCancel(ctx)
	done := make(chan error)
	go func() { done <- e.volume("v1").WriteAt(c, []byte("x"), 0, false) }()
	time.AfterFunc(5*time.Millisecond, cancel)
	wantErr(t, "write that gave up", <-done, context.Canceled)
	close(gate)
	e.settle()
	e.expect("v1", 0, ext, 0)
	if got := e.tierOf("v1", 0); got != "" {
		t.Errorf("an extent was mapped on %s by a write that gave up", got)
	}
}
