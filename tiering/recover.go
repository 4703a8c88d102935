package tiering

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/google/uuid"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/mutant"
	"tierd/tiering/stagedlog"
)

// identity is what a staged log must match to be replayed.
func (op *opening) identity(incarnation uint64) stagedlog.Identity {
	id := stagedlog.Identity{
		PoolID: op.pool.id, Incarnation: incarnation, BootID: op.o.BootID, Instances: make(map[extent.BackingID]string),
	}
	op.pool.eachMember(func(b *member) { id.Instances[b.id] = b.store.Instance() })
	return id
}

// readLog reads the staged log of a pool that was not stopped cleanly. Nothing has
// been written yet: a map that is older than the log is refused.
func (op *opening) readLog() error {
	if op.clean {
		return nil
	}
	pr := op.state.Pool
	path := stagedLogPath(op.o.Metadata)
	id := op.identity(pr.LogIncarnation)
	var err error
	op.records, op.void, err = stagedlog.Read(path, id, pr.Commit)
	// An open that was cut short may have begun its log and not said so yet. All
	// that the log before had was committed by then.
	later := id
	for later.Incarnation < pr.Incarnation && op.void != "" && err == nil {
		later.Incarnation++
		if recs, void, rerr := stagedlog.Read(path, later, pr.Commit); void == "" && rerr == nil {
			op.records, op.void = recs, ""
		}
	}
	if mutant.On(mutant.IgnoreBootID) && op.void != "" {
		id.BootID = pr.BootID
		op.records, op.void, err = stagedlog.Read(path, id, pr.Commit)
	}
	if n := len(op.records); op.void == "" && (n == 0 || op.records[n-1].Seq < pr.MaxSeq) && pr.MaxSeq>>seqBits >= later.Incarnation {
		// Records of committed changes are not there. Those before them would take
		// extents back to where they were.
		op.records, op.void = nil, "records that are committed are missing in it"
	}
	switch {
	case err == nil:
	case errors.Is(err, stagedlog.ErrMapOlder):
		return refuse("metadata %s is older than its staged log: it was restored from a copy", op.o.Metadata)
	case errors.Is(err, fs.ErrNotExist):
		op.void = "it does not exist"
	case errors.Is(err, stagedlog.ErrGap):
		op.void = err.Error() // what is before the gap is replayed, if nothing behind it is committed
	default:
		return err
	}
	return nil
}

// recover replays the staged log and commits what that adds. If the log is void,
// answered changes may be lost, and the continuity id changes.
func (op *opening) recover() error {
	if op.clean {
		return nil
	}
	p := op.pool
	if op.void != "" {
		cont := uuid.New()
		op.warn = append(op.warn, fmt.Sprintf("the pool was not stopped cleanly and its staged log cannot be used (%s): answered writes that were not flushed may be lost", op.void))
		if _, err := p.commitNow(&extentmap.Changes{Pool: func(r *extentmap.PoolRecord) { r.Continuity = cont }}); err != nil {
			return fmt.Errorf("renew continuity id: %w", err)
		}
	}
	n, err := p.replay(op.records)
	if err != nil {
		return fmt.Errorf("replay staged log: %w", err)
	}
	p.log.Info("recovered from an unclean stop", "records", len(op.records), "changed extents", n, "void", op.void)
	return nil
}

// replay applies the records on top of the maps and commits the outcome. Each
// record sets the absolute state of its extents, so the last one counts, and
// records that were committed before do no harm.
func (p *Pool) replay(recs []stagedlog.Record) (changed int, err error) {
	type final struct {
		to   extent.Location
		seq  uint64
		move bool
	}
	last := make(map[extent.Key]final)
	for _, r := range recs {
		v := p.byID[r.Volume]
		if v == nil {
			continue // deleted since: ids are never reused
		}
		for i := r.First; i < r.First+r.Count && i < v.table.Len(); i++ {
			last[extent.Key{Volume: r.Volume, Index: i}] = final{r.To, r.Seq, r.Kind == stagedlog.Move}
		}
	}
	type claim struct {
		v *Volume
		r stagedRecord
	}
	var claims []claim
	now := p.clock.Now()
	for k, f := range last {
		v := p.byID[k.Volume]
		old := v.table.Load(k.Index)
		from := old.Location()
		if from == f.to {
			continue
		}
		if !f.to.IsZero() && p.member(f.to) == nil {
			return 0, fmt.Errorf("%v is on backing %d, which is not part of the pool", k, f.to.Backing)
		}
		if !from.IsZero() {
			p.member(from).slots.Vacate(from.Slot)
		}
		claims = append(claims, claim{v, stagedRecord{
			seq: f.seq, index: k.Index, from: from, entry: old.At(f.to) | extent.FlagStaged, move: f.move, since: now,
		}})
	}
	touched := make(map[*Volume]bool)
	for _, c := range claims {
		if l := c.r.entry.Location(); !l.IsZero() {
			if err := p.member(l).slots.Claim(l.Slot); err != nil {
				return 0, fmt.Errorf("%v: %w", extent.Key{Volume: c.v.id, Index: c.r.index}, err)
			}
		}
		c.v.setEntry(c.r.index, c.r.entry)
		c.v.stagedRecs = append(c.v.stagedRecs, c.r)
		touched[c.v] = true
	}
	for v := range touched {
		if err := v.Flush(context.Background()); err != nil {
			if p.db.Err() != nil {
				return 0, err
			}
			// A backing has failed: what is on the others is committed, and the pool
			// serves it.
			p.log.Error("a volume is recovered in part", "volume", v.Name(), "error", err)
		}
	}
	return len(claims), nil
}

// startLog makes the log of this incarnation the valid one. Whatever the old one
// held is committed by now. The log is begun first and named by the metadata then:
// the other way round, an open cut short in between would leave metadata that name
// a log that is not there.
func (op *opening) startLog() error {
	p := op.pool
	path := stagedLogPath(op.o.Metadata)
	id := op.identity(p.incarnation)
	log, err := stagedlog.Open(path, id, p.commit.Load(), p.staged.seq+1)
	if errors.Is(err, fs.ErrNotExist) {
		if err := stagedlog.Create(path, logBytes); err != nil {
			return err
		}
		log, err = stagedlog.Open(path, id, p.commit.Load(), p.staged.seq+1)
	}
	if err != nil {
		return err
	}
	p.staged.log = log
	_, err = p.commitNow(&extentmap.Changes{Pool: func(r *extentmap.PoolRecord) {
		r.LogIncarnation, r.BootID = p.incarnation, op.o.BootID
	}})
	if err != nil {
		return fmt.Errorf("start staged log: %w", err)
	}
	return nil
}
