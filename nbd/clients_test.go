package nbd

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// need returns the path of a program, or skips the test.
func need(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("%s is not installed", program)
	}
	if testing.Short() {
		t.Skip("real clients are left out of -short")
	}
	return path
}

func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestNbdinfo(t *testing.T) {
	nbdinfo := need(t, "nbdinfo")
	_, path := serve(t, Config{Exports: threeExports()})
	out := run(t, nbdinfo, "--json", "nbd+unix:///a?socket="+path)
	for _, want := range []string{`"protocol": "newstyle-fixed"`, `"export-size": 1048576`, `"description": "first"`,
		`"can_multi_conn": true`, `"can_flush": true`, `"can_fua": true`, `"can_trim": true`, `"can_zero": true`,
		`"can_fast_zero": true`, `"can_cache": true`, `"can_df": true`, `"is_read_only": false`, `"block_size_preferred": 8192`} {
		if !strings.Contains(out, want) {
			t.Errorf("nbdinfo does not say %s:\n%s", want, out)
		}
	}
	out = run(t, nbdinfo, "--list", "nbd+unix://?socket="+path)
	if got := strings.Count(out, "export="); got != 3 {
		t.Errorf("nbdinfo lists %d exports, want 3:\n%s", got, out)
	}
	out = run(t, nbdinfo, "nbd+unix:///ro?socket="+path)
	if !strings.Contains(out, "is_read_only: true") {
		t.Errorf("nbdinfo does not say that ro is read-only:\n%s", out)
	}
}

func TestNbdcopy(t *testing.T) {
	nbdcopy := need(t, "nbdcopy")
	d := newMemDevice(24 << 20)
	_, path := serveOne(t, d)
	want := fill(make([]byte, len(d.data)), 3)
	clear(want[5<<20 : 9<<20])
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, want, 0o600); err != nil {
		t.Fatal(err)
	}
	uri := "nbd+unix:///a?socket=" + path
	run(t, nbdcopy, "--connections=4", "--flush", in, uri)
	if !bytes.Equal(d.data, want) {
		t.Error("the device holds something else than what was copied there")
	}
	if d.flushes.Load() == 0 {
		t.Error("no flush came")
	}
	d.miss.Store(true) // the way back by workers
	run(t, nbdcopy, "--connections=4", uri, out)
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("what was copied back differs")
	}
}

func TestQemuIO(t *testing.T) {
	qemu := need(t, "qemu-io")
	_, path := serveOne(t, newMemDevice(8<<20))
	out := run(t, qemu, "-f", "raw", "nbd+unix:///a?socket="+path,
		"-c", "write -P 0x11 0 1M", "-c", "write -P 0x22 -f 513 1023", "-c", "read -P 0x22 513 1023",
		"-c", "write -z 4k 64k", "-c", "read -P 0 4k 64k", "-c", "write -z -u 512k 4k", "-c", "read -P 0 512k 4k",
		"-c", "discard 128k 64k", "-c", "read -P 0 128k 64k", "-c", "flush",
		"-c", "aio_write -P 0x33 2M 1M", "-c", "aio_flush", "-c", "read -P 0x33 2M 1M", "-c", "read -P 0x11 0 513")
	if strings.Contains(out, "ailed") || strings.Contains(out, "rror") {
		t.Errorf("qemu-io complains:\n%s", out)
	}
}

func TestFio(t *testing.T) {
	fio := need(t, "fio")
	if out, err := exec.Command(fio, "--enghelp=nbd").CombinedOutput(); err != nil {
		t.Skipf("fio has no nbd engine: %s", out)
	}
	d := newMemDevice(16 << 20)
	_, path := serveOne(t, d)
	run(t, fio, "--name=x", "--ioengine=nbd", "--uri=nbd+unix:///a?socket="+path, "--rw=randrw", "--bsrange=512-128k", "--blockalign=512",
		"--iodepth=32", "--size=16m", "--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--randseed=7", "--output-format=terse")
	if d.begun.Load() == 0 || d.begun.Load() != d.run.Load() {
		t.Errorf("%d changes begun and %d run", d.begun.Load(), d.run.Load())
	}
}
