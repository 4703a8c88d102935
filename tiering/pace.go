package tiering

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"tierd/pkg/backing"
)

// maxSyncTime is about how long the sync of a backing may take: writes wait
// once what is unsynced would take longer.
const maxSyncTime = time.Second

// pace bounds what is written to a backing and not synced yet, so that a flush
// does not have to wait for seconds of somebody's buffered writes. Without it,
// the page cache takes random writes a hundred times as fast as a disk, and the
// flush behind them pays for all of it.
//
// The bound is in time: bytes over the sequential rate plus random writes over
// the random rate. Both rates start from the kind of medium and follow what
// syncs are seen to take.
type pace struct {
	bytes  atomic.Int64 // written since the last sync began
	random atomic.Int64 // writes since then that did not continue the one before
	last   atomic.Int64 // where the last write ended
	limit  atomic.Int64 // bytes that take maxSyncTime
	cost   atomic.Int64 // bytes that one random write counts for beside its own

	mu        sync.Mutex
	bandwidth float64 // bytes a second
	seeks     float64 // random writes a second
	syncing   load    // what the sync under way covers
	waits     atomic.Int64
	waitNanos atomic.Int64
}

// load is an amount of unsynced data.
type load struct{ bytes, random int64 }

func (p *pace) init(m backing.Media) {
	p.bandwidth, p.seeks = 500e6, 50e3
	if m == backing.HDD {
		p.bandwidth, p.seeks = 150e6, 200
	}
	p.publish()
}

func (p *pace) publish() {
	p.limit.Store(int64(p.bandwidth * maxSyncTime.Seconds()))
	p.cost.Store(int64(p.bandwidth / p.seeks))
}

// wrote notes n bytes written at off of the backing.
func (p *pace) wrote(off, n int64) {
	p.bytes.Add(n)
	if p.last.Swap(off+n) != off {
		p.random.Add(1)
	}
}

func (p *pace) unsynced() int64 { return p.bytes.Load() + p.random.Load()*p.cost.Load() }

// begin is called when a sync starts and returns what it covers.
func (p *pace) begin() load {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.syncing = load{p.bytes.Swap(0), p.random.Swap(0)}
	return p.syncing
}

// end is called when the sync that covers l is over, and learns from the time
// it took. Write-back that ran before the sync makes it look faster than the
// device is; hence rates follow slowly upwards and at once downwards.
func (p *pace) end(l load, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.syncing = load{}
	const least = 1 << 20 // below that a sync measures its own overhead
	if l.bytes < least && l.random < 64 {
		return
	}
	forBytes, forSeeks := float64(l.bytes)/p.bandwidth, float64(l.random)/p.seeks
	expected := forBytes + forSeeks
	ratio := min(max(took.Seconds()/expected, 0.25), 8)
	weight := 0.4
	if ratio > 1 {
		weight = 0.7
	}
	adjust := func(rate *float64, share, lo, hi float64) {
		*rate = min(max(*rate/(1+(ratio-1)*weight*share), lo), hi)
	}
	adjust(&p.bandwidth, forBytes/expected, 4<<20, 16<<30)
	adjust(&p.seeks, forSeeks/expected, 50, 1e6)
	p.publish()
}

// wait holds the caller back while too much of b is unsynced. Half-way there a
// sync is started in the background, so that writers seldom wait.
func (p *pace) wait(ctx context.Context, b *member) error {
	limit := p.limit.Load()
	if p.unsynced() < limit/2 {
		return nil
	}
	c := b.syncs.start()
	if p.unsynced() < limit {
		return nil
	}
	start := time.Now()
	err := c.wait(ctx)
	p.waits.Add(1)
	p.waitNanos.Add(int64(time.Since(start)))
	return err
}

// rate returns the sequential rate the backing is thought to have, bytes a second.
func (p *pace) rate() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bandwidth
}
