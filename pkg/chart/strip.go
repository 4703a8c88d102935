package chart

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// NoGroup marks a cell of a Strip that is empty.
const NoGroup = -1

// Cell is one cell of a row of heat.
type Cell struct {
	Heat  float64 // 0: none
	Group int     // index into Strip.Groups, whose colour outlines it, or NoGroup
}

// Strip is rows of heat, on a logarithmic scale of colours that all share, with a
// legend. Runs of cells of one group are outlined in its colour; of several rows, each
// has the lower edge alone.
type Strip struct {
	Title string
	X     Axis // cells share it evenly between Min and Max
	Rows  []StripRow
	YAxis string // what the rows are, if there are several

	Groups []string // names, in the order of their colours
	Heat   string   // what is measured, with its unit: the label of the scale
}

// StripRow is one row; the first is on top.
type StripRow struct {
	Label string
	Cells []Cell
}

func (s Strip) height() vg.Length {
	if len(s.Rows) < 4 {
		return fullHeight * 2 / 3
	}
	return fullHeight
}

// maxDecades bounds the scale, so that hot parts are told apart however cold the rest
// is.
const maxDecades = 5

// scaleOf returns the coldest and the hottest heat of the scale.
func (s Strip) scaleOf() (low, high float64, err error) {
	low, high = math.Inf(1), 0
	cells := 0
	for _, r := range s.Rows {
		cells += len(r.Cells)
		for _, c := range r.Cells {
			if !isNumber(c.Heat) || c.Heat < 0 || c.Group < NoGroup || c.Group >= len(s.Groups) {
				return 0, 0, fmt.Errorf("a cell of row %q with heat %v, group %d: %w", r.Label, c.Heat, c.Group, ErrValue)
			}
			if c.Heat > 0 {
				low, high = min(low, c.Heat), max(high, c.Heat)
			}
		}
	}
	if cells == 0 || s.X.Max <= s.X.Min {
		return 0, 0, fmt.Errorf("chart %q: %w", s.Title, ErrEmpty)
	}
	if high == 0 {
		return 0.1, 1, nil // all cold
	}
	low = max(low, high/math.Pow(10, maxDecades))
	if high/low < 10 {
		low = high / 10
	}
	return low, high, nil
}

// heatStops are the colours from cold to hot; the eye ranks them by their darkness, also
// in a black and white print.
var heatStops = []color.NRGBA{{255, 247, 210, 255}, {254, 217, 118, 255}, {253, 141, 60, 255}, {227, 26, 28, 255}, {90, 0, 38, 255}}

var (
	coldColor  = color.NRGBA{226, 232, 238, 255} // in use, without any heat
	emptyColor = color.NRGBA{255, 255, 255, 255}
)

// heatColor returns the colour of a place on the scale, 0 to 1.
func heatColor(at float64) color.NRGBA {
	at = min(max(at, 0), 1) * float64(len(heatStops)-1)
	i := min(int(at), len(heatStops)-2)
	mix := func(a, b uint8) uint8 {
		return uint8(math.Round(float64(a) + (float64(b)-float64(a))*(at-float64(i))))
	}
	a, b := heatStops[i], heatStops[i+1]
	return color.NRGBA{mix(a.R, b.R), mix(a.G, b.G), mix(a.B, b.B), 255}
}

// groupColors are apart from those of heat.
var groupColors = []color.NRGBA{{0, 114, 178, 255}, {0, 158, 115, 255}, {120, 120, 120, 255}, {204, 121, 167, 255}, {86, 180, 233, 255}, {0, 0, 0, 255}}

func groupColor(i int) color.NRGBA { return groupColors[min(i, len(groupColors)-1)] }

func (s Strip) draw(c draw.Canvas) error {
	low, high, err := s.scaleOf()
	if err != nil {
		return err
	}
	p := newPlot(s.Title, s.X, Axis{Label: s.YAxis})
	if err := s.X.scale(&p.X, s.X.Min, s.X.Max); err != nil {
		return err
	}
	p.Y.Min, p.Y.Max = 0, float64(len(s.Rows))
	p.Y.Tick.Marker = plot.ConstantTicks(s.rowTicks())
	if len(s.Rows) == 1 {
		p.Y.Tick.Length, p.Y.LineStyle.Width = 0, 0
	}
	p.Add(cells{s, low, high})
	side := 150 * pixel
	body := c
	body.Max.X -= side
	p.Draw(body)
	s.drawLegend(draw.Canvas{Canvas: c.Canvas, Rectangle: vg.Rectangle{Min: vg.Point{X: c.Max.X - side + 24*pixel, Y: c.Min.Y + 30*pixel}, Max: vg.Point{X: c.Max.X, Y: c.Max.Y - 34*pixel}}}, p, low, high)
	return nil
}

