package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"tierd/pkg/chart"
	"tierd/tiering/simulate/paper"
)

func fixed(v float64, digits int) string { return strconv.FormatFloat(v, 'f', digits, 64) }

// plotPaper draws Table 3 and figures 8 to 10 into one picture, or each into a folder.
func plotPaper(path string, r paper.Result) error {
	panels := []struct {
		name string
		chart.Picture
	}{
		{"table-3", chart.Picture{table3Bars(r)}},
		{"figure-8", chart.Picture{utilisationBars(r), hyperbola(r)}},
		{"figure-9", chart.Picture{responseBars(r)}},
		{"figure-10", chart.Picture{readBars(r)}},
	}
	if fi, err := os.Stat(path); err == nil && fi.IsDir() || err != nil && filepath.Ext(path) == "" {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("make folder of pictures: %w", err)
		}
		for _, p := range panels {
			if err := p.WriteFile(filepath.Join(path, p.name+".svg")); err != nil {
				return err
			}
		}
		return nil
	}
	var all chart.Picture
	for _, p := range panels {
		all = append(all, p.Picture...)
	}
	return all.WriteFile(path)
}

// table3Bars stacks what makes the mean time of a request.
func table3Bars(r paper.Result) chart.Panel {
	b := chart.Bars{
		Title: "Table 3: mean time of a request", Y: chart.Axis{Label: "ms"}, Stacked: true,
		Series: []chart.BarSeries{{Name: "hits and writes"}, {Name: "read misses"}},
		Label:  func(v float64) string { return fixed(v, 2) + " ms" },
	}
	misses := value(r, "misses")
	for _, row := range r.Table3 {
		miss := misses * row.MissMS / r.Inputs.IOPS
		b.Groups = append(b.Groups, fmt.Sprintf("%s (ratio %.2f)", row.Name, row.Ratio))
		b.Series[0].Values = append(b.Series[0].Values, row.MeanMS-miss)
		b.Series[1].Values = append(b.Series[1].Values, miss)
	}
	return b
}

// value returns a value of the paper's argument by its id.
func value(r paper.Result, id string) float64 {
	for _, v := range r.Values {
		if v.ID == id {
			return v.Value
		}
	}
	panic("simulate paper: no value " + id)
}

func utilisationBars(r paper.Result) chart.Panel {
	b := chart.Bars{
		Title: "Figure 8: utilisation of the drives", Y: chart.Axis{Label: "%", Max: 100},
		Series: []chart.BarSeries{{}}, Label: func(v float64) string { return fixed(v, 0) + " %" },
	}
	for _, d := range r.Inputs.Single {
		b.Groups = append(b.Groups, d.Name)
		b.Series[0].Values = append(b.Series[0].Values, 100*d.Utilisation)
	}
	return b
}

// hyperbola draws the residence time against the utilisation, with the two sets marked.
func hyperbola(r paper.Result) chart.Panel {
	g := chart.Graph{
		Title: "Figure 8: residence time T_R = T_S / (1 - utilisation)", LegendLeft: true,
		X: chart.Axis{Label: "utilisation, %", Max: 100}, Y: chart.Axis{Label: "ms"},
	}
	const last = 95 // %, beyond which the curve hides all else
	for i, d := range r.Inputs.Single {
		ts := paper.SeekRotate(d.SeekMS, d.RPM)
		s := chart.Series{Name: fmt.Sprintf("%s, T_S %s ms", d.Name, paper.Number(ts)), Dashed: i > 0}
		for p := 0; p <= last; p++ {
			s.Points = append(s.Points, chart.Point{X: float64(p), Y: paper.Residence(ts, float64(p)/100)})
		}
		g.Lines = append(g.Lines, s)
		tr := paper.Residence(ts, d.Utilisation)
		g.Marks = append(g.Marks, chart.Mark{X: 100 * d.Utilisation, Y: tr, Label: fmt.Sprintf("%s: %s ms", d.Name, fixed(tr, 1))})
	}
	return g
}

func responseBars(r paper.Result) chart.Panel {
	b := chart.Bars{
		Title: "Figure 9: read time of one drive", Y: chart.Axis{Label: "ms"},
		Series: []chart.BarSeries{{}}, Label: func(v float64) string { return fixed(v, 1) + " ms" },
	}
	for _, t := range r.Inputs.Tiers {
		b.Groups = append(b.Groups, t.Name)
		b.Series[0].Values = append(b.Series[0].Values, t.ReadMS)
	}
	return b
}

func readBars(r paper.Result) chart.Panel {
	b := chart.Bars{
		Title: "Figure 10: reads of all drives of a tier", Y: chart.Axis{Label: "reads a second"},
		Series: []chart.BarSeries{{}}, Label: func(v float64) string { return paper.Number(v) + "/s" },
	}
	for _, t := range r.Inputs.Tiers {
		b.Groups = append(b.Groups, fmt.Sprintf("%s (%s x %d)", t.Name, paper.Number(t.ReadsPerDrive), t.Drives))
		b.Series[0].Values = append(b.Series[0].Values, t.Reads())
	}
	return b
}
