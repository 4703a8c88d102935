package ondisk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"tierd/pkg/backing"
	"tierd/tiering/extent"
)

// VolumeState says whether a volume is in use or being deleted.
type VolumeState uint8

const (
	VolumeActive   VolumeState = iota + 1 // exported
	VolumeDeleting                        // no longer exported; its extents are being unmapped
)

// VolumeRecord is a volume as the backings know it. Name and Policy have at
// most 255 bytes each.
type VolumeRecord struct {
	ID       extent.VolumeID
	UUID     uuid.UUID
	Name     string
	Size     int64 // bytes
	Policy   string
	State    VolumeState
	Created  time.Time // stored in nanoseconds, UTC
	ReadOnly bool

	Reservation int64         // bytes; see extentmap.Volume
	Quota       int64         // bytes
	OnFullWait  time.Duration // stored in nanoseconds
	Clients     string        // at most 32 KiB
}

// VolumeTable is one copy of the volume table.
type VolumeTable struct {
	Generation uint64 // of the metadata it was made from; the higher of two copies is the newer
	NextVolume extent.VolumeID
	Volumes    []VolumeRecord
}

const (
	volumeMagic    = "tierdVT\n"
	maxVolumeTable = 1 << 30
	maxClients     = 32 << 10 // bytes, in a record of at most 64 KiB
)

// WriteVolumeTable writes t over the copy that is not the newest, or over a
// damaged one, and does not sync. To be safe against a cut, sync the backing
// after it and before the next WriteVolumeTable: then one whole copy, old or
// new, is on the backing at every moment.
//
// t.Generation has to be higher than that of the newest copy: any other is
// ErrCorrupt, since a reader would not find it. Only the very same table may be
// written again, as the second try of an interrupted change does. ErrTooLarge:
// the volumes do not fit.
func WriteVolumeTable(ctx context.Context, st backing.Store, l Layout, poolID uuid.UUID, t VolumeTable) error {
	b, err := encodeVolumeTable(t, l.VolumeTableSize, poolID)
	if err != nil {
		return fmt.Errorf("write volume table: %w", err)
	}
	copies := readVolumeCopies(ctx, st, l, poolID)
	if err := errors.Join(copies[0].err, copies[1].err); err != nil {
		return fmt.Errorf("write volume table: %w", err)
	}
	to := 0
	switch a, z := copies[0], copies[1]; {
	case a.state == newer || z.state == newer:
		return fmt.Errorf("write volume table: %w", ErrNewerFormat)
	case a.state == valid && (z.state != valid || a.table.Generation >= z.table.Generation):
		to = 1
	}
	if c := copies[1-to]; c.state == valid && c.table.Generation >= t.Generation {
		if !bytes.Equal(c.raw, b) {
			return fmt.Errorf("write volume table: %w: generation %d is there, to be written is %d", ErrCorrupt, c.table.Generation, t.Generation)
		}
		if copies[to].state != damaged {
			return nil // else nobody would write it anew before the next change
		}
	}
	if err := st.WriteAt(ctx, b, l.VolumeTableOffset[to]); err != nil {
		return fmt.Errorf("write volume table: %w", err)
	}
	return nil
}

// ReadVolumeTable returns the newest valid copy, and an empty table if none
// was ever written. It is ErrCorrupt if something is there and neither copy is
// valid, ErrNewerFormat if a later version wrote one, and the error of the Store if
// no copy is valid and one cannot be read.
func ReadVolumeTable(ctx context.Context, st backing.Store, l Layout, poolID uuid.UUID) (VolumeTable, error) {
	copies := readVolumeCopies(ctx, st, l, poolID)
	best := copies[0]
	if c := copies[1]; c.state == valid && (best.state != valid || c.table.Generation > best.table.Generation) {
		best = c
	}
	switch max(copies[0].state, copies[1].state) {
	case newer:
		return VolumeTable{}, fmt.Errorf("read volume table: %w", ErrNewerFormat)
	case damaged:
		return VolumeTable{}, fmt.Errorf("read volume table: %w", ErrCorrupt)
	case absent:
		if err := errors.Join(copies[0].err, copies[1].err); err != nil {
			return VolumeTable{}, fmt.Errorf("read volume table: %w", err)
		}
	}
	return best.table, nil
}

