package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tierd/nbd/load"
	"tierd/pkg/trace"
	"tierd/pkg/units"
)

const benchLong = `Bench puts load on an NBD export and reports rate and latency.

The address is nbd+unix:///NAME?socket=PATH, nbd://HOST[:PORT]/NAME, or
unix:PATH for the default export of a socket; any NBD server will do.

WRITES DESTROY DATA: everything but --read 100% (the default) without --fill
overwrites the volume.

With --verify each block written carries its place, a generation and a checksum,
and each read is checked against what was last written there. With --state the
knowledge outlives the run: after a crash of the server,

  tierctl bench --uri URI --state FILE --verify-only

checks that every answered write is there. A write that was in flight may be.
After a power cut add --after-cut: then what was answered before the last FLUSH
(--flush-every, --fua) must be there, and anything later may be.

A trace (vscsi, int32 pages, ARC .lis, MSR or SPC csv, fio iolog, blkparse text,
MQSim; plain, zstd, xz or gzip) is replayed at its own times divided by --speed;
--speed 0 sends as fast as the server answers. A trace without time is always sent
that way.

The exit code is 3 if data differed from what was written, and 1 if operations
failed.`

const benchExample = `  # one minute of the read/write mix of a busy file server, live figures
  tierctl bench --uri 'nbd+unix:///home?socket=/run/tierd/nbd.sock' \
      --read 70% --pattern zipf --theta 1.2 --grain 1MiB --time 60s

  # check data with four connections, and leave a record for later
  tierctl bench --uri nbd://localhost/home --connections 4 --read 50% \
      --fill --verify --state home.state --ops 1000000

  # replay a trace ten times as fast, folded onto the volume
  tierctl bench --uri unix:/run/tierd/nbd.sock --trace web.vscsi --speed 10 --fit wrap`

// benchOptions are the flags of bench as they were given.
type benchOptions struct {
	spec                    load.Spec
	read, trim, zero        percentFlag
	blockSize, grain        sizeFlag
	duration, warmup, every durationFlag
	trace, format           string
}

