package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"tierd/cmd/internal/setup"
	"tierd/tiering"
)

func newPoolCheckCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Look for damage in a pool that no daemon serves",
		Long: `Check reads the metadata file, the superblocks, the stamps and the tables of all
backings, and compares them. Nothing is changed. Notes are what the next start
of the daemon puts right; anything else is damage, and the exit code is 3. The
data of the volumes is not read.`,
		Example: "  tierctl pool check --config /etc/tierd/tierd.yaml",
		Args:    args(),
		RunE:    func(c *cobra.Command, _ []string) error { return runPoolCheck(c.Context(), g) },
	}
}

func runPoolCheck(ctx context.Context, g *globals) error {
	cfg, err := g.loadConfig()
	if err != nil {
		return err
	}
	o, err := setup.OpenOptions(cfg, nil)
	if err != nil {
		return err
	}
	r, err := tiering.Check(ctx, o)
	if err != nil {
		return fmt.Errorf("check pool: %w", err)
	}
	if r.Findings == nil {
		r.Findings = []tiering.Finding{} // an empty list, not null
	}
	err = g.print(r, func(w io.Writer) error { return showCheck(w, r) })
	if err == nil && r.Damaged() {
		err = fmt.Errorf("%w in the pool", errDamage)
	}
	return err
}

func showCheck(w io.Writer, r tiering.CheckReport) error {
	for _, f := range r.Findings {
		fmt.Fprintf(w, "%s: %s: %s\n", f.Severity, f.Where, f.Text)
	}
	verdict := "no damage"
	if r.Damaged() {
		verdict = "damaged"
	}
	_, err := fmt.Fprintf(w, "%s: checked %s with %s, and %s, as of commit %d\n", verdict,
		count(r.Volumes, "volume"), count(r.Extents, "extent"), count(r.Slots, "slot"), r.Commit)
	return err
}
