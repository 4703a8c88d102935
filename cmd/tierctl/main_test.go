package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"tierd/pkg/control"
)

var update = flag.Bool("update", false, "rewrite the golden files of testdata")

func TestMain(m *testing.M) {
	time.Local = time.UTC
	goleak.VerifyTestMain(m)
}

// serve puts s on a socket until the test ends and returns the socket's path.
func serve(t *testing.T, s control.Service) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "admin.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := control.NewServer(s, slog.New(slog.DiscardHandler))
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(srv.Shutdown(context.Background()), <-served); err != nil {
			t.Errorf("stop the service: %v", err)
		}
	})
	return socket
}

// tierctl runs a command line without a configuration of this machine.
func tierctl(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	g := &globals{out: &out, errOut: &errOut, defaultConfig: filepath.Join(t.TempDir(), "none.yaml")}
	code = g.run(t.Context(), args)
	return code, out.String(), errOut.String()
}

func TestGoldenOutput(t *testing.T) {
	socket := serve(t, &cannedService{})
	tests := []struct{ golden, line string }{
		{"pool-status", "pool status"},
		{"tier-list", "tier list"},
		{"backing-list", "backing list"},
		{"volume-list", "volume list"},
		{"volume-list-wide", "volume list --wide"},
		{"volume-list-json", "volume list -o json"},
		{"volume-list-lost", "volume list --lost"},
		{"backing-add-dry-run", "backing add ssd /srv/new.img --size 1GiB --dry-run"},
		{"backing-drain", "backing drain 3"},
		{"backing-drain-wait", "backing drain 4 --wait"},
		{"backing-remove", "backing remove 3"},
		{"tier-remove", "tier remove old --dry-run"},
		{"backing-forget-dry-run", "backing forget 2 --dry-run"},
		{"volume-create", "volume create new 1GiB"},
		{"volume-delete-dry-run", "volume delete old --dry-run"},
		{"relocation-status", "relocation status"},
		{"relocation-plan", "relocation plan"},
		{"relocation-pause", "relocation pause"},
		{"relocation-pause-dry-run", "relocation pause --dry-run"},
		{"locate", "locate home 1MiB"},
		{"locate-unmapped", "locate home 0"},
		{"heat", "heat home"},
		{"heat-color", "heat home --color"},
		{"heat-empty", "heat empty"},
		{"heat-skew", "heat home --skew"},
		{"heat-skew-empty", "heat empty --skew"},
		{"heat-all", "heat --all"},
		{"trace-list", "trace list"},
		{"trace-stop", "trace stop home"},
		{"trace-stop-dry-run", "trace stop home --dry-run"},
	}
	for _, tt := range tests {
		t.Run(tt.golden, func(t *testing.T) {
			code, got, stderr := tierctl(t, append(strings.Fields(tt.line), "--socket", socket)...)
			if code != exitDone || stderr != "" {
				t.Fatalf("exit code %d, %s", code, stderr)
			}
			file := filepath.Join("testdata", tt.golden+".golden")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// Every reading verb prints with -o json what the service answered, whole.
func TestJSONIsTheReply(t *testing.T) {
	s := &cannedService{}
	socket := serve(t, s)
	tests := []struct {
		line string
		want func() (any, error)
	}{
		{"pool status", func() (any, error) { return s.PoolStatus(t.Context()) }},
		{"tier list", func() (any, error) { return s.Tiers(t.Context()) }},
		{"backing list", func() (any, error) { return s.Backings(t.Context()) }},
		{"volume list", func() (any, error) { return s.Volumes(t.Context()) }},
		{"volume list --lost", func() (any, error) { return s.VolumesLost(t.Context()) }},
		{"relocation status", func() (any, error) { return s.RelocationStatus(t.Context()) }},
		{"relocation plan", func() (any, error) { return s.RelocationPlan(t.Context(), control.RelocationPlanRequest{}) }},
		{"locate home 1MiB", func() (any, error) {
			return s.Locate(t.Context(), control.LocateRequest{Volume: "home", Offset: 1 << 20})
		}},
		{"heat", func() (any, error) { return s.Skew(t.Context(), control.SkewRequest{}) }},
		{"heat home --skew", func() (any, error) { return s.Skew(t.Context(), control.SkewRequest{Volume: "home"}) }},
		{"trace list", func() (any, error) { return s.Traces(t.Context()) }},
		{"heat home", func() (any, error) { return s.Heat(t.Context(), control.HeatRequest{Volume: "home"}) }},
	}
	for _, tt := range tests {
		code, got, stderr := tierctl(t, append(strings.Fields(tt.line), "--socket", socket, "-o", "json")...)
		reply, _ := tt.want()
		want, err := json.MarshalIndent(reply, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if code != exitDone || got != string(want)+"\n" {
			t.Errorf("tierctl %s: exit code %d, %s%s\nwant %s", tt.line, code, got, stderr, want)
		}
	}
}

// fields splits a command line; a no-break space is a space within an argument.
func fields(line string) []string {
	var args []string
	for _, f := range strings.Split(line, " ") {
		args = append(args, strings.ReplaceAll(f, "\u00a0", " "))
	}
	return args
}

func TestRequests(t *testing.T) {
	policy, fail, mib, none, yes, no := "lowest", "error", int64(1<<20), int64(0), true, false
	tests := []struct {
		line string
		want any
	}{
		{"volume create a 1GiB", control.VolumeCreateRequest{Name: "a", SizeBytes: 1 << 30, Policy: "auto", OnFull: "error"}},
		{"volume create a 1GiB --policy ssd --dry-run", control.VolumeCreateRequest{Name: "a", SizeBytes: 1 << 30, Policy: "ssd", DryRun: true, OnFull: "error"}},
		{"volume create a 1GiB --reservation 1MiB --quota 2MiB --on-full wait\u00a060s", control.VolumeCreateRequest{Name: "a", SizeBytes: 1 << 30, Policy: "auto", ReservationBytes: 1 << 20, QuotaBytes: 2 << 20, OnFull: "wait 60s"}},
		{"volume grow home 3TiB", control.VolumeGrowRequest{Name: "home", SizeBytes: 3 << 40}},
		{"volume grow home +1TiB --dry-run", control.VolumeGrowRequest{Name: "home", SizeBytes: 3 << 40, DryRun: true}},
		{"volume delete a --force", control.VolumeDeleteRequest{Name: "a", Force: true}},
		{"volume rename a b --dry-run", control.VolumeRenameRequest{Name: "a", NewName: "b", DryRun: true}},
		{"volume set a --policy lowest", control.VolumeSetRequest{Name: "a", Policy: &policy}},
		{"backing add ssd /srv/new.img --size 1GiB --preallocate --direct-io", control.BackingAddRequest{Tier: "ssd", Path: "/srv/new.img", SizeBytes: 1 << 30, Preallocate: true, DirectIO: true}},
		{"backing add nvme /dev/x --new-tier-before ssd --media ssd --force --dry-run", control.BackingAddRequest{Tier: "nvme", Path: "/dev/x", Media: "ssd", NewTierBefore: "ssd", Force: true, DryRun: true}},
		{"backing add tape /dev/x --new-tier-after hdd", control.BackingAddRequest{Tier: "tape", Path: "/dev/x", NewTierAfter: "hdd"}},
		{"backing drain 3", control.BackingDrainRequest{Backing: "3", Action: control.DrainStart}},
		{"backing drain /srv/x --rate 1MiB/s --dry-run", control.BackingDrainRequest{Backing: "/srv/x", Action: control.DrainStart, RateBytesPerSecond: &mib, DryRun: true}},
		{"backing drain 3 --rate budget", control.BackingDrainRequest{Backing: "3", Action: control.DrainStart, RateBytesPerSecond: &none}},
		{"backing drain 3 --pause", control.BackingDrainRequest{Backing: "3", Action: control.DrainPause}},
		{"backing drain 3 --resume", control.BackingDrainRequest{Backing: "3", Action: control.DrainResume}},
		{"backing drain 3 --cancel", control.BackingDrainRequest{Backing: "3", Action: control.DrainCancel}},
		{"backing remove 3 --dry-run", control.BackingRemoveRequest{Backing: "3", DryRun: true}},
		{"tier remove old", control.TierRemoveRequest{Tier: "old"}},
		{"backing forget /srv/hdd/b.img --accept-loss", control.BackingForgetRequest{Backing: "/srv/hdd/b.img", AcceptLoss: true}},
		{"volume set a --reservation 1MiB --quota none", control.VolumeSetRequest{Name: "a", ReservationBytes: &mib, QuotaBytes: &none}},
		{"volume set a --on-full error --dry-run", control.VolumeSetRequest{Name: "a", OnFull: &fail, DryRun: true}},
		{"volume set a --read-only", control.VolumeSetRequest{Name: "a", ReadOnly: &yes}},
		{"volume set a --read-only=false --dry-run", control.VolumeSetRequest{Name: "a", ReadOnly: &no, DryRun: true}},
		{"volume set a --allow-client b,c --allow-client d", control.VolumeSetRequest{Name: "a", Clients: &[]string{"b,c", "d"}}},
		{"volume set a --allow-all", control.VolumeSetRequest{Name: "a", Clients: &[]string{}}},
		{"relocation run --wait --dry-run", control.RelocationRunRequest{Wait: true, DryRun: true}},
		{"relocation run --now --until-settled", control.RelocationRunRequest{UntilSettled: true}},
		{"relocation pause --dry-run", control.RelocationPauseRequest{DryRun: true}},
		{"relocation resume", control.RelocationPauseRequest{}},
		{"relocation plan --limit 3", control.RelocationPlanRequest{Limit: 3}},
		{"locate home 4096", control.LocateRequest{Volume: "home", Offset: 4096}},
		{"heat --all", control.SkewRequest{}},
		{"heat home --skew", control.SkewRequest{Volume: "home"}},
		{"heat home --limit 5", control.HeatRequest{Volume: "home", Limit: 5}},
		{"trace stop home --dry-run", control.TraceStopRequest{Volume: "home", DryRun: true}},
	}
	for _, tt := range tests {
		s := &cannedService{}
		code, _, stderr := tierctl(t, append(fields(tt.line), "--socket", serve(t, s))...)
		if code != exitDone || len(s.asked) != 1 || !reflect.DeepEqual(s.asked[0], tt.want) {
			t.Errorf("tierctl %s: exit code %d, %s, asked %+v, want %+v", tt.line, code, stderr, s.asked, tt.want)
		}
	}
}

func TestFailures(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("metadata: rel\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	nowhere := filepath.Join(dir, "none.sock")
	socket := serve(t, &cannedService{})
	tests := []struct {
		line string
		code int
		want string
	}{
		{"", 2, "tierctl: needs a verb: attach, backing, bench, detach, heat, locate, pool, relocation, simulate, tier, trace, version, volume\n"},
		{"vulume list", 2, "tierctl: unknown verb \"vulume\"; did you mean volume?\n"},
		{"volume", 2, "tierctl: volume: needs a verb: create, delete, grow, list, rename, set\n"},
		{"volume lst", 2, "tierctl: volume: unknown verb \"lst\"; did you mean list or set?\n"},
		{"volume list x", 2, "tierctl: volume list: takes no arguments (got [\"x\"])\n"},
		{"volume create a", 2, "tierctl: volume create: takes NAME SIZE (got 1 of them)\n"},
		{"volume create a 1G", 2, "tierctl: SIZE must be a size such as 64GiB, 1.5TiB, 200MB or 512 (got \"1G\")\n"},
		{"volume create a 0", 2, "tierctl: SIZE must be above 0 (got \"0\")\n"},
		{"volume create a/b 1GiB", 2, "tierctl: the volume's name must not contain a slash (got \"a/b\")\n"},
		{"volume create " + strings.Repeat("x", 5000) + " 1GiB", 2, "tierctl: the volume's name must be at most 255 bytes long (got 5000)\n"},
		{"volume set a --quota 0", 2, "tierctl: volume set: --quota must be above 0 (got \"0\")\n"},
		{"volume set a --on-full never", 2, "tierctl: volume set: --on-full must be error, or wait and a time up to 24h, as in \"wait 60s\" (got \"never\")\n"},
		{"volume set a", 2, "tierctl: volume set: nothing to set; give --policy, --reservation, --quota, --on-full, --read-only, --allow-client or --allow-all\n"},
		{"volume set a --allow-all=false --socket " + socket, 2, "tierctl: volume set: --allow-all=false means nothing; give --allow-client\n"},
		{"volume grow home +9223372036854775807 --socket " + socket, 2, "tierctl: SIZE is too large\n"},
		{"relocation plan --limit 0", 2, "tierctl: --limit must be above 0 (got 0)\n"},
		{"tier list --colour", 2, "tierctl: tier list: unknown flag: --colour\n"},
		{"tier list -o xml", 2, "tierctl: --output must be table or json (got \"xml\")\n"},
		{"locate home -5", 2, "tierctl: locate: unknown shorthand flag: '5' in -5\n"},
		{"tier list --config " + bad, 2, "tierctl: " + bad + ": 2 faults in the configuration\nline 1: metadata: must be an absolute path (got \"rel\")\nline 1: tiers: must have at least one tier\n"},
		{"tier list --config " + dir + "/none.yaml", 2, "tierctl: read configuration: open " + dir + "/none.yaml: no such file or directory\n"},
		{"tier list --socket " + nowhere, 1, "tierctl: nobody answers at " + nowhere + ": daemon is not running\nhint: start tierd, or name its socket with --socket or --config\n"},
		{"volume create home 1GiB --socket " + socket, 1, "tierctl: create volume \"home\": already exists\nhint: choose another name\n"},
		{"backing forget 2 --socket " + socket, 1, "tierctl: backing 2 is not forgotten: 3MiB are lost with it: busy\nhint: use --accept-loss\n"},
		{"attach --list --state-dir " + bad, 1, "tierctl: open " + bad + ": not a directory\n"},
		{"volume grow nix +1GiB --socket " + socket, 1, "tierctl: volume \"nix\": not found\n"},
		{"locate nix 0 --socket " + socket, 1, "tierctl: volume \"nix\": not found\n"},
	}
	for _, tt := range tests {
		code, stdout, stderr := tierctl(t, strings.Fields(tt.line)...)
		if code != tt.code || stdout != "" || stderr != tt.want {
			t.Errorf("tierctl %.60s: exit code %d, stdout %q, stderr:\n%s\nwant %d:\n%s", tt.line, code, stdout, stderr, tt.code, tt.want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	tests := []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{context.Canceled, 1},
		{fmt.Errorf("check: %w", errDamage), 3},
		{&control.Error{Text: "x", Code: "usage"}, 2},
		{&control.Error{Text: "x", Code: control.CodeInternal}, 1},
	}
	for _, tt := range tests {
		if got := exitCode(tt.err); got != tt.want {
			t.Errorf("exitCode(%v) = %d, want %d", tt.err, got, tt.want)
		}
	}
}

func TestSocketComesFromTheConfiguration(t *testing.T) {
	socket := serve(t, &cannedService{})
	file := filepath.Join(t.TempDir(), "tierd.yaml")
	text := "metadata: /m\ntiers: [{name: a, backings: [{path: /a}]}]\nadmin: {socket: " + socket + "}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := tierctl(t, "tier", "list", "--config", file); code != exitDone {
		t.Errorf("--config: exit code %d, %s", code, stderr)
	}
	g := &globals{out: io.Discard, errOut: io.Discard, defaultConfig: file}
	if code := g.run(t.Context(), []string{"tier", "list"}); code != exitDone {
		t.Errorf("default configuration: exit code %d", code)
	}
}

// Every command has help and an example, every changing one --dry-run.
func TestEveryCommandIsDocumented(t *testing.T) {
	readers := map[string]bool{"list": true, "status": true, "plan": true, "locate": true, "heat": true, "version": true,
		"man": true, "bench": true, "simulate": true, "paper": true, "check": true, "info": true, "dump": true}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if !sub.HasSubCommands() || sub.Example != "" {
				if sub.Short == "" || sub.Long == "" || !strings.Contains(sub.Example, "  "+sub.CommandPath()) {
					t.Errorf("%s lacks Short, Long or an Example of itself", sub.CommandPath())
				}
				if !readers[sub.Name()] && sub.Flags().Lookup("dry-run") == nil {
					t.Errorf("%s changes something and has no --dry-run", sub.CommandPath())
				}
			}
			visit(sub)
		}
	}
	visit(newRootCommand(&globals{}))
}

func TestManualPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man8")
	if code, _, stderr := tierctl(t, "man", dir); code != exitDone {
		t.Fatalf("exit code %d, %s", code, stderr)
	}
	page, err := os.ReadFile(filepath.Join(dir, "tierctl-volume-create.8"))
	if err != nil || !strings.Contains(string(page), "--policy lowest") {
		t.Errorf("page of volume create: %v, %s", err, page)
	}
}

func TestMapJoinsExtents(t *testing.T) {
	m := control.HeatMap{Levels: []byte{0, 200, 0, 0, 255, 0}, Tier: []byte{1, 0, control.TierUnmapped, control.TierUnmapped, control.TierUnmapped, 1}}
	got := shrink(m, 3)
	want := []heatCell{{200, 0}, {0, control.TierUnmapped}, {0, 1}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("shrink = %v, want %v", got, want)
	}
}
