// Package deploy tests what is deployed beside the programs: units, rules,
// dashboards, and the examples for clients.
package deploy

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func read(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// fields returns the lines of a table that are no comments.
func fields(text string) (rows [][]string) {
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) > 0 && !strings.HasPrefix(f[0], "#") {
			rows = append(rows, f)
		}
	}
	return rows
}

// TestUnitIsValid lets systemd read the unit.
func TestUnitIsValid(t *testing.T) {
	analyze := need(t, "systemd-analyze", "systemd")
	dir := t.TempDir()
	// The program is not installed where the test runs.
	text := strings.ReplaceAll(read(t, "systemd", "tierd.service"), "/usr/sbin/tierd", "/bin/true")
	unit := filepath.Join(dir, "tierd.service")
	if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(analyze, "verify", "--man=no", unit).CombinedOutput()
	if err != nil || strings.Contains(string(out), "tierd.service") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// TestUnitGivesTimeToStop compares the unit with the daemon's own patience.
func TestUnitGivesTimeToStop(t *testing.T) {
	unit, daemon := read(t, "systemd", "tierd.service"), read(t, "..", "cmd", "tierd", "daemon.go")
	stop := regexp.MustCompile(`(?m)^TimeoutStopSec=(\d+)min$`).FindStringSubmatch(unit)
	drain := regexp.MustCompile(`drainTime = (\d+) \* time\.Second`).FindStringSubmatch(daemon)
	if stop == nil || drain == nil {
		t.Fatalf("TimeoutStopSec %q, drainTime %q: want both", stop, drain)
	}
	got, err := time.ParseDuration(stop[1] + "m")
	if err != nil {
		t.Fatal(err)
	}
	least, err := time.ParseDuration(drain[1] + "s")
	if err != nil {
		t.Fatal(err)
	}
	if got < 2*least {
		t.Errorf("TimeoutStopSec is %s, want twice the drain time of %s: it flushes afterwards", got, least)
	}
	for _, want := range []string{"Type=notify", "WatchdogSec=", "Restart=on-failure", "OOMScoreAdjust=-900", "LimitMEMLOCK=infinity"} {
		if !strings.Contains(unit, want) {
			t.Errorf("unit has no %s", want)
		}
	}
	if strings.Contains(unit, "PrivateDevices=yes") || strings.Contains(unit, "\nProtectClock=yes") {
		t.Error("unit locks block devices out")
	}
}

// TestNBDTab checks the form that nbd-client reads: device, address, export,
// options, and the timeout that more than one connection needs.
func TestNBDTab(t *testing.T) {
	rows := fields(read(t, "nbd", "nbdtab"))
	if len(rows) == 0 {
		t.Fatal("no examples")
	}
	for _, f := range rows {
		if len(f) != 4 || !strings.HasPrefix(f[0], "nbd") {
			t.Errorf("%v: want device, address, export and options", f)
			continue
		}
		options := strings.Split(f[3], ",")
		if !strings.Contains(f[3], "timeout=600") {
			t.Errorf("%v: a short timeout turns a slow answer into an I/O error", f)
		}
		if unix := strings.HasPrefix(f[1], "/"); unix != (options[0] == "unix") {
			t.Errorf("%v: a path needs the option unix, and nothing else does", f)
		}
	}
}

// TestFstab checks that the examples are unmounted in time and do not hold up a
// boot.
func TestFstab(t *testing.T) {
	rows := fields(read(t, "nbd", "fstab"))
	if len(rows) == 0 {
		t.Fatal("no examples")
	}
	for _, f := range rows {
		if len(f) != 6 {
			t.Errorf("%v: want six fields", f)
			continue
		}
		device := filepath.Base(f[0])
		for _, want := range []string{"_netdev", "nofail", "x-systemd.requires=nbd@" + device + ".service"} {
			if !strings.Contains(f[3], want) {
				t.Errorf("%v: has no %s", f, want)
			}
		}
	}
}

// TestAlerts lets promtool read all files, and run the tests of the alerts. Each
// alert has a test and says what to do.
func TestAlerts(t *testing.T) {
	tested := read(t, "prometheus", "alerts_test.yml")
	seen := 0
	for _, g := range readRules(t, "alerts.yml").Groups {
		for _, r := range g.Rules {
			seen++
			if r.Annotations["summary"] == "" || !strings.HasSuffix(r.Annotations["runbook"], ".") {
				t.Errorf("alert %s does not say what is wrong and what to do", r.Alert)
			}
			if !strings.Contains(tested, "alertname: "+r.Alert+"}") || !strings.Contains(tested, `alertname="`+r.Alert+`"`) {
				t.Errorf("alert %s is not tested both ways", r.Alert)
			}
		}
	}
	if seen == 0 {
		t.Fatal("there are no alerts")
	}
	promtool := need(t, "promtool", "prometheus")
	for _, args := range [][]string{
		{"check", "config", "prometheus/prometheus.yml"},
		{"test", "rules", "prometheus/alerts_test.yml"},
	} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
