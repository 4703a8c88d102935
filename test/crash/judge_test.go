package crash

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"

	"github.com/google/uuid"

	"tierd/pkg/backing/crashstore"
	"tierd/tiering"
)

// state is what one crash left, with what is known of it.
type state struct {
	im   *image
	hist *history // of before, up to the crash
	at   int64
	how  opKind // opCut or opKill
	made int64  // the instant at which pool create was answered
	// What clients knew the pool by, and the history that they know; nil if a run has
	// more than one.
	continuity uuid.UUID
	answered   *history
	rnd        *rand.Rand
}

// judges are the ways in which a state is looked at. Each gets media of its own.
var judges = []struct {
	name string
	look func(*matrix, *state, *machine) error
}{
	{"open", (*matrix).judgeOpen},
	{"open, crash, open", (*matrix).judgeAgain},
	{"rebuild", (*matrix).judgeRebuild},
}

// judge looks at a state in every way.
func (x *matrix) judge(row *row, s *state) error {
	for _, j := range judges {
		m, err := start(x.fs, row.shape, s.im.copy(), s.hist)
		if err != nil {
			return err
		}
		err = j.look(x, s, m)
		if err != nil {
			err = fmt.Errorf("%s: %w\nlog of the pool:\n%s", j.name, err, m.logs)
		}
		if err := errors.Join(err, m.off()); err != nil {
			return err
		}
	}
	return nil
}

// opened opens the pool. A create that was not answered may have to be made again.
func (s *state) opened(m *machine) error {
	err := m.open()
	if err == nil || s.made <= s.at {
		return err
	}
	if !errors.Is(err, tiering.ErrRefused) {
		return fmt.Errorf("unfinished create: %w, want a refusal", err)
	}
	if err := m.shape.create(m); err != nil {
		return fmt.Errorf("create once more, after %w", err)
	}
	return m.open()
}

