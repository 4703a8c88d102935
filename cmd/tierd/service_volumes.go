package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"tierd/pkg/config"
	"tierd/pkg/control"
	"tierd/pkg/units"
	"tierd/tiering"
)

// Volumes returns the volumes by name.
func (s *service) Volumes(context.Context) ([]control.Volume, error) {
	var list []control.Volume
	for _, v := range s.pool.VolumeInfos() {
		list = append(list, s.volume(v))
	}
	return list, nil
}

func (s *service) volume(v tiering.VolumeInfo) control.Volume {
	size := s.pool.Size().Bytes()
	c := control.Volume{
		ID: uint32(v.ID), UUID: v.UUID.String(), Name: v.Name, SizeBytes: v.Size, Policy: v.Policy, State: control.VolumeOK, ReadOnly: v.ReadOnly,
		ReservationBytes: v.Space.Reservation, QuotaBytes: v.Space.Quota, OnFull: config.OnFull(v.Space.OnFullWait).String(),
		WaitingForSpace: v.WaitingForSpace, NoSpaceErrors: int64(v.NoSpace),
		Clients: append([]string{}, v.Clients...), Connections: int(v.Opens), Reads: int64(v.Ops["read"].Requests), Writes: int64(v.Ops["write"].Requests),
	}
	switch {
	case v.Deleting:
		c.State = control.VolumeDeleting
	case v.Err != nil:
		c.State = control.VolumeFailed
	case v.Lost > 0:
		c.State = control.VolumeDegraded
	}
	c.LostBytes = v.Lost
	for i, t := range s.pool.Tiers() {
		if i == len(v.Extents) {
			break // a tier was added meanwhile
		}
		c.AllocatedBytes += v.Extents[i] * size
		c.PerTier = append(c.PerTier, control.TierBytes{Tier: t.Name, Bytes: v.Extents[i] * size})
	}
	return c
}

// changed answers a change of a volume: the volume as it is, or as edit says it
// would be.
func (s *service) changed(name string, dryRun bool, edit func(*control.Volume), changes ...string) (control.VolumeChange, error) {
	ch := control.VolumeChange{Changes: changes, DryRun: dryRun}
	if v, err := s.pool.Volume(name); err == nil {
		ch.Volume = s.volume(v.Info())
	}
	if dryRun && edit != nil {
		edit(&ch.Volume)
	}
	return ch, nil
}

// VolumeCreate makes a volume.
func (s *service) VolumeCreate(ctx context.Context, r control.VolumeCreateRequest) (control.VolumeChange, error) {
	onFull, err := config.ParseOnFull(cmp.Or(r.OnFull, config.OnFull(0).String()))
	if err != nil {
		return control.VolumeChange{}, fmt.Errorf("on_full %w: %w", err, control.ErrUsage)
	}
	spec := tiering.VolumeSpec{Name: r.Name, Size: r.SizeBytes, Policy: r.Policy, Clients: r.Clients,
		Space: tiering.Space{Reservation: r.ReservationBytes, Quota: r.QuotaBytes, OnFullWait: time.Duration(onFull)}}
	if err := s.pool.CreateVolume(ctx, spec, r.DryRun); err != nil {
		return control.VolumeChange{}, classify(err)
	}
	return s.changed(r.Name, r.DryRun, func(v *control.Volume) {
		*v = control.Volume{Name: r.Name, SizeBytes: r.SizeBytes, Policy: cmp.Or(r.Policy, "auto"), State: control.VolumeOK, Clients: r.Clients,
			ReservationBytes: r.ReservationBytes, QuotaBytes: r.QuotaBytes, OnFull: onFull.String()}
	}, fmt.Sprintf("volume %s created with %s", r.Name, units.Size(r.SizeBytes)))
}

// VolumeGrow makes a volume larger.
func (s *service) VolumeGrow(ctx context.Context, r control.VolumeGrowRequest) (control.VolumeChange, error) {
	v, err := s.pool.Volume(r.Name)
	if err != nil {
		return control.VolumeChange{}, classify(err)
	}
	was := v.Size()
	if err := s.pool.GrowVolume(ctx, r.Name, r.SizeBytes, r.DryRun); err != nil {
		return control.VolumeChange{}, classify(err)
	}
	return s.changed(r.Name, r.DryRun, func(v *control.Volume) { v.SizeBytes = r.SizeBytes },
		fmt.Sprintf("volume %s grows from %s to %s; clients see it when they connect anew", r.Name, units.Size(was), units.Size(r.SizeBytes)))
}

// VolumeDelete deletes a volume.
func (s *service) VolumeDelete(ctx context.Context, r control.VolumeDeleteRequest) (control.VolumeChange, error) {
	ch, _ := s.changed(r.Name, r.DryRun, nil, fmt.Sprintf("volume %s deleted; its space comes back in the background", r.Name))
	if err := s.pool.DeleteVolume(ctx, r.Name, r.Force, r.DryRun); err != nil {
		err = classify(err)
		if errors.Is(err, control.ErrBusy) {
			err = control.WithHint(err, "disconnect its clients, or use --force")
		}
		return control.VolumeChange{}, err
	}
	ch.Volume.State = control.VolumeDeleting
	return ch, nil
}

