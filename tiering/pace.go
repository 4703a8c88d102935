package tiering

import (
	"context"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"tierd/pkg/backing"
)

const (
	// maxSyncTime is about how long the sync of a backing may take: writes wait
	// once what is unsynced would take longer.
	maxSyncTime = time.Second
	// backgroundShare is how much movers and the cleaner together leave unsynced
	// on a backing, bytes.
	backgroundShare = 8 << 20

	paceShift = 12 // unsynced data is counted in blocks of 4 KiB
	paceBlock = 1 << paceShift
)

// pace bounds what is written to a backing and not synced yet, so that a flush
// does not have to wait for seconds of somebody's buffered writes. Without it,
// the page cache takes random writes a hundred times as fast as a disk, and the
// flush behind them pays for all of it.
//
// The bound is in time. What is unsynced is counted in blocks and in runs of
// neighbouring blocks, as the disk will see it: a block that is written again
// before it was written back costs nothing more, and writes that fill a gap
// between two runs save a seek. Both rates, blocks and runs a second, start low
// and follow what syncs are seen to take.
//
//	level        what happens
//	1/4 s fresh  write-back starts, without waiting for it
//	1/2 s        a sync starts in the background
//	1 s          writers wait, first come first served, until a sync has ended
//
// A write is fresh until write-back was asked for or a sync has begun. While a
// sync runs, what it covers still counts: the next one cannot begin before.
type pace struct {
	perBlock, perRun atomic.Uint64 // float64 bits: seconds

	total   packedLoad // unsynced, and announced by writers under way
	fresh   packedLoad // of it, written since the map was cleared
	since   atomic.Int64
	waiting atomic.Int64 // writers in line
	active  atomic.Bool  // a sync runs
	dirty   dirtyMap     // the fresh blocks

	// startSync starts a sync; startWriteback starts write-back, nil if the
	// backing has no page cache. Neither waits, and pace.mu is not held.
	startSync, startWriteback func()

	mu        sync.Mutex
	bandwidth float64 // bytes a second
	seeks     float64 // runs a second
	aged      load    // unsynced, not fresh, not covered by the sync under way
	syncing   load    // covered by the sync under way
	oldest    int64   // when the first write that it covers was made, nanoseconds
	began     int64   // when it began
	stopped   bool    // the backing failed: nobody waits any more
	line      []*turn // writers that wait

	// The share of movers and the cleaner, bytes: announced, written, and covered
	// by the sync under way.
	bgReserved, bgFresh, bgSyncing int64
	bgLine                         []*turn
}

// A turn is the place of somebody who waits.
type turn struct {
	need  load
	bytes int64 // in the background's line
	ready chan struct{}
}

// load is an amount of unsynced data.
type load struct{ blocks, runs int64 }

func (l load) plus(o load) load  { return load{l.blocks + o.blocks, l.runs + o.runs} }
func (l load) minus(o load) load { return load{l.blocks - o.blocks, l.runs - o.runs} }
func (l load) bytes() int64      { return max(l.blocks, 0) << paceShift }

// loadOf is what n bytes at an unknown place count for.
func loadOf(n int64) load { return load{(n + paceBlock - 1) >> paceShift, 1} }

// packedLoad is a load in one word: blocks in the upper half, runs, which may be
// below zero for a moment, in the lower.
type packedLoad struct{ v atomic.Int64 }

func (p *packedLoad) add(l load) load { return unpack(p.v.Add(l.blocks<<32 + l.runs)) }
func (p *packedLoad) sub(l load) load { return p.add(load{-l.blocks, -l.runs}) }
func (p *packedLoad) get() load       { return unpack(p.v.Load()) }
func (p *packedLoad) take() load      { return unpack(p.v.Swap(0)) }

func unpack(v int64) load {
	runs := int64(int32(v))
	return load{(v - runs) >> 32, runs}
}

