package nbd

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"tierd/nbd/wire"
)

// slowLogEvery bounds the log: a dead disk has a thousand requests wait.
const slowLogEvery = 5 * time.Second

// A slowWatch finds requests that take long. It costs the hit path nothing: only
// requests in the hands of workers, and inline calls that blocked, are in the lists that
// it looks through.
type slowWatch struct {
	srv   *Server
	limit time.Duration
	stop  chan struct{}
	done  chan struct{}

	mu      sync.Mutex
	counts  map[slowKey]uint64
	oldest  map[string]time.Duration // by export, at the last look
	logged  int64                    // when, by clock()
	skipped int                      // slow requests since, that the log does not tell of
}

type slowKey struct {
	export string
	cmd    wire.Cmd
}

func newSlowWatch(s *Server, limit time.Duration) *slowWatch {
	return &slowWatch{srv: s, limit: limit, stop: make(chan struct{}), done: make(chan struct{}), counts: map[slowKey]uint64{}}
}

func (w *slowWatch) loop() {
	defer close(w.done)
	t := time.NewTicker(max(w.limit/8, 10*time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-t.C:
			w.look()
		case <-w.stop:
			return
		}
	}
}

// A slowRequest is what is told of a request that takes long.
type slowRequest struct {
	export, remote string
	head           wire.Request
	age            time.Duration
}

// look counts the requests that have become slow, and logs the oldest of them.
func (w *slowWatch) look() {
	now := clock()
	oldest := map[string]time.Duration{}
	var news []slowRequest
	w.srv.mu.Lock()
	for c := range w.srv.conns {
		if !c.serving.Load() {
			continue
		}
		c.mu.Lock()
		for r := c.pending.first; r != nil; r = r.after {
			age := time.Duration(now - r.start)
			oldest[c.info.Name] = max(oldest[c.info.Name], age)
			if age >= w.limit && !r.slow {
				r.slow = true
				news = append(news, slowRequest{c.info.Name, c.remote, r.head, age})
			}
		}
		c.mu.Unlock()
	}
	w.srv.mu.Unlock()

	w.mu.Lock()
	defer w.mu.Unlock()
	w.oldest = oldest
	for _, r := range news {
		w.counts[slowKey{r.export, r.head.Type}]++
	}
	if len(news) == 0 {
		return
	}
	if w.logged != 0 && now-w.logged < int64(slowLogEvery) {
		w.skipped += len(news)
		return
	}
	r := slices.MaxFunc(news, func(a, b slowRequest) int { return cmp.Compare(a.age, b.age) })
	w.srv.log.Warn("request takes long", "export", r.export, "remote", r.remote, "op", wire.CmdName(r.head.Type),
		"offset", r.head.Offset, "length", r.head.Length, "age", r.age.Round(time.Millisecond), "others", len(news)-1+w.skipped)
	w.logged, w.skipped = now, 0
}

// ended tells of the end of a request that was slow.
func (w *slowWatch) ended(export string, h wire.Request, took time.Duration, errno wire.Errno) {
	w.srv.log.Debug("slow request ended", "export", export, "op", wire.CmdName(h.Type), "offset", h.Offset, "length", h.Length,
		"took", took.Round(time.Millisecond), "outcome", wire.ErrnoName(errno))
}

func (w *slowWatch) close() {
	close(w.stop)
	<-w.done
}

// SlowStats are the requests of an export that took longer than Config.SlowRequest.
type SlowStats struct {
	Export string
	Counts map[wire.Cmd]uint64 // since the start
	Oldest time.Duration       // of the requests in flight, hits left out; as of the last look
}

// Slow returns the exports with slow requests or with requests in flight, by name; none
// if slow requests are not looked for.
func (s *Server) Slow() []SlowStats {
	w := s.slow
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[string]*SlowStats{}
	of := func(export string) *SlowStats {
		if all[export] == nil {
			all[export] = &SlowStats{Export: export, Counts: map[wire.Cmd]uint64{}}
		}
		return all[export]
	}
	for k, n := range w.counts {
		of(k.export).Counts[k.cmd] = n
	}
	for export, age := range w.oldest {
		of(export).Oldest = age
	}
	list := make([]SlowStats, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, *all[name])
	}
	return list
}

// pending are the requests of a connection that are in the hands of workers, linked by
// request.after and request.before. It is guarded by conn.mu.
type pending struct {
	first *request
	// Inline calls that blocked are in the list under a stand-in, which the follower
	// makes and the call's own goroutine removes, whichever of the two comes first.
	returned []uint64 // calls that came back before the follower began
}

func (p *pending) add(r *request) {
	r.after = p.first
	if p.first != nil {
		p.first.before = r
	}
	p.first = r
	r.listed = true
}

func (p *pending) remove(r *request) {
	if !r.listed {
		return
	}
	if r.before != nil {
		r.before.after = r.after
	} else {
		p.first = r.after
	}
	if r.after != nil {
		r.after.before = r.before
	}
	r.before, r.after, r.listed = nil, nil, false
}

// addBlocked notes the inline call seq, which blocks, unless it has come back by now.
func (p *pending) addBlocked(r *request, seq uint64) (noted bool) {
	if i := slices.Index(p.returned, seq); i >= 0 {
		p.returned = slices.Delete(p.returned, i, i+1)
		return false
	}
	r.seq = seq
	p.add(r)
	return true
}

// takeBlocked returns the stand-in of the inline call seq, which has come back; nil if
// there is none yet.
func (p *pending) takeBlocked(seq uint64) *request {
	for r := p.first; r != nil; r = r.after {
		if r.seq == seq {
			p.remove(r)
			return r
		}
	}
	p.returned = append(p.returned, seq)
	return nil
}
