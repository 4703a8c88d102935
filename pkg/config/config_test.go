package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tierd/pkg/units"
)

// minimal is a valid file; tests put lines under it or replace parts of it.
const minimal = `metadata: /var/lib/tierd/pool.db
tiers:
  - name: ssd
    backings:
      - {path: /nowhere/a.img, size: 1GiB}
`

func decode(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Decode([]byte(text), "test.yaml")
	if err != nil {
		t.Fatalf("Decode: %v\n%s", err, text)
	}
	return c
}

// faultsOf returns the lines of the error that text must give.
func faultsOf(t *testing.T, text string) []string {
	t.Helper()
	c, err := Decode([]byte(text), "test.yaml")
	var bad *Error
	if !errors.As(err, &bad) || !errors.Is(err, ErrInvalid) {
		t.Fatalf("Decode = %v, %v; want an *Error\n%s", c, err, text)
	}
	var lines []string
	for _, f := range bad.Faults {
		lines = append(lines, f.String())
	}
	return lines
}

func TestEverySampleDecodes(t *testing.T) {
	samples, err := filepath.Glob("../../deploy/config/*.yaml")
	if err != nil || len(samples) < 2 {
		t.Fatalf("samples = %v, %v; want two or more", samples, err)
	}
	for _, sample := range samples {
		if c, err := Load(sample); err != nil {
			t.Errorf("%v", err)
		} else if w := c.Warnings(); len(w) != 0 {
			t.Errorf("%s warns: %v", sample, w)
		}
	}
}

