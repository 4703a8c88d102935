package tiering

import (
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// metadataErr returns nil while changes of mappings can be recorded and committed.
func (p *Pool) metadataErr() error {
	if err := p.db.Err(); err != nil {
		return err
	}
	p.staged.mu.Lock()
	defer p.staged.mu.Unlock()
	return p.staged.broken
}

// noteMetadata tells, once, that the metadata have failed.
func (p *Pool) noteMetadata() {
	if err := p.metadataErr(); err != nil && !p.metadataTold.Swap(true) {
		p.log.Error("metadata failed: until a restart, what needs a new mapping fails, and so do flushes of volumes with staged entries", "error", err)
		p.freed.broadcast() // who waits for slots of a commit looks again
	}
}

// endLog makes the records void that were not written whole, when the staged log
// has failed. The request was told so, and a replay must not carry it out all the
// same; least of all a move, behind which writes went on to its source.
func (p *Pool) endLog() {
	p.staged.mu.Lock()
	last := p.staged.seq
	p.staged.mu.Unlock()
	// If the metadata do not take it either, the log's own attempt to blank the
	// record has to do.
	_, _ = p.commitNow(&extentmap.Changes{Pool: func(r *extentmap.PoolRecord) { r.LogEnd = last }})
	p.noteMetadata()
}

// hearFailures makes members failed of whose failure superblocks tell and of which the
// metadata could not be told any more, and returns them. superblock returns that of a
// backing and the path of it, nil if it is not there.
func hearFailures(state *extentmap.State, superblock func(extent.BackingID) (*ondisk.Superblock, string)) (told []extentmap.Member) {
	by := make(map[extent.BackingID]string)
	for _, m := range state.Members {
		sb, path := superblock(m.ID)
		if sb == nil || sb.Incarnation != state.Pool.Incarnation {
			continue // it tells of what may have been cleared since
		}
		for _, r := range sb.Members {
			if r.State == ondisk.MemberFailed {
				by[r.ID] = path
			}
		}
	}
	for i := range state.Members {
		m := &state.Members[i]
		sb, _ := superblock(m.ID)
		if by[m.ID] == "" || sb == nil || m.State != extentmap.MemberOK && m.State != extentmap.MemberDraining {
			continue
		}
		m.State, m.Error = extentmap.MemberFailed, "it had failed by the superblock of "+by[m.ID]
		told = append(told, *m)
	}
	return told
}
