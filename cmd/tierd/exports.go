package main

import (
	"errors"
	"fmt"

	"tierd/nbd"
	"tierd/tiering"
)

// exports shows the volumes of a pool to the NBD server.
type exports struct {
	pool     *tiering.Pool
	fallback string // what the empty export name means; "": the only volume
}

// List returns the volumes by name.
func (e *exports) List() []nbd.ExportInfo {
	var infos []nbd.ExportInfo
	for _, v := range e.pool.Volumes() {
		infos = append(infos, e.info(v))
	}
	return infos
}

// Info describes one volume.
func (e *exports) Info(name string) (nbd.ExportInfo, error) {
	v, err := e.find(name)
	if err != nil {
		return nbd.ExportInfo{}, err
	}
	return e.info(v), nil
}

// Open returns a volume for the use of one connection.
func (e *exports) Open(name string) (nbd.Device, error) {
	v, err := e.find(name)
	if err != nil {
		return nil, err
	}
	v.Opened()
	return &device{Volume: v, size: v.Size()}, nil
}

func (e *exports) find(name string) (*tiering.Volume, error) {
	if name == "" {
		name = e.fallback
	}
	if name == "" {
		if all := e.pool.Volumes(); len(all) == 1 {
			return all[0], nil
		}
		return nil, fmt.Errorf("there is no default export: %w", nbd.ErrNoExport)
	}
	v, err := e.pool.Volume(name)
	if errors.Is(err, tiering.ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", err, nbd.ErrNoExport)
	}
	return v, err
}

// info describes a volume. The description carries the continuity id: a client
// that attaches again after a restart can tell by it whether answered data may
// have been lost.
func (e *exports) info(v *tiering.Volume) nbd.ExportInfo {
	return nbd.ExportInfo{
		Name:           v.Name(),
		Description:    fmt.Sprintf("tierd volume %s continuity %s", v.UUID(), e.pool.Continuity()),
		Size:           v.Size(),
		ReadOnly:       v.ReadOnly(),
		Clients:        v.Clients(),
		PreferredBlock: 4096,
	}
}

// device is a volume as one connection sees it: with the size it had when the
// connection was made, since a client does not expect that to change.
type device struct {
	*tiering.Volume
	size int64
}

// Size returns the size at the time of opening.
func (d *device) Size() int64 { return d.size }

// BeginWrite puts a write in line.
func (d *device) BeginWrite(off, n int64) nbd.Mutation { return d.Volume.BeginWrite(off, n) }

// BeginTrim puts a trim in line.
func (d *device) BeginTrim(off, n int64) nbd.Mutation { return d.Volume.BeginTrim(off, n) }

// BeginWriteZeroes puts the zeroing of a range in line.
func (d *device) BeginWriteZeroes(off, n int64, noHole, fast bool) nbd.Mutation {
	return d.Volume.BeginWriteZeroes(off, n, noHole, fast)
}

// Span tells the state of the bytes from off on.
func (d *device) Span(off, n int64) nbd.Span { return nbd.Span(d.Volume.Span(off, n)) }

// Close ends the use by this connection.
func (d *device) Close() error {
	d.Released()
	return nil
}
