package nbd

import (
	"net"
	"testing"
	"time"

	"tierd/nbd/wire"
)

// gatedExports are memExports whose Open waits.
type gatedExports struct {
	*memExports
	gate chan struct{}
}

func (e *gatedExports) Open(name string) (Device, error) {
	<-e.gate
	return e.memExports.Open(name)
}

// TestHangupWhileChangesLieUnread: a change that has lain in the socket for long, while
// the server stood still or was busy, is not begun if the client has hung up (H21). One
// that was there for a moment is, since nobody can have given it up.
func TestHangupWhileChangesLieUnread(t *testing.T) {
	changes := []struct {
		name string
		b    []byte
	}{
		{"inline write", message(wire.CmdWrite, 0, 1, 0, 1, 1)},
		{"write with FUA", message(wire.CmdWrite, wire.CmdFlagFUA, 1, 0, 1, 1)},
		{"long write", message(wire.CmdWrite, 0, 1, 0, 200<<10, make([]byte, 200<<10)...)},
		{"trim", message(wire.CmdTrim, 0, 1, 0, 4096)},
		{"long trim", message(wire.CmdTrim, 0, 1, 0, 2<<20)},
		{"zeroes", message(wire.CmdWriteZeroes, 0, 1, 0, 4096)},
	}
	for _, c := range changes {
		for _, p := range []struct {
			name      string
			pollEvery time.Duration // what counts as long
			want      int64
		}{{"long", 1, 0}, {"a moment", time.Hour, 1}} {
			t.Run(c.name+"/"+p.name, func(t *testing.T) {
				d := newMemDevice(4 << 20)
				e := &gatedExports{newMemExports().add(ExportInfo{Name: "a"}, d), make(chan struct{})}
				s, path := serve(t, Config{Exports: e})
				s.pollEvery = p.pollEvery
				r := dial(t, path).hello(bothFlags)
				_ = r.nc.(*net.UnixConn).SetWriteBuffer(1 << 20)
				r.send(append(option(wire.OptGo, wire.AppendInfoRequest(nil, "a")), c.b...))
				_ = r.nc.(*net.UnixConn).CloseWrite()
				close(e.gate)
				eventually(t, "the end", func() bool { return d.closes.Load() == 1 })
				if got := d.begun.Load(); got != p.want {
					t.Errorf("%d changes were begun, want %d", got, p.want)
				}
			})
		}
	}
}
