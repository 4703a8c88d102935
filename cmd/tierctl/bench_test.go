package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// runBenchVerb executes bench on its own, as the root command would.
func runBenchVerb(t *testing.T, output string, args ...string) (stdout string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out, errOut bytes.Buffer
	g := &globals{output: output, out: &out, errOut: &errOut}
	cmd := newBenchCommand(g)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(ctx)
	return out.String(), err
}

// benchServer serves memory of the given size and returns its address. filter is
// a filter of the server and its settings.
func benchServer(t *testing.T, size string, filter ...string) string {
	t.Helper()
	if _, err := exec.LookPath("nbdkit"); err != nil {
		t.Skip("nbdkit is not installed")
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(dir, "s")
	args := []string{"-f", "-U", sock, "memory", size}
	if len(filter) > 0 {
		args = append(append([]string{"--filter", filter[0]}, args...), filter[1:]...)
	}
	cmd := exec.Command("nbdkit", args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	})
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("unix", sock)
		if err == nil {
			_ = conn.Close()
			return "nbd+unix:///?socket=" + sock
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func TestBenchReport(t *testing.T) {
	uri := benchServer(t, "4M")
	state := filepath.Join(t.TempDir(), "state")
	common := []string{"--uri", uri, "--state", state}
	out, err := runBenchVerb(t, "json", append(common, "--read", "50", "--ops", "2000", "--fill", "--verify", "--pattern", "zipf", "--grain", "64KiB", "--trim", "10%")...)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Error string
		Total struct{ Ops int64 }
		ByOp  map[string]struct{ Ops int64 } `json:"by_op"`
		Spec  struct {
			ReadShare float64 `json:"read_share"`
			Grain     int64
		}
		Verify    struct{ Mismatches, Checked_units int64 }
		Intervals []any
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if got.Total.Ops != 2000 || got.Spec.ReadShare != 0.5 || got.Spec.Grain != 64<<10 || got.ByOp["trim"].Ops == 0 {
		t.Errorf("got %+v", got)
	}
	if got.Verify.Mismatches != 0 || got.Verify.Checked_units == 0 || got.Error != "" || got.Intervals == nil {
		t.Errorf("got %+v", got)
	}
	out, err = runBenchVerb(t, "table", append(common, "--verify-only")...)
	if err != nil || !strings.Contains(out, "checked 1024 blocks of 4096 bytes: 0 wrong, 0 in doubt") {
		t.Errorf("verify-only: %v\n%s", err, out)
	}

	// Another run, without the state, overwrites the volume behind its back.
	if out, err = runBenchVerb(t, "table", "--uri", uri, "--read", "0%", "--ops", "100"); err != nil || !strings.Contains(out, "write") {
		t.Errorf("%v\n%s", err, out)
	}
	_, err = runBenchVerb(t, "table", append(common, "--verify-only")...)
	if !errors.Is(err, errDamage) || exitCode(err) != exitDamage {
		t.Errorf("overwritten blocks: %v, want damage", err)
	}
}

func TestBenchFailsWithItsOperations(t *testing.T) {
	uri := benchServer(t, "4M", "error", "error-pwrite=ENOSPC", "error-pwrite-rate=100%")
	out, err := runBenchVerb(t, "table", "--uri", uri, "--read", "0%", "--ops", "10", "--interval", "0")
	if exitCode(err) != exitFailed || !strings.Contains(out, "10 operations failed: ENOSPC") {
		t.Errorf("failed writes: %v\n%s", err, out)
	}
}

func TestBenchTrace(t *testing.T) {
	uri := benchServer(t, "1M")
	path := filepath.Join(t.TempDir(), "t.lis")
	if err := os.WriteFile(path, []byte("0 8 0 0\n8192 8 0 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := runBenchVerb(t, "table", "--uri", uri, "--trace", path); exitCode(err) != exitFailed || !strings.Contains(err.Error(), "wrap or scale") {
		t.Errorf("a trace that is too large: %v", err)
	}
	for _, fit := range []string{"wrap", "scale"} {
		out, err := runBenchVerb(t, "json", "--uri", uri, "--trace", path, "--fit", fit)
		if err != nil || !strings.Contains(out, `"ops": 2`) {
			t.Errorf("%s: %v\n%s", fit, err, out)
		}
	}
}

func TestBenchUsage(t *testing.T) {
	tests := map[string][]string{
		"needs --uri":   {"--time", "1s"},
		"no arguments":  {"--uri", "unix:x", "home"},
		"pattern must":  {"--uri", "unix:x", "--pattern", "pareto"},
		"depth must":    {"--uri", "unix:x", "--depth", "0"},
		"state of an":   {"--uri", "unix:x", "--verify-only"},
		"run never end": {"--uri", "unix:x", "--time", "0"},
	}
	for want, args := range tests {
		_, err := runBenchVerb(t, "table", args...)
		if exitCode(err) != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want usage with %q", args, err, want)
		}
	}
	if _, err := runBenchVerb(t, "table", "--uri", "unix:/nonexistent"); exitCode(err) != exitFailed {
		t.Errorf("no server: %v", err)
	}
}
