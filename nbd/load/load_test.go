package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tierd/nbd/client"
	"tierd/nbd/wire"
	"tierd/pkg/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// testSpec is a short verified run of mixed operations.
func testSpec(uri string) Spec {
	s := NewSpec(uri)
	s.Duration, s.Ops = 0, 3000
	s.ReadShare, s.Verify, s.VerifyPass, s.Fill = 0.5, true, true, true
	s.Depth, s.Pattern, s.Grain = 16, Zipf, 64<<10
	return s
}

func mustRun(t *testing.T, s Spec) *Result {
	t.Helper()
	t.Logf("seed %d", s.Seed)
	res, err := Run(testContext(t), s)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func wantClean(t *testing.T, res *Result) {
	t.Helper()
	if res.Damaged() || len(res.Errors) > 0 {
		t.Errorf("faults %v, errors %v: %q", res.Verify.Faults, res.Errors, res.Verify.Details)
	}
}

func TestCleanRuns(t *testing.T) {
	tests := map[string]func(s *Spec){
		"zipf":                func(s *Spec) {},
		"uniform":             func(s *Spec) { s.Pattern = Uniform },
		"sequential":          func(s *Spec) { s.Pattern, s.Ops = Sequential, 5000 },
		"four connections":    func(s *Spec) { s.Connections = 4 },
		"512 bytes":           func(s *Spec) { s.BlockSize = 512 },
		"64 KiB":              func(s *Spec) { s.BlockSize = 64 << 10 },
		"trims and zeroes":    func(s *Spec) { s.TrimShare, s.ZeroShare, s.Connections = 0.2, 0.2, 2 },
		"without fill":        func(s *Spec) { s.Fill, s.TrimShare = false, 0.2 },
		"zeroes expected":     func(s *Spec) { s.Fill, s.ExpectZero, s.TrimShare = false, true, 0.2 },
		"flushes":             func(s *Spec) { s.FlushEvery = 10 },
		"fua":                 func(s *Spec) { s.FUA = true },
		"one block is all":    func(s *Spec) { s.BlockSize, s.Grain, s.Depth = 1<<20, 1<<20, 8; s.Ops = 60 },
		"more depth than 4 K": func(s *Spec) { s.Depth, s.Connections = 2048, 2 },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			size := 8 << 20
			if name == "one block is all" {
				size = 1 << 20
			}
			srv := startMem(t, size)
			s := testSpec(srv.uri())
			change(&s)
			res := mustRun(t, s)
			wantClean(t, res)
			if got := res.Total.Ops; got != s.Ops {
				t.Errorf("%d operations, want %d", got, s.Ops)
			}
			if res.Verify.Checked == 0 {
				t.Error("nothing was checked")
			}
			if got := res.ByOp["flush"].Ops; (got > 0) != (s.FlushEvery > 0) {
				t.Errorf("%d flushes", got)
			}
			if s.TrimShare > 0 && res.ByOp["trim"].Ops == 0 {
				t.Error("no trims")
			}
		})
	}
}

