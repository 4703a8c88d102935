package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"tierd/cmd/internal/setup"
	"tierd/nbd"
	"tierd/pkg/config"
	"tierd/pkg/control"
	"tierd/tiering"
	"tierd/tiering/heat"
)

// service answers the administrator: it translates between the pool and the
// types of the control socket.
type service struct {
	pool *tiering.Pool
	nbd  *nbd.Server
	cfg  func() *config.Config // in force now

	recordings recordings
}

var _ control.Service = (*service)(nil)

// classify gives an error of the pool its class on the control socket.
func classify(err error) error {
	for _, c := range []struct{ from, to error }{
		{tiering.ErrNotFound, control.ErrNotFound},
		{tiering.ErrExists, control.ErrExists},
		{tiering.ErrBusy, control.ErrBusy},
		{tiering.ErrInvalid, control.ErrUsage},
		{tiering.ErrOutOfRange, control.ErrUsage},
		{tiering.ErrMetadataFailed, control.ErrUnavailable},
		{tiering.ErrNoSpace, control.ErrUnavailable},
		{tiering.ErrBackingFailed, control.ErrUnavailable},
		{tiering.ErrBackingMissing, control.ErrUnavailable},
		{tiering.ErrReadOnly, control.ErrUnavailable},
		{tiering.ErrRefused, control.ErrUnavailable},
		{tiering.ErrClosed, control.ErrUnavailable},
	} {
		if errors.Is(err, c.from) {
			return classified{err, c.to}
		}
	}
	return err
}

// classified is an error with a class that does not show in its text.
type classified struct{ err, class error }

func (c classified) Error() string   { return c.err.Error() }
func (c classified) Unwrap() []error { return []error{c.err, c.class} }

// nearlyFull is the fill from which a pool needs attention, as in the alerts.
const nearlyFull = 0.9

// PoolStatus returns the pool at a glance.
func (s *service) PoolStatus(context.Context) (control.PoolStatus, error) {
	info := s.pool.Info()
	st := control.PoolStatus{
		PoolID: info.ID.String(), Version: programVersion(), FormatVersion: int(info.FormatVersion), ExtentSizeBytes: info.ExtentSize,
		StartedAt: info.Started, UptimeSeconds: time.Since(info.Started).Seconds(),
		Incarnation: info.Incarnation, ContinuityID: info.Continuity.String(),
		MetadataState: control.MetadataOK, CommitNumber: info.Commit, StagedEntries: int64(info.Staged),
		Healing: info.Healed < 1, HealProgress: info.Healed,
		ProvisionedBytes: info.Provisioned, Warnings: info.Warnings,
		Connections: s.nbd.Snapshot().Transmitting, ReadOnly: info.ReadOnly,
	}
	if info.MetadataError != nil {
		st.MetadataState, st.MetadataError = control.MetadataFailed, info.MetadataError.Error()
	}
	if !info.OldestStaged.IsZero() {
		st.OldestStagedSeconds = max(time.Since(info.OldestStaged).Seconds(), 0)
	}
	tiers := s.pool.Tiers()
	for _, t := range tiers {
		st.CapacityBytes += t.Slots.Total * info.ExtentSize
		st.FreeBytes += (t.Slots.Total - t.Slots.Used - t.Slots.Quarantined) * info.ExtentSize
		st.UsedBytes += t.Slots.Used * info.ExtentSize
		st.VacatedSlots += t.Slots.Vacated
		st.CleanSlots += t.Slots.Clean
	}
	if st.CapacityBytes > 0 {
		st.OverCommitRatio = float64(st.ProvisionedBytes) / float64(st.CapacityBytes)
	}
	if st.BelowLowWater, _ = s.pool.LowWater(); st.BelowLowWater {
		st.Warnings = append(st.Warnings, fmt.Sprintf("less than %s of the pool is free (space.low_water)", s.cfg().Space.LowWater))
	}
	st.Warnings = append(st.Warnings, setup.Differences(s.cfg(), s.pool)...)
	for _, v := range s.nbd.Slow() {
		if limit := time.Duration(s.cfg().NBD.SlowRequest); v.Oldest >= limit {
			st.Warnings = append(st.Warnings, fmt.Sprintf("a request of volume %s has been under way for %s (nbd.slow_request)", v.Export, v.Oldest.Round(time.Second)))
		}
	}
	if share := float64(st.UsedBytes) / float64(st.CapacityBytes); share > nearlyFull {
		st.Warnings = append(st.Warnings, fmt.Sprintf("the pool is %.1f%% full; writes to new extents fail when it is full: trim file systems or delete volumes", share*100))
	}
	backings := s.pool.Backings()
	for _, b := range backings {
		st.Degraded = st.Degraded || b.Err != nil
		switch {
		case b.Err != nil:
			st.Warnings = append(st.Warnings, b.Err.Error())
		case b.State != tiering.ConditionOK:
			st.Warnings = append(st.Warnings, fmt.Sprintf("backing %s is %s: %s", b.Path, b.State, b.Why))
		}
	}
	st.Tiers, st.Backings, st.Volumes = len(tiers), len(backings), len(s.pool.Volumes())
	return st, nil
}

