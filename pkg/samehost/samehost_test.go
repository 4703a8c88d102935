package samehost

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain is also the program that protects itself and tells how it went.
func TestMain(m *testing.M) {
	if os.Getenv("SAMEHOST_PROTECT") == "" {
		os.Exit(m.Run())
	}
	for _, r := range Protect() {
		if r.Err != nil {
			fmt.Printf("%s not in force: %v\n", r.Name, r.Err)
			continue
		}
		fmt.Printf("%s in force\n", r.Name)
	}
	threads, _ := filepath.Glob("/proc/self/task/*")
	flusher, _, no := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_GET_IO_FLUSHER, 0, 0, 0, 0, 0)
	fmt.Printf("threads %d flusher %d %v\n", len(threads), flusher, no == 0)
	b, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "VmLck") || strings.HasPrefix(line, "VmRSS") {
			fmt.Print(line)
		}
	}
	b, _ = os.ReadFile("/proc/self/oom_score_adj")
	fmt.Printf("score %s", b)
	// Memory to come can still be had, though much more is mapped than there is.
	p, err := unix.Mmap(-1, 0, 1<<40, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		fmt.Println("mapping a table fails:", err)
		os.Exit(1)
	}
	p[0] = 1
	os.Exit(0)
}

func protected(t *testing.T, wrap ...string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append(wrap, exe)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "SAMEHOST_PROTECT=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

func TestProtect(t *testing.T) {
	out := protected(t)
	for name, bit := range map[string]uint{"memory": unix.CAP_IPC_LOCK, "io_flusher": unix.CAP_SYS_RESOURCE, "oom_score": unix.CAP_SYS_RESOURCE} {
		if !capable(bit) {
			t.Logf("%s: not permitted here", name)
			continue
		}
		cgo := name == "io_flusher" && strings.Contains(out, "not possible in a build with cgo")
		if !strings.Contains(out, name+" in force") && !cgo {
			t.Errorf("%s is not in force:\n%s", name, out)
		}
	}
	// What is said is so.
	if strings.Contains(out, "io_flusher in force") && !strings.Contains(out, "flusher 1 true") {
		t.Errorf("the kernel does not know of io_flusher:\n%s", out)
	}
	if strings.Contains(out, "oom_score in force") && !strings.Contains(out, "score -9") && !strings.Contains(out, "score -1000") {
		t.Errorf("the kernel does not know of oom_score:\n%s", out)
	}
	if strings.Contains(out, "memory in force") && strings.Contains(out, "VmLck:\t       0 kB") {
		t.Errorf("nothing is locked:\n%s", out)
	}
}

// TestProtectWithoutRights: what is not permitted is told, and harms nothing.
func TestProtectWithoutRights(t *testing.T) {
	setpriv, err := exec.LookPath("setpriv")
	if err != nil || os.Geteuid() != 0 {
		t.Skip("root and setpriv are needed to take rights away")
	}
	dir, err := os.MkdirTemp("", "samehost")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	exe, _ := os.Executable()
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, b, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "-c", "ulimit -l 64; exec "+setpriv+" --reuid 65534 --clear-groups --inh-caps=-all "+program)
	cmd.Env = append(os.Environ(), "SAMEHOST_PROTECT=1")
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"memory not in force", "io_flusher not in force", "oom_score not in force"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
}

func TestFailed(t *testing.T) {
	if err := Failed([]Result{{"memory", nil}}); err != nil {
		t.Error(err)
	}
	err := Failed([]Result{{"memory", nil}, {"oom_score", unix.EACCES}})
	if !errors.Is(err, unix.EACCES) || !strings.HasPrefix(err.Error(), "oom_score: ") {
		t.Errorf("got %v", err)
	}
}
