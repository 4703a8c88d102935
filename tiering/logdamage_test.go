package tiering_test

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"tierd/test/model"
)

// Places in the staged log; see the byte tables of package stagedlog.
const (
	logRecordsAt = 8192
	logRecord    = 64
	logKindAt    = 20
	logEpochAt   = 24
	logMove      = 4
)

// editLog changes the staged log of a pool that is down.
func (e *env) editLog(edit func(b []byte)) {
	e.t.Helper()
	path := e.opt.Metadata + ".log"
	b, err := os.ReadFile(path)
	if err == nil {
		edit(b)
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

// reopenDamaged opens a pool whose log is damaged, which has to be told.
func (e *env) reopenDamaged() {
	e.t.Helper()
	before := e.state().Pool.Continuity
	if err := e.tryOpen(nil); err != nil {
		e.t.Fatalf("open: %v", err)
	}
	if !strings.Contains(e.logs.String(), "staged log cannot be used") {
		e.t.Errorf("no warning of the damaged log:\n%s", e.logs)
	}
	if e.Pool.Continuity() == before {
		e.t.Error("continuity id is the same")
	}
}

// The record of a committed move is damaged: the records before it say where the
// extent was, and must not take it back there.
func TestLogDamagedBehindCommit(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	e.flush("v0")
	if moved := e.Relocate("v0", 0, 1); !moved {
		t.Fatal("extent was not moved")
	}
	e.settle()
	e.write("v0", 2*ext, ext, 3)
	e.Kill()
	e.editLog(func(b []byte) {
		for at := logRecordsAt; at < len(b)/2; at += logRecord {
			if b[at+logKindAt] == logMove {
				b[at+50] ^= 1
				return
			}
		}
		t.Fatal("the move is not in the log")
	})
	e.reopenDamaged()
	e.expect("v0", 0, ext, 1)
}

// The header of the newer half is damaged: the older half alone knows nothing of
// what was committed since.
func TestLogHeaderDamaged(t *testing.T) {
	e := newEnv(t, model.Config{}, nil)
	e.write("v0", 0, ext, 1)
	e.flush("v0")
	var newer int // where the newest header is
	for i := 0; newer == 0; i++ {
		if i == 2000 {
			t.Fatal("the log does not get to its other half")
		}
		e.trim("v1", ext, ext)
		e.write("v1", ext, ext, byte(i))
		e.flush("v1")
		e.editLog(func(b []byte) {
			for _, at := range []int{len(b) / 2, len(b)/2 + 4096} {
				if binary.LittleEndian.Uint64(b[at+logEpochAt:]) > 0 {
					newer = at
				}
			}
		})
	}
	e.trim("v0", 0, ext)
	e.flush("v0")
	e.Kill()
	e.editLog(func(b []byte) { b[newer+100] ^= 1 })
	e.reopenDamaged()
	e.expect("v0", 0, ext, 0)
}
