package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"tierd/pkg/control"
	"tierd/pkg/trace"
)

// cannedService answers with fixed figures and remembers what it was asked.
type cannedService struct {
	asked []any
	// record answers TraceRecord; nil: with a recording that ends at once.
	record func(ctx context.Context, r control.TraceRecordRequest, w io.Writer) error
}

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func (s *cannedService) PoolStatus(context.Context) (control.PoolStatus, error) {
	return control.PoolStatus{
		PoolID: "6e1f0a3c-9a54-4c0e-8f0b-0c8f6b7e1a11", Version: "v1.0.0", FormatVersion: 1, ExtentSizeBytes: 1 << 20,
		Degraded: true, StartedAt: noon, UptimeSeconds: 93784, Incarnation: 12, ContinuityID: "00000000-0000-4000-8000-000000000001",
		MetadataState: control.MetadataOK, CommitNumber: 4711, StagedEntries: 3, OldestStagedSeconds: 1.25,
		VacatedSlots: 7, CleanSlots: 900, Healing: true, HealProgress: 0.5,
		CapacityBytes: 3 << 40, UsedBytes: 1 << 40, FreeBytes: 2 << 40, ProvisionedBytes: 6 << 40, OverCommitRatio: 2,
		Tiers: 2, Backings: 3, Volumes: 2, Connections: 1,
		Warnings: []string{"volume home: the configuration has a size of 1TiB, the pool 2TiB"},
	}, nil
}

func (s *cannedService) Tiers(context.Context) ([]control.Tier, error) {
	return []control.Tier{
		{ID: 0, Name: "ssd", Media: "ssd", Backings: 1, CapacityBytes: 1 << 40, UsedBytes: 1 << 39, FreeBytes: 1 << 39, HeadroomBytes: 20 << 30,
			Extents: 1 << 19, Reads: 9000, Writes: 10, ReadShare: 0.9, MeanReadSeconds: 0.0001, MeanWriteSeconds: 0.00025},
		{ID: 1, Name: "hdd", Backings: 2, CapacityBytes: 2 << 40, UsedBytes: 1 << 39, FreeBytes: 3 << 39, Extents: 1 << 19, Reads: 1000, ReadShare: 0.1, MeanReadSeconds: 0.0123},
	}, nil
}

func (s *cannedService) Backings(context.Context) ([]control.Backing, error) {
	return []control.Backing{
		{ID: 1, UUID: "u1", Path: "/srv/ssd/a.img", Tier: "ssd", State: control.BackingOK, SizeBytes: 1 << 40, Slots: 1 << 20, UsedSlots: 1 << 19, FreeSlots: 1 << 19, CleanSlots: 900, UnsyncedBytes: 65536, SyncSeconds: 0.25, WaitingWrites: 2, MeanReadSeconds: 0.0001},
		{ID: 2, UUID: "u2", Path: "/srv/hdd/b\x1b[2J.img", Tier: "hdd", State: control.BackingFailed, Error: "sync: input/output error", SizeBytes: 2 << 40, Slots: 2 << 20},
		{ID: 3, UUID: "u3", Path: "/srv/hdd/c.img", Tier: "hdd", State: control.BackingOK, SizeBytes: 2 << 40, Slots: 2 << 20, UsedSlots: 5, Draining: true,
			Drain: &control.BackingDrain{State: control.DrainMoving, RateBytesPerSecond: 50 << 20, TotalBytes: 4 << 30, MovedBytes: 1 << 30, LeftBytes: 3 << 30,
				MeasuredBytesPerSecond: 48 << 20, EstimatedSecondsLeft: 64, StuckExtents: map[string]int64{"too_busy": 2}, StuckExample: "extent 7 of volume home: it is written to without a pause"}},
		{ID: 4, UUID: "u4", Path: "/srv/hdd/d.img", Tier: "hdd", State: control.BackingOK, SizeBytes: 2 << 40, Slots: 2 << 20, Draining: true,
			Drain: &control.BackingDrain{State: control.DrainEmpty, TotalBytes: 1 << 30, MovedBytes: 1 << 30}},
	}, nil
}

func (s *cannedService) Volumes(context.Context) ([]control.Volume, error) {
	return []control.Volume{
		{ID: 1, UUID: "7d4e0b52-6d2c-4f5c-a9a7-50e5c1e3b0aa", Name: "home", SizeBytes: 2 << 40, AllocatedBytes: 1 << 40, Policy: "auto", State: control.VolumeOK, Connections: 1,
			ReservationBytes: 3 << 39, QuotaBytes: 2 << 40, OnFull: "wait 60s", WaitingForSpace: 2, NoSpaceErrors: 5,
			PerTier: []control.TierBytes{{Tier: "ssd", Bytes: 1 << 39}, {Tier: "hdd", Bytes: 1 << 39}}},
		{ID: 2, UUID: "7d4e0b52-6d2c-4f5c-a9a7-50e5c1e3b0bb", Name: "old", SizeBytes: 4 << 40, Policy: "lowest", State: control.VolumeDeleting, OnFull: "error",
			PerTier: []control.TierBytes{{Tier: "ssd"}, {Tier: "hdd"}}},
	}, nil
}

