package tiering

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"tierd/pkg/units"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
	"tierd/tiering/mutant"
)

const (
	// volumeGrain is what volume sizes are multiples of: the largest logical
	// block size that clients use.
	volumeGrain = 4096
	// maxVolumeName is the longest name in bytes.
	maxVolumeName = 255
	// deleteSlice is how many extents of a deleted volume are unmapped per commit.
	deleteSlice = 4096
)

// checkVolumeName refuses names that clients, paths or logs could stumble over.
func checkVolumeName(name string) error {
	switch {
	case name == "":
		return invalid("volume name is empty")
	case len(name) > maxVolumeName:
		return invalid("volume name of %d bytes: at most %d are allowed", len(name), maxVolumeName)
	case !utf8.ValidString(name):
		return invalid("volume name %q is not valid UTF-8", name)
	case strings.ContainsRune(name, '/'):
		return invalid("volume name %q has a slash", name)
	case strings.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) }):
		return invalid("volume name %q has a control character", name)
	}
	return nil
}

// maxVolumeExtents bounds what a volume takes that nothing was ever written to: 128
// GiB of the address space for its table, and a moment to map that.
const maxVolumeExtents = 1 << 34

func checkVolumeSize(bytes int64, size extent.Size) error {
	if bytes <= 0 || bytes%volumeGrain != 0 {
		return invalid("volume size %d: must be a positive multiple of %d bytes", bytes, volumeGrain)
	}
	if most := maxVolumeExtents * size.Bytes(); bytes > most {
		return invalid("volume size %d: with extents of %v a volume has at most %v", bytes, units.Size(size.Bytes()), units.Size(most))
	}
	return nil
}

// newVolumeRecord checks a volume to be made and returns its record.
func newVolumeRecord(s *extentmap.State, size extent.Size, spec VolumeSpec, now time.Time, tiers []string) (extentmap.Volume, error) {
	var none extentmap.Volume
	if err := checkVolumeName(spec.Name); err != nil {
		return none, err
	}
	if err := checkVolumeSize(spec.Size, size); err != nil {
		return none, fmt.Errorf("volume %s: %w", spec.Name, err)
	}
	policy, err := parsePolicy(spec.Policy, tiers)
	if err != nil {
		return none, fmt.Errorf("volume %s: %w", spec.Name, err)
	}
	if err := spec.Space.check(spec.Size, size); err != nil {
		return none, fmt.Errorf("volume %s: %w", spec.Name, err)
	}
	clients, err := clientsRecord(spec.Clients)
	if err != nil {
		return none, fmt.Errorf("volume %s: %w", spec.Name, err)
	}
	for _, v := range s.Volumes {
		if v.Name == spec.Name && v.State == extentmap.VolumeActive {
			return none, fmt.Errorf("volume %s: %w", spec.Name, ErrExists)
		}
	}
	id := s.Pool.NextVolume
	if mutant.On(mutant.VolumeIDsReused) {
		for id = 1; slices.ContainsFunc(s.Volumes, func(v extentmap.Volume) bool { return v.ID == id }); id++ {
		}
	}
	return extentmap.Volume{
		ID: id, UUID: uuid.New(), Name: spec.Name, Size: spec.Size, Policy: policy.String(),
		State: extentmap.VolumeActive, Created: now.UTC().Truncate(time.Second),
		Reservation: spec.Reservation, Quota: spec.Quota, OnFullWait: spec.OnFullWait, Clients: clients,
	}, nil
}

// maxClients bounds the clients that a volume may name, and the bytes of a name.
const maxClients, maxClientName = 64, 255

// clientsRecord checks names of clients and returns them as they are recorded.
func clientsRecord(names []string) (string, error) {
	if len(names) > maxClients {
		return "", invalid("a volume can name at most %d clients (got %d)", maxClients, len(names))
	}
	for i, name := range names {
		switch {
		case name == "" || len(name) > maxClientName || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
			return "", invalid("client name %q: must have 1 to %d bytes of text", name, maxClientName)
		case slices.Contains(names[:i], name):
			return "", invalid("client name %q: is there twice", name)
		}
	}
	return strings.Join(names, "\n"), nil
}

// clientsOf is the inverse of clientsRecord.
func clientsOf(record string) []string {
	if record == "" {
		return nil
	}
	return strings.Split(record, "\n")
}

func tierNames(tiers []*tier) []string {
	names := make([]string, len(tiers))
	for i, t := range tiers {
		names[i] = t.name
	}
	return names
}

