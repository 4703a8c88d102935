package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManCommand returns the hidden verb by which installation makes the manual
// pages. Their date is fixed, so that two builds give the same files.
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
			epoch := time.Unix(0, 0).UTC()
			header := &doc.GenManHeader{Section: "8", Source: "tierd", Manual: "System administration", Date: &epoch}
			if err := doc.GenManTree(c.Root(), header, args[0]); err != nil {
				return fmt.Errorf("write manual pages: %w", err)
			}
			return nil
		},
	}
}
