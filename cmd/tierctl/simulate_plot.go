package main

import (
	"cmp"
	"fmt"
	"slices"

	"tierd/pkg/chart"
	"tierd/tiering/simulate"
)

const (
	// maxPlotPanels bounds a picture: 60 charts are 36,000 pixels.
	maxPlotPanels = 60
	// maxPlotPoints is how many points along time have pixels.
	maxPlotPoints = 600
)

// plotSimulation draws, for each trace, the mean against the size of the fastest tier
// (or the means side by side, if all layouts have the same), and for each layout what
// happened over time.
func plotSimulation(path string, reports []*simulate.Report) error {
	var p chart.Picture
	for _, rep := range reports {
		p = append(p, meansPanel(rep))
		for i := range rep.Layouts {
			p = append(p, timePanels(rep, i)...)
		}
	}
	if len(p) > maxPlotPanels {
		return fmt.Errorf("draw %s: %d charts are too many for a picture (at most %d): simulate fewer traces or layouts", path, len(p), maxPlotPanels)
	}
	return p.WriteFile(path)
}

// results returns what the policies made of a layout.
func results(rep *simulate.Report, layout int) []simulate.PolicyResult {
	n := len(rep.Policies) / len(rep.Layouts)
	return rep.Policies[layout*n : (layout+1)*n]
}

func meansPanel(rep *simulate.Report) chart.Panel {
	title := rep.Trace.Name + ": mean time of an access"
	sizes := make([]float64, len(rep.Layouts))
	differ := false
	for i, slots := range rep.Slots {
		sizes[i] = 100 * float64(slots[0]) / float64(max(rep.Trace.Extents, 1))
		differ = differ || sizes[i] != sizes[0]
	}
	if differ {
		g := chart.Graph{
			Title: title + " against the size of the fastest tier",
			X:     chart.Axis{Label: "fastest tier, % of the extents touched"}, Y: chart.Axis{Label: "ms"},
			LegendLeft: true, LegendLow: true,
		}
		for k, p := range results(rep, 0) {
			s := chart.Series{Name: p.Name, Dots: true}
			for i := range rep.Layouts {
				s.Points = append(s.Points, chart.Point{X: sizes[i], Y: results(rep, i)[k].MeanMS})
			}
			slices.SortStableFunc(s.Points, func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
			g.Lines = append(g.Lines, s)
		}
		return g
	}
	b := chart.Bars{Title: title, Y: chart.Axis{Label: "ms"}, Label: func(v float64) string { return fixed(v, 2) }}
	for i, l := range rep.Layouts {
		s := chart.BarSeries{Name: l.Name}
		for _, p := range results(rep, i) {
			if i == 0 {
				b.Groups = append(b.Groups, p.Name)
			}
			s.Values = append(s.Values, p.MeanMS)
		}
		b.Series = append(b.Series, s)
	}
	return b
}

// timePanels draws one layout over time: the mean under each policy; and under the
// planner, or else the first policy, what each tier holds and serves.
func timePanels(rep *simulate.Report, layout int) []chart.Panel {
	all := results(rep, layout)
	where := rep.Trace.Name + ", layout " + rep.Layouts[layout].Name
	x, scale := timeAxis(rep)
	means := chart.Graph{Title: where + ": mean time of an access", X: x, Y: chart.Axis{Label: "ms"}}
	for _, p := range all {
		s := chart.Series{Name: p.Name}
		for _, c := range thin(p.Cycles) {
			if c.Accesses > 0 {
				s.Points = append(s.Points, chart.Point{X: c.Start * scale, Y: c.MeanMS})
			}
		}
		if len(s.Points) > 0 {
			means.Lines = append(means.Lines, s)
		}
	}
	if len(means.Lines) == 0 {
		return nil
	}
	shown := max(slices.IndexFunc(all, func(p simulate.PolicyResult) bool { return p.Name == simulate.Planner }), 0)
	if len(all[shown].Cycles) == 0 {
		return []chart.Panel{means}
	}
	under := where + ", " + all[shown].Name
	used := chart.Graph{Title: under + ": data by tier", X: x, Y: chart.Axis{Label: "GiB"}}
	served := chart.Graph{Title: under + ": accesses by tier", X: x, Y: chart.Axis{Label: "accesses a second"}}
	cycles := thin(all[shown].Cycles)
	each := rep.Cycle.Seconds() * float64(perPoint(len(all[shown].Cycles)))
	for k, t := range rep.Layouts[layout].Tiers {
		area, line := chart.Series{Name: t.Name}, chart.Series{Name: t.Name}
		for _, c := range cycles {
			at := c.Start * scale
			area.Points = append(area.Points, chart.Point{X: at, Y: float64(c.Tiers[k].Used) * float64(rep.Settings.ExtentSize) / (1 << 30)})
			line.Points = append(line.Points, chart.Point{X: at, Y: float64(c.Tiers[k].Reads+c.Tiers[k].Writes) / each})
		}
		used.Areas, served.Lines = append(used.Areas, area), append(served.Lines, line)
	}
	return []chart.Panel{means, used, served}
}

// timeAxis returns the axis of time in a unit that suits the trace, and what seconds are
// multiplied with.
func timeAxis(rep *simulate.Report) (chart.Axis, float64) {
	unit, scale := "seconds", 1.0
	switch total := rep.Cycle.Seconds() * float64(rep.Cycles); {
	case total > 3*24*3600:
		unit, scale = "days", 1./(24*3600)
	case total > 2*3600:
		unit, scale = "hours", 1./3600
	case total > 5*60:
		unit, scale = "minutes", 1./60
	}
	label := unit + " since the trace began"
	if !rep.Trace.Timed {
		label += " (it has no times: equal numbers of requests)"
	}
	return chart.Axis{Label: label}, scale
}

// perPoint returns how many cycles are drawn as one point.
func perPoint(cycles int) int { return max((cycles+maxPlotPoints-1)/maxPlotPoints, 1) }

// thin joins cycles so that there are at most maxPlotPoints: counts are summed, the mean
// is that of the accesses, and what a tier holds is that of the last. A last group that
// is not full is left out if there are others, since its counts are of a shorter time.
func thin(cycles []simulate.CycleResult) []simulate.CycleResult {
	n := perPoint(len(cycles))
	if n == 1 {
		return cycles
	}
	var out []simulate.CycleResult
	for part := range slices.Chunk(cycles, n) {
		if len(part) < n {
			break
		}
		sum := simulate.CycleResult{Start: part[0].Start, Tiers: slices.Clone(part[len(part)-1].Tiers)}
		for k := range sum.Tiers {
			sum.Tiers[k].Reads, sum.Tiers[k].Writes = 0, 0
		}
		for _, c := range part {
			sum.Accesses += c.Accesses
			sum.MeanMS += c.MeanMS * float64(c.Accesses)
			for k, t := range c.Tiers {
				sum.Tiers[k].Reads += t.Reads
				sum.Tiers[k].Writes += t.Writes
			}
		}
		sum.MeanMS /= float64(max(sum.Accesses, 1))
		out = append(out, sum)
	}
	return out
}
