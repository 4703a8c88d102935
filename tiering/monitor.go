package tiering

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"tierd/pkg/metrics"
	"tierd/tiering/extent"
	"tierd/tiering/heat"
	"tierd/tiering/plan"
	"tierd/tiering/schedule"
)

// drainInterval is how often counted accesses are added to the scores.
const drainInterval = time.Second

// monitor is the clockwork of the tiering: it adds up heat, and once a cycle
// plans, hands the plan to the relocator and saves the heat.
type monitor struct {
	pool *Pool
	file *heat.File
	path string
	soon chan struct{} // holds one token: a plan is wanted before the next cycle

	cycling    sync.Mutex // held for the whole of a cycle; before mu
	saveFailed bool       // the heat could not be saved the last time; guarded by cycling
	audit      plan.Audit // guarded by cycling

	mu        sync.Mutex
	opts      RelocationOptions
	pacer     schedule.Pacer
	cycle     int64     // number of cycles since open
	nextCycle time.Time // when the next plan is due
	last      plan.Plan
	lastTime  time.Time // of the last plan
	share     float64   // of the budget that moves for heat have earned
	measured  time.Time // when the costs of the backings were brought up to date
	paused    bool

	predicted, realised time.Duration // what moves were to save, and what they saved; see audit

	cycleTime metrics.Histogram
	planned   struct{ up, down, rebalance int64 } // bytes, over all plans
}

func newMonitor(p *Pool, o RelocationOptions, path string) *monitor {
	return &monitor{pool: p, file: heat.NewFile(heat.PoolID(p.id)), path: path, soon: make(chan struct{}, 1), opts: o, share: 1}
}

func (m *monitor) headroom() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.opts.Headroom
}

func (m *monitor) loop(ctx context.Context) {
	p := m.pool
	m.mu.Lock()
	if m.nextCycle.IsZero() { // else it was set with the budget
		m.nextCycle = p.clock.Now().Add(m.opts.Cycle)
	}
	m.mu.Unlock()
	for {
		m.mu.Lock()
		wait := min(drainInterval, m.opts.Cycle)
		m.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-p.heat.Full():
			p.heat.Drain(p.clock.Now())
			continue
		case <-m.soon:
			m.replan(p.clock.Now())
			continue
		case <-p.clock.After(wait):
		}
		now := p.clock.Now()
		p.heat.Drain(now)
		p.checkLowWater()
		m.mu.Lock()
		due := !now.Before(m.nextCycle) && !p.opts.ReadOnly
		m.mu.Unlock()
		if due {
			m.runCycle(now)
		}
	}
}

// runCycle makes a plan, hands it to the relocator unless movement is paused, and
// saves the heat.
func (m *monitor) runCycle(now time.Time) {
	m.cycling.Lock() // an operator may ask for one while another is due
	defer m.cycling.Unlock()
	start := time.Now()
	p := m.pool
	p.heat.Drain(now)
	p.heat.Tick(now)
	p.reloc.beginCycle(now)
	m.measure(now)
	m.mu.Lock()
	m.cycle++
	m.nextCycle = now.Add(m.opts.Cycle)
	cycle := m.cycle
	m.mu.Unlock()
	m.judge(&m.audit, now, cycle)
	m.mu.Lock()
	predicted, realised := m.audit.Totals()
	m.predicted, m.realised, m.share = seconds(predicted), seconds(realised), m.audit.Share()
	m.mu.Unlock()
	pl := m.propose(now)
	m.audit.Note(uint32(cycle), pl.Moves, m.accesses(now))
	err := m.save(now)
	if err != nil && !m.saveFailed {
		p.log.Warn("heat is not saved", "error", err)
	}
	m.saveFailed = err != nil
	took := time.Since(start)
	m.cycleTime.Observe(took)
	p.log.Debug("cycle", "number", cycle, "moves", len(pl.Moves), "bytes_up", pl.BytesUp, "bytes_down", pl.BytesDown, "took", took)
}

