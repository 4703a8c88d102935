package model

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"tierd/pkg/backing/crashstore"
	"tierd/tiering"
	"tierd/tiering/extentmap"
)

// checkIDs looks whether an id names the volume that it named before.
func (r *CrashRun) checkIDs() {
	r.t.Helper()
	db, err := extentmap.Open(r.w.metadata(), extentmap.Options{ReadOnly: true})
	if err != nil {
		r.fail(err)
	}
	defer db.Close()
	for _, v := range db.State().Volumes {
		if old, ok := r.ids[v.ID]; ok && old != v.UUID {
			r.fail(fmt.Errorf("volume %s has id %d, which another one had before", v.Name, v.ID))
		}
		r.ids[v.ID] = v.UUID
	}
}

// ruleAt says what a reader may rely on after w ended like that at an Instant. On a
// backing whose sync has failed, what was not flushed may go, also by a kill: a move
// to it is not committed.
func (r *CrashRun) ruleAt(in *Instant, end ending) rule {
	must := func(c *change) bool { return c.ended != 0 && c.ended < in.before }
	if end.loses() || r.syncFailed {
		must = func(c *change) bool { return c.durable != 0 && c.durable < in.before }
	}
	return rule{must, func(c *change) bool { return c.begun < in.after }}
}

// failedBefore reports whether something had failed by an Instant.
func (r *CrashRun) failedBefore(in *Instant) bool { return r.failed || r.deafBefore(in) }

// deafBefore reports whether a sync had failed by an Instant.
func (r *CrashRun) deafBefore(in *Instant) bool {
	for _, at := range r.deaf {
		if at < in.after {
			return true
		}
	}
	return false
}

// judge looks at what a crash at an Instant leaves: by opening it, by opening it,
// killing that and opening it again, by the offline check, and by a rebuild without
// the map.
func (r *CrashRun) judge(in *Instant, end ending) {
	r.t.Helper()
	what := fmt.Sprintf("%v at event %d", end, in.event)
	c := r.randomCut()
	broken := r.failedBefore(in)
	keepDeaf, kept := r.deaf, r.syncFailed
	r.syncFailed = r.syncFailed || r.deafBefore(in)
	if end.loses() {
		r.deaf = make(map[string]uint64)
	}
	defer func() { r.deaf, r.syncFailed = keepDeaf, kept }()
	opening := in.before < r.opened
	switch {
	case end == kill:
		r.Counts.Kills++
	default:
		r.Counts.Cuts++
	}
	if opening {
		r.Counts.Recoveries++
	}
	w := r.w.crashed(in, end, c)
	defer w.drop()
	if r.rnd.IntN(2) == 0 && !broken { // a failed backing counts as damage
		w.Check()
	}
	if r.rnd.IntN(r.prof.Rebuilds) == 0 && r.healed != 0 && r.healed < in.before && !broken {
		r.judgeRebuilt(in, end, c)
		for n := 0; r.prof.Hot && end == cut && n < 2; n++ {
			r.judgeRebuilt(in, end, r.randomCut())
		}
	}
	lost := r.inspect(w, in, end, what)
	if cont := w.Pool.Continuity(); !opening && !broken {
		if lost && cont == r.continuity {
			r.fail(fmt.Errorf("%s: answered data is lost, and the continuity id is the same", what))
		}
		if end == kill && cont != r.continuity {
			r.fail(fmt.Errorf("%s: nothing is lost, and the continuity id is another one", what))
		}
	}
	if r.rnd.IntN(2) == 0 {
		w.Kill()
		r.inspect(w, in, end, what+", opened, killed")
	}
}

func (r *CrashRun) randomCut() crashstore.Cut {
	return crashstore.Cut{Seed: int64(r.rnd.Uint64() >> 1), Keep: []float64{0, 0.3, 0.7, 1}[r.rnd.IntN(4)]}
}

// inspect opens w and compares all volumes. It reports whether anything answered is
// lost.
func (r *CrashRun) inspect(w *World, in *Instant, end ending, what string) (lost bool) {
	r.t.Helper()
	w.Open()
	if err := r.compareBackings(w.Pool, in); err != nil {
		r.fail(fmt.Errorf("%s: %w", what, err))
	}
	for _, v := range r.vols {
		_, err := r.compare(w.Pool, v, in, func(p []byte) error {
			lost = lost || v.led.lost(p, in.before)
			return v.led.check(p, 0, r.ruleAt(in, end))
		})
		if err != nil {
			r.fail(fmt.Errorf("%s: volume %s: %w", what, v.name, err))
		}
	}
	return lost
}

// compare reads a volume of a pool that crashed at an Instant and judges whether it
// has to be there, and its size. It is not there if no error is returned and there is
// false.
func (r *CrashRun) compare(p *tiering.Pool, v *crashVolume, in *Instant, with func([]byte) error) (there bool, err error) {
	tv, err := p.Volume(v.name)
	if err != nil {
		if v.created.ended != 0 && v.created.ended < in.before && (v.deleted.begun == 0 || v.deleted.begun > in.after) {
			return false, errors.New("its creation was answered, and it is gone")
		}
		return false, nil
	}
	if v.deleted.ended != 0 && v.deleted.ended < in.before {
		return true, errors.New("its deletion was answered, and it is there")
	}
	least, most := int64(0), int64(0)
	for _, s := range v.sizes {
		if s.ended != 0 && s.ended < in.before {
			least = s.bytes
		}
		if s.begun < in.after {
			most = s.bytes
		}
	}
	if n := tv.Size(); n < least || n > most {
		return true, fmt.Errorf("its size is %d, and must be from %d to %d", n, least, most)
	}
	data := make([]byte, tv.Size())
	ctx, cancel := r.context()
	defer cancel()
	if err := tv.ReadAt(ctx, data, 0); err != nil {
		return true, err
	}
	return true, with(data)
}