func TestDecodeFullSample(t *testing.T) {
	c, err := Load("../../deploy/config/tierd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	b := c.Tiers[0].Backings[1]
	if b.Path != "/srv/ssd/a.img" || b.Size != 200*units.GiB || !b.Preallocate {
		t.Errorf("tiers[0].backings[1] = %+v", b)
	}
	if v := c.Volumes[1]; !reflect.DeepEqual(v, Volume{Name: "archive", Size: 8 * units.TiB, Policy: "lowest"}) {
		t.Errorf("volumes[1] = %+v", v)
	}
	wantListen := []Listener{{"unix", "/run/tierd/nbd.sock"}, {"tcp", "127.0.0.1:10809"}}
	if !slices.Equal(c.NBD.Listen, wantListen) {
		t.Errorf("nbd.listen = %v, want %v", c.NBD.Listen, wantListen)
	}
	w := c.Relocation.Windows[0]
	if w.Days.String() != "mon-fri" || w.Start != 20*60 || w.End != 6*60 || w.Rate != units.Rate(400*units.MiB) {
		t.Errorf("windows[0] = %+v", w)
	}
	if got := c.Relocation.Budget.PerDay; got != 500*units.GiB {
		t.Errorf("per_day = %s", got)
	}
}

func TestDefaultsFillWhatIsLeftOut(t *testing.T) {
	c := decode(t, minimal+"volumes: [{name: v, size: 1MiB}]\nheat:\nrelocation: {windows: [{start: \"01:00\", end: \"02:00\"}]}\n")
	if got := c.Volumes[0].Policy; got != PolicyAuto {
		t.Errorf("policy = %q, want %q", got, PolicyAuto)
	}
	if got := c.Relocation.Windows[0].Days; got != EveryDay {
		t.Errorf("days = %s, want %s", got, EveryDay)
	}
	if got := c.Heat.LongHalfLife.Std(); got != 24*time.Hour {
		t.Errorf("long_half_life = %s, want 24h", got)
	}
	if got := c.Admin.Socket; got != DefaultAdminSocket {
		t.Errorf("admin.socket = %s", got)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("Validate after Decode: %v", err)
	}
}

// Words and times that other YAML readers take for booleans and base-60
// numbers mean what they say, quoted or not.
func TestPlainScalarsAreTakenLiterally(t *testing.T) {
	c := decode(t, minimal+"volumes: [{name: 007, size: 1MiB}, {name: true, size: 4096}]\nnbd: {tls: {mode: off}}\n"+
		"relocation: {windows: [{days: fri-sun, start: 20:00, end: 24:00}, {days: mon, start: 08:30, end: \"12:00\"}]}\n")
	if got := c.Volumes[0].Name + " " + c.Volumes[1].Name; got != "007 true" {
		t.Errorf("names = %q, want %q", got, "007 true")
	}
	if c.NBD.TLS.Mode != TLSOff {
		t.Errorf("mode = %q, want off", c.NBD.TLS.Mode)
	}
	if w := c.Relocation.Windows[0]; w.Start != 20*60 || w.End != 24*60 {
		t.Errorf("windows[0] = %+v", w)
	}
}

func TestBadInput(t *testing.T) {
	long := strings.Repeat("x", 5000)
	tests := []struct {
		name, in string
		want     []string
	}{
		{"empty", "", []string{"line 1: metadata: is required", "line 1: tiers: must have at least one tier"}},
		{"syntax", "metadata: /a\ntiers: [\n", []string{"line 2: syntax: sequence end token ']' not found"}},
		{"not a mapping", "- a\n", []string{
			"line 1: must be a mapping of keys to values (got a list)",
			"line 1: metadata: is required", "line 1: tiers: must have at least one tier"}},
		{"two documents", minimal + "---\nmetadata: /b\n", []string{`line 7: must be one document: remove the "---" in the middle`}},
		{"unknown key", minimal + "relocation: {cicle: 5m}\n", []string{"line 6: relocation.cicle: is not a known key (did you mean cycle?)"}},
		{"unknown key at the top", minimal + "zzz: 1\n", []string{"line 6: zzz: is not a known key"}},
		{"key twice", minimal + "metadata: /b\n", []string{"line 6: metadata: is given twice, first in line 1"}},
		{"anchor", minimal + "heat: &h {short_weight: 0.1}\n", []string{"line 6: heat: must be written out: anchors, aliases and tags are not supported"}},
		{"size 0", strings.Replace(minimal, "1GiB", "0", 1), []string{"line 5: tiers[0].backings[0].size: must be above 0 (got 0)"}},
		{"size without sense", strings.Replace(minimal, "1GiB", "1G", 1), []string{`line 5: tiers[0].backings[0].size: must be a size such as 64GiB, 1.5TiB, 200MB or 512 (got "1G")`}},
		{"relative path", strings.Replace(minimal, "/nowhere/a.img", "a.img", 1), []string{`line 5: tiers[0].backings[0].path: must be an absolute path (got "a.img")`}},
		{"extent size", minimal + "extent_size: 96KiB\n", []string{`line 6: extent_size: must be auto or a power of two from 64KiB to 64MiB (got "96KiB")`}},
		{"extent size 0", minimal + "extent_size: 0\n", []string{`line 6: extent_size: must be auto or a power of two from 64KiB to 64MiB (got "0")`}},
		{"path twice", minimal + "  - name: hdd\n    backings:\n      - {path: /nowhere/../nowhere/a.img}\n", []string{
			`line 8: tiers[1].backings[0].path: must be another file than tiers[0].backings[0].path (got "/nowhere/../nowhere/a.img")`}},
		{"tier name twice", minimal + "  - {name: ssd, backings: [{path: /b}]}\n", []string{`line 6: tiers[1].name: must be unique (got "ssd", as in tiers[0].name)`}},
		{"tier named like a policy", strings.Replace(minimal, "ssd", "auto", 1), []string{`line 3: tiers[0].name: must not be "auto", which is a policy`}},
		{"tier without backings", minimal + "  - name: hdd\n", []string{"line 6: tiers[1].backings: must have at least one backing"}},
		{"volume with a slash", minimal + "volumes: [{name: a/b, size: 1GiB}]\n", []string{`line 6: volumes[0].name: must not contain a slash (got "a/b")`}},
		{"volume with a long name", minimal + "volumes: [{name: " + long + ", size: 1GiB}]\n", []string{"line 6: volumes[0].name: must be at most 255 bytes long (got 5000)"}},
		{"space faults", minimal + "volumes:\n  - {name: a, size: 1MiB, reservation: 2MiB, quota: 1MiB, on_full: sometimes}\nspace: {low_water: 101%}\n", []string{
			`line 7: volumes[0].on_full: must be error, or wait and a time up to 24h, as in "wait 60s" (got "sometimes")`,
			`line 7: volumes[0].reservation: must be from 0 to the volume's size of 1MiB (got 2MiB)`,
			`line 7: volumes[0].quota: must not be less than the reservation of 2MiB (got 1MiB)`,
			`line 8: space.low_water: must be from 0% to 100% (got 101%)`,
		}},
		{"volume faults", minimal + "volumes:\n  - {name: a, policy: fast}\n  - {name: a, size: 1000}\n", []string{
			"line 7: volumes[0].size: is required",
			`line 7: volumes[0].policy: must be auto, highest, lowest or a tier's name (got "fast")`,
			`line 8: volumes[1].name: must be unique (got "a", as in volumes[0].name)`,
			"line 8: volumes[1].size: must be a multiple of 4096 bytes (got 1kB)"}},
		{"listeners", minimal + `nbd: {listen: ["unix:rel", "tcp:0.0.0.0:1", "tcp:[::1]:99999", "http:x", "tcp:localhost:5", "tcp:localhost:5"]}` + "\n", []string{
			`line 6: nbd.listen[3]: must be "unix:/path" or "tcp:host:port" (got "http:x")`,
			`line 6: nbd.listen[0]: must be an absolute path (got "rel")`,
			`line 6: nbd.listen[1]: must be a loopback address such as 127.0.0.1, unless nbd.tls.mode is require, or nbd.insecure_remote_plaintext is true (got "tcp:0.0.0.0:1")`,
			`line 6: nbd.listen[2]: must have a host and a port from 0 to 65535, such as 127.0.0.1:10809 (got "[::1]:99999")`,
			`line 6: nbd.listen[5]: must be another address than nbd.listen[4] (got "localhost:5")`}},
		{"tls without certificates", minimal + "nbd:\n  tls: {mode: require}\n", []string{"line 7: nbd.tls.cert: is required", "line 7: nbd.tls.key: is required"}},
		{"tls without a mode", minimal + "nbd:\n  tls: {cert: /c, key: /k}\n", []string{"line 7: nbd.tls.mode: must be given where there are certificates: off, allow or require"}},
		{"plaintext beside tls on a network", minimal + "nbd:\n  listen: [\"tcp:0.0.0.0:1\"]\n  tls: {cert: /c, key: /k, mode: allow}\n", []string{`line 7: nbd.listen[0]: must be a loopback address such as 127.0.0.1, unless nbd.tls.mode is require, or nbd.insecure_remote_plaintext is true (got "tcp:0.0.0.0:1")`}},
		{"nbd limits", minimal + "nbd:\n  handshake_timeout: 1ms\n  max_connections: 0\n  max_in_flight: 127\n", []string{
			"line 7: nbd.handshake_timeout: must be from 1s to 1h (got 1ms)",
			"line 8: nbd.max_connections: must be from 1 to 1048576 (got 0)",
			"line 9: nbd.max_in_flight: must be from 128, which kernel clients count on, to 65536 (got 127)",
		}},
		{"client names", minimal + "volumes:\n- {name: a, size: 1MiB, allow_clients: [mx1, \"\"]}\n", []string{`line 7: volumes[0].allow_clients[1]: must have 1 to 255 bytes of text without control characters (got "")`}},
		{"relocation", minimal + "relocation:\n  cycle: 0s\n  headroom: 120%\n  budget: {rate: 0/s, per_cycle: 1MiB, per_day: 0}\n", []string{
			"line 7: relocation.cycle: must be 10ms or more (got 0s)",
			"line 8: relocation.headroom: must be below 100% (got 120%)",
			"line 9: relocation.budget.rate: must be above 0; `tierctl relocation pause` stops relocation (got 0/s)",
			"line 9: relocation.budget.per_cycle: must hold the move of an extent, 4352KiB at most (got 1MiB)",
			"line 9: relocation.budget.per_day: must hold the move of an extent, 4352KiB at most; leave it out for no limit (got 0)"}},
		{"windows", minimal + "relocation:\n  windows:\n    - {days: mon-fry, start: \"800\", end: \"09:00\"}\n    - {start: \"08:00\"}\n    - {start: \"08:00\", end: \"08:00\", rate: 0}\n", []string{
			`line 8: relocation.windows[0].days: must be days such as "mon-fri", "sat,sun" or "daily" (got "mon-fry")`,
			`line 8: relocation.windows[0].start: must be a time such as "20:00", up to "24:00" (got "800")`,
			"line 9: relocation.windows[1].end: is required",
			"line 10: relocation.windows[2].rate: must be above 0 (got 0/s)"}},
		{"heat", minimal + "heat: {short_half_life: 2d, long_half_life: 24h, short_weight: 1.5}\n", []string{
			"line 6: heat.short_half_life: must not be above long_half_life, 24h (got 2d)",
			"line 6: heat.short_weight: must be from 0 to 1 (got 1.5)"}},
		{"types", minimal + "heat: {short_weight: much}\nlog: {level: loud}\nmetrics: [1]\nvolumes: {a: b}\nadmin: {socket: [x]}\n", []string{
			`line 6: heat.short_weight: must be a number (got "much")`,
			`line 7: log.level: must be debug, info, warn or error (got "loud")`,
			"line 8: metrics: must be a mapping of keys to values (got a list)",
			"line 9: volumes: must be a list (got a mapping)",
			"line 10: admin.socket: must be text (got a list)"}},
		{"a fault hides no other", `metadata: pool.db
tiers:
  - name: ssd
    direct_io: maybe
    backings: [{path: /a, size: much}, {pth: /b}]
  - name: s s d
    media: tape
`, []string{
			`line 1: metadata: must be an absolute path (got "pool.db")`,
			`line 4: tiers[0].direct_io: must be true or false (got "maybe")`,
			`line 5: tiers[0].backings[0].size: must be a size such as 64GiB, 1.5TiB, 200MB or 512 (got "much")`,
			"line 5: tiers[0].backings[1].pth: is not a known key (did you mean path?)",
			"line 5: tiers[0].backings[1].path: is required",
			`line 6: tiers[1].name: must be made of letters, digits, '.', '_' and '-' (got "s s d")`,
			"line 6: tiers[1].backings: must have at least one backing",
			`line 7: tiers[1].media: must be ssd or hdd (got "tape")`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := faultsOf(t, tt.in)
			if !slices.Equal(got, tt.want) {
				t.Errorf("got:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(tt.want, "\n  "))
			}
		})
	}
}

func TestSameFileByLink(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.img")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, link := range map[string]func(string, string) error{"sym": os.Symlink, "hard": os.Link} {
		other := filepath.Join(dir, name)
		if err := link(file, other); err != nil {
			t.Fatal(err)
		}
		got := faultsOf(t, "metadata: /m\ntiers: [{name: a, backings: [{path: "+file+"}, {path: "+other+"}]}]\n")
		want := "line 2: tiers[0].backings[1].path: must be another file than tiers[0].backings[0].path (got " +
			units.Quote(other) + ", which is the same file as " + units.Quote(file) + ")"
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s link: got %q, want %q", name, got, want)
		}
	}
}