// replan makes a plan in the middle of a cycle. The cycle goes on, and with it its
// budget: otherwise whoever asks often enough could move without limit.
func (m *monitor) replan(now time.Time) {
	if m.pool.opts.ReadOnly {
		return
	}
	m.cycling.Lock()
	defer m.cycling.Unlock()
	m.pool.heat.Drain(now)
	m.measure(now)
	pl := m.propose(now)
	m.pool.log.Debug("planned within the cycle", "moves", len(pl.Moves), "bytes_up", pl.BytesUp, "bytes_down", pl.BytesDown)
}

// propose makes a plan and hands it to the relocator, unless movement is paused.
// The caller holds cycling.
func (m *monitor) propose(now time.Time) plan.Plan {
	pl, tiers := m.plan(now, false)
	m.mu.Lock()
	m.last, m.lastTime = pl, now
	m.planned.up += pl.BytesUp
	m.planned.down += pl.BytesDown
	m.planned.rebalance += pl.BytesRebalance
	paused := m.paused
	m.mu.Unlock()
	if paused {
		m.pool.reloc.offer(nil, nil)
	} else {
		m.pool.reloc.offer(pl.Moves, tiers)
	}
	return pl
}

// plan makes a plan for the state of now, within what is left of the budget; with ahead as
// if another cycle began now. It speaks of tiers by their ranks, which are their places
// among those returned. The caller holds cycling.
func (m *monitor) plan(now time.Time, ahead bool) (plan.Plan, []*tier) {
	m.mu.Lock()
	o := m.opts
	m.mu.Unlock()
	p := m.pool
	pol := plan.Defaults(p.size.Bytes())
	pol.Hysteresis, pol.Headroom = o.Hysteresis, o.Headroom
	pol.AccessTime, pol.Horizon = p.opts.Heat.Position, p.opts.Heat.LongHalfLife
	pol.BudgetBytes = m.budgetBytes(o, now, ahead)
	audit := &m.audit
	if ahead {
		m.mu.Lock()
		next := m.cycle + 1
		m.mu.Unlock()
		audit = audit.Clone()
		m.judge(audit, now, next)
	}
	audit.Limit(&pol)
	if o.Planner != nil {
		o.Planner(&pol)
	}
	tiers := p.ranks()
	return plan.Next(m.view(now, tiers, ahead), pol), tiers
}

// judge begins a cycle for the audit of what moves have brought.
func (m *monitor) judge(a *plan.Audit, now time.Time, cycle int64) {
	m.mu.Lock()
	o := m.opts
	m.mu.Unlock()
	a.Judge(uint32(cycle), o.Cycle.Seconds(), m.accesses(now))
	mean := int64(-1)
	for _, limit := range []float64{
		float64(o.Limits.PerCycle), float64(o.Limits.PerDay) * o.Cycle.Hours() / 24, float64(o.Limits.Rate) * o.Cycle.Seconds(),
	} {
		if limit > 0 && (mean < 0 || int64(limit) < mean) {
			mean = int64(limit)
		}
	}
	a.Begin(m.pool.size.Bytes(), mean)
}

// accesses tells the audit how often an extent was accessed.
func (m *monitor) accesses(now time.Time) plan.Accesses {
	return func(k extent.Key) (uint32, bool) {
		v := m.pool.volumeByID(k.Volume)
		if v == nil || v.gone.Load() {
			return 0, false
		}
		n := v.heat.Heat(k.Index, now).IOs
		return n, n < heat.MaxIOs
	}
}

// budgetBytes returns what moves may write in the coming cycle; negative for any
// amount. The day's amount is spread over the open time of the day.
func (m *monitor) budgetBytes(o RelocationOptions, now time.Time, ahead bool) int64 {
	left := int64(-1)
	least := func(n int64) {
		if n >= 0 && (left < 0 || n < left) {
			left = n
		}
	}
	cycle, day := m.pool.reloc.budget.Left()
	if ahead && o.Limits.PerCycle > 0 {
		cycle = o.Limits.PerCycle
	}
	least(cycle)
	least(day)
	if o.Limits.PerDay > 0 {
		m.mu.Lock()
		least(m.pacer.Allow(now, o.Calendar, o.Limits.PerDay, m.pool.reloc.budget.Spent().Total))
		m.mu.Unlock()
	}
	open, rate, _ := o.Calendar.At(now)
	if !open {
		return 0
	}
	if rate == 0 {
		rate = o.Limits.Rate
	}
	if rate > 0 {
		least(int64(float64(rate) * o.Cycle.Seconds()))
	}
	return left
}

