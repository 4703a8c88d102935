package e2e

import (
	"os"
	"testing"
)

// TestAttachWithoutNBD: where the kernel cannot do it, that is said in a line, and
// nothing is left. With a kernel that can, test/vm attaches.
func TestAttachWithoutNBD(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/sys/module/nbd"); err == nil {
		t.Skip("this kernel has an NBD client: make vm tests with one")
	}
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: v, size: 32MiB}"})
	dir := t.TempDir()
	const text = "tierctl: ask for the netlink family of NBD: the kernel has no NBD client; modprobe nbd loads it where it is a module"
	s.ctlFails(1, text, "attach", "v", "/dev/nbd0", "--state-dir", dir)
	s.ctlFails(1, text, "attach", "v", "/dev/nbd0", "--foreground", "--state-dir", dir)
	s.ctlFails(1, text, "detach", "/dev/nbd0", "--state-dir", dir)
	s.ctlFails(2, "tierctl: the device must be /dev/nbdN (got \"/dev/sda\")", "attach", "v", "/dev/sda", "--state-dir", dir)
	var list []any
	if s.ctlJSON(&list, "attach", "--list", "--state-dir", dir); len(list) > 0 {
		t.Errorf("attached: %v", list)
	}
	d.stop()
}
