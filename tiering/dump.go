package tiering

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
)

var dumpCRC = crc32.MakeTable(crc32.Castagnoli)

// DumpOptions say what a dump has beside the metadata.
type DumpOptions struct {
	Heat bool // the heat file too
	// Path is where the dump will be kept. One that is of a file of the pool, there or
	// not, is ErrRefused. "": not known.
	Path string
}

// Dumped tells what a dump holds.
type Dumped struct {
	Commit  uint64
	Clean   bool
	Volumes int
	Extents int64
}

// Dump writes the metadata of a pool that no daemon has open; dump_types.go has the
// format. Nothing is changed. A running pool is not dumped: its map changes while
// it is read, and what is restored from a dump that is not of the last commit takes
// only names and settings from it, which the backings have too.
func Dump(ctx context.Context, o Options, d DumpOptions, w io.Writer) (Dumped, error) {
	o.setDefaults()
	db, err := extentmap.Open(o.Metadata, extentmap.Options{ReadOnly: true})
	if err != nil {
		return Dumped{}, lockedBy(o.Metadata, err)
	}
	defer db.Close()
	s := db.State()
	if err := refuseOwnFile(d.Path, o, s.Members); err != nil {
		return Dumped{}, err
	}
	done := Dumped{Commit: s.Pool.Commit, Clean: s.Pool.CleanStop, Volumes: len(s.Volumes)}
	out := newDumpWriter(w)
	if err := out.state(s); err != nil {
		return done, err
	}
	for _, v := range s.Volumes {
		err := db.LoadMap(v.ID, func(first extent.Index, locs []extent.Location) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			for i, l := range locs {
				if err := out.extent(v.ID, first+extent.Index(i), l); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return done, fmt.Errorf("dump map of volume %s: %w", v.Name, err)
		}
	}
	if err := out.flushRuns(); err != nil {
		return done, err
	}
	if d.Heat {
		if err := out.heat(heatPath(o.Metadata)); err != nil {
			return done, err
		}
	}
	done.Extents = out.extents
	return done, out.end()
}

// refuseOwnFile refuses a path that is one of the pool's: its metadata, what lies
// beside them, or a backing.
func refuseOwnFile(path string, o Options, members []extentmap.Member) error {
	if path == "" {
		return nil
	}
	own := ownFiles(o.Metadata)
	for _, b := range o.Backings {
		own = append(own, b.Path)
	}
	for _, m := range members {
		own = append(own, m.Path)
	}
	path = canonical(path)
	for _, name := range own {
		if name != "" && canonical(name) == path {
			return refuse("%s is a file of the pool; keep the dump elsewhere", path)
		}
	}
	return nil
}

// canonical returns the path of a file without links in its folder. The file itself
// need not exist.
func canonical(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(dir, filepath.Base(path))
	}
	return path
}

// dumpWriter writes the lines of a dump. Extents come in order.
type dumpWriter struct {
	w       *bufio.Writer
	lines   int64
	crc     uint32
	extents int64

	volume extent.VolumeID // of the runs below
	runs   [][4]uint64
}

func newDumpWriter(w io.Writer) *dumpWriter {
	return &dumpWriter{w: bufio.NewWriterSize(w, 256<<10)}
}

func (d *dumpWriter) line(l dumpLine) error {
	b, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode dump: %w", err)
	}
	b = append(b, '\n')
	d.crc = crc32.Update(d.crc, dumpCRC, b)
	d.lines++
	if _, err := d.w.Write(b); err != nil {
		return fmt.Errorf("write dump: %w", err)
	}
	return nil
}

// state writes everything that comes before the map.
func (d *dumpWriter) state(s extentmap.State) error {
	lines := []dumpLine{{Type: "header", Format: dumpFormat, Version: DumpVersion}, {Type: "pool", Pool: &s.Pool}}
	for i := range s.Tiers {
		lines = append(lines, dumpLine{Type: "tier", Tier: &s.Tiers[i]})
	}
	for i := range s.Members {
		lines = append(lines, dumpLine{Type: "member", Member: &s.Members[i]})
	}
	for i := range s.Volumes {
		lines = append(lines, dumpLine{Type: "volume", Volume: &s.Volumes[i]})
	}
	for _, l := range lines {
		if err := d.line(l); err != nil {
			return err
		}
	}
	return nil
}

// extent adds one extent to the run before it, or begins a new one.
func (d *dumpWriter) extent(v extent.VolumeID, i extent.Index, l extent.Location) error {
	if l.IsZero() {
		return nil
	}
	d.extents++
	if n := len(d.runs); n > 0 && d.volume == v {
		r := &d.runs[n-1]
		if r[0]+r[1] == uint64(i) && r[2] == uint64(l.Backing) && r[3]+r[1] == uint64(l.Slot) && r[1] < maxRunExtents {
			r[1]++
			return nil
		}
	}
	if d.volume != v || len(d.runs) == dumpLineRuns {
		if err := d.flushRuns(); err != nil {
			return err
		}
	}
	d.volume = v
	d.runs = append(d.runs, [4]uint64{uint64(i), 1, uint64(l.Backing), uint64(l.Slot)})
	return nil
}

func (d *dumpWriter) flushRuns() error {
	if len(d.runs) == 0 {
		return nil
	}
	err := d.line(dumpLine{Type: "map", Of: d.volume, Runs: d.runs})
	d.runs = d.runs[:0]
	return err
}

// heat writes the heat file. That there is none is no error.
func (d *dumpWriter) heat(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("dump heat: %w", err)
	}
	defer f.Close()
	b := make([]byte, dumpHeatPiece)
	for {
		n, err := io.ReadFull(f, b)
		if n > 0 {
			if err := d.line(dumpLine{Type: "heat", Data: b[:n]}); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return nil
		case err != nil:
			return fmt.Errorf("dump heat: %w", err)
		}
	}
}

// end writes the last line, without which a dump is not whole.
func (d *dumpWriter) end() error {
	if err := d.line(dumpLine{Type: "end", Lines: d.lines, Extents: &d.extents, CRC: fmt.Sprintf("%08x", d.crc)}); err != nil {
		return err
	}
	if err := d.w.Flush(); err != nil {
		return fmt.Errorf("write dump: %w", err)
	}
	return nil
}
