package awake

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// spinArgument makes the program one of those that Keep starts.
const spinArgument = "spin"

// Main spins and does not return if the process was started for that.
func Main() {
	if len(os.Args) == 2 && os.Args[1] == spinArgument {
		spin()
		os.Exit(0)
	}
}

// spin does nothing, with all that is left of a processor.
func spin() {
	runtime.LockOSThread()
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); err != nil {
		fmt.Fprintln(os.Stderr, "awake: SCHED_IDLE:", err)
		os.Exit(1)
	}
	for parent := os.Getppid(); ; {
		for range 1 << 24 {
		}
		if os.Getppid() != parent {
			return
		}
	}
}

// Keep keeps the processors from going to sleep, until the function is called that it
// returns.
func Keep(ctx context.Context) (sleep func(), err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var started []*exec.Cmd
	sleep = func() {
		cancel()
		for _, cmd := range started {
			_ = cmd.Wait()
		}
	}
	for range runtime.NumCPU() {
		cmd := exec.CommandContext(ctx, exe, spinArgument)
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			sleep()
			return nil, err
		}
		started = append(started, cmd)
	}
	return sleep, nil
}
