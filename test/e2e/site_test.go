package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// commandTime bounds every program that is expected to end by itself.
const commandTime = 2 * time.Minute

// A site is a folder with a configuration and, once created, the pool of it.
type site struct {
	t      testing.TB
	dir    string
	config string   // path
	nbd    string   // socket
	admin  string   // socket
	flags  []string // further ones of tierd
}

// newSite makes the folder. Its path is short, since socket paths must be.
func newSite(t testing.TB) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "te")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &site{
		t: t, dir: dir, config: filepath.Join(dir, "tierd.yaml"), nbd: filepath.Join(dir, "n"), admin: filepath.Join(dir, "a"),
	}
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// A layout is what tests vary of a configuration; the rest is the same for all.
type layout struct {
	tiers      []tierLayout
	extent     string // "": 64KiB
	volumes    string // YAML: "{name: v, size: 32MiB}", with commas between
	relocation string // YAML of relocation; "": a cycle of an hour, so that nothing moves
	extra      string // further YAML lines
}

// tierLayout is one tier: of files with the given sizes, or of the given paths.
type tierLayout struct {
	name, media, size string
	options           string // further YAML of each backing, such as ", preallocate: true"
	files             int    // 0: one
	paths             []string
}

// twoTiers is a pool of about 15 MiB over 55 MiB.
func twoTiers() []tierLayout {
	return []tierLayout{{name: "ssd", media: "ssd", size: "24MiB"}, {name: "sata", media: "hdd", size: "64MiB"}}
}

// backingPath is where file i of a tier is.
func (s *site) backingPath(tier string, i int) string {
	return s.path(fmt.Sprintf("%s%d.img", tier, i))
}

// write writes the configuration of l.
func (s *site) write(l layout) {
	s.t.Helper()
	var b strings.Builder
	if l.extent == "" {
		l.extent = "64KiB"
	}
	if l.relocation == "" {
		l.relocation = "{cycle: 1h}"
	}
	fmt.Fprintf(&b, "metadata: %s\nextent_size: %s\ntiers:\n", s.path("pool.db"), l.extent)
	for _, tl := range l.tiers {
		fmt.Fprintf(&b, "  - name: %s\n    media: %s\n    backings:\n", tl.name, tl.media)
		for _, p := range tl.paths {
			fmt.Fprintf(&b, "      - {path: %s%s}\n", p, tl.options)
		}
		for i := range max(tl.files, 1) {
			if len(tl.paths) == 0 {
				fmt.Fprintf(&b, "      - {path: %s, size: %s%s}\n", s.backingPath(tl.name, i), tl.size, tl.options)
			}
		}
	}
	if l.volumes != "" {
		fmt.Fprintf(&b, "volumes: [%s]\n", l.volumes)
	}
	fmt.Fprintf(&b, "nbd:\n  listen: [\"unix:%s\", \"tcp:127.0.0.1:0\"]\n", s.nbd)
	fmt.Fprintf(&b, "metrics: {listen: \"127.0.0.1:0\"}\nadmin: {socket: %s}\nrelocation: %s\n%s\n", s.admin, l.relocation, l.extra)
	s.writeConfig(b.String())
}

