package tiering_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// lostPool is a pool whose metadata are about to be lost, with what its volumes read as.
type lostPool struct {
	*env
	now     map[string][]byte // of each volume, the fill of each extent
	flushed map[string][]byte
}

func newLostPool(t *testing.T) *lostPool {
	l := &lostPool{
		env: newEnv(t, model.Config{Slots: [][]int{{8}, {12}, {16}}}, nil),
		now: map[string][]byte{"v0": make([]byte, 8), "v1": make([]byte, 8)},
	}
	l.must(l.Pool.SetPolicy(ctx, "v1", "t2", false))
	for i := range int64(4) {
		l.put("v0", i, byte(0x10+i))
		l.put("v1", 2*i, byte(0x20+i))
	}
	l.flushAll()
	return l
}

func (l *lostPool) put(name string, i int64, fill byte) {
	l.t.Helper()
	l.write(name, i*ext, ext, fill)
	l.now[name][i] = fill
}

func (l *lostPool) drop(name string, i int64) {
	l.t.Helper()
	l.trim(name, i*ext, ext)
	l.now[name][i] = 0
}

func (l *lostPool) flushAll() {
	l.t.Helper()
	l.flushed = make(map[string][]byte)
	for name, b := range l.now {
		l.flush(name)
		l.flushed[name] = bytes.Clone(b)
	}
}

func (l *lostPool) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// judge reads every volume: each extent is as it was flushed, or as it was last.
func (l *lostPool) judge(when string) {
	l.t.Helper()
	var names []string
	p := make([]byte, ext)
	for _, v := range l.Pool.Volumes() {
		names = append(names, v.Name())
		now, flushed := l.now[v.Name()], l.flushed[v.Name()]
		if v.Size() != int64(len(now))*ext {
			l.t.Errorf("%s: %s has %d bytes, want %d extents", when, v.Name(), v.Size(), len(now))
			continue
		}
		for i := range now {
			l.must(v.ReadAt(ctx, p, int64(i)*ext))
			if n := bytes.Count(p, p[:1]); n != ext || p[0] != now[i] && p[0] != flushed[i] {
				l.t.Errorf("%s: extent %d of %s has %d bytes of %#x, want %#x, or %#x", when, i, v.Name(), n, p[0], flushed[i], now[i])
			}
			now[i] = p[0]
		}
	}
	slices.Sort(names)
	if want := slices.Sorted(maps.Keys(l.now)); !slices.Equal(names, want) {
		l.t.Errorf("%s: volumes %q, want %q", when, names, want)
	}
}

// entries returns what is in the slot tables of some backings.
func (l *lostPool) entries(paths ...string) map[string][]ondisk.SlotUpdate {
	l.t.Helper()
	all := make(map[string][]ondisk.SlotUpdate)
	for _, path := range paths {
		l.table(path, func(table *ondisk.SlotTable) {
			l.must(table.Scan(ctx, func(s extent.Slot, e ondisk.SlotEntry, _ bool) bool {
				all[path] = append(all[path], ondisk.SlotUpdate{Slot: s, Entry: e})
				return true
			}))
		})
	}
	return all
}

// bringBack makes owners' entries be there again that have been cleared since, as if that
// had not been durable.
func (l *lostPool) bringBack(all map[string][]ondisk.SlotUpdate) (n int) {
	l.t.Helper()
	for path, list := range all {
		l.table(path, func(table *ondisk.SlotTable) {
			for _, u := range list {
				now, valid, err := table.Read(ctx, u.Slot)
				l.must(err)
				if u.Entry.Kind == ondisk.Owner && valid && now.Kind == ondisk.Free {
					l.must(table.Write(ctx, []ondisk.SlotUpdate{u}))
					n++
				}
			}
		})
	}
	return n
}

func (l *lostPool) table(path string, do func(*ondisk.SlotTable)) {
	l.t.Helper()
	st, err := l.opt.OpenStore(ctx, tiering.BackingSpec{Path: path}, false, false)
	l.must(err)
	defer st.Close()
	sb := l.superblock(path)
	do(ondisk.NewSlotTable(st, sb.PoolID, sb.BackingUUID, sb.Backing, sb.Layout))
}

// reopen closes the pool and opens it again with edit.
func (l *lostPool) reopen(edit func(*tiering.Options)) {
	l.t.Helper()
	l.Close()
	l.mustOpen(edit)
	l.healed()
}

