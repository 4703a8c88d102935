package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManCommand returns the hidden verb by which installation makes the manual
// pages. Their date is that of the sources, so that two builds give the same files.
func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write the manual pages",
		Long:    "Man writes a manual page for each command into DIR, which is made if it is missing.",
		Example: "  tierctl man /usr/local/share/man/man8",
		Hidden:  true,
		Args:    args("DIR"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("make folder of manual pages: %w", err)
			}
			c.Root().DisableAutoGenTag = true
			date := sourceDate()
			header := &doc.GenManHeader{Section: "8", Source: "tierd", Manual: "System administration", Date: &date}
			if err := doc.GenManTree(c.Root(), header, args[0]); err != nil {
				return fmt.Errorf("write manual pages: %w", err)
			}
			return nil
		},
	}
}

// sourceDate returns when what this program was built from was committed, or the
// epoch if it does not know.
func sourceDate() time.Time {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key != "vcs.time" {
				continue
			}
			if t, err := time.Parse(time.RFC3339, s.Value); err == nil {
				return t
			}
		}
	}
	return time.Unix(0, 0).UTC()
}
