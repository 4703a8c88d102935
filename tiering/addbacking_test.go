package tiering_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/extentmap"
)

const newPath = "/new/disk"

// add adds a backing with about n slots.
func (e *env) add(o tiering.AddOptions, n int64) tiering.Added {
	e.t.Helper()
	a, err := e.Pool.AddBacking(ctx, e.addOptions(o, n))
	if err != nil {
		e.t.Fatalf("add backing: %v", err)
	}
	return a
}

func (e *env) addOptions(o tiering.AddOptions, n int64) tiering.AddOptions {
	if o.Backing.Path == "" {
		o.Backing.Path = newPath
	}
	if n > 0 {
		o.Backing.Size = 9<<20 + n*ext
	}
	return o
}

func (e *env) tierNames() string {
	var names []string
	for _, t := range e.Pool.Tiers() {
		names = append(names, t.Name)
	}
	return strings.Join(names, " ")
}

// TestAddToATier adds a backing under load, and looks that it is used and that the
// pool finds it again.
func TestAddToATier(t *testing.T) {
	for _, how := range []string{"close", "kill", "cut"} {
		t.Run(how, func(t *testing.T) {
			e := newEnv(t, model.Config{Slots: [][]int{{4}, {4}}, Volumes: []int64{24 * ext}}, nil)
			e.populate("v0", 3, 1)
			if _, err := e.Pool.AddBacking(ctx, func() tiering.AddOptions {
				o := e.addOptions(tiering.AddOptions{Tier: "t0"}, 20)
				o.DryRun = true
				return o
			}()); err != nil || len(e.Pool.Backings()) != 2 {
				t.Fatalf("dry run: %v, %d backings", err, len(e.Pool.Backings()))
			}
			a := e.add(tiering.AddOptions{Tier: "t0"}, 20)
			if a.ID != 3 || a.NewTier || !a.NewFile || a.Slots < 15 {
				t.Errorf("added %+v", a)
			}
			eventually(t, "clean slots", func() bool { return e.backing(newPath).Slots.Clean > 10 })
			e.populate("v0", 14, 1)
			if n := e.backing(newPath).Slots.Used; n < 8 {
				t.Errorf("%d slots of the new backing are used", n)
			}
			e.write("v0", 15*ext, block, 99) // staged alone
			switch how {
			case "close":
				e.Close()
				e.Check()
			case "kill":
				e.Kill()
			case "cut":
				e.Cut(5, 0.3)
			}
			e.Open()
			e.expectFilled("v0", 14, 1)
			if how == "kill" {
				e.expect("v0", 15*ext, block, 99)
				if strings.Contains(e.logs.String(), "cannot be used") {
					t.Errorf("the staged log is void after a backing was added:\n%s", e.logs)
				}
			}
			if b := e.backing(newPath); b.Tier != "t0" || b.ID != 3 {
				t.Errorf("after a %s: %+v", how, b)
			}
		})
	}
}

