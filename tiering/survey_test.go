package tiering_test

import (
	"errors"
	"io/fs"
	"testing"

	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/ondisk"
)

// survey opens the survey of the closed pool of e, with other paths besides.
func (e *env) survey(more ...string) *tiering.Survey {
	e.t.Helper()
	s, err := tiering.OpenSurvey(ctx, tiering.SurveyOptions{Backings: e.specs(more...), OpenStore: e.opt.OpenStore})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(s.Close)
	return s
}

// specs returns where the backings of a pool of three tiers are, and more paths.
func (e *env) specs(more ...string) []tiering.BackingSpec {
	var list []tiering.BackingSpec
	for _, p := range append([]string{path(2, 0), path(0, 0), path(1, 0)}, more...) {
		list = append(list, tiering.BackingSpec{Path: p})
	}
	return list
}

func TestSurvey(t *testing.T) {
	t.Parallel()
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, 2*ext, 1)
	e.flush("v0")
	e.trim("v0", 0, ext)
	e.Close()
	want := e.state()

	s := e.survey("/nowhere")
	if s.Pool != want.Pool.ID || len(s.Members) != 3 {
		t.Fatalf("survey of pool %v with %d members, want %v with 3", s.Pool, len(s.Members), want.Pool.ID)
	}
	if len(s.Others) != 1 || !errors.Is(s.Others[0].Err, fs.ErrNotExist) {
		t.Errorf("others = %+v, want the one that does not exist", s.Others)
	}
	kinds := make(map[ondisk.Kind]int)
	for i, m := range s.Members {
		if m.ID() != extent.BackingID(i+1) {
			t.Errorf("member %d has id %d", i, m.ID())
		}
		if m.StampErr != nil || m.VolumesErr != nil || m.Short != nil {
			t.Errorf("member %d: stamp %v, volumes %v, short %v", i, m.StampErr, m.VolumesErr, m.Short)
		}
		for _, c := range m.Copies {
			if c.State != ondisk.CopyValid {
				t.Errorf("member %d: the superblock at %d is %s (%v)", i, c.Offset, c.State, c.Err)
			}
		}
		if c := m.VolumeCopies[0]; c.State != ondisk.CopyValid {
			t.Errorf("member %d: the volume table at %d is %s (%v)", i, c.Offset, c.State, c.Err)
		}
		if len(m.Volumes.Volumes) != 2 {
			t.Errorf("member %d knows %d volumes", i, len(m.Volumes.Volumes))
		}
		// That all have it is a commit of its own.
		if !m.Stamp.Clean || m.Stamp.Commit != want.Pool.Commit-1 {
			t.Errorf("member %d has the stamp %+v, want that of the clean stop, %d", i, m.Stamp, want.Pool.Commit-1)
		}
		err := m.EachSlot(ctx, func(_ extent.Slot, e ondisk.SlotEntry, valid bool) bool {
			if !valid {
				t.Error("a bad checksum")
			}
			kinds[e.Kind]++
			return true
		}, func(first extent.Slot, n uint32, err error) {
			t.Errorf("%d entries from slot %d on: %v", n, first, err)
		})
		if err != nil {
			t.Error(err)
		}
	}
	if kinds[ondisk.Owner] != 1 || kinds[ondisk.Tombstone] != 1 {
		t.Errorf("entries = %v, want one owner and one tombstone", kinds)
	}
}
