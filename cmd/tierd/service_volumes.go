package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

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
		ID: uint32(v.ID), UUID: v.UUID.String(), Name: v.Name, SizeBytes: v.Size, Policy: v.Policy, State: control.VolumeOK,
		Connections: int(v.Opens), Reads: int64(v.Ops["read"].Requests), Writes: int64(v.Ops["write"].Requests),
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
	spec := tiering.VolumeSpec{Name: r.Name, Size: r.SizeBytes, Policy: r.Policy}
	if err := s.pool.CreateVolume(ctx, spec, r.DryRun); err != nil {
		return control.VolumeChange{}, classify(err)
	}
	return s.changed(r.Name, r.DryRun, func(v *control.Volume) {
		*v = control.Volume{Name: r.Name, SizeBytes: r.SizeBytes, Policy: cmp.Or(r.Policy, "auto"), State: control.VolumeOK}
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

// VolumeSet changes a volume's settings.
func (s *service) VolumeSet(ctx context.Context, r control.VolumeSetRequest) (control.VolumeChange, error) {
	if r.Policy == nil {
		return control.VolumeChange{}, fmt.Errorf("nothing to set: %w", control.ErrUsage)
	}
	if err := s.pool.SetPolicy(ctx, r.Name, *r.Policy, r.DryRun); err != nil {
		return control.VolumeChange{}, classify(err)
	}
	return s.changed(r.Name, r.DryRun, func(v *control.Volume) { v.Policy = *r.Policy },
		fmt.Sprintf("volume %s has policy %s; its extents follow with the next cycles", r.Name, *r.Policy))
}