func newBenchCommand(g *globals) *cobra.Command {
	o := &benchOptions{spec: load.NewSpec("")}
	s := &o.spec
	o.read = 100
	o.blockSize, o.grain = sizeFlag(s.BlockSize), sizeFlag(s.Grain)
	o.duration, o.every = durationFlag(s.Duration), durationFlag(s.Interval)
	cmd := &cobra.Command{
		Use:     "bench --uri URI",
		Short:   "Put load on an NBD export, measure and verify",
		Long:    benchLong,
		Example: benchExample,
		Args:    args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if s.URI == "" {
				return usagef("%sneeds --uri", named(cmd))
			}
			if !cmd.Flags().Changed("time") && (cmd.Flags().Changed("ops") || o.trace != "") {
				o.duration = 0 // the operations or the trace are the end
			}
			return runBench(cmd.Context(), g, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.URI, "uri", "", "address of the export (required)")
	f.Var(&o.read, "read", "share of reads")
	f.Var(&o.trim, "trim", "share of TRIM among the changes")
	f.Var(&o.zero, "zero", "share of WRITE_ZEROES among the changes")
	f.Var(&o.blockSize, "bs", "size of an operation")
	f.IntVar(&s.Depth, "depth", s.Depth, "operations in flight on each connection")
	f.IntVar(&s.Connections, "connections", s.Connections, "connections to the server")
	f.StringVar((*string)(&s.Pattern), "pattern", string(s.Pattern), "offsets: uniform, zipf or sequential")
	f.Float64Var(&s.Theta, "theta", s.Theta, "exponent of zipf: the larger, the more skewed")
	f.Var(&o.grain, "grain", "size of the regions that share one popularity; the block size scatters hot blocks")
	f.Var(&o.duration, "time", "time to measure; 0: until --ops or the trace ends")
	f.Var(&o.warmup, "warmup", "time to run before measuring")
	f.Int64Var(&s.Ops, "ops", 0, "end after so many operations; 0: by time alone")
	f.Float64Var(&s.Rate, "rate", 0, "operations a second at most over all connections; 0: no limit")
	f.IntVar(&s.FlushEvery, "flush-every", 0, "changes on a connection between two FLUSHes; 0: none")
	f.BoolVar(&s.FUA, "fua", false, "make each change durable before its answer")
	f.Uint64Var(&s.Seed, "seed", s.Seed, "seed of offsets and data")
	f.BoolVar(&s.Fill, "fill", false, "write the whole volume first")
	f.BoolVar(&s.Verify, "verify", false, "check every read")
	f.BoolVar(&s.VerifyPass, "verify-pass", false, "read back and check all that was written, at the end")
	f.BoolVar(&s.VerifyOnly, "verify-only", false, "check what --state FILE knows, and do nothing else")
	f.BoolVar(&s.AfterCut, "after-cut", false, "with --verify-only: the power was cut, so only what was flushed must be there")
	f.BoolVar(&s.ExpectZero, "expect-zero", false, "with --verify: what was never written must read as zeroes")
	f.StringVar(&s.State, "state", "", "file to keep in what was written")
	f.StringVar(&o.trace, "trace", "", "trace to replay instead of a pattern")
	f.StringVar(&o.format, "trace-format", "", "format of the trace: "+formatNames()+"; default: detect it")
	f.Float64Var(&s.Speed, "speed", s.Speed, "divide the trace's times by this; 0: ignore them")
	f.StringVar((*string)(&s.Fit), "fit", string(s.Fit), "a trace beyond the end of the volume: error, wrap or scale")
	f.Var(&o.every, "interval", "time between two live figures; 0: none")
	return cmd
}

func formatNames() string {
	var names []string
	for _, f := range trace.Formats() {
		names = append(names, string(f))
	}
	return strings.Join(names, ", ")
}

// runBench runs the load and prints the outcome.
func runBench(ctx context.Context, g *globals, o *benchOptions) error {
	s := &o.spec
	s.ReadShare, s.TrimShare, s.ZeroShare = o.read.fraction(), o.trim.fraction(), o.zero.fraction()
	s.BlockSize, s.Grain = int64(o.blockSize), int64(o.grain)
	s.Duration, s.Warmup, s.Interval = time.Duration(o.duration), time.Duration(o.warmup), time.Duration(o.every)
	if o.trace != "" {
		r, err := openTrace(o)
		if err != nil {
			return err
		}
		defer r.Close()
		s.Trace = r
		if !r.Timed() {
			s.Speed = 0
		}
	}
	report := struct {
		*load.Result
		Error     string        `json:"error"`
		Intervals []load.Sample `json:"intervals"`
	}{Intervals: []load.Sample{}}
	live := liveTable{w: g.out}
	s.OnInterval = func(m load.Sample) {
		report.Intervals = append(report.Intervals, m)
		if g.output != "json" {
			live.print(m)
		}
	}
	res, err := load.Run(ctx, *s)
	report.Result = res
	if errors.Is(err, context.Canceled) && res != nil {
		err = nil // ended by the operator: what was measured is the outcome
	}
	switch {
	case errors.Is(err, load.ErrSpec):
		return usagef("%v", err)
	case res == nil:
		return err
	}
	if err != nil {
		report.Error = err.Error()
	}
	if perr := g.print(report, func(w io.Writer) error { return printBench(w, res) }); perr != nil {
		err = errors.Join(err, fmt.Errorf("print report: %w", perr))
	}
	var failed int64
	for _, n := range res.Errors {
		failed += n
	}
	if err == nil && failed > 0 {
		err = fmt.Errorf("%s failed", count(failed, "operation"))
	}
	if res.Damaged() {
		err = errors.Join(fmt.Errorf("%w: %d of %d blocks read are not what was written", errDamage, res.Verify.Mismatches, res.Verify.Checked), err)
	}
	return err
}

// openTrace opens the trace, and goes through it once before if it has to be scaled.
func openTrace(o *benchOptions) (trace.Reader, error) {
	format := trace.Format(o.format)
	if o.spec.Fit == load.FitScale {
		r, err := trace.OpenFormat(o.trace, format)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		for {
			rec, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				return nil, err
			}
			o.spec.TraceSpan = max(o.spec.TraceSpan, rec.Offset+rec.Length)
		}
	}
	return trace.OpenFormat(o.trace, format)
}

// liveTable prints samples as they come.
type liveTable struct {
	w       io.Writer
	started bool
}

