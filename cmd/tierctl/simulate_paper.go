package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"tierd/pkg/units"
	"tierd/tiering/simulate/paper"
)

// paperOptions are the flags of simulate paper as they were given.
type paperOptions struct {
	inputs             paper.Inputs
	readShare, missing percentFlag
	utilisation        []string
	seek, rpm          []float64
	tierMS, tierReads  []float64
	tierDrives         []int
	plot               string
	changed            func(flag string) bool
}

func newSimulatePaperCommand(g *globals) *cobra.Command {
	o := paperOptions{inputs: paper.Defaults()}
	cmd := &cobra.Command{
		Use:   "paper",
		Short: "Work out the figures of the paper of 2014 on an array of three tiers",
		Long: `Paper works out the figures of a paper (IOTS 2014) that compares an array of three
tiers, FAST VP, with two sets of drives of one kind: Table 3, figures 8 to 10 and what
else it says in numbers, each with its working and with what the paper prints. Twelve
points follow in which the paper is at odds with itself, or says less than it seems to.

The flags change what the paper measured or assumed, to see what its result depends on;
the column PAPER then tells what it was. The model is that of an M/M/1 queue:
T_R = T_S / (1 - utilisation).

--plot draws Table 3 and the figures: into one picture if it names a file, .png or .svg,
else into the folder, as SVG.`,
		Example: `  tierctl simulate paper
  tierctl simulate paper --plot paper.svg
  # what if the cache answered in 0.5 ms?
  tierctl simulate paper --hit-ms 0.5
  tierctl simulate paper --utilisation 40%,50% -o json | jq '.table3[] | {name, mean_ms, ratio}'`,
		Args: args(),
		RunE: func(c *cobra.Command, _ []string) error {
			o.changed = c.Flags().Changed
			if err := o.complete(); err != nil {
				return usagef("%s%v", named(c), err)
			}
			r := paper.Compute(o.inputs)
			if o.plot != "" {
				if err := plotPaper(o.plot, r); err != nil {
					return err
				}
			}
			return g.print(r, func(w io.Writer) error { return showPaper(w, r) })
		},
	}
	in, f := &o.inputs, cmd.Flags()
	o.readShare, o.missing = percentFlag(100*in.ReadShare), percentFlag(100*in.ReadMissShare)
	for _, d := range in.Single {
		o.utilisation = append(o.utilisation, units.Percent(100*d.Utilisation).String())
		o.seek, o.rpm = append(o.seek, d.SeekMS), append(o.rpm, d.RPM)
	}
	for _, t := range in.Tiers {
		o.tierMS, o.tierReads, o.tierDrives = append(o.tierMS, t.ReadMS), append(o.tierReads, t.ReadsPerDrive), append(o.tierDrives, t.Drives)
	}
	f.Float64Var(&in.HitMS, "hit-ms", in.HitMS, "time of a request that the cache answers")
	f.Float64Var(&in.IOPS, "iops", in.IOPS, "requests a second")
	f.Var(&o.readShare, "read-share", "reads, of all requests")
	f.Var(&o.missing, "read-miss", "read misses, of all requests")
	f.StringSliceVar(&o.utilisation, "utilisation", o.utilisation, "of the drives of config 1 and 2")
	f.Float64SliceVar(&o.seek, "seek-ms", o.seek, "seek time of the same")
	f.Float64SliceVar(&o.rpm, "rpm", o.rpm, "revolutions a minute of the same")
	f.Float64SliceVar(&o.tierMS, "tier-ms", o.tierMS, "read time of one drive of each tier")
	f.Float64SliceVar(&o.tierReads, "tier-reads", o.tierReads, "reads a second of one drive of each tier")
	f.IntSliceVar(&o.tierDrives, "tier-drives", o.tierDrives, "drives of each tier")
	f.StringVar(&o.plot, "plot", "", "draw into a `file` (.png, .svg) or a folder")
	return cmd
}

// complete turns the flags into inputs, or says what is wrong with them.
func (o *paperOptions) complete() error {
	in := &o.inputs
	for _, l := range []struct {
		flag      string
		got, want int
	}{
		{"utilisation", len(o.utilisation), len(in.Single)}, {"seek-ms", len(o.seek), len(in.Single)}, {"rpm", len(o.rpm), len(in.Single)},
		{"tier-ms", len(o.tierMS), len(in.Tiers)}, {"tier-reads", len(o.tierReads), len(in.Tiers)}, {"tier-drives", len(o.tierDrives), len(in.Tiers)},
	} {
		if l.got != l.want {
			return fmt.Errorf("--%s takes %d values (got %d)", l.flag, l.want, l.got)
		}
	}
	// A default is kept as it is: what a flag prints has fewer digits.
	if o.changed("read-share") {
		in.ReadShare = o.readShare.fraction()
	}
	if o.changed("read-miss") {
		in.ReadMissShare = o.missing.fraction()
	}
	for i := range in.Single {
		d := &in.Single[i]
		d.SeekMS, d.RPM = o.seek[i], o.rpm[i]
		if o.changed("utilisation") {
			p, err := units.ParsePercent(o.utilisation[i])
			if err != nil {
				return fmt.Errorf("--utilisation: %w", err)
			}
			d.Utilisation = p.Fraction()
		}
	}
	for i := range in.Tiers {
		t := &in.Tiers[i]
		t.ReadMS, t.ReadsPerDrive, t.Drives = o.tierMS[i], o.tierReads[i], o.tierDrives[i]
	}
	return in.Validate()
}

func showPaper(w io.Writer, r paper.Result) error {
	if err := showValues(w, r.Values); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nTable 3")
	t := newTable(w, "ARRAY", "HIT", "READ MISS", "TOTAL", "MEAN", "RATIO")
	for _, row := range r.Table3 {
		t.row(row.Name, fixed(row.HitMS, 1)+"ms", fixed(row.MissMS, 1)+"ms", paper.Number(row.TotalMS)+"ms", fixed(row.MeanMS, 2)+"ms", fixed(row.Ratio, 2))
	}
	if err := t.flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nDiscrepancies and limits")
	for _, l := range r.Limits {
		fmt.Fprintf(w, "\n%d. %s\n", l.Number, l.Text)
		if err := showValues(w, l.Values); err != nil {
			return err
		}
	}
	return nil
}

// showValues prints values with their working, and what the paper has.
func showValues(w io.Writer, list []paper.Value) error {
	t := newTable(w, "QUANTITY", "VALUE", "PAPER", "WORKING")
	for _, v := range list {
		printed := orDash(v.Printed)
		if v.Agrees != nil && !*v.Agrees {
			printed += " (differs)"
		}
		value := paper.Number(v.Value)
		if v.Unit != "" {
			value += " " + v.Unit
		}
		t.row(v.Name, value, printed, v.Working)
	}
	return t.flush()
}
