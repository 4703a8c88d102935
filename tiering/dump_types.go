package tiering

import (
	"fmt"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
)

// A dump is the metadata of a pool as text: one JSON object a line, so that it can
// be written and read as a stream, whatever the size of the pool, and a fault in it
// has a line number. The lines are, in this order:
//
//	{"type":"header","format":"tierd-dump","version":1}
//	{"type":"pool","pool":{...}}            the pool record: commit number, clean mark, incarnation, ...
//	{"type":"tier","tier":{...}}            a line for each tier, in order of id
//	{"type":"member","member":{...}}        a line for each backing, with state and incarnation
//	{"type":"volume","volume":{...}}        a line for each volume, with its settings
//	{"type":"map","of":1,"runs":[[0,3,1,7],[3,1,2,0]]}
//	{"type":"heat","data":"..."}            the heat file, if asked for: base64, in pieces
//	{"type":"end","lines":9,"extents":4,"crc":"0badcafe"}
//
// A run is [first extent, number of extents, backing, first slot]: so many extents
// that follow each other in slots that follow each other. Runs of a volume are in
// order of extents, and volumes in order of id. A line has up to dumpLineRuns runs.
// The CRC (CRC32C, hexadecimal) is of all bytes of the lines before the end.
//
// The objects of pool, tiers, members and volumes are the records of package
// extentmap as the metadata file has them.
const (
	dumpFormat = "tierd-dump"
	// DumpVersion rises when an older program could not read a dump.
	DumpVersion = 1

	dumpLineRuns  = 256
	maxDumpLine   = 1 << 20 // bytes
	maxRunExtents = 1 << 20 // extents in one run
	dumpHeatPiece = 48 << 10
)

// dumpLine is one line of a dump; which fields there are depends on Type.
type dumpLine struct {
	Type    string                `json:"type"`
	Format  string                `json:"format,omitempty"`
	Version int                   `json:"version,omitempty"`
	Pool    *extentmap.PoolRecord `json:"pool,omitempty"`
	Tier    *extentmap.TierRecord `json:"tier,omitempty"`
	Member  *extentmap.Member     `json:"member,omitempty"`
	Volume  *extentmap.Volume     `json:"volume,omitempty"`
	Of      extent.VolumeID       `json:"of,omitempty"`
	Runs    [][4]uint64           `json:"runs,omitempty"`
	Data    []byte                `json:"data,omitempty"`
	Lines   int64                 `json:"lines,omitempty"`
	Extents *int64                `json:"extents,omitempty"`
	CRC     string                `json:"crc,omitempty"`
}

// DumpRun is a row of extents of a volume that lie in a row of slots.
type DumpRun struct {
	Volume extent.VolumeID
	First  extent.Index
	Count  int64 // extents
	At     extent.Location
}

// DumpVisitor takes what ReadDump reads. A nil function is not called. The dump is
// known to be whole only when ReadDump has returned nil: what is made of it must
// not be used before.
type DumpVisitor struct {
	// State is called once, before all others: everything but the map.
	State func(extentmap.State) error
	// Run is called for each run, in order of volumes and extents.
	Run func(DumpRun) error
	// Heat is called with the pieces of the heat file, in order.
	Heat func([]byte) error
}

// DumpError says what is wrong with a dump, and where.
type DumpError struct {
	Line int64  // counts from 1
	Path string // within the line's object, such as runs[3]; "" if it is the line
	Err  error
}

func (e *DumpError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("line %d: %v", e.Line, e.Err)
	}
	return fmt.Sprintf("line %d: %s: %v", e.Line, e.Path, e.Err)
}

func (e *DumpError) Unwrap() error { return e.Err }
