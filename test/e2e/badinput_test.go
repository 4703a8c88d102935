package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// snapshot is the hash of every file below the site's folder, by name. Sockets
// count by name alone.
func (s *site) snapshot() map[string]string {
	s.t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(s.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if e.Type() != 0 {
			files[path] = e.Type().String()
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		files[path] = hex.EncodeToString(sum[:8])
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return files
}

// unchanged checks that the site is as in an earlier snapshot.
func (s *site) unchanged(before map[string]string) {
	s.t.Helper()
	after := s.snapshot()
	for path, sum := range before {
		switch now, there := after[path]; {
		case !there:
			s.t.Errorf("%s is gone", path)
		case now != sum:
			s.t.Errorf("%s has changed", path)
		}
	}
	for path := range after {
		if _, there := before[path]; !there {
			s.t.Errorf("%s is new", path)
		}
	}
}

// A configuration that makes no sense is answered by both programs with one line
// for each fault, and by exit code 2.
func TestBadConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 5000)
	for _, tt := range []struct {
		name, old, new string
		want           string // behind the line number
	}{
		{"unknown key", "extent_size:", "extent_sizes:", "2: extent_sizes: ..."},
		{"unknown nested key", "media: ssd", "medium: ssd", "...: tiers[0].medium: ..."},
		{"size 0", "size: 24MiB", "size: 0", "...: tiers[0].backings[0].size: must be above 0 (got 0...)"},
		{"volume of size 0", "name: home, size: 32MiB", "name: home, size: 0", "...: volumes[0].size: must be above 0 (got 0...)"},
		{"extent size", "64KiB", "96KiB", `2: extent_size: must be auto or a power of two from 64KiB to 64MiB (got "96KiB")`},
		{"extent size 0", "64KiB", "0", `2: extent_size: must be auto or a power of two from 64KiB to 64MiB (got "0")`},
		{"same path twice", "sata0.img", "ssd0.img", "...: tiers[1].backings[0].path: must be another file than tiers[0].backings[0].path (got ...)"},
		{"slash", "name: home", "name: a/b", `...: volumes[0].name: must not contain a slash (got "a/b")`},
		{"long name", "name: home", "name: " + long, "...: volumes[0].name: must be at most 255 bytes long (got 5000)"},
		{"empty name", "name: home", `name: ""`, "...: volumes[0].name: must not be empty"},
		{"policy", "name: home,", "name: home, policy: gold,", `...: volumes[0].policy: must be auto, highest, lowest or a tier's name (got "gold")`},
		{"headroom", "{cycle: 1h}", "{cycle: 1h, headroom: 120%}", "...: relocation.headroom: must be below 100% (got 120%)"},
		{"no unit", "{cycle: 1h}", "{cycle: 5}", "...: relocation.cycle: ..."},
		{"port", "tcp:127.0.0.1:0", "tcp:127.0.0.1:99999", "...: nbd.listen[1]: must have a host and a port from 0 to 65535, ..."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.write(layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"})
			s.edit(tt.old, tt.new)
			before := s.snapshot()
			// A heading, and a line for each fault.
			want := s.config + ": 1 fault in the configuration\nline " + tt.want
			checkRefusal(t, "tierd", s.refused(), 2, "tierd: "+want)
			checkRefusal(t, "tierctl pool create", s.tierctl("pool", "create"), 2, "tierctl: "+want)
			s.unchanged(before)
		})
	}
}

func TestEveryFaultOfAConfigurationIsListedAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.write(layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"})
	s.edit("64KiB", "96KiB")
	s.edit("name: home", "name: a/b")
	s.edit("{cycle: 1h}", "{cycle: 1h, headroom: 120%, colour: red}")
	r := s.refused()
	if r.code != 2 {
		t.Errorf("exit code %d, want 2", r.code)
	}
	for _, want := range []string{"extent_size: ", "volumes[0].name: ", "relocation.headroom: ", "relocation.colour: "} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("the faults lack %q", want)
		}
	}
	heading, faults, _ := strings.Cut(r.stderr, "\n")
	if want := "tierd: " + s.config + ": 4 faults in the configuration"; heading != want {
		t.Errorf("the heading is %q, want %q", heading, want)
	}
	for line := range strings.Lines(faults) {
		if !regexp.MustCompile(`^line [1-9][0-9]*: [a-z_.0-9\[\]]+: `).MatchString(line) {
			t.Errorf("no line number and path in %q", line)
		}
	}
}

