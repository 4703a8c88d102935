package chart

import (
	"fmt"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// BarSeries is one colour of bars.
type BarSeries struct {
	Name   string
	Values []float64 // one for each group
}

// Bars is a chart of bars, in groups side by side; the bars of a group stand side by
// side as well, or on each other.
type Bars struct {
	Title   string
	X, Y    Axis // of X, the label alone
	Groups  []string
	Series  []BarSeries
	Stacked bool
	// Label prints the value of a bar above it, or of the whole stack; nil: no values.
	Label func(float64) string
}

func (b Bars) height() vg.Length { return fullHeight }

// check returns the height of the highest bar or stack.
func (b Bars) check() (float64, error) {
	if len(b.Groups) == 0 || len(b.Series) == 0 {
		return 0, fmt.Errorf("chart %q: %w", b.Title, ErrEmpty)
	}
	highest := 0.0
	sums := make([]float64, len(b.Groups))
	for _, s := range b.Series {
		if len(s.Values) != len(b.Groups) {
			return 0, fmt.Errorf("bars %q have %d values for %d groups: %w", s.Name, len(s.Values), len(b.Groups), ErrValue)
		}
		for i, v := range s.Values {
			if !isNumber(v) || v < 0 {
				return 0, fmt.Errorf("bar %q of %q is %v: %w", s.Name, b.Groups[i], v, ErrValue)
			}
			sums[i] += v
			highest = max(highest, v)
			if b.Stacked {
				highest = max(highest, sums[i])
			}
		}
	}
	return highest, nil
}

func (b Bars) draw(c draw.Canvas) error {
	highest, err := b.check()
	if err != nil {
		return err
	}
	p := newPlot(b.Title, b.X, b.Y)
	// Room for the values above the bars, and the legend above these.
	if err := b.Y.scale(&p.Y, 0, max(highest*1.22, 1e-9)); err != nil {
		return err
	}
	across := 1
	if !b.Stacked {
		across = len(b.Series)
	}
	w := 0.62 * 1050 * pixel / vg.Length(len(b.Groups)*across)
	w = min(w, 130*pixel)
	lines := grid()
	lines.Vertical.Width = 0
	p.Add(lines)
	var below *plotter.BarChart
	for i, s := range b.Series {
		bars, err := plotter.NewBarChart(plotter.Values(s.Values), w)
		if err != nil {
			return fmt.Errorf("bars %q: %w", s.Name, err)
		}
		bars.Color, bars.LineStyle.Width = seriesColor(i), 0
		if b.Stacked {
			if below != nil {
				bars.StackOn(below)
			}
			below = bars
		} else {
			bars.Offset = w * (vg.Length(i) - vg.Length(len(b.Series)-1)/2)
		}
		p.Add(bars)
		if b.Label != nil && (!b.Stacked || i == len(b.Series)-1) {
			p.Add(barLabels{bars, len(b.Groups), b.Label})
		}
		if s.Name != "" {
			p.Legend.Add(clean(s.Name), bars)
		}
	}
	names := make([]string, len(b.Groups))
	for i, g := range b.Groups {
		names[i] = clean(g)
	}
	p.NominalX(names...)
	p.X.Tick.Label.Font.Size = labelSize
	p.X.Min, p.X.Max = -0.5, float64(len(b.Groups))-0.5
	p.Legend.XOffs = -10 * pixel
	p.Draw(c)
	return nil
}

// barLabels prints values above bars.
type barLabels struct {
	bars  *plotter.BarChart
	n     int
	label func(float64) string
}

// Plot implements plot.Plotter.
func (l barLabels) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := p.Y.Tick.Label
	style.Font.Size, style.XAlign, style.YAlign = legendSize, draw.XCenter, draw.YBottom
	for i := range l.n {
		v := l.bars.BarHeight(i)
		c.FillText(style, vg.Point{X: x(float64(i)) + l.bars.Offset, Y: y(v) + 4*pixel}, clean(l.label(v)))
	}
}
