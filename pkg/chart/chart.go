package chart

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

var (
	// ErrFormat is returned for a file that does not end in .png or .svg.
	ErrFormat = errors.New("the name of a picture must end in .png or .svg")
	// ErrEmpty is returned for a chart without a value.
	ErrEmpty = errors.New("there is nothing to draw")
	// ErrValue is returned for a value that has no place: not a number, infinite, or not
	// above 0 on a logarithmic axis.
	ErrValue = errors.New("a value cannot be drawn")
)

// Format is the format of a picture.
type Format string

// The formats.
const (
	PNG Format = "png"
	SVG Format = "svg"
)

// FormatOf returns the format that a file's name asks for, or ErrFormat.
func FormatOf(path string) (Format, error) {
	switch f := Format(strings.ToLower(strings.TrimPrefix(filepath.Ext(path), "."))); f {
	case PNG, SVG:
		return f, nil
	}
	return "", fmt.Errorf("%s: %w", path, ErrFormat)
}

// Panel is one chart of a picture: a Graph, Bars or a Strip.
type Panel interface {
	// draw draws the panel on all of c, or returns what is wrong with it.
	draw(c draw.Canvas) error
	height() vg.Length
}

// Picture is one or more panels, the first on top.
type Picture []Panel

// Sizes. A pixel is three quarters of a point: 96 of them are an inch.
const (
	pixelsPerInch = 96
	pixel         = vg.Inch / pixelsPerInch
	width         = 1200 * pixel
	fullHeight    = 600 * pixel
	margin        = 14 * pixel

	titleSize  = 15 // points
	labelSize  = 13
	tickSize   = 11
	legendSize = 12
)

// Write draws p in the format f. Nothing is written if it cannot be drawn.
func (p Picture) Write(w io.Writer, f Format) error {
	if len(p) == 0 {
		return ErrEmpty
	}
	var total vg.Length
	for _, panel := range p {
		total += panel.height()
	}
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	switch f {
	case PNG:
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, total), vgimg.UseDPI(pixelsPerInch))}
	case SVG:
		canvas = vgsvg.New(width, total)
	default:
		return fmt.Errorf("format %q: %w", f, ErrFormat)
	}
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	top := all.Max.Y
	for _, panel := range p {
		c := all
		c.Max.Y, c.Min.Y = top-margin, top-panel.height()+margin
		c.Min.X, c.Max.X = c.Min.X+margin, c.Max.X-margin
		if err := panel.draw(c); err != nil {
			return err
		}
		top -= panel.height()
	}
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return fmt.Errorf("encode picture: %w", err)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// WriteFile draws p into a file, in the format that its name asks for. The file is there
// whole or not at all; one that was there is replaced.
func (p Picture) WriteFile(path string) error {
	f, err := FormatOf(path)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := p.Write(&b, f); err != nil {
		return fmt.Errorf("draw %s: %w", path, err)
	}
	temp := path + ".new"
	if err := os.WriteFile(temp, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write picture: %w", err)
	}
	if err := os.Rename(temp, path); err != nil {
		os.Remove(temp)
		return fmt.Errorf("write picture: %w", err)
	}
	return nil
}

// Axis is one axis of a chart.
type Axis struct {
	Label string
	Log   bool // decades
	// Min and Max are the limits; both 0: those of the data. Data beyond them widen
	// them.
	Min, Max float64
	// Ticks are the marks with their labels, if the usual ones will not do.
	Ticks []Tick
}

// Tick is a labelled place of an axis.
type Tick struct {
	Value float64
	Label string
}

// palette tells series apart, also for those who do not see red or green (Okabe and
// Ito, 2008).
var palette = []color.NRGBA{
	{0, 114, 178, 255}, {230, 159, 0, 255}, {0, 158, 115, 255}, {213, 94, 0, 255},
	{204, 121, 167, 255}, {86, 180, 233, 255}, {90, 90, 90, 255}, {240, 228, 66, 255},
}

