package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"tierd/pkg/control"
)

func newTierCommand(g *globals) *cobra.Command {
	return group("tier", "Classes of speed", "", newTierRemoveCommand(g), &cobra.Command{
		Use:     "list",
		Short:   "List the tiers, fastest first, with fill and speed",
		Long:    "List shows each tier's capacity, fill and headroom (what promotions leave free),\nand since the daemon's start its requests, its share of all reads, and the mean\ntime of a read and of a write as clients see it.",
		Example: "  tierctl tier list",
		Args:    args(),
		RunE:    func(c *cobra.Command, _ []string) error { return runTierList(c.Context(), g) },
	})
}

func runTierList(ctx context.Context, g *globals) error {
	return ask(g, func(s control.Service) ([]control.Tier, error) { return s.Tiers(ctx) }, showTiers)
}

func showTiers(w io.Writer, tiers []control.Tier) error {
	t := newTable(w, "TIER", "MEDIA", "BACKINGS", "CAPACITY", "USED", "FILL", "FREE", "HEADROOM", "READS", "SHARE", "WRITES", "READ TIME", "WRITE TIME")
	for _, x := range tiers {
		t.row(x.Name, orDash(x.Media), x.Backings, size(x.CapacityBytes), size(x.UsedBytes), share(x.UsedBytes, x.CapacityBytes),
			size(x.FreeBytes), size(x.HeadroomBytes), x.Reads, percent(x.ReadShare), x.Writes,
			latency(x.MeanReadSeconds), latency(x.MeanWriteSeconds))
	}
	return t.flush()
}
