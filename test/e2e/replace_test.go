package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"tierd/pkg/control"
)

// backings asks for the backings by their paths.
func (s *site) backings() map[string]control.Backing {
	s.t.Helper()
	var list []control.Backing
	s.ctlJSON(&list, "backing", "list")
	m := make(map[string]control.Backing)
	for _, b := range list {
		m[b.Path] = b
	}
	return m
}

// A disk is replaced as docs/operations.md says, under a load that verifies what it
// reads: add, drain, remove. A kill in the middle of the drain changes nothing.
func TestADiskIsReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	tiers := twoTiers()
	tiers[1].size = "96MiB"
	s := newPool(t, layout{tiers: tiers, volumes: "{name: home, size: 64MiB}"})
	state := s.path("state")
	old, fresh := s.backingPath("sata", 0), s.path("new.img")
	load := func(d string) *load {
		return s.startBench("home", "--bs", "16KiB", "--read", "30%", "--trim", "2%", "--flush-every", "50", "--verify", "--state", state,
			"--connections", "2", "--time", d, "--seed", fmt.Sprint(r.Uint32()))
	}
	d := s.start()
	s.bench("home", "--read", "0%", "--bs", "64KiB", "--pattern", "sequential", "--ops", "900", "--verify", "--state", state)
	if s.backings()[old].UsedSlots == 0 {
		t.Fatal("nothing is on the disk to be replaced")
	}

	s.ctlFails(1, "tierctl: backing "+old+" has ... extents; drain it first", "backing", "remove", old)
	l := load("10m") // the kill ends it
	s.ctl("backing", "add", "sata", fresh, "--size", "96MiB")
	s.ctl("backing", "drain", old, "--rate", "2MiB/s")
	eventually(t, "the drain to begin", time.Minute, func() bool {
		b := s.backings()[old]
		return b.Drain != nil && b.Drain.MovedBytes > 0
	})
	if d.metric("tierd_backing_draining", "backing="+old) != 1 || d.metric("tierd_backing_drain_left_bytes", "backing="+old) == 0 {
		t.Error("the metrics do not tell of the drain")
	}
	d.kill()
	if rep, code := l.wait(); code != 1 || rep.Verify == nil || rep.Verify.Mismatches != 0 {
		t.Fatalf("load that the kill ended: exit code %d, %+v\n%s", code, rep.Verify, &l.errOut)
	}

	// The configuration does not know the new disk: the pool does.
	d = s.start()
	s.verify("home", state)
	if b, ok := s.backings()[fresh]; !ok || b.Tier != "sata" || b.State != control.BackingOK {
		t.Errorf("new disk after a kill: %+v", b)
	}
	if b := s.backings()[old]; b.Drain == nil || b.Drain.RateBytesPerSecond != 2<<20 {
		t.Errorf("old disk after a kill: %+v", b)
	}
	l = load("8s")
	s.healed()
	s.ctl("backing", "drain", old, "--rate", "200MiB/s", "--wait")
	out := s.ctl("backing", "remove", old)
	if !strings.Contains(out, "no member of the pool any more") {
		t.Errorf("backing remove says %q", out)
	}
	if rep, code := l.wait(); code != 0 || rep.Verify == nil || rep.Verify.Mismatches != 0 {
		t.Fatalf("load beside the replacement: exit code %d, %+v\n%s", code, rep.Verify, &l.errOut)
	}
	s.verify("home", state)
	if len(s.backings()) != 2 {
		t.Errorf("backings: %v", s.backings())
	}
	if err := os.Remove(old); err != nil {
		t.Fatal(err)
	}
	s.edit(old, fresh)
	d.stop()
	s.checkPool(true)
	d = s.start()
	s.verify("home", state)
	for _, w := range s.status().Warnings {
		if strings.Contains(w, "img") {
			t.Errorf("the configuration is as the pool is, and the status says: %s", w)
		}
	}

	// A tier comes and goes.
	s.ctl("backing", "add", "nvme", s.path("top.img"), "--size", "24MiB", "--new-tier-before", "ssd", "--media", "ssd")
	if out := s.ctl("tier", "list"); !strings.Contains(strings.SplitN(out, "\n", 3)[1], "nvme") {
		t.Errorf("tier list says\n%s", out)
	}
	s.ctlFails(1, "tierctl: tier nvme still has backings: 1; drain and remove them first", "tier", "remove", "nvme")
	s.ctl("backing", "drain", s.path("top.img"), "--wait")
	s.ctl("backing", "remove", s.path("top.img"))
	s.ctl("tier", "remove", "nvme")
	s.verify("home", state)
	d.stop()
	s.checkPool(true)
}
