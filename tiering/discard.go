package tiering

import (
	"context"

	"tierd/tiering/extent"
	"tierd/tiering/registry"
	"tierd/tiering/stagedlog"
)

// unmapSlice is how many extents are unmapped at a time, so that a trim of
// gigabytes does not keep the staging lock for long.
const unmapSlice = 1024

// trim unmaps the whole extents of the range. An extent of which this trim covers
// a part, and earlier ones the rest, with no write between them, is unmapped too:
// a client that trims a disk in requests of odd sizes gets all of it back.
func (m *Mutation) trim(ctx context.Context) error {
	v := m.v
	first, last := v.wholeExtents(m.off, m.n)
	if err := m.unmap(ctx, first, last); err != nil {
		return err
	}
	if last > first && v.trims.pending() {
		v.trims.drop(first, last-1)
	}
	for pc := range v.pool.size.Split(m.off, m.n) {
		if pc.Index >= first && pc.Index < last {
			continue
		}
		if v.trims.add(pc, v.extentBytes(pc.Index)) {
			if err := m.unmap(ctx, pc.Index, pc.Index+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// extentBytes returns how much of extent i exists: less than an extent only at
// the end of a volume.
func (v *Volume) extentBytes(i extent.Index) int64 {
	size := v.pool.size
	return min(size.Bytes(), v.size.Load()-size.Start(i))
}

// writeZeroes unmaps the whole extents of the range and zeroes the rest in place.
// With noHole nothing is unmapped, and what is unmapped gets its slot now.
func (m *Mutation) writeZeroes(ctx context.Context) error {
	v := m.v
	first, last := v.wholeExtents(m.off, m.n)
	if !m.ticket.Exclusive() {
		last = first // it was not whole when it got in line
	}
	if m.fast && !m.zeroesFast(first, last) {
		return ErrNotSupported
	}
	m.forgetTrims()
	if !m.noHole {
		if err := m.unmap(ctx, first, last); err != nil {
			return err
		}
	}
	if m.noHole {
		if err := m.makeRoom(ctx, func(extent.Piece) bool { return true }); err != nil {
			return err
		}
	}
	for pc := range v.pool.size.Split(m.off, m.n) {
		if !m.noHole && pc.Index >= first && pc.Index < last {
			continue
		}
		if err := m.zeroPiece(ctx, pc); err != nil {
			return err
		}
	}
	return nil
}

// zeroesFast reports whether the range, of which the extents [first, last) are
// whole, can be zeroed by unmapping and by punching holes in files. A device may
// write the zeroes; so do file systems that cannot punch, and whoever has to keep the
// space.
func (m *Mutation) zeroesFast(first, last extent.Index) bool {
	if m.noHole {
		return false
	}
	v := m.v
	for pc := range v.pool.size.Split(m.off, m.n) {
		if pc.Index >= first && pc.Index < last {
			continue
		}
		if e := v.table.Load(pc.Index); e.Mapped() && !v.pool.member(e.Location()).forgets() {
			return false
		}
	}
	return true
}

// forgetTrims makes the joiner forget the extents that this change writes to.
func (m *Mutation) forgetTrims() {
	if v := m.v; v.trims.pending() {
		v.trims.drop(v.pool.size.Index(m.off), v.pool.size.Index(m.off+m.n-1))
	}
}

// zeroPiece zeroes a part of one extent, or, with noHole, any of it.
func (m *Mutation) zeroPiece(ctx context.Context, pc extent.Piece) error {
	v := m.v
	e := v.table.Load(pc.Index)
	if !e.Mapped() {
		m.staged = m.staged || e.Staged()
		if !m.noHole {
			return nil
		}
		_, err := v.provision(ctx, pc.Index) // a clean slot reads as zeroes
		m.staged = true
		return err
	}
	l := e.Location()
	b := v.pool.member(l)
	m.staged = m.staged || e.Staged()
	return m.store(ctx, b, pc.Len, func(off int64) error {
		if m.noHole {
			return writeZeroBytes(ctx, b, off, pc.Len)
		}
		return b.zeroError(b.store.Zero(ctx, off, pc.Len))
	}, b.offset(l.Slot)+pc.Within)
}

var zeroes [128 << 10]byte

// writeZeroBytes writes zeroes where a hole would not do, because the space has
// to stay reserved.
func writeZeroBytes(ctx context.Context, b *member, off, n int64) error {
	for n > 0 {
		l := min(n, int64(len(zeroes)))
		if err := b.store.WriteAt(ctx, zeroes[:l], off); err != nil {
			return err
		}
		off, n = off+l, n-l
	}
	return nil
}

// unmap takes the slots of the extents [first, last) away. The caller is alone in
// them.
func (m *Mutation) unmap(ctx context.Context, first, last extent.Index) error {
	staged, err := m.v.unmap(ctx, first, last)
	m.staged = m.staged || staged
	return err
}

// unmap takes the slots of the extents [first, last) away and reports whether
// any of them awaits its commit. The caller is alone in them. Moves of them are
// called off: the mover gives its target back itself.
func (v *Volume) unmap(ctx context.Context, first, last extent.Index) (staged bool, err error) {
	p := v.pool
	var indices []extent.Index
	for ; first < last; first += unmapSlice {
		end := min(first+unmapSlice, last)
		indices = indices[:0]
		for i := first; i < end; i++ {
			switch e := v.table.Load(i); {
			case e.Mapped():
				indices = append(indices, i)
			case e.Staged():
				staged = true
			}
		}
		if len(indices) == 0 {
			continue
		}
		from, count := indices[0], indices[len(indices)-1]-indices[0]+1
		kind := stagedlog.UnmapRange
		if count == 1 {
			kind = stagedlog.Unmap
		}
		p.reg.CancelMoves(v.id, from, from+count-1)
		if err := p.stage(ctx, v, kind, from, count, indices, extent.Location{}); err != nil {
			return staged, err
		}
		staged = true
		p.freed.broadcast() // who waits for room asks for the commit that frees the slots
		for _, i := range indices {
			v.heat.Trimmed(i)
		}
	}
	return staged, nil
}

// quiesce waits for the changes that began before the volume was gone. One of them
// may wait for a slot to be cleaned, and map an extent at last. Later ones change
// nothing.
func (v *Volume) quiesce(ctx context.Context) error {
	var t registry.Ticket
	v.pool.reg.Enter(&t, registry.Exclusive, v.id, 0, v.size.Load(), v.table)
	err := t.Wait(ctx)
	v.pool.reg.Leave(&t, 0, 0)
	return err
}

// dropExtents unmaps the extents [first, last) of a volume being deleted and waits
// for the commit.
func (v *Volume) dropExtents(ctx context.Context, first, last extent.Index) error {
	mapped := false
	for i := first; i < last && !mapped; i++ {
		e := v.table.Load(i)
		mapped = e.Mapped() || e.Staged()
	}
	if !mapped {
		return nil
	}
	size := v.pool.size
	var t registry.Ticket
	v.pool.reg.Enter(&t, registry.Exclusive, v.id, size.Start(first), size.Start(last)-size.Start(first), v.table)
	err := t.Wait(ctx)
	if err == nil {
		_, err = v.unmap(ctx, first, last)
	}
	v.pool.reg.Leave(&t, 0, 0)
	if err != nil {
		return err
	}
	// A volume whose flushes fail for what it lost has its unmaps committed all the same.
	if err := v.flush(ctx); err != nil && (v.pool.db.Err() != nil || ctx.Err() != nil) {
		return err
	}
	return nil
}