// compareBackings looks whether the pool after a crash at an Instant consists of what
// was answered by then.
func (r *CrashRun) compareBackings(p *tiering.Pool, in *Instant) error {
	want := make(map[string]fitting)
	for _, f := range r.fits {
		switch {
		case f.begun >= in.after:
		case f.ended == 0 || f.ended >= in.before:
			delete(want, f.path) // it may be either
		default:
			want[f.path] = f
		}
	}
	for _, b := range p.Backings() {
		f, known := want[b.Path]
		delete(want, b.Path)
		switch {
		case !known:
		case !f.member:
			return fmt.Errorf("the removal of %s was answered, and it is there", b.Path)
		case f.draining != b.Draining:
			return fmt.Errorf("an order was answered by which %s is draining: %v, and it is %v", b.Path, f.draining, b.Draining)
		}
	}
	for path, f := range want {
		if f.member {
			return fmt.Errorf("backing %s is a member, and is gone", path)
		}
	}
	return nil
}

// resume goes on from what a crash at an Instant leaves.
func (r *CrashRun) resume(in *Instant, end ending, clean bool) {
	r.t.Helper()
	if end == reattach {
		r.Counts.Reattached++
	}
	now := r.tick()
	r.syncFailed = r.syncFailed || r.deafBefore(in)
	if end.loses() {
		r.failed = r.failedBefore(in) // that is durable
		r.deaf = make(map[string]uint64)
	} else {
		for p, at := range r.deaf {
			if at >= in.after {
				delete(r.deaf, p)
			}
		}
	}
	w := r.w.crashed(in, end, r.randomCut())
	r.w.drop()
	r.w = w
	r.checkIDs()
	// What is there is read by an open of its own, which the armed Instants of the
	// next epoch do not see.
	look := w.crashed(w.nowInstant(), kill, crashstore.Cut{})
	look.Open()
	lost := false
	var live []*crashVolume
	for _, v := range r.vols {
		there, err := r.compare(look.Pool, v, in, func(p []byte) error {
			lost = lost || v.led.lost(p, in.before)
			return v.led.adopt(p, r.ruleAt(in, end), in.before, now)
		})
		if err != nil {
			r.fail(fmt.Errorf("%v at event %d, going on: volume %s: %w", end, in.event, v.name, err))
		}
		if !there {
			continue
		}
		v.deleting, v.deleted, v.created = false, span{}, span{0, 1}
		v.sizes = []sizeChange{{span{0, 1}, v.led.size()}}
		v.v = nil
		live = append(live, v)
	}
	r.vols = live
	if lost && in.before > r.opened && !r.anyFailure() && look.Pool.Continuity() == r.continuity {
		r.fail(fmt.Errorf("%v at event %d: answered data is lost, and the continuity id is the same", end, in.event))
	}
	look.drop()
}

// tryOldMap puts the metadata file of an earlier Instant in the place of that of a
// later one. If a backing was synced after a later commit, it must be refused.
func (r *CrashRun) tryOldMap(old, last *Instant) {
	r.t.Helper()
	known := false
	for _, v := range r.vols {
		for _, c := range v.led.changes {
			// The commit before that of the change is one of which the backings know.
			known = known || !c.zero && c.commit > old.commit+1 && c.durable != 0 && c.durable < last.before
		}
	}
	if !known {
		return
	}
	r.Counts.OldMaps++
	mixed := *last
	mixed.files = maps.Clone(last.files)
	mixed.files[metadataFile] = old.files[metadataFile]
	w := r.w.crashed(&mixed, kill, crashstore.Cut{})
	defer w.drop()
	p, err := tiering.Open(context.Background(), w.options())
	if err == nil {
		p.Kill()
		r.fail(fmt.Errorf("a map of commit %d was opened, and commit %d is known to the backings", old.commit, last.commit))
	}
}

// judgeRebuilt takes the metadata away and has it made anew from the backings: what
// was flushed is there.
func (r *CrashRun) judgeRebuilt(in *Instant, end ending, c crashstore.Cut) {
	r.t.Helper()
	r.Counts.Rebuilt++
	bare := *in
	bare.files = nil
	if r.rnd.IntN(4) != 0 { // the staged log is still there, most times
		bare.files = map[string][]byte{logFile: in.files[logFile]}
	}
	w := r.w.crashed(&bare, end, c)
	defer w.drop()
	o := tiering.RebuildOptions{Metadata: w.metadata(), OpenStore: w.openStore}
	for p := range w.paths {
		o.Backings = append(o.Backings, tiering.BackingSpec{Path: p})
	}
	what := fmt.Sprintf("%v at event %d, rebuilt without the map", end, in.event)
	if _, err := tiering.Rebuild(context.Background(), o); err != nil {
		r.fail(fmt.Errorf("%s: %w", what, err))
	}
	r.inspect(w, in, cut, what)
}
