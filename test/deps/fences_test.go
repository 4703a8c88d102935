package deps

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// A fence is what one package, or a subtree ("x/..."), may import beside the
// standard library.
type fence struct {
	pkg    string
	may    []string // "x/..." is a subtree
	not    []string // of the standard library
	reason string   // what would be lost
}

// everything is for the programs and the tests on top of all packages.
var everything = []string{"..."}

// policyNot keeps mechanism out of the packages that decide.
var policyNot = []string{"os", "net", "io/fs", "path/filepath", "syscall"}

// fences are in the order in which they apply: the first that fits decides.
var fences = []fence{
	{"cmd/internal/setup", []string{"pkg/backing", "pkg/config", "pkg/units", "tiering", "tiering/..."}, []string{"net"},
		"setup turns a configuration into the pool's options; what serves clients has no part in that"},
	{"cmd/tierd", []string{"cmd/internal/...", "nbd", "nbd/wire", "pkg/...", "tiering", "tiering/heat", "tiering/plan", "tiering/skew", "lib/..."}, nil,
		"the daemon puts parts together; it knows no other command and opens no store itself"},
	{"cmd/tierctl", []string{"cmd/internal/...", "nbd/load", "nbd/client", "nbd/attach", "nbd/kernel", "pkg/...", "tiering", "tiering/simulate", "tiering/simulate/paper", "lib/..."}, nil,
		"the command line asks the daemon over its socket; of the pool it knows the offline verbs and the simulator alone"},

	{"nbd", []string{"nbd/wire", "pkg/metrics", "pkg/clock", "golang.org/x/sys/unix"}, nil,
		"the protocol knows a Device and nothing of tiers, so that it can be tested and reused without them"},
	{"nbd/wire", []string{"github.com/pojntfx/go-nbd/pkg/protocol"}, []string{"os"},
		"constants and headers are shared by server and client, and depend on neither"},
	{"nbd/client", []string{"nbd/wire", "golang.org/x/sys/unix"}, nil,
		"the client has to work against any server, so it must not share code with ours"},
	{"nbd/load", []string{"nbd/client", "nbd/wire", "pkg/trace", "pkg/units", "github.com/klauspost/compress/zstd"}, nil,
		"the load generator judges the daemon, so it must not know it"},

	{"nbd/kernel", []string{"golang.org/x/sys/unix"}, []string{"net"},
		"the kernel is told what to do with sockets; where they come from is no business of it"},
	{"nbd/attach", []string{"nbd/client", "nbd/kernel", "pkg/clock", "golang.org/x/sys/unix"}, nil,
		"who attaches a volume may be on another machine, and knows of the server what NBD tells"},

	{"tiering", []string{"tiering/...", "pkg/backing", "pkg/clock", "pkg/metrics", "pkg/units",
		"github.com/google/uuid", "github.com/prometheus/client_golang/prometheus", "golang.org/x/time/rate", "golang.org/x/sys/unix", "golang.org/x/sync/..."}, []string{"net", "net/http"},
		"the pool is told what to do: no wire, configuration or metadata file format belongs here; cmd translates"},
	{"tiering/extent", nil, []string{"os", "time"}, "leaf types are shared by all and depend on none"},
	{"tiering/mutant", nil, []string{"os"}, "the switches of test builds are a leaf"},
	{"tiering/registry", []string{"tiering/extent", "tiering/mutant"}, policyNot,
		"the registry orders ranges in memory; it does no I/O, under whose latency all requests would wait"},
	{"tiering/extentmap", []string{"tiering/extent", "tiering/mutant", "go.etcd.io/bbolt", "go.etcd.io/bbolt/...", "github.com/google/uuid", "golang.org/x/sys/unix"}, []string{"net"},
		"the extent map is the sole owner of bbolt, and knows nothing of those who use it"},
	{"tiering/ondisk", []string{"tiering/extent", "pkg/backing", "github.com/google/uuid"}, []string{"net"},
		"formats are code that must outlive everything around it"},
	{"tiering/stagedlog", []string{"tiering/extent", "github.com/google/uuid", "golang.org/x/sys/unix"}, []string{"net"},
		"formats are code that must outlive everything around it"},
	{"tiering/alloc", []string{"tiering/extent", "pkg/units"}, policyNot,
		"allocation is bookkeeping: it opens no file and is told what is clean"},
	// Heat keeps its scores in anonymous mappings: unix, for that alone.
	{"tiering/heat", []string{"tiering/extent", "pkg/units", "golang.org/x/sys/unix"}, policyNot,
		"policy holds no file and is told the time, so that it can be replayed"},
	{"tiering/tap", nil, policyNot, "what a request leaves behind on its way costs nanoseconds: it waits for nothing and opens nothing"},
	{"tiering/skew", nil, policyNot, "a curve is a pure function of what it is fed"},
	{"tiering/plan", []string{"tiering/extent", "pkg/units"}, policyNot,
		"policy is a pure function of what it is shown, so that it can be replayed"},
	{"tiering/schedule", []string{"tiering/extent", "pkg/units", "pkg/clock"}, policyNot,
		"policy holds no file and is told the time, so that it can be replayed"},
	{"tiering/simulate/bound", nil, append([]string{"time"}, policyNot...),
		"the bound judges the planner, so it must not share code with it"},
	{"tiering/simulate/paper", nil, policyNot, "the figures of a paper are pure functions of its inputs"},
	{"tiering/simulate", []string{"tiering/extent", "tiering/heat", "tiering/plan", "tiering/schedule", "tiering/simulate/bound", "pkg/trace", "pkg/units"}, policyNot,
		"the simulator replays policy, and what it is given to read; it knows neither pool nor daemon"},

	{"pkg/backing", []string{"pkg/clock", "pkg/units", "golang.org/x/sys/unix"}, []string{"net"}, "a store knows nothing of tiers"},
	{"pkg/backing/...", []string{"pkg/backing", "pkg/clock"}, nil, "what wraps a store knows nothing of tiers"},
	{"pkg/config", []string{"pkg/units", "github.com/goccy/go-yaml", "github.com/goccy/go-yaml/..."}, []string{"net/http"},
		"the configuration is a file format; cmd turns it into the options of others"},
	{"pkg/control", []string{"pkg/units"}, nil, "the admin protocol has types of its own, which change more slowly than the domain"},
	{"pkg/metrics", []string{"github.com/prometheus/client_golang/prometheus"}, nil, "metrics are reusable and know no tiers"},
	{"pkg/trace", []string{"pkg/units", "github.com/klauspost/compress/zstd", "github.com/ulikunitz/xz"}, nil, "traces are reusable and know no tiers"},
	{"pkg/chart", []string{"gonum.org/v1/plot", "gonum.org/v1/plot/..."}, []string{"net"}, "charts are reusable, know no tiers, and are the sole users of the library"},
	{"pkg/samehost", []string{"golang.org/x/sys/unix"}, []string{"net"}, "what protects a process knows nothing of what the process does"},
	{"pkg/units", nil, []string{"os"}, "units are a leaf"},
	{"pkg/clock", nil, []string{"os"}, "the clock is a leaf"},

	{"test/...", everything, nil, "tests stand on top of everything"},
	{"deploy", everything, nil, "tests stand on top of everything"},
}

