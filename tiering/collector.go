package tiering

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"tierd/pkg/metrics"
	"tierd/tiering/plan"
)

// collector exposes the pool to Prometheus. Everything is read at scrape, without
// a lock that the I/O path takes, and everything exists from the start.
type collector struct {
	p *Pool
	d map[string]*prometheus.Desc
}

// metricDefs are all metrics of the pool: name without the namespace, help,
// labels.
var metricDefs = []struct {
	name, help string
	labels     []string
}{
	{"tier_capacity_bytes", "Bytes in slots of the tier.", []string{"tier"}},
	{"tier_used_bytes", "Bytes in slots of the tier that are owned, or reserved for a move under way.", []string{"tier"}},
	{"tier_free_bytes", "Bytes in slots of the tier without an owner.", []string{"tier"}},
	{"tier_extents", "Mapped extents on the tier.", []string{"tier"}},
	{"tier_volumes", "Volumes with extents on the tier.", []string{"tier"}},
	{"tier_service_time_seconds", "Time of one random read that finds the devices idle, as the planner sees it.", []string{"tier"}},
	{"tier_access_time_seconds", "Time of one random read with the wait for those before it, as the planner sees it.", []string{"tier"}},
	{"tier_utilisation_ratio", "Utilisation that makes the one into the other: access time = service time / (1 - utilisation).", []string{"tier"}},
	{"tier_cache_hits_total", "Reads answered without waiting for a device of the tier.", []string{"tier"}},
	{"tier_cache_misses_total", "Reads that had to ask a device of the tier.", []string{"tier"}},
	{"tier_requests_total", "Pieces of requests that went to the tier.", []string{"tier", "op"}},
	{"tier_request_bytes_total", "Bytes of requests that went to the tier.", []string{"tier", "op"}},
	{"tier_request_errors_total", "Pieces of requests that failed on the tier.", []string{"tier", "op"}},
	{"tier_request_duration_seconds", "Time of the pieces of requests on the tier.", []string{"tier", "op"}},

	{"backing_up", "1 while the backing serves, 0 when it has failed.", []string{"tier", "backing"}},
	{"backing_state", "1 for the state that the backing is in, 0 for the others.", []string{"tier", "backing", "state"}},
	{"backing_capacity_bytes", "Bytes in slots of the backing.", []string{"tier", "backing"}},
	{"backing_used_bytes", "Bytes in slots of the backing that are owned, or reserved for a move under way.", []string{"tier", "backing"}},
	{"backing_free_bytes", "Bytes in slots of the backing without an owner.", []string{"tier", "backing"}},
	{"backing_extents", "Slots of the backing that are owned, or reserved for a move under way.", []string{"tier", "backing"}},
	{"backing_volumes", "Volumes with extents on the backing's tier.", []string{"tier", "backing"}},
	{"backing_draining", "1 while the backing takes no new extents because it is being emptied.", []string{"tier", "backing"}},
	{"backing_drain_moved_bytes", "Bytes that have moved off the backing since it was to be emptied.", []string{"tier", "backing"}},
	{"backing_drain_left_bytes", "Bytes that have yet to move off a backing that is being emptied.", []string{"tier", "backing"}},
	{"backing_drain_eta_seconds", "Estimated time until the backing is empty; +Inf when nobody knows, 0 when it is not being emptied.", []string{"tier", "backing"}},
	{"backing_drain_stuck_extents", "Extents that the last pass over a backing that is being emptied could not move.", []string{"tier", "backing"}},
	{"backing_slots", "Slots of the backing by state.", []string{"tier", "backing", "state"}},
	{"backing_unsynced_bytes", "Bytes written to the backing that no finished sync covers, in blocks of 4 KiB.", []string{"tier", "backing"}},
	{"backing_unsynced_background_bytes", "Of these, those written by moves and by zeroing slots; at most 8 MiB.", []string{"tier", "backing"}},
	{"backing_sync_estimate_seconds", "Time that a sync of the backing is expected to take now; writes wait above 1 s.", []string{"tier", "backing"}},
	{"backing_sequential_rate_bytes", "Bytes a second that the backing is thought to write in sequence, learned from its syncs.", []string{"tier", "backing"}},
	{"backing_random_rate_writes", "Random writes a second that the backing is thought to take, learned from its syncs.", []string{"tier", "backing"}},
	{"backing_service_time_seconds", "Time of one random read that finds the device idle, measured; else by its medium.", []string{"tier", "backing"}},
	{"backing_access_time_seconds", "Time of one random read with the wait for those before it.", []string{"tier", "backing"}},
	{"backing_busy_ratio", "Share of the last cycle in which the device had something to do.", []string{"tier", "backing"}},
	{"backing_sequential_read_rate_bytes", "Bytes a second of sequential reads, measured; 0: not yet.", []string{"tier", "backing"}},
	{"backing_waiting_writes", "Writes that wait because too much of the backing is unsynced.", []string{"tier", "backing"}},
	{"backing_request_bytes_total", "Bytes of requests that went to the backing.", []string{"tier", "backing", "op"}},
	{"backing_request_errors_total", "Pieces of requests that failed on the backing.", []string{"tier", "backing", "op"}},
	{"backing_request_duration_seconds", "Time of the pieces of requests on the backing.", []string{"tier", "backing", "op"}},
	{"backing_sync_duration_seconds", "Time of syncs of the backing.", []string{"tier", "backing"}},

	{"volume_size_bytes", "Size of the volume.", []string{"volume"}},
	{"volume_allocated_bytes", "Bytes in mapped extents of the volume.", []string{"volume", "tier"}},
	{"volume_extents", "Mapped extents of the volume.", []string{"volume", "tier"}},
	{"volume_failed", "1 when flushes of the volume fail.", []string{"volume"}},
	{"volume_lost_bytes", "Bytes of the volume that cannot be read because their backings are missing.", []string{"volume"}},
	{"volume_reservation_bytes", "Bytes that the volume can always allocate.", []string{"volume"}},
	{"volume_quota_bytes", "Bytes that the volume can allocate at most; +Inf without a limit.", []string{"volume"}},
	{"volume_waiting_for_space", "Writes of the volume that wait for room.", []string{"volume"}},
	{"volume_no_space_errors_total", "Writes of the volume that were refused for want of room.", []string{"volume"}},
	{"volume_staged_entries", "Changes of the volume's mapping that await their commit.", []string{"volume"}},
	{"volume_oldest_staged_seconds", "Age of the oldest of them.", []string{"volume"}},
	{"volume_unmapped_reads_total", "Pieces of reads of extents without a slot.", []string{"volume"}},
	{"volume_requests_total", "Requests of the volume.", []string{"volume", "op"}},
	{"volume_request_bytes_total", "Bytes of requests of the volume.", []string{"volume", "op"}},
	{"volume_request_errors_total", "Requests of the volume that failed.", []string{"volume", "op"}},
	{"volume_request_duration_seconds", "Time of requests of the volume.", []string{"volume", "op"}},
	{"volume_round_duration_seconds", "Time of flush rounds of the volume.", []string{"volume"}},

	{"pool_volumes", "Volumes of the pool.", nil},
	{"pool_provisioned_bytes", "Sum of the volumes' sizes.", nil},
	{"pool_below_low_water", "1 while less of the pool is free than the low-water mark.", nil},
	{"pool_low_water_events_total", "Times that free space fell below the low-water mark.", nil},
	{"pool_info", "Identity of the pool; always 1.", []string{"pool", "continuity"}},
	{"pool_extent_size_bytes", "Size of an extent.", nil},
	{"metadata_up", "1 while changes of the extent map can be committed.", nil},
	{"metadata_commits_total", "Number of the last commit of the extent map.", nil},
	{"metadata_commit_duration_seconds", "Time of commits of rounds.", nil},
	{"staged_log_fill_ratio", "Share of the staged log in use.", nil},
	{"foreground_wait_seconds", "Time that requests of clients were held up, by cause; those that were not are not counted.", []string{"cause"}},
	{"heal_mended_entries_total", "Slot-table entries that were brought into line with the map after an unclean stop.", nil},
	{"heal_damaged_entries_total", "Slot-table entries that were found by that with a bad checksum, or could not be read.", nil},
	{"heal_progress_ratio", "Progress of bringing the slot tables into line after an unclean stop.", nil},
	{"heat_dropped_accesses_total", "Accesses that heat did not count because its buffers were full.", nil},
	{"trace_dropped_records_total", "Requests missing in recordings of volumes because they could not be written as fast as they came.", nil},

	{"relocation_moved_bytes_total", "Bytes written to targets of moves, copies of changed pieces included.", []string{"from", "to", "reason"}},
	{"relocation_moved_extents_total", "Extents moved.", []string{"from", "to", "reason"}},
	{"relocation_skipped_total", "Moves that were not carried out.", []string{"reason"}},
	{"relocation_planned_bytes_total", "Bytes that plans proposed to move.", []string{"direction"}},
	{"relocation_plan_stays", "Extents that the last plan left where they are.", []string{"reason"}},
	{"relocation_budget_left_bytes", "Bytes that may still be moved in the period; +Inf without a limit.", []string{"period"}},
	{"relocation_queued_moves", "Moves of the last plan that have not begun.", nil},
	{"relocation_moves_in_flight", "Moves under way.", nil},
	{"relocation_paused", "1 while an operator has paused movement.", nil},
	{"relocation_predicted_gain_seconds", "Latency that the moves judged so far were expected to save within eight cycles, of a sample of them.", nil},
	{"relocation_realised_gain_seconds", "Latency that they saved, by the accesses that their extents got; negative: they cost some.", nil},
	{"relocation_heat_share_ratio", "Share of the budget that moves for heat have earned by that; at least 0.05.", nil},
	{"relocation_throttle_rate_bytes", "Bytes a second that may be copied beside the requests of clients; +Inf without a limit.", nil},
	{"relocation_window_open", "1 while the calendar permits movement.", nil},
	{"relocation_exclusion_duration_seconds", "Time for which moves kept writes to their extents waiting.", nil},
	{"relocation_cycle_duration_seconds", "Time of planning cycles.", nil},
}

