package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// ours is the server that the others are compared with.
const ours = "tierd"

// A report is all that was measured.
type report struct {
	Machine   machine      `json:"machine"`
	Load      string       `json:"load"` // the generator
	Size      int64        `json:"size_bytes"`
	FillBlock int64        `json:"fill_block"`
	Rounds    int          `json:"rounds"`
	Seconds   float64      `json:"seconds"` // of a measurement
	Servers   []string     `json:"servers"`
	LeftOut   []string     `json:"left_out"` // "name: why"
	Workloads []comparison `json:"workloads"`
	// Means are the geometric means of the median ratios, by peer.
	Means map[string]float64 `json:"geometric_means"`
}

// A comparison is one workload on all servers.
type comparison struct {
	Workload workload            `json:"workload"`
	Samples  map[string][]sample `json:"samples"` // by server, in order of the rounds
	Ratios   map[string]ratio    `json:"ratios"`  // tierd to a peer
}

// peers are the servers tierd is compared with.
func (r *report) peers() []string {
	return slices.DeleteFunc(slices.Clone(r.Servers), func(s string) bool { return s == ours })
}

// compare works out ratios and means.
func (r *report) compare() {
	r.Means = make(map[string]float64)
	for _, p := range r.peers() {
		var all []float64
		for i := range r.Workloads {
			c := &r.Workloads[i]
			if c.Ratios == nil {
				c.Ratios = make(map[string]ratio)
			}
			q := paired(c.Samples[ours], c.Samples[p])
			c.Ratios[p] = q
			all = append(all, q.Median)
		}
		r.Means[p] = geomean(all)
	}
}

// missed lists the targets that are missed, or could not be looked at.
func (r *report) missed() []string {
	var out []string
	for _, p := range []string{"qemu-nbd", "nbdkit"} {
		if !slices.Contains(r.Servers, p) {
			out = append(out, p+" was not measured")
		}
	}
	for _, c := range r.Workloads {
		if q, ok := c.Ratios["qemu-nbd"]; ok && q.Median <= 1 {
			out = append(out, fmt.Sprintf("%s: %.2f of qemu-nbd, must be above 1", c.Workload.Name, q.Median))
		}
	}
	if m, ok := r.Means["nbdkit"]; ok && m < 1 {
		out = append(out, fmt.Sprintf("geometric mean: %.2f of nbdkit, must be at least 1", m))
	}
	return out
}

// A grid is a table of text; the first column is aligned left, the others right.
type grid struct {
	head []string
	rows [][]string
}

// rates is the table of medians.
func (r *report) rates() grid {
	g := grid{head: []string{"workload", "server", "IOPS", "MiB/s", "mean us", "p99 us", "CPU us/request"}}
	for _, c := range r.Workloads {
		for _, s := range r.Servers {
			m := middle(c.Samples[s])
			g.rows = append(g.rows, []string{c.Workload.Name, s, fmt.Sprintf("%.0f", m.IOPS), fmt.Sprintf("%.0f", m.Bytes/(1<<20)),
				fmt.Sprintf("%.1f", m.Mean), fmt.Sprintf("%.0f", m.P99), fmt.Sprintf("%.1f", m.CPU)})
		}
	}
	return g
}

// ratios is the table of tierd's rate over that of each peer.
func (r *report) ratios() grid {
	g := grid{head: []string{"tierd's rate to that of"}}
	mean := []string{"geometric mean"}
	for _, p := range r.peers() {
		g.head = append(g.head, p, "min..max")
		mean = append(mean, fmt.Sprintf("%.2f", r.Means[p]), "")
	}
	for _, c := range r.Workloads {
		row := []string{c.Workload.Name}
		for _, p := range r.peers() {
			q := c.Ratios[p]
			row = append(row, fmt.Sprintf("%.2f", q.Median), fmt.Sprintf("%.2f..%.2f", q.Min, q.Max))
		}
		g.rows = append(g.rows, row)
	}
	g.rows = append(g.rows, mean)
	return g
}

// lines describe the conditions.
func (r *report) lines() []string {
	m := r.Machine
	lines := []string{
		fmt.Sprintf("%s, %s, %d cores, kernel %s, %s, %s", m.Time, m.CPU, m.Cores, m.Kernel, m.FileSystem, m.Go),
		fmt.Sprintf("load average before %s, after %s", m.Load, m.LoadAfter),
		fmt.Sprintf("commit %s, seed %d: %s", m.Commit, m.Seed, m.Command),
		fmt.Sprintf("%s over Unix sockets, %d MiB each, filled by writes of %d KiB, medians of %d rounds of %g s", r.Load, r.Size>>20, r.FillBlock>>10, r.Rounds, r.Seconds),
	}
	for _, s := range r.LeftOut {
		lines = append(lines, "left out: "+s)
	}
	return lines
}

// write prints the report as "text", "markdown" or "json".
func (r *report) write(w io.Writer, format string) error {
	if format == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	var b strings.Builder
	mark, table := "", grid.text
	if format == "markdown" {
		mark, table = "- ", grid.markdown
	}
	for _, l := range r.lines() {
		b.WriteString(mark + l + "\n")
	}
	b.WriteString("\n" + table(r.rates()))
	if len(r.peers()) > 0 {
		b.WriteString("\n" + table(r.ratios()))
	}
	for _, s := range r.missed() {
		b.WriteString("\n" + mark + "target missed: " + s)
	}
	_, err := io.WriteString(w, strings.TrimRight(b.String(), "\n")+"\n")
	return err
}

// text lays the table out with spaces.
func (g grid) text() string {
	widths := g.widths()
	var b strings.Builder
	for _, row := range append([][]string{g.head}, g.rows...) {
		line := ""
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				line += cell + pad
			} else {
				line += "  " + pad + cell
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

func (g grid) markdown() string {
	var b strings.Builder
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(g.head)
	rule := make([]string, len(g.head))
	for i := range rule {
		rule[i] = "---:"
	}
	rule[0] = "---"
	line(rule)
	for _, row := range g.rows {
		line(row)
	}
	return b.String()
}

func (g grid) widths() []int {
	w := make([]int, len(g.head))
	for _, row := range append([][]string{g.head}, g.rows...) {
		for i, cell := range row {
			w[i] = max(w[i], utf8.RuneCountInString(cell))
		}
	}
	return w
}
