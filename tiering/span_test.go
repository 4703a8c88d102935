package tiering_test

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"testing"

	"tierd/pkg/backing"
	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/plan"
)

func TestSpan(t *testing.T) {
	e := newEnv(t, model.Config{Volumes: []int64{8*ext + block}}, nil)
	e.write("v0", 0, 2*ext, 1)
	e.write("v0", 4*ext+block, 1, 1)
	e.write("v0", 8*ext+99, 1, 1)
	e.flush("v0")
	if _, err := e.Pool.MoveExtent(ctx, "v0", ext, 2); err != nil {
		t.Fatal(err)
	}
	v := e.volume("v0")
	for _, tc := range []struct {
		off, n int64
		want   []tiering.Span
	}{
		{0, 8*ext + block, []tiering.Span{{ext, false, 1}, {ext, false, 3}, {2 * ext, true, 0}, {ext, false, 1}, {3 * ext, true, 0}, {block, false, 1}}},
		{ext - 1, 2, []tiering.Span{{1, false, 1}, {1, false, 3}}},
		{3*ext - 1, ext + 1, []tiering.Span{{ext + 1, true, 0}}},
		{5*ext + 1, 1, []tiering.Span{{1, true, 0}}},
		{8*ext + 99, 1, []tiering.Span{{1, false, 1}}},
	} {
		var got []tiering.Span
		for done := int64(0); done < tc.n; {
			s := v.Span(tc.off+done, tc.n-done)
			if s.Len <= 0 {
				t.Fatalf("a span of %d bytes", s.Len)
			}
			got = append(got, s)
			done += s.Len
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%d bytes at %d: got %v, want %v", tc.n, tc.off, got, tc.want)
		}
	}
	e.trim("v0", 0, ext)
	if got, want := v.Span(0, 4*ext), (tiering.Span{ext, true, 0}); got != want {
		t.Errorf("after a trim: got %v, want %v", got, want)
	}
}

// TestSpanOfAMissingBacking: what is lost is no hole.
func TestSpanOfAMissingBacking(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	e.flush("v0")
	e.settle()
	e.Close()
	e.mustOpen(without(path(0, 0)))
	if got, want := e.volume("v0").Span(0, 2*ext), (tiering.Span{ext, false, 1}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestReadsOfADeletedVolume: what it loses is not told to be a hole, nor read as one.
func TestReadsOfADeletedVolume(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	v := e.volume("v0")
	if err := e.Pool.DeleteVolume(ctx, "v0", true, false); err != nil {
		t.Fatal(err)
	}
	for off := range int64(2) {
		if s := v.Span(off*ext, ext); s.Hole || s.Len != ext {
			t.Errorf("span of extent %d: got %v, want no hole", off, s)
		}
		p := make([]byte, block)
		if v.TryRead(p, off*ext) {
			t.Errorf("extent %d can be read", off)
		}
		wantErr(t, "read", v.ReadAt(ctx, p, off*ext), tiering.ErrClosed)
	}
}

// asDevice is a store that says it is a block device.
type asDevice struct{ backing.Store }

func (asDevice) Info() backing.Info { return backing.Info{IsDevice: true} }

// unpunched is a store on a file system that cannot punch holes.
type unpunched struct{ backing.Store }

func (unpunched) ZeroWrites() bool { return true }

func TestFastZeroes(t *testing.T) {
	file := func(st backing.Store) backing.Store { return st }
	device := func(st backing.Store) backing.Store { return asDevice{st} }
	noPunch := func(st backing.Store) backing.Store { return unpunched{st} }
	for _, tc := range []struct {
		name   string
		on     func(backing.Store) backing.Store
		off, n int64
		noHole bool
		want   error
	}{
		{"whole extents", device, 0, 2 * ext, false, nil},
		{"unmapped parts", device, 4*ext + 1, 3*ext - 2, false, nil},
		{"a mapped part of a file", file, ext / 2, ext, false, nil},
		{"a mapped part of a device", device, block, block, false, syscall.ENOTSUP},
		{"a mapped part where no holes can be punched", noPunch, block, block, false, tiering.ErrNotSupported},
		{"whole extents and a mapped part of a device", device, 0, ext + 1, false, tiering.ErrNotSupported},
		{"whole extents that keep their space", file, 0, ext, true, tiering.ErrNotSupported},
		{"unmapped extents that get space", file, 4 * ext, ext, true, tiering.ErrNotSupported},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEnv(t, model.Config{}, func(o *tiering.Options) {
				inner := o.OpenStore
				o.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
					st, err := inner(ctx, spec, create, readOnly)
					if err != nil {
						return nil, err
					}
					return tc.on(st), nil
				}
			})
			e.write("v0", 0, 3*ext, 1)
			e.flush("v0")
			e.settle()
			v := e.volume("v0")
			err := v.BeginWriteZeroes(tc.off, tc.n, tc.noHole, true).Run(ctx, nil, false)
			wantErr(t, "fast zeroes", err, tc.want)
			for off := int64(0); off < 3*ext; off += block {
				fill := byte(1)
				if err == nil && off >= tc.off && off < tc.off+tc.n {
					fill = 0
				}
				e.expect("v0", off, block, fill)
			}
			if got := v.Info().Ops[tiering.OpZero.String()].Errors; got != 0 {
				t.Errorf("%d requests count as failed, want 0: to refuse is no fault", got)
			}
			if got := e.mapped("v0"); err != nil && got != 3 {
				t.Errorf("refused, but %d extents are mapped, want 3", got)
			}
		})
	}
}

