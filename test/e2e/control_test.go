package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// SIGTERM lets the requests in flight finish, and the next start has nothing to
// recover.
func TestSigtermDrainsAndStopsCleanly(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		s, d := running(t, layout{
			tiers:   []tierLayout{{name: "ssd", media: "ssd", size: "32MiB", options: ", simulate: {latency: 1us}"}},
			volumes: "{name: home, size: 16MiB}",
		})
		c := s.dial("home")
		for i := range int64(8) {
			c.write(i*64<<10, 512, 1)
		}
		c.hangUp()
		d.stop()
		// Eight slow writes are under way when the signal comes.
		s.edit("latency: 1us", "latency: 800ms")
		d = s.start()
		c = s.dial("home")
		var wg sync.WaitGroup
		failed := make([]error, 8)
		for i := range failed {
			wg.Go(func() {
				failed[i] = c.WriteAt(content(int64(i)*64<<10, 4096, 2), int64(i)*64<<10, false)
			})
		}
		eventually(t, "the writes are under way", 10*time.Second, func() bool {
			return d.metric("tierd_nbd_requests_in_flight") == 8
		})
		d.signal(sig)
		wg.Wait()
		for i, err := range failed {
			if err != nil {
				t.Errorf("%v: write %d was cut off: %v", sig, i, err)
			}
		}
		if code := d.wait(); code != 0 {
			t.Errorf("%v: exit code %d\n%s", sig, code, d.log.String())
		}
		s.edit("latency: 800ms", "latency: 1us")
		s.checkPool(true)
		d = s.start()
		if d.logged("recovered") {
			t.Error("the start after a clean stop recovered something")
		}
		c = s.dial("home")
		for i := range failed {
			c.check(int64(i)*64<<10, 4096, 2)
			c.check(int64(i)*64<<10+4096, 4096, 0)
		}
		d.stop()
	}
}

// tierd waits for a backing that does not answer, and can be stopped meanwhile. That
// harms the pool no more than a kill.
func TestStopWhileTheStartHangs(t *testing.T) {
	t.Parallel()
	s := newPool(t, layout{tiers: twoTiers(), volumes: "{name: v, size: 4MiB}"})
	s.edit("size: 64MiB}", "size: 64MiB, simulate: {latency: 1h}}")
	d := s.launch()
	eventually(t, "the sockets, which come before the pool", 0, func() bool {
		_, err := os.Stat(s.admin)
		return err == nil
	})
	d.signal(syscall.SIGTERM)
	eventually(t, "word of the stop", 0, func() bool { return d.logged("stopping before the pool is open") })
	d.signal(syscall.SIGTERM)
	if code := d.wait(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	s.edit(", simulate: {latency: 1h}", "")
	s.start().stop()
	s.checkPool(true)
}

// SIGHUP takes over what can change live and says what cannot.
func TestSighupReloadsTheBudget(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{
		tiers: twoTiers(), volumes: "{name: home, size: 32MiB}",
		relocation: "{cycle: 1h, budget: {rate: 50MiB/s, per_cycle: 1GiB}}",
	})
	status := func() (st relocationStatus) {
		// By its socket: the configuration will have faults.
		s.ctlJSON(&st, "relocation", "status", "--socket", s.admin)
		return st
	}
	if st := status(); st.RateBytesPerSecond != 50*mib || st.BudgetPerCycleBytes != 1<<30 || st.BudgetLeftDay != -1 || st.CycleSeconds != 3600 {
		t.Errorf("before: %+v", st)
	}
	s.edit("{cycle: 1h, budget: {rate: 50MiB/s, per_cycle: 1GiB}}", "{cycle: 10m, budget: {rate: 7MiB/s, per_cycle: 2GiB, per_day: 5GiB}}")
	s.edit("size: 32MiB}", "size: 40MiB}")
	s.edit(s.nbd, s.path("elsewhere"))
	d.signal(syscall.SIGHUP)
	eventually(t, "the configuration is reloaded", 10*time.Second, func() bool { return d.logged(`"msg":"configuration reloaded"`) })
	if st := status(); st.RateBytesPerSecond != 7*mib || st.BudgetPerCycleBytes != 2<<30 || st.BudgetPerDayBytes != 5<<30 ||
		st.BudgetLeftDay != 5<<30 || st.CycleSeconds != 600 {
		t.Errorf("after: %+v", st)
	}
	if !d.logged("relocation.budget.rate: 50MiB/s -> 7MiB/s") {
		t.Error("the log does not say what has changed")
	}
	if !d.logged("volumes[0].size: 32MiB -> 40MiB", "nbd.listen[0]: ") {
		t.Error("the log does not say what was ignored")
	}
	if v := s.volume("home"); v.SizeBytes != 32*mib {
		t.Errorf("the volume has %d bytes now", v.SizeBytes)
	}
	s.dial("home").write(0, 4096, 1) // at the old address

	// A faulty configuration changes nothing.
	s.edit("rate: 7MiB/s", "rate: 0")
	d.signal(syscall.SIGHUP)
	eventually(t, "the faults are logged", 10*time.Second, func() bool { return d.logged("configuration not reloaded", "relocation.budget.rate") })
	if st := status(); st.RateBytesPerSecond != 7*mib {
		t.Errorf("after a faulty configuration: %+v", st)
	}

	// A closed window stops movement.
	s.edit("{cycle: 10m, budget: {rate: 0,", fmt.Sprintf("{cycle: 10m, windows: [{days: daily, start: %q, end: %q}], budget: {rate: 7MiB/s,",
		time.Now().Add(2*time.Hour).Format("15:04"), time.Now().Add(3*time.Hour).Format("15:04")))
	d.signal(syscall.SIGHUP)
	eventually(t, "the window is closed", 10*time.Second, func() bool { return status().State == "closed_window" })
	d.stop()
	s.checkPool(true)
}

