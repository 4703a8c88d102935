package e2e

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"tierd/test/faultfs"
	"tierd/test/fuseproc"
)

// patience is how long a state may take to show.
const patience = 90 * time.Second

// A failing site has a daemon with a pool of two tiers. The volumes home, placed
// high, and other, placed low, have three flushed extents each. What is in faulty,
// the file of the fast tier or the metadata, can be made to fail.
type failing struct {
	*site
	d           *daemon
	fs          *faultfs.FS
	home, other disk
	data        int64 // where home's first extent is in its backing, bytes
}

const (
	faultyBacking = "ssd.img"
	stagedLog     = "pool.db.log"
	extentBytes   = 64 << 10
	homeExtents   = 3
)

// newFailing makes one; metadata says that they are to fail, and not the backing.
func newFailing(t *testing.T, metadata bool) *failing {
	t.Helper()
	s := newSite(t)
	fs, err := faultfs.Start(s.dir)
	if errors.Is(err, fuseproc.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	})
	fast := fs.Path(faultyBacking)
	if metadata {
		fast = s.path(faultyBacking)
	}
	s.write(layout{
		tiers: []tierLayout{
			{name: "ssd", media: "ssd", paths: []string{fast}, options: ", size: 24MiB"},
			{name: "sata", media: "hdd", size: "64MiB"},
		},
		volumes: "{name: home, size: 8MiB, policy: highest}, {name: other, size: 8MiB, policy: lowest}",
	})
	if metadata {
		s.edit("metadata: "+s.path("pool.db"), "metadata: "+fs.Path("pool.db"))
	}
	s.ctl("pool", "create")
	f := &failing{site: s, fs: fs}
	f.start()
	for _, c := range []disk{f.home, f.other} {
		c.write(0, homeExtents*extentBytes, 1)
		f.ok("flush", c.Flush())
	}
	var l location
	s.ctlJSON(&l, "locate", "home", "0")
	if l.Tier != "ssd" {
		t.Fatalf("home is on tier %s", l.Tier)
	}
	f.data = l.DeviceOffset
	return f
}

func (f *failing) start() {
	f.t.Helper()
	f.d = f.site.start()
	f.home, f.other = f.dial("home"), f.dial("other")
	f.ctl("relocation", "pause") // or extents leave a suspect backing when they like
}

// tierOf returns the tier of an extent of home.
func (f *failing) tierOf(extent int64) string {
	f.t.Helper()
	var l location
	f.ctlJSON(&l, "locate", "home", fmt.Sprint(extent*extentBytes))
	return l.Tier
}

// restart ends the daemon, at once or in order, and starts it again on a healthy
// file.
func (f *failing) restart(kill bool) {
	f.t.Helper()
	if kill {
		f.d.kill()
	} else {
		f.home.hangUp()
		f.other.hangUp()
		f.d.signal(syscall.SIGTERM)
		f.d.wait() // flushes that fail are no clean stop
	}
	f.set()
	f.start()
}

func (f *failing) set(faults ...faultfs.Fault) {
	f.t.Helper()
	f.ok("set faults", f.fs.Set(faults...))
}

// backing arms a fault of the fast tier's file. Its range is that of home's first
// extent.
func (f *failing) backing(fault faultfs.Fault) {
	f.t.Helper()
	fault.Name, fault.From, fault.To = faultyBacking, f.data, f.data+extentBytes
	f.set(fault)
}

func (f *failing) ok(what string, err error) {
	f.t.Helper()
	if err != nil {
		f.t.Errorf("%s: %v", what, err)
	}
}

func (f *failing) fails(what string, err error, errno syscall.Errno) {
	f.t.Helper()
	if !errors.Is(err, errno) {
		f.t.Errorf("%s = %v, want %v", what, err, errno)
	}
}