// TestDetection injects one fault into an otherwise sound server.
func TestDetection(t *testing.T) {
	const victim = 12 * 4096
	tests := map[string]struct {
		hook func(s *memServer) func(wire.Request, []byte) (bool, wire.Errno)
		want string
	}{
		"a flipped bit": {func(s *memServer) func(wire.Request, []byte) (bool, wire.Errno) {
			return func(r wire.Request, _ []byte) (bool, wire.Errno) {
				if r.Type == wire.CmdRead && r.Offset == 0 && s.data[victim] != 0 {
					s.data[victim+4000] ^= 0x10
					s.hook = nil
				}
				return false, wire.OK
			}
		}, "corrupt"},
		"a lost write": {func(s *memServer) func(wire.Request, []byte) (bool, wire.Errno) {
			writes := 0
			return func(r wire.Request, _ []byte) (bool, wire.Errno) {
				// The last write of the fill was the first to any unit, so a later one is an overwrite.
				if r.Type == wire.CmdWrite && r.Length == 4096 {
					writes++
				}
				return r.Type == wire.CmdWrite && writes == 1500, wire.OK
			}
		}, "stale"},
		"a write lost in the fill": {func(s *memServer) func(wire.Request, []byte) (bool, wire.Errno) {
			return func(r wire.Request, _ []byte) (bool, wire.Errno) {
				return r.Type == wire.CmdWrite && r.Length > 4096 && r.Offset == 0, wire.OK
			}
		}, "zeroes"},
		"two swapped blocks": {func(s *memServer) func(wire.Request, []byte) (bool, wire.Errno) {
			return func(r wire.Request, p []byte) (bool, wire.Errno) {
				if r.Type != wire.CmdRead {
					return false, wire.OK
				}
				a, b := s.data[victim:victim+4096], s.data[victim+8192:victim+12288]
				tmp := bytes.Clone(a)
				copy(a, b)
				copy(b, tmp)
				s.hook = nil
				return false, wire.OK
			}
		}, "misplaced"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			srv := startMem(t, 4<<20)
			s := testSpec(srv.uri())
			srv.hook = tt.hook(srv)
			if tt.want != "stale" {
				s.ReadShare = 1 // nothing overwrites the damage
			} else {
				s.ReadShare, s.VerifyPass = 0, true
				s.Ops = 1500 // the lost write is the last, so it is not overwritten
			}
			res := mustRun(t, s)
			if res.Verify.Faults[tt.want] == 0 {
				t.Errorf("faults %v %q, want %s", res.Verify.Faults, res.Verify.Details, tt.want)
			}
			if len(res.Verify.Faults) != 1 {
				t.Errorf("more kinds of faults than injected: %v", res.Verify.Faults)
			}
		})
	}
}

// TestKill checks the rule for a server that dies: every answered write is
// there, an unanswered one may be.
func TestKill(t *testing.T) {
	for _, name := range []string{"nothing lost", "an answered write lost"} {
		t.Run(name, func(t *testing.T) {
			srv := startMem(t, 8<<20)
			s := testSpec(srv.uri())
			s.ReadShare, s.Ops, s.Fill, s.Connections = 0, 1<<40, false, 2
			s.TrimShare, s.ZeroShare = 0.1, 0.1
			s.State = filepath.Join(t.TempDir(), "state")
			n := 0
			var before []byte
			srv.hook = func(r wire.Request, _ []byte) (bool, wire.Errno) {
				n++
				if n == 1500 {
					before = bytes.Clone(srv.data)
				}
				if n == 2000 {
					for c := range srv.conns {
						_ = c.Close()
					}
				}
				// Some of what is never answered gets done, some does not.
				return n >= 2000 && n%2 == 0, wire.OK
			}
			res, err := Run(testContext(t), s)
			if !errors.Is(err, client.ErrDisconnected) || res == nil {
				t.Fatalf("got %v, want ErrDisconnected and a result", err)
			}
			if res.Verify.Doubts == 0 {
				t.Error("no unit in doubt although requests were in flight")
			}
			srv.kill()
			srv.hook = nil
			if name != "nothing lost" {
				srv.data = before
			}
			srv.start()

			s = NewSpec(srv.uri())
			s.VerifyOnly, s.State, s.Ops = true, res.Spec.State, 1<<40
			res = mustRun(t, s)
			if got, want := res.Damaged(), name != "nothing lost"; got != want {
				t.Errorf("damaged %v, want %v: %v %q", got, want, res.Verify.Faults, res.Verify.Details)
			}
			if res.Verify.Checked < 500 {
				t.Errorf("only %d units checked", res.Verify.Checked)
			}
			if name != "nothing lost" {
				return
			}
			// The run goes on from there, and doubts end with the next write.
			s.VerifyOnly, s.VerifyPass, s.Fill, s.Ops = false, true, true, 500
			res = mustRun(t, s)
			wantClean(t, res)
			if res.Verify.Doubts != 0 {
				t.Errorf("%d units in doubt after a fill", res.Verify.Doubts)
			}
		})
	}
}