func seriesColor(i int) color.NRGBA { return palette[i%len(palette)] }

// newPlot returns a plot with the looks that all share.
func newPlot(title string, x, y Axis) *plot.Plot {
	p := plot.New()
	for _, font := range []*font.Font{
		&p.Title.TextStyle.Font, &p.Legend.TextStyle.Font,
		&p.X.Label.TextStyle.Font, &p.X.Tick.Label.Font, &p.Y.Label.TextStyle.Font, &p.Y.Tick.Label.Font,
	} {
		font.Variant = "Sans"
	}
	p.Title.Text = clean(title)
	p.Title.TextStyle.Font.Size = titleSize
	p.Title.Padding = 8 * pixel
	p.Legend.TextStyle.Font.Size = legendSize
	p.Legend.Top = true
	p.Legend.Padding = 3 * pixel
	p.Legend.YPosition = draw.PosCenter
	for axis, a := range map[*plot.Axis]Axis{&p.X: x, &p.Y: y} {
		axis.Label.Text = clean(a.Label)
		axis.Label.TextStyle.Font.Size = labelSize
		axis.Label.Padding = 4 * pixel
		axis.Tick.Label.Font.Size = tickSize
	}
	return p
}

// scale sets the limits and ticks of an axis for data between low and high.
func (a Axis) scale(axis *plot.Axis, low, high float64) error {
	if a.Min != 0 || a.Max != 0 {
		low, high = min(low, a.Min), max(high, a.Max)
	}
	if a.Log {
		if low <= 0 {
			return fmt.Errorf("%v on the logarithmic axis %q: %w", low, a.Label, ErrValue)
		}
		if low == high {
			low, high = low/2, high*2
		}
		axis.Scale = plot.LogScale{}
	}
	axis.Min, axis.Max = low, high
	axis.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick {
		switch {
		case len(a.Ticks) > 0:
			ticks := make([]plot.Tick, len(a.Ticks))
			for i, t := range a.Ticks {
				ticks[i] = plot.Tick{Value: t.Value, Label: clean(t.Label)}
			}
			return ticks
		case a.Log:
			return logTicks(low, high)
		}
		return linearTicks(low, high)
	})
	return nil
}

// linearTicks returns five to ten ticks at round values.
func linearTicks(low, high float64) []plot.Tick {
	span := high - low
	step := math.Pow(10, math.Floor(math.Log10(span/5)))
	for _, f := range []float64{1, 2, 5, 10} {
		if span/(step*f) <= 10 {
			step *= f
			break
		}
	}
	var ticks []plot.Tick
	for i := math.Ceil(low/step - 1e-9); i*step <= high+step*1e-9; i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: number(i * step)})
	}
	return ticks
}

// logTicks labels decades; 2 and 5 as well if there are few.
func logTicks(low, high float64) []plot.Tick {
	few := math.Log10(high/low) < 3
	var ticks []plot.Tick
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for m := 1.0; m < 10; m++ {
			v := m * math.Pow(10, e)
			t := plot.Tick{Value: v}
			if m == 1 || few && (m == 2 || m == 5) {
				t.Label = number(v)
			}
			if v >= low*(1-1e-9) && v <= high*(1+1e-9) {
				ticks = append(ticks, t)
			}
		}
	}
	return ticks
}

// number prints a tick: 12,000, 0.25, 1e-07.
func number(v float64) string {
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 10, 64), 64) // 0.30000000000000004
	if v == 0 {
		return "0"
	}
	if abs := math.Abs(v); abs < 1e-4 || abs >= 1e9 {
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	s := strconv.FormatFloat(v, 'f', -1, 64)
	whole, fraction, _ := strings.Cut(strings.TrimPrefix(s, "-"), ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if fraction != "" {
		whole += "." + fraction
	}
	if v < 0 {
		whole = "-" + whole
	}
	return whole
}

// clean keeps what is not printable out of a picture, where it would break the XML.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// isNumber reports whether v can be drawn on a linear axis.
func isNumber(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
