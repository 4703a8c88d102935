package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"tierd/pkg/control"
	"tierd/pkg/units"
)

func newRelocationCommand(g *globals) *cobra.Command {
	return group("relocation", "Movement of extents between tiers", "",
		newRelocationStatusCommand(g), newRelocationPlanCommand(g), newRelocationRunCommand(g),
		newRelocationPauseCommand(g), newRelocationResumeCommand(g))
}

func newRelocationStatusCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what relocation does, has done and may still do",
		Long: `Status shows whether extents may move now, the budget that is left, what has
moved since the daemon's start, and the last plan. Moves that were planned and
not carried out are listed as skipped, by reason; an extent that is too_busy is
written all the time, and tried again later.`,
		Example: "  tierctl relocation status",
		Args:    args(),
		RunE: func(c *cobra.Command, _ []string) error {
			return askRelocation(g, "", func(s control.Service) (control.RelocationStatus, error) { return s.RelocationStatus(c.Context()) })
		},
	}
}

// askRelocation makes a call that answers with relocation's status, and prints it
// below the text given.
func askRelocation(g *globals, above string, call func(control.Service) (control.RelocationStatus, error)) error {
	return ask(g, call, func(w io.Writer, s control.RelocationStatus) error {
		fmt.Fprint(w, above)
		return showRelocationStatus(w, s)
	})
}

func showRelocationStatus(w io.Writer, s control.RelocationStatus) error {
	if x := s.Settled; x != nil {
		fmt.Fprintf(w, "ended: %s, after %s (%s)\n", x.Reason, count(x.Extents, "move"), size(x.Bytes))
	}
	t := newTable(w)
	state := string(s.State)
	if !s.WindowUntil.IsZero() {
		state += ", until " + timestamp(s.WindowUntil)
	}
	t.row("state", state)
	t.row("cycle", fmt.Sprintf("%d, every %s, next at %s", s.Cycle, seconds(s.CycleSeconds), timestamp(s.NextCycleAt)))
	rate := units.Rate(s.RateBytesPerSecond).Human()
	if s.ThrottleBytesPerSec >= 0 {
		rate += fmt.Sprintf(", held to %s beside the requests of clients", units.Rate(s.ThrottleBytesPerSec).Human())
	}
	t.row("rate", rate)
	t.row("budget left", fmt.Sprintf("%s this cycle, %s today", limit(s.BudgetLeftCycle), limit(s.BudgetLeftDay)))
	t.row("moves", fmt.Sprintf("%d in flight, %d queued", s.InFlight, s.Queued))
	if skipped := byReason(s.Skipped); skipped != "" {
		t.row("skipped", skipped)
	}
	if p := s.LastPlan; p != nil {
		t.row("last plan", timestamp(p.At)+", "+planLine(*p))
	}
	if err := t.flush(); err != nil || len(s.Moved) == 0 {
		return err
	}

	fmt.Fprintln(w)
	t = newTable(w, "MOVED", "FROM", "TO", "EXTENTS", "BYTES")
	for _, m := range s.Moved {
		t.row(m.Direction, m.From, m.To, m.Extents, size(m.Bytes))
	}
	return t.flush()
}

// byReason lists numbers above 0 by name: "3 too_busy, 1 unmapped".
func byReason(counts map[string]int64) string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[reason]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, reason))
		}
	}
	return strings.Join(parts, ", ")
}

func planLine(p control.PlanSummary) string {
	when := "not within two weeks"
	if p.EtaSeconds >= 0 {
		when = "in about " + seconds(p.EtaSeconds)
	}
	return fmt.Sprintf("%s: %s up, %s down, %s rebalanced, %s",
		count(p.Moves, "move"), size(p.PromotionBytes), size(p.DemotionBytes), size(p.RebalanceBytes), when)
}

