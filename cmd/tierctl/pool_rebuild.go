package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"tierd/cmd/internal/setup"
	"tierd/pkg/units"
	"tierd/tiering"
)

// rebuildOptions are the flags of pool rebuild and pool restore.
type rebuildOptions struct {
	backings []string
	pool     string
	stale    []string
	failed   []string
	missing  []string
	replace  bool
	dryRun   bool
}

func (o *rebuildOptions) addFlags(c *cobra.Command) {
	f := c.Flags()
	f.StringSliceVar(&o.backings, "backing", nil, "`path` of a backing that the configuration does not list; may be repeated")
	f.StringVar(&o.pool, "pool", "", "`id` of the pool, if backings of several are found")
	f.StringSliceVar(&o.stale, "accept-stale", nil, "`backing` (id, UUID or path) that is used though it is an old copy, or was forgotten")
	f.StringSliceVar(&o.failed, "accept-failed", nil, "`backing` (id, UUID or path) that is used though it has failed")
	f.StringSliceVar(&o.missing, "accept-missing", nil, "`backing` (id, UUID or path) that is given up with all that is on it")
	f.BoolVar(&o.replace, "replace", false, "replace metadata that are there; they are kept as FILE.old")
	dryRunFlag(c, &o.dryRun)
}

// options returns what tiering wants to know.
func (o *rebuildOptions) options(g *globals) (tiering.RebuildOptions, error) {
	cfg, err := g.loadConfig()
	if err != nil {
		return tiering.RebuildOptions{}, err
	}
	out := tiering.RebuildOptions{
		Metadata: cfg.Metadata, Backings: setup.Backings(cfg), Replace: o.replace, DryRun: o.dryRun, Progress: g.progress(),
		AcceptStale: o.stale, AcceptFailed: o.failed, AcceptMissing: o.missing,
	}
	for _, path := range o.backings {
		out.Backings = append(out.Backings, tiering.BackingSpec{Path: path})
	}
	if o.pool != "" {
		if out.Pool, err = uuid.Parse(o.pool); err != nil {
			return out, usagef("--pool %s: %v", o.pool, err)
		}
	}
	return out, nil
}

const rebuildRules = `
Backings that are missing, old copies, failed or forgotten make it refuse, and say
how each is accepted. --accept-missing is for ever: what was on that backing reads
as zeroes, nobody can tell which extents those are, and the backing is refused if
it comes back.

The backings are locked, and not written to: if it is cut short, run it again.
The exit code is 3 if something was found that may have cost data.`

func newPoolRebuildCommand(g *globals) *cobra.Command {
	var opts rebuildOptions
	c := &cobra.Command{
		Use:   "rebuild",
		Short: "Make the metadata of a pool anew from its backings",
		Long: `Rebuild is for the day on which the metadata file is lost or damaged. It makes a new
one from what is on the backings: tiers and backings from the superblocks, volumes
from the volume tables, and the map from the slot tables. All that was flushed is
there; what was not may be lost, as after a power cut. Slots with a damaged table
entry are set aside and listed, and so are those whose entries cannot be read.

If the newest table of the volumes is damaged everywhere, an older one is used, which is
told as damage. A volume that it does not know is made for the extents that the slots
have of it, as found-N; one that is too small is made larger.

The next start of the daemon renews the continuity id and compares the slot tables
with the new map.
` + rebuildRules,
		Example: `  tierctl pool rebuild --dry-run
  tierctl pool rebuild --config /etc/tierd/tierd.yaml
  tierctl pool rebuild --backing /dev/disk/by-id/ata-added-later`,
		Args: args(),
		RunE: func(c *cobra.Command, _ []string) error { return runPoolRebuild(c.Context(), g, opts) },
	}
	opts.addFlags(c)
	return c
}

func runPoolRebuild(ctx context.Context, g *globals, opts rebuildOptions) error {
	o, err := opts.options(g)
	if err != nil {
		return err
	}
	r, err := tiering.Rebuild(ctx, o)
	if err != nil {
		return fmt.Errorf("rebuild pool: %w", err)
	}
	fillRebuilt(&r)
	err = g.print(r, func(w io.Writer) error { return showRebuilt(w, r, "rebuilt") })
	return damagedRebuild(r, err)
}