func (s *cannedService) VolumesLost(context.Context) ([]control.VolumeLost, error) {
	return []control.VolumeLost{
		{Volume: "home", UUID: "7d4e0b52-6d2c-4f5c-a9a7-50e5c1e3b0aa", LostBytes: 3 << 20, Ranges: []control.LostRange{
			{Offset: 0, LengthBytes: 1 << 20, BackingID: 2, BackingPath: "/srv/hdd/b.img"},
			{Offset: 1 << 40, LengthBytes: 2 << 20, BackingID: 3, BackingPath: "/srv/hdd/c.img"},
		}},
		{Volume: "mail", LostBytes: 1 << 30, Truncated: true, Ranges: []control.LostRange{{Offset: 4096, LengthBytes: 1 << 20, BackingID: 2, BackingPath: "/srv/hdd/b.img"}}},
	}, nil
}

func (s *cannedService) BackingAdd(_ context.Context, r control.BackingAddRequest) (control.BackingChange, error) {
	s.asked = append(s.asked, r)
	return control.BackingChange{BackingID: 4, BackingPath: r.Path, Tier: r.Tier, DryRun: r.DryRun, Changes: []string{"backing 4 added"}}, nil
}

func (s *cannedService) BackingDrain(_ context.Context, r control.BackingDrainRequest) (control.BackingChange, error) {
	s.asked = append(s.asked, r)
	return control.BackingChange{BackingID: 3, BackingPath: "/srv/hdd/c.img", Tier: "hdd", DryRun: r.DryRun, Changes: []string{"drain: " + string(r.Action)}}, nil
}

func (s *cannedService) BackingRemove(_ context.Context, r control.BackingRemoveRequest) (control.BackingChange, error) {
	s.asked = append(s.asked, r)
	return control.BackingChange{BackingID: 3, DryRun: r.DryRun, Changes: []string{"backing 3 removed"}}, nil
}

func (s *cannedService) TierRemove(_ context.Context, r control.TierRemoveRequest) (control.BackingChange, error) {
	s.asked = append(s.asked, r)
	return control.BackingChange{Tier: r.Tier, DryRun: r.DryRun, Changes: []string{"tier removed"}}, nil
}

func (s *cannedService) BackingForget(_ context.Context, r control.BackingForgetRequest) (control.BackingForgotten, error) {
	if !r.AcceptLoss && !r.DryRun {
		return control.BackingForgotten{}, control.WithHint(fmt.Errorf("backing %s is not forgotten: 3MiB are lost with it: %w", r.Backing, control.ErrBusy), "use --accept-loss")
	}
	s.asked = append(s.asked, r)
	return control.BackingForgotten{BackingID: 2, BackingPath: "/srv/hdd/b.img", LostBytes: 3 << 20, DryRun: r.DryRun,
		Changes: []string{"backing /srv/hdd/b.img is forgotten"}}, nil
}

func (s *cannedService) change(request any, dryRun bool, format string, args ...any) (control.VolumeChange, error) {
	s.asked = append(s.asked, request)
	return control.VolumeChange{Changes: []string{fmt.Sprintf(format, args...)}, DryRun: dryRun}, nil
}

func (s *cannedService) VolumeCreate(_ context.Context, r control.VolumeCreateRequest) (control.VolumeChange, error) {
	if r.Name == "home" {
		return control.VolumeChange{}, control.WithHint(fmt.Errorf("create volume %q: %w", r.Name, control.ErrExists), "choose another name")
	}
	return s.change(r, r.DryRun, "volume %s created with %d bytes", r.Name, r.SizeBytes)
}

func (s *cannedService) VolumeGrow(_ context.Context, r control.VolumeGrowRequest) (control.VolumeChange, error) {
	return s.change(r, r.DryRun, "volume %s grows to %d bytes", r.Name, r.SizeBytes)
}

func (s *cannedService) VolumeDelete(_ context.Context, r control.VolumeDeleteRequest) (control.VolumeChange, error) {
	return s.change(r, r.DryRun, "volume %s deleted", r.Name)
}

func (s *cannedService) VolumeRename(_ context.Context, r control.VolumeRenameRequest) (control.VolumeChange, error) {
	return s.change(r, r.DryRun, "volume %s renamed to %s", r.Name, r.NewName)
}

