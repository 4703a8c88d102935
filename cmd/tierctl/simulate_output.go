package main

import (
	"fmt"
	"io"
	"strconv"

	"tierd/tiering/simulate"
)

// simulation is what simulate prints as JSON.
type simulation struct {
	Preset string          `json:"preset"`
	Runs   []simulationRun `json:"runs"`
	// Policies holds every policy on every layout for every trace, by which each names
	// its own.
	Policies []simulate.PolicyResult `json:"policies"`
}

// simulationRun is one trace, and how it was replayed.
type simulationRun struct {
	Trace           simulate.TraceInfo `json:"trace"`
	ExtentSizeBytes int64              `json:"extent_size_bytes"`
	Placement       simulate.Placement `json:"placement"`
	Cycles          int                `json:"cycles"`
	CycleSeconds    float64            `json:"cycle_seconds"`
	BudgetBytes     int64              `json:"budget_bytes"`      // that a cycle adds; negative: no limit
	BudgetMostBytes int64              `json:"budget_most_bytes"` // that a cycle can have, with what others left
	Layouts         []simulationLayout `json:"layouts"`
}

type simulationLayout struct {
	Name  string           `json:"name"`
	Text  string           `json:"text"` // as --tiers takes it
	Tiers []simulationTier `json:"tiers"`
}

type simulationTier struct {
	Name    string  `json:"name"`
	TimeMS  float64 `json:"time_ms"`
	Extents int64   `json:"extents"` // that it holds, at most all that the trace touches
}

func printSimulation(g *globals, preset string, reports []*simulate.Report) error {
	out := simulation{Preset: preset}
	for _, rep := range reports {
		r := simulationRun{
			Trace: rep.Trace, ExtentSizeBytes: rep.Settings.ExtentSize, Placement: rep.Settings.Placement,
			Cycles: rep.Cycles, CycleSeconds: rep.Cycle.Seconds(), BudgetBytes: rep.BudgetBytes, BudgetMostBytes: rep.BudgetMost,
		}
		for i, l := range rep.Layouts {
			sl := simulationLayout{Name: l.Name, Text: l.String()}
			for k, t := range l.Tiers {
				sl.Tiers = append(sl.Tiers, simulationTier{Name: t.Name, TimeMS: t.Time.Seconds() * 1e3, Extents: rep.Slots[i][k]})
			}
			r.Layouts = append(r.Layouts, sl)
		}
		out.Runs = append(out.Runs, r)
		out.Policies = append(out.Policies, rep.Policies...)
	}
	return g.print(out, func(w io.Writer) error {
		for i, rep := range reports {
			if i > 0 {
				fmt.Fprintln(w)
			}
			if err := showSimulation(w, rep); err != nil {
				return err
			}
		}
		return nil
	})
}

// showSimulation prints one trace: what it is, and a table for each layout.
func showSimulation(w io.Writer, rep *simulate.Report) error {
	t := rep.Trace
	length := "no times"
	if t.Timed {
		length = seconds(t.Seconds)
	}
	fmt.Fprintf(w, "%s: %s (%s), %s to %s of %s, %s writes\n", clean(t.Name), count(t.Requests, "request"), length,
		plural(t.Accesses, "access", "accesses"), count(t.Extents, "extent"), size(rep.Settings.ExtentSize), share(t.Writes, t.Accesses))
	budget := limit(rep.BudgetBytes) + " each"
	if rep.BudgetMost > rep.BudgetBytes {
		budget += ", kept up to " + size(rep.BudgetMost)
	}
	fmt.Fprintf(w, "%s, budget %s, extents placed %s\n", count(rep.Cycles, "cycle"), budget, rep.Settings.Placement)
	for i, l := range rep.Layouts {
		fmt.Fprintf(w, "\nlayout %s\n", clean(l.Name))
		heads := []any{"POLICY", "MEAN", "READ", "WRITE", "OF BOUND", "MOVED"}
		for _, tier := range l.Tiers {
			heads = append(heads, tier.Name)
		}
		table := newTable(w, append(heads, "OVERLOADED")...)
		n := len(rep.Policies) / len(rep.Layouts)
		for _, p := range rep.Policies[i*n : (i+1)*n] {
			cells := []any{p.Name, ms(p.MeanMS), ms(p.ReadMS), ms(p.WriteMS), boundShare(p), moved(p)}
			for i := range l.Tiers {
				if i < len(p.TierShare) {
					cells = append(cells, percent(p.TierShare[i]))
				} else {
					cells = append(cells, "-")
				}
			}
			table.row(append(cells, overloaded(p.Overloaded))...)
		}
		if err := table.flush(); err != nil {
			return err
		}
	}
	return nil
}

// boundShare prints what share of the possible gain a policy gets.
func boundShare(p simulate.PolicyResult) string {
	if p.BoundShare == nil {
		return "-"
	}
	return percent(*p.BoundShare)
}

// moved prints what a policy moved; the bound is none.
func moved(p simulate.PolicyResult) string {
	if p.Name == simulate.Bound {
		return "-"
	}
	return size(p.MovedBytes)
}

// overloaded prints in how many cycles a tier could not keep up.
func overloaded(n int64) string {
	if n == 0 {
		return "-"
	}
	return plural(n, "time", "times")
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatInt(n, 10) + " " + many
}

// ms prints milliseconds; none is a dash.
func ms(v float64) string {
	if v == 0 {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', 3, 64) + "ms"
}