func (p *pace) init(m backing.Media) {
	// Low on purpose: a disk that is faster says so within a few syncs, one that is
	// slower would hold up a flush for as long as the mistake is large.
	p.bandwidth, p.seeks = 200e6, 2000
	if m == backing.HDD {
		p.bandwidth, p.seeks = 100e6, 150
	}
	p.publish()
}

func (p *pace) publish() {
	p.perBlock.Store(math.Float64bits(paceBlock / p.bandwidth))
	p.perRun.Store(math.Float64bits(1 / p.seeks))
}

// cost is how long the sync of l should take, seconds.
func (p *pace) cost(l load) float64 {
	return float64(l.blocks)*math.Float64frombits(p.perBlock.Load()) + float64(l.runs)*math.Float64frombits(p.perRun.Load())
}

// enter returns once n bytes may be written at off; left must follow. It
// reports whether the caller had to wait.
func (p *pace) enter(ctx context.Context, off, n int64) (waited bool, err error) {
	need := loadOf(n)
	level := p.total.add(need).minus(need)
	if p.waiting.Load() == 0 && p.cost(level) < maxSyncTime.Seconds() {
		return false, nil
	}
	p.total.sub(need)
	return p.wait(ctx, off, n, need)
}

func (p *pace) wait(ctx context.Context, off, n int64, need load) (waited bool, err error) {
	p.mu.Lock()
	if p.stopped || len(p.line) == 0 && p.hasRoom() || p.dirty.covers(off, n) {
		p.total.add(need)
		p.mu.Unlock()
		return false, nil
	}
	t := &turn{need: need, ready: make(chan struct{})}
	p.line = append(p.line, t)
	p.waiting.Add(1)
	p.unlock()
	select {
	case <-t.ready:
		return true, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	if remove(&p.line, t) {
		p.waiting.Add(-1)
	} else { // its turn came at the same moment
		p.total.sub(need)
	}
	p.unlock()
	return true, ctx.Err()
}

// left notes that n bytes at off, announced by enter, have been written at now.
func (p *pace) left(off, n int64, now time.Time) {
	need := loadOf(n)
	l := p.dirty.add(off, n)
	if d := l.minus(need); d != (load{}) {
		p.total.add(d)
		if p.waiting.Load() > 0 {
			p.mu.Lock()
			p.unlock()
		}
	}
	p.freshen(l, now)
}

// abandon takes back what enter announced: nothing is written.
func (p *pace) abandon(n int64) {
	p.total.sub(loadOf(n))
	p.mu.Lock()
	p.unlock()
}

// wrote notes n bytes written at off that nobody announced.
func (p *pace) wrote(off, n int64, now time.Time) {
	l := p.dirty.add(off, n)
	p.total.add(l)
	p.freshen(l, now)
}

func (p *pace) freshen(l load, now time.Time) {
	if l == (load{}) {
		return
	}
	if p.since.Load() == 0 {
		p.since.CompareAndSwap(0, now.UnixNano())
	}
	f := p.fresh.add(l)
	if p.cost(f) < maxSyncTime.Seconds()/4 && f.blocks < mapBits/4 {
		return
	}
	p.mu.Lock()
	f = p.fresh.get() // somebody else may have been here
	full := p.cost(f) >= maxSyncTime.Seconds()/4 || f.blocks >= mapBits/4
	if full {
		p.age()
	}
	writeback := full && p.startWriteback != nil && !p.active.Load()
	p.unlock()
	if writeback {
		p.startWriteback()
	}
}

// age makes what is fresh aged. mu is held.
func (p *pace) age() {
	p.aged = p.aged.plus(p.fresh.take())
	p.dirty.clear()
}

// begin is called when a sync starts.
func (p *pace) begin(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active.Store(true)
	p.age()
	p.syncing, p.aged = p.aged, load{}
	p.oldest, p.began = p.since.Swap(0), now.UnixNano()
	p.bgSyncing, p.bgFresh = p.bgFresh, 0
}

// end is called when the sync is over. It learns, and lets in those who wait.
func (p *pace) end(now time.Time) {
	p.mu.Lock()
	p.active.Store(false)
	p.learn(now.UnixNano())
	p.total.sub(p.syncing)
	p.syncing, p.bgSyncing = load{}, 0
	p.unlock()
}

// learn brings the rates into line with what the sync took. Between its own
// duration and the time since the first write that it covers lies the time that
// the disk took: part of the work may have been done before it, by us or by the
// kernel. Where the estimate is outside of that, it is wrong. mu is held.
func (p *pace) learn(now int64) {
	const (
		least = 256 // blocks; a smaller sync measures its own overhead
		runs  = 16
	)
	l := p.syncing
	if l.blocks < least && l.runs < runs {
		return
	}
	expected := p.cost(l)
	atLeast := float64(now-p.began) / 1e9
	atMost := atLeast
	if p.oldest != 0 {
		atMost = max(atMost, float64(now-p.oldest)/1e9)
	}
	const most = maxSyncTime
	var ratio float64
	switch {
	case atLeast > expected*1.1 && (expected > most.Seconds()/8 || atLeast > most.Seconds()):
		ratio = min(atLeast/expected, 16)
	case atMost < expected && expected > most.Seconds()/16:
		ratio = max(atMost/expected, 0.5) // at most twice as fast in one step
	default:
		return
	}
	share := float64(l.blocks) * paceBlock / p.bandwidth / expected // of the time that went into bytes
	adjust := func(rate, share, lo, hi float64) float64 {
		return min(max(rate/(1+(ratio-1)*share), lo), hi)
	}
	p.bandwidth = adjust(p.bandwidth, share, 4<<20, 16<<30)
	p.seeks = adjust(p.seeks, 1-share, 50, 1e6)
	p.publish()
}

// stop lets everybody in: the backing has failed, and says so itself.
func (p *pace) stop() {
	p.mu.Lock()
	p.stopped = true
	p.unlock()
}

func (p *pace) hasRoom() bool { return p.cost(p.total.get()) < maxSyncTime.Seconds() }

// unlock gives turns to those whose time has come, releases mu, and starts a sync
// if there is reason to.
func (p *pace) unlock() {
	for len(p.line) > 0 && (p.stopped || p.hasRoom()) {
		t := p.line[0]
		p.line = p.line[1:]
		p.waiting.Add(-1)
		p.total.add(t.need)
		close(t.ready)
	}
	for len(p.bgLine) > 0 && (p.stopped || p.bgRoom(p.bgLine[0].bytes)) {
		t := p.bgLine[0]
		p.bgLine = p.bgLine[1:]
		p.bgReserved += t.bytes
		close(t.ready)
	}
	unsynced := p.aged.plus(p.fresh.get())
	want := p.cost(unsynced) >= maxSyncTime.Seconds()/2 ||
		len(p.line) > 0 && unsynced.blocks > 0 ||
		len(p.bgLine) > 0 && p.bgFresh > 0
	want = want && !p.active.Load() && !p.stopped
	p.mu.Unlock()
	if want && p.startSync != nil {
		p.startSync()
	}
}

// background returns once n more bytes of a mover or of the cleaner may be
// written. What is announced so is told by wroteBackground, or given back.
func (p *pace) background(ctx context.Context, n int64) error {
	p.mu.Lock()
	if p.stopped || len(p.bgLine) == 0 && p.bgRoom(n) {
		p.bgReserved += n
		p.mu.Unlock()
		return nil
	}
	t := &turn{bytes: n, ready: make(chan struct{})}
	p.bgLine = append(p.bgLine, t)
	p.unlock()
	select {
	case <-t.ready:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	if !remove(&p.bgLine, t) {
		p.bgReserved -= n
	}
	p.unlock()
	return ctx.Err()
}

// bgRoom reports whether n bytes fit into the share; a single one always does.
func (p *pace) bgRoom(n int64) bool {
	used := p.bgReserved + p.bgFresh + p.bgSyncing
	return used == 0 || used+n <= backgroundShare
}

// wroteBackground notes n bytes written at off, announced by background.
func (p *pace) wroteBackground(off, n int64, now time.Time) {
	p.mu.Lock()
	p.bgReserved -= n
	p.bgFresh += n
	p.mu.Unlock()
	p.wrote(off, n, now)
}

// giveBack returns n bytes announced by background and not written.
func (p *pace) giveBack(n int64) {
	p.mu.Lock()
	p.bgReserved -= n
	p.unlock()
}

func remove(line *[]*turn, t *turn) bool {
	for i, o := range *line {
		if o == t {
			*line = append((*line)[:i:i], (*line)[i+1:]...)
			return true
		}
	}
	return false
}

// paceInfo is the state of a pace.
type paceInfo struct {
	unsynced   int64 // bytes
	background int64 // of these, by movers and the cleaner
	estimate   time.Duration
	waiting    int64
	bandwidth  float64 // bytes a second
	seeks      float64 // a second
}

func (p *pace) info() paceInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.aged.plus(p.syncing).plus(p.fresh.get())
	return paceInfo{
		unsynced: l.bytes(), background: p.bgFresh + p.bgSyncing, estimate: time.Duration(max(p.cost(l), 0) * 1e9),
		waiting: p.waiting.Load(), bandwidth: p.bandwidth, seeks: p.seeks,
	}
}

// rate returns the sequential rate the backing is thought to have, bytes a second.
func (p *pace) rate() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bandwidth
}

