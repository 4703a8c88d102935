package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"tierd/tiering"
)

// repairOptions are the flags of pool repair.
type repairOptions struct {
	dryRun      bool
	clearFailed []string
	acceptStale []string
	acceptLoss  bool
}

func newPoolRepairCommand(g *globals) *cobra.Command {
	var opts repairOptions
	c := &cobra.Command{
		Use:   "repair",
		Short: "Mend what pool check found, as far as it is proven what is right",
		Long: `Repair mends superblocks, stamps and volume tables from their other copy or from
the metadata, brings slot tables into line with the map, and gives extents that
are where they cannot be the place that the slot tables have for them. Of two
extents in one slot, the one that the slot table names keeps it.

Where nothing tells which of two extents a slot is of, or where an extent is,
nothing is changed: it is listed, and the exit code is 3. --accept-loss takes such
extents out of the map: they read as zeroes from then on.

What is replaced is kept in a folder beside the metadata, named after it with
.aside- and the time: index.jsonl has a line for each thing, and the content of
slots that lost their extent has files of its own. Nothing is destroyed.

If the metadata are changed, the incarnation is raised, as by a start: a dump or a
copy of the metadata file from before is out of date.

A damaged metadata file, or one that is older than the backings, is not touched:
pool rebuild makes it anew from the backings. Repair can be cut short at any time
and run again; if there is nothing to mend it writes nothing. --dry-run does all of
it on copies, and lists what the real run would.

A failed backing is not written to, and one that fails while it is mended is marked
as failed. --clear-failed lets a backing serve again that was marked as failed. The
next start syncs all backings, compares all slot tables with the map, and renews the
continuity id. What was lost when the backing failed is not coming back.

--accept-stale uses a backing that is an old copy, or that has lost both superblocks
although nothing proves that it is none: what it missed is lost.`,
		Example: `  tierctl pool repair --dry-run
  tierctl pool repair
  tierctl pool repair --clear-failed /dev/disk/by-id/ata-x`,
		Args: args(),
		RunE: func(c *cobra.Command, _ []string) error { return runPoolRepair(c.Context(), g, opts) },
	}
	c.Flags().StringSliceVar(&opts.clearFailed, "clear-failed", nil, "`backing` (path, id or UUID) that is to serve again; may be repeated")
	c.Flags().StringSliceVar(&opts.acceptStale, "accept-stale", nil, "`backing` (path, id or UUID) that is to be used as it is, though it is or may be an old copy; may be repeated")
	c.Flags().BoolVar(&opts.acceptLoss, "accept-loss", false, "take extents out of the map of which nothing tells where they are")
	dryRunFlag(c, &opts.dryRun)
	return c
}

func runPoolRepair(ctx context.Context, g *globals, opts repairOptions) error {
	o, err := g.offlineOptions()
	if err != nil {
		return err
	}
	r, err := tiering.Repair(ctx, o, tiering.RepairOptions{
		DryRun: opts.dryRun, ClearFailed: opts.clearFailed, AcceptStale: opts.acceptStale, AcceptLoss: opts.acceptLoss})
	if err != nil && len(r.Done) == 0 && len(r.Left) == 0 {
		return fmt.Errorf("repair pool: %w", err)
	}
	// What was done before an error is done.
	perr := g.print(r, func(w io.Writer) error { return showRepair(w, r) })
	switch {
	case err != nil:
		return fmt.Errorf("repair pool: %w", err)
	case perr == nil && r.Damaged():
		return fmt.Errorf("%w that was not mended", errDamage)
	}
	return perr
}

func showRepair(w io.Writer, r tiering.RepairReport) error {
	prefix := ""
	if r.DryRun {
		prefix = dryRunPrefix
	}
	if len(r.Done) > 0 {
		t := newTable(w, "WHERE", strings.ToUpper(prefix+"mended"))
		for _, a := range r.Done {
			t.row(a.Where, a.Text)
		}
		if err := t.flush(); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	if err := showFindings(w, r.Left); err != nil {
		return err
	}
	for _, path := range r.NotFailed {
		fmt.Fprintf(w, "backing %s has not failed; there is nothing to clear\n", path)
	}
	text := fmt.Sprintf("%s%s mended, %d left", prefix, count(len(r.Done), "thing"), len(r.Left))
	switch {
	case r.Aside != "":
		text += fmt.Sprintf("; what was there before is in %s (%s)", r.Aside, size(r.AsideBytes))
	case r.AsideBytes > 0:
		text += fmt.Sprintf("; %s would be kept beside the metadata", size(r.AsideBytes))
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