// VolumeRename renames a volume.
func (s *service) VolumeRename(ctx context.Context, r control.VolumeRenameRequest) (control.VolumeChange, error) {
	if err := s.pool.RenameVolume(ctx, r.Name, r.NewName, r.DryRun); err != nil {
		return control.VolumeChange{}, classify(err)
	}
	name := r.NewName
	if r.DryRun {
		name = r.Name
	}
	return s.changed(name, r.DryRun, func(v *control.Volume) { v.Name = r.NewName }, fmt.Sprintf("volume %s renamed to %s", r.Name, r.NewName))
}

// VolumeSet changes a volume's settings. Each is a change of its own, made when all
// have been found good.
func (s *service) VolumeSet(ctx context.Context, r control.VolumeSetRequest) (control.VolumeChange, error) {
	v, err := s.pool.Volume(r.Name)
	if err != nil {
		return control.VolumeChange{}, classify(err)
	}
	was := v.Space()
	space, changes, err := s.newSpace(was, r)
	if err != nil {
		return control.VolumeChange{}, err
	}
	if r.Policy != nil {
		changes = append(changes, fmt.Sprintf("volume %s has policy %s; its extents follow, beginning now, within windows and budgets", r.Name, *r.Policy))
	}
	if r.ReadOnly != nil {
		text := "takes changes"
		if *r.ReadOnly {
			text = "is read-only"
		}
		changes = append(changes, fmt.Sprintf("volume %s %s; clients see it when they connect anew", r.Name, text))
	}
	if r.Clients != nil {
		text := "may be used by everybody who can connect"
		if len(*r.Clients) > 0 {
			text = "may be used by " + strings.Join(*r.Clients, ", ") + " alone"
		}
		changes = append(changes, fmt.Sprintf("volume %s %s; those that are connected stay", r.Name, text))
	}
	if len(changes) == 0 {
		return control.VolumeChange{}, fmt.Errorf("nothing to set: %w", control.ErrUsage)
	}
	for _, dryRun := range []bool{true, r.DryRun} {
		if space != was {
			if err := s.pool.SetSpace(ctx, r.Name, space, dryRun); err != nil {
				return control.VolumeChange{}, classify(err)
			}
		}
		if r.Policy != nil {
			if err := s.pool.SetPolicy(ctx, r.Name, *r.Policy, dryRun); err != nil {
				return control.VolumeChange{}, classify(err)
			}
		}
		if r.ReadOnly != nil {
			if err := s.pool.SetReadOnly(ctx, r.Name, *r.ReadOnly, dryRun); err != nil {
				return control.VolumeChange{}, classify(err)
			}
		}
		if r.Clients != nil {
			if err := s.pool.SetClients(ctx, r.Name, *r.Clients, dryRun); err != nil {
				return control.VolumeChange{}, classify(err)
			}
		}
	}
	if r.Policy != nil && !r.DryRun {
		s.pool.Replan()
	}
	return s.changed(r.Name, r.DryRun, func(v *control.Volume) {
		if r.Clients != nil {
			v.Clients = *r.Clients
		}
		if r.Policy != nil {
			v.Policy = *r.Policy
		}
		if r.ReadOnly != nil {
			v.ReadOnly = *r.ReadOnly
		}
		v.ReservationBytes, v.QuotaBytes, v.OnFull = space.Reservation, space.Quota, config.OnFull(space.OnFullWait).String()
	}, changes...)
}

// newSpace returns a volume's space with what a request changes of it, and a line
// for each change.
func (s *service) newSpace(space tiering.Space, r control.VolumeSetRequest) (tiering.Space, []string, error) {
	var changes []string
	if n := r.ReservationBytes; n != nil {
		space.Reservation = *n
		changes = append(changes, fmt.Sprintf("volume %s has %s", r.Name, allowance("reservation", *n)))
	}
	if n := r.QuotaBytes; n != nil {
		space.Quota = *n
		changes = append(changes, fmt.Sprintf("volume %s has %s", r.Name, allowance("quota", *n)))
	}
	if r.OnFull != nil {
		onFull, err := config.ParseOnFull(*r.OnFull)
		if err != nil {
			return space, nil, fmt.Errorf("on_full %w: %w", err, control.ErrUsage)
		}
		space.OnFullWait = time.Duration(onFull)
		text := "fail at once"
		if onFull > 0 {
			text = fmt.Sprintf("wait up to %s for some", units.Duration(onFull))
		}
		changes = append(changes, fmt.Sprintf("writes to volume %s that find no room %s", r.Name, text))
	}
	return space, changes, nil
}

// allowance says what a quota or reservation of n bytes is; 0 is none.
func allowance(what string, n int64) string {
	if n == 0 {
		return "no " + what
	}
	return fmt.Sprintf("a %s of %s", what, units.Size(n))
}
