package tiering_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"tierd/pkg/clock"
	"tierd/test/model"
	"tierd/tiering"
)

func newHeatEnv(t *testing.T) (*env, *clock.Fake) {
	t.Helper()
	c := clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	return newEnv(t, model.Config{}, func(o *tiering.Options) { o.Clock = c }), c
}

// heats returns the heat of the first extents of v0.
func (e *env) heats() []float64 {
	e.t.Helper()
	var h []float64
	for i := range int64(4) {
		pl, err := e.Pool.Locate("v0", i*ext)
		if err != nil {
			e.t.Fatal(err)
		}
		h = append(h, pl.Score.Heat)
	}
	return h
}

// access reads extent i of v0 as often as i says, at random places.
func (e *env) access() {
	e.t.Helper()
	p := make([]byte, 512)
	for i := range int64(4) {
		for k := range 10 * i * i {
			if err := e.volume("v0").ReadAt(ctx, p, i*ext+k*7%15*block); err != nil {
				e.t.Fatal(err)
			}
		}
	}
}

// sameHeat allows for what a score loses as one byte of a logarithmic scale, 9 %.
func sameHeat(t *testing.T, what string, got, want []float64) {
	t.Helper()
	for i := range want {
		if math.Abs(got[i]-want[i]) > 0.09*want[i]+1e-12 {
			t.Errorf("%s: heat of extent %d = %g, want %g", what, i, got[i], want[i])
		}
	}
}

func TestHeatSurvivesRestart(t *testing.T) {
	for _, end := range []string{"close", "kill"} {
		t.Run(end, func(t *testing.T) {
			e, c := newHeatEnv(t)
			e.write("v0", 0, 4*ext, 1)
			e.access()
			c.Advance(time.Minute)
			if _, err := e.Pool.RunCycle(ctx, true); err != nil { // saves
				t.Fatal(err)
			}
			want := e.heats()
			if !(want[1] > 0 && want[2] > 2*want[1] && want[3] > want[2]) {
				t.Fatalf("heats = %v, want them to rise with the accesses", want)
			}
			if end == "kill" {
				e.Kill()
			} else {
				e.Close()
			}
			e.Open()
			sameHeat(t, "after "+end, e.heats(), want)
			// It decays as if nothing had happened.
			c.Advance(24 * time.Hour)
			for i, h := range e.heats() {
				if h > want[i] && h > 0 {
					t.Errorf("heat of extent %d rose from %g to %g in a quiet day", i, want[i], h)
				}
			}
		})
	}
}

// A heat map has what is mapped and what is hot, wherever that is in a volume, and
// stops with its request.
func TestHeatMap(t *testing.T) {
	e, c := newHeatEnv(t)
	const extents = 1 << 32 // to look at each would take minutes
	if err := e.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "vast", Size: extents * ext}, false); err != nil {
		t.Fatal(err)
	}
	e.write("vast", (extents-1)*ext, block, 1)
	e.write("vast", 5*ext, block, 1)
	if err := e.volume("vast").ReadAt(ctx, make([]byte, block), 7*ext); err != nil { // unmapped
		t.Fatal(err)
	}
	c.Advance(time.Second)
	got := map[int64]int{}
	if err := e.Pool.HeatMap(ctx, "vast", func(h tiering.ExtentHeat) { got[int64(h.Index)] = h.Tier }); err != nil {
		t.Fatal(err)
	}
	if want := map[int64]int{5: 0, 7: -1, extents - 1: 0}; !maps.Equal(got, want) {
		t.Errorf("tiers by extent = %v, want %v", got, want)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if err := e.Pool.HeatMap(gone, "vast", func(tiering.ExtentHeat) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestHeatFileDamaged(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(b []byte) []byte
		warns  bool
		cold   bool
	}{
		{"untouched", func(b []byte) []byte { return b }, false, false},
		{"empty", func(b []byte) []byte { return nil }, false, true},
		{"not a heat file", func(b []byte) []byte { return bytes.Repeat([]byte("nonsense"), len(b)/8) }, true, true},
		{"header flipped", func(b []byte) []byte { b[3] ^= 1; return b }, true, true},
		{"chunk flipped", func(b []byte) []byte { b[4096+100] ^= 1; return b }, true, true},
		{"cut in a chunk", func(b []byte) []byte { return b[:4096+512] }, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, c := newHeatEnv(t)
			e.write("v0", 0, 4*ext, 1)
			e.access()
			c.Advance(time.Minute)
			if _, err := e.Pool.RunCycle(ctx, true); err != nil {
				t.Fatal(err)
			}
			want := e.heats()
			e.Close()
			file := e.opt.Metadata + ".heat"
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, tt.damage(b), 0o600); err != nil {
				t.Fatal(err)
			}
			e.logs.b.Reset()
			e.Open()
			if warned := strings.Contains(e.logs.String(), "heat file"); warned != tt.warns {
				t.Errorf("log = %q, want a warning: %v", e.logs.String(), tt.warns)
			}
			got := e.heats()
			if tt.cold {
				for i, h := range got {
					if h != 0 {
						t.Errorf("heat of extent %d = %g from a file that cannot be used", i, h)
					}
				}
			} else {
				sameHeat(t, "restart", got, want)
			}
			// The file is put right by the next saving.
			e.access()
			c.Advance(time.Minute)
			if _, err := e.Pool.RunCycle(ctx, true); err != nil {
				t.Fatal(err)
			}
			want = e.heats()
			e.Close()
			e.Open()
			sameHeat(t, "second restart", e.heats(), want)
			e.expect("v0", 0, 4*ext, 1)
		})
	}
}