func TestValidateWithoutFile(t *testing.T) {
	c := Default()
	err := c.Validate()
	want := "2 faults in the configuration\nmetadata: is required\ntiers: must have at least one tier"
	if err == nil || err.Error() != want {
		t.Errorf("Validate of the defaults = %v, want %q", err, want)
	}
}

func TestWarnings(t *testing.T) {
	c := decode(t, strings.Replace(minimal, "    backings", "    endurance: {write_per_day: 1GiB}\n    backings", 1))
	want := []string{"line 4: tiers[0].endurance.write_per_day: is not in effect in this version: promotions are bounded by relocation.budget alone"}
	if got := c.Warnings(); !slices.Equal(got, want) {
		t.Errorf("Warnings = %q, want %q", got, want)
	}
	c = decode(t, minimal)
	c.Volumes = []Volume{{Name: "a"}, {Name: "b", AllowClients: []string{"mx1"}}}
	c.NBD.TLS.Mode = TLSAllow
	want = []string{"line 1: volumes[1].allow_clients: shuts out all clients but those on Unix sockets: without nbd.tls.client_ca none shows a certificate"}
	if got := c.Warnings(); !slices.Equal(got, want) {
		t.Errorf("Warnings = %q, want %q", got, want)
	}
	c.NBD.TLS.ClientCA = "/ca.pem"
	if got := c.Warnings(); len(got) != 0 {
		t.Errorf("Warnings with a client_ca = %q, want none", got)
	}
}

