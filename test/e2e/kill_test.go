package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// benchReport is what the tests read of the load generator's report.
type benchReport struct {
	Error   string
	Elapsed float64 `json:"elapsed_seconds"`
	Total   struct {
		Ops int64
	}
	ByOp map[string]struct {
		Ops  int64
		Mean int64 `json:"mean_ns"`
	} `json:"by_op"`
	Errors map[string]int64
	Verify *struct {
		Checked    int64 `json:"checked_units"`
		Mismatches int64
		Doubts     int64 `json:"units_in_doubt"`
		Details    []string
	}
	Intervals []struct {
		Ops int64
	}
}

// load is a load generator that runs.
type load struct {
	t      testing.TB
	cmd    *exec.Cmd
	out    bytes.Buffer
	errOut bytes.Buffer
}

// startBench starts the load generator on a volume.
func (s *site) startBench(volume string, args ...string) *load {
	s.t.Helper()
	l := &load{t: s.t}
	l.cmd = exec.Command(filepath.Join(*binDir, "tierctl"), append([]string{"bench", "-o", "json", "--uri", s.uri(volume)}, args...)...)
	l.cmd.Dir = s.dir
	l.cmd.Stdout, l.cmd.Stderr = &l.out, &l.errOut
	if err := l.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = l.cmd.Process.Kill() })
	return l
}

// wait returns the report and the exit code.
func (l *load) wait() (r benchReport, code int) {
	l.t.Helper()
	watchdog := time.AfterFunc(commandTime, func() { _ = l.cmd.Process.Signal(syscall.SIGQUIT) })
	defer watchdog.Stop()
	_ = l.cmd.Wait() // the exit code says it
	if err := json.Unmarshal(l.out.Bytes(), &r); err != nil {
		l.t.Fatalf("report of the load: %v\n%s%s", err, &l.out, &l.errOut)
	}
	return r, l.cmd.ProcessState.ExitCode()
}

// bench runs the load generator to its end, which has to be a good one.
func (s *site) bench(volume string, args ...string) benchReport {
	s.t.Helper()
	l := s.startBench(volume, args...)
	r, code := l.wait()
	if code != 0 {
		s.t.Fatalf("bench %q: exit code %d\n%s%s", args, code, tail(l.out.String(), 40), &l.errOut)
	}
	return r
}

// verify checks that all that a load knows to be written is there.
func (s *site) verify(volume, state string) {
	s.t.Helper()
	l := s.startBench(volume, "--verify-only", "--state", state, "--connections", "2")
	r, code := l.wait()
	if code != 0 || r.Verify == nil || r.Verify.Mismatches != 0 {
		s.t.Fatalf("answered writes are not there: exit code %d\n%+v\n%s", code, r.Verify, &l.errOut)
	}
	if r.Verify.Checked == 0 {
		s.t.Fatal("nothing was there to be checked")
	}
}

// seeded returns a generator whose seed is logged.
func seeded(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// A kill at any moment of a load of writes, trims and zeroes, while extents move all
// the time and nothing is ever flushed, or rarely: every answered change is there
// after the restart, round after round on the same pool.
func TestEveryAnsweredWriteSurvivesAKill(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		extent string
		load   []string
	}{
		{"without flush", "64KiB", []string{"--bs", "4KiB", "--pattern", "zipf", "--grain", "64KiB", "--trim", "3%", "--zero", "3%"}},
		{"with flushes and large writes", "256KiB", []string{"--bs", "96KiB", "--flush-every", "40", "--trim", "10%", "--depth", "8"}},
		{"with FUA", "64KiB", []string{"--bs", "16KiB", "--fua", "--depth", "4"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := seeded(t)
			tiers := movingTiers()
			s := newPool(t, layout{tiers: tiers, extent: tt.extent, volumes: "{name: home, size: 64MiB}", relocation: mover, extra: shortHeat})
			state := s.path("state")
			moved := 0.0
			for i := range *kills {
				d := s.start()
				if i > 0 {
					s.verify("home", state)
				}
				l := s.startBench("home", append(tt.load, "--read", "30%", "--verify", "--state", state,
					"--connections", "4", "--time", "60s", "--seed", fmt.Sprint(r.Uint32()))...)
				time.Sleep(time.Duration(500+r.IntN(1500)) * time.Millisecond)
				moved += d.metric("tierd_relocation_moved_extents_total")
				time.Sleep(time.Duration(r.IntN(100_000)) * time.Microsecond)
				d.kill()
				if rep, code := l.wait(); code != 1 || rep.Errors["disconnected"] == 0 {
					t.Fatalf("round %d: the load ended with exit code %d, %+v\n%s", i, code, rep.Errors, &l.errOut)
				} else if rep.Verify.Mismatches != 0 {
					t.Fatalf("round %d: wrong reads: %+v", i, rep.Verify)
				}
				if i%2 == 1 {
					s.checkPool(false) // what the next start puts right is no damage
				}
			}
			d := s.start()
			s.verify("home", state)
			continuity := s.status().ContinuityID
			s.healed()
			d.stop()
			s.checkPool(true)
			d = s.start()
			s.verify("home", state)
			if now := s.status().ContinuityID; now != continuity {
				t.Error("the continuity id changed, though nothing was lost")
			}
			d.stop()
			if moved == 0 {
				t.Error("nothing moved under the load")
			}
			t.Logf("%g extents moved", moved)
		})
	}
}