func (s *site) writeConfig(text string) {
	s.t.Helper()
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// edit replaces text of the configuration.
func (s *site) edit(old, new string) {
	s.t.Helper()
	b, err := os.ReadFile(s.config)
	if err != nil {
		s.t.Fatal(err)
	}
	if !bytes.Contains(b, []byte(old)) {
		s.t.Fatalf("configuration has no %q:\n%s", old, b)
	}
	s.writeConfig(strings.ReplaceAll(string(b), old, new))
}

// newPool makes a site with a created pool.
func newPool(t testing.TB, l layout) *site {
	t.Helper()
	s := newSite(t)
	s.write(l)
	s.ctl("pool", "create")
	return s
}

// uri is the address of a volume over the unix socket.
func (s *site) uri(volume string) string {
	return "nbd+unix:///" + url.PathEscape(volume) + "?socket=" + s.nbd
}

// A result is what a program left behind.
type result struct {
	code           int // -1: killed by a signal
	stdout, stderr string
}

// execute runs a program to its end.
func execute(t testing.TB, dir, name string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir // the tests' own folder has packages named like modules of others
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %s: %v", name, err)
	}
	if ctx.Err() != nil {
		t.Fatalf("%s %q did not end in %s\n%s%s", name, args, commandTime, &stdout, &stderr)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// tierctl runs a verb on the site's configuration.
func (s *site) tierctl(args ...string) result {
	s.t.Helper()
	return execute(s.t, s.dir, filepath.Join(*binDir, "tierctl"), append([]string{"--config", s.config}, args...)...)
}

// ctl runs a verb that has to succeed and returns what it prints.
func (s *site) ctl(args ...string) string {
	s.t.Helper()
	r := s.tierctl(args...)
	if r.code != 0 {
		s.t.Fatalf("tierctl %q: exit code %d\n%s%s", args, r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// ctlJSON runs a verb that has to succeed and decodes its JSON into v, which has
// to have every key.
func (s *site) ctlJSON(v any, args ...string) {
	s.t.Helper()
	out := s.ctl(append(args, "-o", "json")...)
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		s.t.Fatalf("tierctl %q -o json: %v\n%s", args, err, out)
	}
}

// ctlFails runs a verb that has to fail with a code and one line of text, besides
// a hint.
func (s *site) ctlFails(code int, text string, args ...string) {
	s.t.Helper()
	r := s.tierctl(args...)
	checkRefusal(s.t, fmt.Sprintf("tierctl %q", args), r, code, text)
}

// checkRefusal checks that a program failed with a code and said text in its only
// line. An ellipsis in text stands for anything.
func checkRefusal(t testing.TB, what string, r result, code int, text string) {
	t.Helper()
	if r.code != code {
		t.Errorf("%s: exit code %d, want %d\n%s", what, r.code, code, r.stderr)
	}
	var lines []string
	for line := range strings.Lines(r.stderr) {
		// The daemon's log is not the answer.
		if !strings.HasPrefix(line, "hint: ") && !strings.HasPrefix(line, "{") && !strings.HasPrefix(line, "time=") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	got := strings.Join(lines, "\n")
	if !matches(got, text) {
		t.Errorf("%s said\n  %s\nwant\n  %s", what, got, text)
	}
}

// matches reports whether got is the pattern, in which "..." stands for anything
// but a line's end.
func matches(got, pattern string) bool {
	parts := strings.Split(pattern, "...")
	rest, ok := strings.CutPrefix(got, parts[0])
	for _, p := range parts[1:] {
		if !ok {
			return false
		}
		at := strings.Index(rest, p)
		if p == "" {
			at = len(rest) // at the end
		}
		if ok = at >= 0 && !strings.Contains(rest[:at], "\n"); ok {
			rest = rest[at+len(p):]
		}
	}
	return ok && rest == ""
}

// checkPool runs the offline check, which must not find damage; clean says whether
// the last stop has to have been a clean one.
func (s *site) checkPool(clean bool) {
	s.t.Helper()
	r := s.tierctl("pool", "check", "-o", "json")
	var report struct {
		Findings []struct{ Severity, Where, What string }
		Clean    bool `json:"clean_stop"`
	}
	if err := json.Unmarshal([]byte(r.stdout), &report); err != nil {
		s.t.Fatalf("pool check: %v\n%s%s", err, r.stdout, r.stderr)
	}
	if r.code != 0 {
		s.t.Errorf("pool check: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if report.Clean != clean {
		s.t.Errorf("pool check: clean_stop is %v, want %v", report.Clean, clean)
	}
	if clean && len(report.Findings) > 0 {
		s.t.Errorf("pool check after a clean stop: %+v", report.Findings)
	}
}

// need skips the test if a program is not installed.
func need(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed", p)
		}
	}
}

// tool runs a foreign program that has to succeed and returns its output.
func tool(t testing.TB, name string, args ...string) string {
	t.Helper()
	r := execute(t, os.TempDir(), name, args...)
	if r.code != 0 {
		t.Fatalf("%s %q: exit code %d\n%s%s", name, args, r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// eventually waits until ok, which is asked again and again. A busy machine gets two
// minutes at least.
func eventually(t testing.TB, what string, patience time.Duration, ok func() bool) {
	t.Helper()
	patience = max(patience, 2*time.Minute)
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %s still not: %s", patience, what)
		}
	}
}
