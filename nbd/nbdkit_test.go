package nbd

import (
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"tierd/nbd/wire"
)

// The tables of the protocol tests are put to another server, as a check on the tables
// themselves. Where it answers otherwise, that is listed here, with who is right by the
// protocol; docs/interoperability.md has the same for people.

const closes = "closes"

// nbdkitOptions are the answers of nbdkit 1.32 that differ.
var nbdkitOptions = map[string]string{
	// Its memory plugin serves the one export under all names.
	"INFO unknown": "ACK", "GO unknown": "ACK", "INFO name 255": "ACK", "INFO name 256": "ACK",
	// Of what is too long either error may be told.
	"INFO name 4097": "ERR_INVALID", "GO name 4097": "ERR_INVALID", "longer than any use": "ERR_INVALID",
	// Strings have to be UTF-8; it does not look.
	"INFO not UTF-8": "ACK",
	// It knows TLS, and has been told not to use it: both may be said.
	"STARTTLS": "ERR_POLICY",
	// Without structured replies contexts are of no use; a list of them may be given.
	"LIST_META_CONTEXT": "ACK",
}

// nbdkitRequests are the outcomes of nbdkit 1.32 that differ.
var nbdkitRequests = map[string]string{
	"WRITE nothing":          "ENOSPC", // a length of 0 means nothing by the protocol
	"WRITE over 32 MiB":      "ENOSPC", // it is past the end as well
	"WRITE_ZEROES FAST_ZERO": "OK",     // memory is zeroed fast; the device of the table is told not to
}

// startNbdkit serves memory, ended with the test.
func startNbdkit(t *testing.T, args ...string) string {
	t.Helper()
	program := need(t, "nbdkit")
	sock := filepath.Join(t.TempDir(), "s")
	cmd := exec.Command(program, append([]string{"-f", "-U", sock}, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	eventually(t, "nbdkit listens", func() bool {
		c, err := net.Dial("unix", sock)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return sock
}

// tryRecv is recv, but for a server that closes.
func (r *raw) tryRecv(n int) ([]byte, bool) {
	b := make([]byte, n)
	_, err := io.ReadFull(r.nc, b)
	return b, err == nil
}

func TestOptionsOfNbdkit(t *testing.T) {
	sock := startNbdkit(t, "memory", fmt.Sprint(requestSize))
	for _, tc := range optionRows() {
		r := dial(t, sock)
		r.recv(wire.GreetingSize)
		r.send([]byte{0, 0, 0, 3})
		go r.nc.Write(option(tc.opt, tc.data))
		got := closes
		for got == closes {
			b, ok := r.tryRecv(wire.OptionReplySize)
			if !ok {
				break
			}
			h := wire.ParseOptionReply(b)
			if _, ok := r.tryRecv(int(h.Length)); !ok {
				break
			}
			if h.Type == wire.RepAck || wire.IsError(h.Type) {
				got = wire.ReplyName(h.Type)
			}
		}
		_ = r.nc.Close()
		want, differs := nbdkitOptions[tc.name]
		if !differs {
			want = wire.ReplyName(tc.want)
		}
		if got != want {
			t.Errorf("%q: nbdkit answers %s, want %s", tc.name, got, want)
		}
	}
}

func TestRequestsOfNbdkit(t *testing.T) {
	rw := startNbdkit(t, "memory", fmt.Sprint(requestSize))
	ro := startNbdkit(t, "-r", "memory", fmt.Sprint(requestSize))
	for _, tc := range requestRows() {
		sock := rw
		if tc.readOnly {
			sock = ro
		}
		r := dial(t, sock)
		_ = r.nc.SetDeadline(time.Now().Add(patience))
		r.recv(wire.GreetingSize)
		r.send([]byte{0, 0, 0, 3})
		r.send(option(wire.OptGo, wire.AppendInfoRequest(nil, "")))
		if got := r.final(wire.OptGo); got != wire.RepAck {
			t.Fatal(wire.ReplyName(got))
		}
		b := message(tc.cmd, tc.flags, 77, tc.off, tc.n)
		if tc.cmd == wire.CmdWrite && tc.want != fatal {
			b = append(b, make([]byte, tc.n)...)
		}
		go r.nc.Write(b)
		got := closes
		if b, ok := r.tryRecv(wire.SimpleReplySize); ok {
			got = wire.ErrnoName(wire.ParseSimpleReply(b).Error)
		}
		_ = r.nc.Close()
		want, differs := nbdkitRequests[tc.name]
		switch {
		case differs:
		case tc.want == fatal:
			want = closes
		default:
			want = wire.ErrnoName(tc.want)
		}
		if got != want {
			t.Errorf("%q: nbdkit answers %s, want %s", tc.name, got, want)
		}
	}
}