// gainLine says what a plan makes of the mean latency; "" if nothing is accessed.
func gainLine(p control.PlanSummary) string {
	if p.LatencySeconds <= 0 {
		return ""
	}
	return fmt.Sprintf("mean access by the model, nothing answered from memory: %s now, %s afterwards (%+.1f %%)\n",
		milliseconds(p.LatencySeconds), milliseconds(p.LatencyAfterSeconds), 100*(p.LatencyAfterSeconds/p.LatencySeconds-1))
}

func milliseconds(seconds float64) string { return fmt.Sprintf("%.3g ms", seconds*1e3) }

func newRelocationPlanCommand(g *globals) *cobra.Command {
	var r control.RelocationPlanRequest
	c := &cobra.Command{
		Use:   "plan",
		Short: "Show what would move now, and what would not",
		Long: `Plan makes a plan and does not carry it out: what it writes to each tier and
backing and when it would be done, within the windows and at the permitted rates;
the mean latency before and after; the best moves with heat, gain and reason; and
what is left where it is for which reason, the hottest by name. Heat is in seconds
of a device's time per second, gain in seconds of waiting saved per second.
"relocation run" carries out what plan shows, if nothing has changed since.

Reasons of moves:
  hot               earns more in a faster tier
  cold              makes room for a hotter extent
  policy            the volume's policy asks for that tier
  warm              its tier is overloaded, and answers slower than the next
  room              the tier has less free than its headroom
  balance           its backing is the busiest of the tier, or the fullest

Reasons to stay:
  no_gain           is where it should be, or the move would not pay for itself
  settled           its policy is fulfilled
  young             not known for long enough
  cooling           moved a short while ago
  budget            would pay, but what a cycle may move is spent
  headroom          the free slots of the target are kept for first writes
  target_full       no slot there, and nothing there that may leave
  target_unhealthy  the target takes no writes
  wear              would pay, but the target's endurance leaves no more for today
  parked            could not be moved, and is not tried again yet
  pinned            not to be moved`,
		Example: "  tierctl relocation plan --limit 50",
		Args:    args(),
		RunE: func(c *cobra.Command, _ []string) error {
			if r.Limit < 1 {
				return usagef("--limit must be above 0 (got %d)", r.Limit)
			}
			return runRelocationPlan(c.Context(), g, r)
		},
	}
	c.Flags().IntVar(&r.Limit, "limit", 20, "moves to list")
	return c
}

func runRelocationPlan(ctx context.Context, g *globals, r control.RelocationPlanRequest) error {
	return ask(g, func(s control.Service) (control.RelocationPlan, error) { return s.RelocationPlan(ctx, r) }, showPlan)
}

