package tiering_test

import (
	"context"
	"strings"
	"testing"

	"tierd/pkg/backing"
	"tierd/test/model"
	"tierd/tiering"
)

// TestServedDevices: nothing of a pool may lie on a device that it serves itself, and
// nothing is asked of it before that is known.
func TestServedDevices(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	uuid := e.volume("v1").UUID().String()
	onNBD := map[string]string{} // path to backend
	defer tiering.SetBeneath(func(path string) (device, backend string) {
		backend, on := onNBD[path]
		if !on {
			return "", ""
		}
		return "/dev/nbd0", backend
	})()
	add := func(foreign bool) error {
		_, err := e.Pool.AddBacking(ctx, tiering.AddOptions{Tier: "t0", Backing: tiering.BackingSpec{Path: "/new", Size: 64 << 20, ForeignNBD: foreign}, DryRun: true})
		return err
	}
	onNBD["/new"] = ""
	if err := add(false); err == nil || !strings.Contains(err.Error(), "lies on /dev/nbd0") {
		t.Errorf("backing add: %v", err)
	}
	if err := add(true); err != nil && strings.Contains(err.Error(), "nbd") {
		t.Errorf("backing add with foreign_nbd: %v", err)
	}
	e.Close()

	opens := 0
	e.onOpen = nil
	count := func(o *tiering.Options) {
		inner := o.OpenStore
		o.OpenStore = func(ctx context.Context, spec tiering.BackingSpec, create, readOnly bool) (backing.Store, error) {
			opens++
			return inner(ctx, spec, create, readOnly)
		}
	}
	onNBD[path(1, 0)] = "tierd:" + uuid
	if err := e.tryOpen(count); err == nil || !strings.Contains(err.Error(), "attached to volume v1") || opens != 0 {
		t.Errorf("open with a backing on its own volume: %v, %d stores opened", err, opens)
	}
	onNBD = map[string]string{e.opt.Metadata: ""}
	if err := e.tryOpen(count); err == nil || !strings.Contains(err.Error(), "metadata") || opens != 0 {
		t.Errorf("open with metadata on an NBD device: %v, %d stores opened", err, opens)
	}
	onNBD = map[string]string{path(1, 0): "tierd:00000000-0000-0000-0000-000000000000", path(0, 0): ""}
	if err := e.tryOpen(nil); err != nil {
		t.Errorf("open with backings on devices of other servers: %v", err)
	}
}
