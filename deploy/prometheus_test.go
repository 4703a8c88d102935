package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"tierd/nbd/client"
	"tierd/nbd/load"
)

// need returns the path of a program or skips the test.
func need(t *testing.T, program, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("%s is not installed (package %s)", program, pkg)
	}
	return path
}

// start runs a program until the test ends. Its output is shown if the test fails.
func start(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		killer := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		killer.Stop()
		if t.Failed() || err != nil {
			t.Logf("%s: %v\n%s", filepath.Base(name), err, &out)
		}
	})
	return cmd
}

// freeAddress returns a loopback address that nobody listens on just now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// until calls ok every so often until it is content.
func until(t *testing.T, limit time.Duration, what string, ok func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s within %s: %v", what, limit, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// startDaemon builds tierd, creates a pool and serves it. It returns the address
// of the metrics and of the export.
func startDaemon(t *testing.T) (metrics, uri string) {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir+"/", "tierd/cmd/tierd", "tierd/cmd/tierctl")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	metrics = freeAddress(t)
	config := filepath.Join(dir, "tierd.yaml")
	text := fmt.Sprintf(`
metadata: %[1]s/pool.db
extent_size: 64KiB
tiers:
  - {name: ssd, media: ssd, backings: [{path: %[1]s/ssd.img, size: 32MiB}]}
  - {name: fc, media: hdd, backings: [{path: %[1]s/fc.img, size: 32MiB}]}
  # Reads of a backing are those that miss the page cache, as those of a slow one do.
  - {name: sata, media: hdd, backings: [{path: %[1]s/sata.img, size: 64MiB, simulate: {latency: 1ms}}]}
volumes: [{name: home, size: 48MiB}]
nbd: {listen: ["unix:%[1]s/nbd.sock"]}
relocation: {cycle: 1s, budget: {rate: 4MiB/s, per_cycle: 4MiB, per_day: 1GiB}}
metrics: {listen: "%[2]s"}
admin: {socket: %[1]s/admin.sock}
`, dir, metrics)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(filepath.Join(dir, "tierctl"), "pool", "create", "--config", config).CombinedOutput(); err != nil {
		t.Fatalf("create pool: %v\n%s", err, out)
	}
	start(t, filepath.Join(dir, "tierd"), "--config", config)
	until(t, 20*time.Second, "tierd answers", func() error {
		_, err := http.Get("http://" + metrics + "/metrics")
		return err
	})
	return metrics, "nbd+unix:///home?socket=" + dir + "/nbd.sock"
}

// putLoad keeps every kind of request going until the test ends.
func putLoad(t *testing.T, uri string) {
	t.Helper()
	c, err := client.Dial(t.Context(), uri)
	if err != nil {
		t.Fatal(err)
	}
	// Reads of what was never written have a panel, too.
	if err := c.ReadAt(make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		s := load.NewSpec(uri)
		s.Pattern, s.Fill, s.Duration = load.Zipf, true, 10*time.Minute
		s.ReadShare, s.TrimShare, s.ZeroShare, s.FlushEvery, s.Rate, s.Interval = 0.7, 0.05, 0.05, 20, 400, 0
		_, err := load.Run(ctx, s)
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && ctx.Err() == nil {
			t.Errorf("load: %v", err)
		}
	})
}

// server is a prometheus.
type server struct{ url string }

// startPrometheus runs a prometheus with the deployed configuration, at another
// address and a shorter interval.
func startPrometheus(t *testing.T, target string) server {
	t.Helper()
	program := need(t, "prometheus", "prometheus")
	dir := t.TempDir()
	for _, name := range []string{"prometheus.yml", "rules.yml", "alerts.yml"} {
		b, err := os.ReadFile(filepath.Join("prometheus", name))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(b), "127.0.0.1:9809", target)
		text = strings.ReplaceAll(text, "interval: 15s", "interval: 500ms")
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address := freeAddress(t)
	start(t, program, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	s := server{"http://" + address}
	until(t, 30*time.Second, "prometheus is ready", func() error { return s.get("/-/ready", nil, nil) })
	return s
}

// get fetches a path of the API and decodes its data.
func (s server) get(path string, query url.Values, data any) error {
	resp, err := http.Get(s.url + path + "?" + query.Encode())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, b)
	}
	if data == nil {
		return nil
	}
	return json.Unmarshal(b, &struct{ Data any }{data})
}

