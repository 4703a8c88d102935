package tiering

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"tierd/tiering/extent"
	"tierd/tiering/mutant"
	"tierd/tiering/stagedlog"
)

// seqBits is how much of a sequence number counts within an incarnation; the
// rest is the incarnation, so that numbers never repeat over restarts.
const seqBits = 40

// roomTries is how often rounds are asked to make room in a full staged log.
const roomTries = 100

// stager makes changes of the mapping visible: each is recorded in the staged
// log first, so that no other request can depend on a mapping that a kill would
// take back.
type stager struct {
	mu     sync.Mutex
	log    *stagedlog.Log
	seq    uint64           // last one given out
	broken error            // the log failed: nothing can be staged any more
	late   stagedlog.Record // held back, if a mutant asks for it
}

// A stagedRecord is a change of one extent's mapping that is visible and not yet
// committed.
type stagedRecord struct {
	seq   uint64
	index extent.Index
	from  extent.Location // the slot it left; zero if it was unmapped
	entry extent.Entry    // as published
	move  bool            // a relocation: the target's bytes are synced before its table entry is written
	since time.Time
}

// stage records and publishes that extents of v change their mapping: to the
// slot to, or to none if that is zero. The extents are those of the indices, in
// ascending order and all within [first, first+count); one log record covers
// them. The caller is alone in them, or it is the mover in its exclusion.
func (p *Pool) stage(ctx context.Context, v *Volume, kind stagedlog.Kind, first, count extent.Index, indices []extent.Index, to extent.Location) error {
	err := p.tryStage(v, kind, first, count, indices, to)
	if !errors.Is(err, stagedlog.ErrFull) {
		return err
	}
	defer p.waits.since(waitStagedLog, time.Now())
	for range roomTries {
		err = p.makeLogRoom(ctx, func() error { return p.tryStage(v, kind, first, count, indices, to) })
		if !errors.Is(err, stagedlog.ErrFull) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrMetadataFailed, err)
}

// makeLogRoom commits what fills the log: it runs a round for each volume that has
// staged entries, and tries again after each that ends, so that nobody waits for
// the slowest who need not. It returns the error of the last try, or that of the
// rounds if none of them got through.
func (p *Pool) makeLogRoom(ctx context.Context, try func() error) error {
	calls := p.startRounds()
	ended := make(chan error, len(calls))
	for _, c := range calls {
		go func() { ended <- c.wait(ctx) }()
	}
	var errs []error
	err := error(stagedlog.ErrFull)
	for range calls {
		if rerr := <-ended; rerr != nil {
			errs = append(errs, rerr)
		}
		// A round of a volume whose flushes fail has let go of the log all the same.
		if err = try(); !errors.Is(err, stagedlog.ErrFull) {
			return err
		}
	}
	if len(errs) > 0 && len(errs) == len(calls) {
		return fmt.Errorf("make room in the staged log: %w", errors.Join(errs...))
	}
	return err
}

// tryStage is stage without making room.
func (p *Pool) tryStage(v *Volume, kind stagedlog.Kind, first, count extent.Index, indices []extent.Index, to extent.Location) error {
	broken, err := p.stageOnce(v, kind, first, count, indices, to)
	if broken {
		p.endLog()
	}
	return err
}

// stageOnce reports as well whether it was this record that broke the log.
func (p *Pool) stageOnce(v *Volume, kind stagedlog.Kind, first, count extent.Index, indices []extent.Index, to extent.Location) (broken bool, err error) {
	s := &p.staged
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return false, s.broken
	}
	if p.opts.ReadOnly {
		return false, ErrReadOnly
	}
	if err := p.db.Err(); err != nil {
		return false, err
	}
	seq := s.seq + 1
	rec := stagedlog.Record{Seq: seq, Kind: kind, Volume: v.id, First: first, Count: count, To: to}
	if count == 1 {
		rec.From = v.table.Load(first).Location()
	}
	if mutant.On(mutant.RecordAfterPublish) {
		rec, s.late = s.late, rec
	}
	if rec.Seq != 0 {
		if err := s.append(rec); err != nil {
			return s.broken != nil, err
		}
	}
	s.seq = seq
	now := p.clock.Now()
	for _, i := range indices {
		old := v.table.Load(i)
		e := old.At(to) | extent.FlagStaged
		if mutant.On(mutant.NoGeneration) {
			e = extent.Entry(0).At(to) | extent.FlagStaged
		}
		v.setEntry(i, e)
		from := old.Location()
		if !from.IsZero() {
			b := p.member(from)
			b.slots.Vacate(from.Slot)
			if mutant.On(mutant.EarlySlotReuse) {
				b.slots.Free(from.Slot)
				b.wakeCleaner()
			}
		}
		v.stagedRecs = append(v.stagedRecs, stagedRecord{
			seq: seq, index: i, from: from, entry: e, move: kind == stagedlog.Move, since: now,
		})
	}
	return false, nil
}

// recorded returns the highest sequence in the log, 0 if nothing was recorded since
// the open.
func (s *stager) recorded() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seq&(1<<seqBits-1) == 0 {
		return 0
	}
	return s.seq
}

// append writes one record. s.mu is held.
func (s *stager) append(rec stagedlog.Record) error {
	err := s.log.Append([]stagedlog.Record{rec})
	if err != nil && !errors.Is(err, stagedlog.ErrFull) {
		s.broken = fmt.Errorf("%w: %w", ErrMetadataFailed, err)
		return s.broken
	}
	return err
}

// cut takes what v has staged for a round.
func (s *stager) cut(v *Volume) []stagedRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	v.committing, v.stagedRecs = v.stagedRecs, nil
	return v.committing
}

// retire notes that v's round is committed, and lets go of the log up to the
// oldest record that anybody still has to commit.
func (p *Pool) retire(v *Volume, commit uint64) error {
	s := &p.staged
	s.mu.Lock()
	defer s.mu.Unlock()
	v.committing = nil
	upTo := s.seq
	for _, o := range p.allVolumes() {
		for _, recs := range [][]stagedRecord{o.committing, o.stagedRecs} {
			if len(recs) > 0 {
				upTo = min(upTo, recs[0].seq-1)
			}
		}
	}
	if s.log == nil {
		return nil // replay: the log of this incarnation has not begun
	}
	if err := s.log.Retire(upTo, commit); err != nil {
		return fmt.Errorf("retire staged log: %w", err)
	}
	return nil
}

// stagedEntries returns how many changes of v await their commit, and since
// when the oldest does.
func (v *Volume) stagedEntries() (n int, since time.Time) {
	s := &v.pool.staged
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, recs := range [][]stagedRecord{v.committing, v.stagedRecs} {
		if len(recs) > 0 && since.IsZero() {
			since = recs[0].since
		}
		n += len(recs)
	}
	return n, since
}
