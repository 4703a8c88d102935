package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tierd/pkg/chart"
	"tierd/pkg/control"
)

// heatOptions are the flags of the heat verb.
type heatOptions struct {
	volume string // "": the pool
	limit  int
	color  bool
	skew   bool
	all    bool
	png    string
	every  durationFlag
	length durationFlag
}

func newHeatCommand(g *globals) *cobra.Command {
	var opts heatOptions
	c := &cobra.Command{
		Use:   "heat [VOLUME]",
		Short: "Show the hottest extents and a map of a volume, or how skewed the load is",
		Long: `Heat lists the hottest extents of a volume and draws the whole of it, in reading
order: one sign for each extent, or for each run of extents if there are many.
The sign is the heat of the hottest of them, its colour their tier. Without
colour, a second map shows the tiers. Colour is used on a terminal, unless
NO_COLOR is set, and wherever --color asks for it.

With --skew, or without a volume, it tells how unevenly the load lies on the data: how
little of it, hottest first, has how much of the I/O; what each tier serves of that,
and what it could serve if it held the hottest. I/O counts by the time that it keeps a
device busy. Without a volume all of the pool counts, and whole tiers are looked at; for
a volume it is what it has in each tier.

--png draws both into a picture, PNG or SVG by the ending of its name: the volume from
left to right, the colour its heat, the edges the tiers; and the curve of skew with the
sizes of the tiers marked. With --every and --for the heat is asked for several times,
and each is a row of the picture; an interrupt ends that early.`,
		Example: `  tierctl heat home
  tierctl heat home --limit 5 --color | less -R
  tierctl heat home --png home.png
  tierctl heat home --png day.svg --every 10m --for 24h
  # are the tiers of the right size?
  tierctl heat --all
  tierctl heat --skew home -o json`,
		Args: func(c *cobra.Command, given []string) error {
			if len(given) > 1 {
				return usagef("%stakes one VOLUME, or none (got %d of them)", named(c), len(given))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				opts.volume = args[0]
			}
			if err := opts.check(c.Flags().Changed); err != nil {
				return usagef("%s%v", named(c), err)
			}
			columns, isTerminal := terminalWidth(g.out)
			if !c.Flags().Changed("color") {
				opts.color = isTerminal && os.Getenv("NO_COLOR") == ""
			}
			return runHeat(c.Context(), g, &opts, mapWidth(columns))
		},
	}
	f := c.Flags()
	f.IntVar(&opts.limit, "limit", 20, "extents to list")
	f.BoolVar(&opts.color, "color", false, "colour the map (default: on a terminal)")
	f.BoolVar(&opts.skew, "skew", false, "tell how unevenly the load lies on the data")
	f.BoolVar(&opts.all, "all", false, "of all volumes, as without VOLUME")
	f.StringVar(&opts.png, "png", "", "draw into a `file` (.png, .svg)")
	f.Var(&opts.every, "every", "with --png: ask again after that time, for as long as --for says")
	f.Var(&opts.length, "for", "with --every: how long to go on")
	return c
}

// check returns the first fault of the flags.
func (o *heatOptions) check(changed func(string) bool) error {
	if o.limit < 1 {
		return fmt.Errorf("--limit must be above 0 (got %d)", o.limit)
	}
	if o.all && o.volume != "" {
		return errors.New("--all and a VOLUME exclude each other")
	}
	for _, f := range []string{"limit", "color", "every", "for"} {
		if o.volume == "" && changed(f) {
			return fmt.Errorf("--%s needs a VOLUME", f)
		}
	}
	if changed("every") != changed("for") || changed("every") && o.png == "" {
		return errors.New("--every and --for need each other, and --png")
	}
	if changed("every") {
		if o.every <= 0 || o.length < o.every {
			return fmt.Errorf("--every must be above 0, and --for no shorter (got %s and %s)", &o.every, &o.length)
		}
		if n := o.samples(); n > maxHeatSamples {
			return fmt.Errorf("--for %s is %d times --every %s; at most %d are drawn", &o.length, n-1, &o.every, maxHeatSamples)
		}
	}
	if o.png != "" {
		if _, err := chart.FormatOf(o.png); err != nil {
			return fmt.Errorf("--png: %w", err)
		}
	}
	return nil
}

// runHeat asks for what is to be shown, draws it if that is wanted, and prints it.
func runHeat(ctx context.Context, g *globals, o *heatOptions, width int) error {
	client, err := g.client()
	if err != nil {
		return err
	}
	defer client.Close()
	var rows []heatRow
	if o.volume != "" && (!o.skew || o.png != "") {
		if rows, err = sampleHeat(ctx, client, o); err != nil {
			return err
		}
	}
	var skew control.Skew
	wantSkew := o.skew || o.volume == ""
	if wantSkew || o.png != "" {
		// Sampling may have been interrupted, to see what there is.
		if skew, err = client.Skew(context.WithoutCancel(ctx), control.SkewRequest{Volume: o.volume}); err != nil {
			return err
		}
	}
	if o.png != "" {
		if err := heatPicture(rows, skew).WriteFile(o.png); err != nil {
			return err
		}
	}
	if wantSkew {
		return g.print(skew, func(w io.Writer) error { return showSkew(w, skew) })
	}
	m := rows[len(rows)-1].HeatMap
	return g.print(m, func(w io.Writer) error { return showHeat(w, m, width, o.color) })
}

