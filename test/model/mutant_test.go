//go:build mutants

package model

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"tierd/tiering/mutant"
)

var (
	huntFor   = flag.Duration("hunt-for", 4*time.Minute, "how long a mutant may go unnoticed")
	huntSeeds = flag.Int("hunt-seeds", 1, "from how many seeds each mutant must be found")
	huntQuick = flag.Bool("hunt-quick", false, "hunt only those that are found within seconds")
	huntOnly  = flag.String("hunt", "", "hunt this one only")
)

// A suite is a random test that goes on until something is wrong, or until it has
// made a number of rounds.
type suite struct {
	name string
	run  func(t *testing.T, seed uint64)
}

// hasty makes the operations of a mutant that hangs count as such soon.
func hasty(p CrashProfile) CrashProfile {
	p.Patience = 30 * time.Second
	return p
}

func crashSuite(name string, p CrashProfile) suite {
	return suite{name, func(t *testing.T, seed uint64) { NewCrashRun(t, hasty(p), seed).Run() }}
}

func checkerSuite(name string, p Profile) suite {
	return suite{name, func(t *testing.T, seed uint64) {
		if c := NewChecker(t, p, seed); c.Run(10*time.Second) > 0 {
			t.Errorf("wrong reads: %s", c.Report())
		}
	}}
}

var (
	crowded = checkerSuite("crowded", Crowded)
	roaming = checkerSuite("roaming", Roaming)
	random  = crashSuite("random", RandomCrashes)
	moving  = crashSuite("moving", Moving)
	boots   = crashSuite("boots", Boots)
	faulty  = crashSuite("faulty", Faulty)
	dueling = suite{"duels", func(t *testing.T, seed uint64) { duels(t, seed, 5*time.Second, 10*time.Second) }}

	suites = []suite{crowded, roaming, random, moving, boots, faulty, dueling}
)

// hunts says which random suite has to notice which mutant. None is a test of its own
// for one of them.
var hunts = []struct {
	m     mutant.Mutant
	by    suite
	quick bool // found within seconds
}{
	{mutant.NoReadValidation, roaming, true},
	{mutant.NoGeneration, roaming, true},
	{mutant.NoRegistration, crowded, true},
	{mutant.PiecewiseRegistration, dueling, true},
	{mutant.NoWidening, random, true},
	{mutant.NoPieceMarks, crowded, true},
	{mutant.MarksAtEnter, crowded, true},
	{mutant.NoFirstMarks, crowded, true},
	{mutant.NoExclusion, crowded, true},
	{mutant.NoSwitchRecheck, crowded, true},
	{mutant.SharedUnmap, crowded, true},

	{mutant.RecordAfterPublish, boots, true},
	{mutant.ReplayOldest, boots, true},
	{mutant.SameIncarnation, boots, true},
	{mutant.DeleteInMemory, boots, true},
	{mutant.LaggardsRefused, boots, true},

	{mutant.CommitBeforeSync, moving, false},
	{mutant.MarkDirtyBefore, random, true},
	{mutant.JoinRunningSync, random, true},
	{mutant.FUAOvertakesRound, random, true},
	{mutant.CleanDirtySetAtRun, boots, false},
	{mutant.IgnoreBootID, boots, true},
	{mutant.IgnoreInstances, boots, false},
	{mutant.KeepContinuity, boots, true},
	{mutant.SwallowSyncError, faulty, true},
	{mutant.FUAEatsError, faulty, false},
	{mutant.ForgetFailure, faulty, true},
	{mutant.ForgetFailedRound, faulty, false},
	{mutant.CommitRetried, faulty, false},

	{mutant.EarlySlotReuse, random, true},
	{mutant.NoZeroing, random, true},
	{mutant.ZeroAfterRelease, random, true},
	{mutant.CleanAfterUnclean, boots, true},
	{mutant.CleanBeforeSync, moving, false},

	{mutant.TableBeforeContent, moving, false},
	{mutant.NoTombstone, moving, true},
	{mutant.ClearBeforeSync, moving, true},
	{mutant.NoHeal, boots, false},
	{mutant.NoVolumeTable, boots, true},
	{mutant.NoStamps, boots, true},
	{mutant.OldMapAccepted, boots, true},
	{mutant.VolumeIDsReused, boots, true},
}

const (
	suiteVar = "TIERD_SUITE"
	untilVar = "TIERD_UNTIL" // RFC 3339
)

