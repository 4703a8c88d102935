package tiering

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"tierd/tiering/alloc"
	"tierd/tiering/extent"
	"tierd/tiering/heat"
	"tierd/tiering/plan"
	"tierd/tiering/schedule"
)

// PoolInfo is the pool at a glance.
type PoolInfo struct {
	ID            uuid.UUID
	FormatVersion uint32
	ExtentSize    int64
	Incarnation   uint64
	Continuity    uuid.UUID
	Commit        uint64
	Started       time.Time
	MetadataError error // nil while mappings can be committed
	ReadOnly      bool  // nothing is written at all

	Staged       int       // entries that await their commit
	OldestStaged time.Time // zero if none
	LogFill      float64   // share of the staged log in use
	Provisioned  int64     // bytes: the sum of the volumes' sizes
	Healed       float64   // 1 when the slot tables match the map
	Warnings     []string
}

// TierInfo describes one tier.
type TierInfo struct {
	ID       extent.TierID
	Name     string
	Media    string
	Slots    alloc.Counts // without the free ones of backings that are missing or have failed
	Cost     CostInfo     // as the planner sees it
	Ops      map[string]OpCounts
	Hits     uint64
	Misses   uint64
	Headroom int64 // bytes barred to promotions
}

// BackingInfo describes one backing.
type BackingInfo struct {
	ID       extent.BackingID
	UUID     uuid.UUID
	Path     string
	Tier     string
	Err      error // nil while it serves
	State    Condition
	Why      string    // it is not ok
	Since    time.Time // of the state; zero: since the pool was opened
	Draining bool      // takes no new extents
	Drain    DrainInfo
	Size     int64
	Slots    alloc.Counts
	Unsynced int64         // bytes that no finished sync covers
	SyncTime time.Duration // that a sync is expected to take now
	Waiting  int64         // writes that wait for one
	Cost     CostInfo
	Ops      map[string]OpCounts
}

// VolumeInfo describes one volume.
type VolumeInfo struct {
	ID            extent.VolumeID
	UUID          uuid.UUID
	Name          string
	Size          int64
	Policy        string
	Created       time.Time
	ReadOnly      bool
	Deleting      bool
	Err           error   // nil while flushes succeed
	Extents       []int64 // mapped, by tier
	Lost          int64   // bytes on missing backings
	Opens         int64
	Staged        int
	OldestStaged  time.Time
	UnmappedReads uint64
	Ops           map[string]OpCounts
	Clients       []string // names in certificates that may use it; none: everybody may

	Space           Space
	WaitingForSpace int64  // writes
	NoSpace         uint64 // writes refused for want of room
}

// Info returns the pool at a glance.
func (p *Pool) Info() PoolInfo {
	r := p.db.Pool()
	info := PoolInfo{
		ID: p.id, FormatVersion: r.FormatVersion, ExtentSize: p.size.Bytes(), Incarnation: p.incarnation, Continuity: p.Continuity(),
		Commit: p.commit.Load(), Started: p.started, MetadataError: p.metadataErr(), ReadOnly: p.opts.ReadOnly,
		Healed: p.heal.progress(), Warnings: slices.Clone(p.warnings),
	}
	if list := p.unnamed.Load(); list != nil {
		info.Warnings = append(info.Warnings, *list...)
	}
	if p.staged.log != nil { // not if the pool is read-only
		info.LogFill = p.staged.log.Fill()
	}
	for _, v := range p.allVolumes() {
		n, since := v.stagedEntries()
		info.Staged += n
		if n > 0 && (info.OldestStaged.IsZero() || since.Before(info.OldestStaged)) {
			info.OldestStaged = since
		}
		if !v.gone.Load() {
			info.Provisioned += v.Size()
		}
	}
	return info
}

func (h *healer) progress() float64 {
	if h.finished() {
		return 1
	}
	return min(float64(h.checked.Load())/float64(max(h.total.Load(), 1)), 0.99)
}

// Continuity returns the id that changes whenever answered data may have been
// lost.
func (p *Pool) Continuity() uuid.UUID {
	if p.continuity != uuid.Nil {
		return p.continuity
	}
	return p.db.Pool().Continuity
}

// Tiers returns the tiers, fastest first.
func (p *Pool) Tiers() []TierInfo {
	tiers := p.ranks()
	costs := tierCosts(tiers)
	headroom := p.monitor.headroom()
	infos := make([]TierInfo, len(tiers))
	for i, t := range tiers {
		infos[i] = TierInfo{
			ID: t.rank(), Name: t.name, Media: string(t.media), Cost: costs[i], Ops: t.stats.counts(),
			Hits: t.stats.hits.Load(), Misses: t.stats.misses.Load(),
		}
		for _, b := range t.members() {
			c := b.slots.Counts()
			if b.err() != nil { // nothing can be written there
				c.Total -= c.Free + c.Cleaning + c.Clean
				c.Free, c.Cleaning, c.Clean = 0, 0, 0
			}
			infos[i].Slots = addCounts(infos[i].Slots, c)
		}
		if i < len(tiers)-1 {
			infos[i].Headroom = int64(headroom*float64(infos[i].Slots.Total)) * p.size.Bytes()
		}
	}
	return infos
}

