package model

import (
	"flag"
	"testing"
	"time"
)

var checkFor = flag.Duration("check-for", 10*time.Second, "how long the concurrent checker runs")

// TestConcurrentChanges lets overlapping changes and moves race for a while.
func TestConcurrentChanges(t *testing.T) {
	for name, prof := range map[string]Profile{"crowded": Crowded, "roaming": Roaming} {
		t.Run(name, func(t *testing.T) {
			c := NewChecker(t, prof, Seed(t))
			if n := c.Run(*checkFor / 2); n > 0 {
				t.Errorf("%d wrong reads", n)
			}
			t.Log(c.Report())
			if c.Moves.Load() == 0 || c.Trims.Load() == 0 {
				t.Error("nothing was moved or trimmed: the run shows nothing")
			}
		})
	}
}