// print keeps to fixed columns: what comes later cannot be known. Errors of a
// terminal that is gone show when the report is printed.
func (t *liveTable) print(m load.Sample) {
	if !t.started {
		fmt.Fprintf(t.w, "%9s %10s %10s %10s %9s %9s %9s %9s %7s\n", "TIME", "IOPS", "READ", "WRITE", "MEAN", "P50", "P99", "MAX", "ERRORS")
		t.started = true
	}
	fmt.Fprintf(t.w, "%8.1fs %10.0f %10s %10s %9s %9s %9s %9s %7d\n", m.At.Seconds(), m.IOPS,
		humanRate(m.ReadPerSec), humanRate(m.WritePerSec), short(m.Mean), short(m.P50), short(m.P99), short(m.Max), m.Errors+m.Mismatches)
}

func humanRate(bytesPerSec float64) string { return units.Size(bytesPerSec).Human() + "/s" }

// short prints a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Microsecond:
		return d.String()
	case d < 10*time.Millisecond:
		return d.Round(100 * time.Nanosecond).String()
	}
	return d.Round(100 * time.Microsecond).String()
}

// printBench prints the outcome for people.
func printBench(out io.Writer, r *load.Result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if r.Total.Ops > 0 {
		fmt.Fprintf(w, "\nOP\tOPS\tIOPS\tRATE\tMEAN\tP50\tP90\tP99\tP99.9\tMAX\t\n")
		row := func(name string, s load.OpStats) {
			fmt.Fprintf(w, "%s\t%d\t%.0f\t%s\t", name, s.Ops, s.IOPS, humanRate(s.BytesPerSec))
			for _, ns := range []int64{s.Mean, s.P50, s.P90, s.P99, s.P999, s.Max} {
				fmt.Fprintf(w, "%s\t", short(time.Duration(ns)))
			}
			fmt.Fprintln(w)
		}
		for _, name := range []string{"read", "write", "trim", "zero", "flush"} {
			if s, ok := r.ByOp[name]; ok {
				row(name, s)
			}
		}
		if len(r.ByOp) > 1 {
			row("total", r.Total)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	// Gathered first, so that one write tells of a broken pipe.
	var b strings.Builder
	fmt.Fprintf(&b, "\nmeasured %.1f s on %s, seed %d\n", r.Elapsed, units.Size(r.Size), r.Spec.Seed)
	if lag := time.Duration(r.ScheduleLagMax); lag > 0 {
		fmt.Fprintf(&b, "operations were sent up to %s late\n", short(lag))
	}
	names := make([]string, 0, len(r.Errors))
	for name := range r.Errors {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "%s failed: %s\n", count(r.Errors[name], "operation"), name)
	}
	if v := r.Verify; v != nil {
		fmt.Fprintf(&b, "checked %s of %d bytes: %d wrong, %d in doubt\n", count(v.Checked, "block"), v.Unit, v.Mismatches, v.Doubts)
		for _, d := range v.Details {
			fmt.Fprintf(&b, "  %s\n", d)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// sizeFlag is a size such as 4KiB; a bare number is bytes.
type sizeFlag units.Size

func (f *sizeFlag) String() string { return units.Size(*f).String() }
func (f *sizeFlag) Type() string   { return "size" }

// Set parses s.
func (f *sizeFlag) Set(s string) error {
	v, err := units.ParseSize(s)
	if err == nil {
		*f = sizeFlag(v)
	}
	return err
}

// percentFlag is a percentage, with or without its sign.
type percentFlag units.Percent

func (f *percentFlag) String() string { return units.Percent(*f).String() }
func (f *percentFlag) Type() string   { return "percent" }

// Set parses s.
func (f *percentFlag) Set(s string) error {
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		s += "%"
	}
	v, err := units.ParsePercent(s)
	if err == nil {
		*f = percentFlag(v)
	}
	return err
}

func (f percentFlag) fraction() float64 { return units.Percent(f).Fraction() }

// durationFlag is a duration such as 30s; 0 needs no unit.
type durationFlag units.Duration

func (f *durationFlag) String() string { return units.Duration(*f).String() }
func (f *durationFlag) Type() string   { return "duration" }

// Set parses s.
func (f *durationFlag) Set(s string) error {
	if s == "0" {
		*f = 0
		return nil
	}
	v, err := units.ParseDuration(s)
	if err == nil {
		*f = durationFlag(v)
	}
	return err
}
