package main

import (
	"io"

	"github.com/spf13/cobra"

	"tierd/pkg/control"
)

const backingForgetHelp = `Forget gives up a backing that is missing, for good. The daemon has to run with
--degraded. What was on the backing reads as zeroes from then on, and the backing
is refused if it ever comes back: attach it again instead, if that can be done.

Without --accept-loss it fails if there is something to lose, and says how much.`

func newBackingForgetCommand(g *globals) *cobra.Command {
	var r control.BackingForgetRequest
	c := &cobra.Command{
		Use:     "forget ID|PATH",
		Short:   "Go on without a missing backing, and what is on it",
		Long:    backingForgetHelp,
		Example: "  tierctl backing forget 3 --dry-run\n  tierctl backing forget /dev/disk/by-id/ata-x --accept-loss",
		Args:    args("ID|PATH"),
		RunE: func(c *cobra.Command, args []string) error {
			r.Backing = args[0]
			return ask(g, func(s control.Service) (control.BackingForgotten, error) {
				return s.BackingForget(c.Context(), r)
			}, func(w io.Writer, f control.BackingForgotten) error { return showChanges(w, f.Changes, f.DryRun) })
		},
	}
	c.Flags().BoolVar(&r.AcceptLoss, "accept-loss", false, "give up the data on it")
	dryRunFlag(c, &r.DryRun)
	return c
}
