package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"tierd/pkg/chart"
	"tierd/pkg/trace"
	"tierd/pkg/units"
	"tierd/tiering/simulate"
)

const simulateLong = `Simulate replays traces of block I/O against layouts of tiers and tells the mean time
of an access under several policies of placement:

  planner      the heat and the planner of tierd itself, on a virtual clock
  static       the fastest tiers fill first, and nothing ever moves
  lru          what was used last goes up, within the same budget
  clairvoyant  the planner's choice, shown the accesses to come: the best of looking
               1, 2, 4 and 8 parts of 24 of the trace ahead
  bound        what no placement can do better than, within the same budget

Traces are vscsi, MSR or SPC csv, ARC .lis, fio iolog, blkparse text, MQSim, int32
pages, or a recording of tierd; plain, zstd, xz or gzip. Each is replayed by itself.
The trace is cut into extents and cycles; moves are made at the ends of cycles. One
without times counts as a day, and goes by the number of its requests.

A layout lists tiers, fastest first, as NAME:TIME:SIZE, with a comma between them. TIME is
what one device takes for one operation; SIZE a share of the extents that the trace
touches, bytes, or "rest" for the last. Options may follow, each after a colon:

  devices=N        devices that share the load. Without it nothing queues; with it an
                   access takes TIME / (1 - utilisation)
  raid=LEVEL       none, mirror or raid10 (a write makes 2 operations), raid5 (4) or
                   raid6 (6)
  write=TIME       what a write takes, if not the same
  bandwidth=RATE   of the whole tier, for what copies cost; else 100 MB/s, and copies are
                   no load

A name and an equals sign may stand in front. A file (--layouts) says the same in YAML.

The preset "defaults" is what tierd does: a plan every five minutes, its half-lives and
hysteresis, gate of costs, residence and headroom, and a budget of which what is not used
is kept for a while. "paper-eval" is the setting of the reference figures of
docs/simulation.md: 24 cycles, with the half-lives stretched to them. Settings after it
change it.

Without --weigh each access to an extent counts as one random access, which is what it
takes in the model. With it the heat weighs accesses by length, kind and whether they
are sequential, as it does for real disks.`

const simulateExample = `  tierctl simulate web.vscsi
  tierctl simulate --preset paper-eval -o json web.vscsi | jq '.policies[] | {name, mean_ms}'

  # how much SSD is enough?
  tierctl simulate --policy static,planner --plot ssd.svg \
      --tiers ssd:1ms:2%,hdd:12ms:rest --tiers ssd:1ms:5%,hdd:12ms:rest --tiers ssd:1ms:10%,hdd:12ms:rest web.vscsi

  # eight disks as RAID 6 below a mirror of SSDs, at twice the load of the trace
  tierctl simulate --rate 2500 \
      --tiers 'ssd:200us:400GiB:devices=2:raid=mirror,hdd:9ms:rest:devices=8:raid=raid6' web.vscsi`

// simulateOptions are the flags of simulate as they were given.
type simulateOptions struct {
	settings      simulate.Settings
	preset        string
	tiers         []string
	layouts       string
	policies      []string
	format        string
	plot          string
	extentSize    sizeFlag
	budget        budgetFlag
	cycle         durationFlag
	short, long   durationFlag
	hysteresis    percentFlag
	headroom      percentFlag
	weigh         bool
	shortWeight   float64
	costFactor    float64
	residence     uint32
	minAge        uint32
	placement     string
	cycles        int
	rate          float64
	changed       func(flag string) bool
	layoutsParsed []simulate.Layout
}

