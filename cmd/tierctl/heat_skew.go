package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"tierd/pkg/control"
)

// hotShare is the share of the I/O whose data is called the hot set.
const hotShare = 0.8

// showSkew prints in a line or two what the curve says, then the tiers and the curve.
func showSkew(w io.Writer, k control.Skew) error {
	for _, line := range skewVerdict(k) {
		fmt.Fprintln(w, line)
	}
	if len(k.Points) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t := newTable(w, "TIER", "SIZE", "FREE", "DATA", "SERVES", "COULD SERVE")
	for _, tier := range k.Tiers {
		t.row(tier.Name, size(tier.CapacityBytes), size(tier.FreeBytes), size(tier.Extents*k.ExtentSizeBytes), percent(tier.Heat), percent(tier.BestHeat))
	}
	if err := t.flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = newTable(w, "I/O", "IS IN", "WHICH IS")
	for _, n := range k.Needs {
		t.row(percent(n.Heat), smallPercent(n.Extents)+" of the data", size(skewBytes(k, n.Extents)))
	}
	return t.flush()
}

// skewBytes returns how much data a share of the extents is, in whole extents.
func skewBytes(k control.Skew, share float64) int64 {
	return int64(math.Ceil(share*float64(k.Extents)-1e-6)) * k.ExtentSizeBytes
}

// smallPercent prints a share of 0 to 1 with two digits at least, as 0.031 %.
func smallPercent(share float64) string {
	if p := 100 * share; p > 0 && p < 1 {
		return strconv.FormatFloat(p, 'g', 2, 64) + "%"
	}
	return percent(share)
}

// skewVerdict tells in short sentences whether the tiers suit the load.
func skewVerdict(k control.Skew) []string {
	of := "the pool"
	if k.Volume != "" {
		of = "volume " + clean(k.Volume)
	}
	if len(k.Points) == 0 {
		return []string{"nothing of " + of + " has any heat: it was not accessed of late"}
	}
	lines := []string{hotSetLine(k, of)}
	if k.Volume == "" {
		lines = append(lines, misplaced(k)...)
	}
	return lines
}

// hotSetLine compares the hot set with what the tiers above the last hold.
func hotSetLine(k control.Skew, of string) string {
	hot := skewNeed(k, hotShare)
	var b strings.Builder
	fmt.Fprintf(&b, "%s of the I/O of %s is in %s of its data (%s)", percent(hotShare), of, smallPercent(hot), size(skewBytes(k, hot)))
	if len(k.Tiers) < 2 {
		return b.String()
	}
	first := k.Tiers[0]
	held, word := first.CapacityBytes, "holds"
	if k.Volume != "" {
		held, word = first.Extents*k.ExtentSizeBytes, "has"
	}
	data := float64(k.Extents) * float64(k.ExtentSizeBytes)
	fmt.Fprintf(&b, "; %s %s %s (%s)", clean(first.Name), word, smallPercent(float64(held)/data), size(held))
	if k.Volume != "" {
		return b.String()
	}
	switch most := skewNeed(k, 0.99); {
	case hot > 0.5:
		b.WriteString(": the load is spread, and tiers gain little")
	case float64(held) < hot*data:
		b.WriteString(": too small for the hot set")
	case float64(held) > 2*most*data:
		b.WriteString(": larger than the load needs, half of it would serve 99%")
	default:
		b.WriteString(": room for the hot set")
	}
	return b.String()
}

// skewNeed returns the share of the extents that has a share of the heat.
func skewNeed(k control.Skew, heat float64) float64 {
	for _, n := range k.Needs {
		if math.Abs(n.Heat-heat) < 1e-9 {
			return n.Extents
		}
	}
	return 1
}

// Limits of what counts as misplaced: load on slower tiers that a faster one could
// serve, while it has room.
const (
	misplacedHeat = 0.1
	misplacedFree = 0.1
)

// misplaced tells of tiers with room, and of load below them that they could serve.
func misplaced(k control.Skew) []string {
	var lines []string
	below := 1.0
	for _, t := range k.Tiers[:max(len(k.Tiers)-1, 0)] {
		below -= t.Heat
		free := float64(t.FreeBytes) / float64(max(t.CapacityBytes, 1))
		if could := t.BestHeat - t.Heat; could > misplacedHeat && free > misplacedFree && below > misplacedHeat {
			lines = append(lines, fmt.Sprintf("%s is %s free and serves %s of the I/O, while slower tiers serve %s: it could serve %s (tierctl relocation plan tells why not yet)",
				clean(t.Name), percent(free), percent(t.Heat), percent(below), percent(t.BestHeat)))
		}
	}
	return lines
}
