package crash

import (
	"errors"
	"flag"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"tierd/test/crash/recordfs"
	"tierd/test/fuseproc"
	"tierd/test/model"
)

var (
	perCell  = flag.Int("per-cell", 4, "states in each cell of the matrix")
	stateFor = flag.Duration("states-for", 30*time.Second, "about how long to go on; 0: until each cell has its states")
)

func TestMain(m *testing.M) {
	recordfs.Main()
	os.Exit(m.Run())
}

func mount(t *testing.T) *recordfs.FS {
	t.Helper()
	fs, err := recordfs.Start(t.TempDir())
	if errors.Is(err, fuseproc.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	})
	return fs
}

// TestStates enumerates crash states and finds nothing wrong with any.
func TestStates(t *testing.T) {
	x := newMatrix(mount(t), model.Seed(t), *perCell)
	// As many rows run side by side as there are processors.
	x.perRow = *stateFor * time.Duration(runtime.GOMAXPROCS(0)) / time.Duration(len(rows))
	t.Run("rows", func(t *testing.T) {
		for i := range rows {
			t.Run(rows[i].name, func(t *testing.T) {
				t.Parallel()
				if err := x.enumerate(&rows[i]); err != nil {
					t.Error(err)
				}
				t.Log(x.sum(rows[i].name))
			})
		}
	})
	var table strings.Builder
	total, short := x.report(&table)
	t.Log(table.String())
	if total == 0 {
		t.Error("no state was judged")
	}
	if *stateFor == 0 && len(short) > 0 {
		t.Errorf("too few states in %v", short)
	}
}
