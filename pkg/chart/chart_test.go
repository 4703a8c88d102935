package chart_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tierd/pkg/chart"
)

var (
	graph = chart.Graph{
		Title: "lines <and> marks", X: chart.Axis{Label: "utilisation"}, Y: chart.Axis{Label: "ms"},
		Lines:      []chart.Series{{Name: "first", Points: []chart.Point{{0, 1}, {1, 4}, {2, 2}}}, {Name: "second", Points: []chart.Point{{0, 3}, {2, 5}}, Dashed: true, Dots: true}},
		Marks:      []chart.Mark{{X: 1, Y: 4, Label: "the top"}, {X: 1.5, Label: "half", Vertical: true}},
		LegendLeft: true,
	}
	areas = chart.Graph{
		Title: "areas", X: chart.Axis{Label: "hours"}, Y: chart.Axis{Label: "GiB"},
		Areas: []chart.Series{{Name: "ssd", Points: []chart.Point{{0, 1}, {1, 2}}}, {Name: "hdd", Points: []chart.Point{{0, 5}, {1, 4}}}},
	}
	logs = chart.Graph{
		Title: "logarithmic", X: chart.Axis{Label: "share", Log: true}, Y: chart.Axis{Label: "ms", Log: true},
		Lines: []chart.Series{{Points: []chart.Point{{0.01, 1}, {100, 1000}}}},
	}
	bars = chart.Bars{
		Title: "bars", Y: chart.Axis{Label: "ms"}, Groups: []string{"a", "b"},
		Series: []chart.BarSeries{{Name: "read", Values: []float64{1, 2}}, {Name: "write", Values: []float64{3, 4}}},
		Label:  func(v float64) string { return strings.Repeat("x", int(v)) },
	}
	strip = chart.Strip{
		Title: "heat", X: chart.Axis{Label: "offset", Max: 4}, Groups: []string{"ssd", "hdd"}, Heat: "seconds a second",
		Rows: []chart.StripRow{{Cells: []chart.Cell{{Heat: 0.1, Group: 0}, {Heat: 0.001, Group: 1}, {Group: chart.NoGroup}, {Heat: 0, Group: 1}}}},
	}
)

func write(t *testing.T, p chart.Picture, f chart.Format) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := p.Write(&b, f); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Every kind of chart is a whole picture of its size, in both formats, and the same each
// time.
func TestPictures(t *testing.T) {
	stacked := bars
	stacked.Stacked = true
	tests := []struct {
		name   string
		p      chart.Picture
		height int
	}{
		{"graph", chart.Picture{graph}, 600}, {"areas", chart.Picture{areas}, 600}, {"log", chart.Picture{logs}, 600}, {"bars", chart.Picture{bars}, 600},
		{"stacked", chart.Picture{stacked}, 600}, {"strip", chart.Picture{strip}, 400}, {"two", chart.Picture{strip, graph}, 1000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			data := write(t, tt.p, chart.PNG)
			img, err := png.Decode(bytes.NewReader(data))
			if err != nil {
				t.Fatal(err)
			}
			if got := img.Bounds(); got.Dx() != 1200 || got.Dy() != tt.height {
				t.Errorf("picture of %v, want 1200 x %d", got, tt.height)
			}
			if tt.name == "two" && !bytes.Equal(data, write(t, tt.p, chart.PNG)) { // it takes long under the race detector
				t.Error("the second PNG differs")
			}
			svg := write(t, tt.p, chart.SVG)
			if !bytes.Equal(svg, write(t, tt.p, chart.SVG)) {
				t.Error("the second SVG differs")
			}
			for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
				if _, err := d.Token(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatalf("SVG is no XML: %v", err)
				}
			}
		})
	}
}

// What is said of the data is in the picture as text.
func TestTexts(t *testing.T) {
	svg := string(write(t, chart.Picture{graph, bars, strip}, chart.SVG))
	for _, want := range []string{"lines &lt;and&gt; marks", "utilisation", "first", "second", "the top", "half", ">xxxx<", "read", "seconds a second", "ssd", ">0.001<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %q in the picture", want)
		}
	}
	g := graph
	g.Title = "a\x1b[2J\x00b"
	if svg := string(write(t, chart.Picture{g}, chart.SVG)); !strings.Contains(svg, "a?[2J?b") {
		t.Error("control characters are in the picture")
	}
}

