package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tierd/pkg/control"
	"tierd/pkg/units"
)

const backingAddHelp = `Add makes a file or a block device a backing of the running pool, in the tier
TIER, or with --new-tier-before or --new-tier-after in a new tier of that name. A
file is created if --size is given. It is refused if it is in use, belongs to a
pool, or carries anything; --force overwrites all but what is in use.

The pool knows its backings itself. The daemon's configuration is not changed: add
the backing there too, so that the next start does not mention the difference.`

func newBackingAddCommand(g *globals) *cobra.Command {
	var r control.BackingAddRequest
	var fileSize string
	c := &cobra.Command{
		Use:     "add TIER PATH",
		Short:   "Make a file or device a backing of the running pool",
		Long:    backingAddHelp,
		Example: "  tierctl backing add ssd /dev/disk/by-id/nvme-y\n  tierctl backing add hdd /srv/hdd/c.img --size 2TiB --preallocate\n  tierctl backing add nvme /dev/disk/by-id/nvme-z --new-tier-before ssd --media ssd",
		Args:    args("TIER", "PATH"),
		RunE: func(c *cobra.Command, args []string) error {
			r.Tier = args[0]
			path, err := filepath.Abs(args[1]) // the daemon runs in a folder of its own
			if err != nil {
				return err
			}
			r.Path = path
			if fileSize != "" {
				if r.SizeBytes, err = parseSize("--size", fileSize); err != nil {
					return err
				}
			}
			if r.NewTierBefore != "" && r.NewTierAfter != "" {
				return usagef("--new-tier-before and --new-tier-after exclude each other")
			}
			if r.Media != "" && r.Media != "ssd" && r.Media != "hdd" {
				return usagef("--media %q: must be ssd or hdd", r.Media)
			}
			return changeBacking(g, func(s control.Service) (control.BackingChange, error) { return s.BackingAdd(c.Context(), r) })
		},
	}
	f := c.Flags()
	f.StringVar(&fileSize, "size", "", "create a file of this `SIZE`")
	f.BoolVar(&r.Preallocate, "preallocate", false, "reserve the space of the file")
	f.BoolVar(&r.DirectIO, "direct-io", false, "go round the page cache (O_DIRECT)")
	f.StringVar(&r.Media, "media", "", "media of a new tier: ssd or hdd (default: as the kernel says)")
	f.StringVar(&r.NewTierBefore, "new-tier-before", "", "make TIER a new tier, next faster than the tier `NAME`")
	f.StringVar(&r.NewTierAfter, "new-tier-after", "", "make TIER a new tier, next slower than the tier `NAME`")
	f.BoolVar(&r.Force, "force", false, "overwrite what is there")
	f.BoolVar(&r.ForeignNBD, "foreign-nbd", false, "the NBD device that it lies on is served by another server than this")
	dryRunFlag(c, &r.DryRun)
	return c
}

const backingDrainHelp = `Drain empties a backing: it takes no new extents from then on, and those it has
move to other backings of its tier, then to slower tiers, then to faster ones. That
goes on in the background, also after a restart, while the volumes are used.

It keeps to the movement budget and its windows, or with --rate to that rate at any
time (--rate budget returns to the budget). --pause stops moving, --resume goes on,
--cancel gives the backing back to new extents. --wait returns when it is empty.

tierctl backing list shows how far it is, and why extents cannot move: no other
backing has room (target_full) that is not reserved (reserved), or none of the tier that the volume's policy asks
for (pinned); flushes of the volume fail (volume_failed); the backing has failed
(backing_failed), cannot be read (source_error) or does not answer (backing_hangs);
earlier moves of the volume cannot be committed yet (settling); an extent is written
to all the time (too_busy). They are tried again, at most a minute later.`

func newBackingDrainCommand(g *globals) *cobra.Command {
	var r control.BackingDrainRequest
	var rate string
	var pause, resume, cancel, wait bool
	c := &cobra.Command{
		Use:     "drain ID|PATH",
		Short:   "Move everything off a backing",
		Long:    backingDrainHelp,
		Example: "  tierctl backing drain 3 --rate 50MiB/s --wait\n  tierctl backing drain /dev/disk/by-id/ata-x --pause",
		Args:    args("ID|PATH"),
		RunE: func(c *cobra.Command, args []string) error {
			r.Backing, r.Action = args[0], control.DrainStart
			n := 0
			for _, a := range []struct {
				given  bool
				action control.DrainAction
			}{{pause, control.DrainPause}, {resume, control.DrainResume}, {cancel, control.DrainCancel}} {
				if a.given {
					r.Action = a.action
					n++
				}
			}
			if n > 1 || wait && (pause || cancel || r.DryRun) {
				return usagef("--pause, --resume and --cancel exclude each other, and --wait waits for the end of a drain")
			}
			if rate != "" {
				v, err := parseDrainRate(rate)
				if err != nil {
					return err
				}
				r.RateBytesPerSecond = &v
			}
			err := changeBacking(g, func(s control.Service) (control.BackingChange, error) { return s.BackingDrain(c.Context(), r) })
			if err != nil || !wait {
				return err
			}
			return waitDrained(c.Context(), g, r.Backing)
		},
	}
	f := c.Flags()
	f.StringVar(&rate, "rate", "", "move at this `RATE`, such as 50MiB/s, at any time; budget: within the movement budget (default: as before, at first the budget)")
	f.BoolVar(&pause, "pause", false, "stop moving extents; it still takes no new ones")
	f.BoolVar(&resume, "resume", false, "go on after a pause")
	f.BoolVar(&cancel, "cancel", false, "end the drain; the backing takes new extents again")
	f.BoolVar(&wait, "wait", false, "return when the backing is empty")
	dryRunFlag(c, &r.DryRun)
	return c
}