// TestPromote: CACHE moves what is on slower tiers than the policy allows, as far as
// there is room above the headroom and budget.
func TestPromote(t *testing.T) {
	for _, tc := range []struct {
		name   string
		policy string
		change func(*tiering.Options)
		off, n int64
		want   []int64 // extents by tier in the end
	}{
		{"all", "auto", nil, 0, 3 * ext, []int64{3, 0, 0}},
		{"a byte", "auto", nil, ext + 7, 1, []int64{1, 0, 2}},
		{"and what is unmapped", "highest", nil, 2 * ext, 6 * ext, []int64{1, 0, 2}},
		{"lowest", "lowest", nil, 0, 3 * ext, []int64{0, 0, 3}},
		{"a tier", "t1", nil, 0, 3 * ext, []int64{0, 3, 0}},
		{"headroom", "auto", func(o *tiering.Options) { o.Relocation.Headroom = 0.5 }, 0, 3 * ext, []int64{2, 0, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newEnv(t, model.Config{}, tc.change)
			if err := e.Pool.SetPolicy(ctx, "v0", "lowest", false); err != nil {
				t.Fatal(err)
			}
			e.populate("v0", 3, 1)
			e.flush("v0")
			e.settle()
			if got := e.volume("v0").Info().Extents; got[2] != 3 {
				t.Fatalf("at first: got %v, want all on t2", got)
			}
			if err := e.Pool.SetPolicy(ctx, "v0", tc.policy, false); err != nil {
				t.Fatal(err)
			}
			if err := e.volume("v0").Promote(ctx, tc.off, tc.n); err != nil {
				t.Fatal(err)
			}
			var moved int64
			for _, n := range tc.want[:2] {
				moved += n
			}
			ended := func() bool {
				info := e.Pool.Relocation()
				return info.Queued == 0 && info.InFlight == 0
			}
			eventually(t, "the moves", ended)
			if got := e.volume("v0").Info().Extents; !slices.Equal(got, tc.want) {
				t.Errorf("extents by tier: got %v, want %v; skipped %v", got, tc.want, e.Pool.Relocation().Skipped)
			}
			for _, m := range e.Pool.Relocation().Moved {
				if m.Reason != plan.ReasonCache {
					t.Errorf("a move for the reason %s", m.Reason)
				}
				moved -= m.Extents
			}
			if moved != 0 {
				t.Errorf("%d moves are not counted", moved)
			}
			e.settle()
			e.expectFilled("v0", 3, 1)
		})
	}
}

