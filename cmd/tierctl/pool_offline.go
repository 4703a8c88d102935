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

// loadConfig reads the configuration that an offline verb works on.
func (g *globals) loadConfig() (*config.Config, error) {
	path := g.configPath
	if path == "" {
		path = config.DefaultPath
	}
	cfg, err := config.Load(path)
	if err != nil {
		return nil, usagef("%v", err)
	}
	return cfg, nil
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
	var force []string
	var dryRun bool
	cmd := &cobra.Command{
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := g.loadConfig()
			if err != nil {
				return err
			}
			o, err := setup.CreateOptions(cfg)
			if err != nil {
				return err
			}
			for _, f := range force {
				if !slices.ContainsFunc(setup.Backings(cfg), func(b tiering.BackingSpec) bool { return b.Path == f }) {
					return usagef("--force %s: the configuration has no such backing", f)
				}
			}
			if err := checkFolders(cfg); err != nil {
				return err
			}
			o.Force, o.DryRun = force, dryRun
			made, err := tiering.Create(cmd.Context(), o)
			if err != nil {
				return fmt.Errorf("create pool: %w", err)
			}
			v := createdView{made.ID.String(), cfg.Metadata, made.ExtentSize, made.Capacity, made.Backings, made.Volumes, dryRun}
			return g.print(v, func(w io.Writer) error {
				what := "pool " + v.PoolID + " created"
				if dryRun {
					what = dryRunPrefix + "a pool would be created" // with an id of its own
				}
				_, err := fmt.Fprintf(w, "%s: %s, %s in extents of %s, %s\n", what, count(v.Backings, "backing"),
					units.Size(v.CapacityBytes).Human(), units.Size(v.ExtentSizeBytes), count(v.Volumes, "volume"))
				return err
			})
		},
	}
	cmd.Flags().StringSliceVar(&force, "force", nil, "`path` of a backing that may be overwritten; may be repeated")
	dryRunFlag(cmd, &dryRun)
	return cmd
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

func newPoolCheckCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Look for damage in a pool that no daemon serves",
		Long: `Check reads the metadata file, the superblocks, the stamps and the tables of all
backings, and compares them. Nothing is changed. Notes are what the next start
of the daemon puts right; anything else is damage, and the exit code is 3. The
data of the volumes is not read.`,
		Example: `  tierctl pool check --config /etc/tierd/tierd.yaml`,
		Args:    args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := g.loadConfig()
			if err != nil {
				return err
			}
			r, err := check(cmd.Context(), cfg)
			if err != nil {
				return fmt.Errorf("check pool: %w", err)
			}
			if r.Findings == nil {
				r.Findings = []tiering.Finding{} // an empty list, not null
			}
			err = g.print(r, func(w io.Writer) error {
				for _, f := range r.Findings {
					fmt.Fprintf(w, "%s: %s: %s\n", f.Severity, f.Where, f.What)
				}
				verdict := "no damage"
				if r.Damaged() {
					verdict = "damaged"
				}
				_, err := fmt.Fprintf(w, "%s: checked %s with %s, and %s, as of commit %d\n", verdict,
					count(r.Volumes, "volume"), count(r.Extents, "extent"), count(r.Slots, "slot"), r.Commit)
				return err
			})
			if err == nil && r.Damaged() {
				err = fmt.Errorf("%w in the pool", errDamage)
			}
			return err
		},
	}
}

func check(ctx context.Context, cfg *config.Config) (tiering.CheckReport, error) {
	o, err := setup.OpenOptions(cfg, nil)
	if err != nil {
		return tiering.CheckReport{}, err
	}
	return tiering.Check(ctx, o)
}