// Tiers returns the tiers, fastest first.
func (s *service) Tiers(context.Context) ([]control.Tier, error) {
	size := s.pool.Size().Bytes()
	infos := s.pool.Tiers()
	reloc := s.pool.Relocation()
	rank := make(map[string]int)
	var reads float64
	for i, t := range infos {
		rank[t.Name] = i
		reads += float64(t.Ops["read"].Requests)
	}
	tiers := make([]control.Tier, len(infos))
	for i, t := range infos {
		r, w := t.Ops["read"], t.Ops["write"]
		tiers[i] = control.Tier{
			ID: int(t.ID), Name: t.Name, Media: t.Media,
			CapacityBytes: t.Slots.Total * size, UsedBytes: t.Slots.Used * size, FreeBytes: (t.Slots.Total - t.Slots.Used - t.Slots.Quarantined) * size,
			HeadroomBytes: t.Headroom, Extents: t.Slots.Used,
			Reads: int64(r.Requests), Writes: int64(w.Requests), ReadBytes: int64(r.Bytes), WrittenBytes: int64(w.Bytes),
			MeanReadSeconds: mean(r), MeanWriteSeconds: mean(w),
		}
		if reads > 0 {
			tiers[i].ReadShare = float64(r.Requests) / reads
		}
		if i < len(s.cfg().Tiers) {
			tiers[i].EnduranceBytesPerDay = int64(s.cfg().Tiers[i].Endurance.WritePerDay)
		}
	}
	for _, b := range s.pool.Backings() {
		tiers[rank[b.Tier]].Backings++
	}
	for _, m := range reloc.Moved {
		switch to := rank[m.To]; {
		case rank[m.From] > to:
			tiers[to].PromotedBytes += m.Bytes
		case rank[m.From] < to:
			tiers[to].DemotedBytes += m.Bytes
		}
	}
	return tiers, nil
}

func mean(o tiering.OpCounts) float64 {
	if o.Requests == 0 {
		return 0
	}
	return o.Time.Seconds() / float64(o.Requests)
}

// Backings returns the backings by tier and id.
func (s *service) Backings(context.Context) ([]control.Backing, error) {
	simulated := make(map[string]bool)
	for _, t := range s.cfg().Tiers {
		for _, b := range t.Backings {
			simulated[b.Path] = b.Simulate.Enabled()
		}
	}
	var list []control.Backing
	for _, b := range s.pool.Backings() {
		c := control.Backing{
			ID: int(b.ID), UUID: b.UUID.String(), Path: b.Path, Tier: b.Tier, SizeBytes: b.Size,
			State: control.BackingState(b.State), Error: b.Why, StateSince: b.Since, Draining: b.Draining,
			Slots: b.Slots.Total, UsedSlots: b.Slots.Used, FreeSlots: b.Slots.Total - b.Slots.Used - b.Slots.Quarantined,
			CleanSlots: b.Slots.Clean, QuarantinedSlots: b.Slots.Quarantined, UnsyncedBytes: b.Unsynced,
			SyncSeconds: b.SyncTime.Seconds(), WaitingWrites: b.Waiting,
			MeanReadSeconds: mean(b.Ops["read"]), MeanWriteSeconds: mean(b.Ops["write"]), Simulated: simulated[b.Path],
		}
		c.Drain = drainOf(b.Drain)
		list = append(list, c)
	}
	return list, nil
}