// The promise is not bought with fsync: a load that asks for no durability causes
// next to no syncs.
func TestWritesWithoutFlushCauseHardlyAnySync(t *testing.T) {
	t.Parallel()
	tiers := twoTiers()
	tiers[1].size = "128MiB"
	s, d := running(t, layout{tiers: tiers, volumes: "{name: home, size: 96MiB}"}) // and no moves, which sync by design
	before := d.metric("tierd_backing_sync_duration_seconds")
	r := s.bench("home", "--read", "0%", "--bs", "4KiB", "--ops", "60000", "--verify-pass", "--connections", "4", "--depth", "16")
	writes := d.metric("tierd_volume_requests_total", "op=write")
	syncs := d.metric("tierd_backing_sync_duration_seconds") - before
	// A commit of the metadata syncs its file twice.
	commits := d.metric("tierd_metadata_commits_total")
	t.Logf("%g syncs and %g commits for %g writes in %.1f s", syncs, commits, writes, r.Elapsed)
	syncs += 2 * commits
	if writes < 60000 {
		t.Errorf("only %g writes were counted", writes)
	}
	if syncs/writes > 0.01 {
		t.Errorf("%g syncs for %g writes: more than 0.01 a write", syncs, writes)
	}
	s.healed()
	d.stop()
	s.checkPool(true)
}

// A delete that was answered is done in the end, whenever the daemon is killed; the
// other volumes keep what they have, and the space comes back.
func TestKillDuringVolumeDelete(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	s := newPool(t, layout{tiers: []tierLayout{{name: "ssd", media: "ssd", size: "400MiB"}}, volumes: "{name: home, size: 16MiB}"})
	d := s.start()
	s.bench("home", "--read", "0%", "--bs", "64KiB", "--ops", "1000", "--verify", "--state", s.path("state"))
	home := s.volume("home").AllocatedBytes
	for round := range *kills {
		s.ctl("volume", "create", "doomed", "380MiB")
		// 5,600 extents: more than one commit's worth.
		s.bench("doomed", "--read", "0%", "--pattern", "sequential", "--bs", "64KiB", "--ops", "5600")
		cmd := exec.Command(filepath.Join(*binDir, "tierctl"), "--config", s.config, "volume", "delete", "doomed")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(r.IntN(60_000)) * time.Microsecond)
		d.kill()
		answered := cmd.Wait() == nil
		s.checkPool(false)
		d = s.start()
		there := false
		for _, v := range s.volumes() {
			there = there || v.Name == "doomed" && v.State == "ok"
		}
		t.Logf("round %d: answered %v, still there %v", round, answered, there)
		if answered && there {
			t.Errorf("round %d: the delete was answered, and the volume is back", round)
		}
		if there {
			s.ctl("volume", "delete", "doomed")
		}
		eventually(t, "the space is back", 20*time.Second, func() bool { return s.status().UsedBytes == home })
		eventually(t, "the volume is forgotten", 20*time.Second, func() bool { return len(s.volumes()) == 1 })
		s.verify("home", s.path("state"))
	}
	s.healed()
	d.stop()
	s.checkPool(true)
}

// Killed in the middle of moves, again and again, with reads alone going on: no
// extent is lost or doubled.
func TestKillDuringRelocation(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	s := newPool(t, layout{tiers: movingTiers(), volumes: "{name: home, size: 96MiB}", relocation: mover, extra: shortHeat})
	d := s.start()
	state := s.path("state")
	s.bench("home", "--read", "0%", "--pattern", "sequential", "--bs", "64KiB", "--ops", "1536", "--verify", "--state", state)
	moved := 0.0
	for round := range *kills {
		// Each round makes other regions hot.
		l := s.startBench("home", "--read", "100%", "--pattern", "zipf", "--grain", "64KiB", "--theta", "1.1", "--seed", fmt.Sprint(round+1),
			"--time", "60s", "--depth", "16", "--connections", "2")
		eventually(t, "extents move", 20*time.Second, func() bool { return d.metric("tierd_relocation_moves_in_flight") > 0 })
		time.Sleep(time.Duration(r.IntN(300_000)) * time.Microsecond)
		moved += d.metric("tierd_relocation_moved_extents_total")
		d.kill()
		if _, code := l.wait(); code != 1 {
			t.Fatalf("the load ended with exit code %d\n%s", code, &l.errOut)
		}
		s.checkPool(false)
		d = s.start()
		s.verify("home", state)
		if n := s.volume("home").AllocatedBytes; n != 96*mib {
			t.Fatalf("%d bytes are allocated, %d were written", n, 96*mib)
		}
	}
	s.ctl("relocation", "pause")
	eventually(t, "targets of moves under way are given back", 20*time.Second, func() bool { return s.status().UsedBytes == 96*mib })
	s.healed()
	d.stop()
	s.checkPool(true)
	t.Logf("%g extents moved", moved)
	if moved == 0 {
		t.Error("nothing moved")
	}
}

