package main

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func testReport() *report {
	r := &report{
		Machine: machine{Time: "2026-01-02T03:04:05Z", CPU: "a CPU", Cores: 2, Kernel: "6.1", FileSystem: "ext4", Go: "go1.26",
			Load: "1 2 3", LoadAfter: "4 5 6", Commit: "abc", Seed: 7, Command: "bench -rounds 2"},
		Load: "fio", Size: 64 << 20, Rounds: 2, Seconds: 1, Servers: []string{"tierd", "nbdkit", "qemu-nbd"}, LeftOut: []string{},
		Workloads: []comparison{
			{Workload: workload{Name: "a"}, Samples: map[string][]sample{"tierd": rates(100, 200), "nbdkit": rates(50, 100), "qemu-nbd": rates(50, 50)}},
			{Workload: workload{Name: "b"}, Samples: map[string][]sample{"tierd": rates(30, 30), "nbdkit": rates(60, 60), "qemu-nbd": rates(10, 30)}},
		},
	}
	r.compare()
	return r
}

func TestCompare(t *testing.T) {
	r := testReport()
	if got, want := r.Workloads[0].Ratios["qemu-nbd"], (ratio{3, 2, 4}); got != want {
		t.Errorf("ratio to qemu-nbd = %v, want %v", got, want)
	}
	if got, want := r.Means["nbdkit"], 1.0; got != want {
		t.Errorf("geometric mean to nbdkit = %v, want %v", got, want)
	}
}

func TestMissed(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*report)
		want   []string
	}{
		{"all met", func(*report) {}, nil},
		{"level with qemu-nbd is not ahead", func(r *report) { r.Workloads[1].Samples["qemu-nbd"] = rates(30, 30) },
			[]string{"b: 1.00 of qemu-nbd, must be above 1"}},
		{"behind nbdkit in the mean", func(r *report) { r.Workloads[1].Samples["nbdkit"] = rates(120, 120) },
			[]string{"geometric mean: 0.71 of nbdkit, must be at least 1"}},
		{"behind nbdkit in one is allowed", func(r *report) { r.Workloads[0].Samples["nbdkit"] = rates(10, 20) }, nil},
		{"a peer is missing", func(r *report) { r.Servers = []string{"tierd", "qemu-nbd"} }, []string{"nbdkit was not measured"}},
	} {
		r := testReport()
		tc.change(r)
		r.compare()
		if tc.name == "a peer is missing" {
			delete(r.Means, "nbdkit")
		}
		if got := r.missed(); !slices.Equal(got, tc.want) {
			t.Errorf("%s: missed = %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestWrite(t *testing.T) {
	for _, tc := range []struct{ format, want string }{
		{"text", "a                          2.00  2.00..2.00      3.00  2.00..4.00\n"},
		{"text", "load average before 1 2 3, after 4 5 6\n"},
		{"markdown", "| a | 2.00 | 2.00..2.00 | 3.00 | 2.00..4.00 |\n"},
		{"markdown", "| --- | ---: | ---: | ---: | ---: |\n"},
		{"markdown", "- commit abc, seed 7: bench -rounds 2\n"},
	} {
		var b bytes.Buffer
		if err := testReport().write(&b, tc.format); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), tc.want) {
			t.Errorf("%s lacks %q:\n%s", tc.format, tc.want, b.String())
		}
	}
	var b bytes.Buffer
	if err := testReport().write(&b, "json"); err != nil {
		t.Fatal(err)
	}
	var back report
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if got, want := back.Workloads[0].Samples["tierd"][1].IOPS, 200.0; got != want {
		t.Errorf("IOPS read back = %v, want %v", got, want)
	}
}

func TestBadCommandLine(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"-servers", "tierd,nginx"}, `no server "nginx"`},
		{[]string{"-workloads", "randread"}, `no workload "randread"`},
		{[]string{"-size", "1"}, "-size must be"},
		{[]string{"-size", "big"}, "big"},
		{[]string{"-fill-block", "1KiB"}, "-fill-block must be"},
		{[]string{"-rounds", "0"}, "-rounds"},
		{[]string{"-load", "dd"}, "-load must be"},
		{[]string{"-o", "xml"}, "-o must be"},
		{[]string{"stray"}, "no arguments"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(context.Background(), tc.args, &stdout, &stderr); code != 2 || !strings.Contains(stderr.String(), tc.want) {
			t.Errorf("run(%q) = %d, %q, want 2 and %q", tc.args, code, stderr.String(), tc.want)
		}
	}
}
