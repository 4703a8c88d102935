package tiering

import (
	"context"
	"errors"
	"time"

	"tierd/tiering/mutant"
	"tierd/tiering/ondisk"
)

// copyPatience is how long a change waits for one backing to take its copy of
// the records, if another one has it. A disk that hangs takes it later.
const copyPatience = 2 * time.Second

// The metadata are the truth about members and volumes. The backings carry
// copies, for the day on which the metadata are lost: the members in their
// superblocks, the volumes in their volume tables. Each backing writes its copies
// one after the other, beside all others, and from the metadata as they are then:
// a copy that comes late is a new one.

// writeSuperblock writes both copies of b's superblock from the metadata. An
// error may be that of a lost write of others, and has to fail the backing; that
// is the caller's, when b.superMu is free again.
func (p *Pool) writeSuperblock(ctx context.Context, b *member) error {
	b.superMu.Lock()
	defer b.superMu.Unlock()
	if b.removed.Load() {
		return nil
	}
	sb := superblockOf(p.db.State(), b.id, b.layout, p.incarnation)
	for i := range sb.Members {
		// The metadata may be what cannot be written any more.
		if m := p.members[sb.Members[i].ID].Load(); m != nil && m.failure.Load() != nil && sb.Members[i].State != ondisk.MemberForgotten {
			sb.Members[i].State = ondisk.MemberFailed
		}
	}
	return ondisk.WriteSuperblock(ctx, b.store, sb)
}

// copySuperblock is a run of b.superblocks.
func (b *member) copySuperblock() error {
	if err := b.err(); err != nil {
		return err
	}
	if err := b.pool.writeSuperblock(context.Background(), b); err != nil {
		// It has synced, and the error is not told twice.
		b.fail("write superblock", err)
		return b.err()
	}
	return nil
}

// writeSuperblocks writes the superblocks of the serving backings but one. With
// needed one of them must have it.
func (p *Pool) writeSuperblocks(but *member, needed bool) {
	p.awaitCopies(but, needed, func(b *member) *call { return b.superblocks.start() })
}

// copyVolumes is a run of b.volumeTables.
func (b *member) copyVolumes() error {
	if b.removed.Load() {
		return nil
	}
	if err := b.err(); err != nil {
		return err
	}
	p := b.pool
	ctx := context.Background() // a stop half-way would look like a failure of the backing
	t := volumeTableOf(p.db.State())
	err := ondisk.WriteVolumeTable(ctx, b.store, b.layout, p.id, t)
	switch {
	case errors.Is(err, ondisk.ErrTooLarge):
		p.log.Error("a rebuild would not know all volumes", "backing", b.path, "error", err)
	case errors.Is(err, ondisk.ErrCorrupt):
		// Nothing is wrong with the disk, and what is there may be right.
		p.log.Error("the volume table of a backing contradicts the metadata, and is left as it is; stop the daemon and run tierctl pool check", "backing", b.path, "error", err)
	case err != nil:
		b.fail("write volume table", err)
		return b.err()
	}
	if syncErr := b.sync(ctx); syncErr != nil || err != nil {
		return syncErr
	}
	// The stamp proves to a rebuild that there was this table, if it is damaged by then
	// and only the one before can be read. A table that a cut tore was never stamped.
	if b.stamps.VolumeGeneration() >= t.Generation {
		return nil
	}
	b.tabled.Store(t.Generation)
	return b.sync(ctx)
}

// writeVolumeTables records the volumes on the serving backings, for a rebuild.
// It returns no error: the change they tell of is committed, so that it is in
// force whatever becomes of its copies. A backing that does not take its copy has
// failed.
func (p *Pool) writeVolumeTables() {
	if mutant.On(mutant.NoVolumeTable) {
		return
	}
	p.awaitCopies(nil, true, func(b *member) *call { return b.volumeTables.start() })
}

// awaitCopies starts the writing of copies on all serving backings but one, and
// waits for those that are there within copyPatience; with needed, for one of them
// however long it takes.
func (p *Pool) awaitCopies(but *member, needed bool, start func(*member) *call) {
	var waiting []*call
	p.eachMember(func(b *member) {
		if b != but && b.err() == nil {
			c := start(b)
			if !b.health.hanging.Load() {
				waiting = append(waiting, c)
			}
		}
	})
	written := make(chan bool, len(waiting))
	for _, c := range waiting {
		go func() {
			<-c.done
			written <- c.err == nil
		}()
	}
	late := time.NewTimer(copyPatience)
	defer late.Stop()
	timeUp := false
	for left := len(waiting); left > 0 && (needed || !timeUp); {
		select {
		case ok := <-written:
			needed = needed && !ok
			left--
		case <-late.C:
			timeUp = true
		}
	}
}
