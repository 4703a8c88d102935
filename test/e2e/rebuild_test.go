package e2e

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// rebuilt is what the tests read of the report of pool rebuild and pool restore.
type rebuilt struct {
	Clean   bool `json:"clean_stop"`
	Whole   bool
	Extents int64
	Kept    string
	Volumes []struct {
		Name    string
		Extents int64
	}
	Findings []struct{ Kind, Severity, Where, Text string }
}

// rebuildReport runs a verb that reports on a rebuild.
func (s *site) rebuildReport(args ...string) (out rebuilt) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(s.ctl(append(args, "-o", "json")...)), &out); err != nil {
		s.t.Fatalf("tierctl %q: %v", args, err)
	}
	return out
}

func (s *site) remove(name string) {
	s.t.Helper()
	if err := os.Remove(s.path(name)); err != nil {
		s.t.Fatal(err)
	}
}

// TestPoolRebuild loses the metadata file, once after a kill and once after a stop.
func TestPoolRebuild(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 16MiB}, {name: mail, size: 16MiB, policy: sata}, {name: old, size: 4MiB}"})
	home, mail := s.dial("home"), s.dial("mail")
	home.write(0, 8*mib, 1)
	mail.write(2*mib, 4*mib, 2)
	if err := home.Trim(mib, mib, true); err != nil {
		t.Fatal(err)
	}
	if err := mail.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := home.Flush(); err != nil {
		t.Fatal(err)
	}
	s.ctl("volume", "create", "later", "1MiB", "--policy", "highest")
	s.ctl("volume", "delete", "old")
	s.ctlFails(1, "tierctl: rebuild pool: check metadata ...: metadata file is in use, by ...", "pool", "rebuild")
	if r := s.tierctl("pool", "rebuild", "--replace"); r.code != 1 || !strings.Contains(r.stderr, "in use") {
		t.Errorf("rebuild beside a daemon: exit code %d\n%s", r.code, r.stderr)
	}
	d.kill()

	for _, clean := range []bool{false, true} {
		s.remove("pool.db")
		if r := s.rebuildReport("pool", "rebuild", "--dry-run"); r.Extents == 0 {
			t.Errorf("dry run: %+v", r)
		}
		if _, err := os.Stat(s.path("pool.db")); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("dry run made metadata: %v", err)
		}
		r := s.rebuildReport("pool", "rebuild")
		if r.Clean != clean || r.Extents != (7+4)*mib/(64<<10) {
			t.Errorf("rebuild: %+v, want clean_stop %v and 11 MiB of extents", r, clean)
		}
		if text := s.ctl("pool", "rebuild", "--replace"); !strings.Contains(text, "are kept as "+s.path("pool.db.old")) {
			t.Errorf("rebuild says %s", text)
		}
		d = s.start()
		home, mail = s.dial("home"), s.dial("mail")
		home.check(0, mib, 1)
		home.check(mib, mib, 0)
		home.check(2*mib, 6*mib, 1)
		home.check(8*mib, 8*mib, 0)
		mail.check(0, 2*mib, 0)
		mail.check(2*mib, 4*mib, 2)
		s.dial("later").check(0, mib, 0)
		if out := s.ctl("volume", "list"); strings.Contains(out, "old") || !strings.Contains(out, "later") {
			t.Errorf("volumes:\n%s", out)
		}
		awaitHealed(s)
		d.stop()
		s.checkPool(true)
	}
}

// awaitHealed waits until the slot tables match the map.
func awaitHealed(s *site) {
	s.t.Helper()
	for deadline := time.Now().Add(commandTime); ; time.Sleep(20 * time.Millisecond) {
		var st struct{ Healing bool }
		if err := json.Unmarshal([]byte(s.ctl("pool", "status", "-o", "json")), &st); err != nil {
			s.t.Fatal(err)
		}
		if !st.Healing {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("slot tables are not in line with the map after %s", commandTime)
		}
	}
}