// othersGoOn checks that a volume that needs nothing of what fails is served.
func (f *failing) othersGoOn() {
	f.t.Helper()
	f.ok("overwrite of another volume", f.other.WriteAt(content(0, 4096, 1), 0, false))
	f.ok("FUA write of another volume", f.other.WriteAt(content(4096, 4096, 1), 4096, true))
	f.ok("flush of another volume", f.other.Flush())
	f.other.check(0, homeExtents*extentBytes, 1)
}

func overwrite(c disk, extent int64) error {
	return c.WriteAt(content(extent*extentBytes, 4096, 1), extent*extentBytes, false)
}

func readExtent(c disk, extent int64) error {
	return c.ReadAt(make([]byte, 4096), extent*extentBytes)
}

// lines counts the lines of the log that have all of the texts.
func (d *daemon) lines(texts ...string) (n int) {
next:
	for line := range strings.Lines(d.log.String()) {
		for _, t := range texts {
			if !strings.Contains(line, t) {
				continue next
			}
		}
		n++
	}
	return n
}

// awaitState waits until the fast backing is in a state, which the list, the
// metrics and the pool's status have to agree on, and the log to tell once.
func (f *failing) awaitState(state string) {
	f.t.Helper()
	var b backingInfo
	eventually(f.t, "backing is "+state, patience, func() bool {
		var list []backingInfo
		f.ctlJSON(&list, "backing", "list")
		b = list[0]
		return string(b.State) == state
	})
	for _, s := range []string{"ok", "suspect", "failed", "missing"} {
		want := 0.0
		if s == state {
			want = 1
		}
		if got := f.d.metric("tierd_backing_state", "backing="+b.Path, "state="+s); got != want {
			f.t.Errorf("tierd_backing_state of %s is %v, want %v", s, got, want)
		}
	}
	var st poolStatus
	f.ctlJSON(&st, "pool", "status")
	told := false
	for _, w := range st.Warnings {
		told = told || strings.Contains(w, b.Path)
	}
	if told != (state != "ok") || (b.Error != "") != (state != "ok") || st.Degraded != (state == "failed") {
		f.t.Errorf("state %s: warnings %q, degraded %v, error %q", state, st.Warnings, st.Degraded, b.Error)
	}
}

// told checks how many lines of the log are about the backing.
func (f *failing) told(text string, want int) {
	f.t.Helper()
	// What the daemon writes to its log comes through a pipe.
	eventually(f.t, fmt.Sprintf("%d lines of log say %q", want, text), patience, func() bool { return f.d.lines(text, faultyBacking) >= want })
	if n := f.d.lines(text, faultyBacking); n != want {
		f.t.Errorf("%d lines of log say %q, want %d", n, text, want)
	}
}

// clear has an operator clear the failure of the backing.
func (f *failing) clear() {
	f.t.Helper()
	f.d.kill()
	f.ctl("pool", "repair", "--clear-failed", f.fs.Path(faultyBacking))
	f.start()
	f.awaitState("ok")
	f.ok("flush after the failure is cleared", f.home.Flush())
	f.ok("write after the failure is cleared", overwrite(f.home, 1))
	f.ok("flush after that", f.home.Flush())
	f.home.check(0, homeExtents*extentBytes, 1)
}

func TestDiskThatCannotRead(t *testing.T) {
	t.Parallel()
	f := newFailing(t, false)
	f.backing(faultfs.Fault{Op: faultfs.Read, Errno: syscall.EIO})
	for range 5 {
		f.fails("read of what the disk cannot give", readExtent(f.home, 0), syscall.EIO)
	}
	f.ok("read beside it", readExtent(f.home, 1))
	f.ok("overwrite of it", f.home.WriteAt(content(0, extentBytes, 1), 0, false))
	f.ok("flush", f.home.Flush())
	f.othersGoOn()
	f.awaitState("suspect")
	f.told("backing is suspect", 1)
	f.ok("first write while it is suspect", overwrite(f.home, 10))
	if got := f.tierOf(10); got != "sata" {
		t.Errorf("a new extent is on tier %s, want sata", got)
	}
	// What can be read is moved away.
	f.ctl("relocation", "resume")
	eventually(t, "extents leave the suspect backing", patience, func() bool { return f.tierOf(1) == "sata" && f.tierOf(2) == "sata" })
	if got := f.tierOf(0); got != "ssd" {
		t.Errorf("the unreadable extent is on tier %s", got)
	}
	f.told("backing is suspect", 1)
	f.told("move ended", 0)
	f.ok("flush", f.home.Flush())
	f.restart(true)
	f.awaitState("ok") // it is not remembered
	f.home.check(0, homeExtents*extentBytes, 1)
}

