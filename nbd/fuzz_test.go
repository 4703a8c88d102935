package nbd

import (
	"bytes"
	"context"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"tierd/nbd/wire"
)

// serveFuzz serves one connection over a pipe, feeds it the bytes (after
// hello, if any, which must choose an export by name), hangs up and
// returns what came back. The server must be done soon after.
func serveFuzz(t *testing.T, e *memExports, hello, input []byte) []byte {
	s := NewServer(Config{Exports: e, HandshakeTimeout: 5 * time.Second})
	client, server := net.Pipe()
	s.start(server)
	_ = client.SetDeadline(time.Now().Add(10 * time.Second))
	var greeting []byte
	if hello != nil {
		// A handshake that has to be over before the server may be stopped.
		greeting = make([]byte, wire.GreetingSize+10)
		go client.Write(hello)
		if _, err := io.ReadFull(client, greeting); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(client)
		got <- append(greeting, b...)
	}()
	_, _ = client.Write(input)

	// Answers to what was read come before the end; Shutdown waits for them.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Fatalf("the server does not end: %v", err)
	}
	client.Close()
	if n := s.Snapshot().Panics; n != 0 {
		t.Fatalf("%d panics", n)
	}
	if free := s.Snapshot().BudgetFree; free != s.cfg.MaxTotalBytes {
		t.Fatalf("%d bytes of the budget are lost", s.cfg.MaxTotalBytes-free)
	}
	return <-got
}

// FuzzHandshake: whatever a client sends, each option that is read whole is answered,
// in turn and with one final reply, until an export is chosen or the client breaks
// the protocol.
func FuzzHandshake(f *testing.F) {
	flags := []byte{0, 0, 0, 3}
	f.Add(append(flags[:4:4], option(wire.OptList, nil)...))
	f.Add(append(flags[:4:4], option(wire.OptInfo, wire.AppendInfoRequest(nil, "a", 1, 2, 3))...))
	f.Add(append(flags[:4:4], option(wire.OptGo, wire.AppendInfoRequest(nil, ""))...))
	f.Add(append(flags[:4:4], option(wire.OptExportName, []byte("a"))...))
	f.Add(append(flags[:4:4], option(wire.OptAbort, []byte("bye"))...))
	f.Add(append(flags[:4:4], option(77, make([]byte, 1000))...))
	f.Add([]byte{0, 0, 0, 0, 'I'})
	f.Add(slices.Concat(flags, option(wire.OptSetMetaContext, wire.AppendMetaContext(nil, "a", "base:allocation")),
		option(wire.OptStructuredReply, nil), option(wire.OptListMetaContext, wire.AppendMetaContext(nil, "a", "base:", "tierd:")),
		option(wire.OptSetMetaContext, wire.AppendMetaContext(nil, "a", "tierd:tier")), option(wire.OptGo, wire.AppendInfoRequest(nil, "a"))))
	f.Add(slices.Concat(flags, option(wire.OptStructuredReply, []byte{1}), option(wire.OptList, nil), option(wire.OptList, make([]byte, 10)),
		option(9, make([]byte, 600)), option(wire.OptList, nil), option(wire.OptAbort, nil)))
	f.Add(slices.Concat(flags, option(wire.OptClient, wire.AppendClient(nil, [16]byte{1}, 2)), option(wire.OptClient, nil),
		option(wire.OptStartTLS, nil), option(wire.OptExtendedHeaders, nil), option(wire.OptInfo, wire.AppendInfoRequest(nil, "b")),
		option(wire.OptExportName, nil)))
	f.Fuzz(func(t *testing.T, input []byte) {
		e := newMemExports().add(ExportInfo{Name: "a", Description: "d"}, newMemDevice(1<<16))
		e.def = "a"
		// What comes before it is answered before it is read.
		input = append(bytes.Clone(input), option(wire.OptAbort, nil)...)
		out := serveFuzz(t, e, nil, input)
		if len(out) < wire.GreetingSize {
			t.Fatalf("no greeting: %x", out)
		}
		checkAnswers(t, input, out[wire.GreetingSize:])
	})
}

