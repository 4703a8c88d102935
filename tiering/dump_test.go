package tiering_test

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
)

// dumped returns the dump of a pool with a few extents, stopped cleanly.
func dumped(t *testing.T) (*env, []byte) {
	t.Helper()
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, 3*ext, 1)
	e.write("v0", 5*ext, ext, 2)
	e.write("v1", 0, 2*ext, 3)
	e.write("v1", 7*ext, ext, 4)
	e.Close()
	var b bytes.Buffer
	d, err := tiering.Dump(ctx, e.opt, tiering.DumpOptions{Heat: true}, &b)
	if err != nil {
		t.Fatal(err)
	}
	if !d.Clean || d.Volumes != 2 || d.Extents != 7 || d.Commit != e.state().Pool.Commit {
		t.Errorf("Dump = %+v, want a clean stop, 2 volumes, 7 extents, commit %d", d, e.state().Pool.Commit)
	}
	return e, b.Bytes()
}

func TestDumpIsTheMetadata(t *testing.T) {
	e, b := dumped(t)
	var got extentmap.State
	placed := make(map[extent.Key]extent.Location)
	var heat []byte
	err := tiering.ReadDump(bytes.NewReader(b), tiering.DumpVisitor{
		State: func(s extentmap.State) error { got = s; return nil },
		Run: func(r tiering.DumpRun) error {
			for i := range r.Count {
				placed[extent.Key{Volume: r.Volume, Index: r.First + extent.Index(i)}] =
					extent.Location{Backing: r.At.Backing, Slot: r.At.Slot + extent.Slot(i)}
			}
			return nil
		},
		Heat: func(p []byte) error { heat = append(heat, p...); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := e.state()
	if !reflect.DeepEqual(got.Pool, want.Pool) || !slices.Equal(got.Tiers, want.Tiers) || !slices.Equal(got.Members, want.Members) || !slices.Equal(got.Volumes, want.Volumes) {
		t.Errorf("records of the dump:\n%+v\nwant\n%+v", got, want)
	}
	if len(heat) == 0 {
		t.Error("the dump has no heat")
	}
	db, err := extentmap.Open(e.opt.Metadata, extentmap.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	n := 0
	for _, v := range want.Volumes {
		err := db.LoadMap(v.ID, func(first extent.Index, locs []extent.Location) error {
			for i, l := range locs {
				if l.IsZero() {
					continue
				}
				n++
				if k := (extent.Key{Volume: v.ID, Index: first + extent.Index(i)}); placed[k] != l {
					t.Errorf("%v is at %v, by the dump at %v", k, l, placed[k])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n != len(placed) {
		t.Errorf("the dump has %d extents, the map %d", len(placed), n)
	}
}

// TestDumpRefused edits a dump in ways that no checksum is to find: it is made
// right again after the edit.
func TestDumpRefused(t *testing.T) {
	_, b := dumped(t)
	for _, tt := range []struct{ name, old, new, want string }{
		{"not a dump", `"tierd-dump"`, `"other"`, "line 1: this is not a dump of a pool"},
		{"later version", `"version":1`, `"version":2`, "line 1: version: the dump is of a later version: 2, known is 1"},
		{"unknown field", `"type":"pool",`, `"type":"pool","x":1,`, `line 2: unknown field "x"`},
		{"unknown type", `"type":"heat"`, `"type":"heap"`, `type: unknown type "heap"`},
		{"order", `"type":"map"`, `"type":"tier"`, "line 11: type: tier is out of order"},
		{"wrong kind", `"extent_size":65536`, `"extent_size":"x"`, "line 2: pool.extent_size: it is a string"},
		{"extent size", `"extent_size":65536`, `"extent_size":65537`, "line 2: pool.extent_size: "},
		{"slots", `"slots":6`, `"slots":60000`, "line 7: member.slots: 60000 do not fit"},
		{"no backing", `[0,3,1,0]`, `[0,3,9,0]`, "runs[0]: there is no backing 9"},
		{"huge backing", `[0,3,1,0]`, `[0,3,65537,0]`, "runs[0]: there is no backing 65537"},
		{"past the slots", `[0,3,1,0]`, `[0,3,1,2]`, "past the last of backing 1"},
		{"past the end", `[0,3,1,0]`, `[6,3,1,0]`, "past the end of the volume"},
		{"wrap", `[0,3,1,0]`, `[18446744073709551615,3,1,0]`, "past the end of the volume"},
		{"wrap of slots", `[0,3,1,0]`, `[0,3,1,18446744073709551615]`, "past the last of backing 1"},
		{"order of extents", `[0,3,1,0]`, `[5,3,1,0]`, "runs[1]: extent 5 is out of order, or there twice"},
		{"no extents", `[0,3,1,0]`, `[0,0,1,0]`, "runs[0]: it has 0 extents"},
		{"slot of two", `[5,1,1,3]`, `[5,1,1,2]`, "runs[1]: slot 2 of backing 1 belongs to another extent too"},
		{"volume", `"of":2`, `"of":7`, "of: there is no volume 7"},
		{"name", `"name":"v1"`, `"name":"a/b"`, "volume.name: "},
		{"same name", `"name":"v1"`, `"name":"v0"`, "two volumes before it have the name"},
		{"extents", `"extents":7`, `"extents":8`, "extents: the number does not match"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !bytes.Contains(b, []byte(tt.old)) {
				t.Fatalf("the dump has no %s", tt.old)
			}
			err := tiering.ReadDump(bytes.NewReader(bytes.Replace(b, []byte(tt.old), []byte(tt.new), 1)), tiering.DumpVisitor{})
			var where *tiering.DumpError
			if !errors.As(err, &where) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ReadDump = %v, want %q", err, tt.want)
			}
		})
	}
}

// TestDumpDamaged cuts a dump at every byte and flips a bit of every byte.
func TestDumpDamaged(t *testing.T) {
	_, b := dumped(t)
	for i := range b {
		err := tiering.ReadDump(bytes.NewReader(b[:i]), tiering.DumpVisitor{})
		wantErr(t, "a dump cut short", err, tiering.ErrDumpTruncated)
		flipped := bytes.Clone(b)
		flipped[i] ^= 1 << (i % 8)
		if tiering.ReadDump(bytes.NewReader(flipped), tiering.DumpVisitor{}) == nil {
			t.Errorf("a flipped bit of byte %d is not noticed", i)
		}
	}
	if err := tiering.ReadDump(bytes.NewReader(append(bytes.Clone(b), '\n')), tiering.DumpVisitor{}); err == nil {
		t.Error("a line behind the end is not noticed")
	}
}

// FuzzReadDump looks for dumps that end the program, or that are taken although
// they have no checksum to match.
func FuzzReadDump(f *testing.F) {
	f.Add([]byte(`{"type":"header","format":"tierd-dump","version":1}` + "\n"))
	f.Add([]byte(`{"type":"header","format":"tierd-dump","version":1}
{"type":"pool","pool":{"id":"6ba7b810-9dad-11d1-80b4-00c04fd430c8","format_version":1,"extent_size":65536,"state":"active","next_volume":2,"next_backing":2}}
{"type":"tier","tier":{"id":0,"name":"a"}}
{"type":"member","member":{"id":1,"state":"ok","size":655360,"slots":8}}
{"type":"volume","volume":{"id":1,"name":"v","size":65536,"state":"active"}}
{"type":"map","of":1,"runs":[[0,1,1,0]]}
{"type":"end","lines":6,"extents":1,"crc":"00000000"}
`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s extentmap.State
		var runs int
		err := tiering.ReadDump(bytes.NewReader(b), tiering.DumpVisitor{
			State: func(got extentmap.State) error { s = got; return nil },
			Run: func(r tiering.DumpRun) error {
				runs++
				if r.Count <= 0 || r.At.IsZero() || r.Volume == 0 {
					t.Errorf("a run that makes no sense: %+v", r)
				}
				return nil
			},
		})
		var where *tiering.DumpError
		switch {
		case err == nil && (len(s.Tiers) == 0 || len(s.Members) == 0):
			t.Errorf("a dump without tiers or members is taken: %q", b)
		case err != nil && (!errors.As(err, &where) || where.Line < 1):
			t.Errorf("ReadDump = %v, want a DumpError with a line", err)
		}
	})
}