func TestDiskThatCannotWrite(t *testing.T) {
	t.Parallel()
	f := newFailing(t, false)
	f.backing(faultfs.Fault{Op: faultfs.Write, Errno: syscall.EIO})
	for range 5 {
		f.fails("write", overwrite(f.home, 0), syscall.EIO)
		f.fails("FUA write", f.home.WriteAt(content(0, 4096, 1), 0, true), syscall.EIO)
	}
	f.ok("write beside it", overwrite(f.home, 1))
	f.ok("read", readExtent(f.home, 0))
	f.ok("flush of what could be written", f.home.Flush())
	f.othersGoOn()
	f.awaitState("suspect")
	f.told("backing is suspect", 1)
	f.restart(false)
	f.awaitState("ok")
	f.home.check(0, homeExtents*extentBytes, 1)
}

// A sync that fails once has lost data, whatever the next one says.
func TestDiskThatCannotSync(t *testing.T) {
	t.Parallel()
	for _, times := range []int{1, 0} {
		for _, kill := range []bool{true, false} {
			t.Run(fmt.Sprintf("times %d kill %v", times, kill), func(t *testing.T) {
				t.Parallel()
				f := newFailing(t, false)
				var before poolStatus
				f.ctlJSON(&before, "pool", "status")
				f.ok("write", overwrite(f.home, 0))
				f.set(faultfs.Fault{Op: faultfs.Sync, Name: faultyBacking, Times: times, Errno: syscall.EIO})
				// Staged only now, it brings no round of the daemon's own that syncs the write
				// before the fault is set. Something else may have met the fault by now.
				if err := overwrite(f.home, 5); err != nil {
					f.fails("first write", err, syscall.EIO)
				}
				f.fails("flush", f.home.Flush(), syscall.EIO)
				check := func() {
					t.Helper()
					for range 3 {
						f.fails("later flush", f.home.Flush(), syscall.EIO)
						f.fails("overwrite", overwrite(f.home, 1), syscall.EIO)
					}
					f.fails("FUA write", f.home.WriteAt(content(0, 4096, 1), 0, true), syscall.EIO)
					f.home.check(0, homeExtents*extentBytes, 1)
					f.othersGoOn()
					f.awaitState("failed")
				}
				check()
				f.told("backing failed", 1)
				hits, err := f.fs.Hits()
				if err != nil || hits[0] != 1 {
					t.Errorf("the failing sync was called %v times (%v), want once", hits, err)
				}
				var after poolStatus
				f.ctlJSON(&after, "pool", "status")
				if after.ContinuityID == before.ContinuityID {
					t.Error("the continuity id is the same after answered data was lost")
				}
				for range 2 {
					f.restart(kill)
					check()
					f.told("backing failed", 0)
				}
				f.clear()
			})
		}
	}
}

