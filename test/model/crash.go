package model

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"tierd/tiering"
	"tierd/tiering/extent"
)

// A CrashProfile is what a CrashRun does.
type CrashProfile struct {
	Epochs   int           // opens, each of which ends in a crash, or now and then in a clean stop
	Workers  int           // goroutines that change and flush volumes
	Readers  int           // goroutines that read and check
	Movers   int           // goroutines that move extents
	Ops      int           // of each worker in an epoch
	Instants int           // moments of an epoch whose crashes are judged
	Dawdle   time.Duration // how long a slow write to a backing takes, at most
	FUA      int           // of so many changes, one is FUA
	Hot      bool          // few extents: whoever moves one meets those who write it
	Rebuilds int           // of so many Instants, one is judged by a rebuild without the map
	Refits   int           // changes of the backings in an epoch
	Faults   bool          // a sync or a commit fails in the last epochs
	Patience time.Duration // how long an operation may take before it counts as hanging
}

var (
	// RandomCrashes: long epochs with much going on at once, cut at many moments.
	RandomCrashes = CrashProfile{
		Epochs: 4, Workers: 4, Readers: 1, Movers: 2, Ops: 60, FUA: 8, Instants: 8, Rebuilds: 3, Refits: 8, Dawdle: 300 * time.Microsecond,
		Patience: time.Minute,
	}
	// Moving: writes and moves of the same few extents, and the tables they leave.
	Moving = CrashProfile{
		Epochs: 3, Workers: 6, Movers: 2, Ops: 40, FUA: 2, Instants: 6, Rebuilds: 1, Refits: 2, Hot: true, Dawdle: 300 * time.Microsecond,
		Patience: time.Minute,
	}
	// Boots: many short epochs, so that what one boot leaves meets the next ones.
	Boots = CrashProfile{Epochs: 12, Workers: 1, Movers: 1, Ops: 12, FUA: 8, Instants: 2, Rebuilds: 3, Refits: 3, Patience: time.Minute}
	// Faulty: a backing's sync or a commit fails before the crashes.
	Faulty = CrashProfile{Epochs: 4, Workers: 3, Movers: 1, Ops: 25, FUA: 2, Instants: 6, Rebuilds: 3, Refits: 2, Faults: true, Patience: time.Minute}
)

// CrashCounts are what CrashRuns have done.
type CrashCounts struct {
	Ops, Epochs, Stops   int
	Kills, Cuts          int // states judged
	Reattached, Rebuilt  int
	Recoveries, OldMaps  int // of the kills and cuts, those during an open; maps of earlier that were tried
	Failures, Relocation int
	Added, Removed       int // backings
	Drains               int // ordered, paused, resumed or cancelled
}

func (c *CrashCounts) add(o CrashCounts) {
	c.Ops += o.Ops
	c.Epochs += o.Epochs
	c.Stops += o.Stops
	c.Kills += o.Kills
	c.Cuts += o.Cuts
	c.Reattached += o.Reattached
	c.Rebuilt += o.Rebuilt
	c.Recoveries += o.Recoveries
	c.OldMaps += o.OldMaps
	c.Failures += o.Failures
	c.Relocation += o.Relocation
	c.Added += o.Added
	c.Removed += o.Removed
	c.Drains += o.Drains
}

func (c CrashCounts) String() string {
	return fmt.Sprintf("%d operations and %d moves in %d opens; %d clean stops, %d states after a kill, %d after a power cut, %d after devices came back; "+
		"%d of these crashed while opening; %d rebuilt without the map, %d old maps tried, %d faults injected; "+
		"%d backings added and %d removed, %d orders to drain",
		c.Ops, c.Relocation, c.Epochs, c.Stops, c.Kills, c.Cuts, c.Reattached, c.Recoveries, c.Rebuilt, c.OldMaps, c.Failures,
		c.Added, c.Removed, c.Drains)
}

// A CrashRun is one random life of a pool over many opens. Of each epoch it takes some
// Instants, judges what a kill and what a power cut at each of them leaves, and goes
// on from one of these.
type CrashRun struct {
	t    testing.TB
	w    *World
	prof CrashProfile
	seed uint64
	rnd  *rand.Rand

	mu     sync.Mutex
	vols   []*crashVolume // all that may be there after a crash in this epoch
	fits   []fitting      // of this epoch, in their order
	seq    uint64
	uid    uint32
	ids    map[extent.VolumeID]uuid.UUID
	bad    error // first violation that a goroutine saw
	events int64 // of an epoch, about

	opened     uint64 // tick at which the epoch's open had returned
	healed     uint64 // tick at which its tables were healed; 0: not
	continuity uuid.UUID
	deaf       map[string]uint64 // backings whose sync failed, and when
	failed     bool              // a commit failed, or a sync
	syncFailed bool              // a sync, in what the run goes on from
	serving    bool              // faults may strike
	faultAt    map[string]int    // syncs of a path until one fails
	commitAt   int               // commits until one fails
	Counts     CrashCounts
}

// crashVolume is a volume with what may become of it.
type crashVolume struct {
	name     string
	led      *ledger
	v        *tiering.Volume
	created  span
	deleted  span
	sizes    []sizeChange
	deleting bool
}

type sizeChange struct {
	span
	bytes int64
}

// fitting is a change of a backing, and what it is after it.
type fitting struct {
	span
	path             string
	member, draining bool
}

