package tiering_test

import (
	"fmt"
	"syscall"
	"testing"

	"tierd/pkg/backing/faultstore"
	"tierd/test/model"
	"tierd/tiering"
	"tierd/tiering/ondisk"
)

// slotTable returns a fault that is met by what is written to the slot table of a
// backing.
func (e *env) slotTable(path string) faultstore.Fault {
	e.t.Helper()
	sb, err := ondisk.ReadSuperblock(ctx, e.stores[path])
	if err != nil {
		e.t.Fatal(err)
	}
	return faultstore.Fault{Ops: faultstore.Write, From: sb.Layout.SlotTableOffset, To: sb.Layout.DataOffset}
}

// flushBehind starts flushes of a new extent of each of n volumes: the first is held in
// its write of the table, the others wait for it.
func (e *env) flushBehind(n int, first *faultstore.Injection) <-chan error {
	e.t.Helper()
	done := make(chan error, n)
	for i := range n {
		v := fmt.Sprintf("v%d", i)
		e.write(v, 0, block, byte(i+1))
		go func() { done <- e.volume(v).Flush(ctx) }()
		if i == 0 {
			eventually(e.t, "the first write", func() bool { return first.Hits() == 1 })
		}
	}
	eventually(e.t, "the others wait", func() bool { return tiering.QueuedEntries(e.Pool, path(0, 0)) == n-1 })
	return done
}

// TestRoundsShareTableWrites: however many rounds wait while entries are written,
// one write takes theirs together.
func TestRoundsShareTableWrites(t *testing.T) {
	const volumes = 6
	e := newEnv(t, model.Config{Slots: [][]int{{2 * volumes}}, Volumes: []int64{ext, ext, ext, ext, ext, ext}}, nil)
	e.settle()
	gate := make(chan struct{})
	fault := e.slotTable(path(0, 0))
	fault.Wait = gate
	writes := e.stores[path(0, 0)].Inject(fault)
	done := e.flushBehind(volumes, writes)
	close(gate)
	for range volumes {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := writes.Hits(); got != 2 {
		t.Errorf("the table was written %d times, want 2", got)
	}
	e.settle()
	owners := 0
	for _, en := range e.tables()[path(0, 0)] {
		if en.Kind == ondisk.Owner {
			owners++
		}
	}
	if owners != volumes {
		t.Errorf("the table has %d owners, want %d", owners, volumes)
	}
}

// TestTableWriteFailsAllWhoShareIt: whoever shares a write of the table that fails
// is told.
func TestTableWriteFailsAllWhoShareIt(t *testing.T) {
	const volumes = 3
	e := newEnv(t, model.Config{Slots: [][]int{{2 * volumes}}, Volumes: []int64{ext, ext, ext}}, nil)
	e.settle()
	gate := make(chan struct{})
	fault := e.slotTable(path(0, 0))
	fault.Wait, fault.Times = gate, 1
	first := e.stores[path(0, 0)].Inject(fault)
	fault.Wait, fault.Times, fault.Err = nil, 0, syscall.EIO
	done := e.flushBehind(volumes, first)
	e.stores[path(0, 0)].Inject(fault)
	close(gate)
	failed := 0
	for range volumes {
		if err := <-done; err != nil {
			failed++
		}
	}
	if failed < volumes-1 {
		t.Errorf("%d flushes failed, want those of all who shared the write", failed)
	}
	_ = e.closeBadly()
}

// TestTableAndStampCountAsUnsynced: what a flush writes for itself is part of what
// the sync is expected to take.
func TestTableAndStampCountAsUnsynced(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, block, 1)
	e.settle() // so that there is a commit to be stamped
	unsynced := func() int64 { return e.Pool.Backings()[0].Unsynced }
	before := unsynced()
	e.write("v0", ext, block, 1)
	if got := unsynced() - before; got != block {
		t.Errorf("%d bytes are unsynced after a write of %d", got, block)
	}
	release := e.hang(path(0, 0))
	syncs := e.stores[path(0, 0)].Count(faultstore.Sync)
	done := make(chan error, 1)
	go func() { done <- e.volume("v0").Flush(ctx) }()
	eventually(t, "the sync", func() bool { return e.stores[path(0, 0)].Count(faultstore.Sync) > syncs })
	if got := unsynced() - before; got < 2*block {
		t.Errorf("%d bytes are unsynced before the sync, want those of the table, too", got)
	}
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := unsynced(); got != 0 {
		t.Errorf("%d bytes are unsynced after the flush", got)
	}
}
