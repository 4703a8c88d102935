package plan_test

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tierd/tiering/extent"
	"tierd/tiering/plan"
)

// TestScripts runs the scenarios of testdata, one or more a file, each of lines
//
//	= name, and what it is about
//	tier NAME slots=N time=DURATION [free=N] [bandwidth=BYTES] [util=SHARE] [wear=EXTENTS] [broken]
//	backing ID TIER slots=N free=N [util=SHARE] [broken]
//	policy [budget=EXTENTS] [heat=EXTENTS] [NAME=VALUE of plan.Policy, in lower case]
//	extent INDEX[-INDEX] TIER [rate=N] [age=N] [moved=N] [noise=N] [want=highest|lowest|TIER] [backing=ID] [pinned] [parked]
//	-> move INDEX FROM TO REASON
//	-> stay REASON N
//
// and fails if the plan is any other. A tier's free slots are those that its extents
// leave; bandwidth is 100 MB/s; extents are 1 MiB, known for 288 cycles, never moved, and
// of rate 0; the policy is plan.Defaults without headroom and emergency, without a limit.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split("\n"+string(text), "\n= ")[1:] {
			name, body, _ := strings.Cut(part, "\n")
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt")+"/"+name, func(t *testing.T) {
				s := &script{t: t, policy: with(plan.Defaults(mib), func(p *plan.Policy) { p.Headroom, p.Emergency, p.AccessTime = 0, 0, time.Second })}
				var want []string
				for sc := bufio.NewScanner(strings.NewReader(body)); sc.Scan(); {
					switch line := strings.TrimSpace(sc.Text()); {
					case line == "" || strings.HasPrefix(line, "#"):
					case strings.HasPrefix(line, "->"):
						want = append(want, strings.Join(strings.Fields(line), " "))
					default:
						s.line(line)
					}
				}
				if got := s.run(); !slices.Equal(got, want) {
					t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			})
		}
	}
}

// script is a scenario as it is read.
type script struct {
	t        *testing.T
	policy   plan.Policy
	tiers    []plan.Tier
	free     []bool // it was given
	backings []plan.Backing
	extents  []plan.Extent
}

func (s *script) tier(name string) extent.TierID {
	i := slices.IndexFunc(s.tiers, func(t plan.Tier) bool { return t.Name == name })
	if i < 0 {
		s.t.Fatalf("no tier %q", name)
	}
	return extent.TierID(i)
}

// line reads one line.
func (s *script) line(line string) {
	f := strings.Fields(line)
	args := map[string]string{}
	var names []string
	for _, a := range f[1:] {
		if k, v, ok := strings.Cut(a, "="); ok {
			args[k] = v
		} else {
			names = append(names, a)
		}
	}
	num := func(key string, otherwise float64) float64 {
		v, ok := args[key]
		if !ok {
			return otherwise
		}
		delete(args, key)
		n, err := strconv.ParseFloat(v, 64)
		if err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
		return n
	}
	flag := func(name string) bool {
		i := slices.Index(names, name)
		if i >= 0 {
			names = slices.Delete(names, i, i+1)
		}
		return i >= 0
	}
	span := func(key string) time.Duration {
		d, err := time.ParseDuration(args[key])
		if err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
		delete(args, key)
		return d
	}
	switch f[0] {
	case "tier":
		_, limited := args["wear"]
		_, given := args["free"]
		s.free = append(s.free, given)
		s.tiers = append(s.tiers, plan.Tier{
			ID: extent.TierID(len(s.tiers)), Name: names[0], Slots: int64(num("slots", 0)), Free: int64(num("free", 0)), ServiceTime: span("time"),
			Bandwidth: num("bandwidth", 100e6), Utilisation: num("util", 0), Writable: !flag("broken"),
			WearLimited: limited, WearBytes: int64(num("wear", 0) * mib),
		})
		names = names[1:]
	case "backing":
		id, _ := strconv.Atoi(names[0])
		s.backings = append(s.backings, plan.Backing{
			ID: extent.BackingID(id), Tier: s.tier(names[1]), Slots: int64(num("slots", 0)), Free: int64(num("free", 0)), Utilisation: num("util", 0), Writable: !flag("broken"),
		})
		names = names[2:]
	case "policy":
		p := &s.policy
		if n := num("budget", -1); n >= 0 {
			p.BudgetBytes = int64(n * mib)
		}
		if n := num("heat", -1); n >= 0 {
			p.HeatLimited, p.HeatBytes = true, int64(n*mib)
		}
		p.Hysteresis, p.Headroom, p.Emergency = num("hysteresis", p.Hysteresis), num("headroom", p.Headroom), num("emergency", p.Emergency)
		p.CostFactor, p.Confidence, p.Spread = num("costfactor", p.CostFactor), num("confidence", p.Confidence), num("spread", p.Spread)
		p.Residence, p.MinAge = uint32(num("residence", float64(p.Residence))), uint32(num("minage", float64(p.MinAge)))
	case "extent":
		e := plan.Extent{
			Tier: s.tier(names[1]), Heat: num("rate", 0), Noise: num("noise", 0), Age: uint32(num("age", 288)), SinceMove: plan.NeverMoved,
			Backing: extent.BackingID(num("backing", 0)),
		}
		if _, ok := args["moved"]; ok {
			e.SinceMove = uint32(num("moved", 0))
		}
		switch w := args["want"]; w {
		case "":
		case "highest":
			e.Want.Kind = plan.WantHighest
		case "lowest":
			e.Want.Kind = plan.WantLowest
		default:
			e.Want = plan.Want{Kind: plan.WantTier, Tier: s.tier(w)}
		}
		delete(args, "want")
		e.Pinned, e.Parked = flag("pinned"), flag("parked")
		from, to, ranged := strings.Cut(names[0], "-")
		first, err := strconv.Atoi(from)
		last := first
		if ranged && err == nil {
			last, err = strconv.Atoi(to)
		}
		if err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
		for i := first; i <= last; i++ {
			e.Key = extent.Key{Volume: 1, Index: extent.Index(i)}
			s.extents = append(s.extents, e)
		}
		names = names[2:]
	default:
		s.t.Fatalf("what is %q?", line)
	}
	if len(args) > 0 || len(names) > 0 {
		s.t.Fatalf("%s: what are %v %v?", line, args, names)
	}
}

// run plans and returns the lines that tell the plan.
func (s *script) run() []string {
	for i := range s.tiers {
		if !s.free[i] {
			s.tiers[i].Free = s.tiers[i].Slots
			for _, e := range s.extents {
				if int(e.Tier) == i {
					s.tiers[i].Free--
				}
			}
		}
		if s.tiers[i].Free < 0 {
			s.t.Fatalf("tier %s holds more than its slots", s.tiers[i].Name)
		}
	}
	p := plan.Next(plan.View{Tiers: s.tiers, Backings: s.backings, Extents: func(yield func(plan.Extent) bool) {
		for _, e := range s.extents {
			if !yield(e) {
				return
			}
		}
	}}, s.policy)
	var out []string
	for _, m := range p.Moves {
		to := s.tiers[m.To].Name
		if m.Kind == plan.Rebalance {
			to += fmt.Sprintf(":%d", m.ToBacking)
		}
		out = append(out, fmt.Sprintf("-> move %d %s %s %s", m.Key.Index, s.tiers[m.From].Name, to, m.Reason))
	}
	for _, r := range slices.Sorted(maps.Keys(p.Rejected)) {
		if n := p.Rejected[r]; n > 0 {
			out = append(out, fmt.Sprintf("-> stay %s %d", r, n))
		}
	}
	return out
}
