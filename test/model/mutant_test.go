//go:build mutants

package model

import (
	"flag"
	"testing"
	"time"

	"tierd/tiering/mutant"
)

var huntFor = flag.Duration("hunt-for", 60*time.Second, "how long a mutant may go unnoticed")

// protocolMutants are the rules of the extent protocol, each of which the checker
// must miss.
var protocolMutants = []mutant.Mutant{
	mutant.NoReadValidation, mutant.NoRegistration, mutant.NoPieceMarks, mutant.MarksAtEnter, mutant.NoExclusion,
	mutant.NoSwitchRecheck, mutant.NoGeneration, mutant.NoFirstMarks, mutant.SharedUnmap,
}

// TestCheckerNoticesMutants switches the rules of the extent protocol off one by
// one: with each of them missing, the concurrent checker must read wrong data.
func TestCheckerNoticesMutants(t *testing.T) {
	for _, m := range protocolMutants {
		t.Run(string(m), func(t *testing.T) {
			mutant.Set(m)
			defer mutant.Set("")
			start := time.Now()
			prof := Crowded
			if m == mutant.NoGeneration || m == mutant.NoReadValidation {
				prof = Roaming
			}
			c := NewChecker(t, prof, Seed(t))
			if n := c.Run(*huntFor); n == 0 {
				t.Errorf("not noticed in %v: %s", *huntFor, c.Report())
			}
			t.Logf("noticed after %v: %s", time.Since(start).Round(time.Millisecond), c.Report())
		})
	}
}
