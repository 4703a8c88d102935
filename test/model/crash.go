package model

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"tierd/pkg/backing"
	"tierd/pkg/backing/crashstore"
	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
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
	Faults   bool          // a sync or a commit fails in the last epochs
	Patience time.Duration // how long an operation may take before it counts as hanging
}

var (
	// RandomCrashes: long epochs with much going on at once, cut at many moments.
	RandomCrashes = CrashProfile{
		Epochs: 4, Workers: 4, Readers: 1, Movers: 2, Ops: 60, Instants: 8, Dawdle: 300 * time.Microsecond, Patience: time.Minute,
	}
	// Boots: many short epochs, so that what one boot leaves meets the next ones.
	Boots = CrashProfile{Epochs: 12, Workers: 1, Movers: 1, Ops: 12, Instants: 2, Patience: time.Minute}
	// Faulty: a backing's sync or a commit fails before the crashes.
	Faulty = CrashProfile{Epochs: 4, Workers: 3, Movers: 1, Ops: 25, Instants: 6, Faults: true, Patience: time.Minute}
)

// CrashCounts are what CrashRuns have done.
type CrashCounts struct {
	Ops, Epochs, Stops   int
	Kills, Cuts          int // states judged
	Reattached, Rebuilt  int
	Recoveries, OldMaps  int // of the kills and cuts, those during an open; maps of earlier that were tried
	Failures, Relocation int
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
}

func (c CrashCounts) String() string {
	return fmt.Sprintf("%d operations and %d moves in %d opens; %d clean stops, %d states after a kill, %d after a power cut, %d after devices came back; "+
		"%d of these crashed while opening; %d rebuilt without the map, %d old maps tried, %d faults injected",
		c.Ops, c.Relocation, c.Epochs, c.Stops, c.Kills, c.Cuts, c.Reattached, c.Recoveries, c.Rebuilt, c.OldMaps, c.Failures)
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
	serving    bool              // faults may strike
	faultAt    map[string]int    // syncs of a path until one fails
	commitAt   int               // commits until one fails
	Counts     CrashCounts
}

// crashVolume is a volume with what may become of it.
type crashVolume struct {
	name            string
	led             *ledger
	v               *tiering.Volume
	created         span
	deleted         span
	sizes           []sizeChange
	deleting, fresh bool
}

