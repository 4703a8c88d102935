package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"tierd/nbd/wire"
)

// readOnlyPool returns a pool that was killed with answered writes that were not
// flushed, its sockets being in a folder of their own. v has generation 1 in the
// first 8 extents, which are flushed, and generation 2 in the four behind.
func readOnlyPool(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	sockets := newSite(t)
	s.nbd, s.admin = sockets.nbd, sockets.admin
	s.write(layout{tiers: twoTiers(), volumes: "{name: v, size: 8MiB}"})
	s.ctl("pool", "create")
	d := s.start()
	c := s.dial("v")
	c.write(0, 8*64<<10, 1)
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	c.write(8*64<<10, 4*64<<10, 2)
	d.kill()
	return s
}

// trace returns name, content and times of all files of the site.
func (s *site) trace() string {
	s.t.Helper()
	var b strings.Builder
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		var st syscall.Stat_t
		p := s.path(e.Name())
		err := syscall.Stat(p, &st)
		content, rerr := os.ReadFile(p)
		if err = errors.Join(err, rerr); err != nil {
			s.t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %d %o %d %d %v %v %x\n", e.Name(), st.Ino, st.Mode, st.Size, st.Blocks, st.Mtim, st.Ctim, content)
	}
	return b.String()
}

// checkSalvage reads all there is and tries to change it.
func (s *site) checkSalvage(d *daemon) {
	t := s.t
	t.Helper()
	c := s.dial("v")
	if c.Flags()&wire.FlagReadOnly == 0 {
		t.Errorf("flags of the export are %#x, without READ_ONLY", c.Flags())
	}
	c.check(0, 8*64<<10, 1)
	c.check(8*64<<10, 4*64<<10, 2)
	for what, err := range map[string]error{
		"write": c.WriteAt(make([]byte, 4096), 0, false), "FUA write": c.WriteAt(make([]byte, 4096), 4<<20, true),
	} {
		if !errors.Is(err, syscall.EPERM) {
			t.Errorf("%s = %v, want EPERM", what, err)
		}
	}
	c.hangUp()
	s.ctlFails(1, "tierctl: the pool is open read-only, and cannot be changed", "volume", "create", "w", "1MiB")
	s.ctlFails(1, "tierctl: the pool is open read-only, and cannot be changed", "relocation", "run")
	s.ctlFails(1, "tierctl: the pool is open read-only, and cannot be changed", "backing", "forget", "1", "--accept-loss")
	var st poolStatus
	s.ctlJSON(&st, "pool", "status")
	if !st.ReadOnly {
		t.Error("pool status does not say that the pool is read-only")
	}
	s.ctl("volume", "list")
	s.ctl("backing", "list")
	s.ctl("heat", "v")
	s.ctl("locate", "v", "0")
	d.signal(syscall.SIGHUP)
}

// A daemon that runs read-only opens no file of the pool for writing and leaves all
// of them as they were, to the byte and to the nanosecond.
func TestReadOnlyLeavesNoTrace(t *testing.T) {
	t.Parallel()
	s := readOnlyPool(t)
	before := s.trace()
	s.flags = []string{"--read-only"}
	d := s.start()
	s.checkSalvage(d)
	for name, flags := range s.openFiles(d) {
		if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
			t.Errorf("%s is open for writing (flags %#o)", name, flags)
		}
	}
	if n := len(s.openFiles(d)); n < 3 {
		t.Errorf("%d files of the pool are open, want 3: the test sees nothing", n)
	}
	s.flags = nil
	checkRefusal(t, "tierd beside a read-only one", s.refused(), 1, "tierd: listen on unix:"+s.nbd+": address is in use by a running server")
	s.flags = []string{"--read-only"}
	d.stop()
	if s.trace() != before {
		t.Error("files have changed")
	}
	// The pool is none the worse for it.
	s.flags = nil
	d = s.start()
	c := s.dial("v")
	c.check(0, 8*64<<10, 1)
	c.check(8*64<<10, 4*64<<10, 2)
	c.hangUp()
	d.stop()
}

