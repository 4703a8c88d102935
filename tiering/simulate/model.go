package simulate

import (
	"time"

	"tierd/tiering/plan"
)

// load is what one tier has to do in one cycle.
type load struct {
	reads, writes int64
	moved         int64 // bytes that moves read and write there
}

// answer is what its clients see of that.
type answer struct {
	utilisation float64 // of the devices, above 1 if they cannot keep up
	read, write time.Duration
}

// serve returns how a tier answers in a cycle of so many seconds. Without devices
// nothing queues; with n of them
//
//	rho = (reads T_S + writes penalty T_W) / (n seconds) + moved / (bandwidth seconds)
//	T_R = T_S / (1 - rho)
//
// the residence time of M/M/1 (plan.Delay, the planner's own cost law). A write is
// answered like one operation: the others of its penalty go on at the same time, or
// behind it.
func (t Tier) serve(l load, seconds float64) answer {
	w := t.writeTime()
	if t.Devices == 0 {
		return answer{read: t.Time, write: w}
	}
	busy := (float64(l.reads)*t.Time.Seconds() + float64(l.writes)*penalties[t.RAID]*w.Seconds()) / float64(t.Devices)
	if t.Bandwidth > 0 {
		busy += float64(l.moved) / float64(t.Bandwidth)
	}
	rho := busy / seconds
	return answer{utilisation: rho, read: plan.Delay(t.Time, rho), write: plan.Delay(w, rho)}
}

// writeTime returns the service time of a device operation of a write.
func (t Tier) writeTime() time.Duration {
	if t.Write == 0 {
		return t.Time
	}
	return t.Write
}
