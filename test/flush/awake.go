package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// spinArgument makes this program one of those that keepAwake starts.
const spinArgument = "spin"

// spin does nothing, with all that is left of a processor.
func spin() {
	runtime.LockOSThread()
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); err != nil {
		fmt.Fprintln(os.Stderr, "flush: SCHED_IDLE:", err)
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

// keepAwake keeps the processors from going to sleep, until the function is called that it
// returns. To wake one takes tens of microseconds in a virtual machine: a client that
// waits for each answer pays that when it is alone, and not beside others, so that the
// machine would be compared and not the server.
func keepAwake(ctx context.Context) (sleep func(), err error) {
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
