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

	"tierd/test/awake"
	"tierd/test/slowdrive"
)

// The pass marks, for the 99th percentile of FLUSH.
const (
	slowMark = 3 * time.Second
	fastMark = 50 * time.Millisecond
)

type options struct {
	seconds   float64
	scenarios string
	format    string
	bin       string
	dir       string
	iops      float64
	bandwidth float64
	isolation bool
	rounds    int
	awake     bool
}

func main() {
	slowdrive.Main()
	awake.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	fs := flag.NewFlagSet("flush", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Float64Var(&o.seconds, "seconds", 15, "length of a scenario")
	fs.StringVar(&o.scenarios, "scenarios", "", "scenarios by name, separated by commas; all if empty")
	fs.StringVar(&o.format, "o", "text", "output: text or markdown")
	fs.StringVar(&o.bin, "bin", "bin", "folder of tierd and tierctl")
	fs.StringVar(&o.dir, "dir", "/dev/shm", "folder for the files; in memory, so that no other disk has a part in it")
	fs.Float64Var(&o.iops, "iops", 200, "random operations a second of the slow drive")
	fs.Float64Var(&o.bandwidth, "bandwidth", 100e6, "bytes a second of the slow drive")
	fs.BoolVar(&o.isolation, "isolation", false, "measure instead how hits in the fast tier fare beside slow requests on the same connection")
	fs.IntVar(&o.rounds, "rounds", 9, "rounds of -isolation, each -seconds with and -seconds without slow requests")
	fs.BoolVar(&o.awake, "awake", true, "keep the processors from going to sleep during -isolation")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if o.seconds <= 0 || o.rounds < 1 {
		fmt.Fprintf(stderr, "flush: -seconds must be above 0 and -rounds at least 1 (got %v and %d)\n", o.seconds, o.rounds)
		return 2
	}
	if o.isolation {
		return isolation(ctx, &o, stdout, stderr)
	}
	names := scenarioNames()
	if o.scenarios != "" {
		names = strings.Split(o.scenarios, ",")
	}
	for _, n := range names {
		if !slices.Contains(scenarioNames(), n) {
			fmt.Fprintf(stderr, "flush: no scenario %q; there are %s\n", n, strings.Join(scenarioNames(), ", "))
			return 2
		}
	}
	var results []result
	code := 0
	for _, direct := range []bool{false, true} {
		for _, n := range names {
			r, err := measure(ctx, &o, n, direct)
			if err != nil {
				fmt.Fprintf(stderr, "flush: %s: %v\n", n, err)
				return 1
			}
			if !r.met() {
				code = 1
			}
			results = append(results, r)
			fmt.Fprintln(stderr, r)
		}
	}
	report(stdout, &o, results)
	return code
}

// A result is what one scenario showed.
type result struct {
	name   string
	direct bool
	slow   latencies // of FLUSH on the slow drive
	fast   latencies // of FLUSH of the volume with nothing there
	writes int64     // answered on the slow drive
	took   time.Duration
}

func (r result) met() bool {
	return len(r.slow) > 0 && len(r.fast) > 0 && r.slow.quantile(0.99) <= slowMark && r.fast.quantile(0.99) <= fastMark
}

func (r result) mode() string {
	if r.direct {
		return "direct"
	}
	return "cached"
}

func (r result) verdict() string {
	if r.met() {
		return "met"
	}
	return "MISSED"
}

func (r result) row() []string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/1e6) }
	return []string{
		r.name, r.mode(), fmt.Sprintf("%.0f", float64(r.writes)/r.took.Seconds()),
		fmt.Sprint(len(r.slow)), ms(r.slow.quantile(0.5)), ms(r.slow.quantile(0.99)), ms(r.slow.quantile(1)),
		fmt.Sprint(len(r.fast)), ms(r.fast.quantile(0.5)), ms(r.fast.quantile(0.99)), ms(r.fast.quantile(1)), r.verdict(),
	}
}

func (r result) String() string { return strings.Join(r.row(), "  ") }

func report(w io.Writer, o *options, results []result) {
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Fprintf(w, "FLUSH on a drive of %g operations and %g bytes a second; marks: p99 %v there, %v elsewhere\n", o.iops, o.bandwidth, slowMark, fastMark)
	fmt.Fprintf(w, "%s, load average %s\n", time.Now().UTC().Format(time.RFC3339), strings.TrimSpace(string(load)))
	head := []string{"scenario", "mode", "writes/s", "slow n", "p50 ms", "p99 ms", "max ms", "fast n", "p50 ms", "p99 ms", "max ms", "marks"}
	sep := "  "
	if o.format == "markdown" {
		sep = " | "
		fmt.Fprintln(w)
	}
	line := func(cells []string) {
		text := strings.Join(cells, sep)
		if o.format == "markdown" {
			text = "| " + text + " |"
		}
		fmt.Fprintln(w, text)
	}
	line(head)
	if o.format == "markdown" {
		line(slices.Repeat([]string{"---"}, len(head)))
	}
	for _, r := range results {
		line(r.row())
	}
}

// latencies are durations, sorted.
type latencies []time.Duration

// quantile returns the smallest latency that a share q of all do not exceed.
func (l latencies) quantile(q float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	i := int(q*float64(len(l))+0.999999) - 1
	return l[max(min(i, len(l)-1), 0)]
}
