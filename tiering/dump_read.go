package tiering

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"strings"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
)

// Errors of ReadDump, within a DumpError.
var (
	// ErrDumpTruncated is returned when a dump ends before its last line.
	ErrDumpTruncated = errors.New("the dump is cut short")
	// ErrDumpVersion is returned for a dump that needs a later program.
	ErrDumpVersion = errors.New("the dump is of a later version")
	// ErrDumpChecksum is returned when a dump is not what was written.
	ErrDumpChecksum = errors.New("the checksum does not match: the dump was changed after it was written")
)

// ReadDump reads a dump and calls the functions of v. A dump that is damaged, cut
// short or makes no sense is a *DumpError, which says where; an error of v comes
// as it is. Memory is bounded by the number of volumes and backings, and by a bit
// for each slot that the dump maps.
func ReadDump(r io.Reader, v DumpVisitor) error {
	d := &dumpReader{r: bufio.NewReaderSize(r, maxDumpLine), v: v}
	for !d.ended {
		b, err := d.next()
		if err != nil {
			return err
		}
		before := d.crc
		d.crc = crc32.Update(d.crc, dumpCRC, b)
		if err := d.take(b, before); err != nil {
			return err
		}
	}
	switch _, err := d.r.ReadByte(); {
	case err == io.EOF:
		return nil
	case err != nil:
		return fmt.Errorf("read dump: %w", err)
	}
	d.line++
	return d.fail("", errors.New("there is something behind the end"))
}

// IsDump reports whether a file begins as a dump does. The error is that of reading.
func IsDump(r io.Reader) (bool, error) {
	b, err := bufio.NewReader(io.LimitReader(r, maxDumpLine)).ReadBytes('\n')
	if err != nil && err != io.EOF {
		return false, err
	}
	var h dumpLine
	return json.Unmarshal(b, &h) == nil && h.Type == "header" && h.Format == dumpFormat, nil
}

// dumpStage is how far a dump has been read: lines of a type come together.
type dumpStage int

const (
	stageHeader dumpStage = iota
	stagePool
	stageTiers
	stageMembers
	stageVolumes
	stageMap
	stageHeat
	stageEnd
)

var dumpStages = map[string]dumpStage{
	"header": stageHeader, "pool": stagePool, "tier": stageTiers, "member": stageMembers,
	"volume": stageVolumes, "map": stageMap, "heat": stageHeat, "end": stageEnd,
}

type dumpReader struct {
	r     *bufio.Reader
	v     DumpVisitor
	line  int64 // number of the line that was read last
	crc   uint32
	stage dumpStage
	ended bool
	told  bool // State has been called

	state   extentmap.State
	size    extent.Size
	slots   map[extent.BackingID]uint32
	counts  map[extent.VolumeID]extent.Index // extents of each volume
	extents int64
	used    map[extent.BackingID]*slotSet
	of      extent.VolumeID // of the last run
	from    extent.Index    // lowest extent of the next one
}

func (d *dumpReader) fail(path string, err error) error {
	return &DumpError{Line: d.line, Path: path, Err: err}
}

func (d *dumpReader) failf(path, format string, args ...any) error {
	return d.fail(path, fmt.Errorf(format, args...))
}

// next returns the next line, with its end.
func (d *dumpReader) next() ([]byte, error) {
	b, err := d.r.ReadSlice('\n')
	d.line++
	switch {
	case err == nil:
		return b, nil
	case err == io.EOF:
		return nil, d.fail("", ErrDumpTruncated)
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, d.failf("", "it has more than %d bytes", maxDumpLine)
	}
	return nil, fmt.Errorf("read dump: %w", err)
}

// take reads one line; before is the CRC of all those before it.
func (d *dumpReader) take(b []byte, before uint32) error {
	if d.line == 1 {
		if err := d.header(b); err != nil {
			return err
		}
	}
	var l dumpLine
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&l); err != nil {
		return d.syntax(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return d.failf("", "it has more than one object")
	}
	stage, ok := dumpStages[l.Type]
	switch {
	case !ok:
		return d.failf("type", "unknown type %q", l.Type)
	case stage < d.stage, stage > d.stage && stage <= stagePool && stage != d.stage+1, stage > stagePool && d.stage < stagePool,
		stage == d.stage && stage <= stagePool && d.line > 1:
		return d.failf("type", "%s is out of order", l.Type)
	}
	d.stage = stage
	if stage > stageVolumes && !d.told {
		if err := d.tell(); err != nil {
			return err
		}
	}
	switch stage {
	case stagePool:
		return d.pool(l.Pool)
	case stageTiers:
		return d.tier(l.Tier)
	case stageMembers:
		return d.member(l.Member)
	case stageVolumes:
		return d.volume(l.Volume)
	case stageMap:
		return d.runs(l.Of, l.Runs)
	case stageHeat:
		return d.heat(l.Data)
	case stageEnd:
		return d.end(b, l, before)
	}
	return nil
}

// syntax gives an error of the decoder its place in the line.
func (d *dumpReader) syntax(err error) error {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		return d.failf(typ.Field, "it is a %s", typ.Value)
	}
	return d.fail("", errors.New(strings.TrimPrefix(err.Error(), "json: ")))
}

