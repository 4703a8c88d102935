package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"tierd/pkg/control"
)

// newPoolCommand returns the verbs about the pool as a whole: status here, and
// more, the ones that work without a daemon.
func newPoolCommand(g *globals, more ...*cobra.Command) *cobra.Command {
	return group("pool", "The pool as a whole", "", append(more, newPoolStatusCommand(g))...)
}

func newPoolStatusCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "Show capacity, durability and what needs attention",
		Long:    "Status shows the pool of the running daemon: capacity, the state of its metadata,\nand what needs attention, such as a pool that is nearly full or differs from the\nconfiguration.",
		Example: "  tierctl pool status\n  tierctl pool status -o json | jq .free_bytes",
		Args:    args(),
		RunE:    func(c *cobra.Command, _ []string) error { return runPoolStatus(c.Context(), g) },
	}
}

func runPoolStatus(ctx context.Context, g *globals) error {
	return ask(g, func(s control.Service) (control.PoolStatus, error) { return s.PoolStatus(ctx) }, showPoolStatus)
}

func showPoolStatus(w io.Writer, s control.PoolStatus) error {
	t := newTable(w)
	t.row("pool", s.PoolID)
	t.row("state", strings.Join(poolState(s), ", "))
	t.row("capacity", fmt.Sprintf("%s, %s used (%s), %s free", size(s.CapacityBytes), size(s.UsedBytes), share(s.UsedBytes, s.CapacityBytes), size(s.FreeBytes)))
	t.row("provisioned", fmt.Sprintf("%s in %s, %.2f times the capacity", size(s.ProvisionedBytes), count(s.Volumes, "volume"), s.OverCommitRatio))
	t.row("layout", fmt.Sprintf("%s, %s, extents of %s, format %d", count(s.Tiers, "tier"), count(s.Backings, "backing"), size(s.ExtentSizeBytes), s.FormatVersion))
	t.row("slots", fmt.Sprintf("%d clean, %d waiting to be zeroed", s.CleanSlots, s.VacatedSlots))
	metadata := string(s.MetadataState)
	if s.MetadataError != "" {
		metadata += ": " + s.MetadataError
	}
	t.row("metadata", metadata)
	staged := fmt.Sprintf("%d entries staged", s.StagedEntries)
	if s.StagedEntries > 0 {
		staged += ", the oldest for " + seconds(s.OldestStagedSeconds)
	}
	t.row("commits", fmt.Sprintf("%d, %s", s.CommitNumber, staged))
	t.row("incarnation", s.Incarnation)
	t.row("continuity", s.ContinuityID)
	t.row("daemon", fmt.Sprintf("version %s, up %s, %s", s.Version, seconds(s.UptimeSeconds), count(s.Connections, "NBD connection")))
	for _, warning := range s.Warnings {
		t.row("warning", warning)
	}
	return t.flush()
}

// poolState returns the words for what is out of the ordinary, or "ok".
func poolState(s control.PoolStatus) []string {
	var words []string
	if s.MetadataState == control.MetadataFailed {
		words = append(words, "metadata failed")
	}
	if s.Degraded {
		words = append(words, "degraded")
	}
	if s.ReadOnly {
		words = append(words, "read-only")
	}
	if s.Healing {
		words = append(words, "healing slot tables ("+percent(s.HealProgress)+")")
	}
	if s.FreeBytes <= 0 {
		words = append(words, "full")
	}
	if len(words) == 0 {
		words = append(words, "ok")
	}
	return words
}