func TestPoolRebuildRefusesAnOldCopy(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 16MiB, policy: sata}"})
	s.dial("home").write(0, mib, 1)
	d.stop()
	sata := s.backingPath("sata", 0)
	tool(t, "cp", "--sparse=always", sata, s.path("copy"))
	d = s.start()
	c := s.dial("home")
	c.write(mib, mib, 2)
	d.stop()
	s.remove("pool.db")
	if err := os.Rename(sata, s.path("now")); err != nil {
		t.Fatal(err)
	}

	// No backing, the old one, and both.
	s.ctlFails(1, "tierctl: rebuild pool: backing 2 of tier sata is missing ... (--accept-missing 2)", "pool", "rebuild")
	if err := os.Rename(s.path("copy"), sata); err != nil {
		t.Fatal(err)
	}
	s.ctlFails(1, "tierctl: rebuild pool: backing "+sata+" is stale: ... (--accept-stale 2)", "pool", "rebuild")
	s.ctlFails(1, "tierctl: rebuild pool: ... are copies of each other (id 2); take one away...", "pool", "rebuild", "--backing", s.path("now"))
	s.ctlFails(1, "tierctl: rebuild pool: 7 is no backing of the pool...", "pool", "rebuild", "--accept-stale", "7")
	if r := s.tierctl("pool", "rebuild", "--accept-stale", "2", "--dry-run"); r.code != 3 {
		t.Errorf("an old copy is used: exit code %d, want 3\n%s%s", r.code, r.stdout, r.stderr)
	}

	// The right one, under another name.
	s.remove(filepath.Base(sata))
	s.ctl("pool", "rebuild", "--backing", s.path("now"))
	s.edit(sata, s.path("now"))
	s.start()
	c = s.dial("home")
	c.check(0, mib, 1)
	c.check(mib, mib, 2)
}

// TestPoolRebuildIsKilled kills rebuilds wherever they are. The metadata are whole
// then, or not there.
func TestPoolRebuildIsKilled(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"})
	s.dial("home").write(0, 24*mib, 1)
	d.stop()
	want := s.ctl("pool", "dump")
	s.remove("pool.db")
	killed := 0
	for i := range 20 {
		cmd := exec.Command(filepath.Join(*binDir, "tierctl"), "--config", s.config, "pool", "rebuild")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 3 * time.Millisecond)
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
		_, err := os.Stat(s.path("pool.db"))
		if errors.Is(err, fs.ErrNotExist) {
			killed++
			continue
		}
		s.checkPool(false)
		s.remove("pool.db")
	}
	t.Logf("%d of 20 rebuilds left no metadata", killed)
	s.ctl("pool", "rebuild")
	if got := s.ctl("pool", "dump"); mapLines(got) != mapLines(want) {
		t.Errorf("map is\n%s\nwant\n%s", mapLines(got), mapLines(want))
	}
	s.start()
	s.dial("home").check(0, 24*mib, 1)
}

// mapLines returns the lines of a dump that have the map and the volumes.
func mapLines(dump string) string {
	var b strings.Builder
	for line := range strings.Lines(dump) {
		if strings.HasPrefix(line, `{"type":"map"`) || strings.HasPrefix(line, `{"type":"volume"`) {
			b.WriteString(line)
		}
	}
	return b.String()
}

func TestPoolRestore(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 16MiB}, {name: mail, size: 16MiB}"})
	s.dial("home").write(0, 4*mib, 1)
	s.dial("mail").write(8*mib, 2*mib, 2)
	d.stop()
	dump := s.path("pool.dump")
	s.ctl("pool", "dump", "--file", dump)
	want := s.ctl("pool", "dump")

	// Nobody has opened the pool since: the round trip changes nothing.
	s.remove("pool.db")
	if r := s.rebuildReport("pool", "restore", dump); !r.Whole {
		t.Errorf("restore: %+v, want the dump as it is", r)
	}
	if got := s.ctl("pool", "dump"); got != want {
		t.Errorf("dump of what was restored is\n%s\nwant\n%s", got, want)
	}
	s.checkPool(true)
	d = s.start()
	s.dial("home").check(0, 4*mib, 1)

	// The pool has gone on: names and settings are those of the dump.
	s.ctl("volume", "set", "mail", "--policy", "lowest")
	s.ctl("volume", "grow", "home", "20MiB")
	c := s.dial("home")
	c.write(18*mib, mib, 3)
	d.stop()
	s.remove("pool.db")
	r := s.rebuildReport("pool", "restore", dump)
	if r.Whole || r.Extents != 7*mib/(64<<10) {
		t.Errorf("restore of an older dump: %+v", r)
	}
	d = s.start()
	c = s.dial("home")
	c.check(0, 4*mib, 1)
	c.check(18*mib, mib, 3)
	s.dial("mail").check(8*mib, 2*mib, 2)
	if out := s.ctl("volume", "list"); strings.Contains(out, "lowest") || !strings.Contains(out, "20.0MiB") {
		t.Errorf("volumes:\n%s", out)
	}
	awaitHealed(s)
	d.stop()
	s.checkPool(true)

	// What is not a dump is told with its place.
	if err := os.WriteFile(dump, []byte(want[:len(want)/2]), 0o600); err != nil {
		t.Fatal(err)
	}
	s.remove("pool.db")
	s.ctlFails(1, "tierctl: restore pool from "+dump+": dump: line ...", "pool", "restore", dump)
	s.ctl("pool", "rebuild")
}
