package samehost

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// oomScore leaves a process that has lost its mind within reach of the kernel.
const oomScore = -900

// A Result is what became of one protection.
type Result struct {
	Name string // memory, io_flusher or oom_score
	Err  error  // nil: it is in force
}

// Protect puts all protections in force that it may. It is meant for the start of a
// program.
func Protect() []Result {
	return []Result{{"memory", lockMemory()}, {"io_flusher", setIOFlusher()}, {"oom_score", setOOMScore()}}
}

// Failed joins the errors of the protections that are not in force; nil if all are.
func Failed(results []Result) error {
	var errs []error
	for _, r := range results {
		if r.Err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", r.Name, r.Err))
		}
	}
	return errors.Join(errs...)
}

// lockMemory keeps in memory what is there. It does nothing where a limit is in force:
// every mapping made later would count against it, those of the Go runtime too, and the
// first that is refused ends the process.
func lockMemory() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return err
	}
	if limit.Cur != unix.RLIM_INFINITY && !capable(unix.CAP_IPC_LOCK) {
		return fmt.Errorf("locked memory is limited to %d bytes, and CAP_IPC_LOCK is missing", limit.Cur)
	}
	return os.NewSyscallError("mlockall", unix.Mlockall(unix.MCL_CURRENT|unix.MCL_FUTURE|unix.MCL_ONFAULT))
}

// capable reports whether the process has a capability.
func capable(bit uint) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	return data[bit/32].Effective&(1<<(bit%32)) != 0
}

// setIOFlusher marks all threads; those to come inherit it. One thread is asked first,
// because all have to give the same answer.
func setIOFlusher() error {
	if err := unix.Prctl(unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_IO_FLUSHER)", err)
	}
	_, _, no := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0, 0)
	if no == syscall.ENOTSUP {
		return errors.New("not possible in a build with cgo")
	}
	if no != 0 {
		return os.NewSyscallError("prctl(PR_SET_IO_FLUSHER)", no)
	}
	return nil
}

func setOOMScore() error {
	const file = "/proc/self/oom_score_adj"
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if now, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && now <= oomScore {
		return nil // who started it has done so
	}
	return os.WriteFile(file, []byte(strconv.Itoa(oomScore)), 0)
}
