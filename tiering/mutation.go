package tiering

import (
	"context"
	"fmt"
	"time"

	"tierd/tiering/extent"
	"tierd/tiering/mutant"
	"tierd/tiering/registry"
)

// A Mutation is a change of a volume that has its place in line: whatever
// overlapping change was begun before runs before it, on whatever connection.
type Mutation struct {
	v      *Volume
	op     Op
	off, n int64
	noHole bool
	fast   bool
	err    error // the range is bad: nothing was registered
	ticket registry.Ticket

	// What the run found out.
	wrote  bool  // bytes of mapped extents may have changed
	staged bool  // it depends on an entry that awaits its commit
	touch  touch // the backings written to
}

// touch is a small set of backings: one in most cases.
type touch struct {
	n    int
	ids  [4]extent.BackingID
	more map[extent.BackingID]bool
}

func (t *touch) add(b extent.BackingID) {
	for _, id := range t.ids[:t.n] {
		if id == b {
			return
		}
	}
	if t.n < len(t.ids) {
		t.ids[t.n] = b
		t.n++
		return
	}
	if t.more == nil {
		t.more = make(map[extent.BackingID]bool)
	}
	t.more[b] = true
}

func (t *touch) each(fn func(extent.BackingID)) {
	for _, id := range t.ids[:t.n] {
		fn(id)
	}
	for id := range t.more {
		fn(id)
	}
}

func (v *Volume) begin(op Op, kind registry.Kind, off, n int64, noHole, fast bool) *Mutation {
	m, _ := v.pool.mutations.Get().(*Mutation)
	if m == nil {
		m = new(Mutation)
	}
	m.v, m.op, m.off, m.n, m.noHole, m.fast = v, op, off, n, noHole, fast
	m.wrote, m.staged, m.touch = false, false, touch{}
	m.err = v.check(off, n)
	if m.err == nil && n > 0 {
		if v.tap.Load() != nil && !fast {
			v.note(op, off, n, time.Now())
		}
		v.pool.reg.Enter(&m.ticket, kind, v.id, off, n, v.table)
	}
	return m
}

// BeginWrite puts a write of [off, off+n) in line.
func (v *Volume) BeginWrite(off, n int64) *Mutation {
	return v.begin(OpWrite, registry.Write, off, n, false, false)
}

// BeginTrim puts a trim of [off, off+n) in line. It is alone in all the extents
// it touches, also those it covers in part: a trim before may have covered the
// rest, and then the extent is unmapped.
func (v *Volume) BeginTrim(off, n int64) *Mutation {
	kind := registry.Exclusive
	if mutant.On(mutant.SharedUnmap) {
		kind = registry.Write
	}
	return v.begin(OpTrim, kind, off, n, false, false)
}

// BeginWriteZeroes puts the zeroing of [off, off+n) in line. With noHole the range
// keeps its space, or gets it. With fast nothing is changed, and Run returns
// ErrNotSupported, if zeroes would have to be written.
func (v *Volume) BeginWriteZeroes(off, n int64, noHole, fast bool) *Mutation {
	kind := registry.Write
	if first, last := v.wholeExtents(off, n); last > first {
		kind = registry.Exclusive
	}
	return v.begin(OpZero, kind, off, n, noHole, fast)
}

// wholeExtents returns the extents [first, last) that lie wholly in a range. The
// last extent of a volume may be ragged: what of it exists counts as whole.
func (v *Volume) wholeExtents(off, n int64) (first, last extent.Index) {
	size := v.pool.size
	first = size.Count(off)
	last = size.Index(off + n)
	if off+n == v.size.Load() {
		last = size.Count(off + n)
	}
	return first, max(first, last)
}

// Run waits for its turn and makes the change; p is the payload of a write. With
// fua the change is durable when nil is returned. If ctx ends before its turn,
// nothing is changed. Run must be called once; the Mutation is gone after it.
func (m *Mutation) Run(ctx context.Context, p []byte, fua bool) error {
	start := time.Now()
	err := m.run(ctx, p)
	v, op, off, n, fast := m.v, m.op, m.off, m.n, m.fast
	if err == nil && fua {
		err = m.makeDurable(ctx)
	}
	m.v = nil
	v.pool.mutations.Put(m)
	if err != ErrNotSupported { // a question that was answered, no request that failed
		v.stats.done(op, n, time.Since(start), err)
		if fast && n > 0 && err == nil {
			v.note(op, off, n, start)
		}
	}
	if op == OpWrite && err == nil {
		v.heat.Access(off, n, true)
	}
	return err
}

