package model

import (
	"flag"
	"testing"
)

var (
	crashRuns = flag.Int("crash-runs", 3, "random lives of a pool with crashes at random moments")
	bootRuns  = flag.Int("boot-runs", 4, "random lives of a pool over many boots")
	faultRuns = flag.Int("fault-runs", 4, "random lives of a pool with a failed sync or commit")
)

// crashRunsOf makes n runs and prints what they did.
func crashRunsOf(t *testing.T, prof CrashProfile, n int) CrashCounts {
	seed := Seed(t)
	var total CrashCounts
	for i := range uint64(n) {
		r := NewCrashRun(t, prof, seed+i)
		r.Run()
		total.add(r.Counts)
	}
	t.Logf("%d runs: %v", n, total)
	return total
}

// TestRandomCrashes lets much go on at once, and ends it at random moments by kills
// and power cuts: what was answered, or flushed, is there, whatever judges it.
func TestRandomCrashes(t *testing.T) {
	n := crashRunsOf(t, RandomCrashes, *crashRuns)
	if n.Kills == 0 || n.Cuts == 0 || n.Relocation == 0 || n.Drains == 0 {
		t.Error("the runs show nothing")
	}
}

// TestMovingCrashes does so with few extents, which move under their writers.
func TestMovingCrashes(t *testing.T) {
	n := crashRunsOf(t, Moving, *crashRuns)
	if n.Kills == 0 || n.Cuts == 0 || n.Relocation == 0 {
		t.Error("the runs show nothing")
	}
}

// TestBoots goes through many boots with kills, power cuts and devices that come
// back: only what was flushed, and what the last boot answered, counts.
func TestBoots(t *testing.T) {
	n := crashRunsOf(t, Boots, *bootRuns)
	if n.Kills == 0 || n.Cuts == 0 || n.Reattached == 0 {
		t.Error("the runs show nothing")
	}
}

// TestFaultyCrashes: the same, after a sync of a backing or a commit has failed.
func TestFaultyCrashes(t *testing.T) {
	if n := crashRunsOf(t, Faulty, *faultRuns); n.Failures == 0 && *faultRuns >= 12 { // not every run meets its fault
		t.Error("the runs show nothing")
	}
}