func TestRefused(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	line := func(pts ...chart.Point) chart.Picture {
		return chart.Picture{chart.Graph{Lines: []chart.Series{{Points: pts}}}}
	}
	tests := []struct {
		name string
		p    chart.Picture
		want error
	}{
		{"no panel", nil, chart.ErrEmpty},
		{"no series", chart.Picture{chart.Graph{}}, chart.ErrEmpty},
		{"no points", line(), chart.ErrEmpty},
		{"not a number", line(chart.Point{X: 1, Y: nan}), chart.ErrValue},
		{"infinite", line(chart.Point{X: inf, Y: 1}), chart.ErrValue},
		{"logarithm of 0", chart.Picture{chart.Graph{Y: chart.Axis{Log: true}, Lines: []chart.Series{{Points: []chart.Point{{1, 0}, {2, 1}}}}}}, chart.ErrValue},
		{"mark beyond", chart.Picture{chart.Graph{Lines: graph.Lines, Marks: []chart.Mark{{X: nan}}}}, chart.ErrValue},
		{"areas apart", chart.Picture{chart.Graph{Areas: []chart.Series{{Points: []chart.Point{{0, 1}, {1, 1}}}, {Points: []chart.Point{{0, 1}, {2, 1}}}}}}, chart.ErrValue},
		{"areas of other lengths", chart.Picture{chart.Graph{Areas: []chart.Series{{Points: []chart.Point{{0, 1}}}, {}}}}, chart.ErrValue},
		{"area below 0", chart.Picture{chart.Graph{Areas: []chart.Series{{Points: []chart.Point{{0, -1}}}}}}, chart.ErrValue},
		{"no bars", chart.Picture{chart.Bars{}}, chart.ErrEmpty},
		{"bars missing", chart.Picture{chart.Bars{Groups: []string{"a", "b"}, Series: []chart.BarSeries{{Values: []float64{1}}}}}, chart.ErrValue},
		{"negative bar", chart.Picture{chart.Bars{Groups: []string{"a"}, Series: []chart.BarSeries{{Values: []float64{-1}}}}}, chart.ErrValue},
		{"no cells", chart.Picture{chart.Strip{X: chart.Axis{Max: 1}}}, chart.ErrEmpty},
		{"negative heat", chart.Picture{chart.Strip{X: chart.Axis{Max: 1}, Rows: []chart.StripRow{{Cells: []chart.Cell{{Heat: -1, Group: chart.NoGroup}}}}}}, chart.ErrValue},
		{"unknown group", chart.Picture{chart.Strip{X: chart.Axis{Max: 1}, Rows: []chart.StripRow{{Cells: []chart.Cell{{Group: 1}}}}}}, chart.ErrValue},
	}
	for _, tt := range tests {
		var b bytes.Buffer
		if err := tt.p.Write(&b, chart.SVG); !errors.Is(err, tt.want) || b.Len() != 0 {
			t.Errorf("%s: error %v, %d bytes written, want %v and none", tt.name, err, b.Len(), tt.want)
		}
	}
	if err := (chart.Picture{graph}).Write(io.Discard, "gif"); !errors.Is(err, chart.ErrFormat) {
		t.Errorf("format gif: %v", err)
	}
}

// Charts of a single or of equal values have limits all the same.
func TestFlat(t *testing.T) {
	for name, g := range map[string]chart.Graph{
		"one point": {Lines: []chart.Series{{Points: []chart.Point{{3, 3}}}}},
		"zero":      {Lines: []chart.Series{{Points: []chart.Point{{0, 0}, {1, 0}}}}},
		"one, log":  {X: chart.Axis{Log: true}, Y: chart.Axis{Log: true}, Lines: []chart.Series{{Points: []chart.Point{{0.3, 0.3}}}}},
		"tiny, log": {X: chart.Axis{Log: true}, Lines: []chart.Series{{Points: []chart.Point{{1e-300, 1}, {1e300, 2}}}}},
	} {
		if svg := write(t, chart.Picture{g}, chart.SVG); bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
			t.Errorf("%s: there are places that are no numbers", name)
		}
	}
	cold := chart.Strip{X: chart.Axis{Max: 1}, Groups: []string{"ssd"}, Rows: []chart.StripRow{{Cells: []chart.Cell{{Group: 0}}}}}
	write(t, chart.Picture{cold, chart.Bars{Groups: []string{"a"}, Series: []chart.BarSeries{{Values: []float64{0}}}}}, chart.PNG)
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.png", "b.SVG"} {
		path := filepath.Join(dir, name)
		if err := (chart.Picture{bars}).WriteFile(path); err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(path); err != nil || fi.Size() < 1000 {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	path := filepath.Join(dir, "a.png")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := (chart.Picture{chart.Bars{}}).WriteFile(path); !errors.Is(err, chart.ErrEmpty) {
		t.Errorf("empty picture: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("a picture that failed has changed the file: %v", err)
	}
	if err := (chart.Picture{bars}).WriteFile(filepath.Join(dir, "c.gif")); !errors.Is(err, chart.ErrFormat) {
		t.Errorf("gif: %v", err)
	}
	if err := (chart.Picture{bars}).WriteFile(filepath.Join(dir, "none", "c.svg")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder.svg"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := (chart.Picture{bars}).WriteFile(filepath.Join(dir, "folder.svg")); err == nil {
		t.Error("a folder was replaced")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("files left: %v, %v", entries, err)
	}
}

// Hotter cells are darker, all along the scale.
func TestHeatIsDarkness(t *testing.T) {
	s := chart.Strip{X: chart.Axis{Max: 9}, Groups: []string{"ssd"}, Rows: []chart.StripRow{{}}}
	for i := range 9 {
		s.Rows[0].Cells = append(s.Rows[0].Cells, chart.Cell{Heat: math.Pow(3, float64(i)), Group: 0})
	}
	img, err := png.Decode(bytes.NewReader(write(t, chart.Picture{s}, chart.PNG)))
	if err != nil {
		t.Fatal(err)
	}
	// The colours along a line through the cells, each as long as it lasts.
	var seen []uint32
	for x, run := 0, 0; x < 1040; x++ {
		r, g, b, _ := img.At(x, 200).RGBA()
		light := 299*r + 587*g + 114*b
		r0, g0, b0, _ := img.At(x+1, 200).RGBA()
		if run++; r0 != r || g0 != g || b0 != b {
			if run > 50 {
				seen = append(seen, light)
			}
			run = 0
		}
	}
	if len(seen) != 9 {
		t.Fatalf("%d colours, want 9: %v", len(seen), seen)
	}
	for i := 1; i < len(seen); i++ {
		if seen[i] >= seen[i-1] {
			t.Errorf("cell %d is as light as the colder one before: %v", i, seen)
		}
	}
}
