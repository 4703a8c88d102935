package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

const mib = 1 << 20

// randomFile makes a file of n bytes in which noise and holes take turns.
func randomFile(t testing.TB, path string, n int) {
	t.Helper()
	r := rand.NewChaCha8([32]byte{1, 2, 3})
	data := make([]byte, n)
	for at := 0; at < n; at += 300 << 10 {
		if at/(300<<10)%3 != 2 {
			_, _ = r.Read(data[at:min(at+300<<10, n)])
		}
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestNbdinfoListsTheVolumesAndWhatTheyCan(t *testing.T) {
	t.Parallel()
	need(t, "nbdinfo")
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}, {name: größe 2, size: 40MiB}"})
	for _, uri := range []string{"nbd+unix:///?socket=" + s.nbd, "nbd://" + d.tcp} {
		var list struct {
			Protocol string
			Exports  []struct {
				Name   string `json:"export-name"`
				Size   int64  `json:"export-size"`
				Text   string `json:"description"`
				FUA    bool   `json:"can_fua"`
				Flush  bool   `json:"can_flush"`
				Multi  bool   `json:"can_multi_conn"`
				Trim   bool   `json:"can_trim"`
				Zero   bool   `json:"can_zero"`
				RO     bool   `json:"is_read_only"`
				MinBlk int64  `json:"block_size_minimum"`
				MaxBlk int64  `json:"block_size_maximum"`
			}
		}
		out := tool(t, "nbdinfo", "--list", "--json", uri)
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if list.Protocol != "newstyle-fixed" || len(list.Exports) != 2 {
			t.Fatalf("nbdinfo over %s:\n%s", uri, out)
		}
		sizes := map[string]int64{"home": 32 * mib, "größe 2": 40 * mib}
		for _, e := range list.Exports {
			if want, known := sizes[e.Name]; !known || e.Size != want {
				t.Errorf("export %q has %d bytes, want %d", e.Name, e.Size, want)
			}
			if !e.FUA || !e.Flush || !e.Multi || !e.Trim || !e.Zero || e.RO {
				t.Errorf("export %q lacks something:\n%s", e.Name, out)
			}
			if !strings.HasPrefix(e.Text, "tierd volume ") || !strings.Contains(e.Text, " continuity ") {
				t.Errorf("export %q is described as %q", e.Name, e.Text)
			}
			if e.MaxBlk != 32*mib || e.MinBlk > 512 {
				t.Errorf("export %q takes %d to %d bytes a request", e.Name, e.MinBlk, e.MaxBlk)
			}
		}
	}
	if out := tool(t, "nbdinfo", "--size", s.uri("größe 2")); strings.TrimSpace(out) != fmt.Sprint(40*mib) {
		t.Errorf("nbdinfo --size: %s", out)
	}
	d.stop()
}

func TestNbdClientListsTheVolumes(t *testing.T) {
	t.Parallel()
	need(t, "nbd-client")
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}, {name: work, size: 40MiB}"})
	host, port, err := net.SplitHostPort(d.tcp)
	if err != nil {
		t.Fatal(err)
	}
	for _, where := range [][]string{{"-unix", s.nbd}, {host, port}} {
		out := tool(t, "nbd-client", append([]string{"-l"}, where...)...)
		var names []string
		for _, word := range strings.Fields(out) {
			names = append(names, strings.TrimSuffix(word, ":")) // a description follows
		}
		if !slices.Contains(names, "home") || !slices.Contains(names, "work") {
			t.Errorf("nbd-client -l %q:\n%s", where, out)
		}
	}
	d.stop()
}

func TestNbdcopyBothWaysWithFourConnections(t *testing.T) {
	t.Parallel()
	need(t, "nbdcopy")
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 50MiB}"})
	in, out := s.path("in"), s.path("out")
	randomFile(t, in, 50*mib)
	if err := os.WriteFile(out, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, uri := range []string{s.uri("home"), "nbd://" + d.tcp + "/home"} {
		tool(t, "nbdcopy", "--connections=4", "--flush", in, uri)
		tool(t, "nbdcopy", "--connections=4", uri, out)
		sameFiles(t, in, out)
	}
	// What reads as zeroes takes no space, and destination-is-zero is not needed
	// for that.
	if used := d.metric("tierd_pool_provisioned_bytes"); used != 50*mib {
		t.Errorf("provisioned %g", used)
	}
	if used := d.metric("tierd_tier_used_bytes"); used > 40*mib {
		t.Errorf("%g bytes are allocated for 33 MiB of data", used)
	}
	d.stop()
	s.checkPool(true)
	// And after a restart.
	d = s.start()
	tool(t, "nbdcopy", "--connections=4", s.uri("home"), out)
	sameFiles(t, in, out)
	d.stop()
}

func sameFiles(t testing.TB, a, b string) {
	t.Helper()
	x, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(x, y) {
		return
	}
	at := 0
	for at < min(len(x), len(y)) && x[at] == y[at] {
		at++
	}
	t.Fatalf("%s and %s (%d and %d bytes) differ from byte %d on", a, b, len(x), len(y), at)
}