// openFiles returns the flags of the files in the site's folder that d has open.
func (s *site) openFiles(d *daemon) map[string]int64 {
	s.t.Helper()
	proc := fmt.Sprintf("/proc/%d/", d.cmd.Process.Pid)
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		s.t.Skipf("open files cannot be listed: %v", err)
	}
	open := make(map[string]int64)
	for _, fd := range fds {
		name, err := os.Readlink(proc + "fd/" + fd.Name())
		if err != nil || filepath.Dir(name) != s.dir {
			continue
		}
		f, err := os.Open(proc + "fdinfo/" + fd.Name())
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if text, ok := strings.CutPrefix(lines.Text(), "flags:"); ok {
				open[name], err = strconv.ParseInt(strings.TrimSpace(text), 8, 64)
			}
		}
		f.Close()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return open
}

// No system call of a read-only daemon writes to the pool's files, nor tries to.
func TestReadOnlySystemCalls(t *testing.T) {
	t.Parallel()
	need(t, "strace", "pgrep")
	if r := execute(t, os.TempDir(), "strace", "-o", "/dev/null", "true"); r.code != 0 {
		t.Skipf("strace does not work here: %s", r.stderr)
	}
	s := readOnlyPool(t)
	calls := filepath.Join(filepath.Dir(s.nbd), "calls")
	s.flags = []string{"--read-only"}
	d := s.launchUnder("strace", "-f", "-qq", "-y", "-o", calls, "-e",
		"trace=open,openat,openat2,creat,write,pwrite64,writev,pwritev,pwritev2,fsync,fdatasync,sync_file_range,fallocate,ftruncate,truncate,"+
			"rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,link,linkat,symlink,symlinkat,chmod,fchmod,fchmodat,utimensat,mmap,ioctl,"+
			"copy_file_range,sendfile,splice,fsetxattr,setxattr")
	s.await(d)
	s.checkSalvage(d)
	// strace holds signals back from itself, and passes on those to its child.
	pids := strings.Fields(tool(t, "pgrep", "-P", strconv.Itoa(d.cmd.Process.Pid)))
	if len(pids) != 1 {
		t.Fatalf("children of strace: %q", pids)
	}
	pid, err := strconv.Atoi(pids[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := d.wait(); code != 0 {
		t.Errorf("exit code %d\n%s", code, tail(d.log.String(), 30))
	}
	data, err := os.ReadFile(calls)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(data)) {
		if !strings.Contains(line, s.dir+"/") {
			continue
		}
		reads := strings.Contains(line, "open") && strings.Contains(line, "O_RDONLY") && !strings.Contains(line, "O_CREAT") ||
			strings.Contains(line, "mmap(") && strings.Contains(line, "PROT_READ, ") || strings.Contains(line, "ioctl(")
		if reads {
			seen++
			continue
		}
		t.Errorf("system call on a file of the pool: %s", line)
	}
	if seen < 4 {
		t.Errorf("%d calls on files of the pool were seen, want more:\n%s", seen, tail(string(data), 20))
	}
}

// A pool on read-only media can be read.
func TestReadOnlyMedia(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	s := readOnlyPool(t)
	if out, err := exec.Command("mount", "--bind", s.dir, s.dir).CombinedOutput(); err != nil {
		t.Skipf("bind mounts do not work here: %s", out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", s.dir).Run() })
	if out, err := exec.Command("mount", "-o", "remount,bind,ro", s.dir).CombinedOutput(); err != nil {
		t.Skipf("read-only bind mounts do not work here: %s", out)
	}
	if r := s.refused(); r.code != 1 {
		t.Errorf("tierd on read-only media: exit code %d, want 1\n%s", r.code, r.stderr)
	}
	s.flags = []string{"--read-only"}
	d := s.start()
	s.checkSalvage(d)
	d.stop()
}

// The way from a lost disk to a pool without it, and what is said on it.
func TestDegradedAndForget(t *testing.T) {
	t.Parallel()
	s := newPool(t, layout{tiers: twoTiers(), volumes: "{name: fast, size: 4MiB}, {name: slow, size: 4MiB, policy: sata}"})
	d := s.start()
	for _, name := range []string{"fast", "slow"} {
		c := s.dial(name)
		c.write(64<<10, 3*64<<10, 1)
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
		c.hangUp()
	}
	var before poolStatus
	s.ctlJSON(&before, "pool", "status")
	d.stop()
	disk, aside := s.backingPath("sata", 0), s.path("aside")
	if err := os.Rename(disk, aside); err != nil {
		t.Fatal(err)
	}
	checkRefusal(t, "tierd without a backing", s.refused(), 1,
		"tierd: open pool: backing "+disk+" of tier sata is missing (id 2, ...); attach it again, or start tierd with --degraded: then the rest serves, and what is there answers with errors")

	s.flags = []string{"--degraded"}
	d = s.start()
	var st poolStatus
	s.ctlJSON(&st, "pool", "status")
	if !st.Degraded || st.ContinuityID != before.ContinuityID {
		t.Errorf("status: degraded %v, continuity id changed %v; want true, false", st.Degraded, st.ContinuityID != before.ContinuityID)
	}
	s.ctlFails(1, "tierctl: backing "+disk+" is missing: nothing can move off it; attach it again, or give it up with backing forget", "backing", "drain", disk)
	fast, slow := s.dial("fast"), s.dial("slow")
	fast.check(64<<10, 3*64<<10, 1)
	slow.check(0, 64<<10, 0)
	buf := make([]byte, 4096)
	if err := slow.ReadAt(buf, 64<<10); !errors.Is(err, syscall.EIO) {
		t.Errorf("read of a lost range = %v, want EIO", err)
	}
	if err := slow.WriteAt(buf, 64<<10, false); !errors.Is(err, syscall.EIO) {
		t.Errorf("write to a lost range = %v, want EIO", err)
	}
	if err := slow.Trim(64<<10, 64<<10, true); err != nil {
		t.Errorf("trim of a lost extent = %v", err)
	}
	slow.check(64<<10, 64<<10, 0)
	slow.write(8*64<<10, 64<<10, 3)
	if err := slow.Flush(); err != nil {
		t.Errorf("flush = %v", err)
	}
	var lost []lostVolume
	s.ctlJSON(&lost, "volume", "list", "--lost")
	if len(lost) != 1 || lost[0].Volume != "slow" || lost[0].LostBytes != 2*64<<10 || len(lost[0].Ranges) != 1 ||
		lost[0].Ranges[0].Offset != 2*64<<10 || lost[0].Ranges[0].LengthBytes != 2*64<<10 || lost[0].Ranges[0].BackingPath != disk {
		t.Errorf("lost: %+v", lost)
	}
	if got := d.metric("tierd_volume_lost_bytes", "volume=slow"); got != 2*64<<10 {
		t.Errorf("tierd_volume_lost_bytes = %v", got)
	}
	if got := d.metric("tierd_backing_up", "backing="+disk); got != 0 {
		t.Errorf("tierd_backing_up = %v", got)
	}

	s.ctlFails(1, "tierctl: backing "+disk+" is not forgotten: 128KiB are lost with it: 128KiB of volume slow", "backing", "forget", disk)
	s.ctlFails(1, "tierctl: backing "+s.backingPath("ssd", 0)+" is there; drain it and remove it", "backing", "forget", "1", "--accept-loss")
	if out := s.ctl("backing", "forget", "2", "--dry-run"); !strings.Contains(out, "dry run: ") || !strings.Contains(out, "128KiB of volume slow") {
		t.Errorf("dry run says %s", out)
	}
	s.ctl("backing", "forget", "2", "--accept-loss")
	slow.check(0, 8*64<<10, 0)
	slow.check(8*64<<10, 64<<10, 3)
	st = poolStatus{}
	s.ctlJSON(&st, "pool", "status")
	if st.ContinuityID == before.ContinuityID {
		t.Error("the continuity id is the same")
	}
	if text := strings.Join(st.Warnings, "; "); strings.Contains(text, "missing") {
		t.Errorf("pool status warns of a forgotten backing: %s", text)
	}
	if out := s.ctl("volume", "list", "--lost"); !strings.Contains(out, "nothing is lost") {
		t.Errorf("volume list --lost says %s", out)
	}
	fast.hangUp()
	slow.hangUp()
	d.stop()

	// It is not missed any more, and not welcome.
	s.flags = nil
	d = s.start()
	slow = s.dial("slow")
	slow.check(0, 8*64<<10, 0)
	slow.hangUp()
	d.stop()
	if err := os.Rename(aside, disk); err != nil {
		t.Fatal(err)
	}
	checkRefusal(t, "tierd with a forgotten backing", s.refused(), 1,
		"tierd: open pool: backing "+disk+" was forgotten (id 2): the pool goes on without what it holds; take it out of the configuration, or wipe it to use it anew")
}
