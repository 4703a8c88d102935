package main

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tierd/pkg/chart"
	"tierd/pkg/control"
)

func TestHeatFlags(t *testing.T) {
	socket := serve(t, &cannedService{})
	for _, tt := range []struct{ line, want string }{
		{"heat home mail", "takes one VOLUME, or none (got 2 of them)"},
		{"heat home --all", "--all and a VOLUME exclude each other"},
		{"heat --limit 3", "--limit needs a VOLUME"},
		{"heat --png a.png --every 1s --for 2s", "--every needs a VOLUME"},
		{"heat home --every 1s --for 2s", "--every and --for need each other, and --png"},
		{"heat home --png a.png --every 1s", "--every and --for need each other, and --png"},
		{"heat home --png a.png --every 0 --for 2s", "--every must be above 0, and --for no shorter (got 0s and 2s)"},
		{"heat home --png a.png --every 3s --for 2s", "--every must be above 0, and --for no shorter (got 3s and 2s)"},
		{"heat home --png a.png --every 1s --for 1h", "--for 1h is 3600 times --every 1s; at most 500 are drawn"},
		{"heat home --png a.gif", "--png: a.gif: the name of a picture must end in .png or .svg"},
	} {
		code, out, stderr := tierctl(t, append(strings.Fields(tt.line), "--socket", socket)...)
		if want := "tierctl: heat: " + tt.want + "\n"; code != exitUsage || out != "" || stderr != want {
			t.Errorf("%s: exit code %d, %q, want %q", tt.line, code, stderr, want)
		}
	}
}