func TestQemuIOPatterns(t *testing.T) {
	t.Parallel()
	need(t, "qemu-io")
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 48MiB}"})
	for _, script := range [][]string{
		// Plain, across extents, and the bytes beside.
		{"write -P 0xa5 60k 200k", "read -P 0xa5 60k 200k", "read -P 0 0 60k", "read -P 0 260k 4k"},
		// Unaligned: qemu sends 512-byte requests as they are.
		{"write -P 0x11 131071 513", "read -P 0x11 131071 513", "read -P 0xa5 130k 511", "read -P 0xa5 131584 512"},
		{"write -P 0x22 1M 512", "read -P 0x22 1M 512", "read -P 0 1049088 512"},
		// FUA and flush.
		{"write -f -P 0x33 2M 64k", "read -P 0x33 2M 64k", "write -P 0x34 3M 4k", "flush", "read -P 0x34 3M 4k"},
		// Zeroes: whole extents, ragged edges, with and without unmapping.
		{"write -P 0x44 4M 1M", "write -z 4100k 500k", "read -P 0x44 4M 4k", "read -P 0 4100k 500k", "read -P 0x44 4600k 520k"},
		{"write -P 0x45 6M 1M", "write -z -u 6146k 700k", "read -P 0x45 6M 2k", "read -P 0 6146k 700k", "read -P 0x45 6846k 322k"},
		{"write -z -f 6M 1M", "read -P 0 6M 1M"},
		// Discard: whole extents read as zeroes, the ragged edges stay or are zero;
		// only what is whole is checked.
		{"write -P 0x55 8M 1M", "discard 8M 512k", "read -P 0 8M 512k", "read -P 0x55 8704k 512k"},
		// The largest payload, the end of the volume, and a vector.
		{"write -P 0x66 10M 32M", "read -P 0x66 10M 32M", "write -P 0x67 50331136 512", "read -P 0x67 50331136 512"},
		{"writev -P 0x77 44M 4k 8k 512", "readv -P 0x77 44M 4k 8k 512"},
		// Many in flight.
		{"aio_write -P 1 0 1M", "aio_write -P 2 1M 1M", "aio_write -P 3 2M 1M", "aio_flush",
			"read -P 1 0 1M", "read -P 2 1M 1M", "read -P 3 2M 1M"},
	} {
		args := []string{"-f", "raw", "-t", "writeback", s.uri("home")}
		for _, c := range script {
			args = append(args, "-c", c)
		}
		out := tool(t, "qemu-io", args...)
		if strings.Contains(out, "failed") {
			t.Errorf("%q:\n%s", script, out)
		}
	}
	d.stop()
	s.checkPool(true)
}

func TestQemuImgFindsNoDifferenceToARawTwin(t *testing.T) {
	t.Parallel()
	need(t, "qemu-img", "qemu-io")
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 40MiB}"})
	twin := s.path("twin")
	randomFile(t, twin, 40*mib)
	tool(t, "qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", twin, s.uri("home"))
	compare := func() {
		t.Helper()
		if out := tool(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", twin, s.uri("home")); !strings.Contains(out, "identical") {
			t.Errorf("qemu-img compare: %s", out)
		}
	}
	compare()

	// The same commands on both, with a move of extents in between.
	r := rand.New(rand.NewPCG(7, 7))
	for range 4 {
		var script []string
		for i := range 60 {
			off, n := r.IntN(39*mib/512)*512, (r.IntN(400)+1)*512
			switch r.IntN(3) {
			case 0:
				script = append(script, "-c", fmt.Sprintf("write -z %d %d", off, n))
			default:
				script = append(script, "-c", fmt.Sprintf("write -P %d %d %d", i+1, off, n))
			}
		}
		tool(t, "qemu-io", append([]string{"-f", "raw", twin}, script...)...)
		tool(t, "qemu-io", append([]string{"-f", "raw", s.uri("home")}, script...)...)
		s.ctl("relocation", "run", "--wait")
		compare()
	}
	d.stop()
	s.checkPool(true)
}

// mover is a configuration under which the hottest extents change all the time and
// follow at once.
const mover = "{cycle: 250ms, hysteresis: 0%, headroom: 2%, budget: {rate: 400MiB/s}}"

// movingTiers are small in the fast part, so that there always is something that
// belongs elsewhere.
func movingTiers() []tierLayout {
	return []tierLayout{
		{name: "ssd", media: "ssd", size: "18MiB", options: ", simulate: {latency: 50us}"},
		{name: "fc", media: "ssd", size: "24MiB", options: ", simulate: {latency: 200us}"},
		{name: "sata", media: "hdd", size: "96MiB", files: 2, options: ", simulate: {latency: 500us}"},
	}
}

// shortHeat forgets within seconds.
const shortHeat = "heat: {short_half_life: 1s, long_half_life: 5s, short_weight: 0.8}"

