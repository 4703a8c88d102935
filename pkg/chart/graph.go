package chart

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Point is a place in a chart, in the units of its axes.
type Point struct{ X, Y float64 }

// Series is a line through points, in order.
type Series struct {
	Name   string // in the legend
	Points []Point
	Dots   bool // mark each point
	Dashed bool
}

// Mark is a labelled place: a dot, or a dashed line at X from bottom to top.
type Mark struct {
	X, Y     float64 // Y only of a dot
	Label    string
	Vertical bool
}

// Graph is a chart of lines, or of areas stacked on each other, with marks.
type Graph struct {
	Title string
	X, Y  Axis
	Lines []Series
	// Areas are stacked, the first at the bottom; Y is the height of the area itself.
	// All have the same X.
	Areas []Series
	Marks []Mark
	// LegendLeft and LegendLow choose the corner that the lines leave free.
	LegendLeft, LegendLow bool
}

func (g Graph) height() vg.Length { return fullHeight }

// stacked returns the areas as upper edges.
func (g Graph) stacked() ([]plotter.XYs, error) {
	var edges []plotter.XYs
	for i, s := range g.Areas {
		if len(s.Points) != len(g.Areas[0].Points) {
			return nil, fmt.Errorf("area %q has %d points, the first %d: %w", s.Name, len(s.Points), len(g.Areas[0].Points), ErrValue)
		}
		edge := make(plotter.XYs, len(s.Points))
		for j, pt := range s.Points {
			if pt.X != g.Areas[0].Points[j].X || !(pt.Y >= 0) {
				return nil, fmt.Errorf("area %q at %v, %v: not at the place of the first, or below 0: %w", s.Name, pt.X, pt.Y, ErrValue)
			}
			edge[j] = plotter.XY(pt)
			if i > 0 {
				edge[j].Y += edges[i-1][j].Y
			}
		}
		edges = append(edges, edge)
	}
	return edges, nil
}

// limits are what the points of a chart span.
type limits struct{ lowX, highX, lowY, highY float64 }

func (l *limits) add(name string, pt Point) error {
	if !isNumber(pt.X) || !isNumber(pt.Y) {
		return fmt.Errorf("%q at %v, %v: %w", name, pt.X, pt.Y, ErrValue)
	}
	l.lowX, l.highX = min(l.lowX, pt.X), max(l.highX, pt.X)
	l.lowY, l.highY = min(l.lowY, pt.Y), max(l.highY, pt.Y)
	return nil
}

func (g Graph) draw(c draw.Canvas) error {
	edges, err := g.stacked()
	if err != nil {
		return err
	}
	l := limits{math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)}
	for i, e := range edges {
		for _, pt := range e {
			if err := l.add(g.Areas[i].Name, Point(pt)); err != nil {
				return err
			}
		}
	}
	for _, s := range g.Lines {
		for _, pt := range s.Points {
			if err := l.add(s.Name, pt); err != nil {
				return err
			}
		}
	}
	if l.lowX > l.highX {
		return fmt.Errorf("chart %q: %w", g.Title, ErrEmpty)
	}
	for _, m := range g.Marks {
		y := m.Y
		if m.Vertical {
			y = l.lowY
		}
		if err := l.add(m.Label, Point{m.X, y}); err != nil {
			return err
		}
	}
	if !g.Y.Log {
		l.lowY = min(l.lowY, 0) // a height is judged from 0
		l.highY += (l.highY - l.lowY) * 0.03
		if len(g.Areas) > 0 { // a legend on areas would take their colours for its own
			l.highY += (l.highY - l.lowY) * 0.05 * float64(len(g.Areas)+len(g.Lines))
		}
	}
	p := newPlot(g.Title, g.X, g.Y)
	if err := g.X.scale(&p.X, l.lowX, l.highX); err != nil {
		return err
	}
	if err := g.Y.scale(&p.Y, l.lowY, l.highY); err != nil {
		return err
	}
	p.Add(grid())
	p.Legend.Left, p.Legend.Top = g.LegendLeft, !g.LegendLow
	p.Legend.XOffs, p.Legend.YOffs = -10*pixel, -6*pixel
	if g.LegendLeft {
		p.Legend.XOffs = 10 * pixel
	}
	if g.LegendLow {
		p.Legend.YOffs = 10 * pixel
	}
	if err := g.addAreas(p, edges); err != nil {
		return err
	}
	if err := g.addLines(p); err != nil {
		return err
	}
	p.Add(marks{g.Marks}, legendBackdrop{})
	p.Draw(c)
	return nil
}