// TestSuite runs one random suite from one seed to the next until something is wrong
// or its time is up. It is what a hunt runs in a process of its own, since a mutant
// may end that by a panic.
func TestSuite(t *testing.T) {
	name := os.Getenv(suiteVar)
	i := slices.IndexFunc(suites, func(s suite) bool { return s.name == name })
	if i < 0 {
		t.Skip("no suite is named by " + suiteVar)
	}
	until, err := time.Parse(time.RFC3339, os.Getenv(untilVar))
	if err != nil {
		t.Fatal(err)
	}
	for seed := Seed(t); time.Now().Before(until); seed++ {
		suites[i].run(t, seed)
		if t.Failed() {
			return
		}
	}
}

type huntResult struct {
	by      string
	m       mutant.Mutant
	took    []time.Duration
	noticed int
	how     string
}

// TestMutants switches each rule off: the suite that is said to guard it must notice,
// from every seed.
func TestMutants(t *testing.T) {
	seed := Seed(t)
	var mu sync.Mutex
	var results []huntResult
	t.Run("hunts", func(t *testing.T) {
		for _, h := range hunts {
			if *huntQuick && !h.quick || *huntOnly != "" && *huntOnly != string(h.m) {
				continue
			}
			t.Run(string(h.m), func(t *testing.T) {
				t.Parallel()
				r := huntResult{by: h.by.name, m: h.m}
				for i := range uint64(*huntSeeds) {
					took, how := hunt(t, h.m, h.by, seed+i*1_000_000)
					r.took = append(r.took, took)
					if how == "" {
						t.Errorf("not noticed by %s in %v from seed %d", h.by.name, *huntFor, seed+i*1_000_000)
						continue
					}
					r.noticed++
					r.how = how
				}
				mu.Lock()
				defer mu.Unlock()
				results = append(results, r)
			})
		}
	})
	slices.SortFunc(results, func(a, b huntResult) int { return cmp.Compare(a.m, b.m) })
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "DELIBERATE BUG\tFOUND BY\tFROM SEEDS\tSECONDS\tAS\n")
	for _, r := range results {
		times := make([]string, len(r.took))
		for i, d := range r.took {
			times[i] = fmt.Sprintf("%.1f", d.Seconds())
		}
		fmt.Fprintf(w, "%s\t%s\t%d of %d\t%s\t%s\n", r.m, r.by, r.noticed, len(r.took), strings.Join(times, " "), r.how)
	}
	w.Flush()
	t.Logf("\n%s", &text)
}

// TestEveryMutantIsHunted: a mutant that no suite has to notice shows nothing.
func TestEveryMutantIsHunted(t *testing.T) {
	for _, m := range mutant.All() {
		if !slices.ContainsFunc(hunts, func(h struct {
			m     mutant.Mutant
			by    suite
			quick bool
		}) bool {
			return h.m == m
		}) {
			t.Errorf("%s is not hunted", m)
		}
	}
}

// hunt lets a suite run against a mutant and returns what it said; "" if it noticed
// nothing.
func hunt(t *testing.T, m mutant.Mutant, by suite, seed uint64) (took time.Duration, how string) {
	t.Helper()
	start := time.Now()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestSuite$", "-test.timeout", (*huntFor + 5*time.Minute).String())
	cmd.Env = append(os.Environ(), "TIERD_MUTANT="+string(m), suiteVar+"="+by.name, fmt.Sprintf("MODEL_SEED=%d", seed),
		untilVar+"="+start.Add(*huntFor).Format(time.RFC3339))
	out, err := cmd.CombinedOutput()
	took = time.Since(start)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return took, ""
	case !errors.As(err, &exit):
		t.Fatal(err)
	}
	return took, symptom(string(out))
}

// symptom returns the line that says what was wrong.
func symptom(out string) string {
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		_, text, found := strings.Cut(line, "_test.go:")
		if !found {
			_, text, found = strings.Cut(line, ".go:")
		}
		if !found && !strings.HasPrefix(line, "panic: ") {
			continue
		}
		if _, after, ok := strings.Cut(text, ": "); ok {
			text = after
		}
		if strings.Contains(text, "repeats this run") {
			continue
		}
		if _, after, ok := strings.Cut(text, "MODEL_SEED="); ok {
			_, text, _ = strings.Cut(after, ": ")
		}
		text = cmp.Or(text, line)
		return text[:min(len(text), 110)]
	}
	return "exit without a word"
}
