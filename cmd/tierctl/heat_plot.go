package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"tierd/pkg/chart"
	"tierd/pkg/control"
	"tierd/pkg/units"
)

const (
	// maxHeatSamples bounds the rows of a picture; more have no pixels.
	maxHeatSamples = 500
	// heatColumns is how many cells a row of a picture has at most.
	heatColumns = 1000
)

// heatRow is the heat of a volume at one time.
type heatRow struct {
	at time.Time
	control.HeatMap
	cells []chart.Cell // of a picture
}

// samples returns how often the heat is asked for.
func (o *heatOptions) samples() int64 {
	if o.every <= 0 {
		return 1
	}
	return int64(o.length/o.every) + 1
}

// sampleHeat asks for the heat of a volume as often as the flags say, or until it is
// interrupted. Of all but the last map only what is drawn is kept.
func sampleHeat(ctx context.Context, s control.Service, o *heatOptions) ([]heatRow, error) {
	var rows []heatRow
	for n := o.samples(); ; {
		m, err := s.Heat(ctx, control.HeatRequest{Volume: o.volume, Limit: o.limit})
		if err != nil {
			if ctx.Err() != nil && len(rows) > 0 {
				return rows, nil
			}
			return nil, err
		}
		if len(rows) > 0 {
			rows[len(rows)-1].Levels, rows[len(rows)-1].Tier = nil, nil
		}
		rows = append(rows, heatRow{time.Now(), m, heatCells(m)})
		if int64(len(rows)) >= n {
			return rows, nil
		}
		select {
		case <-ctx.Done():
			return rows, nil
		case <-time.After(units.Duration(o.every).Std()):
		}
	}
}

// heatCells turns the levels of a map, 16 to a doubling of a scale whose top is the
// hottest extent, into heats.
func heatCells(m control.HeatMap) []chart.Cell {
	hottest := 0.0
	if len(m.Hottest) > 0 {
		hottest = m.Hottest[0].Heat
	}
	var cells []chart.Cell
	for _, c := range shrink(m, heatColumns) {
		cell := chart.Cell{Group: chart.NoGroup}
		if c.tier != control.TierUnmapped {
			cell.Group = int(c.tier)
		}
		if c.level > 0 {
			cell.Heat = hottest * math.Exp2((float64(c.level)-255)/16)
		}
		cells = append(cells, cell)
	}
	return cells
}

// heatPicture draws the rows of a volume, if there are any, over the curve of skew, if
// there is one.
func heatPicture(rows []heatRow, k control.Skew) chart.Picture {
	var p chart.Picture
	if len(rows) > 0 {
		p = append(p, heatStrip(rows))
	}
	if len(k.Points) > 0 || len(p) == 0 {
		p = append(p, skewGraph(k))
	}
	return p
}

func heatStrip(rows []heatRow) chart.Panel {
	last := rows[len(rows)-1]
	total := last.Extents * last.ExtentSizeBytes
	unit, divisor := "MiB", float64(1<<20)
	for _, u := range []struct {
		name string
		size float64
	}{{"GiB", 1 << 30}, {"TiB", 1 << 40}} {
		if float64(total) >= 4*u.size {
			unit, divisor = u.name, u.size
		}
	}
	s := chart.Strip{
		Title:  fmt.Sprintf("heat of volume %s, %s", last.Volume, size(total)),
		X:      chart.Axis{Label: "offset, " + unit, Max: float64(total) / divisor},
		Groups: last.Tiers, Heat: "device s per s",
	}
	for _, r := range rows {
		row := chart.StripRow{Cells: r.cells}
		// Before a volume grew, its row was shorter.
		for n := int64(len(r.cells)) * last.Extents / max(r.Extents, 1); int64(len(row.Cells)) < n; {
			row.Cells = append(row.Cells, chart.Cell{Group: chart.NoGroup})
		}
		if len(rows) > 1 {
			row.Label = r.at.Local().Format(time.TimeOnly)
		}
		s.Rows = append(s.Rows, row)
	}
	if len(rows) > 1 {
		s.YAxis = "time"
	}
	return s
}

// skewGraph draws the share of the I/O against the share of the data, on a logarithmic
// axis if the hot set is small, with the sizes of the tiers marked.
func skewGraph(k control.Skew) chart.Panel {
	g := chart.Graph{
		Title: skewVerdict(k)[0],
		X:     chart.Axis{Label: "data, hottest first, %"},
		Y:     chart.Axis{Label: "I/O, %", Max: 100},
	}
	g.X.Log = skewNeed(k, hotShare) < 0.2
	var line chart.Series
	for _, p := range k.Points {
		if p.Extents > 0 || !g.X.Log {
			line.Points = append(line.Points, chart.Point{X: 100 * p.Extents, Y: 100 * p.Heat})
		}
	}
	g.Lines = append(g.Lines, line)
	if len(k.Tiers) < 2 || len(k.Points) == 0 {
		return g
	}
	var held int64
	for _, t := range k.Tiers[:len(k.Tiers)-1] {
		verb := "holds"
		if k.Volume == "" {
			held += t.CapacityBytes / k.ExtentSizeBytes
		} else {
			held, verb = held+t.Extents, "has"
		}
		if at := 100 * float64(held) / float64(k.Extents); at > 0 && at <= 100 {
			g.Marks = append(g.Marks, chart.Mark{X: at, Vertical: true, Label: fmt.Sprintf("%s %s this: serves %s, could %s", t.Name, verb, percent(t.Heat), percent(t.BestHeat))})
		}
	}
	return g
}
