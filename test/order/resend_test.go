package order

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"tierd/nbd/wire"
)

// A raw connection sends bytes, and need not read answers.
type raw struct {
	t    *testing.T
	conn net.Conn
}

// open is a raw connection after the handshake; id 0 tells nothing of who it is.
func (r *rig) open(id byte, generation uint64) *raw {
	r.t.Helper()
	conn, err := net.Dial("unix", r.sock)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	w := &raw{r.t, conn}
	w.recv(wire.GreetingSize)
	w.send([]byte{0, 0, 0, 3})
	option := func(opt wire.Option, data []byte) {
		b := make([]byte, wire.OptionHeaderSize)
		wire.PutOption(b, opt, uint32(len(data)))
		w.send(append(b, data...))
		for {
			h := wire.ParseOptionReply(w.recv(wire.OptionReplySize))
			w.recv(int(h.Length))
			if h.Type == wire.RepAck {
				return
			}
			if wire.IsError(h.Type) {
				r.t.Fatalf("option %d: %s", opt, wire.ReplyName(h.Type))
			}
		}
	}
	if id != 0 {
		option(wire.OptClient, wire.AppendClient(nil, [16]byte{id}, generation))
	}
	option(wire.OptGo, wire.AppendInfoRequest(nil, ""))
	return w
}

func (w *raw) send(b []byte) {
	w.t.Helper()
	if _, err := w.conn.Write(b); err != nil {
		w.t.Fatal(err)
	}
}

func (w *raw) recv(n int) []byte {
	w.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(w.conn, b); err != nil {
		w.t.Fatal(err)
	}
	return b
}

func (w *raw) write(cookie uint64, off int64, fill byte) {
	w.t.Helper()
	b := make([]byte, wire.RequestSize)
	wire.PutRequest(b, wire.CmdFlagFUA, wire.CmdWrite, cookie, uint64(off), block)
	w.send(append(b, bytes.Repeat([]byte{fill}, block)...))
}

func (w *raw) want(cookie uint64) {
	w.t.Helper()
	if h := wire.ParseSimpleReply(w.recv(wire.SimpleReplySize)); h.Handle != cookie || h.Error != wire.OK {
		w.t.Fatalf("reply %+v, want success of %d", h, cookie)
	}
}

// TestSentAgain (H21): a client whose connection is not read, since its requests are
// stuck in the slow tier, sends a write again over another one, and then another write
// to the same place. The first copy, which the server finds in the old socket at last,
// must not take effect: not after a hang-up, and not when the client says who it is.
func TestSentAgain(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		r := newRig(t, 1)
		c := r.dial()
		if err := c.WriteAt(bytes.Repeat([]byte{1}, 2*ext), 0, true); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Pool.MoveExtent(context.Background(), "v0", 0, 1); err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		gate, held := r.hold(backingPath(1))
		id := byte(0)
		if fenced {
			id = 7
		}
		old := r.open(id, 1)
		begun := r.begun.Load()
		old.write(1, 0, 'h') // stuck; and no more is let in
		eventually(t, "it is stuck", held)
		old.write(2, ext, 'o') // the write that is sent again
		if !fenced {
			// The first write was read before. Wherever the second is now, in the socket or
			// read, it will have waited in one of the two for more than the second after
			// which the server looks: a machine that stalls makes that longer.
			time.Sleep(3 * time.Second)
			// Half of it is enough, and keeps the failure of writing an answer from
			// telling the same.
			if err := old.conn.(*net.UnixConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		fresh := r.open(id, 2)
		fresh.write(3, ext, 'o')
		fresh.want(3)
		fresh.write(4, ext, 'n')
		fresh.want(4)
		close(gate)
		eventually(t, "the old connection has ended", func() bool { return r.server.Snapshot().Open == 1 })
		if got := r.begun.Load() - begun; got != 3 {
			t.Errorf("fenced %v: %d changes were begun, want the stuck one and two new ones", fenced, got)
		}
		p := make([]byte, block)
		v, err := r.Pool.Volume("v0")
		if err != nil {
			t.Fatal(err)
		}
		if err := v.ReadAt(context.Background(), p, ext); err != nil || p[0] != 'n' {
			t.Errorf("fenced %v: read %q, %v, want n", fenced, p[0], err)
		}
		// The stuck one was begun and never answered: it may be there.
		if err := v.ReadAt(context.Background(), p, 0); err != nil || p[0] != 'h' && p[0] != 1 {
			t.Errorf("fenced %v: where the stuck write is: %q, %v", fenced, p[0], err)
		}
	}
}
