// Package deploy tests what is deployed beside the programs: units, rules,
// dashboards, and the examples for clients.
package deploy

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"tierd/pkg/config"
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
		for _, want := range []string{"_netdev", "nofail", "x-systemd.requires=tierd-attach@" + device + ".service"} {
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

// settings returns the names of all settings of a type of the configuration.
func settings(t reflect.Type) (names []string) {
	for t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("yaml"); name != "" {
			names = append(append(names, name), settings(t.Field(i).Type)...)
		}
	}
	return names
}

// TestManualListsEverySetting compares the manual page and the sample with what the
// configuration has.
func TestManualListsEverySetting(t *testing.T) {
	manual, sample := read(t, "man", "tierd.yaml.5"), read(t, "config", "tierd.yaml")
	names := settings(reflect.TypeFor[config.Config]())
	if len(names) < 40 {
		t.Fatalf("the configuration has %d settings only", len(names))
	}
	for _, name := range names {
		word := regexp.MustCompile(`\b` + name + `\b`)
		if !word.MatchString(manual) {
			t.Errorf("tierd.yaml.5 does not mention %s", name)
		}
		if tls := map[string]bool{"cert": true, "key": true, "client_ca": true}; !tls[name] && !word.MatchString(sample) {
			t.Errorf("the sample does not mention %s", name)
		}
	}
}

// TestExamplesDecode reads the configurations of the README and the manual page.
func TestExamplesDecode(t *testing.T) {
	_, rest, _ := strings.Cut(read(t, "..", "README.md"), "```yaml\n")
	readme, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("README.md has no configuration")
	}
	_, rest, _ = strings.Cut(read(t, "man", "tierd.yaml.5"), ".SH EXAMPLE\n.nf\n")
	manual, _, ok := strings.Cut(rest, ".fi")
	if !ok {
		t.Fatal("tierd.yaml.5 has no example")
	}
	for name, text := range map[string]string{"README.md": readme, "tierd.yaml.5": strings.ReplaceAll(manual, `\-`, "-")} {
		path := filepath.Join(t.TempDir(), "tierd.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := config.Load(path); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLinksResolve checks the links of the README to files of the repository.
func TestLinksResolve(t *testing.T) {
	links := regexp.MustCompile(`\]\(([^)#]+)\)`).FindAllStringSubmatch(read(t, "..", "README.md"), -1)
	if len(links) < 5 {
		t.Fatalf("README.md has %d links only", len(links))
	}
	for _, l := range links {
		if _, err := os.Stat(filepath.Join("..", l[1])); err != nil {
			t.Errorf("README.md: %v", err)
		}
	}
}