// Locate tells where a byte of a volume lives, and why.
func (s *service) Locate(ctx context.Context, r control.LocateRequest) (control.Location, error) {
	p, err := s.pool.Locate(r.Volume, r.Offset)
	if err != nil {
		return control.Location{}, classify(err)
	}
	l := control.Location{
		Volume: p.Volume, Offset: p.Offset, Extent: uint64(p.Index), Mapped: p.Mapped, Staged: p.Staged, Moving: p.Moving,
		Tier: p.Tier, BackingID: int(p.Location.Backing), BackingPath: p.Backing, Slot: uint32(p.Location.Slot),
		DeviceOffset: p.DeviceOffset, Heat: p.Score.Heat, Why: p.Why,
	}
	if p.Score.SinceMove != heat.NeverMoved {
		ago := time.Duration(p.Score.SinceMove) * s.pool.Relocation().CycleTime
		l.LastMovedAt = time.Now().Add(-ago).Truncate(time.Second)
	}
	var mapped, hotter float64
	err = s.pool.HeatMap(ctx, r.Volume, func(h tiering.ExtentHeat) {
		if h.Tier >= 0 {
			mapped++
			if h.Heat > p.Score.Heat {
				hotter++
			}
		}
	})
	if err == nil && mapped > 0 {
		l.HeatRank = hotter / mapped
	}
	return l, classify(err)
}

const (
	defaultLimit = 20      // of listed moves and extents
	maxCells     = 1 << 20 // of a heat map
)

// listed returns how many entries a request wants to be listed.
func listed(limit int) (int, error) {
	if limit < 0 {
		return 0, fmt.Errorf("limit %d: must not be negative: %w", limit, control.ErrUsage)
	}
	return cmp.Or(limit, defaultLimit), nil
}

// Heat returns the heat of a volume.
func (s *service) Heat(ctx context.Context, r control.HeatRequest) (control.HeatMap, error) {
	limit, err := listed(r.Limit)
	if err != nil {
		return control.HeatMap{}, err
	}
	v, err := s.pool.Volume(r.Volume)
	if err != nil {
		return control.HeatMap{}, classify(err)
	}
	size := s.pool.Size()
	m := control.HeatMap{Volume: r.Volume, ExtentSizeBytes: size.Bytes(), Extents: int64(size.Count(v.Size())), ExtentsPerCell: 1}
	for m.Extents/m.ExtentsPerCell > maxCells {
		m.ExtentsPerCell *= 2
	}
	for _, t := range s.pool.Tiers() {
		m.Tiers = append(m.Tiers, t.Name)
	}
	cells := (m.Extents + m.ExtentsPerCell - 1) / m.ExtentsPerCell
	heats := make([]float64, cells)
	m.Tier = slices.Repeat([]byte{control.TierUnmapped}, int(cells))
	var hottest []tiering.ExtentHeat
	most := 0.0
	err = s.pool.HeatMap(ctx, r.Volume, func(h tiering.ExtentHeat) {
		c := int64(h.Index) / m.ExtentsPerCell
		if c >= cells {
			return // grown meanwhile
		}
		if h.Tier >= 0 && (h.Heat >= heats[c] || m.Tier[c] == control.TierUnmapped) {
			m.Tier[c] = byte(h.Tier)
		}
		heats[c] = max(heats[c], h.Heat)
		most = max(most, h.Heat)
		if h.Heat > 0 {
			hottest = append(hottest, h)
		}
	})
	if err != nil {
		return control.HeatMap{}, classify(err)
	}
	m.Levels = levels(heats, most)
	slices.SortFunc(hottest, func(a, b tiering.ExtentHeat) int { return cmp.Compare(b.Heat, a.Heat) })
	for _, h := range hottest[:min(len(hottest), limit)] {
		e := control.HotExtent{Extent: uint64(h.Index), Offset: size.Start(h.Index), Heat: h.Heat}
		if h.Tier >= 0 {
			e.Tier = m.Tiers[h.Tier]
		}
		m.Hottest = append(m.Hottest, e)
	}
	return m, nil
}

// levels puts heats on a scale of 0 to 255, 16 steps to a halving, so that a
// volume's warm parts show beside its hot ones.
func levels(heats []float64, most float64) []byte {
	out := make([]byte, len(heats))
	for i, h := range heats {
		if h > 0 {
			out[i] = byte(max(255+16*math.Log2(h/most), 1))
		}
	}
	return out
}
