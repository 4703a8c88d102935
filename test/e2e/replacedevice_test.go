package e2e

import (
	"os"
	"testing"
	"time"
)

// A block device takes the place of another one while the pool serves. The new one is
// held against everybody else from then on, and the old one is free again.
func TestADeviceIsReplaced(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	old, fresh := s.loopDevice("old", 64*mib), s.loopDevice("fresh", 96*mib)
	s.write(layout{
		tiers:   []tierLayout{{name: "ssd", media: "ssd", size: "24MiB"}, {name: "sata", media: "hdd", paths: []string{old}}},
		volumes: "{name: home, size: 32MiB, policy: lowest}",
	})
	s.ctl("pool", "create")
	d := s.start()
	c := s.dial("home")
	const used = 16 * mib
	c.write(0, used, 1)
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	if s.backings()[old].UsedSlots == 0 {
		t.Fatal("nothing is on the device to be replaced")
	}
	held := func(dev string) bool {
		f, err := os.OpenFile(dev, os.O_RDWR|0x80 /* O_EXCL */, 0)
		if err == nil {
			f.Close()
		}
		return err != nil
	}
	s.ctl("backing", "add", "sata", fresh)
	if !held(old) || !held(fresh) {
		t.Error("devices of the pool can be opened by others")
	}
	c.write(used, mib, 1)
	s.ctl("backing", "drain", old, "--wait")
	s.healed()
	s.ctl("backing", "remove", old)
	eventually(t, "the removed device to be free", time.Minute, func() bool { return !held(old) })
	if list := s.backings(); len(list) != 2 || list[fresh].UsedSlots == 0 {
		t.Errorf("backings: %+v", list)
	}
	c.check(0, used+mib, 1)
	c.hangUp()
	d.kill()
	s.edit(old, fresh)
	d = s.start()
	c = s.dial("home")
	c.check(0, used+mib, 1)
	// What was removed can be added again, without force.
	s.ctl("backing", "add", "sata", old)
	c.check(0, used+mib, 1)
	c.hangUp()
	s.healed()
	d.stop()
	s.checkPool(true)
}
