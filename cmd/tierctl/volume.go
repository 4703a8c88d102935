package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"tierd/pkg/config"
	"tierd/pkg/control"
	"tierd/pkg/units"
)

func newVolumeCommand(g *globals) *cobra.Command {
	return group("volume", "Thin volumes", "",
		newVolumeListCommand(g), newVolumeCreateCommand(g), newVolumeGrowCommand(g),
		newVolumeDeleteCommand(g), newVolumeRenameCommand(g), newVolumeSetCommand(g))
}

func newVolumeListCommand(g *globals) *cobra.Command {
	var lost, wide bool
	c := &cobra.Command{
		Use:     "list",
		Short:   "List the volumes and where their data lives",
		Long:    "List shows each volume's size, what of it is allocated, how much of that each tier\nholds, its policy, and the number of its connections. With --wide it shows reservation,\nquota, what writes do that find no room, how many wait for some now, how many were\nrefused since the start, and which clients may use it. With --lost it shows which ranges cannot be read because a\nbacking is missing, and which one that is.",
		Example: "  tierctl volume list\n  tierctl volume list --wide\n  tierctl volume list --lost",
		Args:    args(),
		RunE: func(c *cobra.Command, _ []string) error {
			if lost {
				return ask(g, func(s control.Service) ([]control.VolumeLost, error) { return s.VolumesLost(c.Context()) }, showLost)
			}
			return ask(g, func(s control.Service) ([]control.Volume, error) { return s.Volumes(c.Context()) }, func(w io.Writer, list []control.Volume) error {
				if wide {
					return showSpace(w, list)
				}
				return showVolumes(w, list)
			})
		},
	}
	c.Flags().BoolVar(&wide, "wide", false, "show what each volume may take instead of where it lives")
	c.Flags().BoolVar(&lost, "lost", false, "list the ranges whose backings are missing")
	c.MarkFlagsMutuallyExclusive("lost", "wide")
	return c
}

// showSpace shows what volumes may take of the pool, and whether they get it.
func showSpace(w io.Writer, volumes []control.Volume) error {
	t := newTable(w, "VOLUME", "SIZE", "ALLOCATED", "RESERVATION", "QUOTA", "ON-FULL", "WAITING", "REFUSED", "CLIENTS")
	orNone := func(n int64) any {
		if n == 0 {
			return "none"
		}
		return size(n)
	}
	for _, v := range volumes {
		t.row(v.Name, size(v.SizeBytes), size(v.AllocatedBytes), orNone(v.ReservationBytes), orNone(v.QuotaBytes), v.OnFull, v.WaitingForSpace, v.NoSpaceErrors, clients(v.Clients))
	}
	return t.flush()
}

// clients shows who may use a volume.
func clients(names []string) string {
	if len(names) == 0 {
		return "all"
	}
	return strings.Join(names, ", ")
}

func showLost(w io.Writer, volumes []control.VolumeLost) error {
	if len(volumes) == 0 {
		_, err := fmt.Fprintln(w, "nothing is lost: all backings with data are there")
		return err
	}
	t := newTable(w, "VOLUME", "OFFSET", "LENGTH", "BACKING", "PATH")
	for _, v := range volumes {
		for _, r := range v.Ranges {
			t.row(v.Volume, r.Offset, r.LengthBytes, r.BackingID, r.BackingPath)
		}
		if v.Truncated {
			t.row(v.Volume, "...")
		}
	}
	t.row()
	for _, v := range volumes {
		t.row(fmt.Sprintf("%s: %s cannot be read", v.Volume, size(v.LostBytes)))
	}
	return t.flush()
}

func showVolumes(w io.Writer, volumes []control.Volume) error {
	heads := []any{"VOLUME", "SIZE", "ALLOCATED"}
	if len(volumes) > 0 {
		for _, tier := range volumes[0].PerTier {
			heads = append(heads, strings.ToUpper(tier.Tier))
		}
	}
	t := newTable(w, append(heads, "POLICY", "STATE", "CONNECTIONS", "UUID")...)
	for _, v := range volumes {
		row := []any{v.Name, size(v.SizeBytes), size(v.AllocatedBytes)}
		for _, tier := range v.PerTier {
			row = append(row, size(tier.Bytes))
		}
		state := string(v.State)
		if v.ReadOnly {
			state += ", read-only"
		}
		t.row(append(row, v.Policy, state, v.Connections, v.UUID)...)
	}
	return t.flush()
}

