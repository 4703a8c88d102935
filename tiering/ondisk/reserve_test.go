package ondisk

import (
	"context"
	"path/filepath"
	"syscall"
	"testing"

	"tierd/pkg/backing"
)

// TestFormatReserves: the space of the tables of a sparse file is taken when it is
// formatted, so that a full file system does not keep a round from being recorded.
func TestFormatReserves(t *testing.T) {
	ctx := context.Background()
	const size, es = 256 << 20, 64 << 10
	path := filepath.Join(t.TempDir(), "backing")
	st, err := backing.Open(ctx, backing.Options{Path: path, Size: size, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l := mustLayout(t, size, es)
	blocks := func() int64 {
		var s syscall.Stat_t
		if err := syscall.Stat(path, &s); err != nil {
			t.Fatal(err)
		}
		return s.Blocks * 512
	}
	if err := st.(backing.Reserver).Reserve(ctx, 0, blockSize); err != nil {
		t.Fatal(err)
	}
	if blocks() == 0 {
		t.Skip("the file system cannot reserve space")
	}
	if err := Format(ctx, st, l); err != nil {
		t.Fatal(err)
	}
	before := blocks()
	// The whole of what is written outside of slots, filled.
	full := make([]byte, l.SlotTableOffset+int64(l.Slots)*entrySize)
	for i := range full {
		full[i] = 1
	}
	if err := st.WriteAt(ctx, full, 0); err != nil {
		t.Fatal(err)
	}
	if err := st.WriteAt(ctx, full[:l.Size-l.EndSuperblock], l.EndSuperblock); err != nil {
		t.Fatal(err)
	}
	if err := st.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	// Up to one page of the table's end is rounded.
	if after := blocks(); after > before+blockSize {
		t.Errorf("tables took %d bytes of space after the format", after-before)
	}
	if before > 16<<20 {
		t.Errorf("format took %d bytes", before)
	}
}
