package nbd

import "sync"

// maxIdleWorkers is how many goroutines wait for work; the others end. One that
// is used again has its stack grown already.
const maxIdleWorkers = 64

// A job is what a worker does.
type job interface{ do() }

// workers run what would hold up a connection. The number of those at work is
// bounded by the in-flight limits of the connections, not here.
type workers struct {
	jobs chan job
	stop chan struct{}
	wg   sync.WaitGroup

	mu   sync.Mutex
	idle int
}

func newWorkers() *workers {
	return &workers{jobs: make(chan job), stop: make(chan struct{})}
}

// submit has j done by an idle worker, or by a new one. It does not block.
func (w *workers) submit(j job) {
	select {
	case w.jobs <- j:
	default:
		w.wg.Add(1)
		go w.loop(j)
	}
}

func (w *workers) loop(j job) {
	defer w.wg.Done()
	for {
		j.do()
		w.mu.Lock()
		if w.idle >= maxIdleWorkers {
			w.mu.Unlock()
			return
		}
		w.idle++
		w.mu.Unlock()

		select {
		case j = <-w.jobs:
		case <-w.stop:
			return
		}

		w.mu.Lock()
		w.idle--
		w.mu.Unlock()
	}
}

// close ends the idle workers and waits for the others. Nothing may be
// submitted any more.
func (w *workers) close() {
	close(w.stop)
	w.wg.Wait()
}