// volumeCopy is what one of the two places holds.
type volumeCopy struct {
	table VolumeTable // if valid
	raw   []byte      // the whole structure, if valid
	state headState
	err   error // of the Store
}

func readVolumeCopies(ctx context.Context, st backing.Store, l Layout, poolID uuid.UUID) (copies [2]volumeCopy) {
	for i, off := range l.VolumeTableOffset {
		b, state, err := readStructure(ctx, st, off, l.VolumeTableSize, volumeMagic, poolID[:])
		if err != nil {
			copies[i].err = err
			continue
		}
		if state == absent && !allZero(b) {
			state = damaged
		}
		if state == valid {
			if copies[i].table, err = decodeVolumeTable(b); err != nil {
				state = damaged
			}
		}
		copies[i].state, copies[i].raw = state, b
	}
	return copies
}

// encodeVolumeTable returns the bytes of t; see doc.go.
func encodeVolumeTable(t VolumeTable, area int64, poolID uuid.UUID) ([]byte, error) {
	var e encoder
	e.zero(headSize)
	e.u32(uint32(len(t.Volumes)))
	e.u32(uint32(t.NextVolume))
	e.zero(8)
	for _, v := range t.Volumes {
		if err := errors.Join(checkText("volume name", v.Name), checkText("policy", v.Policy)); err != nil {
			return nil, err
		}
		if len(v.Clients) > maxClients {
			return nil, fmt.Errorf("%w: clients of %d bytes, at most %d", ErrTooLarge, len(v.Clients), maxClients)
		}
		e.record(func() {
			e.u32(uint32(v.ID))
			e.u8(uint8(v.State))
			e.u8(map[bool]uint8{true: 1}[v.ReadOnly])
			e.uuid(v.UUID)
			e.i64(v.Size)
			e.i64(unixNano(v.Created))
			e.text(v.Name)
			e.text(v.Policy)
			if v.Reservation != 0 || v.Quota != 0 || v.OnFullWait != 0 || v.Clients != "" {
				e.i64(v.Reservation)
				e.i64(v.Quota)
				e.i64(int64(v.OnFullWait))
			}
			if v.Clients != "" {
				e.u16(uint16(len(v.Clients)))
				e.b = append(e.b, v.Clients...)
			}
		})
	}
	n := roundUp(len(e.b))
	if int64(n) > area {
		return nil, fmt.Errorf("%w: volume table of %d volumes has %d bytes, room is for %d", ErrTooLarge, len(t.Volumes), n, area)
	}
	b := alignedBytes(n)
	copy(b, e.b)
	sealHead(b, volumeMagic, t.Generation, poolID[:])
	return b, nil
}

// decodeVolumeTable decodes a structure whose head is valid.
func decodeVolumeTable(b []byte) (VolumeTable, error) {
	h, _ := parseHead(b, volumeMagic, maxVolumeTable)
	t := VolumeTable{Generation: h.generation}
	d := &decoder{b: b[headSize:]}
	n := d.u32()
	t.NextVolume = extent.VolumeID(d.u32())
	d.take(8)
	for i := uint32(0); i < n && !d.short; i++ {
		d.record(func(r *decoder) {
			v := VolumeRecord{ID: extent.VolumeID(r.u32()), State: VolumeState(r.u8()), ReadOnly: r.u8() != 0}
			v.UUID, v.Size, v.Created = r.uuid(), r.i64(), fromUnixNano(r.i64())
			v.Name, v.Policy = r.text(), r.text()
			if len(r.b) > 0 {
				v.Reservation, v.Quota, v.OnFullWait = r.i64(), r.i64(), time.Duration(r.i64())
			}
			if len(r.b) > 0 {
				v.Clients = string(r.take(int(r.u16())))
			}
			t.Volumes = append(t.Volumes, v)
		})
	}
	if d.short {
		return VolumeTable{}, fmt.Errorf("%w: volume table: records end too soon", ErrCorrupt)
	}
	return t, nil
}

// unixNano stores the zero Time as 0.
func unixNano(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromUnixNano(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}