func TestAutoExtentSize(t *testing.T) {
	const tib = int64(units.TiB)
	tests := []struct {
		pool int64
		want units.Size
	}{
		{0, 256 * units.KiB}, {tib, 256 * units.KiB}, {tib + 1, 512 * units.KiB}, {2 * tib, 512 * units.KiB},
		{4 * tib, units.MiB}, {8 * tib, 2 * units.MiB}, {16 * tib, 4 * units.MiB}, {1 << 62, 4 * units.MiB},
	}
	for _, tt := range tests {
		if got := AutoExtentSize(tt.pool); got != tt.want {
			t.Errorf("AutoExtentSize(%d) = %s, want %s", tt.pool, got, tt.want)
		}
	}
}

func TestDays(t *testing.T) {
	tests := []struct{ in, want string }{
		{"daily", "daily"}, {"mon-fri", "mon-fri"}, {"sat,sun", "sat,sun"}, {"Sun, Sat", "sat,sun"},
		{"fri-mon", "mon,fri-sun"}, {"wed", "wed"}, {"mon-sun", "daily"}, {"sun,mon", "mon,sun"}, {"mon, daily", "daily"},
	}
	for _, tt := range tests {
		var d, again Days
		if err := d.UnmarshalText([]byte(tt.in)); err != nil || d.String() != tt.want {
			t.Errorf("days %q = %q, %v; want %q", tt.in, d, err, tt.want)
		}
		if err := again.UnmarshalText([]byte(d.String())); err != nil || again != d {
			t.Errorf("days %q printed as %q is %q, %v", tt.in, d, again, err)
		}
	}
}