func newSimulateCommand(g *globals, commands ...*cobra.Command) *cobra.Command {
	var o simulateOptions
	cmd := &cobra.Command{
		Use:     "simulate TRACE...",
		Short:   "Replay traces against layouts of tiers and compare policies",
		Long:    simulateLong,
		Example: simulateExample,
		Args: func(c *cobra.Command, given []string) error {
			if len(given) == 0 {
				return usagef("%sneeds a trace", named(c))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			o.changed = c.Flags().Changed
			if err := o.complete(); err != nil {
				return usagef("%s%v", named(c), err)
			}
			return runSimulate(c.Context(), g, &o, args)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.preset, "preset", "defaults", "settings to start from: "+strings.Join(presetNames(), " or "))
	f.StringArrayVar(&o.tiers, "tiers", nil, "`layout` of tiers; may be repeated (default "+simulate.PaperLayout().String()+")")
	f.StringVar(&o.layouts, "layouts", "", "YAML `file` of layouts")
	f.StringSliceVar(&o.policies, "policy", simulate.Policies(), "policies to compare")
	f.StringVar(&o.plot, "plot", "", "draw into a `file` (.png, .svg): means, and tiers over time")
	f.StringVar(&o.format, "trace-format", "", "format of the traces: "+formatNames()+"; default: detect it")

	// The defaults shown are those of the preset "defaults".
	d := simulate.Defaults()
	o.extentSize, o.cycle = sizeFlag(d.ExtentSize), durationFlag(d.Cycle)
	o.budget = budgetFlag(d.Budget)
	o.short, o.long = durationFlag(d.Heat.ShortHalfLife), durationFlag(d.Heat.LongHalfLife)
	o.hysteresis, o.headroom = percentFlag(100*d.Plan.Hysteresis), percentFlag(100*d.Plan.Headroom)
	f.Var(&o.extentSize, "extent-size", "size of an extent")
	f.Var(&o.cycle, "cycle", "cut the trace into cycles of that length")
	f.IntVar(&o.cycles, "cycles", d.Cycles, "or into so many cycles")
	f.Float64Var(&o.rate, "rate", 0, "stretch the trace to so many requests a second; 0: its own times")
	f.Var(&o.budget, "budget", "what may move: a share of the extents, as exchanges, in each 24th of the trace; bytes a cycle; or none for no limit")
	f.StringVar(&o.placement, "placement", string(d.Placement), "where extents begin: first-touch (all there beforehand) or highest-first (made by their first access)")
	f.BoolVar(&o.weigh, "weigh", !d.CountOnly, "weigh accesses by length, kind and sequence")
	f.Var(&o.short, "short-half-life", "of the heat, what bursts are remembered for")
	f.Var(&o.long, "long-half-life", "of the heat, what habits are remembered for")
	f.Float64Var(&o.shortWeight, "short-weight", d.Heat.ShortWeight, "share of the short half-life in the heat, 0 to 1")
	f.Var(&o.hysteresis, "hysteresis", "how much hotter the newcomer must be")
	f.Var(&o.headroom, "headroom", "share of each tier but the last that promotions leave free")
	f.Float64Var(&o.costFactor, "cost-factor", d.Plan.CostFactor, "times its cost that a move must gain; 0: any gain will do")
	f.Uint32Var(&o.residence, "residence", d.Plan.Residence, "cycles that a moved extent is left alone")
	f.Uint32Var(&o.minAge, "min-age", d.Plan.MinAge, "cycles that an extent must be known before it moves")
	cmd.AddCommand(commands...)
	return cmd
}

// presets are the settings to start from, by name.
var presets = map[string]func() simulate.Settings{"defaults": simulate.Defaults, "paper-eval": simulate.PaperEval}

func presetNames() []string { return []string{"defaults", "paper-eval"} }

// complete turns the flags into settings and layouts, or says what is wrong with
// them.
func (o *simulateOptions) complete() error {
	preset, ok := presets[o.preset]
	if !ok {
		return fmt.Errorf("--preset must be %s (got %q)", strings.Join(presetNames(), " or "), o.preset)
	}
	s := preset()
	set := func(flag string, apply func()) {
		if o.changed(flag) {
			apply()
		}
	}
	if o.changed("cycle") && o.changed("cycles") {
		return errors.New("--cycle and --cycles exclude each other")
	}
	set("extent-size", func() { s.ExtentSize = int64(o.extentSize) })
	set("cycles", func() { s.Cycles, s.Cycle = o.cycles, 0 })
	set("cycle", func() { s.Cycle, s.Stretch = units.Duration(o.cycle).Std(), false })
	set("rate", func() { s.Rate = o.rate })
	set("budget", func() {
		s.Budget = simulate.Budget{Share: o.budget.Share, Bytes: o.budget.Bytes, Carry: s.Budget.Carry}
	})
	set("placement", func() { s.Placement = simulate.Placement(o.placement) })
	set("weigh", func() { s.CountOnly = !o.weigh })
	set("short-half-life", func() { s.Heat.ShortHalfLife = units.Duration(o.short).Std() })
	set("long-half-life", func() { s.Heat.LongHalfLife = units.Duration(o.long).Std() })
	set("short-weight", func() { s.Heat.ShortWeight = o.shortWeight })
	set("hysteresis", func() { s.Plan.Hysteresis = o.hysteresis.fraction() })
	set("headroom", func() { s.Plan.Headroom = o.headroom.fraction() })
	set("cost-factor", func() { s.Plan.CostFactor = o.costFactor })
	set("residence", func() { s.Plan.Residence = o.residence })
	set("min-age", func() { s.Plan.MinAge = o.minAge })
	if err := s.Validate(); err != nil {
		return err
	}
	o.settings = s

	for _, text := range o.tiers {
		l, err := simulate.ParseLayout(text)
		if err != nil {
			return fmt.Errorf("--tiers: %w", err)
		}
		o.layoutsParsed = append(o.layoutsParsed, l)
	}
	if o.layouts != "" {
		more, err := readLayouts(o.layouts)
		if err != nil {
			return fmt.Errorf("--layouts: %w", err)
		}
		o.layoutsParsed = append(o.layoutsParsed, more...)
	}
	if len(o.layoutsParsed) == 0 {
		o.layoutsParsed = []simulate.Layout{simulate.PaperLayout()}
	}
	if err := simulate.ValidateChoice(o.layoutsParsed, o.policies); err != nil {
		return err
	}
	if o.plot != "" {
		if _, err := chart.FormatOf(o.plot); err != nil {
			return fmt.Errorf("--plot: %w", err)
		}
	}
	if o.format != "" && !strings.Contains(" "+formatNames()+",", " "+o.format+",") {
		return fmt.Errorf("--trace-format must be one of %s (got %q)", formatNames(), o.format)
	}
	return nil
}

// runSimulate replays the traces one after the other and prints the outcome.
func runSimulate(ctx context.Context, g *globals, o *simulateOptions, paths []string) error {
	var reports []*simulate.Report
	for _, path := range paths {
		src := simulate.Source{Name: filepath.Base(path), Open: func() (trace.Reader, error) { return trace.OpenFormat(path, trace.Format(o.format)) }}
		rep, err := simulate.Run(ctx, src, o.layoutsParsed, o.policies, o.settings)
		if err != nil {
			return fmt.Errorf("simulate %s: %w", path, err)
		}
		reports = append(reports, rep)
	}
	if o.plot != "" {
		if err := plotSimulation(o.plot, reports); err != nil {
			return err
		}
	}
	return printSimulation(g, o.preset, reports)
}

// budgetFlag is what may move in a cycle: "2%", "4GiB" or "none".
type budgetFlag simulate.Budget

func (f *budgetFlag) String() string {
	switch {
	case f.Share > 0:
		return units.Percent(100 * f.Share).String()
	case f.Bytes < 0:
		return "none"
	}
	return units.Size(f.Bytes).String()
}

func (f *budgetFlag) Type() string { return "budget" }

// Set parses s.
func (f *budgetFlag) Set(s string) error {
	if s == "none" {
		*f = budgetFlag{Bytes: -1}
		return nil
	}
	if strings.HasSuffix(s, "%") {
		p, err := units.ParsePercent(s)
		if err == nil {
			*f = budgetFlag{Share: p.Fraction()}
		}
		return err
	}
	n, err := units.ParseSize(s)
	if err == nil {
		*f = budgetFlag{Bytes: int64(n)}
	}
	return err
}