// A picture has the volume and the curve; what is printed beside it stays as it was.
func TestHeatPicture(t *testing.T) {
	s := &cannedService{}
	socket := serve(t, s)
	dir := t.TempDir()
	tests := []struct {
		line        string
		asked       int
		heat, curve bool
	}{
		{"heat home", 2, true, true},
		{"heat home --skew", 2, true, true},
		{"heat home --every 1ms --for 3ms", 5, true, true},
		{"heat empty", 2, true, false},
		{"heat --all", 1, false, true},
	}
	for _, tt := range tests {
		s.asked = nil
		path := filepath.Join(dir, "a.svg")
		args := append(strings.Fields(tt.line), "--socket", socket)
		code, out, stderr := tierctl(t, append(args, "--png", path)...)
		if code != exitDone || len(s.asked) != tt.asked {
			t.Fatalf("%s: exit code %d, %s, asked %+v", tt.line, code, stderr, s.asked)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(data), "device s per s"); got != tt.heat {
			t.Errorf("%s: picture has heat: %v", tt.line, got)
		}
		if got := strings.Contains(string(data), "hottest first") && strings.Contains(string(data), "serves 61.0%, could 85.0%"); got != tt.curve {
			t.Errorf("%s: picture has the curve with a mark: %v", tt.line, got)
		}
		if strings.Contains(tt.line, "--every") {
			continue
		}
		if _, plain, _ := tierctl(t, args...); plain != out {
			t.Errorf("%s: with a picture it printed\n%s\nand without\n%s", tt.line, out, plain)
		}
	}
	// Nothing to draw is an error, and no file.
	path := filepath.Join(dir, "none.svg")
	if code, _, stderr := tierctl(t, "heat", "nowhere", "--skew", "--png", filepath.Join(dir, "no", "a.svg"), "--socket", socket); code != exitFailed || !strings.Contains(stderr, "write picture") {
		t.Errorf("no folder: exit code %d, %s", code, stderr)
	}
	if err := heatPicture(nil, control.Skew{}).WriteFile(path); !errors.Is(err, chart.ErrEmpty) {
		t.Errorf("empty: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("empty picture: %v", err)
	}
}

// interrupting answers as the canned service does, and interrupts the verb at an answer.
type interrupting struct {
	cannedService
	after  int
	cancel context.CancelFunc
}

func (s *interrupting) Heat(ctx context.Context, r control.HeatRequest) (control.HeatMap, error) {
	if s.after--; s.after == 0 {
		s.cancel()
	}
	return s.cannedService.Heat(ctx, r)
}

// An interrupt ends the sampling, and what there is is drawn.
func TestHeatInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := &interrupting{after: 1, cancel: cancel}
	o := &heatOptions{volume: "home", every: durationFlag(time.Hour), length: durationFlag(9 * time.Hour), limit: 1}
	rows, err := sampleHeat(ctx, s, o)
	if err != nil || len(rows) != 1 || rows[0].Levels == nil || len(rows[0].cells) != 150 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// A level of 16 below the top is half the heat.
func TestHeatCells(t *testing.T) {
	m := control.HeatMap{
		Levels: []byte{255, 239, 0, 0}, Tier: []byte{0, 1, 1, control.TierUnmapped}, Extents: 4, ExtentSizeBytes: 1 << 20,
		Tiers: []string{"ssd", "hdd"}, Hottest: []control.HotExtent{{Heat: 0.5}},
	}
	want := []chart.Cell{{Heat: 0.5, Group: 0}, {Heat: 0.25, Group: 1}, {Heat: 0, Group: 1}, {Heat: 0, Group: chart.NoGroup}}
	got := heatCells(m)
	if len(got) != len(want) {
		t.Fatalf("got %v", got)
	}
	for i := range want {
		if got[i].Group != want[i].Group || math.Abs(got[i].Heat-want[i].Heat) > 1e-12 {
			t.Errorf("cell %d: got %v, want %v", i, got[i], want[i])
		}
	}
	grown := m
	grown.Extents = 8
	strip := heatStrip([]heatRow{{at: noon, HeatMap: m, cells: got}, {at: noon, HeatMap: grown, cells: append(got, got...)}}).(chart.Strip)
	if row := strip.Rows[0].Cells; len(row) != 8 || row[7].Group != chart.NoGroup || row[0] != want[0] {
		t.Errorf("the row before the volume grew: %v", row)
	}
}

func TestSkewVerdict(t *testing.T) {
	const gib = 1 << 30
	k := func(volume string, hot, most float64, ssdCapacity, ssdFree int64, ssdHeat, ssdBest float64) control.Skew {
		return control.Skew{
			Volume: volume, ExtentSizeBytes: 1 << 20, Extents: 100 << 10, Points: make([]control.SkewPoint, 2),
			Needs: []control.SkewPoint{{Extents: hot, Heat: 0.8}, {Extents: most, Heat: 0.99}},
			Tiers: []control.SkewTier{
				{Name: "ssd", CapacityBytes: ssdCapacity, FreeBytes: ssdFree, Extents: 2 << 10, Heat: ssdHeat, BestHeat: ssdBest},
				{Name: "hdd", CapacityBytes: 400 * gib, FreeBytes: 300 * gib, Heat: 1 - ssdHeat, BestHeat: 1 - ssdBest},
			},
		}
	}
	tests := []struct {
		name string
		k    control.Skew
		want []string
	}{
		{"room", k("", 0.031, 0.2, 5*gib, 0, 0.8, 0.85), []string{"80.0% of the I/O of the pool is in 3.1% of its data (3.10GiB); ssd holds 5.0% (5.00GiB): room for the hot set"}},
		{"small", k("", 0.1, 0.2, 5*gib, 0, 0.5, 0.6), []string{"80.0% of the I/O of the pool is in 10.0% of its data (10.0GiB); ssd holds 5.0% (5.00GiB): too small for the hot set"}},
		{"large", k("", 0.001, 0.01, 5*gib, 0, 1, 1), []string{"80.0% of the I/O of the pool is in 0.1% of its data (103MiB); ssd holds 5.0% (5.00GiB): larger than the load needs, half of it would serve 99%"}},
		{"spread", k("", 0.7, 0.98, 5*gib, 0, 0.06, 0.07), []string{"80.0% of the I/O of the pool is in 70.0% of its data (70.0GiB); ssd holds 5.0% (5.00GiB): the load is spread, and tiers gain little"}},
		{"volume", k("home", 0.1, 0.2, 5*gib, 5*gib, 0.1, 0.6), []string{"80.0% of the I/O of volume home is in 10.0% of its data (10.0GiB); ssd has 2.0% (2.00GiB)"}},
		{"misplaced", k("", 0.031, 0.2, 5*gib, 4*gib, 0.2, 0.85), []string{
			"80.0% of the I/O of the pool is in 3.1% of its data (3.10GiB); ssd holds 5.0% (5.00GiB): room for the hot set",
			"ssd is 80.0% free and serves 20.0% of the I/O, while slower tiers serve 80.0%: it could serve 85.0% (tierctl relocation plan tells why not yet)"}},
		{"full", k("", 0.031, 0.2, 5*gib, gib/8, 0.2, 0.85), []string{"80.0% of the I/O of the pool is in 3.1% of its data (3.10GiB); ssd holds 5.0% (5.00GiB): room for the hot set"}},
		{"no heat", control.Skew{}, []string{"nothing of the pool has any heat: it was not accessed of late"}},
	}
	for _, tt := range tests {
		got := skewVerdict(tt.k)
		if strings.Join(got, "\n") != strings.Join(tt.want, "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.name, strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
		}
	}
}