func parseDrainRate(text string) (int64, error) {
	if text == "budget" {
		return 0, nil
	}
	v, err := units.ParseRate(text)
	if err != nil || v <= 0 {
		return 0, usagef("--rate %q: must be a rate above 0, such as 50MiB/s, or budget", text)
	}
	return int64(v), nil
}

// waitDrained returns when a backing is empty, and says on the way what changes.
func waitDrained(ctx context.Context, g *globals, ref string) error {
	client, err := g.client()
	if err != nil {
		return err
	}
	defer client.Close()
	told := ""
	for {
		backings, err := client.Backings(ctx)
		if err != nil {
			return err
		}
		var d *control.BackingDrain
		for _, b := range backings {
			if b.Path == ref || strconv.Itoa(b.ID) == ref || b.UUID == ref {
				d = b.Drain
			}
		}
		switch {
		case d == nil:
			return fmt.Errorf("backing %s is not being drained any more", ref)
		case d.State == control.DrainEmpty:
			if told != "" {
				fmt.Fprintln(g.errOut, drainLine(*d))
			}
			return nil
		case string(d.State)+d.StuckExample != told:
			told = string(d.State) + d.StuckExample
			fmt.Fprintln(g.errOut, clean(drainLine(*d)))
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// drainLine says in a line how far a drain is.
func drainLine(d control.BackingDrain) string {
	if d.State == control.DrainEmpty {
		return "drained; tierctl backing remove takes it out of the pool"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "drain %s: %s of %s moved, %s left", d.State, size(d.MovedBytes), size(d.TotalBytes), size(d.LeftBytes))
	if d.RateBytesPerSecond > 0 {
		fmt.Fprintf(&b, ", at most %s", units.Rate(d.RateBytesPerSecond).Human())
	}
	if d.MeasuredBytesPerSecond > 0 {
		fmt.Fprintf(&b, ", %s/s", size(int64(d.MeasuredBytesPerSecond)))
	}
	if d.EstimatedSecondsLeft >= 0 {
		fmt.Fprintf(&b, ", about %s to go", seconds(d.EstimatedSecondsLeft))
	}
	if reasons := byReason(d.StuckExtents); reasons != "" {
		fmt.Fprintf(&b, "; cannot move now: %s (%s)", reasons, d.StuckExample)
	}
	return b.String()
}

func newBackingRemoveCommand(g *globals) *cobra.Command {
	var r control.BackingRemoveRequest
	c := &cobra.Command{
		Use:     "remove ID|PATH",
		Short:   "Take an empty backing out of the pool",
		Long:    "Remove takes a drained backing out of the pool and erases what says that it was of\nit, so that it can be unplugged or used for something else. A backing with extents\nis refused: drain it first. One that is missing is given up with backing forget.\n\nTake it out of the configuration too.",
		Example: "  tierctl backing remove 3",
		Args:    args("ID|PATH"),
		RunE: func(c *cobra.Command, args []string) error {
			r.Backing = args[0]
			return changeBacking(g, func(s control.Service) (control.BackingChange, error) { return s.BackingRemove(c.Context(), r) })
		},
	}
	dryRunFlag(c, &r.DryRun)
	return c
}

func newTierRemoveCommand(g *globals) *cobra.Command {
	var r control.TierRemoveRequest
	c := &cobra.Command{
		Use:     "remove NAME",
		Short:   "Remove a tier without backings",
		Long:    "Remove takes a tier whose backings were all removed out of the pool. The policy of\nno volume may ask for it. Take it out of the configuration too.",
		Example: "  tierctl tier remove fc",
		Args:    args("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			r.Tier = args[0]
			return changeBacking(g, func(s control.Service) (control.BackingChange, error) { return s.TierRemove(c.Context(), r) })
		},
	}
	dryRunFlag(c, &r.DryRun)
	return c
}

func changeBacking(g *globals, call func(control.Service) (control.BackingChange, error)) error {
	return ask(g, call, func(w io.Writer, b control.BackingChange) error { return showChanges(w, b.Changes, b.DryRun) })
}