// rowTicks labels rows, at most some twenty of them.
func (s Strip) rowTicks() []plot.Tick {
	every := (len(s.Rows) + 19) / 20
	var ticks []plot.Tick
	for i, r := range s.Rows {
		if i%every == 0 && r.Label != "" {
			ticks = append(ticks, plot.Tick{Value: float64(len(s.Rows)-i) - 0.5, Label: clean(r.Label)})
		}
	}
	if len(ticks) == 0 { // the axis cannot be without
		ticks = append(ticks, plot.Tick{Value: float64(len(s.Rows)) / 2, Label: " "})
	}
	return ticks
}

// drawLegend draws the scale of colours, and the groups below it.
func (s Strip) drawLegend(c draw.Canvas, p *plot.Plot, low, high float64) {
	style := p.X.Tick.Label
	style.Font.Size, style.XAlign, style.YAlign = tickSize, draw.XLeft, draw.YCenter
	const rowHeight = 22 * pixel
	for i := len(s.Groups) - 1; i >= 0; i-- {
		y := c.Min.Y + rowHeight*vg.Length(len(s.Groups)-1-i) + rowHeight/2
		c.SetColor(groupColor(i))
		c.Fill(rect(c.Min.X, y-2.5*pixel, c.Min.X+20*pixel, y+2.5*pixel))
		c.FillText(style, vg.Point{X: c.Min.X + 26*pixel, Y: y}, clean(s.Groups[i]))
	}
	c.Min.Y += rowHeight*vg.Length(len(s.Groups)) + 16*pixel
	heading := style
	heading.YAlign = draw.YBottom
	c.FillText(heading, vg.Point{X: c.Min.X, Y: c.Max.Y}, clean(s.Heat))
	c.Max.Y -= 8 * pixel
	const steps = 64
	h := (c.Max.Y - c.Min.Y) / steps
	for i := range steps {
		c.SetColor(heatColor((float64(i) + 0.5) / steps))
		y := c.Min.Y + h*vg.Length(i)
		c.Fill(rect(c.Min.X, y, c.Min.X+20*pixel, y+h+0.3*pixel))
	}
	for _, t := range logTicks(low, high) {
		if t.Label == "" {
			continue
		}
		y := c.Min.Y + (c.Max.Y-c.Min.Y)*vg.Length(math.Log(t.Value/low)/math.Log(high/low))
		c.StrokeLine2(draw.LineStyle{Color: color.Black, Width: pixel}, c.Min.X+20*pixel, y, c.Min.X+25*pixel, y)
		c.FillText(style, vg.Point{X: c.Min.X + 29*pixel, Y: y}, t.Label)
	}
}

// cells draws the rows of a strip.
type cells struct {
	Strip
	low, high float64
}

var _ plot.Plotter = cells{}

// Plot implements plot.Plotter.
func (s cells) Plot(c draw.Canvas, p *plot.Plot) {
	_, y := p.Transforms(&c)
	for i, r := range s.Rows {
		top, bottom := y(float64(len(s.Rows)-i)), y(float64(len(s.Rows)-i-1))
		edge, single := min(6*pixel, (top-bottom)/4), len(s.Rows) == 1
		x := func(cell int) vg.Length {
			return c.Min.X + (c.Max.X-c.Min.X)*vg.Length(cell)/vg.Length(len(r.Cells))
		}
		runs(r.Cells, s.color, func(from, to int, colour color.NRGBA) {
			c.SetColor(colour)
			c.Fill(rect(x(from), bottom+edge, x(to), top))
		})
		runs(r.Cells, func(cell Cell) int { return cell.Group }, func(from, to, group int) {
			if group == NoGroup {
				return
			}
			c.SetColor(groupColor(group))
			c.Fill(rect(x(from), bottom, x(to), bottom+edge))
			if !single {
				return
			}
			c.Fill(rect(x(from), top-edge, x(to), top))
			// The sides are drawn where they are not taken for heat.
			if side := 2 * pixel; x(to)-x(from) > 60*side {
				c.Fill(rect(x(from), bottom, x(from)+side, top))
				c.Fill(rect(x(to)-side, bottom, x(to), top))
			}
		})
	}
}

func (s cells) color(c Cell) color.NRGBA {
	switch {
	case c.Heat > 0:
		return heatColor(math.Log(c.Heat/s.low) / math.Log(s.high/s.low))
	case c.Group == NoGroup:
		return emptyColor
	}
	return coldColor
}

// runs calls draw for each run of cells for which of gives the same.
func runs[T comparable](list []Cell, of func(Cell) T, draw func(from, to int, v T)) {
	for from := 0; from < len(list); {
		to, v := from+1, of(list[from])
		for to < len(list) && of(list[to]) == v {
			to++
		}
		draw(from, to, v)
		from = to
	}
}

func rect(x0, y0, x1, y1 vg.Length) vg.Path {
	return vg.Rectangle{Min: vg.Point{X: x0, Y: y0}, Max: vg.Point{X: x1, Y: y1}}.Path()
}
