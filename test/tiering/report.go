package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"tierd/pkg/units"
)

// A tally is what was moved in some time.
type tally struct {
	Bytes     int64 `json:"moved_bytes"`
	Extents   int64 `json:"moved_extents"`
	PingPongs int64 `json:"ping_pongs"` // extents taken back within pingPongCycles
}

// pingPongCycles is for how many cycles a move counts as undone if it is.
const pingPongCycles = 10

// approached is how a pool adapted to a load. Shares are of the load, by tier.
type approached struct {
	curve
	tally
	ColdShares [3]float64 `json:"cold_shares"`
	Shares     [3]float64 `json:"final_shares"`
	MeanMS     []float64  `json:"mean_ms"` // second by second
}

// compared is the placement that was found beside the ideal one.
type compared struct {
	FoundMS     float64    `json:"found_ms"`
	IdealMS     float64    `json:"ideal_ms"`
	IdealShares [3]float64 `json:"ideal_shares"`
	Ratios      []float64  `json:"ratios"`
	Steady      tally      `json:"steady"` // meanwhile
}

// grain is what extents can do for hot blocks of 4 KiB. Shares are of the load, on the
// fastest tier.
type grain struct {
	curve
	Before      float64 `json:"share_before"`
	After       float64 `json:"share_after"`
	BestExtents float64 `json:"share_of_best_extents"`
	BestBlocks  float64 `json:"share_of_best_blocks"`
}

// front is the load beside movement.
type front struct {
	Parts          [3]float64 `json:"shares"`
	Without        float64    `json:"p99_without_ms"`
	With           float64    `json:"p99_with_ms"`
	Ratios         []float64  `json:"ratios"`
	MeanRatio      float64    `json:"ratio_of_means"`
	Moved          int64      `json:"moved_bytes"`
	MovedPerSecond float64    `json:"moved_bytes_per_second"`
}

// nothing is a load for which no placement is better than another.
type nothing struct {
	Fill    int64   `json:"moved_bytes_after_fill"`
	Load    int64   `json:"moved_bytes"`
	Late    int64   `json:"moved_bytes_second_half"`
	Volume  int64   `json:"volume_bytes"`
	Seconds float64 `json:"seconds"`
}

// spent is movement beside its budgets, as the file system below counts it.
type spent struct {
	PerCycle    int64   `json:"per_cycle_bytes"`
	PerDay      int64   `json:"per_day_bytes"`
	Told        int64   `json:"told_bytes"`    // by the daemon's moves, from the kill to a stop
	Counted     int64   `json:"counted_bytes"` // below, meanwhile
	AtKill      int64   `json:"counted_at_kill_bytes"`
	Refunded    int64   `json:"forgotten_at_kill_bytes"`
	Total       int64   `json:"counted_total_bytes"`
	MostInCycle int64   `json:"most_in_cycle_bytes"`
	OverCycle   int64   `json:"over_cycle_bytes"`
	Ahead       float64 `json:"ahead_of_rate_bytes"`
}

// A report is all that was measured; what was not is nil.
type report struct {
	Time    string   `json:"time"`
	Version string   `json:"version"`
	Command string   `json:"command"`
	Cores   int      `json:"cores"`
	Load    string   `json:"load_average"`
	Seed    uint64   `json:"seed"`
	Skipped []string `json:"skipped,omitempty"`

	Converge   *approached `json:"converge,omitempty"`
	Ideal      *compared   `json:"ideal,omitempty"`
	Phase      *approached `json:"phase_change,omitempty"`
	Grain      *grain      `json:"grain_4k,omitempty"`
	Foreground *front      `json:"foreground,omitempty"`
	Uniform    *nothing    `json:"uniform,omitempty"`
	Budget     *spent      `json:"budget,omitempty"`
	Marks      []mark      `json:"marks"`

	quick bool
}

func newReport(o *options, args []string) *report {
	version := "unknown"
	if out, err := exec.Command(filepath.Join(o.bin, "tierd"), "--version").Output(); err == nil {
		version = strings.TrimSpace(string(out))
	}
	load, _ := os.ReadFile("/proc/loadavg")
	return &report{
		Time: time.Now().UTC().Format(time.RFC3339), Version: version, Command: strings.TrimSpace("tiering " + strings.Join(args, " ")),
		Cores: runtime.NumCPU(), Load: strings.TrimSpace(string(load)), Seed: o.seed, quick: o.quick, Marks: []mark{},
	}
}

// mark judges a value, which must be at most limit. A quick run leaves alone what is for
// long ones: what depends on times, and what a kill makes the daemon forget (see README.md).
func (r *report) mark(name string, value, limit float64, long bool) {
	if long && r.quick {
		return
	}
	r.Marks = append(r.Marks, mark{name, value, limit, value <= limit})
}

func (r *report) missed() bool {
	for _, m := range r.Marks {
		if !m.Met {
			return true
		}
	}
	return false
}