// header looks at the first line before its fields are known: a later version may
// have others.
func (d *dumpReader) header(b []byte) error {
	var h struct {
		Type    string `json:"type"`
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(b, &h); err != nil || h.Type != "header" || h.Format != dumpFormat {
		return d.failf("", "this is not a dump of a pool")
	}
	switch {
	case h.Version > DumpVersion:
		return d.fail("version", fmt.Errorf("%w: %d, known is %d", ErrDumpVersion, h.Version, DumpVersion))
	case h.Version < 1:
		return d.failf("version", "%d is none", h.Version)
	}
	return nil
}

func (d *dumpReader) pool(p *extentmap.PoolRecord) error {
	if p == nil {
		return d.failf("pool", "it is missing")
	}
	size, err := extent.NewSize(p.ExtentSize)
	switch {
	case err != nil:
		return d.fail("pool.extent_size", err)
	case p.FormatVersion == 0:
		return d.failf("pool.format_version", "it is missing")
	case p.FormatVersion > extentmap.FormatVersion:
		return d.failf("pool.format_version", "%d is newer than this program, which knows %d", p.FormatVersion, extentmap.FormatVersion)
	case p.State != extentmap.PoolActive:
		return d.failf("pool.state", "the creation of the pool was not finished")
	case p.NextBacking > extent.MaxBackingID+1:
		return d.failf("pool.next_backing", "%d is more than there can be", p.NextBacking)
	}
	d.state.Pool, d.size = *p, size
	return nil
}

func (d *dumpReader) tier(t *extentmap.TierRecord) error {
	if t == nil {
		return d.failf("tier", "it is missing")
	}
	if n := len(d.state.Tiers); n > 0 && d.state.Tiers[n-1].ID >= t.ID {
		return d.failf("tier.id", "%d is out of order", t.ID)
	}
	for _, o := range d.state.Tiers {
		if o.Name == t.Name {
			return d.failf("tier.name", "%q is there twice", t.Name)
		}
	}
	d.state.Tiers = append(d.state.Tiers, *t)
	return nil
}

func (d *dumpReader) member(m *extentmap.Member) error {
	if m == nil {
		return d.failf("member", "it is missing")
	}
	known := false
	for _, t := range d.state.Tiers {
		known = known || t.ID == m.Tier
	}
	n := len(d.state.Members)
	switch {
	case m.ID == 0 || m.ID > extent.MaxBackingID:
		return d.failf("member.id", "%d is none", m.ID)
	case n > 0 && d.state.Members[n-1].ID >= m.ID:
		return d.failf("member.id", "%d is out of order", m.ID)
	case m.ID >= d.state.Pool.NextBacking:
		return d.failf("member.id", "%d was never given out", m.ID)
	case !known:
		return d.failf("member.tier", "there is no tier %d", m.Tier)
	case m.Size < 0 || int64(m.Slots) > m.Size/d.size.Bytes():
		return d.failf("member.slots", "%d do not fit into %d bytes", m.Slots, m.Size)
	case m.Incarnation > d.state.Pool.Incarnation:
		return d.failf("member.incarnation", "%d is newer than the pool's, %d", m.Incarnation, d.state.Pool.Incarnation)
	}
	if _, err := m.State.MarshalText(); err != nil {
		return d.fail("member.state", err)
	}
	for _, o := range d.state.Members {
		if o.UUID == m.UUID {
			return d.failf("member.uuid", "%s is there twice", m.UUID)
		}
	}
	d.state.Members = append(d.state.Members, *m)
	return nil
}

func (d *dumpReader) volume(v *extentmap.Volume) error {
	if v == nil {
		return d.failf("volume", "it is missing")
	}
	n := len(d.state.Volumes)
	if d.counts == nil {
		d.counts = make(map[extent.VolumeID]extent.Index)
	}
	switch {
	case v.ID == 0:
		return d.failf("volume.id", "0 is none")
	case n > 0 && d.state.Volumes[n-1].ID >= v.ID:
		return d.failf("volume.id", "%d is out of order", v.ID)
	case v.ID >= d.state.Pool.NextVolume:
		return d.failf("volume.id", "%d was never given out", v.ID)
	}
	if _, err := v.State.MarshalText(); err != nil {
		return d.fail("volume.state", err)
	}
	if err := checkVolumeName(v.Name); err != nil {
		return d.fail("volume.name", err)
	}
	if err := checkVolumeSize(v.Size, d.size); err != nil {
		return d.fail("volume.size", err)
	}
	if len(v.Policy) > math.MaxUint8 {
		return d.failf("volume.policy", "it has %d bytes", len(v.Policy))
	}
	d.counts[v.ID] = d.size.Count(v.Size)
	d.state.Volumes = append(d.state.Volumes, *v)
	return nil
}

// tell checks what concerns more than one record, and calls State.
func (d *dumpReader) tell() error {
	d.told = true
	if len(d.state.Tiers) == 0 || len(d.state.Members) == 0 {
		return d.failf("type", "the lines of tiers and members are missing")
	}
	names := make(map[string]bool)
	for _, v := range d.state.Volumes {
		if v.State != extentmap.VolumeActive {
			continue
		}
		if names[v.Name] {
			return d.failf("", "two volumes before it have the name %q", v.Name)
		}
		names[v.Name] = true
	}
	d.slots = make(map[extent.BackingID]uint32)
	d.used = make(map[extent.BackingID]*slotSet)
	for _, m := range d.state.Members {
		d.slots[m.ID] = m.Slots
		d.used[m.ID] = &slotSet{}
	}
	if d.v.State == nil {
		return nil
	}
	return d.v.State(d.state)
}

func (d *dumpReader) runs(of extent.VolumeID, runs [][4]uint64) error {
	count, known := d.counts[of]
	switch {
	case !known:
		return d.failf("of", "there is no volume %d", of)
	case of < d.of:
		return d.failf("of", "volume %d is out of order", of)
	case len(runs) == 0 || len(runs) > dumpLineRuns:
		return d.failf("runs", "%d of them", len(runs))
	case of > d.of:
		d.of, d.from = of, 0
	}
	for i, r := range runs {
		path := fmt.Sprintf("runs[%d]", i)
		first, n, slot := r[0], r[1], r[3]
		id := extent.BackingID(min(r[2], math.MaxUint16))
		slots, member := d.slots[id]
		switch {
		case n == 0 || n > maxRunExtents:
			return d.failf(path, "it has %d extents", n)
		case first >= uint64(count) || n > uint64(count)-first:
			return d.failf(path, "extents %d to %d are past the end of the volume, which has %d", first, first+n-1, count)
		case first < uint64(d.from):
			return d.failf(path, "extent %d is out of order, or there twice", first)
		case !member:
			return d.failf(path, "there is no backing %d", r[2])
		case slot >= uint64(slots) || n > uint64(slots)-slot:
			return d.failf(path, "slots %d to %d are past the last of backing %d, which has %d", slot, slot+n-1, id, slots)
		}
		if twice, ok := d.used[id].add(uint32(slot), uint32(n)); !ok {
			return d.failf(path, "slot %d of backing %d belongs to another extent too", twice, id)
		}
		d.from = extent.Index(first + n)
		d.extents += int64(n)
		if d.v.Run == nil {
			continue
		}
		err := d.v.Run(DumpRun{Volume: of, First: extent.Index(first), Count: int64(n),
			At: extent.Location{Backing: id, Slot: extent.Slot(slot)}})
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *dumpReader) heat(data []byte) error {
	if len(data) == 0 || len(data) > dumpHeatPiece {
		return d.failf("data", "it has %d bytes", len(data))
	}
	if d.v.Heat == nil {
		return nil
	}
	return d.v.Heat(data)
}

// end checks the last line. It is in no checksum, so it must be what is written to
// the letter.
func (d *dumpReader) end(b []byte, l dumpLine, crc uint32) error {
	exact, err := json.Marshal(l)
	switch {
	case l.Lines != d.line-1:
		return d.failf("lines", "%d are said, %d are there", l.Lines, d.line-1)
	case l.Extents == nil || *l.Extents != d.extents:
		return d.failf("extents", "the number does not match: %d are there", d.extents)
	case l.CRC != fmt.Sprintf("%08x", crc):
		return d.fail("crc", ErrDumpChecksum)
	case err != nil || !bytes.Equal(append(exact, '\n'), b):
		return d.fail("", ErrDumpChecksum)
	}
	d.ended = true
	return nil
}

// slotSet is a set of slots of one backing. What is full costs next to nothing, so
// that a few lines of a hostile dump cannot take all memory.
type slotSet struct {
	pages map[uint32]*slotPage
}

const slotPageBits = 4096

type slotPage [slotPageBits / 64]uint64

// fullSlots stands for every page of which all slots are in the set.
var fullSlots = func() *slotPage {
	var p slotPage
	for i := range p {
		p[i] = math.MaxUint64
	}
	return &p
}()

// add puts n slots from first on into the set. It returns false, and a slot, if
// one of them is there already.
func (s *slotSet) add(first, n uint32) (twice uint32, ok bool) {
	if s.pages == nil {
		s.pages = make(map[uint32]*slotPage)
	}
	for end := uint64(first) + uint64(n); uint64(first) < end; {
		no, from := first/slotPageBits, first%slotPageBits
		to := uint32(min(uint64(slotPageBits), end-uint64(no)*slotPageBits))
		page := s.pages[no]
		switch {
		case page == nil && to-from == slotPageBits:
			s.pages[no] = fullSlots
		case page == fullSlots:
			return first, false
		default:
			if page == nil {
				page = new(slotPage)
				s.pages[no] = page
			}
			for i := from; i < to; i++ {
				if page[i/64]>>(i%64)&1 != 0 {
					return no*slotPageBits + i, false
				}
				page[i/64] |= 1 << (i % 64)
			}
		}
		if to == slotPageBits && no == math.MaxUint32/slotPageBits {
			break
		}
		first = no*slotPageBits + to
	}
	return 0, true
}
