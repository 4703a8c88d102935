package load

import (
	"errors"
	"fmt"
	"math"
	"time"

	"tierd/pkg/trace"
)

// A Pattern is how offsets are chosen.
type Pattern string

// The patterns.
const (
	Uniform    Pattern = "uniform"
	Zipf       Pattern = "zipf"
	Sequential Pattern = "sequential"
)

// A Fit is what to do with a trace's ranges beyond the end of the volume.
type Fit string

// The fits.
const (
	FitError Fit = "error" // end the run
	FitWrap  Fit = "wrap"  // take the offset modulo the volume's size
	FitScale Fit = "scale" // shrink all offsets by the ratio of the sizes
)

// ErrSpec is returned for a Spec that contradicts itself or the export.
var ErrSpec = errors.New("invalid load specification")

// A Spec says what load to make. Start from NewSpec.
type Spec struct {
	URI         string  `json:"uri"`
	Connections int     `json:"connections"`
	Depth       int     `json:"depth"` // operations in flight on each connection
	BlockSize   int64   `json:"block_size"`
	ReadShare   float64 `json:"read_share"`  // of all operations, 0 to 1
	TrimShare   float64 `json:"trim_share"`  // of the operations that are no reads
	ZeroShare   float64 `json:"zero_share"`  // likewise, as WRITE_ZEROES
	FlushEvery  int     `json:"flush_every"` // changes on a connection between two FLUSHes; 0: none
	FUA         bool    `json:"fua"`         // on every change

	Pattern Pattern `json:"pattern"`
	Theta   float64 `json:"theta"` // exponent of zipf, above 0
	Grain   int64   `json:"grain"` // bytes that share one popularity
	Seed    uint64  `json:"seed"`
	Place   uint64  `json:"place"` // seed of where the hot regions lie; 0: Seed

	Duration time.Duration `json:"duration_ns"` // of the measurement; 0: by Ops alone
	Warmup   time.Duration `json:"warmup_ns"`   // before it
	Ops      int64         `json:"ops"`         // ends the run, counting the warm-up's; 0: by Duration alone
	Rate     float64       `json:"rate"`        // operations a second over all connections; 0: no limit

	Fill       bool   `json:"fill"`        // write the whole volume first
	Verify     bool   `json:"verify"`      // check every read
	VerifyPass bool   `json:"verify_pass"` // read back all that is known, afterwards
	VerifyOnly bool   `json:"verify_only"` // do nothing else
	ExpectZero bool   `json:"expect_zero"` // what was never written must read as zeroes
	State      string `json:"state,omitempty"`
	AfterCut   bool   `json:"after_cut"` // with VerifyOnly: only what was flushed must be there

	// Trace is replayed instead of a pattern. The run ends with it.
	Trace trace.Reader `json:"-"`
	// Speed divides the trace's times; 0 ignores them.
	Speed float64 `json:"speed"`
	Fit   Fit     `json:"fit"`
	// TraceSpan is the end of the trace's highest range, for FitScale.
	TraceSpan int64 `json:"trace_span,omitempty"`

	// OnInterval is called for every Interval of the measurement.
	Interval   time.Duration `json:"interval_ns"`
	OnInterval func(Sample)  `json:"-"`
}

// NewSpec returns the defaults: 4 KiB reads, uniform, one connection with a
// depth of 32, for ten seconds.
func NewSpec(uri string) Spec {
	return Spec{
		URI: uri, Connections: 1, Depth: 32, BlockSize: 4096, ReadShare: 1,
		Pattern: Uniform, Theta: 1.2, Grain: 1 << 20, Seed: 1,
		Duration: 10 * time.Second, Speed: 1, Fit: FitError, Interval: time.Second,
	}
}

// checks reports whether the run needs a ledger.
func (s *Spec) checks() bool { return s.Verify || s.VerifyPass || s.VerifyOnly || s.State != "" }

// Validate returns every fault of s at once; the errors wrap ErrSpec.
func (s *Spec) Validate() error {
	var errs []error
	bad := func(is bool, format string, args ...any) {
		if is {
			errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrSpec}, args...)...))
		}
	}
	share := func(v float64) bool { return !(v >= 0 && v <= 1) }
	bad(s.Connections < 1 || s.Connections > 1024, "connections must be 1 to 1024 (got %d)", s.Connections)
	bad(s.Depth < 1 || s.Depth > 65536, "depth must be 1 to 65536 (got %d)", s.Depth)
	bad(s.BlockSize < 512 || s.BlockSize%512 != 0, "block size must be a multiple of 512 bytes (got %d)", s.BlockSize)
	bad(share(s.ReadShare), "read share must be 0 to 100%% (got %g%%)", s.ReadShare*100)
	bad(share(s.TrimShare) || share(s.ZeroShare) || s.TrimShare+s.ZeroShare > 1, "trim and zero shares must be 0 to 100%%, together, too")
	bad(s.FlushEvery < 0, "flush interval must not be negative")
	switch s.Pattern {
	case Uniform, Sequential:
	case Zipf:
		bad(!(s.Theta > 0 && s.Theta <= 20), "theta must be above 0 and at most 20 (got %g)", s.Theta)
		bad(s.Grain < s.BlockSize, "grain must be at least the block size (got %d)", s.Grain)
	default:
		bad(true, "pattern must be uniform, zipf or sequential (got %q)", s.Pattern)
	}
	bad(s.Duration < 0 || s.Warmup < 0 || s.Interval < 0, "times must not be negative")
	bad(s.Ops < 0, "the number of operations must not be negative")
	bad(s.Duration == 0 && s.Ops == 0 && s.Trace == nil && !s.VerifyOnly, "a time, a number of operations or a trace is needed, or the run never ends")
	bad(!(s.Rate >= 0) || math.IsInf(s.Rate, 0), "rate must not be negative")
	bad(!(s.Speed >= 0) || math.IsInf(s.Speed, 0), "speed must not be negative")
	switch s.Fit {
	case FitError, FitWrap:
	case FitScale:
		bad(s.Trace != nil && s.TraceSpan <= 0, "to scale a trace its span is needed")
	default:
		bad(true, "fit must be error, wrap or scale (got %q)", s.Fit)
	}
	bad(s.VerifyOnly && s.State == "", "verify-only needs the state of an earlier run")
	bad(s.AfterCut && !s.VerifyOnly, "after-cut is for verify-only")
	return errors.Join(errs...)
}