// TestAskedMovesExpire: what a client asked for and had no turn is forgotten at the end of
// the next cycle. While a plan is being made none of it begins.
func TestAskedMovesExpire(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	if err := e.Pool.SetPolicy(ctx, "v0", "lowest", false); err != nil {
		t.Fatal(err)
	}
	e.populate("v0", 4, 1)
	e.flush("v0")
	e.settle()
	if err := e.Pool.SetPolicy(ctx, "v0", "auto", false); err != nil {
		t.Fatal(err)
	}
	v := e.volume("v0")
	e.Pool.BeginCycle()
	if err := v.Promote(ctx, 3*ext, ext); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Pool.MoveExtent(ctx, "v0", 2*ext, 1); err != nil { // which takes some time
		t.Fatal(err)
	}
	if info := e.Pool.Relocation(); info.Queued != 1 || info.InFlight != 0 {
		t.Errorf("while a plan is made: %d moves wait and %d are under way, want 1 and 0", info.Queued, info.InFlight)
	}
	if _, err := e.Pool.RunCycle(ctx, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the move", func() bool { return slices.Equal(v.Info().Extents, []int64{1, 1, 2}) })

	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	stuck := e.stores[path(2, 0)].Inject(faultstore.Fault{Ops: faultstore.Read, Wait: gate})
	if err := v.Promote(ctx, 0, 2*ext); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a move that is stuck", func() bool { return stuck.Hits() > 0 })
	for cycle, want := range []int{1, 0} {
		if _, err := e.Pool.RunCycle(ctx, true); err != nil {
			t.Fatal(err)
		}
		if got := e.Pool.Relocation().Queued; got != want {
			t.Errorf("after %d cycles %d moves wait, want %d", cycle+1, got, want)
		}
	}
	open()
	eventually(t, "the move", func() bool { return slices.Equal(v.Info().Extents, []int64{2, 1, 1}) })
}

// TestPromoteStuck: nobody who waits for the moves of a plan waits for those that
// clients ask for, of which only so many wait, and a policy that has changed
// meanwhile counts.
func TestPromoteStuck(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	if err := e.Pool.SetPolicy(ctx, "v0", "lowest", false); err != nil {
		t.Fatal(err)
	}
	e.populate("v0", 3, 1)
	e.flush("v0")
	e.settle()
	if err := e.Pool.SetPolicy(ctx, "v0", "highest", false); err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	stuck := e.stores[path(2, 0)].Inject(faultstore.Fault{Ops: faultstore.Read, Wait: gate})
	v := e.volume("v0")
	for range 100 {
		if err := v.Promote(ctx, 0, 3*ext); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a move that is stuck", func() bool { return stuck.Hits() > 0 })
	if info := e.Pool.Relocation(); info.Queued != 2 || info.InFlight != 1 {
		t.Errorf("%d moves wait and %d are under way, want 2 and 1", info.Queued, info.InFlight)
	}
	if err := e.Pool.SetPolicy(ctx, "v0", "lowest", false); err != nil {
		t.Fatal(err)
	}
	if pl, err := e.Pool.RunCycle(ctx, true); err != nil || len(pl.Moves) != 0 {
		t.Errorf("RunCycle = %d moves, %v; want none", len(pl.Moves), err)
	}
	open()
	eventually(t, "the moves", func() bool {
		info := e.Pool.Relocation()
		return info.Queued == 0 && info.InFlight == 0
	})
	if got, want := v.Info().Extents, []int64{1, 0, 2}; !slices.Equal(got, want) {
		t.Errorf("extents by tier: got %v, want %v: the first move had begun", got, want)
	}
	if n := e.Pool.Relocation().Skipped["changed"]; n != 2 {
		t.Errorf("%d moves were skipped since the policy changed, want 2", n)
	}
}
