package main

import (
	"cmp"
	"context"
	"slices"
	"time"

	"tierd/pkg/control"
	"tierd/tiering"
	"tierd/tiering/plan"
)

// RelocationStatus returns the state of the movement.
func (s *service) RelocationStatus(context.Context) (control.RelocationStatus, error) {
	r := s.pool.Relocation()
	b := s.cfg().Relocation.Budget
	st := control.RelocationStatus{
		State: control.RelocationRunning, Cycle: uint64(r.Cycle), CycleSeconds: r.CycleTime.Seconds(), NextCycleAt: r.NextCycle,
		WindowUntil: r.WindowUntil, RateBytesPerSecond: r.Rate, BudgetLeftCycle: r.CycleLeft, BudgetLeftDay: r.DayLeft,
		BudgetPerCycleBytes: int64(b.PerCycle), BudgetPerDayBytes: int64(b.PerDay), InFlight: r.InFlight, Queued: r.Queued,
		Skipped: r.Skipped, ThrottleBytesPerSec: r.Throttle,
	}
	switch {
	case r.Paused:
		st.State = control.RelocationPaused
	case !r.WindowOpen:
		st.State = control.RelocationClosed
	}
	rank := make(map[string]int)
	for i, t := range s.pool.Tiers() {
		rank[t.Name] = i
	}
	total := make(map[[2]string]*control.Moved)
	for _, m := range r.Moved {
		k := [2]string{m.From, m.To}
		if total[k] == nil {
			d := plan.Rebalance
			switch {
			case rank[m.From] > rank[m.To]:
				d = plan.Promotion
			case rank[m.From] < rank[m.To]:
				d = plan.Demotion
			}
			total[k] = &control.Moved{Direction: string(d), From: m.From, To: m.To}
		}
		total[k].Extents += m.Extents
		total[k].Bytes += m.Bytes
	}
	for _, m := range total {
		st.Moved = append(st.Moved, *m)
	}
	slices.SortFunc(st.Moved, func(a, b control.Moved) int {
		return cmp.Or(cmp.Compare(rank[a.From], rank[b.From]), cmp.Compare(rank[a.To], rank[b.To]))
	})
	if !r.LastTime.IsZero() {
		sum := summary(r.Last, r.LastTime, s.pool.Forecast(r.Last, time.Now()))
		st.LastPlan = &sum
	}
	return st, nil
}

func summary(p plan.Plan, at time.Time, f tiering.Forecast) control.PlanSummary {
	s := control.PlanSummary{
		At: at, Moves: len(p.Moves), PromotionBytes: p.BytesUp, DemotionBytes: p.BytesDown, RebalanceBytes: p.BytesRebalance,
		Rejected: make(map[string]int64), ConsideredCount: int64(len(p.Moves)), EtaSeconds: -1,
		LatencySeconds: f.Latency.Seconds(), LatencyAfterSeconds: f.LatencyAfter.Seconds(),
	}
	for r, n := range p.Rejected {
		s.ConsideredCount += n
		if n > 0 {
			s.Rejected[string(r)] = n
		}
	}
	if !f.Done.IsZero() {
		s.EtaSeconds = max(time.Until(f.Done).Seconds(), 0)
	}
	return s
}

// RelocationPlan returns what would move now.
func (s *service) RelocationPlan(_ context.Context, r control.RelocationPlanRequest) (control.RelocationPlan, error) {
	limit, err := listed(r.Limit)
	if err != nil {
		return control.RelocationPlan{}, err
	}
	p := s.pool.PlanNow()
	now := time.Now()
	f := s.pool.Forecast(p, now)
	out := control.RelocationPlan{Summary: summary(p, now, f), Traffic: s.traffic(f)}
	tiers := s.pool.Tiers()
	names := make(map[uint32]string)
	for _, v := range s.pool.VolumeInfos() {
		names[uint32(v.ID)] = v.Name
	}
	moves := slices.Clone(p.Moves)
	slices.SortStableFunc(moves, func(a, b plan.Move) int { return cmp.Compare(b.Gain, a.Gain) })
	size := s.pool.Size()
	for _, m := range moves[:min(len(moves), limit)] {
		mv := control.Move{
			Volume: names[uint32(m.Key.Volume)], Extent: uint64(m.Key.Index), From: tiers[m.From].Name, To: tiers[m.To].Name,
			Gain: m.Gain, Reason: string(m.Reason),
		}
		if l, err := s.pool.Locate(mv.Volume, size.Start(m.Key.Index)); err == nil {
			mv.Heat = l.Score.Heat
		}
		out.Moves = append(out.Moves, mv)
	}
	for _, st := range p.Stays[:min(len(p.Stays), limit)] {
		out.Stays = append(out.Stays, control.Stay{
			Volume: names[uint32(st.Key.Volume)], Extent: uint64(st.Key.Index), Tier: tiers[st.Tier].Name, Rate: st.Rate, Reason: string(st.Reason),
		})
	}
	return out, nil
}

// traffic returns what a plan moves by tier, and by backing where it knows.
func (s *service) traffic(f tiering.Forecast) []control.PlanTraffic {
	size := s.pool.Size().Bytes()
	row := func(tier string, t tiering.Traffic) control.PlanTraffic {
		return control.PlanTraffic{
			Tier: tier, PromotionBytes: t.Up * size, DemotionBytes: t.Down * size, RebalanceBytes: t.Balance * size,
			WrittenBytes: t.In() * size, LeavingBytes: t.Out * size,
		}
	}
	var out []control.PlanTraffic
	backings := s.pool.Backings()
	for i, t := range s.pool.Tiers() {
		if i >= len(f.Tiers) || f.Tiers[i] == (tiering.Traffic{}) {
			continue
		}
		out = append(out, row(t.Name, f.Tiers[i]))
		for _, b := range backings {
			if b.Tier != t.Name || f.Backings[b.ID] == (tiering.Traffic{}) {
				continue
			}
			r := row(t.Name, f.Backings[b.ID])
			r.BackingID, r.BackingPath = int(b.ID), b.Path
			out = append(out, r)
		}
	}
	return out
}

// RelocationRun starts a cycle now.
func (s *service) RelocationRun(ctx context.Context, r control.RelocationRunRequest) (control.RelocationStatus, error) {
	if r.UntilSettled && !r.DryRun {
		why, moved, err := s.pool.Settle(ctx)
		if err != nil {
			return control.RelocationStatus{}, classify(err)
		}
		st, err := s.RelocationStatus(ctx)
		st.Settled = &control.Settled{Reason: string(why), Extents: moved, Bytes: moved * s.pool.Size().Bytes()}
		return st, err
	}
	if !r.DryRun {
		if _, err := s.pool.RunCycle(ctx, r.Wait); err != nil {
			return control.RelocationStatus{}, classify(err)
		}
	}
	return s.RelocationStatus(ctx)
}

// RelocationPause stops movement.
func (s *service) RelocationPause(ctx context.Context, r control.RelocationPauseRequest) (control.RelocationStatus, error) {
	if !r.DryRun {
		s.pool.PauseRelocation()
	}
	return s.RelocationStatus(ctx)
}

// RelocationResume lets movement go on.
func (s *service) RelocationResume(ctx context.Context, r control.RelocationPauseRequest) (control.RelocationStatus, error) {
	if !r.DryRun {
		s.pool.ResumeRelocation()
	}
	return s.RelocationStatus(ctx)
}