func TestCommandLinesThatMakeNoSense(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"})
	for _, tt := range []struct {
		code int
		want string
		args []string
	}{
		{2, "tierctl: the volume's name must not contain a slash (got ...)", []string{"volume", "create", "a/b", "1MiB"}},
		{2, "tierctl: the volume's name must be at most 255 bytes long (got 5000)", []string{"volume", "create", strings.Repeat("x", 5000), "1MiB"}},
		{2, "tierctl: SIZE must be above 0 (got ...)", []string{"volume", "create", "a", "0"}},
		{2, "tierctl: volume a: volume size 5000: must be a positive multiple of 4096 bytes", []string{"volume", "create", "a", "5000"}},
		{2, "tierctl: the volume's new name must not contain a slash (got ...)", []string{"volume", "rename", "home", "/"}},
		{2, "tierctl: volume create: takes NAME SIZE (got 1 of them)", []string{"volume", "create", "a"}},
		{2, `tierctl: volume: unknown verb "creat"; did you mean create?`, []string{"volume", "creat"}},
		{2, `tierctl: --output must be table or json (got "xml")`, []string{"pool", "status", "-o", "xml"}},
		{2, "tierctl: ...OFFSET...", []string{"locate", "home", "far"}},
		{2, "tierctl: ...outside the volume...", []string{"locate", "home", "1TiB"}},
		{1, `tierctl: volume "nobody": not found`, []string{"heat", "nobody"}},
		{2, "tierctl: pool create: unknown flag: --fast", []string{"pool", "create", "--fast"}},
	} {
		before := s.volumes()
		s.ctlFails(tt.code, tt.want, tt.args...)
		if after := s.volumes(); len(after) != len(before) {
			t.Errorf("%q changed the volumes", tt.args)
		}
	}
	for _, tt := range []struct {
		code int
		want string
		args []string
	}{
		{2, `tierd: unexpected argument "now"`, []string{"--config", s.config, "now"}},
		{2, `tierd: --log-format must be text or json (got "xml")`, []string{"--log-format", "xml"}},
		{2, "tierd: ...nowhere.yaml: no such file or directory", []string{"--config", s.path("nowhere.yaml")}},
	} {
		checkRefusal(t, fmt.Sprintf("tierd %q", tt.args), execute(t, s.dir, filepath.Join(*binDir, "tierd"), tt.args...), tt.code, tt.want)
	}
	d.stop()
}

// What the daemon finds on disk and must not touch.
func TestDaemonRefusesWhatItFindsOnDisk(t *testing.T) {
	t.Parallel()
	two := layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"}
	swap := func(s *site, path string, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name    string
		prepare func(s *site)
		want    string // S stands for the site's folder
	}{
		{"pool never created", func(s *site) {
			for _, f := range []string{"pool.db", "pool.db.log", "ssd0.img", "sata0.img"} {
				_ = os.Remove(s.path(f))
			}
		}, "tierd: open pool: there is no pool at S/pool.db; tierctl pool create makes a new one, tierctl pool rebuild finds a lost one on its backings"},
		{"backing missing", func(s *site) {
			_ = os.Remove(s.path("sata0.img"))
		}, "tierd: open pool: backing S/sata0.img of tier sata is missing (id 2, ...)...; attach it again, or start tierd with --degraded: ..."},
		{"backing cut off", func(s *site) {
			if err := os.Truncate(s.path("sata0.img"), 40*mib); err != nil {
				s.t.Fatal(err)
			}
		}, "tierd: open pool: ...backing S/sata0.img...41943040...67108864..."},
		{"backing of another pool", func(s *site) {
			other := newPool(s.t, two)
			data, err := os.ReadFile(other.path("sata0.img"))
			if err != nil {
				s.t.Fatal(err)
			}
			swap(s, s.path("sata0.img"), data)
		}, "tierd: open pool: backing S/sata0.img belongs to pool ..., not to ...; take it out of the configuration, or name that pool's metadata"},
		{"backing overwritten", func(s *site) {
			swap(s, s.path("sata0.img"), make([]byte, 64*mib))
		}, "tierd: open pool: backing S/sata0.img of tier sata is missing (id 2, ...)...; attach it again, or start tierd with --degraded: ..."},
		{"two copies of a backing", func(s *site) {
			data, err := os.ReadFile(s.path("ssd0.img"))
			if err != nil {
				s.t.Fatal(err)
			}
			swap(s, s.path("copy.img"), data)
			s.edit("      - {path: "+s.path("sata0.img"), "      - {path: "+s.path("copy.img")+"}\n      - {path: "+s.path("sata0.img"))
		}, "tierd: open pool: backings S/ssd0.img and S/copy.img are copies of each other (id 1); take one away"},
		{"old copy of the metadata", func(s *site) {
			data, err := os.ReadFile(s.path("pool.db"))
			if err != nil {
				s.t.Fatal(err)
			}
			s.start().stop()
			swap(s, s.path("pool.db"), data)
		}, "tierd: open pool: metadata S/pool.db is older than backing S/ssd0.img (incarnation 1 against 2): it was restored from a copy; put the original back, or move the copy away and run tierctl pool rebuild"},
		{"old copy of a backing", func(s *site) {
			data, err := os.ReadFile(s.path("ssd0.img"))
			if err != nil {
				s.t.Fatal(err)
			}
			s.start().stop()
			swap(s, s.path("ssd0.img"), data)
		}, "tierd: open pool: backing S/ssd0.img is an old copy (incarnation 1, the pool knows 2); attach the original, or take the copy away and start with --degraded"},
		{"metadata is text", func(s *site) {
			swap(s, s.path("pool.db"), []byte(strings.Repeat("not a database\n", 5000)))
		}, "tierd: open pool: ...metadata S/pool.db: ...not..."},
		{"metadata is empty", func(s *site) {
			swap(s, s.path("pool.db"), nil)
		}, "tierd: open pool: ...metadata S/pool.db: ...not..."},
		{"metadata is zeroes", func(s *site) {
			swap(s, s.path("pool.db"), make([]byte, 64<<10))
		}, "tierd: open pool: ...metadata S/pool.db: ...not..."},
		{"metadata is cut off", func(s *site) {
			if err := os.Truncate(s.path("pool.db"), 12<<10); err != nil {
				s.t.Fatal(err)
			}
		}, "tierd: open pool: ...metadata S/pool.db: ..."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newPool(t, two)
			tt.prepare(s)
			before := s.snapshot()
			checkRefusal(t, "tierd", s.refused(), 1, strings.ReplaceAll(tt.want, "S/", s.dir+"/"))
			s.unchanged(before)
		})
	}
}