// TestAddNewTiers puts tiers at either end and between, with policies that name
// tiers, and takes them away again.
func TestAddNewTiers(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{4}, {8}}, Volumes: []int64{4 * ext, 4 * ext}}, nil)
	if err := e.Pool.SetPolicy(ctx, "v0", "t1", false); err != nil {
		t.Fatal(err)
	}
	e.populate("v0", 4, 1)
	e.add(tiering.AddOptions{Tier: "top", Before: "t0", Backing: tiering.BackingSpec{Path: "/n/top"}}, 8)
	e.add(tiering.AddOptions{Tier: "mid", After: "t0", Backing: tiering.BackingSpec{Path: "/n/mid"}, Media: "hdd"}, 8)
	e.add(tiering.AddOptions{Tier: "low", After: "t1", Backing: tiering.BackingSpec{Path: "/n/low"}}, 8)
	const all = "top t0 mid t1 low"
	look := func(when string) {
		t.Helper()
		if got := e.tierNames(); got != all {
			t.Errorf("%s: tiers are %s", when, got)
		}
		if got := e.tierOf("v0", 0); got != "t1" {
			t.Errorf("%s: extent is in tier %s", when, got)
		}
		if i := e.volume("v0").Info(); i.Extents[3] != 4 || i.Policy != "t1" {
			t.Errorf("%s: %+v", when, i)
		}
		pl, _ := e.Pool.Locate("v0", 0)
		if !strings.Contains(pl.Why, "policy asks for tier t1") {
			t.Errorf("%s: %s", when, pl.Why)
		}
		if e.Pool.Tiers()[2].Media != "hdd" {
			t.Errorf("%s: media is %s", when, e.Pool.Tiers()[2].Media)
		}
	}
	look("added")
	e.awaitClean(0)
	e.write("v1", 0, block, 7)
	if got := e.tierOf("v1", 0); got != "top" {
		t.Errorf("a new extent went to %s", got)
	}
	if !e.Relocate("v1", 0, 4) || e.tierOf("v1", 0) != "low" {
		t.Errorf("extent is in %s", e.tierOf("v1", 0))
	}
	e.Kill()
	e.Open()
	look("killed")
	e.Close()
	e.Check()
	for _, m := range e.superblock("/t1/b0").Members {
		if want := map[int]int{1: 1, 2: 3, 3: 0, 4: 2, 5: 4}[int(m.ID)]; int(m.Tier) != want {
			t.Errorf("superblock: backing %d is of tier %d, want %d", m.ID, m.Tier, want)
		}
	}
	e.Open()
	look("reopened")
	eventually(t, "healed", func() bool { return e.Pool.Info().Healed == 1 })

	wantErr(t, "remove a tier with a backing", e.Pool.RemoveTier(ctx, "mid", false), tiering.ErrBusy)
	e.remove("/n/mid")
	e.remove("/n/top")
	if err := e.Pool.RemoveTier(ctx, "mid", false); err != nil {
		t.Fatal(err)
	}
	if err := e.Pool.RemoveTier(ctx, "top", false); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"removed", "reopened"} {
		if got := e.tierNames(); got != "t0 t1 low" {
			t.Errorf("%s: tiers are %s", when, got)
		}
		if got := e.tierOf("v0", 0) + e.tierOf("v1", 0); got != "t1low" {
			t.Errorf("%s: extents are in %s", when, got)
		}
		e.Close()
		e.Check()
		e.Open()
	}
	e.drain("/t1/b0", tiering.DrainStart)
	e.drain("/t1/b0", tiering.DrainCancel)
	wantErr(t, "remove a tier that a policy names", func() error {
		if err := e.Pool.SetPolicy(ctx, "v0", "auto", false); err != nil {
			return err
		}
		e.drain("/t1/b0", tiering.DrainStart)
		e.awaitDrain("/t1/b0", tiering.DrainEmpty)
		e.remove("/t1/b0")
		if err := e.Pool.SetPolicy(ctx, "v0", "t1", false); err != nil {
			return err
		}
		return e.Pool.RemoveTier(ctx, "t1", false)
	}(), tiering.ErrBusy)
	e.expectFilled("v0", 4, 1)
}

func (e *env) remove(ref string) tiering.Removed {
	e.t.Helper()
	r, err := e.Pool.RemoveBacking(ctx, ref, false)
	if err != nil {
		e.t.Fatalf("remove backing %s: %v", ref, err)
	}
	return r
}