// failTarget fails the middle backing below a move onto it, which is taken back.
func (l *lostPool) failTarget() {
	l.t.Helper()
	l.stores[path(1, 0)].Inject(faultstore.Fault{Ops: faultstore.Sync, Err: syscall.EIO})
	_, _ = l.Pool.MoveExtent(ctx, "v0", 0, 1)
	eventually(l.t, "the backing to fail", func() bool {
		_ = l.volume("v0").Flush(ctx)
		return l.Pool.Backings()[1].State == tiering.ConditionFailed
	})
}

// TestRebuildStates loses the metadata of pools in states of all kinds, with a staged
// log that is valid, void or gone. What was flushed is there after a rebuild, after a
// restore with an early dump, after a kill behind it, and after rebuilds of that.
func TestRebuildStates(t *testing.T) {
	t.Parallel()
	all := []string{path(0, 0), path(1, 0), path(2, 0)}
	for name, c := range map[string]struct {
		do    func(l *lostPool) // leaves the pool closed
		other bool              // the map may be another one than the lost one was
		// Given to the rebuild; nil: the first three.
		backings []string
		refused  string // what it says unless accept is given
		accept   func(*tiering.RebuildOptions)
		finding  tiering.FindingKind // with text in it; "": none is needed
		text     string
		check    func(l *lostPool) // of the pool that was opened again
	}{
		"killed with changes under way": {other: true, do: func(l *lostPool) {
			l.put("v0", 0, 0x31)
			l.put("v0", 6, 0x32)
			l.drop("v1", 0)
			l.Relocate("v1", 2*ext, 1)
			l.put("v1", 2, 0x33)
			l.Kill()
		}},
		"moved, and the sources not cleared": {do: func(l *lostPool) {
			old := l.entries(all...)
			for to := 2; to > 0; to-- {
				for i := range int64(4) {
					if !l.Relocate("v0", i*ext, to) {
						l.t.Errorf("extent %d is not moved", i)
					}
				}
				l.flushAll()
			}
			l.put("v0", 1, 0x41)
			l.flushAll()
			l.Close()
			if n := l.bringBack(old); n != 4 {
				l.t.Errorf("%d entries are back, want 4", n)
			}
		}},
		"trimmed": {do: func(l *lostPool) {
			old := l.entries(all...)
			if !l.Relocate("v0", 0, 1) {
				l.t.Error("the extent is not moved")
			}
			l.flushAll()
			for i := range int64(3) {
				l.drop("v0", i)
			}
			l.flushAll()
			l.put("v0", 1, 0x51)
			l.flushAll()
			l.drop("v0", 1)
			l.flushAll()
			l.Kill()
			if l.bringBack(old) == 0 { // where the first extent was, older than its tombstone
				l.t.Error("no entry is back")
			}
		}},
		"a volume deleted": {other: true, do: func(l *lostPool) {
			delete(l.now, "v1")
			l.must(l.Pool.DeleteVolume(ctx, "v1", false, false))
			l.Kill()
		}},
		"a volume deleted that slots still name": {do: func(l *lostPool) {
			l.reopen(without()) // slots that are not cleaned are not used again
			old := l.entries(all...)
			delete(l.now, "v1")
			l.must(l.Pool.DeleteVolume(ctx, "v1", false, false))
			eventually(l.t, "the volume to be forgotten", func() bool { return len(l.Pool.VolumeInfos()) == 1 })
			l.must(l.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: "v1", Size: 5 * ext}, false))
			l.now["v1"] = make([]byte, 5)
			l.put("v1", 1, 0x61)
			l.flushAll()
			l.Kill()
			for path, list := range old {
				l.table(path, func(table *ondisk.SlotTable) {
					for _, u := range list {
						if now, _, err := table.Read(ctx, u.Slot); err == nil && u.Entry.Kind == ondisk.Owner && now.Kind != ondisk.Owner {
							l.must(table.Write(ctx, []ondisk.SlotUpdate{u}))
						}
					}
				})
			}
		}, finding: tiering.FoundNoVolume, text: "of volume 2, which was deleted"},
		"a volume grown": {do: func(l *lostPool) {
			l.must(l.Pool.GrowVolume(ctx, "v0", 12*ext, false))
			l.now["v0"] = append(l.now["v0"], 0, 0, 0, 0)
			l.put("v0", 11, 0x71)
			l.flushAll()
			l.Kill()
		}},
		"a tier in front": {
			do: func(l *lostPool) {
				l.add(tiering.AddOptions{Tier: "front", Before: "t0", Media: "ssd"}, 8)
				eventually(l.t, "clean slots", func() bool { return l.Pool.Tiers()[0].Slots.Clean > 0 })
				l.put("v0", 7, 0x81)
				l.Relocate("v0", 0, 0)
				l.flushAll()
				l.Kill()
			},
			backings: append(slices.Clone(all), newPath),
			check: func(l *lostPool) {
				if got := l.tierNames(); got != "front t0 t1 t2" {
					l.t.Errorf("tiers %s", got)
				}
				for _, v := range l.Pool.VolumeInfos() {
					if v.Name == "v1" && v.Policy != "t2" {
						l.t.Errorf("policy %s of v1", v.Policy)
					}
				}
			},
		},
		"a tier removed": {
			do: func(l *lostPool) {
				l.empty(path(0, 0))
				l.must(l.Pool.RemoveTier(ctx, "t0", false))
				l.put("v0", 7, 0x82)
				l.flushAll()
				l.Kill()
			},
			backings: []string{path(1, 0), path(2, 0)},
			check: func(l *lostPool) {
				if got := l.tierNames(); got != "t1 t2" {
					l.t.Errorf("tiers %s", got)
				}
			},
		},
		"a backing removed and given": {do: func(l *lostPool) {
			l.empty(path(1, 0))
			l.put("v0", 7, 0x83)
			l.flushAll()
			l.Kill()
		}, finding: tiering.FoundForeign, text: "no superblock"},
		"a backing removed, and an old copy of it given": {do: func(l *lostPool) {
			st, err := l.opt.OpenStore(ctx, tiering.BackingSpec{Path: path(1, 0)}, false, false)
			l.must(err)
			defer st.Close()
			l.Relocate("v0", 0, 1)
			l.flushAll()
			old := make([]byte, st.Size())
			l.must(st.ReadAt(ctx, old, 0))
			l.empty(path(1, 0))
			l.put("v0", 0, 0x84)
			l.flushAll()
			l.Kill()
			l.must(st.WriteAt(ctx, old, 0))
		}, finding: tiering.FoundForeign, text: "backing 2 is not in the pool any more"},
		"a backing forgotten, and given": {
			do: func(l *lostPool) { l.forget() }, finding: tiering.FoundForeign, text: "backing 2 was forgotten",
		},
		"a backing forgotten, and not there": {
			do: func(l *lostPool) { l.forget() }, backings: []string{path(0, 0), path(2, 0)},
		},
		"a backing failed": {
			other: true,
			do: func(l *lostPool) {
				l.failTarget()
				l.Kill()
			},
			refused: "has failed", accept: func(o *tiering.RebuildOptions) { o.AcceptFailed = []string{"2"} },
			finding: tiering.FoundFailed, text: "moving there",
			check: func(l *lostPool) {
				if b := l.Pool.Backings()[1]; b.State != tiering.ConditionFailed {
					l.t.Errorf("the backing is %s, want failed", b.State)
				}
			},
		},
		"a backing failed, given up": {
			other: true,
			do: func(l *lostPool) {
				l.failTarget()
				l.Kill()
			},
			backings: []string{path(0, 0), path(2, 0)},
			refused:  "is missing", accept: func(o *tiering.RebuildOptions) { o.AcceptMissing = []string{"2"} },
			finding: tiering.FoundMissing, text: "is given up",
		},
		"a backing away that moves had gone to": {
			other: true,
			do: func(l *lostPool) {
				l.failCommits(extentmap.FaultBefore)
				l.Relocate("v0", 0, 1)
				l.fault.Store(nil)
				l.put("v0", 0, 0x91)
				l.Kill()
				l.mustOpen(without(path(1, 0)))
				l.Kill()
				if lost := l.state().Pool.LostWrites; len(lost) != 1 {
					l.t.Errorf("lost writes %+v, want one", lost)
				}
			},
			finding: tiering.FoundStale, text: "moving there",
		},
	} {
		for log, by := range map[string]string{"valid": "rebuild", "void": "restore", "gone": "rebuild"} {
			t.Run(fmt.Sprintf("%s/%s/log %s", name, by, log), func(t *testing.T) {
				t.Parallel()
				l := newLostPool(t)
				l.Close()
				var dump bytes.Buffer
				_, err := tiering.Dump(ctx, l.opt, tiering.DumpOptions{}, &dump)
				l.must(err)
				l.Open()
				l.healed()
				c.do(l)

				_, before := readMap(t, l.opt.Metadata)
				l.must(os.Remove(l.opt.Metadata))
				switch logPath := l.opt.Metadata + ".log"; log {
				case "void":
					l.must(os.WriteFile(logPath, bytes.Repeat([]byte{0xa5}, 64<<10), 0o600))
				case "gone":
					l.must(os.Remove(logPath))
				}
				o := l.rebuildOptions()
				o.Metadata = l.opt.Metadata
				o.Backings = nil
				given := c.backings
				if given == nil {
					given = all
				}
				for _, p := range given {
					o.Backings = append(o.Backings, tiering.BackingSpec{Path: p})
				}
				rebuild := func(o tiering.RebuildOptions, by string) (tiering.RebuildReport, error) {
					if by == "rebuild" {
						return tiering.Rebuild(ctx, o)
					}
					r, err := tiering.Restore(ctx, o, bytes.NewReader(dump.Bytes()))
					return r.RebuildReport, err
				}
				if c.refused != "" {
					_, err := rebuild(o, by)
					wantErr(t, by, err, tiering.ErrRefused)
					if err == nil || !strings.Contains(err.Error(), c.refused) {
						t.Errorf("%s: %v does not say %q", by, err, c.refused)
					}
					c.accept(&o)
				}
				// One that was killed left half of a file.
				l.must(os.WriteFile(o.Metadata+".new", []byte("half"), 0o600))
				r, err := rebuild(o, by)
				l.must(err)
				if c.finding != "" && finding(r.Findings, c.finding, c.text) == nil {
					t.Errorf("findings %+v, want %s with %q", r.Findings, c.finding, c.text)
				}
				if c.finding == "" && r.Damaged() {
					t.Errorf("findings %+v, want no damage", r.Findings)
				}
				_, first := readMap(t, o.Metadata)
				if !c.other && !maps.Equal(first, before) {
					t.Errorf("the map is %v\nwant %v", first, before)
				}
				o.Replace = true
				_, err = rebuild(o, by) // twice in a row
				l.must(err)
				if _, again := readMap(t, o.Metadata); !maps.Equal(again, first) {
					t.Errorf("the second rebuild has the map %v, the first %v", again, first)
				}

				open := func() {
					t.Helper()
					l.mustOpen(func(o *tiering.Options) { o.Backings = nil })
				}
				open()
				l.judge("opened")
				l.Kill()
				_, err = rebuild(o, by)
				l.must(err)
				open()
				l.judge("rebuilt before it was healed")
				if c.check != nil {
					c.check(l)
				}
				l.healed()
				l.judge("healed")
				if slices.ContainsFunc(l.Pool.Backings(), func(b tiering.BackingInfo) bool { return b.State == tiering.ConditionFailed }) {
					l.Kill() // its volumes do not flush
					return
				}
				l.put("v0", 4, 0xe1)
				l.put("v0", 5, 0xe2)
				l.drop("v0", 3)
				for i := range int64(3) {
					l.Relocate("v0", i*ext, int(i)%2)
				}
				l.flushAll()
				l.put("v0", 5, 0xe3)
				l.drop("v0", 2)
				l.Kill()
				_, err = rebuild(o, by)
				l.must(err)
				open()
				l.judge("killed and rebuilt")
				l.flushAll()
				l.settle()
				l.judge("settled")
				l.Close()
				_, want := readMap(t, o.Metadata)
				if _, err := rebuild(o, "rebuild"); err != nil {
					t.Error(err)
				} else if _, got := readMap(t, o.Metadata); !maps.Equal(got, want) {
					t.Errorf("after a clean stop the map is %v\nrebuilt %v", want, got)
				}
			})
		}
	}
}