// skipReasons are the values of the label reason of moves that did not happen.
var skipReasons = []string{
	"backing_failed", "backing_hangs", "budget", "cancelled", "changed", "error", "moving", "paused", "pinned", "reserved", "settling", "source_error", "stopped", "target_full", "too_busy", "unmapped", "volume_failed", "volume_gone",
}

// Collector returns the pool's metrics for registration.
func (p *Pool) Collector() prometheus.Collector {
	c := &collector{p: p, d: make(map[string]*prometheus.Desc, len(metricDefs))}
	for _, m := range metricDefs {
		c.d[m.name] = prometheus.NewDesc(prometheus.BuildFQName(metrics.Namespace, "", m.name), m.help, m.labels, nil)
	}
	return c
}

// Describe sends the descriptions of all metrics.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.d {
		ch <- d
	}
}

// Collect sends all metrics as they stand.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := sender{c: c, ch: ch, size: float64(c.p.size.Bytes())}
	s.tiers()
	s.volumes()
	s.pool()
	s.relocation()
}

// sender sends metrics of one scrape.
type sender struct {
	c    *collector
	ch   chan<- prometheus.Metric
	size float64 // of an extent, bytes
}

func (s *sender) gauge(name string, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(s.c.d[name], prometheus.GaugeValue, v, labels...)
}

