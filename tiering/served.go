package tiering

import (
	"strings"

	"tierd/pkg/backing"
	"tierd/tiering/extentmap"
)

// beneath returns the NBD device that a path lies on, "" if there is none, and what its
// client says that it is attached to. Tests have another one.
var beneath = func(path string) (device, backend string) {
	if device = backing.OnNBD(path); device != "" {
		backend = backing.NBDBackend(device)
	}
	return device, backend
}

// checkServed refuses metadata and backings of a pool to be made, or a backing to be
// added, that lie on an NBD device: if the pool serves that, each waits for the other.
// Whose device it is nobody can tell for sure, so somebody has to say that it is of
// another server (BackingSpec.ForeignNBD).
func checkServed(metadata string, specs []BackingSpec) error {
	if err := checkMetadataServed(metadata); err != nil {
		return err
	}
	for _, s := range specs {
		if device, _ := beneath(s.Path); device != "" && !s.ForeignNBD {
			return refuse("backing %s lies on %s: if this daemon serves that, each would wait for the other; if another server does, say so with foreign_nbd", s.Path, device)
		}
	}
	return nil
}

// checkMetadataServed refuses metadata on an NBD device.
func checkMetadataServed(metadata string) error {
	if device, _ := beneath(metadata); device != "" {
		return refuse("metadata %s lies on %s, an NBD device: it has to be on a disk of this host, which needs no server", metadata, device)
	}
	return nil
}

// checkServes refuses backings of a pool, before anything is asked of them, that lie on a
// device whose client says that it is attached to a volume of this very pool.
func checkServes(specs []BackingSpec, volumes []extentmap.Volume) error {
	for _, s := range specs {
		device, backend := beneath(s.Path)
		for _, v := range volumes {
			if device != "" && strings.HasSuffix(backend, v.UUID.String()) {
				return refuse("backing %s lies on %s, which is attached to volume %s of this pool: each would wait for the other; detach it first", s.Path, device, v.Name)
			}
		}
	}
	return nil
}