// The size of the map in characters.
const (
	defaultMapWidth = 64
	maxMapWidth     = 128
	mapRows         = 16
)

// mapWidth returns the width of the map on a terminal of so many columns, 0
// meaning none.
func mapWidth(columns int) int {
	if columns <= 0 {
		return defaultMapWidth
	}
	return min(columns, maxMapWidth)
}

// heatRamp are the signs of heat, cold to hot.
const (
	heatRamp     = ".:-=+*#%@"
	unmappedSign = ' '
)

// tierColors are the SGR codes of the tiers, fastest first; more tiers share
// the last.
var tierColors = []string{"31", "33", "32", "36", "34", "35"}

// A heatCell is what one sign of the map stands for.
type heatCell struct {
	level byte
	tier  byte // control.TierUnmapped if nothing in it is mapped
}

func (c heatCell) sign() byte {
	if c.tier == control.TierUnmapped {
		return unmappedSign
	}
	return heatRamp[int(c.level)*len(heatRamp)/256]
}

// tierSign returns the rank of the cell's tier as one character.
func (c heatCell) tierSign() byte {
	if c.tier == control.TierUnmapped {
		return unmappedSign
	}
	return strconv.FormatInt(int64(c.tier%36), 36)[0]
}

// shrink joins the cells of m to at most n, each with the hottest of its own.
func shrink(m control.HeatMap, n int) []heatCell {
	total := min(len(m.Levels), len(m.Tier))
	n = min(n, total)
	cells := make([]heatCell, n)
	for i := range cells {
		cell := heatCell{tier: control.TierUnmapped}
		for j := i * total / n; j < (i+1)*total/n; j++ {
			isMapped := m.Tier[j] != control.TierUnmapped
			if isMapped && (cell.tier == control.TierUnmapped || m.Levels[j] > cell.level) {
				cell = heatCell{level: m.Levels[j], tier: m.Tier[j]}
			}
		}
		cells[i] = cell
	}
	return cells
}

func showHeat(w io.Writer, m control.HeatMap, width int, color bool) error {
	if len(m.Hottest) > 0 {
		t := newTable(w, "EXTENT", "OFFSET", "HEAT", "TIER")
		for _, h := range m.Hottest {
			t.row(h.Extent, h.Offset, heatValue(h.Heat), orDash(h.Tier))
		}
		if err := t.flush(); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}

	cells := shrink(m, width*mapRows)
	if !slices.ContainsFunc(cells, func(c heatCell) bool { return c.tier != control.TierUnmapped }) {
		_, err := fmt.Fprintln(w, "nothing of the volume is mapped: it was never written, or has been trimmed")
		return err
	}
	perSign := (m.Extents + int64(len(cells)) - 1) / int64(len(cells))
	fmt.Fprintf(w, "heat of %s of %s, up to %d a sign; cold %s hot, blank: unmapped\n", count(m.Extents, "extent"), size(m.ExtentSizeBytes), perSign, heatRamp)
	if color {
		drawMap(w, cells, width, colored)
		_, err := fmt.Fprintln(w, tierLegend(m.Tiers, func(rank int, name string) string { return paint(rank, "@") + " " + name }))
		return err
	}
	drawMap(w, cells, width, func(b *strings.Builder, c heatCell, _ *int) { b.WriteByte(c.sign()) })
	fmt.Fprintln(w, tierLegend(m.Tiers, func(rank int, name string) string {
		return string(heatCell{tier: byte(rank)}.tierSign()) + " " + name
	}))
	drawMap(w, cells, width, func(b *strings.Builder, c heatCell, _ *int) { b.WriteByte(c.tierSign()) })
	return nil
}

// drawMap draws rows of cells between bars. draw is given the rank that the
// terminal's colour stands for, -1 at the start of each row.
func drawMap(w io.Writer, cells []heatCell, width int, draw func(b *strings.Builder, c heatCell, colour *int)) {
	for start := 0; start < len(cells); start += width {
		var b strings.Builder
		colour := -1
		b.WriteByte('|')
		for _, c := range cells[start:min(start+width, len(cells))] {
			draw(&b, c, &colour)
		}
		if colour >= 0 {
			b.WriteString("\x1b[0m")
		}
		b.WriteByte('|')
		fmt.Fprintln(w, b.String())
	}
}

// colored draws a cell, changing the colour only where the tier does.
func colored(b *strings.Builder, c heatCell, colour *int) {
	if rank := int(c.tier); c.tier != control.TierUnmapped && rank != *colour {
		b.WriteString("\x1b[" + sgr(rank) + "m")
		*colour = rank
	}
	b.WriteByte(c.sign())
}

func sgr(rank int) string { return tierColors[min(rank, len(tierColors)-1)] }

func paint(rank int, s string) string { return "\x1b[" + sgr(rank) + "m" + s + "\x1b[0m" }

func tierLegend(tiers []string, entry func(rank int, name string) string) string {
	parts := make([]string, len(tiers))
	for i, name := range tiers {
		parts[i] = entry(i, clean(name))
	}
	return "tiers: " + strings.Join(parts, ", ")
}