// The verbs of several administrators at once, cycles, reloads and I/O.
func TestManyAdministratorsAtOnce(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{tiers: movingTiers(), volumes: "{name: home, size: 64MiB}", relocation: "{cycle: 20ms, hysteresis: 0%}", extra: shortHeat})
	l := s.startBench("home", "--read", "50%", "--verify", "--verify-pass", "--time", "6s", "--connections", "2", "--pattern", "zipf", "--grain", "64KiB")
	var wg sync.WaitGroup
	stop := time.Now().Add(5 * time.Second)
	worker := func(f func(r *rand.Rand, i int)) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
			for i := 0; time.Now().Before(stop); i++ {
				f(r, i)
			}
		})
	}
	for w := range 3 {
		worker(func(r *rand.Rand, i int) {
			name := fmt.Sprintf("v%d-%d", w, i)
			for _, verb := range [][]string{
				{"volume", "create", name, "8MiB"}, {"volume", "grow", name, "+1MiB"}, {"volume", "rename", name, name + "x"},
				{"volume", "set", name + "x", "--policy", "lowest"}, {"volume", "delete", name + "x"},
			} {
				if res := s.tierctl(verb...); res.code != 0 {
					t.Errorf("tierctl %q: %+v", verb, res)
				}
			}
		})
	}
	worker(func(r *rand.Rand, i int) {
		for _, verb := range [][]string{{"relocation", "run"}, {"relocation", "plan"}, {"relocation", "status"}, {"heat", "home"}, {"pool", "status"}, {"locate", "home", fmt.Sprint(r.IntN(64 * mib))}} {
			if res := s.tierctl(verb...); res.code != 0 {
				t.Errorf("tierctl %q: %+v", verb, res)
			}
		}
	})
	worker(func(*rand.Rand, int) {
		d.signal(syscall.SIGHUP)
		if text := d.scrape(); !strings.Contains(text, "tierd_build_info") {
			t.Errorf("scrape: %s", text)
		}
		time.Sleep(50 * time.Millisecond)
	})
	wg.Wait()
	if r, code := l.wait(); code != 0 || r.Verify.Mismatches != 0 {
		t.Errorf("the load ended with exit code %d, %+v\n%s", code, r.Verify, &l.errOut)
	}
	eventually(t, "deleted volumes are forgotten", 20*time.Second, func() bool { return len(s.volumes()) == 1 })
	d.stop()
	s.checkPool(true)
}
