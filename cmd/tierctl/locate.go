package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"tierd/pkg/control"
	"tierd/pkg/units"
)

func newLocateCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "locate VOLUME OFFSET",
		Short:   "Show where a byte of a volume lives, and why",
		Long:    "Locate shows tier, backing and slot of the extent that holds the byte at OFFSET, its\nplace on the backing, its heat, and why it is there. OFFSET is in bytes, or a size\nsuch as 10GiB.",
		Example: "  tierctl locate home 10GiB\n  tierctl locate home 4096 -o json",
		Args:    args("VOLUME", "OFFSET"),
		RunE: func(c *cobra.Command, args []string) error {
			offset, err := units.ParseSize(args[1])
			if err != nil {
				return usagef("OFFSET %v", err)
			}
			r := control.LocateRequest{Volume: args[0], Offset: int64(offset)}
			return ask(g, func(s control.Service) (control.Location, error) { return s.Locate(c.Context(), r) }, showLocation)
		},
	}
}

func showLocation(w io.Writer, l control.Location) error {
	t := newTable(w)
	t.row("volume", l.Volume)
	t.row("offset", l.Offset)
	t.row("extent", l.Extent)
	if l.Mapped {
		t.row("tier", l.Tier)
		t.row("backing", fmt.Sprintf("%d, %s", l.BackingID, l.BackingPath))
		t.row("slot", l.Slot)
		t.row("backing offset", l.DeviceOffset)
		t.row("heat", fmt.Sprintf("%s, %s of the extents are hotter", heatValue(l.Heat), percent(l.HeatRank)))
		t.row("last moved", timestamp(l.LastMovedAt))
		t.row("state", mappingState(l))
	}
	t.row("why", l.Why)
	return t.flush()
}

func mappingState(l control.Location) string {
	state := "committed"
	if l.Staged {
		state = "staged"
	}
	if l.Moving {
		state += ", moving"
	}
	return state
}
