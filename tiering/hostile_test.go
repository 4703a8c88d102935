package tiering_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
)

var (
	hostileTrials = flag.Int("hostile", 12, "damaged pools of each kind that are looked at")
	hostileSeed   = flag.Uint64("hostile-seed", 0, "of the first damaged pool; 0: another one each time")
)

// A damage is one change of a file of the pool that its owner did not make.
type damage struct {
	file string
	at   int64
	data []byte               // written there
	cut  bool                 // or the file is cut there
	move *extentmap.MapChange // or the map has an extent elsewhere, and nothing else is wrong with it
	text string
}

// region is where damage falls: what a pool consists of besides the data of slots.
type region struct {
	file string
	from int64
	n    int64
	size int64 // of the file
}

func (f *diskPool) regions() []region {
	var list []region
	for _, name := range []string{"pool.db", "pool.db", "pool.db", "pool.db.log"} {
		n := f.saved[f.path(name)].size
		list = append(list, region{name, 0, n, n})
	}
	for _, name := range []string{"a.img", "b.img", "c.img"} {
		for _, r := range [][2]int64{
			{0, 8 << 10}, {stampAt, 2 * block}, {volumeTableAt, block}, {volumeTableAt + volumeTableBytes, block},
			{slotTableAt, block}, {diskPoolBacking - superblockBytes, block},
		} {
			list = append(list, region{name, r[0], r[1], diskPoolBacking})
		}
	}
	return list
}

// makeDamage makes up damage. old is what the files were some time before.
func (f *diskPool) makeDamage(rng *rand.Rand, old map[string]*savedFile) []damage {
	var list []damage
	regions := f.regions()
	for range 1 + rng.IntN(3) {
		if rng.IntN(6) == 0 {
			m := extentmap.MapChange{Key: extent.Key{Volume: extent.VolumeID(1 + rng.IntN(2)), Index: extent.Index(rng.IntN(18))}}
			if rng.IntN(6) > 0 {
				m.To = extent.Location{Backing: extent.BackingID(1 + rng.IntN(4)), Slot: extent.Slot(rng.IntN(26))}
			}
			list = append(list, damage{file: "pool.db", move: &m, text: fmt.Sprintf("%v put to %v", m.Key, m.To)})
			continue
		}
		r := regions[rng.IntN(len(regions))]
		at := r.from + rng.Int64N(r.n)
		d := damage{file: r.file, at: at}
		now := f.saved[f.path(r.file)]
		switch kind := rng.IntN(8); kind {
		case 0, 1: // a few bits
			d.text = "bits"
			d.data = now.read(at, 1+rng.IntN(8))
			for i := range d.data {
				d.data[i] ^= 1 << rng.IntN(8)
			}
		case 2: // sectors of zeroes
			d.text = "zeroes"
			d.at = at / 512 * 512
			d.data = make([]byte, 512<<rng.IntN(5))
		case 3: // sectors of noise
			d.text = "noise"
			d.at = at / 512 * 512
			d.data = make([]byte, 512<<rng.IntN(4))
			for i := range d.data {
				d.data[i] = byte(rng.Uint32())
			}
		case 4, 5: // a write that was lost, or half of one
			d.text = "old"
			d.at = at / block * block
			n := block
			if kind == 5 {
				n = 512 * (1 + rng.IntN(7))
			}
			d.data = old[f.path(r.file)].read(d.at, n)
		case 6: // a block in another one's place
			d.text = "misplaced"
			d.at = at / block * block
			d.data = now.read(r.from+rng.Int64N(r.n)/block*block, block)
		case 7:
			if rng.IntN(4) > 0 {
				continue
			}
			d.text, d.cut = "cut", true
			if r.file != "pool.db" && r.file != "pool.db.log" {
				d.at = r.size - rng.Int64N(1<<20)
			}
		}
		if !d.cut {
			d.data = d.data[:min(int64(len(d.data)), r.size-d.at)]
		}
		list = append(list, d)
	}
	return list
}

func (s *savedFile) read(at int64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		o := at + int64(i)
		if p := s.blocks[o/block*block]; p != nil && o%block < int64(len(p)) {
			b[i] = p[o%block]
		}
	}
	return b
}

