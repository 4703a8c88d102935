package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A device with a mounted file system is nobody's backing, however much it is asked
// for, and neither is a device that somebody else holds.
func TestDeviceInUseByOthers(t *testing.T) {
	t.Parallel()
	need(t, "mkfs.ext4", "mount")
	s := newSite(t)
	dev := s.loopDevice("disk", 64*mib)
	s.write(layout{tiers: []tierLayout{{name: "ssd", media: "ssd", paths: []string{dev}}}, volumes: "{name: v, size: 1MiB}"})
	tool(t, "mkfs.ext4", "-q", "-F", dev)
	s.ctlFails(1, "tierctl: create pool: backing "+dev+" carries ext2/ext3/ext4 file system; use --force "+dev+" to overwrite it", "pool", "create")

	dir := s.path("mnt")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", dev, dir).CombinedOutput(); err != nil {
		t.Skipf("mounts do not work here: %s", out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", dir).Run() })
	s.ctlFails(1, "tierctl: create pool: ...backing "+dev+": ...in use (mounted, or opened exclusively by another program)", "pool", "create", "--force", dev)
	tool(t, "umount", dir)

	// The pool is made, and the same goes for its opening.
	s.ctl("pool", "create", "--force", dev)
	other, err := os.OpenFile(dev, os.O_RDWR|0x80 /* O_EXCL */, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if r := s.refused(); r.code != 1 || !strings.Contains(r.stderr, "in use (mounted, or opened exclusively by another program)") {
		t.Errorf("tierd on a device in use: exit code %d, %s", r.code, r.stderr)
	}
	other.Close()
	d := s.start()
	if r := execute(t, s.dir, "mount", dev, dir); r.code == 0 {
		t.Error("a backing in use can be mounted")
	}
	d.stop()
}

// Offline verbs leave a running pool alone, and say who runs it.
func TestOfflineVerbsBesideADaemon(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: v, size: 4MiB}"})
	c := s.dial("v")
	c.write(0, 64<<10, 1)
	for _, verb := range []string{"create", "check"} {
		s.ctlFails(1, "tierctl: "+verb+" pool: ...metadata "+s.path("pool.db")+": metadata file is in use, by tierd, process ...", "pool", verb)
	}
	for _, verb := range [][]string{
		{"pool", "repair"}, {"pool", "repair", "--dry-run"}, {"pool", "dump"}, {"pool", "rebuild"}, {"pool", "rebuild", "--replace"},
	} {
		if r := s.tierctl(verb...); r.code != 1 || r.stdout != "" {
			t.Errorf("tierctl %q beside a daemon: exit code %d, %s%s", verb, r.code, r.stdout, r.stderr)
		} else if !strings.Contains(r.stderr, "in use") && !strings.Contains(r.stderr, "the file exists") {
			t.Errorf("tierctl %q beside a daemon: %s", verb, r.stderr)
		}
	}
	if r := s.refused(); r.code != 1 {
		t.Errorf("second daemon: exit code %d, %s", r.code, r.stderr)
	}
	c.check(0, 64<<10, 1)
	c.write(0, 64<<10, 2)
	if err := c.Flush(); err != nil {
		t.Errorf("flush: %v", err)
	}
	c.hangUp()
	d.stop()
	// Reading goes well beside reading.
	s.flags = []string{"--read-only"}
	d = s.start()
	s.checkPool(true)
	s.ctlFails(1, "tierctl: create pool: ...", "pool", "create")
	d.stop()
}
