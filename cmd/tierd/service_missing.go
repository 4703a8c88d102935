package main

import (
	"context"
	"errors"
	"fmt"

	"tierd/pkg/control"
	"tierd/pkg/units"
	"tierd/tiering"
)

// maxLostRanges is how many ranges are listed of a volume: a badly mixed volume of
// millions of extents has as many.
const maxLostRanges = 100_000

// VolumesLost returns the ranges whose backings are missing.
func (s *service) VolumesLost(context.Context) ([]control.VolumeLost, error) {
	var list []control.VolumeLost
	for _, v := range s.pool.Volumes() {
		ranges := v.Lost()
		if len(ranges) == 0 {
			continue
		}
		l := control.VolumeLost{Volume: v.Name(), UUID: v.UUID().String()}
		for i, r := range ranges {
			l.LostBytes += r.Length
			if i < maxLostRanges {
				l.Ranges = append(l.Ranges, control.LostRange{Offset: r.Offset, LengthBytes: r.Length, BackingID: int(r.Backing), BackingPath: r.Path})
			} else {
				l.Truncated = true
			}
		}
		list = append(list, l)
	}
	return list, nil
}

// BackingForget gives up a missing backing.
func (s *service) BackingForget(ctx context.Context, r control.BackingForgetRequest) (control.BackingForgotten, error) {
	f, err := s.pool.ForgetBacking(ctx, r.Backing, r.AcceptLoss, r.DryRun)
	if err != nil {
		if errors.Is(err, tiering.ErrLossNotAccepted) {
			err = control.WithHint(err, "attach the backing again and start anew, or use --accept-loss; tierctl volume list --lost shows what is lost")
		}
		return control.BackingForgotten{}, classify(err)
	}
	reply := control.BackingForgotten{
		BackingID: int(f.ID), BackingPath: f.Path, LostBytes: f.Bytes(), DryRun: r.DryRun, Volumes: []control.VolumeLoss{},
		Changes: []string{fmt.Sprintf("backing %s is forgotten; %v", f.Path, &f)},
	}
	for _, l := range f.Losses {
		reply.Volumes = append(reply.Volumes, control.VolumeLoss{Volume: l.Volume, LostBytes: l.Bytes})
		reply.Changes = append(reply.Changes, fmt.Sprintf("%s of volume %s read as zeroes", units.Size(l.Bytes), l.Volume))
	}
	return reply, nil
}