func (f *diskPool) apply(list []damage) {
	f.t.Helper()
	for _, d := range list {
		if d.move != nil {
			f.commitIfAny(&extentmap.Changes{Map: []extentmap.MapChange{*d.move}})
			continue
		}
		w, err := os.OpenFile(f.path(d.file), os.O_RDWR, 0)
		if err != nil {
			f.t.Fatal(err)
		}
		if d.cut {
			err = w.Truncate(d.at)
		} else {
			_, err = w.WriteAt(d.data, d.at)
		}
		w.Close()
		if err != nil {
			f.t.Fatal(err)
		}
	}
}

// commitIfAny changes the metadata, if there is something left to be changed.
func (f *diskPool) commitIfAny(c *extentmap.Changes) {
	db, err := extentmap.Open(f.opt.Metadata, extentmap.Options{})
	if err == nil {
		_, _ = db.Commit(ctx, c)
		_ = db.Close()
	}
}

func describe(list []damage) string {
	var b strings.Builder
	for _, d := range list {
		fmt.Fprintf(&b, "%s at %d of %s (%d bytes); ", d.text, d.at, d.file, len(d.data))
	}
	return b.String()
}

// named reports whether one of the texts tells of the extent, "home 3".
func named(lost string, where, text []string) bool {
	name, no, _ := strings.Cut(lost, " ")
	for i := range text {
		if strings.Contains(where[i]+text[i], "volume "+name) && (no == "" || strings.Contains(text[i]+" ", "xtent "+no+" ")) {
			return true
		}
	}
	return false
}

// hostile is what one damaged pool came to.
type hostile struct {
	f        *diskPool
	clean    bool
	unnoted  []string // extents that the kill left in the log alone
	outcomes map[string]int
}

// open opens the pool, looks whether everything is there, and stops it. It returns
// which extents are wrong, and whether the pool was opened.
func (h *hostile) open() (wrong []string, opened bool) {
	h.f.logs.reset()
	p, err := tiering.Open(ctx, h.f.opt)
	if err != nil {
		return nil, false
	}
	wrong = h.f.wrong(p)
	p.Kill()
	if !h.clean && strings.Contains(h.f.logs.String(), "staged log cannot be used") {
		// That is said, and what was not flushed may be missing then.
		wrong = slices.DeleteFunc(wrong, func(w string) bool { return slices.Contains(h.unnoted, w) })
	}
	return wrong, true
}

func (l *logBuffer) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

// trial damages the pool and lets everything loose on it: nothing may crash, and
// no extent may be lost without a word.
func (h *hostile) trial(seed uint64, old map[string]*savedFile) {
	f := h.f
	rng := rand.New(rand.NewPCG(seed, 1))
	list := f.makeDamage(rng, old)
	fail := func(format string, args ...any) {
		f.t.Helper()
		f.t.Errorf("seed %d, %s: %s", seed, describe(list), fmt.Sprintf(format, args...))
	}
	f.restore()
	f.apply(list)

	// 1. Check, and repair in a dry run.
	before, checkErr := tiering.Check(ctx, f.opt)
	var dry [2]tiering.RepairReport // without and with the loss accepted
	for i := range dry {
		var err error
		if dry[i], err = tiering.Repair(ctx, f.opt, tiering.RepairOptions{DryRun: true, AcceptLoss: i == 1}); err == nil && checkErr != nil {
			fail("a dry run of repair goes well where check says %v", checkErr)
		}
	}

	// 2. A start without a repair is refused, or everything is there.
	if wrong, ok := h.open(); !ok {
		h.outcomes["refused"]++
	} else if len(wrong) > 0 && !slices.ContainsFunc(list, func(d damage) bool { return d.move != nil }) {
		fail("open serves, and %q are wrong; check found %+v", wrong, before.Findings)
	} else {
		h.outcomes["opened"]++
	}

	// 3. Repair, and start.
	for i := range dry {
		f.restore()
		f.apply(list)
		h.repair(fail, dry[i], tiering.RepairOptions{AcceptLoss: i == 1}, before)
		if slices.Equal(dry[0].Done, dry[1].Done) {
			break // no loss was to be accepted
		}
	}

	// 4. Without the metadata.
	f.restore()
	f.apply(list)
	rb, err := tiering.Rebuild(ctx, tiering.RebuildOptions{Metadata: f.opt.Metadata, Backings: f.opt.Backings, Replace: true})
	if err != nil {
		h.outcomes["not rebuilt"]++
		return
	}
	h.outcomes["rebuilt"]++
	wrong, ok := h.open()
	wrong = slices.DeleteFunc(wrong, func(w string) bool { return slices.Contains(h.unnoted, w) })
	switch {
	case !ok:
		_, err := tiering.Open(ctx, f.opt)
		h.outcomes["rebuilt, refused"]++
		if !rb.Damaged() {
			fail("open refuses what was rebuilt: %v", err)
		}
	case len(wrong) > 0 && !rb.Damaged() && !staleTables(list):
		fail("after a rebuild %q are wrong, and it says %+v", wrong, rb.Findings)
	}
}