// compare reads all volumes and compares them with what may be there.
func (s *state) compare(m *machine, how opKind) error {
	var errs []error
	for _, name := range s.hist.names() {
		p, err := m.read(name)
		if err == nil {
			err = s.hist.expect(name, s.at, how).check(p)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// contents reads all volumes.
func (s *state) contents(m *machine) (map[string][]byte, error) {
	all := make(map[string][]byte)
	for _, name := range s.hist.names() {
		p, err := m.read(name)
		if err != nil {
			return nil, err
		}
		all[name] = p
	}
	return all, nil
}

// same compares all volumes with what they were.
func (s *state) same(m *machine, want map[string][]byte) error {
	now, err := s.contents(m)
	if err != nil {
		return err
	}
	for name, p := range want {
		if !bytes.Equal(p, now[name]) {
			return fmt.Errorf("volume %s changed: %s", name, firstDifference(p, now[name]))
		}
	}
	return nil
}

func firstDifference(want, got []byte) string {
	if len(want) != len(got) {
		return fmt.Sprintf("it had %d bytes and has %d", len(want), len(got))
	}
	for i := 0; ; i += sector {
		if w, g := want[i:i+sector], got[i:i+sector]; !bytes.Equal(w, g) {
			return fmt.Sprintf("sector %d was %x... and is %x...", i/sector, w[:8], g[:8])
		}
	}
}

// judgeOpen opens the pool: everything promised is there, and still is once the
// pool has come to rest; it can be stopped, and nothing is wrong with it then.
func (x *matrix) judgeOpen(s *state, m *machine) error {
	if s.made <= s.at {
		if err := m.check(); err != nil {
			return fmt.Errorf("before open: %w", err)
		}
	}
	if err := s.opened(m); err != nil {
		return err
	}
	if err := s.compare(m, s.how); err != nil {
		return err
	}
	if err := s.lossTold(m); err != nil {
		return err
	}
	if err := m.settled(); err != nil {
		return err
	}
	if err := s.compare(m, s.how); err != nil {
		return fmt.Errorf("once recovered: %w", err)
	}
	if err := m.close(); err != nil {
		return err
	}
	if err := m.check(); err != nil {
		return fmt.Errorf("after a clean stop: %w", err)
	}
	return nil
}

// lossTold checks that clients are told if anything is missing that they were
// answered.
func (s *state) lossTold(m *machine) error {
	if s.answered == nil || m.pool.Info().Continuity != s.continuity {
		return nil
	}
	for _, name := range s.answered.names() {
		p, err := m.read(name)
		if err == nil {
			err = s.answered.expect(name, s.at, opKill).check(p)
		}
		if err != nil {
			return fmt.Errorf("answered data is missing, and the continuity id is the same: volume %s: %w", name, err)
		}
	}
	return nil
}

// judgeAgain opens the pool, kills it at some moment of its recovery, and opens it
// again in the same boot. What could be read stays, and what is written then. It is
// flushed, and the power fails: it stays all the same.
func (x *matrix) judgeAgain(s *state, m *machine) error {
	if err := s.opened(m); err != nil {
		return err
	}
	if s.rnd.IntN(3) == 0 {
		if err := m.settled(); err != nil {
			return err
		}
	}
	before, err := s.contents(m)
	if err != nil {
		return err
	}
	if err := s.scribble(m, before); err != nil {
		return err
	}
	m.killPool()
	if err := m.open(); err != nil {
		return fmt.Errorf("after kill: %w", err)
	}
	if err := s.same(m, before); err != nil {
		return fmt.Errorf("after kill: %w", err)
	}
	for _, v := range m.pool.Volumes() {
		if err := v.Flush(ctx); err != nil {
			return fmt.Errorf("flush after kill: %w", err)
		}
	}
	flushed := m.fs.Next()
	m.killPool()
	im, err := m.media()
	if err != nil {
		return err
	}
	keep := []float64{0, 0.5}[s.rnd.IntN(2)]
	n, err := start(m.fs, m.shape, im.cut(flushed, crashstore.Cut{Seed: s.rnd.Int64(), Keep: keep}), s.hist)
	if err != nil {
		return err
	}
	err = n.open()
	if err == nil {
		err = s.same(n, before)
	}
	if err != nil {
		err = fmt.Errorf("after kill, flush and cut: %w\nlog after the cut:\n%s", err, n.logs)
	}
	return errors.Join(err, n.off())
}

// scribble changes volumes a little, and what is known of their content with them.
func (s *state) scribble(m *machine, known map[string][]byte) error {
	for _, v := range m.pool.Volumes() {
		p := known[v.Name()]
		if len(p) == 0 {
			continue
		}
		for range s.rnd.IntN(3) {
			off := s.rnd.Int64N(int64(len(p))/block) * block
			var err error
			c := content(0)
			if s.rnd.IntN(4) == 0 {
				off = off / m.shape.extent * m.shape.extent
				n := min(m.shape.extent, int64(len(p))-off)
				clear(p[off : off+n])
				err = v.Trim(ctx, off, n, false)
			} else {
				c = newContent()
				c.fill(p[off:off+block], off/sector)
				err = v.WriteAt(ctx, p[off:off+block], off, false)
			}
			if errors.Is(err, tiering.ErrNoSpace) {
				// Nothing was changed: the block is in one extent.
				if err := v.ReadAt(ctx, p[off:off+block], off); err != nil {
					return err
				}
				continue
			}
			if err != nil {
				return fmt.Errorf("write after the crash: %w", err)
			}
		}
	}
	return nil
}

// judgeRebuild loses the metadata too. What was flushed is found without it.
func (x *matrix) judgeRebuild(s *state, m *machine) error {
	if s.made > s.at {
		return nil // there is no pool yet
	}
	lost := []string{m.metadata()}
	if s.rnd.IntN(8) == 0 { // a new one takes long to fill
		lost = append(lost, m.metadata()+".log")
	}
	for _, path := range lost {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	o := m.options()
	rep, err := tiering.Rebuild(ctx, tiering.RebuildOptions{Metadata: o.Metadata, Backings: o.Backings, OpenStore: o.OpenStore})
	if err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	if rep.Damaged() {
		return fmt.Errorf("rebuild found damage: %v", rep.Findings)
	}
	if err := m.open(); err != nil {
		return err
	}
	// A rebuild knows what is on the backings, which is what a cut may leave, also
	// after a kill.
	if err := s.compare(m, opCut); err != nil {
		return err
	}
	if err := m.settled(); err != nil {
		return err
	}
	if err := s.compare(m, opCut); err != nil {
		return fmt.Errorf("once recovered: %w", err)
	}
	if err := m.close(); err != nil {
		return err
	}
	if err := m.check(); err != nil {
		return fmt.Errorf("after a clean stop: %w", err)
	}
	return nil
}