type sizeChange struct {
	span
	bytes int64
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

// newFault returns the hook of one open: the commit that is to fail does, and any
// other after it shows that the metadata is still used.
func (r *CrashRun) newFault() tiering.MetadataFault {
	count, failed := 0, false
	after := r.rnd.IntN(2) == 0
	return func(p extentmap.FaultPoint, n uint64) error {
		if failed && p == extentmap.FaultBefore {
			r.violation("commit %d was tried after one had failed", n)
		}
		if (p == extentmap.FaultAfter) != after {
			return nil
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.serving || r.commitAt == 0 || failed {
			return nil
		}
		if count++; count < r.commitAt {
			return nil
		}
		failed, r.failed, r.commitAt = true, true, 0
		r.Counts.Failures++
		return syscall.EIO
	}
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

// armFault makes a sync or a commit of the next epoch fail, if there are as many.
func (r *CrashRun) armFault() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rnd.IntN(4) == 0 {
		r.commitAt = 1 + r.rnd.IntN(8)
		return
	}
	paths := make([]string, 0, len(r.w.paths))
	for p := range r.w.paths {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	r.faultAt[paths[r.rnd.IntN(len(paths))]] = 1 + r.rnd.IntN(12)
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
	r.w.armInstants(at...)
	begun := r.w.instants.n
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
	r.events = max(60, r.w.instants.n-begun)
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
		r.judge(in, ending(r.rnd.IntN(2)))
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

// setServing lets faults strike, or takes back those that have not.
func (r *CrashRun) setServing(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.serving = on; !on {
		r.commitAt = 0
		clear(r.faultAt)
	}
}

// anyFailure reports whether a fault has struck.
func (r *CrashRun) anyFailure() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed || len(r.deaf) > 0
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

// work lets all goroutines run. It returns an Instant before the last changes, if
// the epoch has one.
func (r *CrashRun) work() (old *Instant) {
	var movers, workers sync.WaitGroup
	stop := make(chan struct{})
	source := func(i int) *rand.Rand { return rand.New(rand.NewPCG(r.rnd.Uint64(), uint64(i))) }
	for i := range r.prof.Workers {
		rnd := source(i)
		workers.Go(func() {
			for range r.prof.Ops {
				if r.stopped() {
					return
				}
				r.change(rnd)
			}
		})
	}
	for i := range r.prof.Movers {
		rnd := source(100 + i)
		movers.Go(func() { r.moveLoop(rnd, stop) })
	}
	for i := range r.prof.Readers {
		rnd := source(200 + i)
		movers.Go(func() { r.readLoop(rnd, stop) })
	}
	rnd := source(300)
	workers.Go(func() {
		for range 3 {
			r.administer(rnd)
		}
	})
	workers.Wait()
	close(stop)
	movers.Wait()
	r.mu.Lock()
	r.Counts.Ops += r.prof.Workers * r.prof.Ops
	r.mu.Unlock()
	if r.rnd.IntN(3) == 0 && !r.anyFailure() {
		old = r.oldInstant()
		for range 6 {
			r.change(rnd)
			if v := r.pick(rnd); v != nil {
				ctx, cancel := r.context()
				r.flush(ctx, v)
				cancel()
			}
		}
	}
	return old
}

// oldInstant takes an Instant of the open pool. Nothing else goes on.
func (r *CrashRun) oldInstant() *Instant {
	s := r.w.instants
	in := &Instant{before: s.tick(), commit: s.commit.Load()}
	s.gate.Lock()
	defer s.gate.Unlock()
	in.commit = s.commit.Load()
	var err error
	if in.files, err = readFolder(r.w.dir); err != nil {
		r.fail(err)
	}
	in.after = s.tick()
	return in
}

// pick returns a volume that is not being deleted.
func (r *CrashRun) pick(rnd *rand.Rand) *crashVolume {
	r.mu.Lock()
	defer r.mu.Unlock()
	var live []*crashVolume
	for _, v := range r.vols {
		if !v.deleting && v.v != nil {
			live = append(live, v)
		}
	}
	if len(live) == 0 {
		return nil
	}
	return live[rnd.IntN(len(live))]
}

func (r *CrashRun) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), r.prof.Patience)
}

// permitted reports whether an operation may fail like that.
func (r *CrashRun) permitted(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return false
	case r.failed || len(r.deaf) > 0:
		return true
	}
	return errors.Is(err, tiering.ErrNoSpace) || errors.Is(err, tiering.ErrClosed) || errors.Is(err, tiering.ErrNotFound)
}

// change makes one random change of a random volume, or a flush.
func (r *CrashRun) change(rnd *rand.Rand) {
	v := r.pick(rnd)
	if v == nil {
		return
	}
	ctx, cancel := r.context()
	defer cancel()
	k := rnd.IntN(100)
	if k < 16 {
		r.flush(ctx, v)
		return
	}
	off, n := spanOf(rnd, v.v.Size())
	c := &change{fua: rnd.IntN(8) == 0, commit: r.w.instants.commit.Load()}
	var p []byte
	begin := func() *tiering.Mutation { return v.v.BeginWrite(off, n) }
	switch {
	case k < 26: // of whole extents
		c.zero = true
		off = off / crashExtent * crashExtent
		n = min(crashExtent*(1+rnd.Int64N(2)), v.v.Size()-off)
		begin = func() *tiering.Mutation { return v.v.BeginTrim(off, n) }
	case k < 34:
		c.zero = true
		noHole := rnd.IntN(4) == 0
		begin = func() *tiering.Mutation { return v.v.BeginWriteZeroes(off, n, noHole) }
	default:
		p = make([]byte, n)
	}
	var m *tiering.Mutation
	r.mu.Lock()
	r.seq++
	c.seq = r.seq
	r.mu.Unlock()
	// The order of changes of a volume is that in which they get in line.
	v.led.begin(off, n, c, func() { c.begun, m = r.tick(), begin() })
	if p != nil {
		v.led.fill(p, off, c.seq)
	}
	err := m.Run(ctx, p, c.fua)
	if err == nil {
		v.led.answered(c, r.tick())
	} else if !r.permitted(err) {
		r.violation("change %d of %s: %w", c.seq, v.name, err)
	}
}

