package tiering_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tierd/tiering"
	"tierd/tiering/extentmap"
	"tierd/tiering/ondisk"
)

// poolRecords finds the pool's records in a metadata file, each with its checksum.
var poolRecords = regexp.MustCompile(`\{"id":"[^\n{]*"format_version"[^\n]*\n[0-9a-f]{8}`)

// TestNewerFormat: what a later version wrote is refused, or read, as its bits say,
// and the message says what to do.
func TestNewerFormat(t *testing.T) {
	const strange = 1 << 50
	metadata := func(old, changed string) func(*testing.T, *filePool) {
		return func(t *testing.T, f *filePool) { // bbolt would refuse to write it
			b, err := os.ReadFile(f.path("pool.db"))
			if err != nil || len(old) != len(changed) || !bytes.Contains(b, []byte(old)) {
				t.Fatalf("%q cannot be replaced: %v", old, err)
			}
			b = poolRecords.ReplaceAllFunc(bytes.ReplaceAll(b, []byte(old), []byte(changed)), func(record []byte) []byte {
				text, _, _ := bytes.Cut(record, []byte("\n"))
				sum := crc32.Checksum(slices.Concat([]byte("poolrecord"), text), crc32.MakeTable(crc32.Castagnoli))
				return fmt.Appendf(text, "\n%08x", sum) // what a later version would write
			})
			if err := os.WriteFile(f.path("pool.db"), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	superblock := func(edit func(*ondisk.Superblock)) func(*testing.T, *filePool) {
		return func(t *testing.T, f *filePool) {
			st, err := tiering.OpenBacking(ctx, tiering.BackingSpec{Path: f.path("b.img")}, false, false)
			if err != nil {
				t.Fatal(err)
			}
			defer st.Close()
			sb, err := ondisk.ReadSuperblock(ctx, st)
			if err != nil {
				t.Fatal(err)
			}
			edit(sb)
			if err := ondisk.WriteSuperblock(ctx, st, sb); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name     string
		do       func(*testing.T, *filePool)
		want     error // of an open; nil: it opens
		readable bool  // it can be opened read-only
	}{
		{"metadata version", metadata(`"format_version":1`, `"format_version":2`), extentmap.ErrNewerFormat, false},
		{"metadata incompatible", metadata(`"incompat":0`, `"incompat":8`), extentmap.ErrNewerFormat, false},
		{"metadata to be read", metadata(`"read_only_compat":0`, `"read_only_compat":8`), extentmap.ErrReadOnlyFormat, true},
		{"metadata compatible", metadata(`"compat":0`, `"compat":8`), nil, true},
		{"backing incompatible", superblock(func(sb *ondisk.Superblock) { sb.Features.Incompat = strange }), ondisk.ErrNewerFormat, false},
		{"backing to be read", superblock(func(sb *ondisk.Superblock) { sb.Features.ReadOnlyCompat = strange }), ondisk.ErrReadOnlyFormat, true},
		{"backing compatible", superblock(func(sb *ondisk.Superblock) { sb.Features.Compat = strange }), nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFilePool(t)
			f.mustOpen()
			f.write(0, 1)
			f.close()
			tt.do(t, f)
			for _, edit := range []func(*tiering.Options){
				func(o *tiering.Options) { o.Degraded = true }, // which is no way round it
				func(o *tiering.Options) { o.ReadOnly = true },
			} {
				o := f.opt
				edit(&o)
				p, err := tiering.Open(ctx, o)
				if err == nil {
					p.Kill()
				}
				want := tt.want
				if o.ReadOnly && tt.readable {
					want = nil
				}
				wantErr(t, "open", err, want)
				if want != nil && err != nil && !strings.Contains(err.Error(), "; use the version of tierd that wrote it") {
					t.Errorf("open = %v, which does not say what to do", err)
				}
			}
		})
	}
}