func (m *Mutation) run(ctx context.Context, p []byte) error {
	if m.err != nil || m.n == 0 {
		return m.err
	}
	reg := m.v.pool.reg
	// Even a panic must not leave a ticket in line: everybody behind it would wait
	// for ever.
	defer func() {
		// A write that failed may have changed bytes all the same.
		n := m.n
		if !m.wrote {
			n = 0
		}
		reg.Leave(&m.ticket, m.off, n)
	}()
	if err := m.waitTurn(ctx); err != nil {
		return err
	}
	switch {
	case m.v.gone.Load():
		return ErrClosed
	case m.v.ReadOnly():
		return ErrReadOnly
	case m.op == OpWrite:
		return m.write(ctx, p)
	case m.op == OpTrim:
		return m.trim(ctx)
	default:
		return m.writeZeroes(ctx)
	}
}

// waitTurn waits until the change may be made.
func (m *Mutation) waitTurn(ctx context.Context) error {
	if !m.ticket.Queued() {
		return m.ticket.Wait(ctx)
	}
	defer m.v.pool.waits.since(waitExclusive, time.Now())
	return m.ticket.Wait(ctx)
}

// write writes the payload piece by piece.
func (m *Mutation) write(ctx context.Context, p []byte) error {
	v := m.v
	m.forgetTrims()
	if err := m.makeRoom(ctx, func(pc extent.Piece) bool { return !allZero(p[pc.Done : pc.Done+pc.Len]) }); err != nil {
		return err
	}
	for pc := range v.pool.size.Split(m.off, m.n) {
		if err := m.writePiece(ctx, p[pc.Done:pc.Done+pc.Len], pc); err != nil {
			return err
		}
	}
	return nil
}

// writePiece writes within one extent, giving it a slot first if it has none. An
// all-zero piece of an unmapped extent changes nothing and needs none.
func (m *Mutation) writePiece(ctx context.Context, p []byte, pc extent.Piece) error {
	v := m.v
	e := v.table.Load(pc.Index) // cannot change under the ticket but by a move's switch, which is exclusive
	if !e.Mapped() {
		if allZero(p) {
			m.staged = m.staged || e.Staged() // the unmap it relies on may await its commit
			return nil
		}
		var err error
		if e, err = v.provision(ctx, pc.Index); err != nil {
			return err
		}
	}
	l := e.Location()
	b := v.pool.member(l)
	if err := m.store(ctx, b, pc.Len, func(off int64) error {
		return b.store.WriteAt(ctx, p, off)
	}, b.offset(l.Slot)+pc.Within); err != nil {
		return err
	}
	m.staged = m.staged || e.Staged()
	return nil
}

// store makes one change of n bytes at off of a backing, with all the
// book-keeping around it: pace, statistics, dirty marks.
func (m *Mutation) store(ctx context.Context, b *member, n int64, change func(off int64) error, off int64) error {
	if err := b.err(); err != nil {
		if b.failure.Load() != nil {
			<-b.recorded // nobody is told of a failure that a kill could undo
		}
		return err
	}
	unsynced := n
	if m.op == OpZero && b.forgets() {
		unsynced = min(n, paceBlock) // a file forgets blocks, which is little to sync
	}
	start := time.Now()
	if waited, err := b.pace.enter(ctx, off, unsynced); waited {
		m.v.pool.waits.since(waitPace, start)
		start = time.Now()
		if err != nil {
			return err
		}
		if err := b.err(); err != nil {
			b.pace.abandon(unsynced)
			return err
		}
	}
	m.wrote = true
	if mutant.On(mutant.MarkDirtyBefore) {
		m.v.markDirty(b.id)
	}
	err := change(off)
	end := time.Now()
	took := end.Sub(start)
	b.pace.left(off, unsynced, end)
	// After the data, before the answer: a flush that takes the mark must find
	// the bytes written.
	if !mutant.On(mutant.MarkDirtyBefore) {
		m.v.markDirty(b.id)
	}
	m.touch.add(b.id)
	b.stats.done(m.op, n, took, err)
	b.tier.stats.done(m.op, n, took, err)
	if err != nil {
		return fmt.Errorf("%s on backing %s: %w", m.op, b.path, b.ioError(m.op.String(), err))
	}
	return nil
}

// makeDurable returns once the change is durable. If an entry it depends on
// awaits its commit, that takes a round of the volume; else a sync of the
// backings written to. It runs after the ticket has left: nobody waits for it.
func (m *Mutation) makeDurable(ctx context.Context) error {
	if m.staged && !mutant.On(mutant.FUAOvertakesRound) {
		return m.v.flush(ctx)
	}
	defer m.v.pool.waits.since(waitSync, time.Now())
	var err error
	m.touch.each(func(id extent.BackingID) {
		switch b := m.v.pool.members[id].Load(); {
		case err != nil:
		case mutant.On(mutant.FUAEatsError):
			err = b.calls.Store.Sync(ctx) // nobody takes note
		default:
			err = b.sync(ctx)
		}
	})
	return err
}
