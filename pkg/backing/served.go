package backing

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// OnNBD returns the NBD device of the kernel, such as "/dev/nbd0", that a file or device
// lies on: through partitions, mapped devices, arrays, loop devices and mounted file
// systems; "" if there is none. Nothing is read from a file system that lies on one, not
// even the attributes of the file: if the one who asks is its server, that would never
// end.
func OnNBD(path string) string { return newStack("/").nbd(path) }

// NBDBackend returns what the client of an NBD device says that it is attached to; "" if
// it says nothing.
func NBDBackend(device string) string {
	b, _ := os.ReadFile(filepath.Join("/sys/block", filepath.Base(device), "backend"))
	return strings.TrimSpace(string(b))
}

// A stack finds out what lies on what. Tests have another root than "/" for /proc/self
// and /sys.
type stack struct {
	root string
	seen map[string]bool // devices that have been looked at, and are no answer
}

func newStack(root string) stack { return stack{root, make(map[string]bool)} }

// maxLinks is how many symbolic links are followed, as in the kernel.
const maxLinks = 40

func (s stack) nbd(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	mounts := s.mounts()
	// The path is gone along from its start, so that no step is taken on a file system
	// that has not been looked at.
	done, rest := "/", names(abs)
	for links := 0; ; {
		if dev, ok := mountOf(mounts, done); ok {
			if d := s.under(dev); d != "" {
				return d
			}
		}
		if len(rest) == 0 {
			return ""
		}
		done, rest = filepath.Join(done, rest[0]), rest[1:]
		if dev, ok := mountOf(mounts, done); ok {
			if d := s.under(dev); d != "" {
				return d
			}
		}
		var st unix.Stat_t
		if unix.Lstat(done, &st) != nil {
			return "" // it is yet to be made
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFBLK:
			return s.under(fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
		case unix.S_IFLNK:
			if links++; links > maxLinks {
				return ""
			}
			to, err := os.Readlink(done)
			if err != nil {
				return ""
			}
			if !filepath.IsAbs(to) {
				to = filepath.Join(filepath.Dir(done), to)
			}
			done, rest = "/", append(names(to), rest...)
		}
	}
}

// names returns the names along an absolute path.
func names(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// under returns the NBD device below the block device with a number, "major:minor".
func (s stack) under(dev string) string {
	if s.seen[dev] {
		return ""
	}
	s.seen[dev] = true
	folder, err := filepath.EvalSymlinks(filepath.Join(s.root, "sys/dev/block", dev))
	if err != nil {
		return "" // not a block device: a file system of memory, or of the network
	}
	if _, err := os.Stat(filepath.Join(folder, "partition")); err == nil {
		folder = filepath.Dir(folder)
	}
	if name := filepath.Base(folder); strings.HasPrefix(name, "nbd") {
		return "/dev/" + name
	}
	if file, ok := loopFile(folder); ok {
		return s.nbd(file)
	}
	slaves, _ := filepath.Glob(filepath.Join(folder, "slaves", "*"))
	for _, slave := range slaves {
		b, err := os.ReadFile(filepath.Join(slave, "dev"))
		if err != nil {
			continue
		}
		if d := s.under(strings.TrimSpace(string(b))); d != "" {
			return d
		}
	}
	return ""
}

// A mount is a file system in the tree of folders.
type mount struct{ point, dev string }

// mounts reads the mounted file systems, later ones last. One that is made of several
// devices, and has no number of theirs, counts as lying on the one it was mounted by.
func (s stack) mounts() (list []mount) {
	b, _ := os.ReadFile(filepath.Join(s.root, "proc/self/mountinfo"))
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(b)) {
		before, after, _ := strings.Cut(line, " - ")
		fields, what := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 {
			continue
		}
		m := mount{unescape.Replace(fields[4]), fields[2]}
		if strings.HasPrefix(m.dev, "0:") && len(what) > 1 && strings.HasPrefix(what[1], "/dev/") {
			var st unix.Stat_t
			if unix.Stat(unescape.Replace(what[1]), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
				m.dev = fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
			}
		}
		list = append(list, m)
	}
	return list
}

// mountOf returns the device of the file system that a path without symbolic links is
// on, if it is one that stands for itself or for what is below.
func mountOf(mounts []mount, path string) (dev string, ok bool) {
	best := -1
	for i, m := range mounts {
		if m.point != path && !strings.HasPrefix(path, strings.TrimSuffix(m.point, "/")+"/") {
			continue
		}
		if best < 0 || len(m.point) >= len(mounts[best].point) {
			best = i
		}
	}
	if best < 0 {
		return "", false
	}
	return mounts[best].dev, true
}
