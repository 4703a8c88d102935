package e2e

import (
	"errors"
	"strings"
	"syscall"
	"testing"
)

// fill writes generation gen to successive extents from off on until the pool is
// full, and returns where that was.
func (d disk) fill(off int64, gen uint32) int64 {
	d.t.Helper()
	const step = 64 << 10
	for ; ; off += step {
		err := d.WriteAt(content(off, step, gen), off, false)
		if errors.Is(err, syscall.ENOSPC) {
			return off
		}
		if err != nil {
			d.t.Fatal(err)
		}
	}
}

func TestFullPoolRefusesNewExtentsAndServesTheRest(t *testing.T) {
	t.Parallel()
	tiers := twoTiers()
	for i := range tiers {
		tiers[i].options = ", preallocate: true"
	}
	s, d := running(t, layout{tiers: tiers, volumes: "{name: home, size: 200MiB}"})
	c := s.dial("home")
	end := c.fill(0, 1)
	st := s.status()
	if end != st.CapacityBytes || st.FreeBytes != 0 {
		t.Errorf("full after %d bytes with a capacity of %d, %d are free", end, st.CapacityBytes, st.FreeBytes)
	}
	if len(st.Warnings) != 1 || !strings.Contains(st.Warnings[0], "100.0% full") {
		t.Errorf("warnings of a full pool: %q", st.Warnings)
	}
	// Reads and overwrites go on, and zeroes need no slot.
	c.check(0, int(end), 1)
	c.write(mib, 4*mib, 2)
	c.check(mib, 4*mib, 2)
	if err := c.WriteAt(make([]byte, mib), 150*mib, false); err != nil {
		t.Errorf("zeroes to unmapped extents of a full pool: %v", err)
	}
	if err := c.WriteAt(content(150*mib, 512, 9), 150*mib, false); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write to an unmapped extent of a full pool: %v", err)
	}
	if err := c.Flush(); err != nil {
		t.Errorf("flush of a full pool: %v", err)
	}
	c.check(150*mib, mib, 0)

	// What trim gives back is there for the next write, without a flush in between.
	if err := c.Trim(8*mib, 4*mib, false); err != nil {
		t.Fatal(err)
	}
	c.write(150*mib, 4*mib, 3)
	c.check(150*mib, 4*mib, 3)
	c.check(8*mib, 4*mib, 0)
	c.check(12*mib, mib, 1)
	if err := c.WriteAt(content(160*mib, 512, 9), 160*mib, false); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the pool gave more than it got back: %v", err)
	}
	c.hangUp()

	// The same with a foreign client.
	t.Run("qemu-io", func(t *testing.T) {
		need(t, "qemu-io")
		qemu := func(commands ...string) result {
			args := []string{"-f", "raw", "-t", "writeback"}
			for _, c := range commands {
				args = append(args, "-c", c)
			}
			return execute(t, s.dir, "qemu-io", append(args, s.uri("home"))...)
		}
		if r := qemu("write -P 7 170M 64k"); !strings.Contains(r.stdout+r.stderr, "No space left on device") {
			t.Errorf("qemu-io on a full pool: %+v", r)
		}
		if r := qemu("discard 20M 1M", "write -P 7 170M 1M", "read -P 7 170M 1M"); r.code != 0 || strings.Contains(r.stdout, "failed") {
			t.Errorf("qemu-io after a discard: %+v", r)
		}
	})
	d.stop()
	s.checkPool(true)
}
