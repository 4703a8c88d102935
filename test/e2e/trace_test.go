package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// shares are the reads that the tiers served, at one moment.
type shares struct{ top, all, requests float64 }

func (d *daemon) shares() (s shares) {
	d.site.t.Helper()
	f := d.families()
	reads := f["tierd_tier_requests_total"]
	s.top, s.all = sum(reads, "tier=ssd", "op=read"), sum(reads, "op=read")
	s.requests = sum(f["tierd_volume_requests_total"])
	return s
}

// A trace of two hours of a virtual disk, replayed 240 times as fast, with cycle and
// half-lives as much shorter: every byte read is what was last written, and the top
// tier, an eighth of the volume, serves more of the second hour than of the first.
func TestReplayOfATraceMovesHotDataUp(t *testing.T) {
	t.Parallel()
	if raceDetector && !*long {
		t.Skip("with the race detector this takes four minutes: run it with -long")
	}
	trace, err := filepath.Abs(filepath.Join("..", "..", "..", "shared", "traces", "cloudPhysicsIO.vscsi"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(trace); err != nil {
		t.Skipf("there is no trace: %v", err)
	}
	const size = 1 << 30
	s, d := running(t, layout{
		extent: "256KiB",
		tiers: []tierLayout{
			{name: "ssd", media: "ssd", size: "140MiB", options: ", simulate: {latency: 50us}"},
			{name: "sata", media: "hdd", size: "1200MiB", options: ", simulate: {latency: 400us}"},
		},
		volumes:    "{name: home, size: 1GiB}",
		relocation: "{cycle: 1250ms, budget: {rate: 100MiB/s}}",
		extra:      "heat: {short_half_life: 15s, long_half_life: 6m}",
	})
	state := s.path("state")
	// The volume is full before, so that every read is a read of some tier.
	s.bench("home", "--read", "0%", "--pattern", "sequential", "--bs", "1MiB", "--ops", "1024", "--depth", "4", "--verify", "--state", state)

	start := d.shares()
	l := s.startBench("home", "--trace", trace, "--fit", "wrap", "--speed", "240", "--depth", "64", "--verify", "--verify-pass", "--state", state)
	const ops = 113872
	half := start
	for half.requests-start.requests < ops/2 {
		time.Sleep(100 * time.Millisecond)
		half = d.shares()
	}
	var end shares
	for end = half; end.requests-start.requests < ops; {
		time.Sleep(20 * time.Millisecond)
		end = d.shares()
	}
	r, code := l.wait()
	if code != 0 || r.Verify == nil || r.Verify.Mismatches != 0 || r.Verify.Checked < size/4096 {
		t.Fatalf("replay: exit code %d, %+v\n%s", code, r.Verify, &l.errOut)
	}
	first := (half.top - start.top) / (half.all - start.all)
	second := (end.top - half.top) / (end.all - half.all)
	moved := d.metric("tierd_relocation_moved_extents_total")
	t.Logf("%.1f s, reads served by the top tier: first half %.1f%%, second half %.1f%%; %g extents moved", r.Elapsed, first*100, second*100, moved)
	if second <= first {
		t.Errorf("the top tier served %.1f%% of the reads in the first half and %.1f%% in the second", first*100, second*100)
	}
	d.stop()
	s.checkPool(true)
}
