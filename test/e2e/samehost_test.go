package e2e

import (
	"strings"
	"testing"
)

// TestSameHost: what protects the daemon is told by a metric; strict does not start
// without all of it.
func TestSameHost(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: v, size: 32MiB}"})
	m := d.scrape()
	all := true
	for _, kind := range []string{"memory", "io_flusher", "oom_score"} {
		series := `tierd_same_host_protection{kind="` + kind + `"}`
		if !strings.Contains(m, series+" 1") && !strings.Contains(m, series+" 0") {
			t.Errorf("there is no %s", series)
		}
		on := strings.Contains(m, series+" 1")
		all = all && on
		if on == d.logged("not protected", `"protection":"`+kind+`"`) {
			t.Errorf("%s: in force: %v, and the log says the opposite", kind, on)
		}
	}
	d.stop()
	s.edit("nbd:\n", "same_host: strict\nnbd:\n")
	if all {
		s.start().stop()
	} else if r := s.refused(); r.code != 1 || !strings.Contains(r.stderr, "same_host is strict") {
		t.Errorf("strict: exit code %d, %s", r.code, r.stderr)
	}
	s.edit("same_host: strict", `same_host: "off"`)
	d = s.start()
	if m := d.scrape(); strings.Contains(m, "tierd_same_host_protection{") || d.logged("not protected") {
		t.Error("off: something is protected")
	}
	d.stop()
}