func TestAddRefuses(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{4}, {4}}, Volumes: []int64{4 * ext}}, nil)
	spec := func(p string) tiering.BackingSpec { return tiering.BackingSpec{Path: p} }
	for _, c := range []struct {
		what string
		o    tiering.AddOptions
		want error
	}{
		{"relative path", tiering.AddOptions{Tier: "t0", Backing: spec("disk")}, tiering.ErrInvalid},
		{"a member", tiering.AddOptions{Tier: "t0", Backing: spec(path(1, 0))}, tiering.ErrExists},
		{"unknown tier", tiering.AddOptions{Tier: "t9"}, tiering.ErrNotFound},
		{"existing tier as new", tiering.AddOptions{Tier: "t0", Before: "t1"}, tiering.ErrExists},
		{"beside an unknown tier", tiering.AddOptions{Tier: "t9", Before: "t8"}, tiering.ErrNotFound},
		{"policy's name", tiering.AddOptions{Tier: "auto", Before: "t0"}, tiering.ErrInvalid},
		{"before and after", tiering.AddOptions{Tier: "t9", Before: "t0", After: "t1"}, tiering.ErrInvalid},
		{"other media", tiering.AddOptions{Tier: "t0", Media: "hdd"}, tiering.ErrInvalid},
	} {
		_, err := e.Pool.AddBacking(ctx, e.addOptions(c.o, 8))
		wantErr(t, c.what, err, c.want)
	}
	_, err := e.Pool.AddBacking(ctx, tiering.AddOptions{Tier: "t0", Backing: tiering.BackingSpec{Path: newPath, Size: 1 << 20}})
	wantErr(t, "too small", err, tiering.ErrRefused)
	_, err = e.Pool.AddBacking(ctx, tiering.AddOptions{Tier: "t0", Backing: tiering.BackingSpec{Path: newPath}})
	wantErr(t, "no size", err, tiering.ErrRefused)

	// Something is there.
	st, err := e.opt.OpenStore(ctx, tiering.BackingSpec{Path: newPath, Size: 9<<20 + 8*ext}, true, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.WriteAt(ctx, []byte("somebody's data"), 5000); err != nil {
		t.Fatal(err)
	}
	st.Close()
	o := e.addOptions(tiering.AddOptions{Tier: "t0"}, 8)
	_, err = e.Pool.AddBacking(ctx, o)
	wantErr(t, "somebody's data", err, tiering.ErrRefused)
	if len(e.Pool.Backings()) != 2 {
		t.Errorf("%d backings", len(e.Pool.Backings()))
	}
	o.Force = true
	if _, err := e.Pool.AddBacking(ctx, o); err != nil {
		t.Errorf("with force: %v", err)
	}
	// What it held must not show up in an extent.
	eventually(t, "clean slots", func() bool { return e.backing(newPath).Slots.Clean > 0 })
	e.expect("v0", 0, 4*ext, 0)
}

// TestAddCutShort ends the process, or the power, at each write, sync and commit of
// an addition. Then the backing is a member, or can be added again.
func TestAddCutShort(t *testing.T) {
	for _, o := range []tiering.AddOptions{{Tier: "t0"}, {Tier: "new", Before: "t0"}} {
		members := 0
		for n := 1; ; n++ {
			e := newEnv(t, model.Config{Slots: [][]int{{4}, {4}}, Volumes: []int64{4 * ext}}, nil)
			e.populate("v0", 4, 1)
			var count atomic.Int64
			stop := func() error {
				if count.Add(1) >= int64(n) {
					return syscall.EIO
				}
				return nil
			}
			fault := func(at extentmap.FaultPoint, _ uint64) error {
				if at == extentmap.FaultBefore {
					return stop()
				}
				return stop()
			}
			e.fault.Store(&fault)
			e.onOpen = func(p string, fs *faultstore.Store) {
				if p == newPath {
					for i := range 40 { // the n-th operation and all that follow
						if i+1 >= n {
							fs.Inject(faultstore.Fault{Ops: faultstore.Write | faultstore.Sync | faultstore.Zero, Nth: max(n-1, 1), Err: syscall.EIO})
							break
						}
					}
				}
			}
			_, err := e.Pool.AddBacking(ctx, e.addOptions(o, 8))
			e.onOpen = nil
			e.fault.Store(nil)
			if n%2 == 0 {
				e.Kill()
			} else {
				e.Cut(uint64(n), 0.5)
			}
			e.Open()
			e.expectFilled("v0", 4, 1)
			isMember := slices.ContainsFunc(e.Pool.Backings(), func(b tiering.BackingInfo) bool { return b.Path == newPath })
			if isMember {
				members++
			} else if _, err := e.Pool.AddBacking(ctx, e.addOptions(o, 8)); err != nil {
				t.Errorf("step %d: it cannot be added again: %v", n, err)
			}
			failed := isMember && e.backing(newPath).Err != nil
			e.populate("v0", 4, 11)
			e.Close()
			if !failed { // the check reports that
				e.Check()
			}
			e.Open()
			e.expectFilled("v0", 4, 11)
			e.Close()
			if err == nil {
				t.Logf("tier %s: %d steps, a member after %d of them", o.Tier, n, members)
				break
			}
			if n > 60 {
				t.Fatalf("the addition does not get through: %v", err)
			}
		}
	}
}

