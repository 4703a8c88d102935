package backing

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A FileID tells one file or device from another, whatever path it is reached by:
// symbolic and hard links and device nodes with several names have the same.
type FileID struct {
	device   bool
	dev, ino uint64 // of a device: its number, and 0
}

// Identify returns the FileID of what is at path.
func Identify(path string) (FileID, error) {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Stat(path, &st) }); err != nil {
		return FileID{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fileID(&st), nil
}

func fileID(st *unix.Stat_t) FileID {
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return FileID{device: true, dev: st.Rdev}
	}
	return FileID{dev: st.Dev, ino: st.Ino}
}

// Under returns the file that a loop device is attached to, and false for all other
// files and devices.
func (id FileID) Under() (path string, ok bool) {
	if !id.device {
		return "", false
	}
	return loopFile(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(id.dev), unix.Minor(id.dev)))
}

// loopFile returns the file under the loop device with a folder in sysfs.
func loopFile(folder string) (string, bool) {
	b, err := os.ReadFile(filepath.Join(folder, "loop/backing_file"))
	if err != nil {
		return "", false
	}
	path := strings.TrimSuffix(string(b), "\n")
	return path, path != ""
}

// attachedLoop returns the loop device that is attached to a file, or "". A loop
// device takes no lock on its file.
func attachedLoop(id FileID) string {
	folders, _ := filepath.Glob("/sys/block/loop*")
	for _, folder := range folders {
		path, ok := loopFile(folder)
		if !ok {
			continue
		}
		if other, err := Identify(path); err == nil && other == id {
			return "/dev/" + filepath.Base(folder)
		}
	}
	return ""
}

// Holder names the process that holds a lock on what is at path: "tierd, process
// 123". It is a help for messages: "" if that cannot be found out.
func Holder(path string) string {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return ""
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return ""
	}
	defer f.Close()
	// Lines are "1: FLOCK  ADVISORY  WRITE 708 08:01:1234 0 EOF".
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		field := strings.Fields(lines.Text())
		if len(field) < 6 || field[5] != want {
			continue
		}
		pid, err := strconv.Atoi(field[4])
		if err != nil || pid <= 0 || pid == os.Getpid() {
			continue // another namespace's, a lock of no process, or ours
		}
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			continue
		}
		return fmt.Sprintf("%s, process %d", strings.TrimSpace(string(name)), pid)
	}
	return ""
}
