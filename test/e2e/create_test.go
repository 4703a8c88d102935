package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPoolCreateRefusesWhatIsThere(t *testing.T) {
	t.Parallel()
	plain := layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"}
	writeAt := func(s *site, data []byte, off int64) {
		f, err := os.OpenFile(s.path("sata0.img"), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			s.t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(64 * mib); err != nil {
			s.t.Fatal(err)
		}
		if _, err := f.WriteAt(data, off); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name    string
		prepare func(s *site)
		want    string // behind the path of the backing; "" for an own text
	}{
		{"a pool's backing", func(s *site) {
			s.ctl("pool", "create")
			for _, f := range []string{"pool.db", "pool.db.log", "ssd0.img"} {
				_ = os.Remove(s.path(f))
			}
		}, " belongs to pool ...; use --force S to overwrite it"},
		{"ext4", func(s *site) {
			need(s.t, "mkfs.ext4")
			writeAt(s, nil, 0)
			tool(s.t, "mkfs.ext4", "-q", "-F", s.path("sata0.img"))
		}, " carries ...ext...; use --force S to overwrite it"},
		{"a GPT", func(s *site) { writeAt(s, []byte("EFI PART\x00\x00\x01\x00"), 512) }, " carries ...; use --force S to overwrite it"},
		{"an MBR", func(s *site) {
			sector := make([]byte, 512)
			copy(sector[446:], "\x80\x01\x01\x00\x83\xfe\xff\xff\x3f\x00\x00\x00\x00\x00\x01\x00")
			sector[510], sector[511] = 0x55, 0xaa
			writeAt(s, sector, 0)
		}, " carries ...; use --force S to overwrite it"},
		{"data of an unknown kind", func(s *site) { writeAt(s, []byte("my diary"), 300<<10) }, " holds data of an unknown kind; use --force S to overwrite it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.write(plain)
			tt.prepare(s)
			path := s.path("sata0.img")
			before := s.snapshot()
			for range 2 {
				s.ctlFails(1, "tierctl: create pool: backing "+path+strings.ReplaceAll(tt.want, "S", path), "pool", "create")
			}
			// Force names a path; another's name does not help.
			s.ctlFails(1, "tierctl: create pool: backing "+path+strings.ReplaceAll(tt.want, "S", path), "pool", "create", "--force", s.path("ssd0.img"))
			s.ctlFails(2, "tierctl: --force /dev/null: the configuration has no such backing", "pool", "create", "--force", "/dev/null")
			s.ctl("pool", "create", "--force", path, "--dry-run")
			s.unchanged(before)
			s.ctl("pool", "create", "--force", path)
			d := s.start()
			c := s.dial("home")
			c.check(0, 32*mib, 0) // nothing of what was there
			c.write(0, 30*mib, 1)
			c.check(0, 30*mib, 1)
			d.stop()
			s.checkPool(true)
		})
	}
	t.Run("a pool", func(t *testing.T) {
		t.Parallel()
		s := newPool(t, plain)
		before := s.snapshot()
		s.ctlFails(1, "tierctl: create pool: metadata "+s.path("pool.db")+": a pool exists there already", "pool", "create")
		s.ctlFails(1, "tierctl: create pool: metadata "+s.path("pool.db")+": a pool exists there already", "pool", "create",
			"--force", s.path("ssd0.img"), "--force", s.path("sata0.img"))
		s.unchanged(before)
		s.start().stop()
	})
	t.Run("metadata that is something else", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		s.write(plain)
		if err := os.WriteFile(s.path("pool.db"), bytes.Repeat([]byte("thesis "), 4000), 0o600); err != nil {
			t.Fatal(err)
		}
		before := s.snapshot()
		s.ctlFails(1, "tierctl: create pool: ...metadata "+s.path("pool.db")+": ...not...", "pool", "create")
		s.unchanged(before)
	})
	t.Run("backing of another size", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		s.write(plain)
		writeAt(s, nil, 0)
		if err := os.Truncate(s.path("sata0.img"), 50*mib); err != nil {
			t.Fatal(err)
		}
		before := s.snapshot()
		s.ctlFails(1, "tierctl: create pool: ...backing "+s.path("sata0.img")+"...52428800...67108864...", "pool", "create")
		s.unchanged(before)
	})
	t.Run("backing too small", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		s.write(plain)
		s.edit("size: 24MiB", "size: 4MiB")
		before := s.snapshot()
		s.ctlFails(1, "tierctl: create pool: backing "+s.path("ssd0.img")+": ...4194304 bytes, must be at least ... for extents of 65536 bytes", "pool", "create")
		s.unchanged(before)
	})
	t.Run("folder is missing", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		s.write(plain)
		s.edit(s.path("sata0.img"), s.path("nowhere/sata0.img"))
		before := s.snapshot()
		for _, args := range [][]string{{"pool", "create", "--dry-run"}, {"pool", "create"}} {
			s.ctlFails(1, "tierctl: create pool: there is no folder "+s.path("nowhere")+" for sata0.img", args...)
			s.unchanged(before)
		}
		if err := os.Mkdir(s.path("nowhere"), 0o700); err != nil {
			t.Fatal(err)
		}
		s.ctl("pool", "create")
		s.start().stop()
	})
}