func TestFioVerifiesWhileExtentsMove(t *testing.T) {
	t.Parallel()
	need(t, "fio")
	if out := tool(t, "fio", "--enghelp"); !strings.Contains(out, "nbd") {
		t.Skip("fio has no nbd engine")
	}
	s, d := running(t, layout{tiers: movingTiers(), volumes: "{name: home, size: 96MiB}", relocation: mover, extra: shortHeat})
	before := d.metric("tierd_relocation_moved_extents_total")
	// Each job has a part of its own, and its overlapping writes take turns: fio's
	// own bookkeeping asks for that, and fails on any server without.
	r := execute(t, s.dir, "fio", "--ioengine=nbd", "--uri="+s.uri("home"), "--thread", "--output-format=json",
		"--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--iodepth=32", "--bs=4k", "--size=24M", "--offset_increment=24M",
		"--numjobs=4", "--rw=randrw", "--rwmixread=50", "--random_distribution=zipf:1.1", "--verify_backlog=512",
		"--norandommap=1", "--serialize_overlap=1", "--randseed=42", "--name=verify", "--loops=3", "--fsync=200")
	if r.code != 0 {
		t.Fatalf("fio: exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	moved := d.metric("tierd_relocation_moved_extents_total") - before
	if moved < 50 {
		t.Errorf("only %g extents moved meanwhile", moved)
	}
	t.Logf("%g extents moved under fio", moved)
	if errs := d.metric("tierd_volume_request_errors_total"); errs != 0 {
		t.Errorf("%g requests failed", errs)
	}
	var status relocationStatus
	s.ctlJSON(&status, "relocation", "status")
	var total int64
	for _, m := range status.Moved {
		total += m.Extents
	}
	if float64(total) < before+moved {
		t.Errorf("relocation status counts %d moved extents, the metrics %g", total, before+moved)
	}
	d.stop()
	s.checkPool(true)
}

func TestNbdshScript(t *testing.T) {
	t.Parallel()
	need(t, "nbdsh")
	// The module comes with the system's Python, which need not be the first.
	path := "PATH=/usr/bin:/bin:" + os.Getenv("PATH")
	if r := execute(t, os.TempDir(), "env", path, "nbdsh", "-c", "pass"); r.code != 0 {
		t.Skipf("nbdsh does not run: %s", strings.TrimSpace(r.stderr))
	}
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"})
	script := `
import errno
assert h.get_size() == 32 << 20
assert h.can_fua() and h.can_flush() and h.can_trim() and h.can_zero() and h.can_multi_conn()
def refused(code, call, *args, **kw):
    try:
        call(*args, **kw)
    except nbd.Error as e:
        assert e.errnum == code, e
    else:
        raise AssertionError("not refused")
h.set_strict_mode(0)
refused(errno.EINVAL, h.pread, 512, 32 << 20)
refused(errno.ENOSPC, h.pwrite, b"x" * 512, (32 << 20) - 256)
refused(errno.EINVAL, h.pread, 4096, (32 << 20) - 512)
buf = bytes(range(256)) * 256
cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(buf)), i << 16) for i in range(64)]
while True:
    cookies = [c for c in cookies if not h.aio_command_completed(c)]
    if not cookies:
        break
    h.poll(-1)
h.flush()
for i in range(64):
    assert h.pread(65536, i << 16) == buf, i
h.zero(100000, 1000, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(100000, 1000) == bytes(100000)
assert h.pread(1000, 0) == buf[:1000]
h.trim(1 << 20, 1 << 20, nbd.CMD_FLAG_FUA)
assert h.pread(1 << 20, 1 << 20) == bytes(1 << 20)
h.pwrite(b"last", (32 << 20) - 4, nbd.CMD_FLAG_FUA)
assert h.pread(4, (32 << 20) - 4) == b"last"
h.shutdown()
print("done")
`
	out := tool(t, "env", path, "nbdsh", "-u", s.uri("home"), "-c", script)
	if !strings.Contains(out, "done") {
		t.Errorf("nbdsh said %q", out)
	}
	d.stop()
	s.checkPool(true)
}

func TestNbdkitAsProxyInFront(t *testing.T) {
	t.Parallel()
	need(t, "nbdkit", "nbdcopy", "qemu-io")
	s, d := running(t, layout{tiers: twoTiers(), volumes: "{name: home, size: 32MiB}"})
	front := s.path("f")
	cmd := exec.Command("nbdkit", "-f", "-U", front, "nbd", "uri="+s.uri("home"), "shared=true")
	var log logBuffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	eventually(t, "nbdkit listens: "+log.String(), 20*time.Second, func() bool {
		c, err := net.Dial("unix", front)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	in, out := s.path("in"), s.path("out")
	randomFile(t, in, 32*mib)
	if err := os.WriteFile(out, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	uri := "nbd+unix:///?socket=" + front
	tool(t, "nbdcopy", "--connections=4", in, uri)
	tool(t, "nbdcopy", "--connections=4", s.uri("home"), out)
	sameFiles(t, in, out)
	tool(t, "qemu-io", "-f", "raw", "-c", "write -z -u 1M 2M", "-c", "discard 4M 1M", "-c", "flush", "-c", "read -P 0 1M 2M", uri)
	tool(t, "qemu-io", "-f", "raw", "-c", "read -P 0 1M 2M", "-c", "read -P 0 4M 1M", s.uri("home"))
	d.stop()
}