// TestCut checks the rule for a power cut against a server whose disk keeps
// what was flushed and, of what came later, some sectors.
func TestCut(t *testing.T) {
	tests := []struct {
		name   string
		change func(s *Spec)
		lose   bool // what was flushed, too
	}{
		{"flushes", func(s *Spec) { s.FlushEvery = 20 }, false},
		{"fua", func(s *Spec) { s.FUA = true }, false},
		{"zeroes", func(s *Spec) { s.FlushEvery, s.ZeroShare, s.TrimShare, s.ExpectZero = 20, 0.1, 0.1, true }, false},
		{"a flush that lied", func(s *Spec) { s.FlushEvery = 20 }, true},
		{"fua that lied", func(s *Spec) { s.FUA = true }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := startMem(t, 2<<20)
			disk := make([]byte, len(srv.data)) // what survives
			n := 0
			frozen := false
			srv.hook = func(r wire.Request, p []byte) (bool, wire.Errno) {
				n++
				lie := tt.lose && n > 1500
				switch {
				case r.Type == wire.CmdFlush && n > 2900 && !lie:
					return false, wire.EIO // promises nothing: enough answered writes are lost
				case r.Type == wire.CmdFlush && !lie:
					copy(disk, srv.data)
				case r.Type == wire.CmdWrite && r.CommandFlags&wire.CmdFlagFUA != 0 && !lie:
					copy(disk[r.Offset:], p)
				case r.Type == wire.CmdWrite && n%3 == 0 && !lie && !frozen:
					// The second half of some writes gets to the disk early.
					copy(disk[r.Offset+2048:], p[2048:])
				}
				if n >= 3010 && !frozen { // or the next one, if that is a FLUSH
					frozen = true
					for c := range srv.conns {
						_ = c.Close()
					}
				}
				return false, wire.OK
			}
			s := testSpec(srv.uri())
			s.ReadShare, s.Ops, s.Fill, s.Connections = 0, 1<<40, false, 2
			s.State = filepath.Join(t.TempDir(), "state")
			tt.change(&s)
			if _, err := Run(testContext(t), s); !errors.Is(err, client.ErrDisconnected) {
				t.Fatal(err)
			}
			srv.kill()
			srv.hook = nil
			srv.data = disk
			srv.start()
			check := NewSpec(srv.uri())
			check.VerifyOnly, check.AfterCut, check.State, check.ExpectZero = true, true, s.State, s.ExpectZero
			res := mustRun(t, check)
			if res.Damaged() != tt.lose {
				t.Errorf("damaged %v, want %v: %v %q", res.Damaged(), tt.lose, res.Verify.Faults, res.Verify.Details)
			}
			if s.FUA {
				return // all that was answered is durable
			}
			check.AfterCut = false
			if res = mustRun(t, check); !res.Damaged() {
				t.Error("the rule for a kill does not notice a cut")
			}
		})
	}
}

func TestErrorsAreCounted(t *testing.T) {
	srv := startMem(t, 8<<20)
	n := 0
	srv.hook = func(r wire.Request, _ []byte) (bool, wire.Errno) {
		n++
		switch {
		case r.Type == wire.CmdWrite && n%50 == 0:
			return n%100 == 0, wire.ENOSPC // done or not
		case r.Type == wire.CmdRead && n%70 == 0:
			return false, wire.EIO
		}
		return false, wire.OK
	}
	res := mustRun(t, testSpec(srv.uri()))
	if res.Errors["ENOSPC"] == 0 || res.Errors["EIO"] == 0 || len(res.Errors) != 2 {
		t.Errorf("errors %v, want some ENOSPC and EIO", res.Errors)
	}
	if res.Damaged() {
		t.Errorf("a failed write counts as damage: %v %q", res.Verify.Faults, res.Verify.Details)
	}
}