func (r *report) write(o *options, stdout io.Writer) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if o.json != "" {
		if err := os.WriteFile(o.json, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	if o.format == "json" {
		_, err = fmt.Fprintf(stdout, "%s\n", text)
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s, %d processors, load average %s, seed %d\n%s\n\n", r.Time, r.Version, r.Cores, r.Load, r.Seed, r.Command)
	r.table(&b, o)
	_, err = io.WriteString(stdout, b.String())
	return err
}

// table writes what was measured, a row each, and then the marks.
func (r *report) table(w io.Writer, o *options) {
	line := func(cells ...string) { fmt.Fprintf(w, "%-12s  %-44s  %s\n", cells[0], cells[1], cells[2]) }
	rule := func() {}
	if o.format == "markdown" {
		line = func(cells ...string) { fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | ")) }
		rule = func() { line("---", "---", "---") }
	}
	row := func(scenario, what, format string, args ...any) { line(scenario, what, fmt.Sprintf(format, args...)) }
	shares := func(s [3]float64) string { return fmt.Sprintf("%.1f / %.1f / %.1f %%", 100*s[0], 100*s[1], 100*s[2]) }
	size := func(n int64) string { return units.Size(n).Human() }
	moved := func(name string, t tally) {
		row(name, "moved; taken back within 10 cycles", "%s, %d extents; %d", size(t.Bytes), t.Extents, t.PingPongs)
	}
	approach := func(name string, a *approached) {
		row(name, "mean latency at first, at the end", "%.2f ms, %.2f ms", a.Cold, a.Final)
		row(name, "time to 90 % of the gain", "%s", seconds(a.Reach90))
		row(name, "load by tier at first (ssd / fc / sata)", "%s", shares(a.ColdShares))
		row(name, "at the end", "%s", shares(a.Shares))
		moved(name, a.tally)
	}
	line("scenario", "figure", "value")
	rule()
	if r.Converge != nil {
		approach("from cold", r.Converge)
	}
	if c := r.Ideal; c != nil {
		row("ideal", "mean latency found, ideal (medians)", "%.2f ms, %.2f ms", c.FoundMS, c.IdealMS)
		row("ideal", "load by tier if ideal", "%s", shares(c.IdealShares))
		moved("ideal", c.Steady)
	}
	if r.Phase != nil {
		approach("hot set moves", r.Phase)
	}
	if g := r.Grain; g != nil {
		row("4 KiB grain", "mean latency at first, at the end", "%.2f ms, %.2f ms", g.Cold, g.Final)
		row("4 KiB grain", "load on ssd at first, at the end", "%.1f %%, %.1f %%", 100*g.Before, 100*g.After)
		row("4 KiB grain", "with the best extents, with the best blocks", "%.1f %%, %.1f %%", 100*g.BestExtents, 100*g.BestBlocks)
	}
	if f := r.Foreground; f != nil {
		row("foreground", "p99 without, with movement (medians)", "%.1f ms, %.1f ms", f.Without, f.With)
		row("foreground", "ratio of means", "%.2f", f.MeanRatio)
		row("foreground", "moved meanwhile", "%s/s", size(int64(f.MovedPerSecond)))
	}
	if n := r.Uniform; n != nil {
		row("uniform", "moved by the end of the fill, under load", "%s, %s in %.0f s, %s of it in the second half", size(n.Fill), size(n.Load), n.Seconds, size(n.Late))
	}
	if b := r.Budget; b != nil {
		row("budget", "told by moves, counted below (from kill to stop)", "%d, %d bytes", b.Told, b.Counted)
		row("budget", "most in a cycle, allowed", "%d, %d bytes", b.MostInCycle, b.PerCycle)
		row("budget", "at the kill, in all, allowed a day", "%d, %d, %d bytes", b.AtKill, b.Total, b.PerDay)
		row("budget", "forgotten by the kill", "%d bytes", b.Refunded)
		row("budget", "ahead of the rate at most", "%.0f bytes", b.Ahead)
	}
	fmt.Fprintln(w)
	line("mark", "at most", "is")
	rule()
	for _, m := range r.Marks {
		verdict := "met"
		if !m.Met {
			verdict = "MISSED"
		}
		line(verdict, fmt.Sprintf("%g", m.Limit), fmt.Sprintf("%.4g  %s", m.Value, m.Name))
	}
	for _, s := range r.Skipped {
		fmt.Fprintln(w, "SKIPPED:", s)
	}
}

func seconds(s float64) string {
	if s < 0 {
		return "never"
	}
	return fmt.Sprintf("%.0f s", s)
}

// endOfLog returns the length of the daemon's log.
func (p *pool) endOfLog() int64 {
	st, err := os.Stat(p.log())
	if err != nil {
		return 0
	}
	return st.Size()
}

// tally sums up what the daemon's log tells from there on.
func (p *pool) tally(from int64) (t tally, err error) {
	text, err := os.ReadFile(p.log())
	if err != nil {
		return t, err
	}
	moves, err := movesOf(string(text[from:]))
	t.Bytes, t.Extents = sum(moves)
	t.PingPongs = pingPongs(moves, pingPongCycles*p.Cycle)
	return t, err
}
