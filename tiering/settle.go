package tiering

import (
	"context"
	"time"

	"tierd/tiering/plan"
)

// Settled says why Settle came to its end.
type Settled string

// The ends of Settle.
const (
	SettledDone   Settled = "settled"       // a plan found nothing that pays
	SettledBudget Settled = "budget"        // what is left would pay, and the budget is spent
	SettledWindow Settled = "closed_window" // movement may not run now
	SettledStuck  Settled = "stuck"         // what plans propose cannot be carried out now
)

// settleTries is after how many plans in a row of which nothing could be carried out
// Settle gives up.
const settleTries = 3

// Settle plans and moves, again and again, until there is nothing left that pays, and
// returns why it ended and how many extents were moved. Each plan has the amount of a
// cycle; that of the day holds for all together, and so do windows and rates. No cycle ends
// meanwhile, so that extents do not age by it. While movement is paused it returns ErrBusy.
func (p *Pool) Settle(ctx context.Context) (Settled, int64, error) {
	if p.opts.ReadOnly {
		return "", 0, ErrReadOnly
	}
	start := p.reloc.moves()
	moved := func() int64 { return p.reloc.moves() - start }
	for idle := 0; idle < settleTries; {
		before := p.reloc.moves()
		pl, open := p.monitor.planAgain(p.clock.Now())
		switch {
		case p.reloc.budget.Paused():
			return "", moved(), busy("relocation is paused")
		case !open:
			return SettledWindow, moved(), nil
		case len(pl.Moves) == 0 && pl.Rejected[plan.ReasonBudget] > 0:
			return SettledBudget, moved(), nil
		case len(pl.Moves) == 0:
			return SettledDone, moved(), nil
		}
		if err := p.reloc.waitIdle(ctx); err != nil {
			return "", moved(), err
		}
		if idle++; p.reloc.moves() > before {
			idle = 0
		}
	}
	return SettledStuck, moved(), nil
}

// planAgain makes a plan with a new cycle's amount, without beginning a cycle of heat, and
// offers it. It reports whether movement may run now.
func (m *monitor) planAgain(now time.Time) (pl plan.Plan, open bool) {
	m.cycling.Lock()
	defer m.cycling.Unlock()
	m.pool.heat.Drain(now)
	m.measure(now)
	m.pool.reloc.beginCycle(now)
	pl = m.propose(now)
	open, _, _ = m.pool.reloc.budget.Open()
	return pl, open
}

// moves returns how many moves were carried out since open.
func (r *relocator) moves() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.finished
}