func (r *CrashRun) flush(ctx context.Context, v *crashVolume) {
	begun := r.tick()
	err := v.v.Flush(ctx)
	if err == nil {
		v.led.flushed(begun, r.tick())
	} else if !r.permitted(err) {
		r.violation("flush of %s: %w", v.name, err)
	}
}

// spanOf returns a random range of whole sectors of size bytes.
func spanOf(rnd *rand.Rand, size int64) (off, n int64) {
	off = rnd.Int64N(size/sector) * sector
	switch rnd.IntN(6) {
	case 0: // some extents
		n = crashExtent * (1 + rnd.Int64N(2))
	case 1: // over an edge
		off = max(off/crashExtent*crashExtent-sector*(1+rnd.Int64N(16)), 0)
		n = sector * (2 + rnd.Int64N(40))
	case 2:
		n = sector
	default:
		n = sector * (1 + rnd.Int64N(40))
	}
	return off, min(n, size-off)
}

func (r *CrashRun) moveLoop(rnd *rand.Rand, stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		if v := r.pick(rnd); v != nil {
			if r.w.Relocate(v.name, rnd.Int64N(v.v.Size()), rnd.IntN(len(r.w.cfg.Slots))) {
				r.mu.Lock()
				r.Counts.Relocation++
				r.mu.Unlock()
			}
		}
		time.Sleep(rand.N(200 * time.Microsecond))
	}
}

func (r *CrashRun) readLoop(rnd *rand.Rand, stop chan struct{}) {
	for !r.stopped() {
		select {
		case <-stop:
			return
		default:
		}
		v := r.pick(rnd)
		if v == nil {
			continue
		}
		ctx, cancel := r.context()
		off, n := spanOf(rnd, v.v.Size())
		p := make([]byte, n)
		before := r.tick()
		var err error
		if rnd.IntN(2) == 0 || !v.v.TryRead(p, off) {
			err = v.v.ReadAt(ctx, p, off)
		}
		cancel()
		after := r.tick()
		if err == nil {
			err = v.led.check(p, off, rule{
				func(c *change) bool { return c.ended != 0 && c.ended < before }, func(c *change) bool { return c.begun < after },
			})
		} else if r.permitted(err) {
			err = nil
		}
		if err != nil {
			r.violation("read of %s: %w", v.name, err)
		}
		time.Sleep(rand.N(300 * time.Microsecond))
	}
}

// administer makes, grows or deletes a volume.
func (r *CrashRun) administer(rnd *rand.Rand) {
	ctx, cancel := r.context()
	defer cancel()
	time.Sleep(rand.N(2 * time.Millisecond))
	r.mu.Lock()
	live := 0
	for _, v := range r.vols {
		if !v.deleting {
			live++
		}
	}
	r.mu.Unlock()
	var err error
	switch k := rnd.IntN(4); {
	case k == 0 && live < 5:
		r.mu.Lock()
		size := 4096 * (1 + rnd.Int64N(48))
		v := r.addVolume(fmt.Sprintf("n%d", r.uid+1), size)
		r.mu.Unlock()
		v.created.begun = r.tick()
		if err = r.w.Pool.CreateVolume(ctx, tiering.VolumeSpec{Name: v.name, Size: size}, false); err == nil {
			v.created.ended = r.tick()
			var made *tiering.Volume
			if made, err = r.w.Pool.Volume(v.name); err == nil {
				r.mu.Lock()
				v.v = made
				r.mu.Unlock()
			}
		}
	case k == 1 && live > 2:
		v := r.pick(rnd)
		r.mu.Lock()
		v.deleting = true
		r.mu.Unlock()
		v.deleted.begun = r.tick()
		if err = r.w.Pool.DeleteVolume(ctx, v.name, true, false); err == nil {
			v.deleted.ended = r.tick()
		}
	case k == 2:
		v := r.pick(rnd)
		size := v.v.Size() + 4096*(1+rnd.Int64N(16))
		if size > 20*crashExtent {
			return
		}
		v.led.grow(size, 0)
		v.sizes = append(v.sizes, sizeChange{span{r.tick(), 0}, size})
		if err = r.w.Pool.GrowVolume(ctx, v.name, size, false); err == nil {
			v.sizes[len(v.sizes)-1].ended = r.tick()
		}
	}
	if err != nil && !r.permitted(err) {
		r.violation("administration: %w", err)
	}
}

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

