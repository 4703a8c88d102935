package main

import (
	"context"
	"errors"
	"fmt"

	"tierd/pkg/backing"
	"tierd/pkg/control"
	"tierd/pkg/units"
	"tierd/tiering"
)

// BackingAdd makes a file or device a backing of the pool.
func (s *service) BackingAdd(ctx context.Context, r control.BackingAddRequest) (control.BackingChange, error) {
	a, err := s.pool.AddBacking(ctx, tiering.AddOptions{
		Tier: r.Tier, Before: r.NewTierBefore, After: r.NewTierAfter, Media: backing.Media(r.Media), Force: r.Force, DryRun: r.DryRun,
		Backing: tiering.BackingSpec{Path: r.Path, Size: r.SizeBytes, Preallocate: r.Preallocate, Direct: r.DirectIO, ForeignNBD: r.ForeignNBD},
	})
	if err != nil {
		return control.BackingChange{}, classify(err)
	}
	reply := control.BackingChange{BackingID: int(a.ID), BackingPath: a.Path, Tier: a.Tier, DryRun: r.DryRun}
	if a.NewTier {
		reply.Changes = append(reply.Changes, fmt.Sprintf("tier %s is new, at rank %d", a.Tier, a.Rank))
	}
	what := "backing"
	if a.NewFile {
		what = "new file"
	}
	reply.Changes = append(reply.Changes, fmt.Sprintf("%s %s in tier %s: %s in %d slots", what, a.Path, a.Tier, units.Size(a.Capacity).Human(), a.Slots))
	if !r.DryRun {
		reply.Changes = append(reply.Changes, fmt.Sprintf("its id is %d; list it in the configuration too", a.ID))
	}
	return reply, nil
}

// BackingDrain begins, paces, pauses or ends the emptying of a backing.
func (s *service) BackingDrain(ctx context.Context, r control.BackingDrainRequest) (control.BackingChange, error) {
	if err := s.pool.Drain(ctx, r.Backing, tiering.DrainAction(r.Action), r.RateBytesPerSecond, r.DryRun); err != nil {
		return control.BackingChange{}, classify(err)
	}
	reply := control.BackingChange{DryRun: r.DryRun}
	for _, b := range s.pool.Backings() {
		if b.Path != r.Backing && fmt.Sprint(b.ID) != r.Backing && b.UUID.String() != r.Backing {
			continue
		}
		reply.BackingID, reply.BackingPath, reply.Tier = int(b.ID), b.Path, b.Tier
		left := units.Size(b.Slots.Used * s.pool.Size().Bytes()).Human()
		switch r.Action {
		case control.DrainStart:
			reply.Changes = append(reply.Changes, fmt.Sprintf("backing %s takes no new extents; %s move off it", b.Path, left))
		case control.DrainPause:
			reply.Changes = append(reply.Changes, fmt.Sprintf("the drain of backing %s pauses with %s left", b.Path, left))
		case control.DrainResume:
			reply.Changes = append(reply.Changes, fmt.Sprintf("the drain of backing %s goes on with %s left", b.Path, left))
		case control.DrainCancel:
			reply.Changes = append(reply.Changes, fmt.Sprintf("backing %s takes new extents again; it has %s", b.Path, left))
		}
	}
	return reply, nil
}

// BackingRemove takes an empty backing out of the pool.
func (s *service) BackingRemove(ctx context.Context, r control.BackingRemoveRequest) (control.BackingChange, error) {
	m, err := s.pool.RemoveBacking(ctx, r.Backing, r.DryRun)
	if err != nil {
		if errors.Is(err, tiering.ErrBusy) {
			err = control.WithHint(err, "tierctl backing list tells what is on it, and how far a drain is")
		}
		return control.BackingChange{}, classify(err)
	}
	reply := control.BackingChange{
		BackingID: int(m.ID), BackingPath: m.Path, Tier: m.Tier, DryRun: r.DryRun,
		Changes: []string{fmt.Sprintf("backing %s is no member of the pool any more; take it out of the configuration too", m.Path)},
	}
	if !r.DryRun && !m.Wiped {
		reply.Changes = append(reply.Changes, "what says that it was one could not be erased: "+m.WipeError)
	}
	return reply, nil
}

// TierRemove removes a tier without backings.
func (s *service) TierRemove(ctx context.Context, r control.TierRemoveRequest) (control.BackingChange, error) {
	if err := s.pool.RemoveTier(ctx, r.Tier, r.DryRun); err != nil {
		return control.BackingChange{}, classify(err)
	}
	return control.BackingChange{
		Tier: r.Tier, DryRun: r.DryRun, Changes: []string{fmt.Sprintf("tier %s is removed; take it out of the configuration too", r.Tier)},
	}, nil
}

// drainOf translates how far a drain is; nil if there is none.
func drainOf(d tiering.DrainInfo) *control.BackingDrain {
	if d.State == tiering.DrainNone {
		return nil
	}
	eta := -1.0
	if d.ETA >= 0 {
		eta = d.ETA.Seconds()
	}
	return &control.BackingDrain{
		State: control.DrainState(d.State), BegunAt: d.Begun, RateBytesPerSecond: d.Rate, TotalBytes: d.Total, MovedBytes: d.Moved,
		LeftBytes: d.Left, MeasuredBytesPerSecond: d.Speed, EstimatedSecondsLeft: eta, StuckExtents: d.Stuck, StuckExample: d.Example,
	}
}