func TestDiskThatHangs(t *testing.T) {
	t.Parallel()
	f := newFailing(t, false)
	f.set(faultfs.Fault{Op: faultfs.All, Name: faultyBacking, Delay: 10 * time.Minute})
	hung := make(chan error, 2)
	go func() { hung <- overwrite(f.home, 0) }()
	second := f.dial("home")
	go func() { hung <- readExtent(second, 1) }()
	goOn := func() {
		t.Helper()
		f.othersGoOn()
		f.ok("first write of another volume", overwrite(f.other, 20))
		f.ok("its flush", f.other.Flush())
		f.ok("trim of another volume", f.other.Trim(20*extentBytes, extentBytes, true))
		f.ctl("volume", "create", "new", "1MiB")
		f.ctl("volume", "delete", "new")
	}
	goOn()
	f.awaitState("suspect")
	goOn()
	f.told("backing is suspect", 1)
	select {
	case err := <-hung:
		t.Logf("a request was answered meanwhile: %v", err) // on a machine that is slower than the disk
	default:
	}
	f.set()
	for range 2 {
		f.ok("request that waited", <-hung)
	}
	f.ok("flush", f.home.Flush())
	f.home.check(0, homeExtents*extentBytes, 1)
	f.restart(true)
	f.awaitState("ok")
}

func TestDiskThatWritesShort(t *testing.T) {
	t.Parallel()
	f := newFailing(t, false)
	f.backing(faultfs.Fault{Op: faultfs.Write, Times: 3, Short: 1000})
	f.ok("write that takes four calls", f.home.WriteAt(content(0, 16384, 2), 0, false))
	f.home.check(0, 16384, 2)
	f.ok("flush", f.home.Flush())
	f.awaitState("ok")
	// One that is cut short by an error is an error.
	f.backing(faultfs.Fault{Op: faultfs.Write, Times: 1, Short: 1000, Errno: syscall.EIO})
	f.fails("write that is cut short", f.home.WriteAt(content(0, 16384, 1), 0, false), syscall.EIO)
	f.awaitState("suspect")
	f.ok("write again", f.home.WriteAt(content(0, 16384, 1), 0, true))
	f.home.check(0, homeExtents*extentBytes, 1)
	f.othersGoOn()
}

// The file system under a sparse file is full: what has its space goes on.
func TestFileSystemFull(t *testing.T) {
	t.Parallel()
	f := newFailing(t, false)
	f.set(faultfs.Fault{Op: faultfs.Write, Name: faultyBacking, From: f.data, Room: -1, Errno: syscall.ENOSPC})
	f.fails("first write", overwrite(f.home, 10), syscall.ENOSPC)
	f.ok("overwrite", overwrite(f.home, 0))
	f.ok("flush", f.home.Flush())
	f.home.check(0, homeExtents*extentBytes, 1)
	f.othersGoOn()
	f.awaitState("suspect")
	f.told("backing is suspect", 1)
	f.ok("first write of the next extent, which goes elsewhere", overwrite(f.home, 11))
	f.ok("flush", f.home.Flush())
	f.restart(false)
	f.awaitState("ok")
	f.home.check(0, homeExtents*extentBytes, 1)
	f.home.check(11*extentBytes, 4096, 1)
}

func TestDiskThatIsGone(t *testing.T) {
	t.Parallel()
	for _, errno := range []syscall.Errno{syscall.ENXIO, syscall.ENODEV} {
		t.Run(errno.Error(), func(t *testing.T) {
			t.Parallel()
			f := newFailing(t, false)
			f.ok("write", overwrite(f.home, 0))
			f.set(faultfs.Fault{Op: faultfs.All, Name: faultyBacking, Errno: errno})
			for range 3 {
				f.fails("read", readExtent(f.home, 0), syscall.EIO)
				f.fails("write", overwrite(f.home, 1), syscall.EIO)
				f.fails("flush", f.home.Flush(), syscall.EIO)
			}
			f.othersGoOn()
			f.awaitState("failed")
			f.told("backing failed", 1)
			f.ok("first write, which goes elsewhere", overwrite(f.other, 30))
			f.d.kill()
			if r := f.refused(); r.code != 1 || !strings.Contains(r.stderr, "--degraded") {
				t.Errorf("start without the disk: exit code %d\n%s", r.code, r.stderr)
			}
			f.set() // it is plugged in again
			f.start()
			f.awaitState("failed")
			f.fails("flush after the restart", f.home.Flush(), syscall.EIO)
			f.home.check(0, homeExtents*extentBytes, 1)
			f.othersGoOn()
			f.clear()
		})
	}
}