// wrap is what stands between the pool and a store: it may be slow, write whole
// blocks alone, and fail to sync.
func (r *CrashRun) wrap(path string, s backing.Store) backing.Store {
	return &crashDisk{Store: s, r: r, path: path, blocks: path == "/t1/b0"}
}

type crashDisk struct {
	backing.Store
	r      *CrashRun
	path   string
	blocks bool // writes whole blocks, as direct I/O does
}

func (d *crashDisk) dawdle() {
	if d.r.prof.Dawdle > 0 && rand.IntN(4) == 0 {
		time.Sleep(rand.N(d.r.prof.Dawdle))
	}
}

// WriteAt implements backing.Store. A part of a block is written by reading the
// block, changing it, and writing it.
func (d *crashDisk) WriteAt(ctx context.Context, p []byte, off int64) error {
	d.dawdle()
	from, to := off/block*block, (off+int64(len(p))+block-1)/block*block
	if !d.blocks || to-from == int64(len(p)) || to > d.Size() {
		return d.Store.WriteAt(ctx, p, off)
	}
	whole := make([]byte, to-from)
	if err := d.Store.ReadAt(ctx, whole, from); err != nil {
		return err
	}
	d.dawdle()
	copy(whole[off-from:], p)
	return d.Store.WriteAt(ctx, whole, from)
}

// Sync implements backing.Store. Once it has failed, the kernel holds for clean what
// it could not write: later calls succeed, and make nothing durable.
func (d *crashDisk) Sync(ctx context.Context) error {
	d.dawdle()
	r := d.r
	r.mu.Lock()
	_, deaf := r.deaf[d.path]
	if n := r.faultAt[d.path]; n > 0 && !deaf && r.serving {
		if r.faultAt[d.path]--; n == 1 {
			r.deaf[d.path] = r.tick()
			r.Counts.Failures++
			r.mu.Unlock()
			return syscall.EIO
		}
	}
	r.mu.Unlock()
	if deaf {
		return nil
	}
	return d.Store.Sync(ctx)
}

// ruleAt says what a reader may rely on after w ended like that at an Instant.
func ruleAt(in *Instant, end ending) rule {
	must := func(c *change) bool { return c.ended != 0 && c.ended < in.before }
	if end.loses() {
		must = func(c *change) bool { return c.durable != 0 && c.durable < in.before }
	}
	return rule{must, func(c *change) bool { return c.begun < in.after }}
}

// failedBefore reports whether something had failed by an Instant.
func (r *CrashRun) failedBefore(in *Instant) bool {
	for _, at := range r.deaf {
		if at < in.after {
			return true
		}
	}
	return r.failed
}

// judge looks at what a crash at an Instant leaves: by opening it, by opening it,
// killing that and opening it again, by the offline check, and by a rebuild without
// the map.
func (r *CrashRun) judge(in *Instant, end ending) {
	r.t.Helper()
	what := fmt.Sprintf("%v at event %d", end, in.event)
	c := r.randomCut()
	broken := r.failedBefore(in)
	keepDeaf := r.deaf
	if end.loses() {
		r.deaf = make(map[string]uint64)
	}
	defer func() { r.deaf = keepDeaf }()
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
	if r.rnd.IntN(3) == 0 && r.healed != 0 && r.healed < in.before && !broken {
		r.judgeRebuilt(in, end, c)
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
	for _, v := range r.vols {
		_, err := r.compare(w.Pool, v, in, func(p []byte) error {
			lost = lost || v.led.lost(p, in.before)
			return v.led.check(p, 0, ruleAt(in, end))
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

// resume goes on from what a crash at an Instant leaves.
func (r *CrashRun) resume(in *Instant, end ending, clean bool) {
	r.t.Helper()
	if end == reattach {
		r.Counts.Reattached++
	}
	now := r.tick()
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
	var live []*crashVolume
	for _, v := range r.vols {
		there, err := r.compare(look.Pool, v, in, func(p []byte) error { return v.led.adopt(p, ruleAt(in, end), in.before, now) })
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
	mixed.files["pool.db"] = old.files["pool.db"]
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
