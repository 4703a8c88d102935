package attach

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ReadDevice reads the first block of a device from the server, past the page cache. It
// cannot be interrupted while the server is away, nor can the process that calls it end.
func ReadDevice(device string) error {
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	const block = 4096
	buf := make([]byte, 2*block)
	skip := int(-uintptr(unsafe.Pointer(&buf[0])) & (block - 1))
	_, err = f.ReadAt(buf[skip:skip+block], 0)
	return err
}

// Users returns what keeps a device in use: where it or a partition of it is mounted,
// what is stacked on it, swap. procRoot and sysBlock are /proc and /sys/block.
func Users(procRoot, sysBlock, device string) (users []string, err error) {
	name := filepath.Base(device)
	parts := map[string]bool{device: true}
	dirs, err := filepath.Glob(filepath.Join(sysBlock, name, name+"p*"))
	if err != nil {
		return nil, err
	}
	for _, d := range append(dirs, filepath.Join(sysBlock, name)) {
		parts["/dev/"+filepath.Base(d)] = true
		holders, err := os.ReadDir(filepath.Join(d, "holders"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, h := range holders {
			users = append(users, "used by /dev/"+h.Name())
		}
	}
	for file, say := range map[string]func(f []string) string{
		"mounts": func(f []string) string { return "mounted at " + f[1] },
		"swaps":  func([]string) string { return "used for swap" },
	} {
		f, err := os.Open(filepath.Join(procRoot, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for s := bufio.NewScanner(f); s.Scan(); {
			if f := strings.Fields(s.Text()); len(f) > 1 && parts[f[0]] {
				users = append(users, say(f))
			}
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	for i, u := range users {
		users[i] = fmt.Sprintf("%s is %s", device, u)
	}
	return users, nil
}
