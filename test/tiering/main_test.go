package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tierd/nbd/load"
	"tierd/test/awake"
	"tierd/test/faultfs"
)

func TestMain(m *testing.M) {
	faultfs.Main()
	awake.Main()
	os.Exit(m.Run())
}

// TestQuick runs all scenarios for some seconds each: budgets are kept to the byte, and
// the benchmark works.
func TestQuick(t *testing.T) {
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", bin+"/", "tierd/cmd/tierd", "tierd/cmd/tierctl").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "figures.json")
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"-quick", "-bin", bin, "-dir", dir, "-json", file}, &out, &errs)
	t.Logf("%s%s", &errs, &out)
	if code != 0 {
		t.Fatalf("exit code %d", code)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	if r.Converge == nil || r.Ideal == nil || r.Phase == nil || r.Grain == nil || r.Foreground == nil || r.Uniform == nil {
		t.Errorf("a scenario has no figures: %s", data)
	}
	if r.Budget == nil && len(r.Skipped) == 0 {
		t.Error("the budgets were neither measured nor skipped")
	}
	for _, m := range r.Marks {
		if !m.Met {
			t.Errorf("%s: got %g, want at most %g", m.Name, m.Value, m.Limit)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"-scenarios", "converge,none"}, `no scenario "none"`},
		{[]string{"-rounds", "0"}, "-rounds must be at least 1"},
		{[]string{"-half", "0s"}, "-half 1s"},
		{[]string{"-rate", "-1"}, "-rate must not be negative"},
		{[]string{"-seed", "0"}, "-seed must not be 0"},
		{[]string{"-theta", "0"}, "-theta must be above 0"},
		{[]string{"-per-cycle", "0"}, "-per-cycle must be above 0"},
		{[]string{"-volume", "2GiB"}, "larger than the volume"},
		{[]string{"-volume", "100KiB"}, "multiple of -extent"},
		{[]string{"-ssd", "much"}, "much"},
		{[]string{"-o", "xml"}, `got "xml"`},
	} {
		var out, errs bytes.Buffer
		if code := run(context.Background(), tt.args, &out, &errs); code != 2 || !strings.Contains(errs.String(), tt.want) {
			t.Errorf("%v: exit code %d, %q, want 2 and %q", tt.args, code, &errs, tt.want)
		}
	}
}

func TestMovesOf(t *testing.T) {
	const line = `time=2026-12-01T15:20:%02d.5Z level=DEBUG msg="move ended" extent=%s from=%d to=%d kind=promotion reason=hot outcome=%s why="" error=<nil> bytes=%d took=1ms` + "\n"
	log := "time=2026-12-01T15:20:00Z level=INFO msg=serving\n" +
		fmt.Sprintf(line, 1, "1/7", 2, 0, "done", 1<<20) +
		fmt.Sprintf(line, 2, "1/8", 0, 2, "done", 1<<20) +
		fmt.Sprintf(line, 4, "1/7", 0, 1, "done", 1<<20+131072) +
		fmt.Sprintf(line, 5, "1/8", 2, 0, "abandoned", 131072) +
		fmt.Sprintf(line, 30, "1/8", 2, 0, "done", 1<<20)
	moves, err := movesOf(log)
	if err != nil {
		t.Fatal(err)
	}
	if bytes, extents := sum(moves); bytes != 4<<20+2*131072 || extents != 4 {
		t.Errorf("sum = %d bytes, %d extents, want %d, 4", bytes, extents, 4<<20+2*131072)
	}
	// 1/7 comes back after 3 s, 1/8 after 28 s; what was given up changes nothing.
	for within, want := range map[time.Duration]int64{2 * time.Second: 0, 10 * time.Second: 1, time.Minute: 2} {
		if got := pingPongs(moves, within); got != want {
			t.Errorf("pingPongs within %v = %d, want %d", within, got, want)
		}
	}
}

