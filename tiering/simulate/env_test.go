package simulate_test

import (
	"context"
	"io"
	"slices"
	"testing"
	"time"

	"tierd/pkg/trace"
	"tierd/tiering/simulate"
)

const mib = 1 << 20

// memReader is a trace in memory.
type memReader struct {
	records []trace.Record
	timed   bool
	err     error // after the records; nil: the end
	n       int
}

func (r *memReader) Next() (trace.Record, error) {
	if r.n == len(r.records) {
		if r.err != nil {
			return trace.Record{}, r.err
		}
		return trace.Record{}, io.EOF
	}
	r.n++
	return r.records[r.n-1], nil
}
func (r *memReader) Format() trace.Format { return trace.Pages }
func (r *memReader) Timed() bool          { return r.timed }
func (r *memReader) Skipped() int64       { return 0 }
func (r *memReader) Close() error         { return nil }

func memSource(timed bool, records ...trace.Record) simulate.Source {
	return simulate.Source{Name: "memory", Open: func() (trace.Reader, error) {
		return &memReader{records: records, timed: timed}, nil
	}}
}

// reads returns one read of 4 KiB for each extent named.
func reads(extents ...int64) []trace.Record {
	var out []trace.Record
	for _, e := range extents {
		out = append(out, trace.Record{Offset: e * mib, Length: 4096})
	}
	return out
}

// timedReads returns the same, evenly over the time given.
func timedReads(over time.Duration, extents ...int64) []trace.Record {
	out := reads(extents...)
	for i := range out {
		out[i].Time = over * time.Duration(i) / time.Duration(len(out))
	}
	return out
}

func layout(t testing.TB, s string) simulate.Layout {
	t.Helper()
	l, err := simulate.ParseLayout(s)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// settings are those of the paper's evaluation with as many cycles and a budget
// that bounds nothing.
func settings(cycles int) simulate.Settings {
	s := simulate.PaperEval()
	s.Cycles = cycles
	s.Budget = simulate.Budget{Bytes: -1}
	return s
}

func run(t testing.TB, src simulate.Source, l simulate.Layout, s simulate.Settings, policies ...string) *simulate.Report {
	t.Helper()
	rep, err := simulate.Run(context.Background(), src, []simulate.Layout{l}, policies, s)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func byName(t interface {
	Helper()
	Fatalf(string, ...any)
}, rep *simulate.Report, name string) simulate.PolicyResult {
	t.Helper()
	i := slices.IndexFunc(rep.Policies, func(p simulate.PolicyResult) bool { return p.Name == name })
	if i < 0 {
		t.Fatalf("no policy %s in the report", name)
	}
	return rep.Policies[i]
}
