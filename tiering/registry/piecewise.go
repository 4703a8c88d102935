package registry

import (
	"runtime"

	"tierd/tiering/extent"
)

// enterPiecewise is Enter with a bug that tests look for: it takes the stripes one
// after the other, so that two changes may each be first somewhere.
func (r *Registry) enterPiecewise(t *Ticket, mapped bool, first, last extent.Index) {
	if t.kind == Write && !mapped {
		t.kind = Exclusive
	}
	if t.kind == Exclusive {
		t.off, t.end = r.size.Start(first), r.size.Start(last+1)
	}
	t.waits.Store(1) // not ready before all pieces are in line
	for i := range t.nodes {
		s := &r.stripes[t.nodes[i].stripe]
		s.mu.Lock()
		for p := s.head; p != nil; p = p.next {
			if p.ticket.conflicts(t) {
				t.waits.Add(1)
			}
		}
		s.append(&t.nodes[i])
		s.mu.Unlock()
		runtime.Gosched()
	}
	t.queued = t.waits.Add(-1) > 0
}
