package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"tierd/pkg/units"
	"tierd/test/awake"
	"tierd/test/faultfs"
)

type options struct {
	bin, dir, json string
	scenarios      string
	format         string
	quick          bool
	seed           uint64
	theta          float64
	rate           float64 // requests a second; 0: as many as depth allows
	depth          int
	rounds         int
	half           time.Duration
	converge       time.Duration
	awake          bool

	layout
	volume units.Size // that the load is on
}

// A mark is a bound that a figure has to keep.
type mark struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Limit float64 `json:"limit"` // at most
	Met   bool    `json:"met"`
}

// A scenario measures and reports.
type scenario struct {
	name string
	run  func(context.Context, *options, *report) error
}

var scenarios = []scenario{
	{"converge", converge},
	{"foreground", foreground},
	{"uniform", uniform},
	{"budget", budget},
}

func scenarioNames() (names []string) {
	for _, s := range scenarios {
		names = append(names, s.name)
	}
	return names
}

func main() {
	faultfs.Main()
	awake.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program without the process around it. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := options{layout: layout{Short: 20 * time.Second, Long: 2 * time.Minute}}
	size := func(fs *flag.FlagSet, v *units.Size, name, def, use string) {
		fs.Func(name, use+" (default "+def+")", func(s string) (err error) {
			*v, err = units.ParseSize(s)
			return err
		})
		*v, _ = units.ParseSize(def)
	}
	fs := flag.NewFlagSet("tiering", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.bin, "bin", "bin", "folder of tierd and tierctl")
	fs.StringVar(&o.dir, "dir", "/dev/shm", "folder for the pools; in memory, so that no other disk has a part in it")
	fs.StringVar(&o.scenarios, "scenarios", "", "of "+strings.Join(scenarioNames(), ", ")+"; all if empty")
	fs.StringVar(&o.format, "o", "text", "output: text, markdown or json")
	fs.StringVar(&o.json, "json", "", "file to write the figures to, too, as JSON")
	fs.BoolVar(&o.quick, "quick", false, "some seconds of all, small; judges the budgets alone")
	fs.Uint64Var(&o.seed, "seed", 1, "of offsets and of where the hot regions lie")
	fs.Float64Var(&o.theta, "theta", 1.2, "exponent of zipf")
	fs.Float64Var(&o.rate, "rate", 250, "requests a second, at times of their own; 0: one for each answer")
	fs.IntVar(&o.depth, "depth", 32, "requests in flight, at most")
	fs.IntVar(&o.rounds, "rounds", 7, "rounds of what is compared, each of two halves")
	fs.DurationVar(&o.half, "half", 4*time.Second, "length of a half")
	fs.DurationVar(&o.converge, "converge", 80*time.Second, "time from cold to the final placement")
	fs.BoolVar(&o.awake, "awake", true, "keep the processors from going to sleep")
	size(fs, &o.SSD, "ssd", "64MiB", "size of the fastest tier")
	size(fs, &o.FC, "fc", "256MiB", "size of the middle tier")
	size(fs, &o.SATA, "sata", "1GiB", "size of the slowest tier")
	size(fs, &o.volume, "volume", "640MiB", "size of the volume under load")
	size(fs, &o.Extent, "extent", "1MiB", "size of an extent")
	size(fs, &o.PerCycle, "per-cycle", "14MiB", "budget of movement of a cycle")
	fs.DurationVar(&o.Cycle, "cycle", 2*time.Second, "time between plans")
	o.Rate = units.Rate(8 * units.MiB)
	fs.Func("move-rate", "rate of movement (default 8MiB/s)", func(s string) (err error) {
		o.Rate, err = units.ParseRate(s)
		return err
	})
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	names := scenarioNames()
	if o.scenarios != "" {
		names = strings.Split(o.scenarios, ",")
	}
	if err := o.check(names); err != nil {
		fmt.Fprintf(stderr, "tiering: %v\n", err)
		return 2
	}
	if o.quick {
		o.shrink()
	}
	if o.awake && !o.quick {
		rest, err := awake.Keep(ctx)
		if err != nil {
			fmt.Fprintf(stderr, "tiering: %v\n", err)
			return 1
		}
		defer rest()
	}
	r := newReport(&o, args)
	failed := false
	for _, s := range scenarios {
		if !slices.Contains(names, s.name) {
			continue
		}
		begin := time.Now()
		if err := s.run(ctx, &o, r); err != nil {
			fmt.Fprintf(stderr, "tiering: %s: %v\n", s.name, err)
			failed = true // what was measured by then is told all the same
			if ctx.Err() != nil {
				break
			}
			continue
		}
		fmt.Fprintf(stderr, "%s: %.0f s\n", s.name, time.Since(begin).Seconds())
	}
	if err := r.write(&o, stdout); err != nil {
		fmt.Fprintf(stderr, "tiering: %v\n", err)
		return 1
	}
	if failed || r.missed() {
		return 1
	}
	return 0
}

// check tells what is wrong with the options.
func (o *options) check(names []string) error {
	var errs []error
	bad := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	for _, n := range names {
		bad(!slices.Contains(scenarioNames(), n), "no scenario %q; there are %s", n, strings.Join(scenarioNames(), ", "))
	}
	bad(o.rounds < 1 || o.half < time.Second || o.converge < 8*time.Second, "-rounds must be at least 1, -half 1s and -converge 8s")
	bad(o.rate < 0 || o.depth < 1, "-rate must not be negative, and -depth at least 1")
	bad(o.theta <= 0, "-theta must be above 0")
	bad(o.seed == 0, "-seed must not be 0")
	bad(o.Rate <= 0 || o.PerCycle <= 0, "-move-rate and -per-cycle must be above 0: without a budget there is none to keep")
	bad(o.Extent <= 0 || o.volume%max(o.Extent, 1) != 0, "-volume must be a multiple of -extent")
	bad(o.SSD+o.FC+o.SATA < o.volume+o.volume/8, "the tiers must be larger than the volume by an eighth")
	bad(!slices.Contains([]string{"text", "markdown", "json"}, o.format), "-o is text, markdown or json (got %q)", o.format)
	return errors.Join(errs...)
}

// shrink makes all so small that it takes some seconds.
func (o *options) shrink() {
	o.SSD, o.FC, o.SATA, o.volume, o.Extent = 16*units.MiB, 32*units.MiB, 96*units.MiB, 48*units.MiB, 256*units.KiB
	o.Cycle, o.Short, o.Long = 500*time.Millisecond, 5*time.Second, 30*time.Second
	o.PerCycle, o.rounds, o.half, o.converge = 3*units.MiB, 1, time.Second, 3*time.Second
}