func newVolumeCreateCommand(g *globals) *cobra.Command {
	var r control.VolumeCreateRequest
	var space spaceFlags
	c := &cobra.Command{
		Use:     "create NAME SIZE",
		Short:   "Make a volume",
		Long:    "Create makes a thin volume: it takes space as it is written to. NBD clients can\nconnect to it at once, by its name. The size is a multiple of 4096 bytes.",
		Example: "  tierctl volume create home 2TiB\n  tierctl volume create archive 8TiB --policy lowest --dry-run",
		Args:    args("NAME", "SIZE"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := config.CheckVolumeName(args[0]); err != nil {
				return usagef("the volume's name %v", err)
			}
			n, err := parseSize("SIZE", args[1])
			if err != nil {
				return err
			}
			r.Name, r.SizeBytes = args[0], n
			if err := space.parse(c, &r.ReservationBytes, &r.QuotaBytes); err != nil {
				return err
			}
			r.OnFull = space.onFull
			return change(g, func(s control.Service) (control.VolumeChange, error) { return s.VolumeCreate(c.Context(), r) })
		},
	}
	c.Flags().StringVar(&r.Policy, "policy", config.PolicyAuto, "where data goes: auto, highest, lowest or a tier's name")
	c.Flags().StringArrayVar(&r.Clients, "allow-client", nil, "name in the certificate of a client that may use it, once for each; none: all may")
	space.add(c)
	dryRunFlag(c, &r.DryRun)
	return c
}

func newVolumeGrowCommand(g *globals) *cobra.Command {
	var r control.VolumeGrowRequest
	c := &cobra.Command{
		Use:     "grow NAME SIZE|+SIZE",
		Short:   "Make a volume larger",
		Long:    "Grow sets a volume's size, or adds to it. Connections made afterwards see the new\nsize. A volume cannot shrink.",
		Example: "  tierctl volume grow home 4TiB\n  tierctl volume grow home +500GiB",
		Args:    args("NAME", "SIZE|+SIZE"),
		RunE:    func(c *cobra.Command, args []string) error { return runVolumeGrow(c.Context(), g, r, args[0], args[1]) },
	}
	dryRunFlag(c, &r.DryRun)
	return c
}

func runVolumeGrow(ctx context.Context, g *globals, r control.VolumeGrowRequest, name, text string) error {
	text, isMore := strings.CutPrefix(text, "+")
	n, err := parseSize("SIZE", text)
	if err != nil {
		return err
	}
	return change(g, func(s control.Service) (control.VolumeChange, error) {
		r.Name, r.SizeBytes = name, n
		if isMore {
			now, err := sizeOf(ctx, s, name)
			if err != nil {
				return control.VolumeChange{}, err
			}
			if r.SizeBytes += now; r.SizeBytes < now {
				return control.VolumeChange{}, usagef("SIZE is too large")
			}
		}
		return s.VolumeGrow(ctx, r)
	})
}

// sizeOf returns the size of a volume in bytes.
func sizeOf(ctx context.Context, s control.Service, name string) (int64, error) {
	volumes, err := s.Volumes(ctx)
	if err != nil {
		return 0, err
	}
	for _, v := range volumes {
		if v.Name == name {
			return v.SizeBytes, nil
		}
	}
	return 0, fmt.Errorf("volume %s: %w", units.Quote(name), control.ErrNotFound)
}

func newVolumeDeleteCommand(g *globals) *cobra.Command {
	var r control.VolumeDeleteRequest
	c := &cobra.Command{
		Use:     "delete NAME",
		Short:   "Delete a volume and its data",
		Long:    "Delete removes a volume and its data for good; its space comes back in the\nbackground. A volume with clients is not deleted unless --force is given.",
		Example: "  tierctl volume delete scratch --dry-run\n  tierctl volume delete scratch",
		Args:    args("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			r.Name = args[0]
			return change(g, func(s control.Service) (control.VolumeChange, error) { return s.VolumeDelete(c.Context(), r) })
		},
	}
	c.Flags().BoolVar(&r.Force, "force", false, "delete it although clients are connected")
	dryRunFlag(c, &r.DryRun)
	return c
}

func newVolumeRenameCommand(g *globals) *cobra.Command {
	var r control.VolumeRenameRequest
	c := &cobra.Command{
		Use:     "rename NAME NEW-NAME",
		Short:   "Give a volume another name",
		Long:    "Rename changes the name under which clients find the volume. Clients that are\nconnected stay connected.",
		Example: "  tierctl volume rename home home-old",
		Args:    args("NAME", "NEW-NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := config.CheckVolumeName(args[1]); err != nil {
				return usagef("the volume's new name %v", err)
			}
			r.Name, r.NewName = args[0], args[1]
			return change(g, func(s control.Service) (control.VolumeChange, error) { return s.VolumeRename(c.Context(), r) })
		},
	}
	dryRunFlag(c, &r.DryRun)
	return c
}