func TestOnePoolHasOneDaemon(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"})
	c := s.dial("home")
	c.write(0, mib, 1)

	// The same configuration: the sockets are taken.
	checkRefusal(t, "the second daemon", s.refused(), 1, "tierd: listen on unix:"+s.nbd+": address is in use by a running server")

	// Other sockets: the metadata is locked.
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	other := newSite(t)
	other.writeConfig(strings.NewReplacer(s.nbd+`"`, other.nbd+`"`, s.admin+"}", other.admin+"}").Replace(string(text)))
	checkRefusal(t, "a daemon on the same metadata", other.refused(), 1, "tierd: open pool: ...metadata "+s.path("pool.db")+": metadata file is in use, by tierd, process ...")
	other.ctlFails(1, "tierctl: create pool: ...metadata "+s.path("pool.db")+": metadata file is in use, by tierd, process ...", "pool", "create")

	// Another pool that claims a backing in use.
	other.writeConfig(strings.ReplaceAll(string(text), s.path("pool.db"), other.path("pool.db")))
	other.ctlFails(1, "tierctl: create pool: ...backing "+s.path("ssd0.img")+": ...in use...", "pool", "create", "--force", s.path("ssd0.img"), "--force", s.path("sata0.img"))
	if _, err := os.Stat(other.path("pool.db")); err == nil {
		t.Error("the refused create left a metadata file")
	}

	// The first one is not disturbed.
	c.check(0, mib, 1)
	s.dial("home").check(0, mib, 1)
	s.ctl("pool", "status")
	d.stop()
	s.checkPool(true)
}

func TestListenerAddressInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	for _, tt := range []struct{ name, old, new, want string }{
		{"nbd", "tcp:127.0.0.1:0", "tcp:" + taken, "tierd: listen on tcp:" + taken + ": ...address already in use"},
		{"metrics", `metrics: {listen: "127.0.0.1:0"}`, `metrics: {listen: "` + taken + `"}`, "tierd: listen on " + taken + " for metrics: ...address already in use"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newPool(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"})
			s.edit(tt.old, tt.new)
			before := s.snapshot()
			checkRefusal(t, "tierd", s.refused(), 1, tt.want)
			s.unchanged(before)
		})
	}
	t.Run("socket is a file", func(t *testing.T) {
		s := newPool(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"})
		if err := os.WriteFile(s.nbd, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		before := s.snapshot()
		checkRefusal(t, "tierd", s.refused(), 1, "tierd: listen on unix:"+s.nbd+": ...address already in use")
		s.unchanged(before)
	})
	t.Run("socket of a killed daemon", func(t *testing.T) {
		s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"})
		d.kill()
		if _, err := os.Lstat(s.nbd); err != nil {
			t.Fatalf("the killed daemon left no socket: %v", err)
		}
		s.start().stop()
		if _, err := os.Lstat(s.nbd); err == nil {
			t.Error("the socket is left behind by a clean stop")
		}
	})
}