// query returns how many series an expression has that are numbers.
func (s server) query(expr string) (int, error) {
	var data struct {
		Result []struct{ Value [2]any }
	}
	if err := s.get("/api/v1/query", url.Values{"query": {expr}}, &data); err != nil {
		return 0, err
	}
	n := 0
	for _, r := range data.Result {
		text, _ := r.Value[1].(string)
		if v, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(v) {
			n++
		}
	}
	return n, nil
}

// ruleFile is a file of rules.
type ruleFile struct {
	Groups []struct {
		Rules []struct {
			Record, Alert, Expr string
			Annotations         map[string]string
		}
	}
}

func readRules(t *testing.T, name string) ruleFile {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("prometheus", name))
	if err != nil {
		t.Fatal(err)
	}
	var f ruleFile
	if err := yaml.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// dashboardExprs returns the expressions of the dashboard by panel, with the
// variables of Grafana replaced.
func dashboardExprs(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("grafana", "tierd.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr, RefID string }
		}
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	replace := strings.NewReplacer("$__rate_interval", "10s", "$instance", ".*", "$volume", ".*")
	exprs := map[string]string{}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("panel %q has the id of another one", p.Title)
		}
		ids[p.ID] = true
		for _, x := range p.Targets {
			exprs[p.Title+" "+x.RefID] = replace.Replace(x.Expr)
		}
	}
	values := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		m := values.FindStringSubmatch(v.Definition)
		if m == nil {
			t.Errorf("variable %s: %q is not understood", v.Name, v.Definition)
			continue
		}
		exprs["variable "+v.Name] = fmt.Sprintf("count by (%s) (%s)", m[2], replace.Replace(m[1]))
	}
	if len(exprs) < 40 {
		t.Fatalf("the dashboard has %d expressions only", len(exprs))
	}
	return exprs
}

var metricName = regexp.MustCompile(`\btierd[a-z_0-9:]+\b|\bup\b`)

// TestExpressionsReturnData runs a prometheus against a daemon under load. Every
// expression of the dashboard and every recording rule has to return numbers, and
// every metric that an alert looks at has to be there.
func TestExpressionsReturnData(t *testing.T) {
	need(t, "prometheus", "prometheus")
	target, uri := startDaemon(t)
	putLoad(t, uri)
	prom := startPrometheus(t, target)

	want := dashboardExprs(t)
	for _, g := range readRules(t, "rules.yml").Groups {
		for _, r := range g.Rules {
			want["rule "+r.Record] = r.Record
		}
	}
	for _, g := range readRules(t, "alerts.yml").Groups {
		for _, r := range g.Rules {
			for _, name := range metricName.FindAllString(r.Expr, -1) {
				want["alert "+r.Alert+": "+name] = name
			}
		}
	}
	missing := maps.Clone(want)
	deadline := time.Now().Add(time.Minute)
	for len(missing) > 0 && time.Now().Before(deadline) {
		time.Sleep(time.Second)
		for what, expr := range missing {
			n, err := prom.query(expr)
			if err != nil {
				t.Errorf("%s: %s: %v", what, expr, err)
			}
			if err != nil || n > 0 {
				delete(missing, what)
			}
		}
	}
	for _, what := range slices.Sorted(maps.Keys(missing)) {
		t.Errorf("%s returns no data: %s", what, missing[what])
	}
	t.Logf("%d expressions", len(want))
	checkHealth(t, prom)
}

// checkHealth asks prometheus whether it could evaluate its rules and scrape its
// target.
func checkHealth(t *testing.T, prom server) {
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError, State string }
		}
	}
	if err := prom.get("/api/v1/rules", nil, &rules); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			seen++
			if r.Health != "ok" {
				t.Errorf("rule %s: %s %s", r.Name, r.Health, r.LastError)
			}
			if r.State == "firing" {
				t.Errorf("alert %s fires for a healthy daemon", r.Name)
			}
		}
	}
	if seen == 0 {
		t.Error("prometheus has no rules")
	}
	if n, err := prom.query(`up{job="tierd"} == 1`); err != nil || n != 1 {
		t.Errorf("targets up: got %d, %v, want 1", n, err)
	}
}
