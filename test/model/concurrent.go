package model

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tierd/pkg/backing"
	"tierd/tiering"
)

const block = 4096

// Checker runs overlapping changes from many goroutines on a few extents that
// move all the time, and checks every read against the order in which the changes
// were begun.
//
// Each 4 KiB block is a register. A write stores, in each of its blocks, the
// number it had in that order, and the number of the block. A read must bring
// the number of a change that is no older than the newest that was answered
// before the read began.
type Checker struct {
	t       testing.TB
	w       *World
	v       *tiering.Volume
	seed    uint64
	prof    Profile
	size    int64
	extents int64

	order sync.Mutex // held while a change gets its number and its place in line
	seq   uint64

	blocks []register
	stop   atomic.Bool
	bad    atomic.Int64

	Reads, Writes, Trims, Moves atomic.Int64
}

// register is what is known of one block.
type register struct {
	acked  atomic.Uint64 // highest number answered
	zeroed atomic.Uint64 // highest number of a trim or zeroing begun
	issued atomic.Uint64 // highest number begun
}

// Profile is what a Checker stresses.
type Profile struct {
	Extents  int64
	Slots    [][]int
	Changers int // goroutines that write, trim and zero
	Readers  int
	Movers   int           // goroutines that move random extents to random tiers
	Carousel bool          // one more that moves extents through one slot in turn
	Pause    time.Duration // of a changer after each change, on average
	Dawdle   time.Duration // how long a slow read may take before and after it looks, at most
}

var (
	// Crowded: many changes get in each other's and the mover's way.
	Crowded = Profile{
		Extents: 8, Slots: [][]int{{5}, {5}, {6}}, Changers: 6, Readers: 24, Movers: 4, Dawdle: 60 * time.Millisecond,
	}
	// Roaming: extents change places all the time, and come back to a slot while a
	// read of it is still under way.
	Roaming = Profile{
		Extents: 2, Slots: [][]int{{1}, {2}}, Changers: 1, Readers: 4, Carousel: true,
		Pause: time.Millisecond, Dawdle: 50 * time.Millisecond,
	}
)

// NewChecker prepares a run over the first volume of a new World.
func NewChecker(t testing.TB, prof Profile, seed uint64) *Checker {
	const extentSize = 64 << 10
	extents := prof.Extents
	w := NewWorld(t, Config{ExtentSize: extentSize, Slots: prof.Slots, Volumes: []int64{extentSize * extents}}, nil)
	// From here on reads dawdle, so that an extent has time to leave its slot, and
	// to come back to it, under them.
	w.Close()
	w.wrap = func(_ string, s backing.Store) backing.Store { return dawdler{s, prof.Dawdle} }
	w.Open()
	v, err := w.Pool.Volume("v0")
	if err != nil {
		t.Fatal(err)
	}
	return &Checker{t: t, w: w, v: v, seed: seed, prof: prof, size: extentSize, extents: extents, blocks: make([]register, extentSize*extents/block)}
}

// Run goes on for d, then compares the end state. It returns how many wrong reads
// there were.
func (c *Checker) Run(d time.Duration) int64 {
	var wg sync.WaitGroup
	for i := range c.prof.Changers {
		wg.Go(func() { c.changeLoop(rand.New(rand.NewPCG(c.seed, uint64(i)))) })
	}
	for i := range c.prof.Readers {
		wg.Go(func() { c.readLoop(rand.New(rand.NewPCG(c.seed, uint64(100+i)))) })
	}
	if c.prof.Carousel {
		wg.Go(c.carousel)
	}
	for i := range c.prof.Movers {
		wg.Go(func() { c.moveLoop(rand.New(rand.NewPCG(c.seed, uint64(200+i)))) })
	}
	wg.Go(func() {
		for !c.stop.Load() {
			if err := c.v.Flush(context.Background()); err != nil {
				c.fail("flush: %v", err)
			}
			c.w.Forget()
			time.Sleep(20 * time.Millisecond)
		}
	})
	deadline := time.Now().Add(d)
	for time.Now().Before(deadline) && c.bad.Load() == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	c.stop.Store(true)
	wg.Wait()
	for i := range c.blocks {
		c.read(i, make([]byte, block), true)
	}
	return c.bad.Load()
}

func (c *Checker) fail(format string, args ...any) {
	if n := c.bad.Add(1); n <= 3 {
		c.t.Logf("wrong: "+format, args...)
	}
}

// begin gives a change its number while it gets its place in line.
func (c *Checker) begin(first, n int, zero bool, begin func() *tiering.Mutation) (uint64, *tiering.Mutation) {
	c.order.Lock()
	defer c.order.Unlock()
	c.seq++
	for i := first; i < first+n; i++ {
		c.blocks[i].issued.Store(c.seq)
		if zero {
			c.blocks[i].zeroed.Store(c.seq)
		}
	}
	return c.seq, begin()
}

