package tiering

import (
	"fmt"

	"github.com/google/uuid"
)

// serveReadOnly brings up a pool that is open to be read: nothing is written, not
// even that it was opened. After an unclean stop the staged log is replayed in
// memory. The slot tables may be behind, which concerns nobody who only reads.
func (op *opening) serveReadOnly() error {
	p := op.pool
	p.incarnation = op.state.Pool.Incarnation
	if err := op.loadMaps(); err != nil {
		return err
	}
	if !op.clean {
		for _, m := range op.missing {
			op.lostSync = op.lostSync || !m.Away
		}
		if op.mayHaveLost() {
			p.continuity = uuid.New()
		}
		changes, _, err := p.latest(op.records)
		if err != nil {
			return fmt.Errorf("replay staged log: %w", err)
		}
		for _, c := range changes {
			c.v.setEntry(c.index, c.v.table.Load(c.index).At(c.to))
		}
		p.unflushed = fmt.Errorf("the pool is open read-only after an unclean stop, so that what was not flushed before cannot be: %w", ErrReadOnly)
		p.log.Info("replayed the staged log in memory", "records", len(op.records), "changed_extents", len(changes), "void", op.void)
	}
	op.sayWarnings()
	close(p.heal.done)
	p.monitor.load(p.clock.Now())
	p.wg.Go(func() { p.monitor.loop(p.ctx) })
	return nil
}