func addCounts(a, b alloc.Counts) alloc.Counts {
	return alloc.Counts{
		Total: a.Total + b.Total, Free: a.Free + b.Free, Cleaning: a.Cleaning + b.Cleaning, Clean: a.Clean + b.Clean,
		Used: a.Used + b.Used, Vacated: a.Vacated + b.Vacated, Quarantined: a.Quarantined + b.Quarantined,
	}
}

// Backings returns the backings, by tier and id.
func (p *Pool) Backings() []BackingInfo {
	var infos []BackingInfo
	p.eachMember(func(b *member) {
		state, why, since := b.condition()
		pace := b.pace.info()
		infos = append(infos, BackingInfo{
			ID: b.id, UUID: b.uuid, Path: b.path, Tier: b.tier.name, Err: b.err(), State: state, Why: why, Since: since,
			Draining: b.draining.Load(), Drain: b.drainInfo(),
			Size: b.size, Slots: b.slots.Counts(), Unsynced: pace.unsynced, SyncTime: pace.estimate, Waiting: pace.waiting, Ops: b.stats.counts(),
			Cost: b.cost.info(b.tier.media),
		})
	})
	return infos
}

// VolumeInfos returns the volumes by name, those being deleted last.
func (p *Pool) VolumeInfos() []VolumeInfo {
	var infos []VolumeInfo
	for _, v := range p.allVolumes() {
		infos = append(infos, v.Info())
	}
	slices.SortFunc(infos, func(a, b VolumeInfo) int {
		if a.Deleting != b.Deleting {
			if a.Deleting {
				return 1
			}
			return -1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return infos
}

// Info describes the volume.
func (v *Volume) Info() VolumeInfo {
	v.mu.Lock()
	info := VolumeInfo{
		ID: v.id, UUID: v.uuid, Name: v.name, Size: v.size.Load(), Policy: v.policy.String(), Created: v.record.Created,
		ReadOnly: v.ReadOnly(), Clients: v.clients, Deleting: v.gone.Load(), Opens: v.opens.Load(),
		Space: v.Space(), WaitingForSpace: v.waiting.Load(), NoSpace: v.noSpace.Load(),
		UnmappedReads: v.unmappedReads.Load(), Ops: v.stats.counts(),
	}
	v.mu.Unlock()
	info.Err = v.flushFailure()
	for _, t := range v.pool.ranks() {
		info.Extents = append(info.Extents, v.extents.of(t).Load())
	}
	info.Lost = v.LostBytes()
	info.Staged, info.OldestStaged = v.stagedEntries()
	return info
}

// MovedInfo counts the moves of one direction and reason.
type MovedInfo struct {
	From, To       string
	Reason         plan.Reason
	Extents, Bytes int64
}

// RelocationInfo is the state of the background movement.
type RelocationInfo struct {
	Paused      bool
	WindowOpen  bool
	WindowUntil time.Time // zero if it never changes
	Rate        int64     // bytes a second in force; 0: no limit
	Throttle    int64     // bytes a second that clients leave for copies; negative: no limit
	Cycle       int64     // plans made since open
	CycleTime   time.Duration
	NextCycle   time.Time
	CycleLeft   int64 // bytes; negative: no limit
	DayLeft     int64
	MovedBytes  int64 // written to targets since open
	MostHeld    int64 // pieces copied while writers waited, in one move at most
	Moved       []MovedInfo
	Skipped     map[string]int64
	Queued      int // moves that have not begun, those that clients ask for too
	InFlight    int
	Last        plan.Plan
	LastTime    time.Time
	// What moves were expected to save, and what they saved, see plan.Audit; and the share
	// of the budget that they have earned by it.
	PredictedGain, RealisedGain time.Duration
	HeatShare                   float64
}

// Relocation returns the state of the background movement.
func (p *Pool) Relocation() RelocationInfo {
	m, r := p.monitor, p.reloc
	m.mu.Lock()
	info := RelocationInfo{
		Paused: m.paused, Cycle: m.cycle, CycleTime: m.opts.Cycle, NextCycle: m.nextCycle, Last: m.last, LastTime: m.lastTime,
		Rate: m.opts.Limits.Rate, PredictedGain: m.predicted, RealisedGain: m.realised, HeatShare: m.share,
	}
	open, rate, until := m.opts.Calendar.At(p.clock.Now())
	m.mu.Unlock()
	info.WindowOpen, info.WindowUntil = open, until
	info.MostHeld = r.most.Load()
	switch info.Throttle = r.throttled.Load(); info.Throttle {
	case 0:
		info.Throttle = -1
	case schedule.Hold:
		info.Throttle = 0
	}
	if rate > 0 {
		info.Rate = rate
	}
	info.CycleLeft, info.DayLeft = r.budget.Left()
	r.mu.Lock()
	defer r.mu.Unlock()
	info.Queued, info.InFlight = len(r.queue)+len(r.asked), r.current
	info.Skipped = make(map[string]int64, len(r.skipped))
	for k, n := range r.skipped {
		info.Skipped[k] = n
	}
	for k, c := range r.moved {
		info.MovedBytes += c.bytes
		info.Moved = append(info.Moved, MovedInfo{k.from.name, k.to.name, k.reason, c.extents, c.bytes})
	}
	return info
}

// Placement tells where an extent is, and why.
type Placement struct {
	Volume       string
	Offset       int64 // bytes; the start of the extent is Index times the extent size
	Index        extent.Index
	Mapped       bool
	Staged       bool
	Moving       bool
	Tier         string
	Backing      string
	Location     extent.Location
	DeviceOffset int64 // bytes, where the byte at Offset is on the backing
	Policy       string
	Score        heat.Score
	Why          string
}

// Locate tells where the byte at off of a volume is, and why it is there.
func (p *Pool) Locate(volume string, off int64) (Placement, error) {
	v, err := p.Volume(volume)
	if err != nil {
		return Placement{}, err
	}
	if off < 0 || off >= v.Size() {
		return Placement{}, fmt.Errorf("offset %d of volume %s with %d bytes: %w", off, volume, v.Size(), ErrOutOfRange)
	}
	i := p.size.Index(off)
	now := p.clock.Now()
	p.heat.Drain(now)
	e := v.table.Load(i)
	pl := Placement{
		Volume: volume, Offset: off, Index: i, Mapped: e.Mapped(), Staged: e.Staged(), Policy: v.Policy().String(),
		Score: v.heat.Heat(i, now),
	}
	if !e.Mapped() {
		pl.Why = "unmapped: never written, or trimmed; it reads as zeroes"
		return pl, nil
	}
	pl.Moving = p.reloc.moving(extent.Key{Volume: v.id, Index: i})
	l := e.Location()
	b := p.member(l)
	pl.Location, pl.Backing, pl.Tier = l, b.path, b.tier.name
	pl.DeviceOffset = b.offset(l.Slot) + p.size.Within(off)
	pl.Why = p.why(v, b, pl.Score)
	return pl, nil
}

// why says in words what brought an extent to where it is.
func (p *Pool) why(v *Volume, b *member, s heat.Score) string {
	tier := b.tier.name
	policy := v.Policy()
	switch {
	case b.missing:
		return "on a backing that is missing; it is there when the backing is back"
	case b.err() != nil:
		return "on a backing that has failed; it stays there"
	case policy.want.Kind == plan.WantTier && policy.want.Tier == b.tier.rank():
		return fmt.Sprintf("the volume's policy asks for tier %s", tier)
	case policy.want.Kind == plan.WantHighest && b.tier.rank() == 0:
		return "the volume's policy asks for the highest tier"
	case policy.want.Kind == plan.WantLowest && int(b.tier.rank()) == len(p.ranks())-1:
		return "the volume's policy asks for the lowest tier"
	case policy.want.Kind != plan.WantAuto:
		return fmt.Sprintf("the volume's policy asks for %s, which had no room; it moves there when it has", policy)
	case s.SinceMove != heat.NeverMoved:
		return fmt.Sprintf("moved to tier %s by its heat, %d cycles ago", tier, s.SinceMove)
	default:
		return fmt.Sprintf("tier %s was the highest with a free slot when the extent was first written", tier)
	}
}

// ExtentHeat is what HeatMap tells of an extent.
type ExtentHeat struct {
	Index extent.Index
	Tier  int // -1: unmapped
	Heat  float64
	IOs   uint32
}

// heatMapSlice is after how many extents HeatMap looks whether it is to go on.
const heatMapSlice = 4096

// HeatMap calls fn for every extent of a volume that is mapped or has heat: first
// those that are mapped, then the others, each in order. It costs nothing for
// extents that are neither. It ends with the error of ctx.
func (p *Pool) HeatMap(ctx context.Context, volume string, fn func(ExtentHeat)) error {
	v, err := p.Volume(volume)
	if err != nil {
		return err
	}
	now := p.clock.Now()
	p.heat.Drain(now)
	seen := 0
	goOn := func() bool {
		seen++
		return seen%heatMapSlice != 0 || ctx.Err() == nil
	}
	scores := make([]heat.Score, heatMapSlice)
	first, n := extent.Index(0), 0
	v.table.Range(func(i extent.Index, e extent.Entry) bool {
		if !e.Mapped() {
			return goOn()
		}
		if n == 0 || i >= first+extent.Index(n) {
			first = i
			n = v.heat.Scores(first, scores, now)
		}
		h := ExtentHeat{Index: i, Tier: int(p.member(e.Location()).tier.rank())}
		if i < first+extent.Index(n) {
			h.Heat, h.IOs = scores[i-first].Heat, scores[i-first].IOs
		}
		fn(h)
		return goOn()
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	v.heat.Range(now, func(i extent.Index, s heat.Score) bool {
		if s.Heat > 0 && i < v.table.Len() && !v.table.Load(i).Mapped() {
			fn(ExtentHeat{Index: i, Tier: -1, Heat: s.Heat, IOs: s.IOs})
		}
		return goOn()
	})
	return ctx.Err()
}
