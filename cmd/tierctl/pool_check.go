package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"tierd/cmd/internal/setup"
	"tierd/tiering"
)

func newPoolCheckCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Look for damage in a pool that no daemon serves",
		Long: `Check reads the metadata file, both copies of the superblocks and volume tables,
the stamps, the slot tables and the header of the staged log, and compares them.
Nothing is changed, and the pool is locked against a daemon meanwhile. The data of
the volumes is not read.

Each finding has a severity: damage is wrong, or would be if the metadata were
lost, and makes the exit code 3; a warning is worth knowing; a note is put right
by the next start. It also says what mends it. After a kill or a power cut there
are notes about entries that are newer than the last commit: they are no damage.

It takes 12 bytes of memory for each slot, and 96 MiB at most.`,
		Example: "  tierctl pool check --config /etc/tierd/tierd.yaml\n  tierctl pool check -o json | jq '.findings[] | select(.severity == \"damage\")'",
		Args:    args(),
		RunE:    func(c *cobra.Command, _ []string) error { return runPoolCheck(c.Context(), g) },
	}
}

// offlineOptions are what is needed to work on the pool of the configuration
// without a daemon.
func (g *globals) offlineOptions() (tiering.Options, error) {
	cfg, err := g.loadConfig()
	if err != nil {
		return tiering.Options{}, err
	}
	o, err := setup.OpenOptions(cfg, nil)
	o.Progress = g.progress()
	return o, err
}

// progress returns a function that shows on a terminal how far long work is; nil if
// there is none.
func (g *globals) progress() func(step string, done, total int64) {
	width, ok := terminalWidth(g.errOut)
	if !ok {
		return nil
	}
	const patience = 2 * time.Second // what is quicker needs no progress
	start := time.Now()
	shown := time.Time{}
	return func(step string, done, total int64) {
		now := time.Now()
		if total <= 0 || now.Sub(start) < patience || done < total && now.Sub(shown) < time.Second/4 {
			return
		}
		shown = now
		line := fmt.Sprintf("%s: %s", step, percent(float64(done)/float64(total)))
		fmt.Fprintf(g.errOut, "\r%-*s\r", max(width-1, 0), line)
	}
}

func runPoolCheck(ctx context.Context, g *globals) error {
	o, err := g.offlineOptions()
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
	if err := showFindings(w, r.Findings); err != nil {
		return err
	}
	verdict := "no damage"
	if r.Damaged() {
		verdict = "damaged"
	}
	_, err := fmt.Fprintf(w, "%s: checked %s with %s, and %s, as of commit %d\n", verdict,
		count(r.Volumes, "volume"), count(r.Extents, "extent"), count(r.Slots, "slot"), r.Commit)
	return err
}

func showFindings(w io.Writer, list []tiering.Finding) error {
	if len(list) == 0 {
		return nil
	}
	t := newTable(w, "SEVERITY", "WHERE", "FINDING", "MENDED BY")
	for _, f := range list {
		t.row(f.Severity, f.Where, f.Text, f.Mend)
	}
	if err := t.flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}