func TestReloadable(t *testing.T) {
	old := decode(t, minimal)
	changed := decode(t, minimal+`volumes: [{name: v, size: 1MiB}]
nbd: {listen: ["unix:/run/other.sock"]}
relocation: {cycle: 1m, budget: {rate: 5MiB/s}, windows: [{start: "01:00", end: "02:00"}]}
log: {level: debug}
metrics: {listen: ""}
`)
	live, ignored := Reloadable(old, changed)
	wantLive := []string{
		"relocation.cycle: 5m -> 1m", "relocation.budget.rate: 100MiB/s -> 5MiB/s",
		"relocation.windows[0]: none -> new", "log.level: info -> debug",
	}
	wantIgnored := []string{
		"volumes[0]: none -> new", "nbd.listen[0]: unix:/run/tierd/nbd.sock -> unix:/run/other.sock",
		`metrics.listen: 127.0.0.1:9809 -> ""`,
	}
	if !slices.Equal(live, wantLive) || !slices.Equal(ignored, wantIgnored) {
		t.Errorf("Reloadable = %q, %q\nwant %q, %q", live, ignored, wantLive, wantIgnored)
	}

	// What is in force afterwards differs from the file in the ignored ones alone.
	inForce := WithLive(old, changed)
	if live, ignored := Reloadable(inForce, changed); len(live) != 0 || !slices.Equal(ignored, wantIgnored) {
		t.Errorf("after WithLive: %q, %q", live, ignored)
	}
	if live, ignored := Reloadable(changed, changed); len(live)+len(ignored) != 0 {
		t.Errorf("a file differs from itself: %q %q", live, ignored)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(minimal))
	for _, sample := range []string{"tierd.yaml", "minimal.yaml"} {
		data, err := os.ReadFile("../../deploy/config/" + sample)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("tiers: [{name: &a x, backings: *a}]\n? [a]: b\n<<: {}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Decode(data, "fuzz.yaml")
		if err == nil {
			if err := c.Validate(); err != nil {
				t.Fatalf("valid when decoded, then: %v", err)
			}
			return
		}
		var bad *Error
		if !errors.As(err, &bad) || len(bad.Faults) == 0 {
			t.Fatalf("error %v is no *Error with faults", err)
		}
		for _, fault := range bad.Faults {
			if fault.Line < 1 || strings.ContainsAny(fault.String(), "\n\x00\x1b") {
				t.Fatalf("fault %q: no line, or text of several lines", fault)
			}
		}
	})
}