func TestRate(t *testing.T) {
	srv := startMem(t, 1<<20)
	s := NewSpec(srv.uri())
	s.Duration, s.Ops, s.Rate, s.Connections = 0, 200, 1000, 2
	res := mustRun(t, s)
	// 200 operations at 1000/s cannot take less than 198 ms, on any machine.
	if res.Elapsed < 0.197 {
		t.Errorf("200 operations at 1000/s took %v s", res.Elapsed)
	}
	if res.Total.Ops != 200 {
		t.Errorf("%d operations", res.Total.Ops)
	}
}

func TestWarmupAndSamples(t *testing.T) {
	srv := startMem(t, 1<<20)
	s := NewSpec(srv.uri())
	s.Duration, s.Warmup, s.Interval = 300*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond
	var ops, samples int64
	s.OnInterval = func(m Sample) { ops += m.Ops; samples++ }
	res := mustRun(t, s)
	if samples == 0 || ops == 0 || ops > res.Total.Ops {
		t.Errorf("%d operations in %d samples of %d", ops, samples, res.Total.Ops)
	}
	if res.Verify != nil {
		t.Error("a run without verification has verification figures")
	}
}

func TestCancelWithDeadServer(t *testing.T) {
	srv := startMem(t, 1<<20)
	ctx, cancel := context.WithCancel(testContext(t))
	n := 0
	srv.hook = func(wire.Request, []byte) (bool, wire.Errno) {
		if n++; n == 100 {
			cancel()
		}
		return false, wire.OK
	}
	s := NewSpec(srv.uri())
	res, err := Run(ctx, s)
	if !errors.Is(err, context.Canceled) || res == nil {
		t.Errorf("got %v, %v", res, err)
	}
}

type sliceReader struct {
	recs []trace.Record
}

func (s *sliceReader) Next() (trace.Record, error) {
	if len(s.recs) == 0 {
		return trace.Record{}, io.EOF
	}
	r := s.recs[0]
	s.recs = s.recs[1:]
	return r, nil
}
func (s *sliceReader) Format() trace.Format { return trace.VSCSI }
func (s *sliceReader) Timed() bool          { return true }
func (s *sliceReader) Skipped() int64       { return 0 }
func (s *sliceReader) Close() error         { return nil }

func TestReplay(t *testing.T) {
	srv := startMem(t, 8<<20)
	var got []wire.Request
	srv.hook = func(r wire.Request, _ []byte) (bool, wire.Errno) {
		r.RequestMagic, r.Handle = 0, 0
		got = append(got, r)
		return false, wire.OK
	}
	recs := []trace.Record{
		{Write: true, Offset: 4096, Length: 8192},
		{Time: 10 * time.Millisecond, Offset: 700, Length: 100},
		{Time: 20 * time.Millisecond, Flush: true},
		{Time: 30 * time.Millisecond, Trim: true, Offset: 0, Length: 3 << 20},
		{Time: 40 * time.Millisecond, Offset: 3 << 30, Length: 4096},
		{Time: 50 * time.Millisecond, Offset: 1, Length: 0},
	}
	s := NewSpec(srv.uri())
	s.Trace, s.Verify, s.Duration, s.Depth = &sliceReader{recs}, true, 0, 1
	s.Fit = FitWrap
	res := mustRun(t, s)
	wantClean(t, res)
	want := []wire.Request{
		{Type: wire.CmdWrite, Offset: 4096, Length: 8192},
		{Type: wire.CmdRead, Offset: 512, Length: 512},
		{Type: wire.CmdFlush},
		{Type: wire.CmdTrim, Offset: 0, Length: 1 << 20},
		{Type: wire.CmdTrim, Offset: 1 << 20, Length: 1 << 20},
		{Type: wire.CmdTrim, Offset: 2 << 20, Length: 1 << 20},
		{Type: wire.CmdRead, Offset: 0, Length: 4096},
	}
	if len(got) != len(want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("request %d: %+v, want %+v", i, got[i], want[i])
		}
	}
	if res.Elapsed < 0.040 {
		t.Errorf("a trace of 40 ms was replayed in %v s", res.Elapsed)
	}

	s.Trace, s.Fit = &sliceReader{recs}, FitError
	if _, err := Run(testContext(t), s); !errors.Is(err, ErrFit) {
		t.Errorf("got %v, want ErrFit", err)
	}
	got = nil
	s.Trace, s.Fit, s.TraceSpan, s.Speed = &sliceReader{recs[4:5]}, FitScale, 4<<30, 0
	mustRun(t, s)
	if len(got) != 1 || got[0].Offset != 6<<20 {
		t.Errorf("scaled to %+v, want 6 MiB", got)
	}
}

