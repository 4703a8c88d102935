package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"tierd/test/faultfs"
)

var (
	kills     = flag.Int("kills", 6, "rounds of the test that kills the daemon under load")
	killCount = flag.Int("kill-cycle", 16, "kills of the kill cycle")
	long      = flag.Bool("long", false, "run what takes longer than a minute, too")
	update    = flag.Bool("update", false, "rewrite the golden files")
	binDir    = flag.String("bin", "", "folder of the programs to test; default: build them")
)

func TestMain(m *testing.M) {
	faultfs.Main()
	flag.Parse()
	os.Exit(run(m))
}

// run builds the programs and runs the tests.
func run(m *testing.M) int {
	if *binDir != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "tierd-bin")
	if err == nil {
		defer os.RemoveAll(dir)
		err = build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	*binDir = dir
	return m.Run()
}

// build puts the programs into dir.
func build(dir string) error {
	args, cgo := []string{"build", "-o", dir + "/"}, "CGO_ENABLED=0"
	if raceDetector {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	}
	cmd := exec.Command("go", append(args, "./cmd/tierd", "./cmd/tierctl")...)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build programs: %w\n%s", err, out)
	}
	return nil
}