// load reads the heat of the last run. Heat is a hint: what cannot be read is
// forgotten.
func (m *monitor) load(now time.Time) {
	f, err := os.Open(m.path)
	if err != nil {
		if !os.IsNotExist(err) {
			m.pool.log.Warn("heat file cannot be read; starting cold", "error", err)
		}
		return
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		m.pool.log.Warn("heat file cannot be read; starting cold", "error", err)
		return
	}
	rep, err := m.file.Load(m.pool.heat, f, st.Size(), now)
	if err != nil {
		m.pool.log.Warn("heat file cannot be used; starting cold", "error", err)
		return
	}
	if rep.Bad > 0 {
		m.pool.log.Warn("some of the heat file cannot be used", "chunks", rep.Chunks, "bad", rep.Bad)
	}
}

// save writes what changed since the last time.
func (m *monitor) save(now time.Time) error {
	if m.pool.opts.ReadOnly {
		return nil
	}
	if err := m.pool.reloc.budget.Keep(); err != nil {
		return err
	}
	f, err := os.OpenFile(m.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open heat file: %w", err)
	}
	_, err = m.file.Save(m.pool.heat, f, now)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("save heat: %w", err)
	}
	return nil
}

// PlanNow returns what RunCycle would move now, without doing it.
func (p *Pool) PlanNow() plan.Plan {
	now := p.clock.Now()
	p.heat.Drain(now)
	p.monitor.cycling.Lock()
	defer p.monitor.cycling.Unlock()
	p.monitor.measure(now)
	pl, _ := p.monitor.plan(now, true)
	return pl
}

// RunCycle starts a cycle at once. With wait it returns when its moves have
// ended.
func (p *Pool) RunCycle(ctx context.Context, wait bool) (plan.Plan, error) {
	if p.opts.ReadOnly {
		return plan.Plan{}, ErrReadOnly
	}
	p.monitor.runCycle(p.clock.Now())
	p.monitor.mu.Lock()
	pl, paused := p.monitor.last, p.monitor.paused
	p.monitor.mu.Unlock()
	if paused {
		return pl, busy("relocation is paused")
	}
	if wait {
		return pl, p.reloc.waitIdle(ctx)
	}
	return pl, nil
}

// Replan has a plan made at once, in the background: what extents are wanted where has
// changed. It begins no cycle, and moves no more than is left of this one's budget; what
// it leaves follows with the next cycles. While movement is paused nothing moves.
func (p *Pool) Replan() {
	select {
	case p.monitor.soon <- struct{}{}:
	default: // one is wanted already, and has yet to look at anything
	}
}

// PauseRelocation stops movement after the moves under way; ResumeRelocation lets
// it go on with the next cycle.
func (p *Pool) PauseRelocation() {
	p.monitor.mu.Lock()
	p.monitor.paused = true
	p.monitor.mu.Unlock()
	p.reloc.dropAll()
	p.reloc.budget.Pause()
}

// ResumeRelocation ends a pause.
func (p *Pool) ResumeRelocation() {
	p.monitor.mu.Lock()
	p.monitor.paused = false
	p.monitor.mu.Unlock()
	p.reloc.budget.Resume()
}

// SetRelocation changes the settings of the movement on the running pool.
func (p *Pool) SetRelocation(o RelocationOptions) {
	m := p.monitor
	m.mu.Lock()
	o.Workers, o.Verify, o.Planner = m.opts.Workers, m.opts.Verify, m.opts.Planner
	if o.Cycle == 0 {
		o.Cycle = m.opts.Cycle
	}
	m.nextCycle = m.nextCycle.Add(o.Cycle - m.opts.Cycle)
	m.opts = o
	m.mu.Unlock()
	p.reloc.budget.SetLimits(o.Limits)
	p.reloc.budget.SetCalendar(o.Calendar)
}