func (s *cannedService) VolumeSet(_ context.Context, r control.VolumeSetRequest) (control.VolumeChange, error) {
	if r.Policy == nil {
		return s.change(r, r.DryRun, "volume %s is set", r.Name)
	}
	return s.change(r, r.DryRun, "volume %s has policy %s", r.Name, *r.Policy)
}

func (s *cannedService) summary() control.PlanSummary {
	return control.PlanSummary{At: noon, Moves: 3, PromotionBytes: 2 << 20, DemotionBytes: 1 << 20, EtaSeconds: 90, LatencySeconds: 0.0125, LatencyAfterSeconds: 0.01,
		Rejected: map[string]int64{"no gain": 1000, "budget": 4}}
}

func (s *cannedService) RelocationStatus(context.Context) (control.RelocationStatus, error) {
	plan := s.summary()
	return control.RelocationStatus{
		State: control.RelocationRunning, Cycle: 42, CycleSeconds: 300, NextCycleAt: noon.Add(time.Minute), WindowUntil: noon.Add(8 * time.Hour),
		RateBytesPerSecond: 100 << 20, ThrottleBytesPerSec: 24 << 20, BudgetLeftCycle: 3 << 30, BudgetLeftDay: control.Unlimited, InFlight: 1, Queued: 2, Skipped: map[string]int64{"too_busy": 3, "budget": 0, "unmapped": 1}, LastPlan: &plan,
		Moved: []control.Moved{{Direction: "promotion", From: "hdd", To: "ssd", Extents: 5, Bytes: 5 << 20}, {Direction: "demotion", From: "ssd", To: "hdd"}},
	}, nil
}

func (s *cannedService) RelocationPlan(_ context.Context, r control.RelocationPlanRequest) (control.RelocationPlan, error) {
	s.asked = append(s.asked, r)
	return control.RelocationPlan{Summary: s.summary(), Traffic: []control.PlanTraffic{
		{Tier: "ssd", PromotionBytes: 2 << 20, WrittenBytes: 2 << 20, LeavingBytes: 1 << 20},
		{Tier: "ssd", BackingID: 1, BackingPath: "/srv/ssd.img", PromotionBytes: 2 << 20, WrittenBytes: 2 << 20, LeavingBytes: 1 << 20},
		{Tier: "hdd", DemotionBytes: 1 << 20, WrittenBytes: 1 << 20, LeavingBytes: 2 << 20},
	}, Stays: []control.Stay{{Volume: "home", Extent: 9, Tier: "hdd", Rate: 3.25, Reason: "budget"}}, Moves: []control.Move{
		{Volume: "home", Extent: 77, From: "hdd", To: "ssd", Heat: 0.0123, Gain: 0.0009, Reason: "promotion"},
		{Volume: "home", Extent: 5, From: "ssd", To: "hdd", Heat: 0.00001, Reason: "demotion"},
	}}, nil
}

func (s *cannedService) RelocationRun(ctx context.Context, r control.RelocationRunRequest) (control.RelocationStatus, error) {
	s.asked = append(s.asked, r)
	return s.RelocationStatus(ctx)
}

func (s *cannedService) RelocationPause(ctx context.Context, r control.RelocationPauseRequest) (control.RelocationStatus, error) {
	s.asked = append(s.asked, r)
	return control.RelocationStatus{State: control.RelocationPaused, CycleSeconds: 300, ThrottleBytesPerSec: control.Unlimited}, nil
}

func (s *cannedService) RelocationResume(ctx context.Context, r control.RelocationPauseRequest) (control.RelocationStatus, error) {
	s.asked = append(s.asked, r)
	return s.RelocationStatus(ctx)
}

func (s *cannedService) Locate(_ context.Context, r control.LocateRequest) (control.Location, error) {
	s.asked = append(s.asked, r)
	if r.Volume != "home" {
		return control.Location{}, fmt.Errorf("volume %q: %w", r.Volume, control.ErrNotFound)
	}
	if r.Offset == 0 {
		return control.Location{Volume: r.Volume, Why: "never written: reads as zeroes"}, nil
	}
	return control.Location{Volume: r.Volume, Offset: r.Offset, Extent: uint64(r.Offset >> 20), Mapped: true, Staged: true, Moving: true,
		Tier: "ssd", BackingID: 1, BackingPath: "/srv/ssd/a.img", Slot: 99, DeviceOffset: 104857600, Heat: 0.5, HeatRank: 0.01,
		LastMovedAt: noon, Why: "promoted: hotter than 99% of the extents"}, nil
}

