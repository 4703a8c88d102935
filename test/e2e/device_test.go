package e2e

import (
	"os"
	"strings"
	"testing"
	"time"
)

// loopDevice makes a block device of a new file.
func (s *site) loopDevice(name string, size int64) string {
	s.t.Helper()
	need(s.t, "losetup")
	if os.Geteuid() != 0 {
		s.t.Skip("loop devices need root")
	}
	path := s.path(name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		s.t.Fatal(err)
	}
	r := execute(s.t, s.dir, "losetup", "--find", "--show", path)
	if r.code != 0 {
		s.t.Skipf("losetup does not work here: %s", strings.TrimSpace(r.stderr))
	}
	device := strings.TrimSpace(r.stdout)
	s.t.Cleanup(func() { execute(s.t, os.TempDir(), "losetup", "--detach", device) })
	return device
}

// A pool on block devices: made, used, killed, opened again, checked.
func TestBlockDevicesAsBackings(t *testing.T) {
	t.Parallel()
	for _, direct := range []bool{false, true} {
		name := "through the page cache"
		if direct {
			name = "direct"
		}
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			top, bottom := s.loopDevice("top", 32*mib), s.loopDevice("bottom", 96*mib)
			s.write(layout{
				tiers:   []tierLayout{{name: "ssd", media: "ssd", paths: []string{top}}, {name: "sata", media: "hdd", paths: []string{bottom}}},
				volumes: "{name: home, size: 64MiB}", relocation: mover, extra: shortHeat,
			})
			if direct {
				s.edit("media: ssd", "media: ssd\n    direct_io: true")
				s.edit("media: hdd", "media: hdd\n    direct_io: true")
			}
			// What a device held before does not come back as a volume's content.
			dirty := content(0, 8*mib, 0xdead)
			f, err := os.OpenFile(bottom, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt(dirty, 40*mib); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			s.ctl("pool", "create")
			d := s.start()
			// 512 bytes of each extent: the rest reads as zeroes.
			c := s.dial("home")
			for off := int64(0); off < 64*mib; off += 64 << 10 {
				c.write(off, 512, 1)
			}
			for off := int64(0); off < 64*mib; off += 64 << 10 {
				c.check(off, 512, 1)
				c.check(off+512, 64<<10-512, 0)
			}
			c.hangUp()

			state := s.path("state")
			for range 3 {
				l := s.startBench("home", "--read", "40%", "--bs", "8KiB", "--trim", "5%", "--zero", "20%", "--verify", "--state", state,
					"--connections", "2", "--time", "60s", "--pattern", "zipf", "--grain", "64KiB")
				time.Sleep(1500 * time.Millisecond)
				d.kill()
				if _, code := l.wait(); code != 1 {
					t.Fatalf("the load ended with exit code %d\n%s", code, &l.errOut)
				}
				s.checkPool(false)
				d = s.start()
				s.verify("home", state)
			}
			var list []backingInfo
			s.ctlJSON(&list, "backing", "list")
			if len(list) != 2 || list[0].Path != top || list[0].SizeBytes != 32*mib || list[0].UsedSlots == 0 {
				t.Errorf("backings: %+v", list)
			}

			// A device in use belongs to one daemon, and to no file system.
			other := newSite(t)
			other.write(layout{tiers: []tierLayout{{name: "ssd", media: "ssd", paths: []string{top}}}, volumes: "{name: home, size: 1MiB}"})
			other.ctlFails(1, "tierctl: create pool: ...backing "+top+"...in use...", "pool", "create", "--force", top)
			s.healed()
			d.stop()
			s.checkPool(true)
			other.ctlFails(1, "tierctl: create pool: backing "+top+" belongs to pool ...; use --force "+top+" to overwrite it", "pool", "create")
			d = s.start()
			s.verify("home", state)
			d.stop()
		})
	}
}
