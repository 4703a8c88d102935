package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tierd/pkg/chart"
	"tierd/tiering/simulate"
)

func TestSimulatePlot(t *testing.T) {
	trace := smallTrace(t)
	dir := t.TempDir()
	draw := func(name string, args ...string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		code, _, stderr := tierctl(t, append([]string{"simulate", trace, "--cycles", "2", "--rate", "1", "--plot", path}, args...)...)
		if code != exitDone {
			t.Fatalf("%s: exit code %d, %s", name, code, stderr)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	sizes := draw("sizes.svg", "--tiers", "small=fast:1ms:50%,slow:10ms:rest", "--tiers", "large=fast:1ms:100%,slow:10ms:rest", "--policy", "planner,static")
	for _, want := range []string{"against the size of the fastest tier", "planner", "static", "small.lis, layout small, planner: data by tier", "layout large, planner: accesses by tier", "fast", "slow"} {
		if !strings.Contains(sizes, want) {
			t.Errorf("no %q in the picture of two layouts", want)
		}
	}
	one := draw("one.svg", "--policy", "static", "--tiers", "fast:1ms:50%,slow:10ms:rest")
	if strings.Contains(one, "against the size") || !strings.Contains(one, "mean time of an access") || !strings.Contains(one, "seconds since the trace began") {
		t.Error("the picture of one layout is not of bars, and of seconds")
	}
	if png := draw("one.png", "--policy", "bound,static"); !strings.HasPrefix(png, "\x89PNG") {
		t.Errorf("PNG begins with %q", png[:4])
	}
	if code, _, stderr := tierctl(t, "simulate", trace, "--plot", "a.gif"); code != exitUsage || !strings.Contains(stderr, "--plot: a.gif: the name of a picture must end") {
		t.Errorf("gif: exit code %d, %s", code, stderr)
	}
	many := []string{"simulate", "--policy", "static", "--plot", filepath.Join(dir, "many.svg")}
	for range 16 {
		many = append(many, trace)
	}
	if code, _, stderr := tierctl(t, many...); code != exitFailed || !strings.Contains(stderr, "64 charts are too many") {
		t.Errorf("many: exit code %d, %s", code, stderr)
	}
}

// The points are the report's: sizes as shares and in order, rates by the second.
func TestPlotPanels(t *testing.T) {
	layout := func(name string) simulate.Layout {
		return simulate.Layout{Name: name, Tiers: []simulate.Tier{{Name: "ssd"}, {Name: "hdd"}}}
	}
	cycle := func(start float64, reads, writes int64, mean float64) simulate.CycleResult {
		return simulate.CycleResult{Start: start, Accesses: reads + writes, MeanMS: mean, Tiers: []simulate.TierCycle{{Reads: reads, Used: 1024}, {Writes: writes, Used: 3072}}}
	}
	cycles := []simulate.CycleResult{cycle(0, 3600, 7200, 4), cycle(3600, 0, 0, 0), cycle(7200, 1800, 0, 2), cycle(10800, 36, 0, 1)}
	rep := &simulate.Report{
		Trace: simulate.TraceInfo{Name: "t", Timed: true, Extents: 4096}, Layouts: []simulate.Layout{layout("b"), layout("a")},
		Slots: [][]int64{{2048, 2048}, {1024, 3072}}, Cycles: 4, Cycle: time.Hour, Settings: simulate.Settings{ExtentSize: 1 << 20},
		Policies: []simulate.PolicyResult{{Name: "static", MeanMS: 3, Cycles: cycles}, {Name: "planner", MeanMS: 2, Cycles: cycles}, {Name: "static", MeanMS: 5}, {Name: "planner", MeanMS: 4}},
	}
	g := meansPanel(rep).(chart.Graph)
	if g.Lines[0].Name != "static" || g.Lines[0].Points[0] != (chart.Point{X: 25, Y: 5}) || g.Lines[1].Points[1] != (chart.Point{X: 50, Y: 2}) {
		t.Errorf("means: %+v", g.Lines)
	}
	p := timePanels(rep, 0)
	if len(p) != 3 {
		t.Fatalf("%d panels", len(p))
	}
	if means := p[0].(chart.Graph); len(means.Lines) != 2 || len(means.Lines[0].Points) != 3 || means.Lines[0].Points[1] != (chart.Point{X: 2, Y: 2}) {
		t.Errorf("means over time: %+v", means.Lines)
	}
	if used := p[1].(chart.Graph); used.Areas[1].Points[3] != (chart.Point{X: 3, Y: 3}) {
		t.Errorf("data by tier: %+v", used.Areas)
	}
	if served := p[2].(chart.Graph); served.Lines[0].Points[2] != (chart.Point{X: 2, Y: 0.5}) || served.Lines[1].Points[0] != (chart.Point{X: 0, Y: 2}) {
		t.Errorf("accesses by tier: %+v", served.Lines)
	}
	if none := timePanels(rep, 1); len(none) != 0 {
		t.Errorf("a result without cycles has %d panels", len(none))
	}
}

// Joined cycles keep every access, and no more points than can be seen.
func TestThin(t *testing.T) {
	var cycles []simulate.CycleResult
	for i := range int64(1500) {
		cycles = append(cycles, simulate.CycleResult{Start: float64(i), Accesses: i, MeanMS: float64(i % 3), Tiers: []simulate.TierCycle{{Reads: i, Used: i}}})
	}
	got := thin(cycles)
	if len(got) != 500 || perPoint(1500) != 3 || perPoint(600) != 1 || perPoint(0) != 1 {
		t.Fatalf("%d points", len(got))
	}
	c := got[1] // cycles 3, 4 and 5
	if want := (0*3. + 1*4 + 2*5) / 12; c.Start != 3 || c.Accesses != 12 || math.Abs(c.MeanMS-want) > 1e-12 || c.Tiers[0].Reads != 12 || c.Tiers[0].Used != 5 {
		t.Errorf("got %+v, want a mean of %v", c, want)
	}
	if cycles[5].Tiers[0].Reads != 5 {
		t.Error("the report was changed")
	}
	if got := thin(cycles[:1499]); len(got) != 499 {
		t.Errorf("a part of a point is drawn: %d", len(got))
	}
}