// newVolume makes a volume of the metadata usable, with an empty table.
func (p *Pool) newVolume(r extentmap.Volume) (*Volume, error) {
	policy, err := parsePolicy(r.Policy, tierNames(p.ranks()))
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", r.Name, err)
	}
	n := p.size.Count(r.Size)
	table, err := extentmap.NewTable(n)
	if err != nil {
		return nil, fmt.Errorf("volume %s: make extent table: %w", r.Name, err)
	}
	v := &Volume{pool: p, id: r.ID, uuid: r.UUID, table: table, heat: p.heat.AddVolume(r.ID, n), name: r.Name, policy: policy, clients: clientsOf(r.Clients), record: r}
	v.settling.moves = make(chan struct{}, maxSettling)
	v.size.Store(r.Size)
	space := spaceOf(r)
	v.space.Store(&space)
	v.readOnly.Store(r.ReadOnly)
	v.gone.Store(r.State == extentmap.VolumeDeleting)
	v.rounds.run = v.round
	return v, nil
}

// publish makes v known under its name.
func (p *Pool) publish(v *Volume) {
	p.space.note(v)
	p.volMu.Lock()
	defer p.volMu.Unlock()
	p.byID[v.id] = v
	if !v.gone.Load() {
		p.byName[v.Name()] = v
	}
}

// commitVolumes commits a change of the volumes and records it on the backings. It
// is answered only after both. An error means that the change is not in force.
func (p *Pool) commitVolumes(c *extentmap.Changes) error {
	edit := c.Pool
	c.Pool = func(r *extentmap.PoolRecord) {
		r.VolumeGeneration++
		if edit != nil {
			edit(r)
		}
	}
	if _, err := p.commitNow(c); err != nil {
		return fmt.Errorf("commit volume: %w", err)
	}
	p.writeVolumeTables()
	return nil
}

// CreateVolume makes a volume. With dryRun it only says whether that would work.
func (p *Pool) CreateVolume(ctx context.Context, spec VolumeSpec, dryRun bool) error {
	p.adminMu.Lock()
	defer p.adminMu.Unlock()
	if err := p.changeable(ctx); err != nil {
		return err
	}
	state := p.db.State()
	r, err := newVolumeRecord(&state, p.size, spec, p.clock.Now(), tierNames(p.ranks()))
	if err != nil {
		return err
	}
	v, err := p.newVolume(r)
	if err != nil {
		return err
	}
	if spec.Reservation > 0 {
		p.space.note(v) // before it is looked at whether there is room, which others would take
		if err = p.checkReservation(v, spec.Reservation); err != nil {
			err = fmt.Errorf("volume %s: %w", spec.Name, err)
		}
	}
	if err == nil && !dryRun {
		err = p.commitVolumes(&extentmap.Changes{
			Volumes: []extentmap.Volume{r},
			Pool:    func(pr *extentmap.PoolRecord) { pr.NextVolume = max(pr.NextVolume, r.ID+1) },
		})
	}
	if err != nil || dryRun {
		p.space.forget(v)
		p.heat.DropVolume(v.id)
		_ = v.table.Close()
		return err
	}
	p.publish(v)
	p.log.Info("volume created", "volume", r.Name, "size", r.Size, "policy", r.Policy)
	return nil
}

// change commits an edit of a volume's record and applies it.
func (p *Pool) change(ctx context.Context, name string, dryRun bool, edit func(*Volume, *extentmap.Volume) error, apply func(*Volume)) error {
	p.adminMu.Lock()
	defer p.adminMu.Unlock()
	if err := p.changeable(ctx); err != nil {
		return err
	}
	v, err := p.Volume(name)
	if err != nil {
		return err
	}
	v.mu.Lock()
	r := v.record
	v.mu.Unlock()
	if err := edit(v, &r); err != nil || dryRun {
		return err
	}
	if r.State == extentmap.VolumeDeleting && mutant.On(mutant.DeleteInMemory) {
		apply(v)
		return nil
	}
	if err := p.commitVolumes(&extentmap.Changes{Volumes: []extentmap.Volume{r}}); err != nil {
		return err
	}
	v.mu.Lock()
	v.record = r
	v.mu.Unlock()
	apply(v)
	return nil
}

// GrowVolume makes a volume larger. Connections see the new size when they are
// made anew.
func (p *Pool) GrowVolume(ctx context.Context, name string, bytes int64, dryRun bool) error {
	return p.change(ctx, name, dryRun, func(v *Volume, r *extentmap.Volume) error {
		if err := checkVolumeSize(bytes, p.size); err != nil {
			return err
		}
		if bytes < r.Size {
			return invalid("volume %s has %d bytes and cannot shrink to %d", name, r.Size, bytes)
		}
		r.Size = bytes
		if dryRun {
			return nil
		}
		if err := v.table.Grow(p.size.Count(bytes)); err != nil {
			return fmt.Errorf("grow extent table: %w", err)
		}
		p.heat.GrowVolume(v.id, p.size.Count(bytes))
		return nil
	}, func(v *Volume) {
		v.size.Store(bytes)
		p.log.Info("volume grown", "volume", name, "size", bytes)
	})
}