// TestBudgets holds made up movement against budgets.
func TestBudgets(t *testing.T) {
	begin := time.Unix(1e9, 0)
	at := func(ms int, cycle uint64, moved, written int64) shot {
		return shot{begin.Add(time.Duration(ms) * time.Millisecond), cycle, moved, written}
	}
	shots := []shot{at(0, 1, 10, 10), at(500, 1, 10, 30), at(1000, 2, 150, 150), at(1500, 2, 150, 200), at(2000, 3, 420, 430)}
	for perCycle, want := range map[int64]int64{100: 20, 105: 0, 104: 4} {
		if got := excess(shots, perCycle); got != want {
			t.Errorf("excess over %d a cycle = %d, want %d", perCycle, got, want)
		}
	}
	if over, most := excessWritten(shots, 50); over != 0 || most != 50 {
		t.Errorf("excessWritten = %d, %d, want 0, 50", over, most)
	}
	if over, most := excessWritten(shots, 49); over != 1 || most != 50 {
		t.Errorf("excessWritten = %d, %d, want 1, 50", over, most)
	}
	// From 1.5 s on 230 in half a second, at 100 a second; before, less than the rate at
	// first, and so from 0.5 s to 2 s 400 where 150 are allowed.
	if got := burst(shots, 100); math.Abs(got-250) > 1e-6 {
		t.Errorf("burst = %v, want 250", got)
	}
	if got := burst(shots[:2], 100); got != 0 {
		t.Errorf("burst = %v, want 0", got)
	}
}

func TestCurve(t *testing.T) {
	var samples []load.Sample
	for i, mean := range []int{20, 18, 12, 8, 4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2} {
		samples = append(samples, load.Sample{At: time.Duration(i+1) * time.Second, Ops: 10, Mean: time.Duration(mean) * time.Millisecond})
	}
	// The goal is 22 - 18 = 4 ms; the mean of four is 4.25 after 7 s and 2.75 after 8.
	if got, want := curveOf(22*time.Millisecond, samples), (curve{22, 2, 8}); got != want {
		t.Errorf("curveOf = %+v, want %+v", got, want)
	}
	if got, want := curveOf(time.Millisecond, samples), (curve{1, 2, -1}); got != want {
		t.Errorf("curveOf without gain = %+v, want %+v", got, want)
	}
}

func TestShares(t *testing.T) {
	offsets := []int64{3, 2, 1, 0} // of regions of 1 byte, in extents of 2
	shares := []float64{0.4, 0.3, 0.2, 0.1}
	if got, want := tierShares([]byte{2, 0}, 2, offsets, shares), [3]float64{0.7, 0, 0.3}; math.Abs(got[0]-want[0])+got[1]+math.Abs(got[2]-want[2]) > 1e-9 {
		t.Errorf("tierShares = %v, want %v", got, want)
	}
	if got := bestShare(1, 2, offsets, shares); math.Abs(got-0.7) > 1e-9 {
		t.Errorf("bestShare of extents = %v, want 0.7", got)
	}
	if got := bestShare(2, 1, []int64{3, 1, 2, 0}, shares); math.Abs(got-0.7) > 1e-9 {
		t.Errorf("bestShare of blocks = %v, want 0.7", got)
	}
	o := options{theta: 1}
	got, share := o.ranking(8192*4, 8192, 5)
	if len(got) != 4 || math.Abs(share[0]-12.0/25) > 1e-9 || math.Abs(share[3]-3.0/25) > 1e-9 {
		t.Errorf("ranking = %v, %v", got, share)
	}
	seen := map[int64]bool{}
	for _, off := range got {
		seen[off] = true
	}
	if len(seen) != 4 || !seen[0] || !seen[3*8192] {
		t.Errorf("ranking = %v, want all four regions", got)
	}
}

func TestMarks(t *testing.T) {
	r := report{}
	r.mark("met", 1, 1, true)
	if r.missed() {
		t.Error("a value at its limit misses the mark")
	}
	quick := report{quick: true}
	quick.mark("timed", 2, 1, true)
	if quick.missed() {
		t.Error("a quick run judges times")
	}
	quick.mark("bytes", 1, 0, false)
	r.mark("missed", 1.01, 1, true)
	if !r.missed() || !quick.missed() {
		t.Error("a value above its limit does not miss the mark")
	}
}