const crashExtent = 64 << 10

// NewCrashRun makes a pool for a run.
func NewCrashRun(t testing.TB, prof CrashProfile, seed uint64) *CrashRun {
	t.Helper()
	r := &CrashRun{
		t: t, prof: prof, seed: seed, rnd: rand.New(rand.NewPCG(seed, 21)), ids: make(map[extent.VolumeID]uuid.UUID),
		deaf: make(map[string]uint64), faultAt: make(map[string]int), events: 400,
	}
	cfg := Config{ExtentSize: crashExtent, Slots: [][]int{{5}, {4, 6}, {14}}, Volumes: []int64{12 * crashExtent, 5*crashExtent + 4096}}
	if prof.Hot {
		cfg = Config{ExtentSize: crashExtent, Slots: [][]int{{3}, {2, 2}, {4}}, Volumes: []int64{2 * crashExtent, crashExtent}}
	}
	r.w = NewWorld(t, cfg, func(o *tiering.Options) {
		o.Fault = r.newFault()
		o.RoundInterval = 20 * time.Millisecond
	})
	r.w.Close()
	r.w.wrap = r.wrap
	for i, n := range cfg.Volumes {
		r.addVolume(fmt.Sprintf("v%d", i), n).created = span{0, 1}
	}
	return r
}

func (r *CrashRun) addVolume(name string, size int64) *crashVolume {
	r.uid++
	v := &crashVolume{name: name, led: newLedger(r.uid, size, 0), sizes: []sizeChange{{span{0, 1}, size}}}
	r.vols = append(r.vols, v)
	return v
}

func (r *CrashRun) tick() uint64 { return r.w.instants.tick() }

func (r *CrashRun) violation(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bad == nil {
		r.bad = fmt.Errorf(format, args...)
	}
}

func (r *CrashRun) stopped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bad != nil
}

func (r *CrashRun) fail(err error) {
	r.t.Helper()
	r.t.Fatalf("MODEL_SEED=%d: %v\n%v", r.seed, err, r.Counts)
}

// Run makes the epochs and checks each.
func (r *CrashRun) Run() {
	r.t.Helper()
	for e := range r.prof.Epochs {
		if r.prof.Faults && e == max(1, r.prof.Epochs-2) {
			r.armFault()
		}
		r.epoch(e)
		r.Counts.Epochs++
	}
	r.w.drop()
}

func (r *CrashRun) epoch(e int) {
	r.t.Helper()
	var at []int64
	for range r.prof.Instants {
		at = append(at, r.rnd.Int64N(r.events)+1)
	}
	if r.rnd.IntN(2) == 0 {
		at = append(at, r.rnd.Int64N(60)+1) // about as many as an open makes
	}
	slices.Sort(at)
	more := 0
	if r.prof.Hot {
		more = 2 * r.prof.Instants
	}
	r.w.armInstants(more, at...)
	begun := r.w.rec.Now()
	r.open()
	if r.rnd.IntN(4) != 0 {
		r.awaitHealed()
	}
	r.setServing(true)
	old := r.work()
	r.setServing(false)
	clean := r.rnd.IntN(8) == 0 && !r.anyFailure()
	if clean {
		r.w.Close()
		r.Counts.Stops++
	} else {
		r.w.Kill()
	}
	r.events = max(60, r.w.rec.Now()-begun)
	all := r.w.takeInstants()
	last := r.w.nowInstant()
	if r.bad != nil {
		r.fail(r.bad)
	}
	if clean {
		r.w.Check()
		for _, v := range r.vols {
			v.led.flushed(last.before, last.after)
		}
		last.before, last.after = r.tick(), r.tick()
	}
	for _, in := range all {
		end := ending(r.rnd.IntN(2))
		if r.prof.Hot && r.rnd.IntN(4) != 0 {
			end = cut
		}
		r.judge(in, end)
	}
	if old != nil && !clean && !r.anyFailure() {
		r.tryOldMap(old, last)
	}
	next := last
	if len(all) > 0 && r.rnd.IntN(2) == 0 {
		next = all[r.rnd.IntN(len(all))]
	}
	end := []ending{kill, cut, cut, reattach}[r.rnd.IntN(4)]
	if end == reattach && (clean || next.before < r.opened) {
		end = cut // an open that was cut short may have begun no log of its instances
	}
	r.resume(next, end, clean && next == last)
}

// open opens the pool; what is in it has been judged.
func (r *CrashRun) open() {
	r.t.Helper()
	r.w.Open()
	r.opened, r.healed = r.tick(), 0
	if !r.anyFailure() {
		for _, v := range r.vols {
			v.led.settled(r.opened)
		}
	}
	r.continuity = r.w.Pool.Continuity()
	r.fits = nil
	for _, b := range r.w.Pool.Backings() {
		r.fits = append(r.fits, fitting{span{0, 1}, b.Path, true, b.Draining})
	}
	for _, v := range r.vols {
		var err error
		if v.v, err = r.w.Pool.Volume(v.name); err != nil {
			r.fail(err)
		}
	}
}

func (r *CrashRun) awaitHealed() {
	r.t.Helper()
	for deadline := time.Now().Add(r.prof.Patience); r.w.Pool.Info().Healed < 1; time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			r.fail(errors.New("the slot tables are not healed"))
		}
		if r.anyFailure() {
			return // it may never be
		}
	}
	r.healed = r.tick()
}