// Cut short at any moment, the same command makes the pool; before that the daemon
// refuses what is there.
func TestPoolCreateCutShortCanBeRunAgain(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	tiers := twoTiers()
	tiers[0].files, tiers[1].files = 3, 3
	tiers[1].options = ", preallocate: true"
	cut, pools := 0, 25
	if raceDetector {
		pools = 8
	}
	for range pools {
		s := newSite(t)
		s.write(layout{tiers: tiers, volumes: "{name: home, size: 32MiB}"})
		for range 3 { // cut again and again
			cmd := exec.Command(filepath.Join(*binDir, "tierctl"), "--config", s.config, "pool", "create")
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(r.IntN(60_000)) * time.Microsecond)
			_ = cmd.Process.Kill()
			if err := cmd.Wait(); err == nil || out.Len() > 0 {
				if !strings.Contains(out.String(), "created") && !strings.Contains(out.String(), "exists there already") {
					t.Fatalf("create after a cut: %s", &out)
				}
				break // it was faster
			}
			cut++
		}
		if r := s.tierctl("pool", "create"); r.code != 0 && !strings.Contains(r.stderr, "exists there already") {
			t.Fatalf("create after a cut: exit code %d\n%s", r.code, r.stderr)
		}
		d := s.start()
		c := s.dial("home")
		c.write(0, mib, 1)
		c.check(0, mib, 1)
		d.stop()
		s.checkPool(true)
	}
	t.Logf("%d creations were cut short", cut)
	if cut < pools/2 {
		t.Errorf("only %d creations were cut short", cut)
	}
}

// What a creation leaves at its worst moments.
func TestPoolCreateOverLeftovers(t *testing.T) {
	t.Parallel()
	t.Run("an empty backing file", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		s.write(layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"})
		if err := os.WriteFile(s.path("ssd0.img"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s.ctl("pool", "create")
		s.start().stop()
	})
	t.Run("an unfinished pool", func(t *testing.T) {
		t.Parallel()
		s := newSite(t)
		s.write(layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"})
		s.edit(s.path("sata0.img"), s.path("nowhere/sata0.img"))
		if r := s.tierctl("pool", "create"); r.code != 1 {
			t.Fatalf("exit code %d", r.code)
		}
		if _, err := os.Stat(s.path("pool.db")); err != nil {
			t.Skip("a creation that fails leaves nothing")
		}
		checkRefusal(t, "tierd", s.refused(), 1, "tierd: open pool: the creation of the pool in "+s.path("pool.db")+" was not finished; run pool create again")
	})
}