// mapBits is how many blocks a dirtyMap tells apart: those of 1 GiB.
const mapBits = 1 << 18

// dirtyMap is a set of blocks. Two blocks whose distance is a multiple of its size
// are one for it. What it counts while others change it or clear it may be off by
// a few, which a bound can bear.
type dirtyMap struct{ words [mapBits / 64]atomic.Uint64 }

// add adds the blocks of [off, off+n) and returns how much that made the set
// grow. The runs may have become fewer.
func (m *dirtyMap) add(off, n int64) load {
	var grown load
	if n <= 0 {
		return grown
	}
	first, last := uint64(off)>>paceShift, uint64(off+n-1)>>paceShift
	at := first / 64
	before := m.word(at-1).Load() >> 63 // whether the block before this word is in, before and after
	after := before
	for ; at <= last/64; at++ {
		mask := ^uint64(0)
		if at == first/64 {
			mask <<= first % 64
		}
		if at == last/64 {
			mask &= ^uint64(0) >> (63 - last%64)
		}
		w := m.word(at)
		old := w.Load()
		if old&mask != mask {
			old = w.Or(mask)
		}
		now := old | mask
		grown.blocks += int64(bits.OnesCount64(now ^ old))
		grown.runs += int64(bits.OnesCount64(now&^(now<<1|after)) - bits.OnesCount64(old&^(old<<1|before)))
		before, after = old>>63, now>>63
	}
	// Behind the last word a run may have lost its start.
	if before != after {
		grown.runs -= int64(m.word(at).Load() & 1)
	}
	return grown
}

// covers reports whether all blocks of [off, off+n) are in the set.
func (m *dirtyMap) covers(off, n int64) bool {
	for b := off >> paceShift; b <= (off+n-1)>>paceShift; b++ {
		if m.word(uint64(b)/64).Load()>>(uint64(b)%64)&1 == 0 {
			return false
		}
	}
	return true
}

func (m *dirtyMap) word(i uint64) *atomic.Uint64 { return &m.words[i%(mapBits/64)] }

func (m *dirtyMap) clear() {
	for i := range m.words {
		if m.words[i].Load() != 0 {
			m.words[i].Store(0)
		}
	}
}
