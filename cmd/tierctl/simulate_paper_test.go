package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tierd/tiering/simulate/paper"
)

func TestSimulatePaperTable(t *testing.T) {
	code, got, stderr := tierctl(t, "simulate", "paper")
	if code != exitDone || stderr != "" {
		t.Fatalf("exit code %d, %s", code, stderr)
	}
	file := filepath.Join("testdata", "simulate-paper.golden")
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

// Each flag changes the input that it names, and no other.
func TestSimulatePaperFlags(t *testing.T) {
	in := func(change func(*paper.Inputs)) paper.Inputs {
		v := paper.Defaults()
		change(&v)
		return v
	}
	tests := []struct {
		line string
		want paper.Inputs
	}{
		{"", in(func(*paper.Inputs) {})},
		{"--hit-ms 0.5", in(func(v *paper.Inputs) { v.HitMS = 0.5 })},
		{"--iops 20000", in(func(v *paper.Inputs) { v.IOPS = 20000 })},
		{"--read-share 75%", in(func(v *paper.Inputs) { v.ReadShare = 0.75 })},
		{"--read-miss 25%", in(func(v *paper.Inputs) { v.ReadMissShare = 0.25 })},
		{"--utilisation 25%,50%", in(func(v *paper.Inputs) { v.Single[0].Utilisation, v.Single[1].Utilisation = 0.25, 0.5 })},
		{"--seek-ms 3,4", in(func(v *paper.Inputs) { v.Single[0].SeekMS, v.Single[1].SeekMS = 3, 4 })},
		{"--rpm 7200,5400", in(func(v *paper.Inputs) { v.Single[0].RPM, v.Single[1].RPM = 7200, 5400 })},
		{"--tier-ms 1,2,3", in(func(v *paper.Inputs) { v.Tiers[0].ReadMS, v.Tiers[1].ReadMS, v.Tiers[2].ReadMS = 1, 2, 3 })},
		{"--tier-reads 100,90,80", in(func(v *paper.Inputs) {
			v.Tiers[0].ReadsPerDrive, v.Tiers[1].ReadsPerDrive, v.Tiers[2].ReadsPerDrive = 100, 90, 80
		})},
		{"--tier-drives 32,16,64", in(func(v *paper.Inputs) { v.Tiers[0].Drives, v.Tiers[1].Drives, v.Tiers[2].Drives = 32, 16, 64 })},
	}
	for _, tt := range tests {
		code, out, stderr := tierctl(t, strings.Fields("simulate paper -o json "+tt.line)...)
		var got paper.Result
		if err := json.Unmarshal([]byte(out), &got); err != nil || code != exitDone {
			t.Fatalf("%q: exit code %d, %v, %s", tt.line, code, err, stderr)
		}
		want := paper.Compute(tt.want)
		if !slices.Equal(got.Inputs.Tiers, want.Inputs.Tiers) || !slices.Equal(got.Inputs.Single, want.Inputs.Single) || got.Inputs.HitMS != want.Inputs.HitMS {
			t.Errorf("%q: got inputs %+v, want %+v", tt.line, got.Inputs, want.Inputs)
		}
		for i := range want.Table3 {
			if math.Abs(got.Table3[i].MeanMS-want.Table3[i].MeanMS) > 1e-9 {
				t.Errorf("%q: got %+v, want %+v", tt.line, got.Table3[i], want.Table3[i])
			}
		}
		if len(got.Limits) != 12 {
			t.Errorf("%q: %d limits", tt.line, len(got.Limits))
		}
	}
}

func TestSimulatePaperPlot(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "figures")
	for _, path := range []string{folder, filepath.Join(dir, "all.svg"), filepath.Join(dir, "all.png")} {
		if code, _, stderr := tierctl(t, "simulate", "paper", "--plot", path); code != exitDone {
			t.Fatalf("exit code %d, %s", code, stderr)
		}
	}
	var all string
	for _, f := range []struct{ name, text string }{
		{"table-3.svg", "6.70 ms"}, {"figure-8.svg", "config 2 (10k): 24.3 ms"}, {"figure-9.svg", "20.5 ms"}, {"figure-10.svg", "4,680/s"},
	} {
		data, err := os.ReadFile(filepath.Join(folder, f.name))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(data), f.text) {
			t.Errorf("%s has no %q", f.name, f.text)
		}
		all += f.text + "\n"
	}
	whole, err := os.ReadFile(filepath.Join(dir, "all.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(all) {
		if !strings.Contains(string(whole), strings.TrimSpace(text)) {
			t.Errorf("all.svg has no %q", text)
		}
	}
	if fi, err := os.Stat(filepath.Join(dir, "all.png")); err != nil || fi.Size() < 10000 {
		t.Errorf("all.png: %v, %v", fi, err)
	}
}

func TestSimulatePaperRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"--utilisation 100%,50%": "tierctl: simulate paper: utilisation of config 1 (15k) must be 0 to below 1 (got 1)\n",
		"--utilisation a,b":      "tierctl: simulate paper: --utilisation: ",
		"--rpm 7200":             "tierctl: simulate paper: --rpm takes 2 values (got 1)\n",
		"--tier-ms 1,2":          "tierctl: simulate paper: --tier-ms takes 3 values (got 2)\n",
		"--hit-ms -1":            "tierctl: simulate paper: time of a hit must not be negative (got -1)\n",
		"file":                   "tierctl: simulate paper: takes no arguments",
	} {
		code, out, stderr := tierctl(t, strings.Fields("simulate paper "+line)...)
		if code != exitUsage || out != "" || !strings.HasPrefix(stderr, want) {
			t.Errorf("%s: exit code %d, %q, want %q", line, code, stderr, want)
		}
	}
	if code, _, stderr := tierctl(t, "simulate", "paper", "--plot", filepath.Join(t.TempDir(), "a.gif")); code != exitUsage || !strings.Contains(stderr, ".png or .svg") {
		t.Errorf("gif: exit code %d, %s", code, stderr)
	}
}
