//go:build mutants

package crash

import (
	"flag"
	"strings"
	"testing"
	"time"

	"tierd/test/model"
	"tierd/tiering/mutant"
)

var (
	huntFor = flag.Duration("hunt-for", 10*time.Minute, "how long a mutant may go unnoticed")
	hunted  = flag.String("hunt", "", "the mutants to look for, with commas between; default: those of power cuts")
)

// powerMutants are the rules that crash states show the lack of. The others are
// about what requests see of each other, or need a disk that fails or is an old copy.
var powerMutants = []mutant.Mutant{
	mutant.NoPieceMarks, mutant.NoFirstMarks, mutant.RecordAfterPublish, mutant.ReplayOldest, mutant.SameIncarnation,
	mutant.DeleteInMemory, mutant.CommitBeforeSync, mutant.MarkDirtyBefore, mutant.JoinRunningSync,
	mutant.FUAOvertakesRound, mutant.CleanDirtySetAtRun, mutant.IgnoreBootID, mutant.EarlySlotReuse, mutant.NoZeroing,
	mutant.ZeroAfterRelease, mutant.CleanAfterUnclean, mutant.CleanBeforeSync, mutant.TableBeforeContent,
	mutant.NoTombstone, mutant.ClearBeforeSync, mutant.NoHeal, mutant.NoVolumeTable,
}

// hunt enumerates some states of each cell, then more, until one is wrong.
func hunt(x *matrix, limit time.Duration) error {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); x.perCell += 5 {
		for i := range rows {
			x.perRow = max(time.Until(deadline), time.Millisecond)
			if err := x.enumerate(&rows[i]); err != nil {
				return err
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
			x := newMatrix(fs, model.Seed(t), 5)
			err := hunt(x, *huntFor)
			took := time.Since(start).Round(time.Millisecond)
			if err == nil {
				total, _ := x.report(new(strings.Builder))
				t.Errorf("not noticed in %v, %d states", took, total)
				return
			}
			what, _, _ := strings.Cut(err.Error(), "\n")
			t.Logf("noticed after %v: %s", took, what)
		})
	}
}
