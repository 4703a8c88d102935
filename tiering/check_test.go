package tiering_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"tierd/tiering"
	"tierd/tiering/extent"
	"tierd/tiering/extentmap"
)

// TestCheckUnreadableMetadata looks whether a metadata file of which nothing is left
// is damage with a way on, and no error.
func TestCheckUnreadableMetadata(t *testing.T) {
	f := newDiskPool(t, true)
	for _, tt := range []struct {
		name   string
		damage func(b []byte) []byte
	}{
		{"both roots zeroed", func(b []byte) []byte { clear(b[:2*block]); return b }},
		{"zeroes", func(b []byte) []byte { clear(b); return b }},
		{"empty", func([]byte) []byte { return nil }},
		{"a few bytes", func(b []byte) []byte { return b[:100] }},
		{"one page", func(b []byte) []byte { return b[:block] }},
		{"three pages", func(b []byte) []byte { return b[:3*block] }},
		{"text", func([]byte) []byte { return bytes.Repeat([]byte("tiers: []\n"), 10000) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f.t = t
			f.restore()
			b, err := os.ReadFile(f.opt.Metadata)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(f.opt.Metadata, tt.damage(b), 0o600); err != nil {
				t.Fatal(err)
			}
			f.unchanged("check and repair", func() {
				r := f.check()
				if !r.Damaged() || !strings.Contains(fmt.Sprint(r.Findings), "pool rebuild") {
					t.Errorf("Check = %+v, want damage that pool rebuild mends", r)
				}
				if r := f.repair(tiering.RepairOptions{}); !r.Damaged() || len(r.Done) > 0 {
					t.Errorf("Repair = %+v, want damage that is left", r)
				}
			})
		})
	}
}

// TestCheckCounts looks whether what is not listed is counted.
func TestCheckCounts(t *testing.T) {
	f := newDiskPool(t, true)
	const extents = 11000
	var changes []extentmap.MapChange
	for i := range extents {
		changes = append(changes, extentmap.MapChange{Key: extent.Key{Volume: extent.VolumeID(1 + i%50), Index: extent.Index(1000 + i)}, To: extent.Location{Backing: 9, Slot: 1}})
	}
	f.commit(&extentmap.Changes{Map: changes})
	r := f.check()
	if r.Counts[tiering.Damage] < extents || len(r.Findings) > 10000 {
		t.Errorf("%d of %v findings are listed", len(r.Findings), r.Counts)
	}
	var listed, more int64
	for _, x := range r.Findings {
		var n int64
		if _, err := fmt.Sscanf(x.Text, "and %d more of the kind", &n); err == nil {
			more += n
		} else {
			listed++
		}
	}
	if sum := r.Counts[tiering.Damage] + r.Counts[tiering.Warning] + r.Counts[tiering.Note]; listed+more != sum {
		t.Errorf("%d listed and %d more of %d", listed, more, sum)
	}
}