func newVolumeSetCommand(g *globals) *cobra.Command {
	var r control.VolumeSetRequest
	var policy string
	var readOnly, allowAll bool
	var clients []string
	var space spaceFlags
	c := &cobra.Command{
		Use:     "set NAME",
		Short:   "Change a volume's settings",
		Long:    setText,
		Example: "  tierctl volume set archive --policy lowest\n  tierctl volume set mail --reservation 500GiB --on-full 'wait 60s'\n  tierctl volume set scratch --quota none\n  tierctl volume set found-7 --read-only=false",
		Args:    args("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			r.Name = args[0]
			var reservation, quota int64
			if err := space.parse(c, &reservation, &quota); err != nil {
				return err
			}
			given := false
			for flag, set := range map[string]func(){
				"policy":       func() { r.Policy = &policy },
				"reservation":  func() { r.ReservationBytes = &reservation },
				"quota":        func() { r.QuotaBytes = &quota },
				"on-full":      func() { r.OnFull = &space.onFull },
				"read-only":    func() { r.ReadOnly = &readOnly },
				"allow-client": func() { r.Clients = &clients },
				"allow-all":    func() { r.Clients = &[]string{} },
			} {
				if c.Flags().Changed(flag) {
					given = true
					set()
				}
			}
			if c.Flags().Changed("allow-all") && !allowAll {
				return usagef("%s--allow-all=false means nothing; give --allow-client", named(c))
			}
			if !given {
				return usagef("%snothing to set; give --policy, --reservation, --quota, --on-full, --read-only, --allow-client or --allow-all", named(c))
			}
			return change(g, func(s control.Service) (control.VolumeChange, error) { return s.VolumeSet(c.Context(), r) })
		},
	}
	c.Flags().StringVar(&policy, "policy", "", "auto, highest, lowest or a tier's name")
	c.Flags().BoolVar(&readOnly, "read-only", false, "refuse changes of the volume; --read-only=false takes them again")
	c.Flags().StringArrayVar(&clients, "allow-client", nil, "name in the certificate of a client that may use it, once for each: all there are")
	c.Flags().BoolVar(&allowAll, "allow-all", false, "let all clients use it that can connect")
	c.MarkFlagsMutuallyExclusive("allow-client", "allow-all")
	space.add(c)
	for _, name := range []string{"reservation", "quota", "on-full"} {
		c.Flags().Lookup(name).DefValue = "" // what is not given stays as it is
	}
	dryRunFlag(c, &r.DryRun)
	return c
}

const setText = `Set changes a volume's settings.

The policy says where data goes: new extents at once, the ones there are as relocation
gets to them. The reservation is what the volume can always allocate, whatever the
others write; the quota is what it can allocate at most. A write that finds no room, in
the pool or within the quota, fails with "no space left", or waits for some first.

A read-only volume refuses changes with "operation not permitted". A volume that pool
repair has made of extents it found (found-N) is read-only, until somebody has looked at
it and says --read-only=false.

With --allow-client a volume is for the clients with these names alone: the common names
of their certificates (nbd.tls.client_ca in the configuration). Others do not see it.
Clients on Unix sockets need no certificate: the mode of the socket lets them in.`

// spaceFlags are the settings of what a volume may take of the pool.
type spaceFlags struct{ reservation, quota, onFull string }

func (f *spaceFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.reservation, "reservation", "none", "what the volume can always allocate: a size, or none")
	c.Flags().StringVar(&f.quota, "quota", "none", "what the volume can allocate at most: a size, or none")
	c.Flags().StringVar(&f.onFull, "on-full", "error", "what a write does that finds no room: error, or wait and a time (wait 60s)")
}

// parse reads the sizes and checks the rest.
func (f *spaceFlags) parse(c *cobra.Command, reservation, quota *int64) error {
	for name, v := range map[string]struct {
		text string
		to   *int64
	}{"--reservation": {f.reservation, reservation}, "--quota": {f.quota, quota}} {
		if v.text == "none" {
			continue
		}
		n, err := parseSize(named(c)+name, v.text)
		if err != nil {
			return err
		}
		*v.to = n
	}
	if _, err := config.ParseOnFull(f.onFull); err != nil {
		return usagef("%s--on-full %v", named(c), err)
	}
	return nil
}

// change asks for a change of a volume and prints what it did.
func change(g *globals, call func(control.Service) (control.VolumeChange, error)) error {
	return ask(g, call, func(w io.Writer, v control.VolumeChange) error { return showChanges(w, v.Changes, v.DryRun) })
}

// showChanges prints what was done, or would be.
func showChanges(w io.Writer, lines []string, dryRun bool) error {
	t := newTable(w)
	for _, line := range lines {
		if dryRun {
			line = dryRunPrefix + line
		}
		t.row(line)
	}
	return t.flush()
}

// dryRunPrefix begins a line about what was not done.
const dryRunPrefix = "dry run: "

func dryRunFlag(c *cobra.Command, to *bool) {
	c.Flags().BoolVar(to, "dry-run", false, "say what would be done, and do nothing")
}

// parseSize reads a size above 0 from the command line.
func parseSize(name, text string) (int64, error) {
	n, err := units.ParseSize(text)
	if err != nil {
		return 0, usagef("%s %v", name, err)
	}
	if n == 0 {
		return 0, usagef("%s must be above 0 (got %s)", name, units.Quote(text))
	}
	return int64(n), nil
}