// matches reports whether the import path p, without the module's name, is what a
// pattern names.
func matches(pattern, p string) bool {
	switch {
	case pattern == "...":
		return true
	case pattern == "lib/...":
		return strings.Contains(strings.SplitN(p, "/", 2)[0], ".")
	case strings.HasSuffix(pattern, "/..."):
		return strings.HasPrefix(p, strings.TrimSuffix(pattern, "..."))
	}
	return p == pattern
}

// goPackage is what `go list -json` tells of a package.
type goPackage struct {
	ImportPath, Dir, Name              string
	Imports, TestImports               []string
	XTestImports                       []string
	GoFiles, TestGoFiles, XTestGoFiles []string
}

// short is the import path without the module's name.
func (p goPackage) short() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

const module = "tierd"

// packages lists the packages of the module. The module's root holds none of ours.
func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Name,Imports,TestImports,XTestImports,GoFiles,TestGoFiles,XTestGoFiles", module+"/...")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var list []goPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := d.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.ImportPath != module {
			list = append(list, p)
		}
	}
	if len(list) < 20 {
		t.Fatalf("go list knows %d packages only", len(list))
	}
	return list
}

// TestImports holds the import graph against the fences.
func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		i := slices.IndexFunc(fences, func(f fence) bool { return matches(f.pkg, p.short()) })
		if i < 0 {
			t.Errorf("%s has no fence: decide what it may import, and say why, in fences_test.go", p.ImportPath)
			continue
		}
		checkImports(t, p, fences[i])
	}
}

func checkImports(t *testing.T, p goPackage, f fence) {
	for _, imp := range p.Imports {
		name := strings.TrimPrefix(imp, module+"/")
		ours, lib := name != imp, matches("lib/...", imp)
		allowed := slices.ContainsFunc(f.may, func(m string) bool { return matches(m, name) })
		switch {
		case (ours || lib) && !allowed, !ours && !lib && slices.Contains(f.not, imp):
			t.Errorf("%s imports %s: %s", p.ImportPath, imp, f.reason)
		case ours && strings.HasPrefix(name, "test/") && !matches("test/...", p.short()), name == "deploy":
			t.Errorf("%s imports %s: nothing imports tests, except tests", p.ImportPath, imp)
		}
		// These two hold for the programs, too, which may import any library.
		if strings.HasPrefix(imp, "go.etcd.io/bbolt") && f.pkg != "tiering/extentmap" {
			t.Errorf("%s imports %s: the extent map is its sole owner", p.ImportPath, imp)
		}
		if strings.HasPrefix(name, "cmd/tier") {
			t.Errorf("%s imports %s: a command is the end of the graph", p.ImportPath, imp)
		}
	}
}

// TestFencesAreInUse finds fences that fence nothing, such as those of a package
// that was renamed.
func TestFencesAreInUse(t *testing.T) {
	list := packages(t)
	for i, f := range fences {
		used := slices.ContainsFunc(list, func(p goPackage) bool {
			return slices.IndexFunc(fences, func(g fence) bool { return matches(g.pkg, p.short()) }) == i
		})
		if !used {
			t.Errorf("no package fits the fence %q", f.pkg)
		}
	}
}
