package e2e

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"tierd/pkg/control"
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
	const kept = 2 * 64 << 10 // a slot of each tier, for moves
	if end != st.CapacityBytes-kept || st.FreeBytes != kept {
		t.Errorf("full after %d bytes with a capacity of %d, %d are free", end, st.CapacityBytes, st.FreeBytes)
	}
	if w := strings.Join(st.Warnings, "\n"); !strings.Contains(w, "% full") {
		t.Errorf("warnings of a full pool: %q", st.Warnings)
	}
	eventually(t, "the low-water mark to be noticed", time.Minute, func() bool { return s.status().BelowLowWater })
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

// TestSpaceSettings: reservation, quota and waiting for room, as an operator and
// two clients see them.
func TestSpaceSettings(t *testing.T) {
	t.Parallel()
	s, d := running(t, layout{tiers: []tierLayout{{name: "ssd", media: "ssd", size: "24MiB"}},
		volumes: "{name: home, size: 64MiB}, {name: mail, size: 64MiB, reservation: 2MiB, on_full: wait 10m}"})
	home, mail := s.dial("home"), s.dial("mail")
	if r := s.tierctl("volume", "set", "home", "--reservation", "60MiB"); r.code != 1 || !strings.Contains(r.stderr, "neither allocated nor reserved") {
		t.Errorf("a reservation that does not fit: %+v", r)
	}
	end := home.fill(0, 1)
	if st := s.status(); st.FreeBytes != 2*mib {
		t.Errorf("after one volume filled the pool %d bytes are free, 2 MiB are reserved for the other", st.FreeBytes)
	}
	mail.write(0, 2*mib, 2) // what is reserved is there

	// Beyond it the write waits, until there is room again.
	done := make(chan error, 1)
	go func() { done <- mail.WriteAt(content(2*mib, 64<<10, 3), 2*mib, false) }()
	eventually(t, "the write to wait", time.Minute, func() bool { return s.volume("mail").WaitingForSpace == 1 })
	mail.check(0, 2*mib, 2) // others on the connection go on
	if err := mail.Flush(); err != nil {
		t.Error(err)
	}
	if len(done) > 0 {
		t.Fatalf("the write did not wait: %v", <-done)
	}
	if err := home.Trim(end-mib, mib, false); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("a write that waited for room: %v", err)
	}
	mail.check(2*mib, 64<<10, 3)

	s.ctl("volume", "set", "home", "--quota", "1MiB")
	if err := home.WriteAt(content(end-mib, 512, 4), end-mib, false); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write beyond the quota: %v", err)
	}
	s.ctl("volume", "set", "home", "--quota", "none")
	home.write(end-mib, 64<<10, 5)
	if v := s.volume("home"); v.NoSpaceErrors == 0 || v.QuotaBytes != 0 {
		t.Errorf("volume home: %+v", v)
	}
	home.hangUp()
	mail.hangUp()
	d.stop()
	s.checkPool(true)
}

// TestFullMetadataFileSystem: with not a byte left beside the metadata, whatever
// gives space back works, and so do restarts.
func TestFullMetadataFileSystem(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	meta := s.path("meta")
	if err := os.Mkdir(meta, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", meta, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("needs the right to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(meta, syscall.MNT_DETACH) })
	s.write(layout{tiers: twoTiers(), volumes: "{name: home, size: 64MiB}, {name: old, size: 64MiB}"})
	s.edit("metadata: "+s.path("pool.db"), "metadata: "+meta+"/pool.db")
	s.ctl("pool", "create")
	d := s.start()
	home, old := s.dial("home"), s.dial("old")
	old.write(0, 8*mib, 1)
	home.fill(0, 1)
	if err := home.Flush(); err != nil {
		t.Fatal(err)
	}
	junk, err := os.Create(meta + "/junk")
	if err != nil {
		t.Fatal(err)
	}
	for n := int64(1 << 20); n > 0; {
		if _, err := junk.Write(make([]byte, n)); err != nil {
			n /= 2
		}
	}
	junk.Close()

	if err := home.Trim(0, 4*mib, false); err != nil {
		t.Errorf("trim: %v", err)
	}
	if err := home.Flush(); err != nil {
		t.Errorf("flush after a trim: %v", err)
	}
	home.write(0, 2*mib, 2)
	if err := home.WriteZeroes(8*mib, 4*mib, false, true); err != nil {
		t.Errorf("zeroes: %v", err)
	}
	s.ctl("volume", "set", "home", "--reservation", "1MiB")
	old.hangUp()
	s.ctl("volume", "delete", "old")
	eventually(t, "the space of the deleted volume", time.Minute, func() bool { return s.status().UsedBytes == s.volume("home").AllocatedBytes })
	if st := s.status(); st.MetadataState != control.MetadataOK {
		t.Errorf("metadata is %s: %s", st.MetadataState, st.MetadataError)
	}
	home.hangUp()
	d.kill()
	d = s.start()
	home = s.dial("home")
	home.check(0, 2*mib, 2)
	home.check(8*mib, 4*mib, 0)
	home.hangUp()
	d.stop()
	s.checkPool(true)
}
