package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A machine says under what conditions was measured.
type machine struct {
	Time       string `json:"time"`
	Kernel     string `json:"kernel"`
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	Load       string `json:"load_average"` // before
	LoadAfter  string `json:"load_average_after"`
	FileSystem string `json:"file_system"`
	Commit     string `json:"commit"`
	Go         string `json:"go"`
	Command    string `json:"command"`
	Seed       int64  `json:"seed"`
}

func describe(dir, bin string, seed int64) machine {
	m := machine{
		Time: time.Now().UTC().Format(time.RFC3339), CPU: cpuModel(), Cores: runtime.NumCPU(), Load: loadAverage(),
		FileSystem: fileSystem(dir), Commit: commit(bin), Go: runtime.Version(), Seed: seed,
		Command: strings.TrimSpace("bench " + strings.Join(os.Args[1:], " ")),
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
	}
	return m
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if k, v, ok := strings.Cut(sc.Text(), ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return runtime.GOARCH
}

// loadAverage returns those of 1, 5 and 15 minutes.
func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if f := strings.Fields(string(b)); err == nil && len(f) >= 3 {
		return strings.Join(f[:3], " ")
	}
	return "unknown"
}

func fileSystem(dir string) string {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return "unknown"
	}
	switch fs.Type {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs (not what servers run on)"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	}
	return fmt.Sprintf("%#x", fs.Type)
}

// commit returns what is being measured, as the build named it: the commit, if it
// is one of "make build".
func commit(bin string) string {
	out, err := exec.Command(filepath.Join(bin, "tierd"), "--version").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(strings.TrimPrefix(string(out), "tierd"))
}
