package tiering

import (
	"sync"
	"time"

	"tierd/tiering/extentmap"
)

// committer is the one place that commits mappings. It merges the rounds that are
// ready into one transaction, and hands the slots they vacate to the cleaner in
// the order of the commits.
type committer struct {
	pool *Pool
	ch   chan *commitRequest
	quit chan struct{}
	wg   sync.WaitGroup
	once sync.Once
	opStats
}

type commitRequest struct {
	changes []extentmap.MapChange
	vacated []vacatedSlot
	maxSeq  uint64
	lost    []extentmap.LostWrites // to be remembered

	done   chan struct{}
	commit uint64
	err    error
}

func (c *committer) start(p *Pool) {
	c.pool = p
	c.ch = make(chan *commitRequest)
	c.quit = make(chan struct{})
	c.wg.Go(c.loop)
}

// close ends the committer after the commit under way. It is idempotent.
func (c *committer) close() {
	if c.quit == nil {
		return // never started
	}
	c.once.Do(func() { close(c.quit) })
	c.wg.Wait()
}

// commit returns the number of the commit that r became a part of.
func (c *committer) commit(r *commitRequest) (uint64, error) {
	select {
	case c.ch <- r:
		<-r.done
		return r.commit, r.err
	case <-c.quit:
		return 0, ErrClosed
	}
}

func (c *committer) loop() {
	for {
		select {
		case r := <-c.ch:
			c.run(c.gather(r))
		case <-c.quit:
			return
		}
	}
}

// gather adds the requests that are waiting by now.
func (c *committer) gather(r *commitRequest) []*commitRequest {
	batch := []*commitRequest{r}
	for {
		select {
		case r := <-c.ch:
			batch = append(batch, r)
		default:
			return batch
		}
	}
}

// run commits a batch in one transaction.
func (c *committer) run(batch []*commitRequest) {
	var ch extentmap.Changes
	var maxSeq uint64
	var lost []extentmap.LostWrites
	for _, r := range batch {
		lost = append(lost, r.lost...)
		ch.Map = append(ch.Map, r.changes...)
		maxSeq = max(maxSeq, r.maxSeq)
	}
	ch.Pool = func(p *extentmap.PoolRecord) {
		p.MaxSeq = max(p.MaxSeq, maxSeq)
		rememberLost(p, lost)
	}
	start := time.Now()
	commit, err := c.pool.commitNow(&ch)
	c.opStats.done(time.Since(start), err)
	for _, r := range batch {
		if err == nil {
			c.pool.cleaner.add(r.vacated)
		}
		r.commit, r.err = commit, err
		close(r.done)
	}
}