func newPoolRestoreCommand(g *globals) *cobra.Command {
	var opts rebuildOptions
	c := &cobra.Command{
		Use:   "restore DUMP",
		Short: "Make the metadata of a pool anew from a dump and its backings",
		Long: `Restore reads what pool dump has written. A dump that was made after the last clean
stop, of a pool that nobody has opened since, is taken as it is: the metadata are
as they were, to the letter.

Of any other dump only names, policies and settings of volumes are taken, and the
heat if it has that. The map, the sizes, and which volumes there are come from the
backings, as with pool rebuild: they are newer. If no backing has a table of the
volumes any more that is as new as the dump, the volumes come from the dump too.
` + rebuildRules,
		Example: `  tierctl pool restore /var/backups/pool.dump --dry-run
  tierctl pool restore /var/backups/pool.dump --config /etc/tierd/tierd.yaml`,
		Args: args("DUMP"),
		RunE: func(c *cobra.Command, a []string) error { return runPoolRestore(c.Context(), g, opts, a[0]) },
	}
	opts.addFlags(c)
	return c
}

func runPoolRestore(ctx context.Context, g *globals, opts rebuildOptions, path string) error {
	o, err := opts.options(g)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("restore pool: %w", err)
	}
	defer f.Close()
	r, err := tiering.Restore(ctx, o, f)
	if err != nil {
		return fmt.Errorf("restore pool from %s: %w", path, err)
	}
	fillRebuilt(&r.RebuildReport)
	err = g.print(r, func(w io.Writer) error {
		if r.Whole {
			return showRebuilt(w, r.RebuildReport, "restored as it was")
		}
		fmt.Fprintf(w, "names and settings are those of the dump, and the map is that of the backings: %s\n", r.Why)
		return showRebuilt(w, r.RebuildReport, "rebuilt")
	})
	return damagedRebuild(r.RebuildReport, err)
}

// fillRebuilt makes lists of nothing empty: null is no list.
func fillRebuilt(r *tiering.RebuildReport) {
	if r.Findings == nil {
		r.Findings = []tiering.Finding{}
	}
	if r.Volumes == nil {
		r.Volumes = []tiering.RebuiltVolume{}
	}
}

func damagedRebuild(r tiering.RebuildReport, err error) error {
	if err == nil && r.Damaged() {
		return fmt.Errorf("%w: see the list", errDamage)
	}
	return err
}

func showRebuilt(w io.Writer, r tiering.RebuildReport, what string) error {
	for _, f := range r.Findings {
		fmt.Fprintf(w, "%s: %s: %s\n", f.Severity, f.Where, f.Text)
	}
	t := newTable(w, "BACKING", "TIER", "STATE", "OWNERS", "DAMAGED", "PATH")
	for _, m := range r.Members {
		t.row(m.ID, m.Tier, m.State, m.Owners, m.Damaged+m.Unreadable, m.Path)
	}
	if err := t.flush(); err != nil {
		return err
	}
	t = newTable(w, "VOLUME", "SIZE", "POLICY", "MAPPED")
	for _, v := range r.Volumes {
		name := v.Name
		if v.Deleting {
			name += " (being deleted)"
		}
		t.row(name, size(v.Size), v.Policy, size(v.Extents*r.ExtentSize))
	}
	if err := t.flush(); err != nil {
		return err
	}
	if r.DryRun {
		what = "would be " + what
	}
	fmt.Fprintf(w, "pool %s %s: %s, %s of %s, at %s\n", r.Pool, what,
		count(len(r.Volumes), "volume"), count(r.Extents, "extent"), units.Size(r.ExtentSize), r.Metadata)
	if r.Kept != "" {
		fmt.Fprintf(w, "the metadata that were there are kept as %s\n", r.Kept)
	}
	return nil
}
