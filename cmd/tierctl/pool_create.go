package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"tierd/cmd/internal/setup"
	"tierd/pkg/config"
	"tierd/pkg/control"
	"tierd/pkg/units"
	"tierd/tiering"
)

// createOptions are the flags of pool create.
type createOptions struct {
	force  []string // backings that may be overwritten
	dryRun bool
}

// createdView is the JSON form of what pool create did.
type createdView struct {
	PoolID          string `json:"pool_id"`
	Metadata        string `json:"metadata"`
	ExtentSizeBytes int64  `json:"extent_size_bytes"`
	CapacityBytes   int64  `json:"capacity_bytes"`
	Backings        int    `json:"backings"`
	Volumes         int    `json:"volumes"`
	DryRun          bool   `json:"dry_run"`
}

func newPoolCreateCommand(g *globals) *cobra.Command {
	var opts createOptions
	c := &cobra.Command{
		Use:   "create",
		Short: "Create the pool of a configuration",
		Long: `Create makes the metadata file, the superblocks and tables on the backings, and
the volumes that the configuration lists. Backing files that do not exist are
made; the folders that they and the metadata are in have to be there.

A backing that holds anything is refused: a superblock, a file system, a
partition table, or data of an unknown kind. --force names one that may be
overwritten all the same. If this command was cut short, run it again.`,
		Example: `  tierctl pool create --config /etc/tierd/tierd.yaml
  tierctl pool create --config /etc/tierd/tierd.yaml --force /dev/sdb`,
		Args: args(),
		RunE: func(c *cobra.Command, _ []string) error { return runPoolCreate(c.Context(), g, opts) },
	}
	c.Flags().StringSliceVar(&opts.force, "force", nil, "`path` of a backing that may be overwritten; may be repeated")
	dryRunFlag(c, &opts.dryRun)
	return c
}

func runPoolCreate(ctx context.Context, g *globals, opts createOptions) error {
	cfg, err := g.loadConfig()
	if err != nil {
		return err
	}
	o, err := setup.CreateOptions(cfg)
	if err != nil {
		return err
	}
	for _, path := range opts.force {
		if !slices.ContainsFunc(setup.Backings(cfg), func(b tiering.BackingSpec) bool { return b.Path == path }) {
			return usagef("--force %s: the configuration has no such backing", path)
		}
	}
	if err := checkFolders(cfg); err != nil {
		return err
	}
	o.Force, o.DryRun = opts.force, opts.dryRun
	made, err := tiering.Create(ctx, o)
	if err != nil {
		return fmt.Errorf("create pool: %w", err)
	}
	v := createdView{made.ID.String(), cfg.Metadata, made.ExtentSize, made.Capacity, made.Backings, made.Volumes, opts.dryRun}
	return g.print(v, func(w io.Writer) error { return showCreated(w, v) })
}

func showCreated(w io.Writer, v createdView) error {
	what := "pool " + v.PoolID + " created"
	if v.DryRun {
		what = dryRunPrefix + "a pool would be created" // with an id of its own
	}
	_, err := fmt.Fprintf(w, "%s: %s, %s in extents of %s, %s\n", what, count(v.Backings, "backing"),
		size(v.CapacityBytes), units.Size(v.ExtentSizeBytes), count(v.Volumes, "volume"))
	return err
}

// checkFolders finds a folder that is missing before anything is made, and in a
// dry run, too.
func checkFolders(cfg *config.Config) error {
	paths := []string{cfg.Metadata}
	for _, b := range setup.Backings(cfg) {
		paths = append(paths, b.Path)
	}
	for _, p := range paths {
		dir := filepath.Dir(p)
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return control.WithHint(fmt.Errorf("create pool: there is no folder %s for %s", dir, filepath.Base(p)), "make it, or mount what it is to be on")
		}
	}
	return nil
}