// empty drains a backing and takes it out of the pool.
func (l *lostPool) empty(path string) {
	l.t.Helper()
	l.must(l.Pool.Drain(ctx, path, tiering.DrainStart, nil, false))
	eventually(l.t, "the backing to be empty", func() bool {
		for _, b := range l.Pool.Backings() {
			if b.Path == path {
				return b.Drain.State == tiering.DrainEmpty
			}
		}
		return false
	})
	l.remove(path)
}

// forget gives up the middle backing, with an extent on it.
func (l *lostPool) forget() {
	l.t.Helper()
	if !l.Relocate("v0", 0, 1) {
		l.t.Error("the extent is not moved")
	}
	l.flushAll()
	l.reopen(without(path(1, 0)))
	_, err := l.Pool.ForgetBacking(ctx, path(1, 0), true, false)
	l.must(err)
	for i := range l.now["v0"] {
		if b := int64(i) * ext; l.read("v0", b, block) == nil {
			p := make([]byte, 1)
			l.must(l.volume("v0").ReadAt(ctx, p, b))
			l.now["v0"][i] = p[0]
		}
	}
	if l.now["v0"][0] != 0 {
		l.t.Error("the extent was not on the backing")
	}
	l.put("v0", 7, 0x84)
	l.flushAll()
	l.Kill()
}
