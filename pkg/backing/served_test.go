package backing

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A tree is a made-up machine: /proc/self/mountinfo and /sys.
type tree struct {
	t    *testing.T
	root string
}

func (r tree) file(name, text string) {
	r.t.Helper()
	p := filepath.Join(r.root, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// disk makes a device with a number, in /sys/devices/block/NAME.
func (r tree) disk(name, dev string, slaves ...string) {
	r.t.Helper()
	r.file("sys/devices/"+name+"/dev", dev+"\n")
	link := filepath.Join(r.root, "sys/dev/block", dev)
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(r.root, "sys/devices", name), link); err != nil {
		r.t.Fatal(err)
	}
	for _, s := range slaves {
		p := filepath.Join(r.root, "sys/devices", name, "slaves", filepath.Base(s))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(r.root, "sys/devices", s), p); err != nil {
			r.t.Fatal(err)
		}
	}
}

func TestOnNBD(t *testing.T) {
	r := tree{t, t.TempDir()}
	real := t.TempDir() // where the paths are that are gone along
	r.disk("sda", "8:0")
	r.disk("sda/sda1", "8:1")
	r.file("sys/devices/sda/sda1/partition", "1\n")
	r.disk("nbd0", "43:0")
	r.disk("nbd0/nbd0p1", "43:1")
	r.file("sys/devices/nbd0/nbd0p1/partition", "1\n")
	r.disk("nbd1", "43:32")
	r.disk("dm-0", "253:0", "sda/sda1")
	r.disk("dm-1", "253:1", "sda/sda1", "nbd1")
	r.disk("md0", "9:0", "dm-1")
	r.disk("loop0", "7:0")
	r.file("sys/devices/loop0/loop/backing_file", real+"/onnbd/image\n")
	r.disk("loop1", "7:1")
	r.file("sys/devices/loop1/loop/backing_file", real+"/plain/image\n")
	r.disk("loop2", "7:2")
	r.file("sys/devices/loop2/loop/backing_file", real+"/onloop/image\n") // on itself
	r.disk("dm-2", "253:2", "loop0")

	mounts := "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n" +
		"21 20 0:50 / /layers rw - overlay overlay rw,lowerdir=" + strings.Repeat("/layer:", 20000) + "\n"
	for i, m := range []struct{ point, dev string }{
		{"plain", "8:1"}, {"onnbd", "43:1"}, {"onmd", "9:0"}, {"onmapped", "253:0"}, {"onloop", "7:2"}, {"ondm2", "253:2"}, {"memory", "0:40"}, {"with space", "43:32"},
	} {
		point := filepath.Join(real, m.point)
		if err := os.MkdirAll(filepath.Join(point, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		escaped := ""
		for _, c := range point {
			if c == ' ' {
				escaped += `\040`
			} else {
				escaped += string(c)
			}
		}
		mounts += fmt.Sprintf("%d 20 %s / %s rw shared:1 - ext4 /dev/x rw\n", 30+i, m.dev, escaped)
	}
	r.file("proc/self/mountinfo", mounts)
	link := func(name, to string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(real, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("abs", filepath.Join(real, "onnbd/sub"))
	link("plain/rel", "../onnbd")
	link("round", "round")
	link("top", "/")
	link("slashes", real+"//onnbd/")

	for path, want := range map[string]string{
		"plain/image":                 "",
		"plain/sub/yet/to/be":         "",
		"onnbd/image":                 "/dev/nbd0",
		"onnbd/sub/yet/to/be":         "/dev/nbd0",
		"onmd/image":                  "/dev/nbd1",
		"onmapped/image":              "",
		"onloop/image":                "",
		"ondm2/image":                 "/dev/nbd0",
		"memory/image":                "",
		"with space/image":            "/dev/nbd1",
		"abs/image":                   "/dev/nbd0",
		"plain/rel/image":             "/dev/nbd0",
		"round/image":                 "",
		"top" + real + "/onnbd/image": "/dev/nbd0",
		"slashes/image":               "/dev/nbd0",
	} {
		if got := newStack(r.root).nbd(filepath.Join(real, path)); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
	for dev, want := range map[string]string{"43:0": "/dev/nbd0", "43:1": "/dev/nbd0", "9:0": "/dev/nbd1", "7:0": "/dev/nbd0", "7:1": "", "7:2": "", "8:1": "", "99:9": ""} {
		if got := newStack(r.root).under(dev); got != want {
			t.Errorf("device %s: got %q, want %q", dev, got, want)
		}
	}
	// The node of a device, wherever it is.
	if unix.Mknod(filepath.Join(real, "node"), unix.S_IFBLK|0o600, int(unix.Mkdev(43, 0))) == nil {
		if got := newStack(r.root).nbd(filepath.Join(real, "node")); got != "/dev/nbd0" {
			t.Errorf("a device node: got %q", got)
		}
	}
}

// TestOnNBDHere: files of this test are on none.
func TestOnNBDHere(t *testing.T) {
	if got := OnNBD(filepath.Join(t.TempDir(), "x")); got != "" {
		t.Skipf("the folder of temporary files is on %s", got)
	}
}
