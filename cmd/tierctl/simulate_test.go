package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// smallTrace writes a trace in which extent 7 comes first and extent 3 is used most,
// twice over.
func smallTrace(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "small.lis")
	var b strings.Builder
	for i, e := range []int{7, 3, 3, 3, 7, 3, 3, 3} {
		fmt.Fprintf(&b, "%d 8 0 %d\n", e*2048, i)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSimulateTable(t *testing.T) {
	code, got, stderr := tierctl(t, "simulate", smallTrace(t), "--preset", "paper-eval", "--cycles", "2", "--budget", "100%", "--rate", "100",
		"--policy", "planner,static", "--tiers", "fast:1ms:50%,slow:10ms:rest", "--tiers", "one disk=disk:20ms:rest:devices=1")
	if code != exitDone || stderr != "" {
		t.Fatalf("exit code %d, %s", code, stderr)
	}
	file := filepath.Join("testdata", "simulate.golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestSimulateJSON(t *testing.T) {
	layouts := filepath.Join(t.TempDir(), "layouts.yaml")
	text := `layouts:
  - name: two tiers
    tiers:
      - {name: fast, time: 1ms, size: 50%, write: 2ms}
      - {name: slow, time: 10ms, size: rest, bandwidth: 100MB/s}
  - name: disks
    tiers:
      - {name: disk, time: 20ms, size: rest, devices: 4, raid: raid5}
`
	if err := os.WriteFile(layouts, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	path := smallTrace(t)
	code, out, stderr := tierctl(t, "simulate", path, path, "--cycles", "2", "--rate", "1", "--budget", "none", "--layouts", layouts, "--hysteresis", "10%", "-o", "json")
	if code != exitDone {
		t.Fatalf("exit code %d, %s", code, stderr)
	}
	var got struct {
		Preset string
		Runs   []struct {
			Trace struct {
				Name     string
				Accesses int
			}
			Layouts []struct {
				Text  string
				Tiers []struct{ Extents int }
			}
			CycleSeconds float64 `json:"cycle_seconds"`
		}
		Policies []struct {
			Trace, Layout, Name string
			MeanMS              float64   `json:"mean_ms"`
			MovedBytes          int64     `json:"moved_bytes"`
			TierShare           []float64 `json:"tier_share"`
			Cycles              []struct{ Accesses int }
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Preset != "defaults" || len(got.Runs) != 2 || got.Runs[1].Trace.Name != "small.lis" || got.Runs[0].Trace.Accesses != 8 || math.Abs(got.Runs[0].CycleSeconds-4) > 1e-6 {
		t.Errorf("got %+v", got)
	}
	if l := got.Runs[0].Layouts; len(l) != 2 || l[0].Text != "two tiers=fast:1ms:50%:write=2ms,slow:10ms:rest:bandwidth=100MB/s" || l[0].Tiers[0].Extents != 1 {
		t.Errorf("layouts %+v", l)
	}
	found := 0
	for _, p := range got.Policies {
		if p.Layout != "two tiers" {
			continue
		}
		switch p.Name {
		case "static":
			found++
			if math.Abs(p.MeanMS-62./8) > 1e-9 || p.MovedBytes != 0 || p.TierShare[0] != 0.25 {
				t.Errorf("static: %+v", p)
			}
		case "clairvoyant":
			found++
			if math.Abs(p.MeanMS-26./8) > 1e-9 || p.MovedBytes != 2<<20 || len(p.Cycles) != 2 || p.Cycles[1].Accesses != 4 {
				t.Errorf("clairvoyant: %+v", p)
			}
		}
	}
	if found != 4 {
		t.Errorf("%d results of static and clairvoyant, want 4", found)
	}
}

func TestSimulateUsage(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := smallTrace(t)
	for _, tt := range []struct {
		want string
		code int
		args []string
	}{
		{"needs a trace", exitUsage, nil},
		{"--preset must be", exitUsage, []string{path, "--preset", "best"}},
		{`policy "magic" is not known`, exitUsage, []string{path, "--policy", "magic"}},
		{"given twice", exitUsage, []string{path, "--policy", "lru,lru"}},
		{"NAME:TIME:SIZE", exitUsage, []string{path, "--tiers", "ssd"}},
		{"two layouts are called", exitUsage, []string{path, "--tiers", "a:1ms:rest", "--tiers", "a:2ms:rest"}},
		{"exclude each other", exitUsage, []string{path, "--cycles", "3", "--cycle", "5m"}},
		{"budget", exitUsage, []string{path, "--budget", "much"}},
		{"budget must be", exitUsage, []string{path, "--budget", "101%"}},
		{"placement must be", exitUsage, []string{path, "--placement", "best"}},
		{"extent size", exitUsage, []string{path, "--extent-size", "1000"}},
		{"short weight", exitUsage, []string{path, "--short-weight", "2"}},
		{"no such file", exitUsage, []string{path, "--layouts", filepath.Join(dir, "none")}},
		{"has no layouts", exitUsage, []string{path, "--layouts", file("empty", "layouts: []\n")}},
		{"unknown field", exitUsage, []string{path, "--layouts", file("unknown", "layouts: [{tires: []}]\n")}},
		{"time", exitUsage, []string{path, "--layouts", file("notime", "layouts: [{name: x, tiers: [{name: a, size: rest}]}]\n")}},
		{"name must be", exitUsage, []string{path, "--layouts", file("noname", "layouts: [{tiers: [{name: a, time: 1ms, size: rest}]}]\n")}},
		{"--trace-format must be", exitUsage, []string{path, "--trace-format", "csv"}},
		{"the trace has no times", exitFailed, []string{path, "--tiers", "a:1ms:rest:devices=2"}},
		{"give the last tier the rest", exitFailed, []string{path, "--tiers", "a:1ms:1MiB"}},
		{"no such file", exitFailed, []string{filepath.Join(dir, "none")}},
		{"unknown trace format", exitFailed, []string{file("junk", "junk\n")}},
	} {
		code, out, stderr := tierctl(t, append([]string{"simulate"}, tt.args...)...)
		if code != tt.code || !strings.Contains(stderr, tt.want) || out != "" {
			t.Errorf("%v: exit code %d, %s%s; want %d with %q", tt.args, code, out, stderr, tt.code, tt.want)
		}
	}
}
