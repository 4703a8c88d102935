package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"tierd/nbd/load"
)

// wantFaster is how many times as fast the load's end has to be as its begin.
const wantFaster = 3

// burst is for how long the budget lets a silence be made up for.
const burst = 250 * time.Millisecond

// summary is the outcome of a demonstration.
type summary struct {
	first, last edge
	length      time.Duration // of an edge
	moved       int64         // bytes, during the load
	allowed     int64         // by the budget in that time
	why         string        // how that comes about
	checked     int64         // blocks read and compared
	check       string        // what pool check said
	faults      []string
}

// summarise measures the load by what the meter has seen.
func summarise(s shape, m *meter, res *load.Result) (*summary, error) {
	first, last, err := m.edges(s.Edge)
	if err != nil {
		return nil, err
	}
	sum := &summary{first: first, last: last, length: s.Edge}
	if last.mean*wantFaster > first.mean {
		sum.fault("the end is not %d times as fast as the begin", wantFaster)
	}

	// What the budget allows between two looks at it. The first may have come just
	// after a silence, and one move is let through whole at the end.
	a, b := m.shots[0], m.shots[len(m.shots)-1]
	took := b.at.Sub(a.at)
	byRate := int64(float64(s.Rate)*(took+burst).Seconds()) + int64(s.Extent)
	cycles := int64(b.cycle-a.cycle) + 1
	byCycle := cycles * int64(s.PerCycle)
	sum.moved, sum.allowed = b.movedBytes()-a.movedBytes(), min(byRate, byCycle)
	sum.why = fmt.Sprintf("%s for %.1f s; %d cycles of %s would be %s", s.Rate, took.Seconds(), cycles, s.PerCycle, mib(byCycle))
	if sum.moved > sum.allowed {
		sum.fault("more was moved than the budget allows")
	}
	if sum.moved == 0 {
		sum.fault("nothing was moved")
	}

	sum.checked = res.Verify.Checked
	if res.Damaged() {
		sum.fault("%d blocks were not what had been written: %s", res.Verify.Mismatches, strings.Join(res.Verify.Details, "; "))
	}
	for name, n := range res.Errors {
		sum.fault("%d requests failed: %s", n, name)
	}
	return sum, nil
}

func (s *summary) fault(format string, args ...any) {
	s.faults = append(s.faults, fmt.Sprintf(format, args...))
}

// print prints the summary for people.
func (s *summary) print(out io.Writer) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\n\tFIRST %.0f s\tLAST %.0f s\t\t\n", s.length.Seconds(), s.length.Seconds())
	faster := 0.0
	if s.last.mean > 0 {
		faster = float64(s.first.mean) / float64(s.last.mean)
	}
	fmt.Fprintf(w, "mean latency\t%s\t%s\t%.1f times as fast\t\n", milliseconds(s.first.mean), milliseconds(s.last.mean), faster)
	fmt.Fprintf(w, "requests a second\t%.0f\t%.0f\t\t\n", s.first.iops, s.last.iops)
	fmt.Fprintf(w, "reads served by the top tier\t%s\t%s\t\t\n", percent(s.first.share), percent(s.last.share))
	_ = w.Flush() // into memory
	fmt.Fprintf(&b, "\nmoved     %s of %s that the budget allows (%s)\n", mib(s.moved), mib(s.allowed), s.why)
	fmt.Fprintf(&b, "verified  %d blocks read, all as written\n", s.checked)
	fmt.Fprintf(&b, "metadata  %s\n", strings.ReplaceAll(s.check, "\n", "\n          "))
	if len(s.faults) > 0 {
		b.Reset()
		fmt.Fprintf(&b, "\nmoved %s of %s (%s)\n%s\n", mib(s.moved), mib(s.allowed), s.why, s.check)
		fmt.Fprintf(&b, "mean latency %s, then %s\n", milliseconds(s.first.mean), milliseconds(s.last.mean))
	}
	fmt.Fprint(out, b.String())
}

// err returns what was wrong, or nil.
func (s *summary) err() error {
	if len(s.faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(s.faults, "; "))
}
