package simulate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"tierd/pkg/trace"
	"tierd/tiering/extent"
	"tierd/tiering/heat"
	"tierd/tiering/plan"
)

// engine replays one trace against all runs at once.
type engine struct {
	*survey
	timing    timing
	heat      heat.Params
	plan      plan.Policy
	addr      *addresses
	placement Placement
	countOnly bool
	budget    purse
	slots     map[string][]int64 // by layout

	history [][]use // by cycle, for policies that are shown the future
}

// Run replays a trace on each of the layouts with each of the policies, and
// returns their outcomes in that order: layouts outside, policies inside. The
// trace is opened twice and read as a stream; memory is taken by the number of
// extents, and by that of extents in use in each cycle. Errors are those of the
// trace and its settings, ErrEmpty, ErrTooLarge and ErrNoTime among them, and the
// context's.
func Run(ctx context.Context, src Source, layouts []Layout, policies []string, s Settings) (*Report, error) {
	e, err := newEngine(ctx, src, layouts, policies, s)
	if err != nil {
		return nil, err
	}
	rep := &Report{
		Trace: e.info, Layouts: layouts, Settings: s,
		Cycles: e.timing.cycles, Cycle: e.timing.cycle, BudgetBytes: int64(e.budget.each), BudgetMost: int64(e.budget.most),
	}
	for _, l := range layouts {
		rep.Slots = append(rep.Slots, e.slots[l.Name])
	}

	// Those that only see the past take part in the second pass over the trace.
	online := map[[2]string]*run{}
	var runs []*run
	add := func(l Layout, p Policy) {
		r := newRun(l, p, e)
		online[[2]string{l.Name, p.Name()}] = r
		runs = append(runs, r)
	}
	foresee, bounded := slices.Contains(policies, Clairvoyant), slices.Contains(policies, Bound)
	for _, l := range layouts {
		if bounded || slices.Contains(policies, Static) {
			add(l, static{})
		}
		if slices.Contains(policies, LRU) {
			add(l, newLRU(e))
		}
		if slices.Contains(policies, Planner) {
			p := newPlanner(e)
			defer p.tracker.Close()
			add(l, p)
		}
	}
	if err := e.replay(ctx, src, runs, foresee || bounded); err != nil {
		return nil, err
	}

	for _, l := range layouts {
		results, err := e.results(ctx, l, policies, online)
		if err != nil {
			return nil, err
		}
		rep.Policies = append(rep.Policies, results...)
	}
	return rep, nil
}

