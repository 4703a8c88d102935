package load

import (
	"errors"
	"syscall"
	"time"

	"tierd/nbd/client"
	"tierd/nbd/wire"
)

// OpStats are the figures of one kind of operation. Latencies are in
// nanoseconds and count successful operations alone.
type OpStats struct {
	Ops         int64   `json:"ops"`
	Bytes       int64   `json:"bytes"`
	IOPS        float64 `json:"iops"`
	BytesPerSec float64 `json:"bytes_per_second"`
	Mean        int64   `json:"mean_ns"`
	P50         int64   `json:"p50_ns"`
	P90         int64   `json:"p90_ns"`
	P99         int64   `json:"p99_ns"`
	P999        int64   `json:"p999_ns"`
	Max         int64   `json:"max_ns"`
}

func newOpStats(h *Histogram, bytes int64, elapsed time.Duration) OpStats {
	s := OpStats{
		Ops: h.Count(), Bytes: bytes,
		Mean: int64(h.Mean()), P50: int64(h.Quantile(0.5)), P90: int64(h.Quantile(0.9)),
		P99: int64(h.Quantile(0.99)), P999: int64(h.Quantile(0.999)), Max: int64(h.Max()),
	}
	if sec := elapsed.Seconds(); sec > 0 {
		s.IOPS = float64(s.Ops) / sec
		s.BytesPerSec = float64(s.Bytes) / sec
	}
	return s
}

// VerifyStats tell of the checks of what was read.
type VerifyStats struct {
	Unit       int64 `json:"unit_bytes"`
	Checked    int64 `json:"checked_units"`
	Mismatches int64 `json:"mismatches"`
	// Faults counts the mismatches by what was found: "zeroes", "stale" (an older
	// generation: a lost write), "newer", "misplaced", "foreign", "corrupt".
	Faults  map[string]int64 `json:"faults"`
	Details []string         `json:"details"` // of the first mismatches
	Doubts  int64            `json:"units_in_doubt"`
}

// A Result is the outcome of a run. The keys of its JSON form do not change.
type Result struct {
	Spec    Spec    `json:"spec"`
	Size    int64   `json:"size_bytes"`
	Elapsed float64 `json:"elapsed_seconds"` // of the measurement
	Total   OpStats `json:"total"`
	// ByOp has "read", "write", "trim", "zero" and "flush", as far as there were any.
	ByOp map[string]OpStats `json:"by_op"`
	// Errors counts failed operations of all phases by errno ("EIO", ...) or "disconnected".
	Errors         map[string]int64 `json:"errors"`
	ScheduleLagMax int64            `json:"schedule_lag_max_ns"`
	Latencies      *Histogram       `json:"-"` // of all operations, to be merged with those of other runs
	FillSeconds    float64          `json:"fill_seconds"`
	VerifySeconds  float64          `json:"verify_seconds"` // of the verify pass
	Verify         *VerifyStats     `json:"verify"`         // null without verification
}

// Damaged reports whether anything read differed from what was written.
func (r *Result) Damaged() bool { return r.Verify != nil && r.Verify.Mismatches > 0 }

// A Sample is one interval of a run.
type Sample struct {
	At          time.Duration `json:"at_ns"` // end of the interval, from the begin of the measurement
	Length      time.Duration `json:"length_ns"`
	Ops         int64         `json:"ops"`
	IOPS        float64       `json:"iops"`
	ReadPerSec  float64       `json:"read_bytes_per_second"`
	WritePerSec float64       `json:"write_bytes_per_second"`
	Mean        time.Duration `json:"mean_ns"`
	P50         time.Duration `json:"p50_ns"`
	P99         time.Duration `json:"p99_ns"`
	Max         time.Duration `json:"max_ns"`
	Errors      int64         `json:"errors"`
	Mismatches  int64         `json:"mismatches"`
}

func errorName(err error) string {
	var no syscall.Errno
	switch {
	case errors.Is(err, client.ErrDisconnected):
		return "disconnected"
	case errors.As(err, &no):
		return wire.ErrnoName(uint32(no))
	}
	return "other"
}
