package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tierd/nbd/load"
	"tierd/pkg/control"
	"tierd/pkg/units"
)

// small is a demonstration of some seconds.
func small() shape {
	s := standard()
	s.SSD, s.FC, s.SATA, s.Volume = 24*units.MiB, 40*units.MiB, 96*units.MiB, 64*units.MiB
	s.Cycle, s.PerCycle, s.Load, s.Edge = 500*time.Millisecond, 4*units.MiB, 12*time.Second, 3*time.Second
	return s
}

// build makes the programs.
func build(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", bin+"/", "tierd/cmd/tierd", "tierd/cmd/tierctl").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return bin
}

// leftovers returns the folders of demonstrations in the test's temporary folder.
func leftovers(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(os.TempDir(), "tierd-demo-*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestDemo runs a short demonstration from the begin to the end. How much faster
// it gets is for `make demo` to judge: some seconds on a busy machine say little.
func TestDemo(t *testing.T) {
	bin := build(t)
	t.Setenv("TMPDIR", t.TempDir())
	var out bytes.Buffer
	err := demo(t.Context(), &out, bin, small(), false)
	if err != nil && !strings.HasPrefix(err.Error(), "the end is not 3 times as fast") {
		t.Fatalf("got %v\n%s", err, &out)
	}
	for _, want := range []string{"Filling a volume of 64MiB", " TIME ", "12s", "SATA", "that the budget allows", "no damage: checked 1 volume with"} {
		if err == nil && !strings.Contains(out.String(), want) {
			t.Errorf("got no %q in\n%s", want, &out)
		}
	}
	if list := leftovers(t); len(list) > 0 {
		t.Errorf("left behind: %v", list)
	}
}

// TestDemoInterrupted ends a demonstration in the middle: nothing stays.
func TestDemoInterrupted(t *testing.T) {
	bin := build(t)
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var out bytes.Buffer
	if err := demo(ctx, &out, bin, small(), false); err == nil {
		t.Errorf("got no error\n%s", &out)
	}
	if list := leftovers(t); len(list) > 0 {
		t.Errorf("left behind: %v", list)
	}
}

// history makes a meter by hand: reads of two tiers and requests for each second.
func history(reads [][2]int64, means []time.Duration, ops []int64) *meter {
	m := &meter{}
	begin := time.Unix(1e9, 0)
	var sum [2]int64
	add := func(i int) {
		m.shots = append(m.shots, snapshot{
			at:    begin.Add(time.Duration(i) * time.Second),
			tiers: []control.Tier{{Name: "ssd", Reads: sum[0]}, {Name: "sata", Reads: sum[1]}},
			moved: []control.Moved{{From: "sata", To: "ssd", Bytes: int64(i) << 20}},
			cycle: uint64(i),
		})
	}
	add(0)
	for i, r := range reads {
		sum[0] += r[0]
		sum[1] += r[1]
		add(i + 1)
		m.marks = append(m.marks, load.Sample{At: time.Duration(i+1) * time.Second, Length: time.Second, Ops: ops[i], Mean: means[i]})
	}
	return m
}

// TestEdges compares begin and end of a load of four seconds.
func TestEdges(t *testing.T) {
	m := history(
		[][2]int64{{10, 90}, {20, 80}, {150, 50}, {170, 30}},
		[]time.Duration{30 * time.Millisecond, 10 * time.Millisecond, 6 * time.Millisecond, 2 * time.Millisecond},
		[]int64{100, 300, 100, 300},
	)
	first, last, err := m.edges(2 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if want := (edge{mean: 15 * time.Millisecond, iops: 200, share: 0.15}); first != want {
		t.Errorf("first: got %+v, want %+v", first, want)
	}
	if want := (edge{mean: 3 * time.Millisecond, iops: 200, share: 0.8}); last != want {
		t.Errorf("last: got %+v, want %+v", last, want)
	}
	if _, _, err := m.edges(3 * time.Second); err == nil {
		t.Error("edges that overlap: got no error")
	}
}

// TestSummaryFaults checks what a demonstration fails for.
func TestSummaryFaults(t *testing.T) {
	s := small()
	s.Edge, s.Rate, s.PerCycle = 2*time.Second, units.Rate(units.MiB), units.MiB
	fast := []time.Duration{30 * time.Millisecond, 30 * time.Millisecond, 2 * time.Millisecond, 2 * time.Millisecond}
	slow := []time.Duration{30 * time.Millisecond, 30 * time.Millisecond, 20 * time.Millisecond, 2 * time.Millisecond}
	reads, ops := [][2]int64{{1, 9}, {1, 9}, {9, 1}, {9, 1}}, []int64{100, 100, 100, 100}
	tests := []struct {
		name   string
		means  []time.Duration
		change func(*meter, *shape, *load.Result)
		want   string // "": no fault
	}{
		{"good", fast, func(*meter, *shape, *load.Result) {}, ""},
		{"not faster", slow, func(*meter, *shape, *load.Result) {}, "the end is not 3 times as fast"},
		{"over the rate", fast, func(_ *meter, s *shape, _ *load.Result) { s.Rate /= 2 }, "more was moved than the budget allows"},
		{"over the cycles", fast, func(_ *meter, s *shape, _ *load.Result) { s.PerCycle /= 2 }, "more was moved than the budget allows"},
		{"nothing moved", fast, func(m *meter, _ *shape, _ *load.Result) {
			for i := range m.shots {
				m.shots[i].moved = nil
			}
		}, "nothing was moved"},
		{"wrong data", fast, func(_ *meter, _ *shape, r *load.Result) { r.Verify.Mismatches = 1 }, "1 blocks were not"},
		{"errors", fast, func(_ *meter, _ *shape, r *load.Result) { r.Errors["EIO"] = 2 }, "2 requests failed: EIO"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			m, s, r := history(reads, tc.means, ops), s, &load.Result{Errors: map[string]int64{}, Verify: &load.VerifyStats{}}
			tc.change(m, &s, r)
			sum, err := summarise(s, m, r)
			if err != nil {
				t.Fatal(err)
			}
			switch err := sum.err(); {
			case tc.want == "" && err != nil:
				t.Errorf("got %v, want no fault", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