// TestRemove removes a drained backing beside readers that hold old locations, and
// adds it again.
func TestRemove(t *testing.T) {
	for _, how := range []string{"close", "kill", "cut"} {
		t.Run(how, func(t *testing.T) {
			e := newEnv(t, drainConfig, nil)
			e.populate("v0", 12, 1)
			wantErr(t, "remove a backing with extents", func() error {
				_, err := e.Pool.RemoveBacking(ctx, path(0, 0), false)
				return err
			}(), tiering.ErrBusy)
			if e.backing(path(0, 0)).Draining {
				t.Error("a refused removal leaves the backing without new extents")
			}
			var stop atomic.Bool
			var wg sync.WaitGroup
			v := e.volume("v0")
			for r := range 3 {
				wg.Go(func() {
					p := make([]byte, ext)
					for i := int64(r); !stop.Load(); i++ {
						at := i % 12
						if !v.TryRead(p, at*ext) {
							if err := v.ReadAt(ctx, p, at*ext); err != nil {
								t.Errorf("read beside the removal: %v", err)
								return
							}
						}
						if p[0] != byte(1+at) || p[ext-1] != byte(1+at) {
							t.Errorf("extent %d reads as %d", at, p[0])
							return
						}
					}
				})
			}
			e.drain(path(0, 0), tiering.DrainStart)
			e.awaitDrain(path(0, 0), tiering.DrainEmpty)
			r := e.remove(path(0, 0))
			if !r.Wiped || r.ID != 1 || r.Tier != "t0" {
				t.Errorf("removed: %+v", r)
			}
			stop.Store(true)
			wg.Wait()
			if len(e.Pool.Backings()) != 2 {
				t.Errorf("%d backings are left", len(e.Pool.Backings()))
			}
			e.flush("v0") // it has marks of the removed backing
			e.write("v0", 0, block, 1)
			switch how {
			case "close":
				e.Close()
				e.Check()
			case "kill":
				e.Kill()
			case "cut":
				e.Cut(9, 0.4)
			}
			e.Open()
			e.expectFilled("v0", 12, 1)
			for _, m := range e.superblock(path(1, 0)).Members {
				if m.ID == 1 {
					t.Error("the superblock of another backing lists the removed one")
				}
			}
			a := e.add(tiering.AddOptions{Tier: "t0", Backing: tiering.BackingSpec{Path: path(0, 0)}}, 0)
			if a.ID != 4 || a.NewFile {
				t.Errorf("added again: %+v", a)
			}
			e.expectFilled("v0", 12, 1)
		})
	}
}

// TestRemoveCutShort lets the removal fail at each step.
func TestRemoveCutShort(t *testing.T) {
	for n := 1; ; n++ {
		e := newEnv(t, drainConfig, nil)
		e.populate("v0", 12, 1)
		e.drain(path(0, 0), tiering.DrainStart)
		e.awaitDrain(path(0, 0), tiering.DrainEmpty)
		e.settle2(path(0, 0))
		var hit bool
		if n == 1 {
			e.failCommits(extentmap.FaultBefore)
		} else {
			inj := e.stores[path(0, 0)].Inject(faultstore.Fault{Ops: faultstore.Zero | faultstore.Sync, Nth: n - 1, Err: syscall.EIO})
			defer func() { _ = inj }()
		}
		r, err := e.Pool.RemoveBacking(ctx, path(0, 0), false)
		hit = err != nil || !r.Wiped
		e.fault.Store(nil)
		e.Cut(uint64(n), 0.5)
		e.Open()
		e.expectFilled("v0", 12, 1)
		isMember := slices.ContainsFunc(e.Pool.Backings(), func(b tiering.BackingInfo) bool { return b.Path == path(0, 0) })
		if isMember != (err != nil) {
			t.Errorf("step %d: removal says %v, and it is a member: %v", n, err, isMember)
		}
		if !isMember {
			if _, err := e.Pool.AddBacking(ctx, tiering.AddOptions{Tier: "t0", Backing: tiering.BackingSpec{Path: path(0, 0)}}); err != nil {
				t.Errorf("step %d: it cannot be added again: %v", n, err)
			}
		}
		e.Close()
		e.Check()
		if !hit {
			break
		}
		if n > 20 {
			t.Fatal("the removal does not get through")
		}
	}
}