func showPlan(w io.Writer, p control.RelocationPlan) error {
	fmt.Fprintln(w, planLine(p.Summary))
	fmt.Fprint(w, gainLine(p.Summary))
	if err := showTraffic(w, p.Traffic); err != nil {
		return err
	}
	if len(p.Moves) > 0 {
		fmt.Fprintln(w)
		t := newTable(w, "VOLUME", "EXTENT", "FROM", "TO", "HEAT", "GAIN", "REASON")
		for _, m := range p.Moves {
			t.row(m.Volume, m.Extent, m.From, m.To, heatValue(m.Heat), heatValue(m.Gain), m.Reason)
		}
		if err := t.flush(); err != nil {
			return err
		}
		if more := p.Summary.Moves - len(p.Moves); more > 0 {
			fmt.Fprintf(w, "and %d more\n", more)
		}
	}
	if len(p.Stays) > 0 {
		fmt.Fprintln(w, "\nwanted elsewhere, and left where they are:")
		t := newTable(w, "VOLUME", "EXTENT", "IN", "ACCESSES/S", "REASON")
		for _, x := range p.Stays {
			t.row(x.Volume, x.Extent, x.Tier, heatValue(x.Rate), x.Reason)
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if len(p.Summary.Rejected) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t := newTable(w, "NOT MOVED", "EXTENTS")
	for _, reason := range slices.Sorted(maps.Keys(p.Summary.Rejected)) {
		t.row(reason, p.Summary.Rejected[reason])
	}
	return t.flush()
}

// showTraffic lists what is written to tiers and backings, and leaves them.
func showTraffic(w io.Writer, traffic []control.PlanTraffic) error {
	if len(traffic) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t := newTable(w, "TIER", "BACKING", "COMES UP", "COMES DOWN", "REBALANCED", "WRITTEN", "LEAVES")
	for _, x := range traffic {
		t.row(x.Tier, orDash(x.BackingPath), size(x.PromotionBytes), size(x.DemotionBytes), size(x.RebalanceBytes), size(x.WrittenBytes), size(x.LeavingBytes))
	}
	return t.flush()
}

func newRelocationRunCommand(g *globals) *cobra.Command {
	var r control.RelocationRunRequest
	var now bool
	c := &cobra.Command{
		Use:   "run",
		Short: "Start a cycle now",
		Long: `Run starts a cycle without waiting for its time. Budget and windows hold all
the same. With --until-settled it plans and moves again and again until there is
nothing left that pays, and tells why it ended:
  settled        nothing pays any more
  budget         something would, and the budget is spent
  closed_window  no window is open
  stuck          what is planned cannot be carried out now (see "skipped")
Each plan has the amount of a cycle; that of the day holds for all together.`,
		Example: "  tierctl relocation run --wait\n  tierctl relocation run --until-settled",
		Args:    args(),
		RunE: func(c *cobra.Command, _ []string) error {
			would := "a cycle would start"
			if r.UntilSettled {
				would = "cycles would run until nothing pays any more"
			}
			return askRelocation(g, announce(would, r.DryRun), func(s control.Service) (control.RelocationStatus, error) {
				return s.RelocationRun(c.Context(), r)
			})
		},
	}
	c.Flags().BoolVar(&now, "now", true, "start now, which is what run does")
	c.Flags().BoolVar(&r.Wait, "wait", false, "return when the cycle's moves are done")
	c.Flags().BoolVar(&r.UntilSettled, "until-settled", false, "return when nothing is left that pays")
	dryRunFlag(c, &r.DryRun)
	return c
}

func newRelocationPauseCommand(g *globals) *cobra.Command {
	return newSwitchCommand(g, control.Service.RelocationPause, "movement would pause", &cobra.Command{
		Use:     "pause",
		Short:   "Move nothing until resume",
		Long:    "Pause keeps extents where they are until `tierctl relocation resume`, or until\nthe daemon is started again. Heat is counted on, and I/O is not affected.",
		Example: "  tierctl relocation pause",
	})
}

func newRelocationResumeCommand(g *globals) *cobra.Command {
	return newSwitchCommand(g, control.Service.RelocationResume, "movement would go on", &cobra.Command{
		Use:     "resume",
		Short:   "End a pause",
		Long:    "Resume lets extents move again after `tierctl relocation pause`.",
		Example: "  tierctl relocation resume",
	})
}

// newSwitchCommand completes c, a command that pauses or resumes relocation. would
// says what a dry run leaves undone.
func newSwitchCommand(g *globals, call func(control.Service, context.Context, control.RelocationPauseRequest) (control.RelocationStatus, error), would string, c *cobra.Command) *cobra.Command {
	var r control.RelocationPauseRequest
	c.Args = args()
	c.RunE = func(c *cobra.Command, _ []string) error {
		return askRelocation(g, announce(would, r.DryRun), func(s control.Service) (control.RelocationStatus, error) {
			return call(s, c.Context(), r)
		})
	}
	dryRunFlag(c, &r.DryRun)
	return c
}

// announce returns the line above a status that a dry run has not changed.
func announce(would string, dryRun bool) string {
	if !dryRun {
		return ""
	}
	return dryRunPrefix + would + "\n"
}
