package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tierd/tiering"
)

// offlinePool makes a pool and returns its folder and configuration.
func offlinePool(t *testing.T) (dir, config string) {
	t.Helper()
	dir = t.TempDir()
	config = filepath.Join(dir, "tierd.yaml")
	text := strings.ReplaceAll("metadata: DIR/pool.db\nextent_size: 64KiB\ntiers: [{name: a, backings: [{path: DIR/a.img, size: 10MiB}]}]\nvolumes: [{name: home, size: 1MiB}]\n", "DIR", dir)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := tierctl(t, "pool", "create", "--config", config); code != exitDone {
		t.Fatalf("pool create: exit code %d, %s", code, stderr)
	}
	return dir, config
}

// goldenOutput compares output with a file of testdata; DIR stands for the folder.
func goldenOutput(t *testing.T, name, dir, got string) {
	t.Helper()
	// Columns are as wide as the paths in them, which differ from run to run.
	var lines []string
	for _, line := range strings.Split(strings.ReplaceAll(got, dir, "DIR"), "\n") {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	got = strings.Join(lines, "\n")
	file := filepath.Join("testdata", name+".golden")
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
}

func TestPoolCheckRepairDump(t *testing.T) {
	dir, config := offlinePool(t)
	if code, out, _ := tierctl(t, "pool", "check", "--config", config); code != exitDone || !strings.HasPrefix(out, "no damage: ") {
		t.Errorf("check of a whole pool: exit code %d, %s", code, out)
	}
	code, dump, _ := tierctl(t, "pool", "dump", "--config", config)
	if code != exitDone || tiering.ReadDump(strings.NewReader(dump), tiering.DumpVisitor{}) != nil {
		t.Errorf("dump: exit code %d, %s", code, dump)
	}
	file := filepath.Join(dir, "dump")
	if code, _, stderr := tierctl(t, "pool", "dump", "--config", config, "--file", file); code != exitDone {
		t.Errorf("dump into a file: exit code %d, %s", code, stderr)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != dump {
		t.Errorf("dump in a file: %v, differs", err)
	}

	f, err := os.OpenFile(filepath.Join(dir, "a.img"), os.O_RDWR, 0)
	if err == nil {
		_, err = f.WriteAt(bytes.Repeat([]byte{1}, 512), 4096)
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	code, out, stderr := tierctl(t, "pool", "check", "--config", config)
	if code != exitDamage {
		t.Errorf("check of a damaged pool: exit code %d, %s", code, stderr)
	}
	goldenOutput(t, "pool-check", dir, out)
	code, out, _ = tierctl(t, "pool", "check", "--config", config, "-o", "json")
	var r tiering.CheckReport
	if err := json.Unmarshal([]byte(out), &r); code != exitDamage || err != nil || !r.Damaged() {
		t.Errorf("check as JSON: exit code %d, %v, %s", code, err, out)
	}
	code, out, stderr = tierctl(t, "pool", "repair", "--config", config, "--dry-run")
	if code != exitDone {
		t.Errorf("repair in a dry run: exit code %d, %s", code, stderr)
	}
	goldenOutput(t, "pool-repair-dry-run", dir, out)
	code, out, stderr = tierctl(t, "pool", "repair", "--config", config)
	if code != exitDone || !strings.Contains(out, "1 thing mended, 0 left; what was there before is in "+dir+"/pool.db.aside-") {
		t.Errorf("repair: exit code %d, %s%s", code, out, stderr)
	}
	if code, out, _ := tierctl(t, "pool", "check", "--config", config); code != exitDone {
		t.Errorf("check after repair: exit code %d, %s", code, out)
	}
	if code, _, stderr := tierctl(t, "pool", "repair", "--config", config, "--clear-failed", "/no/such"); code != exitFailed || !strings.Contains(stderr, "not found") {
		t.Errorf("repair --clear-failed of an unknown backing: exit code %d, %s", code, stderr)
	}
}

// TestPoolDumpReplacesDumpsAlone: nothing else is lost by a wrong path.
func TestPoolDumpReplacesDumpsAlone(t *testing.T) {
	dir, config := offlinePool(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.Symlink(at("a.img"), at("link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, at("here")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("notes"), []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("empty"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ file, want string }{
		{"pool.db", "is no dump"},
		{"pool.db.log", "is no dump"},
		{"a.img", "is no dump"},
		{"notes", "is no dump"},
		{"link", "is not a regular file"},
		{"here", "is not a regular file"},
		{"pool.db.heat", "is a file of the pool"}, // not there
		{"here/pool.db.budget", "is a file of the pool"},
		{"new", ""},
		{"new", ""}, // over the first
		{"empty", ""},
	} {
		before, _ := os.ReadFile(at(tt.file))
		code, _, stderr := tierctl(t, "pool", "dump", "--config", config, "--file", at(tt.file))
		if tt.want == "" {
			if code != exitDone {
				t.Errorf("dump to %s: exit code %d, %s", tt.file, code, stderr)
			}
			continue
		}
		if after, _ := os.ReadFile(at(tt.file)); code != exitFailed || !strings.Contains(stderr, tt.want) || !bytes.Equal(before, after) {
			t.Errorf("dump to %s: exit code %d, %s; want %q, and the file as it was", tt.file, code, stderr, tt.want)
		}
	}
	if left, err := filepath.Glob(at("*.new-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}

	// Nothing is left of the metadata.
	if err := os.WriteFile(filepath.Join(dir, "pool.db"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"check", "repair"} {
		if code, out, stderr := tierctl(t, "pool", verb, "--config", config); code != exitDamage || !strings.Contains(out, "tierctl pool rebuild makes it anew") {
			t.Errorf("%s without metadata: exit code %d, %s%s", verb, code, out, stderr)
		}
	}
}
