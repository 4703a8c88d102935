package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker: -X main.version=v1.2.3.
var version string

// build says what this program was built from.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // commit, with "+changes" if it was edited
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the version of tierctl",
		Long:    "Version shows what this tierctl was built from. `tierctl pool status` shows the\ndaemon's version.",
		Example: "  tierctl version -o json",
		Args:    args(),
		RunE: func(*cobra.Command, []string) error {
			b := buildInfo()
			return g.print(b, func(w io.Writer) error {
				text := "tierctl " + b.Version
				if b.Revision != "" {
					text += " (" + b.Revision + ")"
				}
				_, err := fmt.Fprintf(w, "%s, %s, %s\n", text, b.Go, b.Platform)
				return err
			})
		},
	}
}

func buildInfo() build {
	b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	changes := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Revision = s.Value[:min(12, len(s.Value))]
			case "vcs.modified":
				if s.Value == "true" {
					changes = "+changes"
				}
			}
		}
	}
	if b.Revision != "" {
		b.Revision += changes
	}
	if b.Version == "" {
		b.Version = "devel"
	}
	return b
}
