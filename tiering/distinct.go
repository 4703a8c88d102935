package tiering

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
)

// ownFiles are the pool's files beside its backings.
func ownFiles(metadata string) []string {
	return []string{metadata, stagedLogPath(metadata), heatPath(metadata), budgetPath(metadata)}
}

// checkDistinct refuses backings that are one and the same file or device, that are
// one of the pool's own files, or that are a loop device on any of these: the locks
// would find out about the first, and about nothing else. What cannot be looked at
// is left for the opening to complain about.
func checkDistinct(metadata string, paths []string) error {
	type user struct{ path, what string }
	seen := make(map[backing.FileID]user)
	for _, p := range ownFiles(metadata) {
		if id, err := backing.Identify(p); err == nil {
			seen[id] = user{p, "the pool's own file"}
		}
	}
	for _, p := range paths {
		if slices.Contains(ownFiles(metadata), filepath.Clean(p)) {
			return refuse("backing %s is the pool's own file; give it another path", p)
		}
		id, err := backing.Identify(p)
		if err != nil {
			continue
		}
		if other, taken := seen[id]; taken {
			return refuse("backing %s is the same file as %s %s; list it once", p, other.what, other.path)
		}
		seen[id] = user{p, "backing"}
	}
	for _, p := range paths {
		id, err := backing.Identify(p)
		for err == nil {
			under, ok := id.Under()
			if !ok {
				break
			}
			if id, err = backing.Identify(under); err != nil {
				break
			}
			if other, taken := seen[id]; taken {
				return refuse("backing %s is a loop device on %s %s; a pool cannot lie on itself", p, other.what, other.path)
			}
		}
	}
	return nil
}

// checkNewFile refuses to make a backing's file where devices are: the path of a
// device that is not there, or misspelt, would become a file in memory.
func checkNewFile(path string) error {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return nil // the making of the file complains
	}
	if dir = dir + "/"; strings.HasPrefix(dir, "/dev/") && !strings.HasPrefix(dir, "/dev/shm/") {
		return refuse("backing %s does not exist, and no file is made below /dev; is the name of the device right?", path)
	}
	return nil
}

// addSpec adds a backing to a list, unless one of the list is at the same path or is
// reached by another name of it: it would be that one's copy, or in use.
func addSpec(list []BackingSpec, s BackingSpec) []BackingSpec {
	if slices.ContainsFunc(list, func(o BackingSpec) bool { return sameFile(o.Path, s.Path) }) {
		return list
	}
	return append(slices.Clip(list), s)
}

// memberSpecs returns the configured backings and the members that the metadata
// remembers elsewhere.
func memberSpecs(configured []BackingSpec, state *extentmap.State) []BackingSpec {
	specs := configured
	for _, m := range state.Members {
		if m.State == extentmap.MemberForgotten {
			continue
		}
		specs = addSpec(specs, BackingSpec{Path: m.Path, Media: mediaOf(state, m.Tier), Direct: m.Direct, Preallocate: m.Preallocate})
	}
	return specs
}

func mediaOf(state *extentmap.State, tier extent.TierID) backing.Media {
	for _, t := range state.Tiers {
		if t.ID == tier {
			return backing.Media(t.Media)
		}
	}
	return ""
}

// sameFile reports whether two paths lead to the same file or device.
func sameFile(a, b string) bool {
	if a == b {
		return true
	}
	x, err := backing.Identify(a)
	if err != nil {
		return false
	}
	y, err := backing.Identify(b)
	return err == nil && x == y
}

// lockedBy adds to the error of metadata in use who uses them, as far as that is
// known.
func lockedBy(metadata string, err error) error {
	if !errors.Is(err, extentmap.ErrLocked) {
		return err
	}
	if h := backing.Holder(metadata); h != "" {
		return fmt.Errorf("%w, by %s", err, h)
	}
	return err
}