func (s *cannedService) Skew(_ context.Context, r control.SkewRequest) (control.Skew, error) {
	s.asked = append(s.asked, r)
	k := control.Skew{Volume: r.Volume, ExtentSizeBytes: 1 << 20, Extents: 1 << 20, Tiers: []control.SkewTier{
		{Name: "ssd", CapacityBytes: 50 << 30, FreeBytes: 1 << 30, Extents: 49 << 10}, {Name: "hdd", CapacityBytes: 2 << 40, FreeBytes: 1 << 40, Extents: 975 << 10},
	}}
	if r.Volume == "empty" {
		return k, nil
	}
	k.Heat = 0.75
	k.Points = []control.SkewPoint{{}, {Extents: 0.01, Heat: 0.5}, {Extents: 0.031, Heat: 0.8}, {Extents: 0.1, Heat: 0.95}, {Extents: 0.4, Heat: 1}, {Extents: 1, Heat: 1}}
	k.Needs = []control.SkewPoint{{Extents: 0.01, Heat: 0.5}, {Extents: 0.031, Heat: 0.8}, {Extents: 0.077, Heat: 0.9}, {Extents: 0.1, Heat: 0.95}, {Extents: 0.34, Heat: 0.99}}
	k.Tiers[0].Heat, k.Tiers[0].BestHeat, k.Tiers[1].Heat, k.Tiers[1].BestHeat = 0.61, 0.85, 0.39, 0.15
	return k, nil
}

func (s *cannedService) Heat(_ context.Context, r control.HeatRequest) (control.HeatMap, error) {
	s.asked = append(s.asked, r)
	m := control.HeatMap{Volume: r.Volume, ExtentSizeBytes: 1 << 20, Extents: 150, ExtentsPerCell: 1, Tiers: []string{"ssd", "hdd"},
		Hottest: []control.HotExtent{{Extent: 149, Offset: 149 << 20, Heat: 0.25, Tier: "ssd"}}}
	if r.Volume == "empty" {
		m.Levels, m.Tier, m.Hottest = make([]byte, 150), bytes.Repeat([]byte{control.TierUnmapped}, 150), nil
		return m, nil
	}
	for i := range 150 {
		level, tier := byte(i*255/149), byte(1)
		switch {
		case i >= 60 && i < 70:
			level, tier = 0, control.TierUnmapped
		case i >= 120:
			tier = 0
		}
		m.Levels, m.Tier = append(m.Levels, level), append(m.Tier, tier)
	}
	return m, nil
}

func (s *cannedService) Traces(context.Context) ([]control.TraceRecording, error) {
	return []control.TraceRecording{
		{Volume: "home", StartedAt: noon, ForSeconds: 600, MaxSizeBytes: 1 << 30, Records: 12345, Bytes: 98765, DroppedRecords: 6},
		{Volume: "mail", StartedAt: noon, Records: 1, Bytes: 300},
	}, nil
}

func (s *cannedService) TraceStop(_ context.Context, r control.TraceStopRequest) (control.TraceStopped, error) {
	s.asked = append(s.asked, r)
	return control.TraceStopped{Recording: control.TraceRecording{Volume: r.Volume, Records: 12345, Bytes: 98765, DroppedRecords: 6}, DryRun: r.DryRun}, nil
}

func (s *cannedService) TraceRecord(ctx context.Context, r control.TraceRecordRequest, w io.Writer) error {
	s.asked = append(s.asked, r)
	if r.Volume != "home" {
		return fmt.Errorf("volume %q: %w", r.Volume, control.ErrNotFound)
	}
	if r.DryRun {
		return nil
	}
	if s.record != nil {
		return s.record(ctx, r, w)
	}
	return writeRecording(w, "its time is over")
}

// writeRecording writes a small recording; without a reason it has no end.
func writeRecording(w io.Writer, reason string) error {
	t, err := trace.NewWriter(w, trace.Header{Volume: "home", UUID: [16]byte{7, 0xd4}, VolumeSize: 2 << 40, ExtentSize: 1 << 20, Start: noon}, trace.WriterOptions{})
	for i := 0; err == nil && i < 100; i++ {
		r := trace.Record{Time: time.Duration(i) * time.Second, Offset: int64(i/(1+i%20)) << 20, Length: 4096, Write: i%4 == 0}
		switch i {
		case 50:
			r = trace.Record{Time: r.Time, Flush: true}
		case 51, 52:
			r = trace.Record{Time: r.Time, Trim: true, Zero: i == 52, Length: 1 << 20}
		}
		err = t.Write(r)
	}
	t.SetDropped(3)
	if err == nil && reason != "" {
		return t.End(2*time.Minute, reason)
	}
	return errors.Join(err, t.Flush())
}
