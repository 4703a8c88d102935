package tiering_test

import (
	"testing"

	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
)

// mapped returns how many extents of a volume have slots.
func (e *env) mapped(name string) (n int64) {
	e.t.Helper()
	for _, k := range e.volume(name).Info().Extents {
		n += k
	}
	return n
}

func TestTrim(t *testing.T) {
	type op struct {
		kind   string
		off, n int64
	}
	const last = 6*ext + block // where the volume ends: its seventh extent is one block
	for _, tt := range []struct {
		name  string
		ops   []op
		left  int64   // extents still mapped
		zero  []int64 // extents that read as zeroes
		kept  []int64 // extents that read as written
		bytes int64   // of each of those, to look at
	}{
		{"whole extent", []op{{"trim", ext, ext}}, 6, []int64{1}, []int64{0, 2, 6}, 0},
		{"ragged edges are left alone", []op{{"trim", ext - block, 2*ext + 2*block}}, 5, []int64{1, 2}, []int64{0, 3}, 0},
		{"less than an extent", []op{{"trim", block, ext - block}}, 7, nil, []int64{0, 1}, 0},
		{"the rest of the volume", []op{{"trim", 5 * ext, last - 5*ext}}, 5, []int64{5, 6}, []int64{4}, 0},
		{"last extent alone", []op{{"trim", 6 * ext, block}}, 6, []int64{6}, []int64{5}, 0},
		{"two halves", []op{{"trim", 0, ext / 2}, {"trim", ext / 2, ext / 2}}, 6, []int64{0}, []int64{1}, 0},
		{"halves the other way round", []op{{"trim", ext / 2, ext / 2}, {"trim", 0, ext / 2}}, 6, []int64{0}, []int64{1}, 0},
		{"odd requests in a row", []op{{"trim", 0, ext + 512}, {"trim", ext + 512, ext}, {"trim", 2*ext + 512, ext - 512}}, 4, []int64{0, 1, 2}, []int64{3}, 0},
		{"a gap between them", []op{{"trim", 0, ext / 2}, {"trim", ext/2 + 512, ext/2 - 512}}, 7, nil, []int64{0}, 0},
		{"a write between them", []op{{"trim", 0, ext / 2}, {"write", 0, 512}, {"trim", ext / 2, ext / 2}}, 7, nil, []int64{0}, 512},
		{"a write to the second half", []op{{"trim", 0, ext / 2}, {"write", ext / 2, 512}, {"trim", ext / 2, ext / 2}}, 7, nil, nil, 0},
		{"a write elsewhere between them", []op{{"trim", 0, ext / 2}, {"write", ext, 512}, {"trim", ext / 2, ext / 2}}, 6, []int64{0}, []int64{1}, 0},
		{"zeroes between them", []op{{"trim", 0, ext / 2}, {"zero", 512, 512}, {"trim", ext / 2, ext / 2}}, 7, nil, nil, 0},
		{"twice", []op{{"trim", 0, 2 * ext}, {"trim", 0, 2 * ext}}, 5, []int64{0, 1}, []int64{2}, 0},
		{"everything", []op{{"trim", 0, last}}, 0, []int64{0, 1, 2, 3, 4, 5, 6}, nil, 0},
		{"zeroes over a part", []op{{"zero", ext + 512, ext - 512}}, 7, nil, []int64{0, 2}, 0},
		{"zeroes over whole extents", []op{{"zero", ext / 2, 2 * ext}}, 6, []int64{1}, []int64{3}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t, model.Config{Slots: [][]int{{8}}, Volumes: []int64{last}}, nil)
			e.write("v0", 0, last, 1)
			e.flush("v0")
			for _, o := range tt.ops {
				switch o.kind {
				case "trim":
					e.trim("v0", o.off, o.n)
				case "write":
					e.write("v0", o.off, o.n, 1)
				default:
					if err := e.volume("v0").WriteZeroes(ctx, o.off, o.n, false, false); err != nil {
						t.Fatal(err)
					}
				}
			}
			check := func(when string) {
				t.Helper()
				if got := e.mapped("v0"); got != tt.left {
					t.Errorf("%s: %d extents are mapped, want %d", when, got, tt.left)
				}
				for _, i := range tt.zero {
					e.expect("v0", i*ext, min(ext, last-i*ext), 0)
				}
				for _, i := range tt.kept {
					n := tt.bytes
					if n == 0 {
						n = 512
					}
					e.expect("v0", i*ext, n, 1)
				}
				if tt.name == "ragged edges are left alone" {
					e.expect("v0", ext-block, block, 1)
					e.expect("v0", 3*ext, ext, 1)
				}
			}
			check("at once")
			e.Kill()
			e.Open()
			check("after a kill")
			e.settle()
			e.Close()
			e.Check()
			e.Open()
			check("after a restart")
		})
	}
}

func TestTrimFUASurvivesCut(t *testing.T) {
	for _, what := range []string{"trim", "zero"} {
		for _, keep := range []float64{0, 1} {
			e := newEnv(t, model.Config{Slots: [][]int{{8}}}, nil)
			e.write("v0", 0, 4*ext, 1)
			e.flush("v0")
			var err error
			if what == "trim" {
				err = e.volume("v0").Trim(ctx, 0, 2*ext, true)
			} else {
				err = e.volume("v0").WriteZeroes(ctx, 0, 2*ext+block, false, true)
			}
			if err != nil {
				t.Fatal(err)
			}
			e.Cut(1, keep)
			e.Open()
			e.expect("v0", 0, 2*ext, 0)
			e.expect("v0", 2*ext+block, 2*ext-block, 1)
			if got := e.mapped("v0"); got != 2 {
				t.Errorf("%s with FUA: %d extents are mapped after a power loss, want 2", what, got)
			}
		}
	}
}

// TestTrimOfStagedUnmapFUA: a trim with FUA of what an earlier trim has unmapped
// makes that one durable.
func TestTrimOfStagedUnmapFUA(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	e.flush("v0")
	e.trim("v0", 0, ext)
	if err := e.volume("v0").Trim(ctx, 0, ext, true); err != nil {
		t.Fatal(err)
	}
	e.Cut(1, 0)
	e.Open()
	e.expect("v0", 0, ext, 0)
}

// TestHugeTrim: a trim of gigabytes costs nothing on the backings, and a few
// records in the log.
func TestHugeTrim(t *testing.T) {
	const size, trimmed = 64 << 30, 4<<30 - 512
	e := newEnv(t, model.Config{Slots: [][]int{{8}}, Volumes: []int64{size}}, nil)
	v := e.volume("v0")
	for i := range int64(8) {
		e.write("v0", i*(size/8), ext, 1)
	}
	e.flush("v0")
	e.settle()
	before, fill := e.calls(faultstore.All), e.Pool.Info().LogFill
	for off := int64(0); off < size; off += trimmed {
		if err := v.Trim(ctx, off, min(trimmed, size-off), false); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.calls(faultstore.All) - before; n != 0 {
		t.Errorf("the trims made %d calls on the backings, want 0", n)
	}
	if now := e.Pool.Info().LogFill; now > fill+0.05 { // the log of this World is small
		t.Errorf("the trims filled the log from %v to %v", fill, now)
	}
	if got := e.mapped("v0"); got != 0 {
		t.Errorf("%d extents are left, want 0: the requests meet in the middle of extents", got)
	}
	commit := e.Pool.Info().Commit
	e.flush("v0")
	if n := e.Pool.Info().Commit - commit; n != 1 {
		t.Errorf("the flush made %d commits, want 1", n)
	}
	e.settle()
}