// results returns the outcomes of the policies on one layout.
func (e *engine) results(ctx context.Context, l Layout, policies []string, online map[[2]string]*run) ([]PolicyResult, error) {
	var out []PolicyResult
	least := math.Inf(1)
	for _, name := range policies {
		var p PolicyResult
		var err error
		switch name {
		case Clairvoyant:
			p, err = e.clairvoyant(ctx, l)
		case Bound:
			p, err = e.bound(l)
			least = p.MeanMS
		default:
			p = online[[2]string{l.Name, name}].finish()
		}
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	if !math.IsInf(least, 1) {
		shareOut(out, online[[2]string{l.Name, Static}].finish().MeanMS, least)
	}
	return out, nil
}

func newEngine(ctx context.Context, src Source, layouts []Layout, policies []string, s Settings) (*engine, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if err := ValidateChoice(layouts, policies); err != nil {
		return nil, err
	}
	size, err := extent.NewSize(s.ExtentSize)
	if err != nil {
		return nil, err
	}
	e := &engine{placement: s.Placement, countOnly: s.CountOnly, slots: map[string][]int64{}}
	if e.survey, err = look(ctx, src, size); err != nil {
		return nil, err
	}
	for _, l := range layouts {
		if l.queues() && !e.info.Timed && s.Rate == 0 {
			return nil, fmt.Errorf("layout %q: %w, so its devices have no load: give a rate, or no devices", l.Name, ErrNoTime)
		}
		if e.slots[l.Name], err = l.slots(e.info.Extents, s.ExtentSize); err != nil {
			return nil, err
		}
	}
	if e.timing, e.heat, e.plan, err = s.timing(e.info, e.last); err != nil {
		return nil, err
	}
	e.budget = s.Budget.purse(e.info.Extents, e.timing.cycles, s.ExtentSize)
	e.addr = e.addresses()
	return e, nil
}

// ValidateChoice returns the first fault of what is to be compared, or nil.
func ValidateChoice(layouts []Layout, policies []string) error {
	if len(layouts) == 0 || len(policies) == 0 {
		return errors.New("needs a layout and a policy")
	}
	seen := map[string]bool{}
	for _, l := range layouts {
		if err := l.Validate(); err != nil {
			return fmt.Errorf("layout %q: %w", l.Name, err)
		}
		if seen[l.Name] {
			return fmt.Errorf("two layouts are called %q", l.Name)
		}
		seen[l.Name] = true
	}
	clear(seen)
	known := map[string]bool{}
	for _, n := range Policies() {
		known[n] = true
	}
	for _, n := range policies {
		if !known[n] {
			return fmt.Errorf("policy %q is not known; there are %v", n, Policies())
		}
		if seen[n] {
			return fmt.Errorf("policy %q is given twice", n)
		}
		seen[n] = true
	}
	return nil
}

// Accesses wait for their drain: often enough that their times are right within a
// cycle, and that the tracker's buffers never fill.
const (
	drainsPerCycle = 64
	drainAccesses  = 1 << 16
)

// replay makes the second pass. With keep, the uses of every cycle are kept in
// e.history.
func (e *engine) replay(ctx context.Context, src Source, runs []*run, keep bool) error {
	r, err := src.Open()
	if err != nil {
		return err
	}
	defer r.Close()

	var watchers []observer
	for _, r := range runs {
		if o, ok := r.policy.(observer); ok {
			watchers = append(watchers, o)
		}
	}
	cycle := 0
	uses := e.newUses()
	endCycle := func() error {
		list := uses.take(keep)
		if keep {
			e.history = append(e.history, list)
		}
		for _, r := range runs {
			if err := r.step(cycle, list); err != nil {
				return err
			}
		}
		cycle++
		return ctx.Err()
	}

	var n, ignored int64
	var drained time.Duration
	pending := 0
	step := e.timing.cycle/drainsPerCycle + 1
	err = eachRequest(ctx, r, func(rec trace.Record) error {
		if n == e.info.Requests {
			return errChanged
		}
		at := e.timing.at(n, rec.Time)
		n++
		for cycle < e.timing.cycleOf(at) {
			if err := endCycle(); err != nil {
				return err
			}
			drained, pending = time.Duration(cycle)*e.timing.cycle, 0
		}
		if at-drained >= step || pending >= drainAccesses {
			for _, w := range watchers {
				w.drain(epoch.Add(at))
			}
			drained, pending = at, 0
		}
		touched, err := e.touch(rec, uses, uint64(n), watchers)
		pending += touched
		return err
	}, &ignored)
	if err != nil {
		return err
	}
	if n != e.info.Requests {
		return errChanged
	}
	for cycle < e.timing.cycles {
		if err := endCycle(); err != nil {
			return err
		}
	}
	return nil
}

var errChanged = errors.New("the trace changed while it was read")

// touch notes the accesses of one request, and returns how many.
func (e *engine) touch(rec trace.Record, uses *usage, number uint64, watchers []observer) (int, error) {
	v, ok := e.disk[rec.Disk]
	first, last := e.span(rec)
	if !ok || e.tooLong(first, last) {
		return 0, errChanged
	}
	for i := first; i <= last; i++ {
		id, ok := e.ids[extent.Key{Volume: v, Index: i}]
		if !ok {
			return 0, errChanged
		}
		uses.add(id, rec.Write, number)
		start := e.size.Start(e.addr.key[id].Index)
		for _, w := range watchers {
			switch {
			case e.countOnly:
				// A byte at the start of an extent never continues another.
				w.access(v, start, 1, false)
			case i == first:
				w.access(v, start+e.size.Within(rec.Offset), max(rec.Length, 1), rec.Write)
			}
		}
	}
	return int(last - first + 1), nil
}

// clairvoyant returns the best of the lookaheads.
func (e *engine) clairvoyant(ctx context.Context, l Layout) (PolicyResult, error) {
	var best PolicyResult
	for i, lookahead := range lookaheads {
		policy, ahead := newClairvoyant(e, lookahead)
		r := newRun(l, policy, e)
		if err := r.prepare(); err != nil {
			return PolicyResult{}, err
		}
		for c, uses := range e.history {
			if err := r.step(c, uses); err != nil {
				return PolicyResult{}, err
			}
			if ctx.Err() != nil {
				return PolicyResult{}, ctx.Err()
			}
		}
		p := r.finish()
		p.Lookahead = ahead
		if i == 0 || p.MeanMS < best.MeanMS {
			best = p
		}
	}
	return best, nil
}

// usage collects the uses of one cycle.
type usage struct {
	list []use
	at   []uint32 // by extent id: place in the list plus 1; 0: none
}

func (e *engine) newUses() *usage { return &usage{at: make([]uint32, e.info.Extents)} }

func (u *usage) add(id uint32, write bool, number uint64) {
	if u.at[id] == 0 {
		u.list = append(u.list, use{extent: id})
		u.at[id] = uint32(len(u.list))
	}
	x := &u.list[u.at[id]-1]
	if write {
		x.writes++
	} else {
		x.reads++
	}
	x.last = number
}

// take returns the uses so far and begins anew. What it returns is good until the
// next call, or for ever with keep.
func (u *usage) take(keep bool) []use {
	for _, x := range u.list {
		u.at[x.extent] = 0
	}
	list := u.list
	if u.list = list[:0]; keep {
		u.list = nil
	}
	return list
}