// RenameVolume gives a volume another name.
func (p *Pool) RenameVolume(ctx context.Context, name, to string, dryRun bool) error {
	return p.change(ctx, name, dryRun, func(v *Volume, r *extentmap.Volume) error {
		if err := checkVolumeName(to); err != nil {
			return err
		}
		if _, err := p.Volume(to); err == nil {
			return fmt.Errorf("volume %s: %w", to, ErrExists)
		}
		r.Name = to
		return nil
	}, func(v *Volume) {
		v.mu.Lock()
		v.name = to
		v.mu.Unlock()
		p.volMu.Lock()
		delete(p.byName, name)
		p.byName[to] = v
		p.volMu.Unlock()
		p.log.Info("volume renamed", "volume", name, "to", to)
	})
}

// SetPolicy changes where a volume's extents are wanted. What is already placed
// follows with the next plan, for which Replan asks.
func (p *Pool) SetPolicy(ctx context.Context, name, policy string, dryRun bool) error {
	var pol Policy
	return p.change(ctx, name, dryRun, func(v *Volume, r *extentmap.Volume) (err error) {
		pol, err = parsePolicy(policy, tierNames(p.ranks()))
		r.Policy = pol.String()
		return err
	}, func(v *Volume) {
		v.mu.Lock()
		v.policy = pol
		v.mu.Unlock()
		p.log.Info("volume policy set", "volume", name, "policy", pol.String())
	})
}

// SetReadOnly makes a volume refuse changes, or take them again.
func (p *Pool) SetReadOnly(ctx context.Context, name string, readOnly, dryRun bool) error {
	return p.change(ctx, name, dryRun, func(v *Volume, r *extentmap.Volume) error {
		r.ReadOnly = readOnly
		return nil
	}, func(v *Volume) { v.readOnly.Store(readOnly) })
}

// SetClients names the clients that may use a volume, by their certificates; none:
// everybody may. Those that are connected stay.
func (p *Pool) SetClients(ctx context.Context, name string, clients []string, dryRun bool) error {
	return p.change(ctx, name, dryRun, func(v *Volume, r *extentmap.Volume) (err error) {
		r.Clients, err = clientsRecord(clients)
		return err
	}, func(v *Volume) {
		v.mu.Lock()
		v.clients = clients
		v.mu.Unlock()
		p.log.Info("clients of volume set", "volume", name, "clients", clients)
	})
}

// DeleteVolume deletes a volume. That is durable when it returns; the space comes
// back in the background, and after a restart if need be. A volume in use is
// refused without force.
func (p *Pool) DeleteVolume(ctx context.Context, name string, force, dryRun bool) error {
	return p.change(ctx, name, dryRun, func(v *Volume, r *extentmap.Volume) error {
		if n := v.opens.Load(); n > 0 && !force {
			return busy("volume %s has %d connections", name, n)
		}
		r.State = extentmap.VolumeDeleting
		return nil
	}, func(v *Volume) {
		v.gone.Store(true)
		p.volMu.Lock()
		delete(p.byName, name)
		p.volMu.Unlock()
		p.freed.broadcast() // its writes that wait for room end
		p.log.Info("volume deleted", "volume", name)
		p.wg.Go(func() { p.reclaim(v) })
	})
}

// reclaim gives back the space of a deleted volume in commits of bounded size, and
// forgets the volume at the end.
func (p *Pool) reclaim(v *Volume) {
	ctx := p.ctx
	if v.quiesce(ctx) != nil {
		return // goes on at the next open
	}
	// Only where something was ever mapped: most of a thin volume is not there.
	var starts []extent.Index
	v.table.Range(func(i extent.Index, e extent.Entry) bool {
		if k := len(starts); (e.Mapped() || e.Staged()) && (k == 0 || i >= starts[k-1]+deleteSlice) {
			starts = append(starts, i)
		}
		return true
	})
	for _, first := range starts {
		if ctx.Err() != nil {
			return // goes on at the next open
		}
		last := min(first+deleteSlice, v.table.Len())
		if err := v.dropExtents(ctx, first, last); err != nil {
			if ctx.Err() == nil {
				p.log.Error("space of a deleted volume is not given back before the next start", "volume", v.Name(), "error", err)
			}
			return
		}
	}
	p.adminMu.Lock()
	defer p.adminMu.Unlock()
	err := p.commitVolumes(&extentmap.Changes{DropVolumes: []extent.VolumeID{v.id}, Pool: func(r *extentmap.PoolRecord) {
		forgetLost(r, 0, v.id)
	}})
	if err != nil {
		p.log.Error("deleted volume is not forgotten before the next start", "volume", v.Name(), "error", err)
		return
	}
	p.volMu.Lock()
	delete(p.byID, v.id)
	p.volMu.Unlock()
	v.rounds.drain()
	p.space.forget(v)
	p.heat.DropVolume(v.id)
	// The table stays mapped: a request that came before the deletion may still
	// look at it. It is a few untouched pages.
}