// The metadata fail: what needs no new mapping goes on, and the daemon lives.
func TestMetadataThatFail(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		fault faultfs.Fault
	}{
		{"write", faultfs.Fault{Op: faultfs.Write, Name: "pool.db", Errno: syscall.EIO}},
		{"sync once", faultfs.Fault{Op: faultfs.Sync, Name: "pool.db", Times: 1, Errno: syscall.EIO}},
		{"no space", faultfs.Fault{Op: faultfs.Write, Name: "pool.db", Errno: syscall.ENOSPC}},
		{"unreadable pages", faultfs.Fault{Op: faultfs.Read, Name: "pool.db", Errno: syscall.EIO}},
		{"gone", faultfs.Fault{Op: faultfs.All, Errno: syscall.ENXIO}},
		{"staged log", faultfs.Fault{Op: faultfs.Write, Name: stagedLog, Errno: syscall.EIO}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFailing(t, true)
			staged := func() { f.t.Helper(); f.ok("first write", overwrite(f.home, 5)) }
			if tt.fault.Name == stagedLog {
				staged()
				f.set(tt.fault)
				f.fails("first write without a staged log", overwrite(f.home, 6), syscall.EIO)
				f.ok("flush of what was staged before", f.home.Flush())
			} else {
				// Staged only now, it is not committed before the fault is set, whatever the
				// machine does in between.
				fault := tt.fault
				fault.Name = "pool.db"
				f.set(fault)
				staged()
				if tt.fault != fault {
					f.set(tt.fault)
				}
				for range 3 {
					f.fails("flush with a staged entry", f.home.Flush(), syscall.EIO)
				}
			}
			for range 3 {
				f.fails("first write", overwrite(f.home, 7), syscall.EIO)
				f.fails("trim", f.other.Trim(0, extentBytes, false), syscall.EIO)
			}
			f.ok("overwrite", overwrite(f.home, 0))
			f.ok("FUA overwrite", f.home.WriteAt(content(4096, 4096, 1), 4096, true))
			f.home.check(0, homeExtents*extentBytes, 1)
			f.home.check(5*extentBytes, 4096, 1)
			f.home.check(7*extentBytes, 4096, 0)
			f.othersGoOn()

			var st poolStatus
			f.ctlJSON(&st, "pool", "status")
			if st.MetadataState != "failed" || st.MetadataError == "" {
				t.Errorf("metadata are %s (%q), want failed", st.MetadataState, st.MetadataError)
			}
			if up := f.d.metric("tierd_metadata_up"); up != 0 {
				t.Errorf("tierd_metadata_up is %v", up)
			}
			eventually(t, "the log says that the metadata failed", patience, func() bool { return f.d.lines("metadata failed") > 0 })
			if n := f.d.lines("metadata failed"); n != 1 {
				t.Errorf("%d lines of log say that the metadata failed, want 1", n)
			}
			f.restart(true)
			f.ctlJSON(&st, "pool", "status")
			if st.MetadataState != "ok" {
				t.Errorf("metadata are %s after a restart: %s", st.MetadataState, st.MetadataError)
			}
			f.home.check(0, homeExtents*extentBytes, 1)
			f.home.check(5*extentBytes, 4096, 1)
			f.home.check(7*extentBytes, 4096, 0)
			f.ok("first write after a restart", overwrite(f.home, 7))
			f.ok("flush after a restart", f.home.Flush())
			f.othersGoOn()
			f.site.healed()
			f.home.hangUp()
			f.other.hangUp()
			f.d.stop()
			f.checkPool(true)
		})
	}
}