// checkAnswers checks what a server without TLS answered to the bytes of a handshake.
// It may have been stopped once it had read them all: then the last answer may be
// ERR_SHUTDOWN or missing.
func checkAnswers(t *testing.T, input, out []byte) {
	structured := false
	for rest := input[min(4, len(input)):]; len(rest) >= wire.OptionHeaderSize; {
		h := wire.ParseOption(rest)
		rest = rest[wire.OptionHeaderSize:]
		if input[0]|input[1]|input[2]|input[3]&^3 != 0 || h.OptionMagic != wire.OptionMagic {
			break
		}
		if h.ID == wire.OptExportName {
			if len(out) != 0 && len(out) != 10 && len(out) != 10+wire.ExportNamePadding {
				t.Fatalf("%x is no answer to EXPORT_NAME", out)
			}
			return
		}
		if input[3]&1 == 0 || h.ID != wire.OptAbort && uint64(h.Length) > uint64(len(rest)) {
			break
		}
		if h.ID != wire.OptAbort {
			rest = rest[h.Length:]
		}
		last := len(rest) < wire.OptionHeaderSize || h.ID == wire.OptAbort
		if last && len(out) == 0 {
			return
		}
		var rep wire.Reply
		for rep != wire.RepAck && !wire.IsError(rep) {
			if len(out) < wire.OptionReplySize {
				t.Fatalf("no answer to %+v: %x", h, out)
			}
			r := wire.ParseOptionReply(out)
			if r.ReplyMagic != wire.OptionReplyMagic || r.ID != h.ID || uint64(r.Length) > uint64(len(out)-wire.OptionReplySize) {
				t.Fatalf("got %+v and %d bytes, to %+v", r, len(out)-wire.OptionReplySize, h)
			}
			out = out[wire.OptionReplySize+int(r.Length):]
			rep = r.Type
			if rep == wire.RepMetaContext && !structured {
				t.Fatal("a meta context without structured replies")
			}
		}
		noData := h.ID == wire.OptList || h.ID == wire.OptStructuredReply
		want := rep
		switch {
		case rep == wire.RepErrShutdown && last:
		case h.ID != wire.OptAbort && h.Length > maxOptionData:
			want = wire.RepErrTooBig
		case noData && h.Length > 0:
			want = wire.RepErrInvalid
		case noData, h.ID == wire.OptAbort:
			want = wire.RepAck
		case (h.ID == wire.OptListMetaContext || h.ID == wire.OptSetMetaContext) && !structured:
			want = wire.RepErrInvalid
		case !slices.Contains([]wire.Option{wire.OptInfo, wire.OptGo, wire.OptClient, wire.OptListMetaContext, wire.OptSetMetaContext}, h.ID):
			want = wire.RepErrUnsup
		}
		if rep != want {
			t.Fatalf("%+v: got %s, want %s", h, wire.ReplyName(rep), wire.ReplyName(want))
		}
		structured = structured || h.ID == wire.OptStructuredReply && rep == wire.RepAck
		if h.ID == wire.OptAbort {
			break
		}
		if h.ID == wire.OptGo && rep == wire.RepAck {
			return // the rest is the transmission's
		}
	}
	if len(out) > 0 {
		t.Fatalf("%x answers nothing", out)
	}
}

// FuzzTransmission: each request that is read whole is answered once, in sync,
// unless the client breaks the protocol, and each change that is begun is run.
func FuzzTransmission(f *testing.F) {
	f.Add(message(wire.CmdRead, 0, 1, 0, 4096))
	f.Add(append(message(wire.CmdWrite, 0, 1, 100, 3, 1, 2, 3), message(wire.CmdRead, 0, 2, 100, 3)...))
	f.Add(append(message(wire.CmdTrim, 1, 1, 0, 65536), message(wire.CmdFlush, 0, 2, 0, 0)...))
	f.Add(append(message(wire.CmdWriteZeroes, 3, 1, 1, 65535), message(wire.CmdDisc, 0, 2, 0, 0)...))
	f.Add(append(message(4711, 9, 1, 1, 1<<32-1), message(wire.CmdRead, 0, 2, 1<<63, 1<<31)...))
	f.Add(append(message(wire.CmdWrite, 0, 1, 1<<17, 5, 1, 2, 3, 4, 5), message(wire.CmdWrite, 0, 2, 0, 9)...))
	f.Fuzz(func(t *testing.T, input []byte) {
		const size = 1 << 16
		d := newMemDevice(size)
		e := newMemExports().add(ExportInfo{Name: "a"}, d)
		hello := append([]byte{0, 0, 0, 3}, option(wire.OptExportName, []byte("a"))...)
		out := serveFuzz(t, e, hello, input)
		if len(out) < wire.GreetingSize+10 {
			t.Fatalf("no export: %x", out)
		}
		out = out[wire.GreetingSize+10:]

		// What must be answered, by cookie: the lengths that a success carries.
		must := map[uint64][]int{}
		count, broken := 0, false
		for rest := input; len(rest) >= wire.RequestSize; {
			h := wire.ParseRequest(rest)
			rest = rest[wire.RequestSize:]
			if h.RequestMagic != wire.RequestMagic || h.Type == wire.CmdWrite && h.Length > 2*wire.MaxPayload {
				broken = true // the connection is dropped, with what was in flight
				break
			}
			if h.Type == wire.CmdDisc {
				break
			}
			n := 0
			if h.Type == wire.CmdWrite {
				if uint64(h.Length) > uint64(len(rest)) {
					break
				}
				rest = rest[h.Length:]
			} else if h.Type == wire.CmdRead {
				n = int(h.Length)
			}
			must[h.Handle] = append(must[h.Handle], n)
			count++
		}
		for ; len(out) > 0; count-- {
			if len(out) < wire.SimpleReplySize {
				t.Fatalf("reply cut short: %x", out)
			}
			h := wire.ParseSimpleReply(out)
			out = out[wire.SimpleReplySize:]
			lens := must[h.Handle]
			if h.ReplyMagic != wire.SimpleReplyMagic || len(lens) == 0 {
				t.Fatalf("got %+v, which answers nothing", h)
			}
			if len(lens) > 1 {
				return // the same cookie twice: which is answered cannot be told
			}
			delete(must, h.Handle)
			if h.Error != wire.OK {
				continue
			}
			if lens[0] > len(out) {
				t.Fatalf("data cut short: %d of %d", len(out), lens[0])
			}
			out = out[lens[0]:]
		}
		if count != 0 && !broken {
			t.Errorf("%d requests were not answered", count)
		}
		if d.begun.Load() != d.run.Load() {
			t.Errorf("%d changes begun and %d run", d.begun.Load(), d.run.Load())
		}
		if d.closes.Load() != 1 {
			t.Errorf("the device was closed %d times", d.closes.Load())
		}
	})
}