func TestSpecFaults(t *testing.T) {
	s := Spec{Pattern: "x", Fit: FitError, ReadShare: 2, VerifyOnly: true}
	err := s.Validate()
	if !errors.Is(err, ErrSpec) {
		t.Fatal(err)
	}
	for _, word := range []string{"connections", "depth", "block size", "read share", "pattern", "state"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q is not told of: %v", word, err)
		}
	}
	good := NewSpec("unix:x")
	if err := good.Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	srv := startMem(t, 1<<20)
	big := NewSpec(srv.uri())
	big.BlockSize = 64 << 20
	if _, err := Run(testContext(t), big); !errors.Is(err, ErrSpec) {
		t.Errorf("a block above the limit: %v", err)
	}
}

// TestJSONKeys pins the names that programs rely on.
func TestJSONKeys(t *testing.T) {
	srv := startMem(t, 1<<20)
	s := testSpec(srv.uri())
	s.Ops = 100
	b, err := json.Marshal(mustRun(t, s))
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"spec.uri", "spec.block_size", "spec.seed", "size_bytes", "elapsed_seconds", "total.ops", "total.iops", "total.bytes_per_second",
		"total.mean_ns", "total.p50_ns", "total.p90_ns", "total.p99_ns", "total.p999_ns", "total.max_ns", "by_op.read.iops", "by_op.write.bytes",
		"errors", "schedule_lag_max_ns", "fill_seconds", "verify_seconds", "verify.checked_units", "verify.mismatches", "verify.faults",
		"verify.details", "verify.unit_bytes", "verify.units_in_doubt",
	} {
		v := any(m)
		for _, key := range strings.Split(path, ".") {
			obj, _ := v.(map[string]any)
			var ok bool
			if v, ok = obj[key]; !ok {
				t.Errorf("%s is missing", path)
				break
			}
		}
	}
}

func TestStateRefusesDamage(t *testing.T) {
	l := newLedger(1<<20, 4096, 7, false)
	l.settle(0, 8192, kindData, true, false)
	l.settle(4096, 4096, kindZero, false, false)
	path := filepath.Join(t.TempDir(), "state")
	if err := saveLedger(path, l); err != nil {
		t.Fatal(err)
	}
	got, err := loadLedger(path, 1<<20, false)
	if err != nil {
		t.Fatal(err)
	}
	if got.seed != 7 || got.words[0] != 1 || got.words[1] != 1 || got.words[2] != 0 || len(got.doubts[1]) != 1 || got.doubts[1][0] != kindZero|2 {
		t.Errorf("loaded %v %v %v", got.seed, got.words[:3], got.doubts)
	}
	if _, err := loadLedger(path, 2<<20, false); !errors.Is(err, ErrState) {
		t.Errorf("another size: %v", err)
	}
	if _, err := loadLedger(path+"x", 1<<20, false); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	var plain bytes.Buffer
	if err := writeLedger(&plain, l); err != nil {
		t.Fatal(err)
	}
	for i := range plain.Len() {
		b := bytes.Clone(plain.Bytes())
		b[i] ^= 1
		if _, err := readLedger(bytes.NewReader(b), 1<<20, false); !errors.Is(err, ErrState) {
			t.Fatalf("byte %d flipped: %v", i, err)
		}
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("temporary files stay: %v", entries)
	}
}
