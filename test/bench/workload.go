package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A workload is one kind of load.
type workload struct {
	Name   string `json:"name"`
	Write  bool   `json:"write"`
	Random bool   `json:"random"`
	Block  int    `json:"block_size"`
	Depth  int    `json:"depth"`
}

// workloads are those that tierd is held to.
var workloads = []workload{
	{Name: "randread-4k-1", Random: true, Block: 4 << 10, Depth: 1},
	{Name: "randread-4k-32", Random: true, Block: 4 << 10, Depth: 32},
	{Name: "randwrite-4k-1", Write: true, Random: true, Block: 4 << 10, Depth: 1},
	{Name: "randwrite-4k-32", Write: true, Random: true, Block: 4 << 10, Depth: 32},
	{Name: "read-128k-8", Block: 128 << 10, Depth: 8},
	{Name: "write-128k-8", Write: true, Block: 128 << 10, Depth: 8},
}

// A generator puts a workload on an export and measures.
type generator interface {
	run(ctx context.Context, uri string, w workload, d time.Duration, seed int64) (sample, error)
}

// fio is the generator of that name, with its nbd engine.
type fio struct{ size, fillBlock int64 }

// fioArgs is what every job of ours has in common.
func (f fio) fioArgs(uri, rw string, block, depth int) []string {
	return []string{
		"--name=bench", "--ioengine=nbd", "--uri=" + uri, "--output-format=json",
		"--rw=" + rw, "--bs=" + strconv.Itoa(block), "--iodepth=" + strconv.Itoa(depth),
		"--size=" + strconv.FormatInt(f.size, 10),
		"--lat_percentiles=1", "--clat_percentiles=0", "--end_fsync=0",
	}
}

func (f fio) run(ctx context.Context, uri string, w workload, d time.Duration, seed int64) (sample, error) {
	rw := "read"
	if w.Write {
		rw = "write"
	}
	if w.Random {
		rw = "rand" + rw
	}
	args := append(f.fioArgs(uri, rw, w.Block, w.Depth),
		"--time_based", "--runtime="+strconv.FormatInt(d.Milliseconds(), 10)+"ms",
		"--norandommap", "--randseed="+strconv.FormatInt(seed, 10))
	out, err := runTool(ctx, "fio", args...)
	if err != nil {
		return sample{}, err
	}
	return parseFio(out, w.Write)
}

// fill writes the export once, in order. The pieces matter: the kernel makes page
// cache folios as large as the writes that a server passes on, and to ext4 a random
// write into a large folio is slow.
func (f fio) fill(ctx context.Context, uri string) error {
	out, err := runTool(ctx, "fio", f.fioArgs(uri, "write", int(f.fillBlock), 8)...)
	if err != nil {
		return err
	}
	_, err = parseFio(out, true)
	return err
}

// errFio is wrapped by what is wrong with fio's report.
var errFio = errors.New("fio")

// parseFio reads fio's report of a single job of reads or of writes. Lines that
// fio or its engine print before the report are skipped.
func parseFio(out []byte, write bool) (sample, error) {
	begin := bytes.IndexByte(out, '{')
	if begin < 0 {
		return sample{}, fmt.Errorf("%w: no report", errFio)
	}
	type direction struct {
		IOPS  float64 `json:"iops"`
		Bytes float64 `json:"bw_bytes"`
		Total int64   `json:"total_ios"`
		Lat   struct {
			Mean       float64            `json:"mean"`
			Percentile map[string]float64 `json:"percentile"`
		} `json:"lat_ns"`
	}
	var report struct {
		Jobs []struct {
			Error int       `json:"error"`
			Read  direction `json:"read"`
			Write direction `json:"write"`
		} `json:"jobs"`
	}
	if err := json.NewDecoder(bytes.NewReader(out[begin:])).Decode(&report); err != nil {
		return sample{}, fmt.Errorf("%w: parse report: %w", errFio, err)
	}
	if n := len(report.Jobs); n != 1 {
		return sample{}, fmt.Errorf("%w: %d jobs in the report", errFio, n)
	}
	j := report.Jobs[0]
	if j.Error != 0 {
		return sample{}, fmt.Errorf("%w: the job ended with error %d", errFio, j.Error)
	}
	d := j.Read
	if write {
		d = j.Write
	}
	if d.Total == 0 {
		return sample{}, fmt.Errorf("%w: no request was answered", errFio)
	}
	return sample{IOPS: d.IOPS, Bytes: d.Bytes, Mean: d.Lat.Mean / 1e3, P99: d.Lat.Percentile["99.000000"] / 1e3}, nil
}

// tierctl is our own generator.
type tierctl struct{ bin string }

func (t tierctl) run(ctx context.Context, uri string, w workload, d time.Duration, seed int64) (sample, error) {
	read, pattern := "100%", "sequential"
	if w.Write {
		read = "0%"
	}
	if w.Random {
		pattern = "uniform"
	}
	out, err := runTool(ctx, filepath.Join(t.bin, "tierctl"), "bench", "--uri", uri, "--read", read, "--pattern", pattern,
		"--bs", strconv.Itoa(w.Block), "--depth", strconv.Itoa(w.Depth), "--time", d.String(), "--seed", strconv.FormatInt(seed, 10), "-o", "json")
	if err != nil {
		return sample{}, err
	}
	return parseTierctl(out)
}

// parseTierctl reads the report of "tierctl bench -o json".
func parseTierctl(out []byte) (sample, error) {
	var report struct {
		Total struct {
			Ops   int64   `json:"ops"`
			IOPS  float64 `json:"iops"`
			Bytes float64 `json:"bytes_per_second"`
			Mean  float64 `json:"mean_ns"`
			P99   float64 `json:"p99_ns"`
		} `json:"total"`
		Errors map[string]int64 `json:"errors"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return sample{}, fmt.Errorf("parse report of tierctl bench: %w", err)
	}
	for name, n := range report.Errors {
		return sample{}, fmt.Errorf("tierctl bench: %d operations failed: %s", n, name)
	}
	t := report.Total
	if t.Ops == 0 {
		return sample{}, errors.New("tierctl bench: no operation was answered")
	}
	return sample{IOPS: t.IOPS, Bytes: t.Bytes, Mean: t.Mean / 1e3, P99: t.P99 / 1e3}, nil
}

// runTool runs a program and returns what it printed; its complaints are part of
// the error.
func runTool(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(name), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}
