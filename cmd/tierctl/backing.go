package main

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"tierd/pkg/control"
)

func newBackingCommand(g *globals) *cobra.Command {
	return group("backing", "Files and devices of the tiers", "", newBackingAddCommand(g), newBackingDrainCommand(g), newBackingRemoveCommand(g),
		newBackingForgetCommand(g), &cobra.Command{
			Use:     "list",
			Short:   "List the backings with state, fill and latency",
			Long:    "List shows each file or device: its state (ok, suspect, failed or missing, and\nhow far it is drained), its slots, data that is not synced yet and how long a\nsync of it is expected to take (writes wait above 1 s), and since the\ndaemon's start the mean time of a write, and of a read that the page cache did not\nhave. Clean slots can be given out at once; other free ones are zeroed first.",
			Example: "  tierctl backing list\n  tierctl backing list -o json | jq '.[] | select(.state != \"ok\")'",
			Args:    args(),
			RunE:    func(c *cobra.Command, _ []string) error { return runBackingList(c.Context(), g) },
		})
}

func runBackingList(ctx context.Context, g *globals) error {
	return ask(g, func(s control.Service) ([]control.Backing, error) { return s.Backings(ctx) }, showBackings)
}

func showBackings(w io.Writer, backings []control.Backing) error {
	t := newTable(w, "ID", "TIER", "STATE", "SIZE", "SLOTS", "USED", "FREE", "CLEAN", "UNSYNCED", "SYNC TIME", "READ TIME", "WRITE TIME", "PATH")
	for _, b := range backings {
		state := string(b.State)
		switch {
		case b.Drain != nil:
			state += ", drain " + string(b.Drain.State)
		case b.Draining:
			state += ", draining"
		}
		t.row(b.ID, b.Tier, state, size(b.SizeBytes), b.Slots, b.UsedSlots, b.FreeSlots, b.CleanSlots, size(b.UnsyncedBytes),
			latency(b.SyncSeconds), latency(b.MeanReadSeconds), latency(b.MeanWriteSeconds), b.Path)
	}
	for _, b := range backings {
		if b.Error != "" {
			t.row()
			if strings.Contains(b.Error, b.Path) {
				t.row(b.Error)
			} else {
				t.row(b.Path + ": " + b.Error)
			}
		}
		if b.Drain != nil {
			t.row()
			t.row(b.Path + ": " + drainLine(*b.Drain))
		}
	}
	return t.flush()
}
