//go:build mutants

package crash

import (
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"tierd/test/model"
	"tierd/tiering/mutant"
)

var (
	huntFor = flag.Duration("hunt-for", 2*time.Minute, "how long a mutant may go unnoticed")
	hunted  = flag.String("hunt", "", "the mutants to look for, with commas between; default: those of power cuts")
)

// powerMutants are the rules that crash states show the lack of. The others are
// about what requests see of each other, or need a disk that fails.
var powerMutants = []mutant.Mutant{
	mutant.CommitBeforeSync, mutant.EarlySlotReuse, mutant.NoZeroing, mutant.IgnoreBootID, mutant.CleanDirtySetAtRun,
	mutant.RecordAfterPublish,
}

// hunt enumerates one state a cell, then two, and so on, until one is wrong.
func hunt(x *matrix, limit time.Duration) error {
	x.perRow = limit / 20
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); x.perCell++ {
		for i := range rows {
			if err := x.enumerate(&rows[i]); err != nil {
				return err
			}
			if time.Now().After(deadline) {
				break
			}
		}
	}
	return nil
}

// TestStatesNoticeMutants switches rules off one by one: with each of them missing,
// a crash state must be wrong.
func TestStatesNoticeMutants(t *testing.T) {
	fs := mount(t)
	list := powerMutants
	if *hunted != "" {
		list = nil
		for _, m := range strings.Split(*hunted, ",") {
			list = append(list, mutant.Mutant(m))
		}
	}
	for _, m := range list {
		t.Run(string(m), func(t *testing.T) {
			mutant.Set(m)
			defer mutant.Set("")
			start := time.Now()
			x := newMatrix(fs, model.Seed(t), 1)
			err := hunt(x, *huntFor)
			took := time.Since(start).Round(time.Millisecond)
			if err == nil {
				total, _ := x.report(new(strings.Builder))
				t.Errorf("not noticed in %v, %d states", took, total)
				return
			}
			var first error = err
			for e := err; e != nil; e = errors.Unwrap(e) {
				first = e
			}
			t.Logf("noticed after %v: %.300v", took, first)
			t.Logf("%.3000v", err)
		})
	}
}