// TestRemoveOfABackingThatHangs: an empty backing whose calls do not return leaves the
// pool all the same, and other changes of the pool go on.
func TestRemoveOfABackingThatHangs(t *testing.T) {
	defer tiering.SetWipePatience(10 * time.Millisecond)()
	e := newEnv(t, drainConfig, nil)
	e.populate("v0", 12, 1)
	e.drain(path(0, 0), tiering.DrainStart)
	e.awaitDrain(path(0, 0), tiering.DrainEmpty)
	e.settle2(path(0, 0))
	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	defer release()
	e.stores[path(0, 0)].Inject(faultstore.Fault{Ops: faultstore.Write | faultstore.Zero | faultstore.Sync, Wait: gate})
	e.soon("removal", func() {
		r, err := e.Pool.RemoveBacking(ctx, path(0, 0), false)
		if err != nil || r.Wiped || !strings.Contains(r.WipeError, "do not return") {
			t.Errorf("removed: %+v, %v", r, err)
		}
	})
	e.soon("another change of the pool", func() {
		if err := e.Pool.SetPolicy(ctx, "v0", "lowest", false); err != nil {
			t.Error(err)
		}
	})
	e.soon("a flush", func() { e.write("v0", 0, block, 1); e.flush("v0") })
	e.expectFilled("v0", 12, 1)
	release()
	e.Close()
	e.Check()
}

// TestNoSlotOnARemovedBacking lets writers ask for slots while backings come and go.
func TestNoSlotOnARemovedBacking(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{6}, {30}}, Volumes: []int64{16 * ext}}, nil)
	var stop atomic.Bool
	var wg sync.WaitGroup
	v := e.volume("v0")
	for w := range int64(4) {
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				off := (w*4 + int64(i%4)) * ext
				p := []byte(strings.Repeat(string(rune('a'+i%26)), block))
				if err := v.WriteAt(ctx, p, off, false); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				got := make([]byte, block)
				if err := v.ReadAt(ctx, got, off); err != nil || string(got) != string(p) {
					t.Errorf("read back: %v", err)
					return
				}
				if err := v.Trim(ctx, off, ext, false); err != nil {
					t.Errorf("trim: %v", err)
					return
				}
			}
		})
	}
	for i := range 12 {
		o := tiering.AddOptions{Tier: "t0", Backing: tiering.BackingSpec{Path: fmt.Sprintf("/come/%d", i)}}
		a := e.add(o, 8)
		for range 50 {
			yield()
		}
		e.drain(a.Path, tiering.DrainStart)
		e.awaitDrain(a.Path, tiering.DrainEmpty)
		e.remove(a.Path)
	}
	stop.Store(true)
	wg.Wait()
	e.settle()
	e.Close()
	e.Check()
}

// TestRemoveLooksIntoTheMap: the target of a move failed before the move was
// committed, so that the map names the source still, and nothing else does.
func TestRemoveLooksIntoTheMap(t *testing.T) {
	e := newEnv(t, model.Config{Slots: [][]int{{4}, {8}, {8}}, Volumes: []int64{4 * ext}}, nil)
	e.populate("v0", 1, 1)
	// Two syncs of its superblock and the mover's own get through, that of the round
	// does not.
	e.stores[path(1, 0)].Inject(faultstore.Fault{Ops: faultstore.Sync, Nth: 4, Err: syscall.EIO})
	e.drain(path(0, 0), tiering.DrainStart)
	eventually(t, "the target to fail", func() bool { return e.backing(path(1, 0)).Err != nil })
	eventually(t, "the source to look empty", func() bool { c := e.backing(path(0, 0)).Slots; return c.Used+c.Vacated == 0 })
	_, err := e.Pool.RemoveBacking(ctx, path(0, 0), false)
	wantErr(t, "remove", err, tiering.ErrBusy)
	if err != nil && !strings.Contains(err.Error(), "could not be committed") {
		t.Errorf("remove: %v", err)
	}
	e.Kill()
	e.Open()
	e.expect("v0", 0, ext, 1)
}
