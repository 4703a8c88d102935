package tiering

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/mutant"
	"tierd/tiering/ondisk"
	"tierd/tiering/stagedlog"
)

// identity is what a staged log must match to be replayed.
func (op *opening) identity(incarnation uint64) stagedlog.Identity {
	id := stagedlog.Identity{
		PoolID: op.pool.id, Incarnation: incarnation, BootID: op.o.BootID, Instances: make(map[extent.BackingID]string),
	}
	op.pool.eachMember(func(b *member) {
		if !b.missing {
			id.Instances[b.id] = b.store.Instance()
		}
	})
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
	if mutant.On(mutant.IgnoreInstances) {
		id.Instances = nil
	}
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
	if err == nil && op.void == "" {
		for _, c := range op.found {
			if unlogged(c.stamp, later.Incarnation, pr, op.records) {
				return refuse("metadata %s and its staged log are older than backing %s: they were restored from a copy; put the originals back, or move the copies away and run tierctl pool rebuild", op.o.Metadata, c.spec.Path)
			}
		}
	}
	if end := pr.LogEnd; end != 0 {
		op.records = slices.DeleteFunc(op.records, func(r stagedlog.Record) bool { return r.Seq > end })
	}
	switch {
	case err == nil:
	case errors.Is(err, stagedlog.ErrMapOlder):
		return refuse("metadata %s is older than its staged log: it was restored from a copy; put the original back, or move the copy away and run tierctl pool rebuild", op.o.Metadata)
	case errors.Is(err, fs.ErrNotExist):
		op.void = "it does not exist"
	case errors.Is(err, stagedlog.ErrGap):
		op.void = err.Error() // what is before the gap is replayed, if nothing behind it is committed
	default:
		return err
	}
	return nil
}

// unlogged reports whether a stamp knows of a change that neither the map nor the
// valid log of this incarnation does: a record is in the log before any sync tells of
// it.
func unlogged(s ondisk.Stamp, incarnation uint64, pr extentmap.PoolRecord, records []stagedlog.Record) bool {
	known := pr.MaxSeq
	if n := len(records); n > 0 {
		known = max(known, records[n-1].Seq)
	}
	return s.Seq>>seqBits == incarnation && s.Seq > known
}

// recover replays the staged log and commits what that adds. If the log is void,
// answered changes may be lost, and the continuity id changes.
func (op *opening) recover() error {
	if op.clean {
		return nil
	}
	p := op.pool
	if op.mayHaveLost() && !mutant.On(mutant.KeepContinuity) {
		if _, err := p.commitNow(&extentmap.Changes{Pool: renewContinuity()}); err != nil {
			return fmt.Errorf("renew continuity id: %w", err)
		}
	}
	n, err := p.replay(op.records)
	if err != nil {
		return fmt.Errorf("replay staged log: %w", err)
	}
	p.log.Info("recovered from an unclean stop", "records", len(op.records), "changed_extents", n, "void", op.void)
	return nil
}

// mayHaveLost reports whether answered data may be lost, and warns of it.
func (op *opening) mayHaveLost() bool {
	if op.void != "" {
		op.warn = append(op.warn, fmt.Sprintf("the pool was not stopped cleanly and its staged log cannot be used (%s): answered writes that were not flushed may be lost", op.void))
	}
	if op.lostSync {
		op.warn = append(op.warn, "the pool was not stopped cleanly before a backing went missing: answered writes there that were not flushed may be lost, and flushes of volumes with extents there fail")
	}
	return op.void != "" || op.lostSync
}

// replayed is what the staged log says of one extent that the map does not.
type replayed struct {
	v        *Volume
	index    extent.Index
	from, to extent.Location // from: by the map
	seq      uint64
	move     bool
}

// latest returns what the records change on top of the maps. Each record sets the
// absolute state of its extents, so the last one counts, and records that were
// committed before do no harm.
//
// A move onto a backing that is missing is left out, like one onto a backing that
// failed: the extent's flushed bytes are still in the slot it left. Writes that came
// after it are lost, of which lost tells.
func (p *Pool) latest(recs []stagedlog.Record) (changes []replayed, lost []extentmap.LostWrites, err error) {
	last := make(map[extent.Key]stagedlog.Record)
	for _, r := range recs {
		v := p.byID[r.Volume]
		if v == nil {
			continue // deleted since: ids are never reused
		}
		for i := r.First; i < r.First+r.Count && i < v.table.Len(); i++ {
			k := extent.Key{Volume: r.Volume, Index: i}
			if _, ok := last[k]; ok && mutant.On(mutant.ReplayOldest) {
				continue
			}
			last[k] = r
		}
	}
	for k, r := range last {
		v := p.byID[k.Volume]
		c := replayed{v: v, index: k.Index, from: v.table.Load(k.Index).Location(), to: r.To, seq: r.Seq, move: r.Kind == stagedlog.Move}
		if c.from == c.to {
			continue
		}
		if !c.to.IsZero() && p.member(c.to) == nil {
			return nil, nil, fmt.Errorf("%v is on backing %d, which is not part of the pool", k, c.to.Backing)
		}
		if c.move && p.member(c.to).missing && !r.From.IsZero() && p.member(r.From) != nil {
			p.heal.renew(r.From)
			lost = append(lost, extentmap.LostWrites{Volume: v.id, Backing: c.to.Backing})
			if c.to, c.move = r.From, false; c.from == c.to {
				continue
			}
		}
		changes = append(changes, c)
	}
	return changes, lost, nil
}

// replay applies the records on top of the maps and commits the outcome.
func (p *Pool) replay(recs []stagedlog.Record) (changed int, err error) {
	changes, lost, err := p.latest(recs)
	if err != nil {
		return 0, err
	}
	if len(lost) > 0 {
		_, err := p.commitNow(&extentmap.Changes{Pool: func(r *extentmap.PoolRecord) { rememberLost(r, lost) }})
		if err != nil {
			return 0, err
		}
	}
	// All slots that are left are given up before any is taken: one extent's may be
	// another's now.
	for _, c := range changes {
		if !c.from.IsZero() {
			p.member(c.from).slots.Vacate(c.from.Slot)
		}
	}
	touched := make(map[*Volume]bool)
	now := p.clock.Now()
	for _, c := range changes {
		if !c.to.IsZero() {
			if err := p.member(c.to).slots.Claim(c.to.Slot); err != nil {
				return 0, fmt.Errorf("%v: %w", extent.Key{Volume: c.v.id, Index: c.index}, err)
			}
		}
		e := c.v.table.Load(c.index).At(c.to) | extent.FlagStaged
		c.v.setEntry(c.index, e)
		c.v.stagedRecs = append(c.v.stagedRecs, stagedRecord{seq: c.seq, index: c.index, from: c.from, entry: e, move: c.move, since: now})
		touched[c.v] = true
	}
	for v := range touched {
		if err := v.flush(context.Background()); err != nil {
			if p.db.Err() != nil {
				return 0, err
			}
			// A backing has failed: what is on the others is committed, and the pool
			// serves it.
			p.log.Error("a volume is recovered in part", "volume", v.Name(), "error", err)
		}
	}
	return len(changes), nil
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
	if errors.Is(err, stagedlog.ErrNotLog) { // it was cut off, and what it held was looked at
		if err = os.Rename(path, path+".cut"); err == nil {
			err = fs.ErrNotExist
		}
	}
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
		r.LogIncarnation, r.LogEnd, r.BootID = p.incarnation, 0, op.o.BootID
	}})
	if err != nil {
		return fmt.Errorf("start staged log: %w", err)
	}
	return nil
}
