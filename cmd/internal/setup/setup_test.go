package setup

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tierd/pkg/config"
	"tierd/tiering"
)

const sample = `
metadata: %[1]s/pool.db
extent_size: 256KiB
tiers:
  - name: ssd
    media: ssd
    direct_io: true
    backings: [{path: %[1]s/a.img, size: 32MiB, preallocate: true}]
  - name: sata
    media: hdd
    backings: [{path: %[1]s/b.img, size: 64MiB, simulate: {latency: 10ms, iops: 200, bandwidth: 150MiB/s}}]
volumes:
  - {name: home, size: 64MiB, policy: sata}
heat: {short_half_life: 2h, long_half_life: 48h, short_weight: 0.5}
relocation:
  cycle: 1m
  hysteresis: 30%%
  headroom: 3%%
  budget: {rate: 1MiB/s, per_cycle: 16MiB, per_day: 1GiB}
  windows: [{days: "mon-fri", start: "20:00", end: "06:00", rate: 2MiB/s}]
`

func decode(t *testing.T, dir string, edit ...string) *config.Config {
	t.Helper()
	text := strings.NewReplacer(edit...).Replace(fmt.Sprintf(sample, dir))
	c, err := config.Decode([]byte(text), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestOptions(t *testing.T) {
	dir := t.TempDir()
	c := decode(t, dir)
	specs := Backings(c)
	if len(specs) != 2 {
		t.Fatalf("Backings = %v, want 2", specs)
	}
	if a := specs[0]; a.Path != filepath.Join(dir, "a.img") || a.Size != 32<<20 || !a.Direct || !a.Preallocate || a.Simulate != nil || a.Media != "ssd" {
		t.Errorf("first backing: %+v", a)
	}
	if s := specs[1].Simulate; s == nil || s.Latency != 10*time.Millisecond || s.IOPS != 200 || s.Bandwidth != 150<<20 {
		t.Errorf("second backing simulates %+v", s)
	}
	o, err := OpenOptions(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	if h := o.Heat; h.ShortHalfLife != 2*time.Hour || h.LongHalfLife != 48*time.Hour || h.ShortWeight != 0.5 {
		t.Errorf("heat: %+v", h)
	}
	r := o.Relocation
	if r.Cycle != time.Minute || r.Hysteresis != 0.3 || r.Headroom != 0.03 || r.Limits.Rate != 1<<20 || r.Limits.PerCycle != 16<<20 || r.Limits.PerDay != 1<<30 {
		t.Errorf("relocation: %+v", r)
	}
	for _, tt := range []struct {
		at   time.Time
		open bool
	}{
		{time.Date(2026, 11, 30, 21, 0, 0, 0, time.Local), true},  // a Monday
		{time.Date(2026, 11, 30, 12, 0, 0, 0, time.Local), false}, // at noon
		{time.Date(2026, 11, 29, 21, 0, 0, 0, time.Local), false}, // a Sunday
	} {
		if open, rate, _ := r.Calendar.At(tt.at); open != tt.open || open && rate != 2<<20 {
			t.Errorf("window at %v: open %v, rate %d; want %v", tt.at, open, rate, tt.open)
		}
	}
}

func TestCreateAndDifferences(t *testing.T) {
	dir := t.TempDir()
	c := decode(t, dir, "direct_io: true", "direct_io: false")
	o, err := CreateOptions(c)
	if err != nil {
		t.Fatal(err)
	}
	if o.ExtentSize != 256<<10 {
		t.Errorf("extent size %d, want %d", o.ExtentSize, 256<<10)
	}
	ctx := context.Background()
	if _, err := tiering.Create(ctx, o); err != nil {
		t.Fatal(err)
	}
	open, err := OpenOptions(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := tiering.Open(ctx, open)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if got := Differences(c, p); len(got) != 0 {
		t.Errorf("Differences of the pool's own configuration = %q, want none", got)
	}
	other := decode(t, dir, "256KiB", "512KiB", "name: sata", "name: slow", "64MiB, policy: sata", "32MiB, policy: slow",
		"{name: home", "{name: mail, size: 4MiB}\n  - {name: home", "b.img", "c.img")
	want := []string{"extent_size", "named slow", "b.img of tier sata is not listed", "volume mail is listed", "has size 32MiB", "has policy slow"}
	got := Differences(other, p)
	for _, w := range want {
		if !slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, w) }) {
			t.Errorf("no difference says %q in %q", w, got)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d differences, want %d: %q", len(got), len(want), got)
	}
}