func (s *sender) counter(name string, v float64, labels ...string) {
	s.ch <- prometheus.MustNewConstMetric(s.c.d[name], prometheus.CounterValue, v, labels...)
}

func (s *sender) histogram(name string, h *metrics.Histogram, labels ...string) {
	s.ch <- h.Metric(s.c.d[name], labels...)
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// ops sends what was counted of each kind of request.
func (s *sender) ops(prefix string, st *ioStats, ops []Op, requests bool, labels ...string) {
	for _, op := range ops {
		o := &st.ops[op]
		l := append(labels[:len(labels):len(labels)], op.String())
		if requests {
			s.counter(prefix+"_requests_total", float64(o.latency.Count()), l...)
		}
		s.counter(prefix+"_request_bytes_total", float64(o.bytes.Load()), l...)
		s.counter(prefix+"_request_errors_total", float64(o.errors.Load()), l...)
		s.histogram(prefix+"_request_duration_seconds", &o.latency, l...)
	}
}

var (
	deviceOps = []Op{OpRead, OpWrite, OpZero}
	volumeOps = []Op{OpRead, OpWrite, OpTrim, OpZero, OpFlush}
)

func (s *sender) tiers() {
	p := s.c.p
	tiers := p.ranks()
	costs := tierCosts(tiers)
	volumes, extents := make([]int, len(tiers)), make([]int64, len(tiers))
	for _, v := range p.allVolumes() {
		for i, t := range tiers {
			if n := v.extents.of(t).Load(); n > 0 {
				volumes[i]++
				extents[i] += n
			}
		}
	}
	for i, t := range tiers {
		var used, total int64
		for _, b := range t.members() {
			c := b.slots.Counts()
			used, total = used+c.Used, total+c.Total
			l := []string{t.name, b.path}
			s.gauge("backing_up", boolValue(b.err() == nil), l...)
			now, _, _ := b.condition()
			for _, state := range Conditions {
				s.gauge("backing_state", boolValue(state == now), t.name, b.path, string(state))
			}
			s.gauge("backing_capacity_bytes", float64(c.Total)*s.size, l...)
			s.gauge("backing_used_bytes", float64(c.Used)*s.size, l...)
			s.gauge("backing_free_bytes", float64(c.Total-c.Used)*s.size, l...)
			s.gauge("backing_extents", float64(c.Used), l...)
			s.drain(b, l)
			s.gauge("backing_volumes", float64(volumes[i]), l...)
			for state, n := range map[string]int64{
				"free": c.Free, "cleaning": c.Cleaning, "clean": c.Clean, "used": c.Used, "vacated": c.Vacated, "quarantined": c.Quarantined,
			} {
				s.gauge("backing_slots", float64(n), t.name, b.path, state)
			}
			pace := b.pace.info()
			s.gauge("backing_unsynced_bytes", float64(pace.unsynced), l...)
			s.gauge("backing_unsynced_background_bytes", float64(pace.background), l...)
			s.gauge("backing_sync_estimate_seconds", pace.estimate.Seconds(), l...)
			s.gauge("backing_sequential_rate_bytes", pace.bandwidth, l...)
			s.gauge("backing_random_rate_writes", pace.seeks, l...)
			s.gauge("backing_waiting_writes", float64(pace.waiting), l...)
			s.ops("backing", &b.stats, deviceOps, false, l...)
			cost := b.cost.info(t.media)
			s.gauge("backing_service_time_seconds", cost.Service.Seconds(), l...)
			s.gauge("backing_access_time_seconds", cost.Delay.Seconds(), l...)
			s.gauge("backing_busy_ratio", cost.Busy, l...)
			s.gauge("backing_sequential_read_rate_bytes", cost.Sequential, l...)
			s.histogram("backing_sync_duration_seconds", &b.syncTime, l...)
		}
		s.gauge("tier_capacity_bytes", float64(total)*s.size, t.name)
		s.gauge("tier_used_bytes", float64(used)*s.size, t.name)
		s.gauge("tier_free_bytes", float64(total-used)*s.size, t.name)
		s.gauge("tier_extents", float64(extents[i]), t.name)
		s.gauge("tier_volumes", float64(volumes[i]), t.name)
		s.gauge("tier_service_time_seconds", costs[i].Service.Seconds(), t.name)
		s.gauge("tier_access_time_seconds", costs[i].Delay.Seconds(), t.name)
		s.gauge("tier_utilisation_ratio", costs[i].Utilisation, t.name)
		s.counter("tier_cache_hits_total", float64(t.stats.hits.Load()), t.name)
		s.counter("tier_cache_misses_total", float64(t.stats.misses.Load()), t.name)
		s.ops("tier", &t.stats, deviceOps, true, t.name)
	}
}

// drain sends how far the emptying of a backing is.
func (s *sender) drain(b *member, l []string) {
	d := b.drainInfo()
	eta := 0.0
	if d.State != DrainNone {
		if eta = d.ETA.Seconds(); d.ETA < 0 {
			eta = math.Inf(1)
		}
	}
	var stuck int64
	for _, n := range d.Stuck {
		stuck += n
	}
	s.gauge("backing_draining", boolValue(d.State != DrainNone), l...)
	s.gauge("backing_drain_moved_bytes", float64(d.Moved), l...)
	s.gauge("backing_drain_left_bytes", float64(d.Left), l...)
	s.gauge("backing_drain_eta_seconds", eta, l...)
	s.gauge("backing_drain_stuck_extents", float64(stuck), l...)
}

func (s *sender) volumes() {
	p := s.c.p
	now := p.clock.Now()
	for _, v := range p.Volumes() {
		name := v.Name()
		s.gauge("volume_size_bytes", float64(v.Size()), name)
		for _, t := range p.ranks() {
			n := float64(v.extents.of(t).Load())
			s.gauge("volume_extents", n, name, t.name)
			s.gauge("volume_allocated_bytes", n*s.size, name, t.name)
		}
		s.gauge("volume_failed", boolValue(v.flushFailure() != nil), name)
		s.gauge("volume_lost_bytes", float64(v.LostBytes()), name)
		space := v.Space()
		s.gauge("volume_reservation_bytes", float64(space.Reservation), name)
		quota := math.Inf(1)
		if space.Quota > 0 {
			quota = float64(space.Quota)
		}
		s.gauge("volume_quota_bytes", quota, name)
		s.gauge("volume_waiting_for_space", float64(v.waiting.Load()), name)
		s.counter("volume_no_space_errors_total", float64(v.noSpace.Load()), name)
		n, since := v.stagedEntries()
		age := 0.0
		if n > 0 {
			age = max(now.Sub(since).Seconds(), 0)
		}
		s.gauge("volume_staged_entries", float64(n), name)
		s.gauge("volume_oldest_staged_seconds", age, name)
		s.counter("volume_unmapped_reads_total", float64(v.unmappedReads.Load()), name)
		s.ops("volume", &v.stats, volumeOps, true, name)
		s.histogram("volume_round_duration_seconds", &v.roundTime, name)
	}
}

func (s *sender) pool() {
	p := s.c.p
	info := p.Info()
	s.gauge("pool_volumes", float64(len(p.Volumes())))
	s.gauge("pool_provisioned_bytes", float64(info.Provisioned))
	below, events := p.LowWater()
	s.gauge("pool_below_low_water", boolValue(below))
	s.counter("pool_low_water_events_total", float64(events))
	s.gauge("pool_info", 1, info.ID.String(), info.Continuity.String())
	s.gauge("pool_extent_size_bytes", s.size)
	s.gauge("metadata_up", boolValue(info.MetadataError == nil))
	s.counter("metadata_commits_total", float64(info.Commit))
	s.histogram("metadata_commit_duration_seconds", &p.committer.latency)
	s.gauge("staged_log_fill_ratio", info.LogFill)
	for c := range waitCauses {
		s.histogram("foreground_wait_seconds", &p.waits[c], c.String())
	}
	s.gauge("heal_progress_ratio", info.Healed)
	s.counter("heal_mended_entries_total", float64(p.heal.mended.Load()))
	s.counter("heal_damaged_entries_total", float64(p.heal.damaged.Load()))
	s.counter("heat_dropped_accesses_total", float64(p.heat.Dropped()))
	s.counter("trace_dropped_records_total", float64(p.unrecorded.Load()))
}

func (s *sender) relocation() {
	p := s.c.p
	info := p.Relocation()
	type key struct {
		from, to string
		reason   plan.Reason
	}
	moved := make(map[key]MovedInfo)
	for _, m := range info.Moved {
		moved[key{m.From, m.To, m.Reason}] = m
	}
	for _, from := range p.ranks() {
		for _, to := range p.ranks() {
			for _, r := range plan.MoveReasons {
				// Load is evened out within a tier, a backing is emptied to wherever there
				// is room, everything else is between tiers.
				if r != plan.ReasonDrain && r != plan.ReasonSuspect && (from == to) != (r == plan.ReasonBalance) {
					continue
				}
				m := moved[key{from.name, to.name, r}]
				s.counter("relocation_moved_bytes_total", float64(m.Bytes), from.name, to.name, string(r))
				s.counter("relocation_moved_extents_total", float64(m.Extents), from.name, to.name, string(r))
			}
		}
	}
	for _, r := range skipReasons {
		s.counter("relocation_skipped_total", float64(info.Skipped[r]), r)
	}
	for _, r := range plan.StayReasons {
		s.gauge("relocation_plan_stays", float64(info.Last.Rejected[r]), string(r))
	}
	m := p.monitor
	m.mu.Lock()
	planned := m.planned
	m.mu.Unlock()
	s.counter("relocation_planned_bytes_total", float64(planned.up), "up")
	s.counter("relocation_planned_bytes_total", float64(planned.down), "down")
	s.counter("relocation_planned_bytes_total", float64(planned.rebalance), "rebalance")
	s.gauge("relocation_budget_left_bytes", orInf(info.CycleLeft), "cycle")
	s.gauge("relocation_budget_left_bytes", orInf(info.DayLeft), "day")
	s.gauge("relocation_queued_moves", float64(info.Queued))
	s.gauge("relocation_moves_in_flight", float64(info.InFlight))
	s.gauge("relocation_paused", boolValue(info.Paused))
	s.gauge("relocation_predicted_gain_seconds", info.PredictedGain.Seconds())
	s.gauge("relocation_realised_gain_seconds", info.RealisedGain.Seconds())
	s.gauge("relocation_heat_share_ratio", info.HeatShare)
	s.gauge("relocation_throttle_rate_bytes", orInf(info.Throttle))
	s.gauge("relocation_window_open", boolValue(info.WindowOpen))
	s.histogram("relocation_exclusion_duration_seconds", &p.reloc.held)
	s.histogram("relocation_cycle_duration_seconds", &m.cycleTime)
}

func orInf(n int64) float64 {
	if n < 0 {
		return math.Inf(1)
	}
	return float64(n)
}