// A second kill while the daemon starts up after the first one.
func TestKillDuringRecovery(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	s := newPool(t, layout{tiers: movingTiers(), volumes: "{name: home, size: 64MiB}", relocation: mover, extra: shortHeat})
	state := s.path("state")
	for range *kills {
		d := s.start()
		l := s.startBench("home", "--read", "10%", "--bs", "4KiB", "--trim", "2%", "--verify", "--state", state, "--connections", "2",
			"--time", "60s", "--seed", fmt.Sprint(r.Uint32()))
		time.Sleep(time.Duration(300+r.IntN(500)) * time.Millisecond)
		d.kill()
		if _, code := l.wait(); code != 1 {
			t.Fatalf("the load ended with exit code %d\n%s", code, &l.errOut)
		}
		for range 4 {
			again := s.launch()
			time.Sleep(time.Duration(r.IntN(60_000)) * time.Microsecond)
			select {
			case <-again.ended:
				t.Fatalf("the daemon refused to start: %v\n%s", again.cmd.ProcessState, again.log.String())
			default:
			}
			again.kill()
		}
		d = s.start()
		s.verify("home", state)
		s.healed()
		d.stop()
		s.checkPool(true)
	}
}

// A stop under load is no kill: what was answered is there, and nothing needs to be
// recovered.
func TestStopUnderLoadIsClean(t *testing.T) {
	t.Parallel()
	s := newPool(t, layout{tiers: movingTiers(), volumes: "{name: home, size: 64MiB}", relocation: mover, extra: shortHeat})
	state := s.path("state")
	for i := range 3 {
		d := s.start()
		l := s.startBench("home", "--read", "30%", "--bs", "4KiB", "--verify", "--state", state, "--connections", "4", "--time", "60s", "--seed", fmt.Sprint(i+1))
		time.Sleep(time.Second)
		d.stop()
		if _, code := l.wait(); code != 1 {
			t.Fatalf("the load ended with exit code %d\n%s", code, &l.errOut)
		}
		s.checkPool(true)
		d = s.start()
		if d.logged("recovered") {
			t.Error("the start after a clean stop recovered something")
		}
		s.verify("home", state)
		d.stop()
		if !strings.Contains(d.log.String(), `"msg":"stopped"`) {
			t.Errorf("no word of the stop in the log")
		}
	}
}

// A pool that is full most of the time, under writes that are refused, trims that
// make room, moves that look for some, and kills.
func TestKillOfAFullPool(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	s := newPool(t, layout{
		tiers: []tierLayout{
			{name: "ssd", media: "ssd", size: "18MiB", options: ", preallocate: true"},
			{name: "sata", media: "hdd", size: "40MiB", files: 2, options: ", preallocate: true, simulate: {latency: 300us}"},
		},
		volumes: "{name: home, size: 160MiB}", relocation: mover, extra: shortHeat,
	})
	state := s.path("state")
	refused := 0.0
	for i := range *kills {
		d := s.start()
		if i > 0 {
			s.verify("home", state)
		}
		l := s.startBench("home", "--read", "30%", "--bs", "64KiB", "--trim", "30%", "--verify", "--state", state,
			"--connections", "4", "--depth", "8", "--time", "60s", "--seed", fmt.Sprint(r.Uint32()))
		time.Sleep(time.Duration(1500+r.IntN(1500)) * time.Millisecond)
		refused += d.metric("tierd_volume_request_errors_total", "op=write")
		d.kill()
		if rep, code := l.wait(); code != 1 || rep.Verify == nil || rep.Verify.Mismatches != 0 {
			t.Fatalf("round %d: the load ended with exit code %d, %+v, %+v\n%s", i, code, rep.Errors, rep.Verify, &l.errOut)
		}
		s.checkPool(false)
	}
	d := s.start()
	s.verify("home", state)
	s.healed()
	d.stop()
	s.checkPool(true)
	t.Logf("%g writes were refused", refused)
	if refused == 0 {
		t.Error("the pool was never full")
	}
}