func (c *Checker) changeLoop(rnd *rand.Rand) {
	ctx := context.Background()
	perExtent := int(c.size / block)
	buf := make([]byte, 8*block)
	for !c.stop.Load() {
		first := rnd.IntN(len(c.blocks))
		n := min(1+rnd.IntN(8), len(c.blocks)-first)
		zero := false
		begin := func() *tiering.Mutation { return c.v.BeginWrite(int64(first)*block, int64(n)*block) }
		var payload []byte
		switch k := rnd.IntN(40); {
		case k == 0: // a whole extent trimmed
			zero = true
			first = first / perExtent * perExtent
			n = perExtent
			begin = func() *tiering.Mutation { return c.v.BeginTrim(int64(first)*block, int64(n)*block) }
		case k < 3:
			zero = true
			begin = func() *tiering.Mutation {
				return c.v.BeginWriteZeroes(int64(first)*block, int64(n)*block, k == 2, false)
			}
		default:
			payload = buf[:n*block]
		}
		seq, m := c.begin(first, n, zero, begin)
		for i := 0; i*block < len(payload); i++ {
			fill(payload[i*block:(i+1)*block], uint64(first+i), seq)
		}
		if rnd.IntN(3) == 0 {
			runtime.Gosched()
		}
		if err := m.Run(ctx, payload, false); err != nil {
			c.fail("change %d of blocks %d+%d: %v", seq, first, n, err)
			continue
		}
		for i := first; i < first+n; i++ {
			raise(&c.blocks[i].acked, seq)
		}
		if zero {
			c.Trims.Add(1)
		} else {
			c.Writes.Add(1)
		}
		if c.prof.Pause > 0 {
			time.Sleep(rand.N(2 * c.prof.Pause))
		}
	}
}

func raise(a *atomic.Uint64, to uint64) {
	for old := a.Load(); old < to && !a.CompareAndSwap(old, to); old = a.Load() {
	}
}

// fill makes the content of one block: number of the block and of the change, over
// and over, so that a torn block shows.
func fill(p []byte, blk, seq uint64) {
	for i := 0; i < len(p); i += 512 {
		binary.LittleEndian.PutUint64(p[i:], blk+1)
		binary.LittleEndian.PutUint64(p[i+8:], seq)
	}
}

func (c *Checker) readLoop(rnd *rand.Rand) {
	p := make([]byte, block)
	for !c.stop.Load() {
		c.read(rnd.IntN(len(c.blocks)), p, false)
		c.Reads.Add(1)
		if rnd.IntN(32) == 0 {
			runtime.Gosched() // there are few processors and many readers
		}
	}
}

// read reads one block and judges what it got; last is for the end, when only the
// last change counts.
func (c *Checker) read(i int, p []byte, last bool) {
	r := &c.blocks[i]
	low := r.acked.Load()
	off := int64(i) * block
	if !c.v.TryRead(p, off) {
		if err := c.v.ReadAt(context.Background(), p, off); err != nil {
			c.fail("read block %d: %v", i, err)
			return
		}
	}
	blk, seq := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
	high := r.issued.Load()
	zeroed := r.zeroed.Load()
	switch {
	case blk == 0 && seq == 0:
		if low != 0 && zeroed < low || last && zeroed != high {
			c.fail("block %d reads as zeroes: change %d was answered, last zeroed by %d", i, low, zeroed)
		}
	case blk != uint64(i)+1:
		c.fail("block %d reads as block %d", i, blk-1)
	case seq < low || seq > high || last && seq != high:
		c.fail("block %d reads as of change %d: change %d was answered, %d begun", i, seq, low, high)
	case !last:
		// Within a block, sectors of two changes that overlap in time may mix only if
		// neither was answered when the read began.
		for s := 512; s < block; s += 512 {
			if b, q := binary.LittleEndian.Uint64(p[s:]), binary.LittleEndian.Uint64(p[s+8:]); (b != blk && b != 0) || (q < low && (b != 0 || zeroed < low)) {
				c.fail("block %d sector %d reads as block %d of change %d: change %d was answered", i, s/512, b-1, q, low)
			}
		}
	}
}

func (c *Checker) moveLoop(rnd *rand.Rand) {
	for !c.stop.Load() {
		i := rnd.Int64N(c.extents)
		if c.w.Relocate("v0", i*c.size, rnd.IntN(len(c.prof.Slots))) {
			c.Moves.Add(1)
		}
		if rnd.IntN(16) == 0 {
			runtime.Gosched()
		}
	}
}

// carousel takes the extents through the only slot of the first tier, one after the
// other, so that each finds the same slot again after another has used it.
func (c *Checker) carousel() {
	for i := int64(0); !c.stop.Load(); i = (i + 1) % c.extents {
		for _, to := range []int{0, 1} {
			if c.w.Relocate("v0", i*c.size, to) {
				c.Moves.Add(1)
			}
		}
	}
}

// dawdler is a store some of whose reads take their time before and after they look.
type dawdler struct {
	backing.Store
	most time.Duration
}

// TryReadAt declines now and then, which leads to ReadAt.
func (d dawdler) TryReadAt(p []byte, off int64) bool {
	return rand.IntN(64) != 0 && d.Store.TryReadAt(p, off)
}

func (d dawdler) ReadAt(ctx context.Context, p []byte, off int64) error {
	if len(p) == block && rand.IntN(2) == 0 { // readers' blocks, not the mover's pieces
		time.Sleep(rand.N(d.most))
		defer func() { time.Sleep(rand.N(d.most)) }()
	}
	return d.Store.ReadAt(ctx, p, off)
}

// Report returns what was done.
func (c *Checker) Report() string {
	return fmt.Sprintf("%d reads, %d writes, %d trims and zeroes, %d moves, %d wrong reads; moves not made: %v",
		c.Reads.Load(), c.Writes.Load(), c.Trims.Load(), c.Moves.Load(), c.bad.Load(), c.w.Pool.Relocation().Skipped)
}
