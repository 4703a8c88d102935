package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// interopDoc is where the table is.
const interopDoc = "../../docs/interoperability.md"

// A transport is a way to reach the daemon.
type transport struct {
	name       string
	host, port string // of TCP
	certs      string // folder of the client's certificates, of TLS
	uri        func(volume string) string
	qemu       func(volume string) []string // --object and --image-opts options
}

// An interopRow is one client, or one kind of use of it.
type interopRow struct {
	program string // to look for
	client  string
	checks  string // what is checked, for the table
	only    []string
	run     func(t *testing.T, s *site, tr transport, volume string)
}

// in returns whether a row applies to a transport.
func (r interopRow) in(name string) bool { return len(r.only) == 0 || slices.Contains(r.only, name) }

var interopRows = []interopRow{
	{"nbdinfo", "nbdinfo", "list of exports, sizes, flags, block sizes, every --can", nil, func(t *testing.T, _ *site, tr transport, v string) {
		var info struct{ Exports []map[string]any }
		if err := json.Unmarshal([]byte(tool(t, "nbdinfo", "--json", tr.uri(v))), &info); err != nil || len(info.Exports) != 1 {
			t.Fatalf("%v: %v", err, info)
		}
		for key, want := range map[string]any{"is_read_only": false, "can_cache": true, "can_df": true, "can_fast_zero": true, "can_flush": true, "can_fua": true,
			"can_multi_conn": true, "can_trim": true, "can_zero": true, "block_size_minimum": 1.0, "block_size_maximum": 33554432.0, "export-size": 16777216.0} {
			if got := info.Exports[0][key]; got != want {
				t.Errorf("%s is %v, want %v", key, got, want)
			}
		}
		for _, can := range []string{"cache", "df", "fast-zero", "flush", "fua", "multi-conn", "trim", "write", "zero", "connect"} {
			if r := execute(t, os.TempDir(), "nbdinfo", "--can", can, tr.uri(v)); r.code != 0 {
				t.Errorf("nbdinfo --can %s: exit code %d", can, r.code)
			}
		}
	}},
	{"nbdinfo", "nbdinfo --map", "base:allocation: holes of what was never written; tierd:tier: the tier of what was", nil, func(t *testing.T, s *site, tr transport, v string) {
		tool(t, "qemu-io", append(tr.qemuIO(v), "-c", "write -P 1 1M 64k")...)
		for context, want := range map[string]string{
			"base:allocation": `0 1048576 3 hole,zero 1048576 65536 0 data 1114112 15663104 3 hole,zero`,
			"tierd:tier":      `0 1048576 0 1048576 65536 1 1114112 15663104 0`,
		} {
			out := strings.Join(strings.Fields(tool(t, "nbdinfo", "--map="+context, tr.uri(v))), " ")
			if context == "tierd:tier" {
				out = regexp.MustCompile(` (unknown|[a-z,]+)\b`).ReplaceAllString(out, "")
			}
			if out != want {
				t.Errorf("--map=%s: %s, want %s", context, out, want)
			}
		}
	}},
	{"nbdcopy", "nbdcopy", "a file with holes there and back with 4 connections, and compared", nil, func(t *testing.T, s *site, tr transport, v string) {
		dir := t.TempDir()
		in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
		randomFile(t, in, 16*mib)
		tool(t, "nbdcopy", "--connections=4", "--flush", in, tr.uri(v))
		tool(t, "nbdcopy", "--connections=4", tr.uri(v), out)
		tool(t, "cmp", in, out)
	}},
	{"nbdsh", "nbdsh", "requests in a pipeline, bad flags and ranges with their errors, structured reads with holes, block status", nil, func(t *testing.T, _ *site, tr transport, v string) {
		path := "PATH=/usr/bin:/bin:" + os.Getenv("PATH")
		if r := execute(t, os.TempDir(), "env", path, "nbdsh", "-c", "pass"); r.code != 0 {
			t.Skipf("nbdsh does not run: %s", strings.TrimSpace(r.stderr))
		}
		out := tool(t, "env", path, "nbdsh", "-c", fmt.Sprintf("uri = %q", tr.uri(v))+`
import errno
h.set_uri_allow_local_file(True)
h.add_meta_context("base:allocation")
h.connect_uri(uri)
h.set_strict_mode(0)
def refused(code, call, *args, **kw):
    try:
        call(*args, **kw)
    except nbd.Error as e:
        assert e.errnum == code, e
    else:
        raise AssertionError("not refused")
assert h.get_structured_replies_negotiated()
size = h.get_size()
refused(errno.EINVAL, h.pread, 512, size)
refused(errno.ENOSPC, h.pwrite, b"x" * 512, size - 256)
refused(errno.EINVAL, h.pread, 512, 0, 1 << 14)
refused(errno.EINVAL, h.trim, 512, 0, 1 << 14)
h.zero(size, 0)
cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([i]) * 4096), i * 8192) for i in range(32)]
while cookies:
    cookies = [c for c in cookies if not h.aio_command_completed(c)]
    if cookies: h.poll(-1)
h.flush()
for i in range(32):
    assert h.pread(4096, i * 8192) == bytes([i]) * 4096
kinds = []
def chunk(buf, off, status, err):
    kinds.append(status)
h.pread_structured(2 << 20, 0, chunk)
assert nbd.READ_DATA in kinds and nbd.READ_HOLE in kinds, kinds
extents = []
def status(context, off, entries, err):
    extents.append((context, off, list(entries)))
h.block_status(size, 0, status)
assert extents[0][0] == "base:allocation" and sum(extents[0][2][::2]) == size, extents
h.cache(1 << 20, 0)
h.pwrite(b"last", size - 4, nbd.CMD_FLAG_FUA)
assert h.pread(4, size - 4) == b"last"
print("done")
`)
		if !strings.Contains(out, "done") {
			t.Errorf("nbdsh said %q", out)
		}
	}},
	{"qemu-io", "qemu-io", "patterns at odd places, FUA, discard, write -z with and without -u, flush", nil, func(t *testing.T, _ *site, tr transport, v string) {
		out := tool(t, "qemu-io", append(tr.qemuIO(v),
			"-c", "write -P 0x11 0 1M", "-c", "write -P 0x22 -f 513 1023", "-c", "read -P 0x22 513 1023",
			"-c", "write -z 4k 64k", "-c", "read -P 0 4k 64k", "-c", "write -z -u 512k 4k", "-c", "read -P 0 512k 4k",
			"-c", "discard 128k 64k", "-c", "read -P 0 128k 64k", "-c", "aio_write -P 0x33 2M 1M", "-c", "aio_flush", "-c", "read -P 0x33 2M 1M", "-c", "flush")...)
		if strings.Contains(out, "ailed") || strings.Contains(out, "rror") {
			t.Error(out)
		}
	}},
	{"qemu-img", "qemu-img", "convert there and back, map, compare with a raw twin", nil, func(t *testing.T, _ *site, tr transport, v string) {
		dir := t.TempDir()
		in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
		randomFile(t, in, 16*mib)
		o := tr.qemu(v)
		object, target := o[:len(o)-1], o[len(o)-1]
		tool(t, "qemu-img", append(append([]string{"convert", "-n"}, object...), "--target-image-opts", "-f", "raw", in, target)...)
		tool(t, "qemu-img", append(append([]string{"compare"}, object...), "--image-opts", "driver=file,filename="+in, target)...)
		tool(t, "qemu-img", append(append([]string{"convert"}, object...), "--image-opts", target, "-O", "raw", out)...)
		tool(t, "cmp", in, out)
		if m := tool(t, "qemu-img", append(append([]string{"map"}, object...), "--output=json", "--image-opts", target)...); !strings.Contains(m, `"data": true`) {
			t.Errorf("map: %s", m)
		}
	}},
	{"qemu-nbd", "qemu-nbd -L", "list of exports with flags and contexts", nil, func(t *testing.T, s *site, tr transport, v string) {
		args := []string{"-L", "-k", s.nbd}
		if tr.name != "unix" {
			args = []string{"-L", "-b", tr.host, "-p", tr.port}
		}
		if tr.certs != "" {
			args = append(args, "--tls-creds", "tls0", "--object", tr.tlsObject())
		}
		out := tool(t, "qemu-nbd", args...)
		for _, want := range []string{v, "base:allocation", "tierd:tier", "fast-zero", "multi"} {
			if !strings.Contains(out, want) {
				t.Errorf("qemu-nbd -L does not show %s:\n%s", want, out)
			}
		}
	}},
	{"fio", "fio, engine nbd", "random writes and reads at depth 16, verified", []string{"unix", "TCP"}, func(t *testing.T, _ *site, tr transport, v string) {
		if out, err := exec.Command("fio", "--enghelp=nbd").CombinedOutput(); err != nil {
			t.Skipf("fio has no nbd engine: %s", out)
		}
		dir := t.TempDir()
		r := execute(t, dir, "fio", "--name=x", "--ioengine=nbd", "--uri="+tr.uri(v), "--rw=randrw", "--bsrange=512-64k", "--blockalign=512",
			"--iodepth=16", "--size=8m", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--randseed=7", "--output-format=terse")
		if r.code != 0 {
			t.Errorf("fio: %s%s", r.stdout, r.stderr)
		}
	}},
	{"nbdkit", "nbdkit nbd, as a proxy in front", "its filters blocksize, delay, error and stats: nbdcopy through it, compared", nil, func(t *testing.T, s *site, tr transport, v string) {
		dir := t.TempDir()
		in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
		randomFile(t, in, 16*mib)
		stats := filepath.Join(dir, "stats")
		server := []string{"uri=" + tr.uri(v)}
		if tr.certs != "" { // which it does not take from a URI
			server = []string{"hostname=" + tr.host, "port=" + tr.port, "export=" + v, "tls=require", "tls-certificates=" + tr.certs}
		}
		script := fmt.Sprintf(`nbdcopy %q "$uri" && nbdcopy "$uri" %q && cmp %q %q`, in, out, in, out)
		tool(t, "nbdkit", append([]string{"-U", "-", "--filter=stats", "--filter=delay", "--filter=error", "--filter=blocksize", "--run", script, "nbd",
			"statsfile=" + stats, "rdelay=1ms", "error-rate=0%", "minblock=4096", "maxdata=64k"}, server...)...)
		b, err := os.ReadFile(stats)
		if err != nil || !strings.Contains(string(b), "write") {
			t.Errorf("stats: %s, %v", b, err)
		}
		r := execute(t, dir, "nbdkit", append([]string{"-U", "-", "--filter=error", "--run", `nbdcopy "$uri" null:`, "nbd", "error=EIO", "error-pread-rate=100%"}, server...)...)
		if r.code == 0 {
			t.Error("the errors of the filter are lost")
		}
	}},
	{"nbd-client", "nbd-client", "-l lists; attaching negotiates the size (a device is attached in the virtual machine: test/vm)", []string{"unix", "TCP"}, func(t *testing.T, s *site, tr transport, v string) {
		args := []string{"-unix", s.nbd}
		if tr.name == "TCP" {
			args = []string{tr.host, tr.port}
		}
		r := execute(t, os.TempDir(), "nbd-client", append(args, "-l")...)
		if !strings.Contains(r.stdout+r.stderr, v) {
			t.Errorf("nbd-client -l: %s%s", r.stdout, r.stderr)
		}
		if tr.name == "unix" {
			if _, err := os.Stat("/sys/block/nbd0"); err == nil {
				return // it would really attach
			}
			r = execute(t, os.TempDir(), "nbd-client", append(args, "-N", v, "/dev/nbd0")...)
			if !strings.Contains(r.stdout+r.stderr, "16MB") && !strings.Contains(r.stdout+r.stderr, "16777216") {
				t.Errorf("nbd-client negotiates: %s%s", r.stdout, r.stderr)
			}
		}
	}},
}

// tlsObject is the certificates as programs of qemu are told of them.
func (tr transport) tlsObject() string {
	return "tls-creds-x509,id=tls0,endpoint=client,dir=" + tr.certs
}

// qemuIO returns the arguments that have qemu-io open a volume.
func (tr transport) qemuIO(volume string) []string {
	o := tr.qemu(volume)
	return append(o[:len(o)-1:len(o)-1], "--image-opts", o[len(o)-1])
}

// TestInterop has each client use a volume over each transport, and keeps the table of
// them in the documentation.
func TestInterop(t *testing.T) {
	need(t, "nbdinfo", "nbdcopy", "qemu-io", "qemu-img", "qemu-nbd", "nbdkit", "nbd-client", "fio", "nbdsh")
	ca, s, d := tlsSite(t)
	s.ctl("volume", "set", "mail", "--allow-all")
	d.stop()
	s.edit("mode: require", "mode: allow") // one daemon for all
	d = s.start()
	certs := s.path("client")
	ca.write(certs, "client", "client")
	host, port, _ := net.SplitHostPort(d.tcp)
	transports := []transport{
		{"unix", "", "", "", s.uri, func(v string) []string {
			return []string{"driver=nbd,server.type=unix,server.path=" + s.nbd + ",export=" + v}
		}},
		{"TCP", host, port, "", func(v string) string { return "nbd://" + d.tcp + "/" + v }, func(v string) []string {
			return []string{"driver=nbd,host=" + host + ",port=" + port + ",export=" + v}
		}},
		{"TLS", host, port, certs, func(v string) string { return "nbds://" + d.tcp + "/" + v + "?tls-certificates=" + certs }, func(v string) []string {
			return []string{"--object", transport{certs: certs}.tlsObject(), "driver=nbd,host=" + host + ",port=" + port + ",export=" + v + ",tls-creds=tls0"}
		}},
	}
	n, whole := 0, true
	for _, row := range interopRows {
		for _, tr := range transports {
			if !row.in(tr.name) {
				continue
			}
			n++
			volume := fmt.Sprintf("x%d", n)
			t.Run(row.client+" over "+tr.name, func(t *testing.T) {
				defer func() { whole = whole && !t.Skipped() }()
				s.ctl("volume", "create", volume, "16MiB")
				row.run(t, s, tr, volume)
				s.ctl("volume", "delete", volume, "--force")
			})
		}
	}
	d.stop()
	s.checkPool(true)
	keepTable(t, whole)
}

// keepTable compares the table in the documentation with the rows, and writes it with
// -update if all has passed and, as whole tells, nothing was left out.
func keepTable(t *testing.T, whole bool) {
	t.Helper()
	var b strings.Builder
	b.WriteString("| client | what is checked | Unix | TCP | TLS |\n|---|---|---|---|---|\n")
	for _, row := range interopRows {
		fmt.Fprintf(&b, "| %s | %s |", row.client, row.checks)
		for _, name := range []string{"unix", "TCP", "TLS"} {
			mark := " yes |"
			if !row.in(name) {
				mark = " - |"
			}
			b.WriteString(mark)
		}
		b.WriteString("\n")
	}
	text, err := os.ReadFile(interopDoc)
	if err != nil {
		t.Fatal(err)
	}
	at := regexp.MustCompile(`(?m)(^\|.*\n)+`).FindIndex(text) // the first table is this one
	if at == nil {
		t.Fatalf("there is no table in %s", interopDoc)
	}
	old := string(text[at[0]:at[1]])
	if *update && whole && !t.Failed() {
		versions := interopVersions(t)
		text = []byte(strings.Replace(string(text), old, b.String(), 1))
		text = regexp.MustCompile(`(?m)^Versions: .*$`).ReplaceAllLiteral(text, []byte("Versions: "+versions))
		if err := os.WriteFile(interopDoc, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if old != b.String() {
		t.Errorf("the table of %s is not that of the rows; make interop writes it\n%s", interopDoc, diff(old, b.String()))
	}
}

// interopVersions tells the versions of the clients at hand.
func interopVersions(t *testing.T) string {
	t.Helper()
	number := regexp.MustCompile(`\d+\.\d+(\.\d+)?`)
	var list []string
	for _, p := range []string{"nbdinfo", "qemu-img", "fio", "nbdkit", "nbd-client"} {
		flag := "--version"
		if p == "nbd-client" {
			flag = "-V"
		}
		r := execute(t, os.TempDir(), p, flag)
		list = append(list, p+" "+number.FindString(r.stdout+r.stderr))
	}
	return strings.Join(list, ", ") + "."
}