func (g Graph) addAreas(p *plot.Plot, edges []plotter.XYs) error {
	for i, e := range edges {
		ring := append(plotter.XYs(nil), e...)
		for j := len(e) - 1; j >= 0; j-- {
			low := plotter.XY{X: e[j].X, Y: p.Y.Min}
			if i > 0 {
				low.Y = edges[i-1][j].Y
			}
			ring = append(ring, low)
		}
		poly, err := plotter.NewPolygon(ring)
		if err != nil {
			return fmt.Errorf("area %q: %w", g.Areas[i].Name, err)
		}
		poly.Color, poly.LineStyle.Width = seriesColor(i), 0
		p.Add(poly)
		p.Legend.Add(clean(g.Areas[i].Name), poly)
	}
	return nil
}

func (g Graph) addLines(p *plot.Plot) error {
	for i, s := range g.Lines {
		xys := make(plotter.XYs, len(s.Points))
		for j, pt := range s.Points {
			xys[j] = plotter.XY(pt)
		}
		line, dots, err := plotter.NewLinePoints(xys)
		if err != nil {
			return fmt.Errorf("line %q: %w", s.Name, err)
		}
		colour := seriesColor(i + len(g.Areas))
		line.LineStyle = draw.LineStyle{Color: colour, Width: 2.2 * pixel}
		if s.Dashed {
			line.LineStyle.Dashes = []vg.Length{7 * pixel, 4 * pixel}
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: colour, Radius: 3.5 * pixel, Shape: draw.CircleGlyph{}}
		p.Add(line)
		thumbs := []plot.Thumbnailer{line}
		if s.Dots || len(s.Points) == 1 {
			p.Add(dots)
			thumbs = append(thumbs, dots)
		}
		if s.Name != "" {
			p.Legend.Add(clean(s.Name), thumbs...)
		}
	}
	return nil
}

// grid returns faint lines at the ticks.
func grid() *plotter.Grid {
	g := plotter.NewGrid()
	faint := draw.LineStyle{Color: color.NRGBA{222, 222, 222, 255}, Width: pixel}
	g.Vertical, g.Horizontal = faint, faint
	return g
}

// marks draws the marks of a graph over all else.
type marks struct{ list []Mark }

var markColor = color.NRGBA{40, 40, 40, 255}

// Plot implements plot.Plotter. Labels of lines side by side are drawn one below the
// other, each on the side of its line where there is more room.
func (m marks) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	style := p.X.Tick.Label
	style.Font.Size, style.Color = legendSize, markColor
	line := draw.LineStyle{Color: markColor, Width: 1.2 * pixel, Dashes: []vg.Length{3 * pixel, 3 * pixel}}
	row := vg.Length(0)
	for _, mark := range m.list {
		at := vg.Point{X: x(mark.X), Y: y(mark.Y)}
		s := style
		s.YAlign, s.XAlign = draw.YCenter, draw.XLeft
		offset, up := 8*pixel, vg.Length(0)
		if at.X > (c.Min.X+c.Max.X)/2 {
			s.XAlign, offset = draw.XRight, -offset
		}
		if mark.Vertical {
			c.StrokeLine2(line, at.X, c.Min.Y, at.X, c.Max.Y)
			row += 20 * pixel
			at.Y = c.Max.Y - row
		} else {
			c.DrawGlyph(draw.GlyphStyle{Color: markColor, Radius: 5 * pixel, Shape: draw.CircleGlyph{}}, at)
			up = 14 * pixel
		}
		text := clean(mark.Label)
		to := vg.Point{X: at.X + offset, Y: at.Y + up}
		backdrop(c, s.Rectangle(text).Add(to))
		c.FillText(s, to, text)
	}
}

// backdrop keeps text readable where lines cross it.
func backdrop(c draw.Canvas, r vg.Rectangle) {
	c.SetColor(color.NRGBA{255, 255, 255, 215})
	c.Fill(r.Path())
}

// legendBackdrop keeps the legend readable where lines cross it. It is drawn last, which
// is before the legend.
type legendBackdrop struct{}

// Plot implements plot.Plotter.
func (legendBackdrop) Plot(c draw.Canvas, p *plot.Plot) {
	size := p.Legend.Rectangle(c).Size()
	if size.Y <= 0 {
		return
	}
	const pad = 5 * pixel
	r := vg.Rectangle{Min: vg.Point{X: c.Max.X - size.X + p.Legend.XOffs - 2*pad, Y: c.Max.Y - size.Y + p.Legend.YOffs - 2*pad}}
	if p.Legend.Left {
		r.Min.X = c.Min.X + p.Legend.XOffs - pad
	}
	if !p.Legend.Top {
		r.Min.Y = c.Min.Y + p.Legend.YOffs - pad
	}
	r.Max = vg.Point{X: r.Min.X + size.X + 3*pad, Y: r.Min.Y + size.Y + 3*pad}
	backdrop(c, r)
}