// repair repairs the damaged pool, as the dry run said, and starts it if nothing is
// left. What is wrong then has been said.
func (h *hostile) repair(fail func(string, ...any), dry tiering.RepairReport, opts tiering.RepairOptions, before tiering.CheckReport) {
	f := h.f
	r, err := tiering.Repair(ctx, f.opt, opts)
	if err != nil {
		return
	}
	if !slices.Equal(dry.Done, r.Done) || !slices.Equal(kinds(dry.Left, tiering.Damage), kinds(r.Left, tiering.Damage)) {
		fail("a dry run says that it does %+v and leaves %+v, and the real one does %+v and leaves %+v", dry.Done, dry.Left, r.Done, r.Left)
	}
	if len(r.Done) > 0 {
		h.outcomes[fmt.Sprintf("repaired, loss accepted %v", opts.AcceptLoss)]++
		again, err := tiering.Repair(ctx, f.opt, opts)
		if err != nil || len(again.Done) > 0 {
			fail("the second repair: %v, %+v; the first: %+v", err, again.Done, r.Done)
		}
	}
	if r.Damaged() {
		return
	}
	// A damaged root is left to the next start, whose first commit writes it.
	c, err := tiering.Check(ctx, f.opt)
	c.Findings = slices.DeleteFunc(c.Findings, func(x tiering.Finding) bool { return x.Kind == tiering.FoundMetadataRoot })
	if err != nil || len(kinds(c.Findings, tiering.Damage)) > 0 {
		fail("after a repair that left nothing, check says %v, %+v", err, c.Findings)
	}
	wrong, ok := h.open()
	if !ok {
		_, err := tiering.Open(ctx, f.opt)
		fail("after a repair that left nothing, open says %v; repair did %+v", err, r.Done)
	}
	var where, text []string
	for _, x := range before.Findings {
		where, text = append(where, x.Where), append(text, x.Text)
	}
	for _, a := range r.Done {
		where, text = append(where, a.Where), append(text, a.Text)
	}
	for _, w := range wrong {
		if !named(w, where, text) {
			fail("after repair, %s is wrong, and nobody said so: found %+v, done %+v", w, before.Findings, r.Done)
		}
	}
}

// staleTables reports whether a slot table got an earlier content that is valid in
// itself, so that no rebuild could tell.
func staleTables(list []damage) bool {
	return slices.ContainsFunc(list, func(d damage) bool {
		return d.file != "pool.db" && (d.text == "old" || d.text == "zeroes" || d.text == "misplaced") &&
			d.at < slotTableAt+block && d.at+int64(len(d.data)) > slotTableAt
	})
}

func testHostile(t *testing.T, clean bool) {
	f := newDiskPool(t, clean)
	h := &hostile{f: f, clean: clean, outcomes: make(map[string]int)}
	if !clean {
		h.unnoted = []string{"mail 5", "home 15"}
	}
	old := f.earlier
	seed := *hostileSeed
	if seed == 0 {
		seed = rand.Uint64() >> 1
	}
	t.Logf("-hostile-seed %d", seed)
	for i := range *hostileTrials {
		h.trial(seed+uint64(i), old)
	}
	for _, k := range slices.Sorted(maps.Keys(h.outcomes)) {
		t.Logf("%s: %d", k, h.outcomes[k])
	}
}

func TestHostileCleanPool(t *testing.T) { testHostile(t, true) }

func TestHostileKilledPool(t *testing.T) { testHostile(t, false) }
