package nbd

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"tierd/nbd/wire"
)

func threeExports() *memExports {
	e := newMemExports().
		add(ExportInfo{Name: "a", Description: "first", PreferredBlock: 8192}, newMemDevice(1<<20)).
		add(ExportInfo{Name: "ro", ReadOnly: true}, newMemDevice(4096)).
		add(ExportInfo{Name: strings.Repeat("n", 4096)}, newMemDevice(8192))
	e.def = "a"
	return e
}

const rwFlags = wire.FlagHasFlags | wire.FlagSendFlush | wire.FlagSendFUA | wire.FlagSendTrim |
	wire.FlagSendWriteZeroes | wire.FlagCanMultiConn | wire.FlagSendCache | wire.FlagSendFastZero

// An optionRow is an option and the kind of answer that ends what comes back.
type optionRow struct {
	name string
	opt  wire.Option
	data []byte
	want wire.Reply
}

// optionRows is the conformance table of the handshake.
func optionRows() []optionRow {
	name := func(n int) []byte { return wire.AppendInfoRequest(nil, strings.Repeat("n", n)) }
	bad := func(nameLen uint32) []byte {
		return append(binary.BigEndian.AppendUint32(nil, nameLen), 'a', 0, 0)
	}
	return []optionRow{
		{"INFO", wire.OptInfo, wire.AppendInfoRequest(nil, "a"), wire.RepAck},
		{"INFO default", wire.OptInfo, wire.AppendInfoRequest(nil, ""), wire.RepAck},
		{"INFO unknown", wire.OptInfo, wire.AppendInfoRequest(nil, "x"), wire.RepErrUnknown},
		{"GO unknown", wire.OptGo, wire.AppendInfoRequest(nil, "x"), wire.RepErrUnknown},
		{"INFO unknown infos", wire.OptInfo, wire.AppendInfoRequest(nil, "a", 9, 4711), wire.RepAck},
		{"INFO 65535 infos", wire.OptInfo, wire.AppendInfoRequest(nil, "a", make([]wire.Info, 65535)...), wire.RepAck},
		{"INFO name 255", wire.OptInfo, name(255), wire.RepErrUnknown},
		{"INFO name 256", wire.OptInfo, name(256), wire.RepErrUnknown},
		{"INFO name 4096", wire.OptInfo, name(4096), wire.RepAck},
		{"INFO name 4097", wire.OptInfo, name(4097), wire.RepErrTooBig},
		{"GO name 4097", wire.OptGo, name(4097), wire.RepErrTooBig},
		{"INFO name 2^31", wire.OptInfo, bad(1 << 31), wire.RepErrInvalid},
		{"INFO name 2^32-1 (CVE-2022-26495)", wire.OptInfo, bad(1<<32 - 1), wire.RepErrInvalid},
		{"GO name 2^32-1 (CVE-2022-26495)", wire.OptGo, bad(1<<32 - 1), wire.RepErrInvalid},
		{"INFO name 2^32-4", wire.OptInfo, bad(1<<32 - 4), wire.RepErrInvalid},
		{"INFO without data (CVE-2022-26496)", wire.OptInfo, nil, wire.RepErrInvalid},
		{"INFO too short (CVE-2022-26496)", wire.OptInfo, []byte{0, 0, 0, 1, 'a'}, wire.RepErrInvalid},
		{"GO too long (CVE-2022-26496)", wire.OptGo, append(wire.AppendInfoRequest(nil, "a"), 0), wire.RepErrInvalid},
		{"INFO infos missing (CVE-2022-26496)", wire.OptInfo, []byte{0, 0, 0, 1, 'a', 255, 255}, wire.RepErrInvalid},
		{"INFO NUL", wire.OptInfo, wire.AppendInfoRequest(nil, "a\x00"), wire.RepErrInvalid},
		{"INFO not UTF-8", wire.OptInfo, wire.AppendInfoRequest(nil, "a\xff"), wire.RepErrInvalid},
		{"LIST", wire.OptList, nil, wire.RepAck},
		{"LIST with data", wire.OptList, []byte("x"), wire.RepErrInvalid},
		{"PEEK_EXPORT", wire.OptPeekExport, []byte("abc"), wire.RepErrUnsup},
		{"STARTTLS", wire.OptStartTLS, nil, wire.RepErrUnsup},
		{"STRUCTURED_REPLY", wire.OptStructuredReply, nil, wire.RepAck},
		{"LIST_META_CONTEXT", wire.OptListMetaContext, make([]byte, 100), wire.RepErrInvalid},
		{"SET_META_CONTEXT", wire.OptSetMetaContext, make([]byte, 100), wire.RepErrInvalid},
		{"EXTENDED_HEADERS", wire.OptExtendedHeaders, nil, wire.RepErrUnsup},
		{"unknown", 0xdeadbeef, fill(make([]byte, 70000), 1), wire.RepErrUnsup},
		{"unknown 0", 0, nil, wire.RepErrUnsup},
		{"longer than any use", wire.OptInfo, make([]byte, maxOptionData+1), wire.RepErrTooBig},
	}
}

// TestOptions holds the server to the table. After each row the connection must still be
// in sync: an INFO is answered.
func TestOptions(t *testing.T) {
	_, path := serve(t, Config{Exports: threeExports()})
	for _, tc := range optionRows() {
		t.Run(tc.name, func(t *testing.T) {
			r := dial(t, path).hello(bothFlags)
			go r.nc.Write(option(tc.opt, tc.data))
			list := r.answers(tc.opt)
			if got := list[len(list)-1]; got.rep != tc.want {
				t.Errorf("got %s %q, want %s", wire.ReplyName(got.rep), got.data, wire.ReplyName(tc.want))
			}
			if wire.IsError(tc.want) && len(list) > 1 {
				t.Errorf("got %d replies before the error", len(list)-1)
			}
			for _, rep := range list {
				if wire.IsError(rep.rep) && len(rep.data) > wire.MaxString {
					t.Errorf("a message of %d bytes", len(rep.data))
				}
			}
			r.send(option(wire.OptInfo, wire.AppendInfoRequest(nil, "ro")))
			if got := r.final(wire.OptInfo); got != wire.RepAck {
				t.Errorf("INFO after it: got %s", wire.ReplyName(got))
			}
		})
	}
}

func TestInfoAndGoTellTheSame(t *testing.T) {
	_, path := serve(t, Config{Exports: threeExports()})
	asked := wire.AppendInfoRequest(nil, "", wire.InfoBlockSize, wire.InfoName, wire.InfoDescription, 99)
	for _, structured := range []bool{false, true} {
		infoAndGo(t, path, asked, structured)
	}
}

func infoAndGo(t *testing.T, path string, asked []byte, structured bool) {
	r := dial(t, path).hello(bothFlags)
	flags := rwFlags
	if structured {
		r.send(option(wire.OptStructuredReply, nil))
		r.final(wire.OptStructuredReply)
		flags |= wire.FlagSendDF
	}
	r.send(option(wire.OptInfo, asked))
	info := r.answers(wire.OptInfo)
	r.send(option(wire.OptGo, asked))
	goes := r.answers(wire.OptGo)
	var export, block [wire.InfoBlockSizeSize]byte
	wire.PutExportInfo(export[:], 1<<20, flags)
	wire.PutBlockSizeInfo(block[:], 1, 8192, wire.MaxPayload)
	want := []optReply{
		{wire.RepInfo, export[:wire.InfoExportSize]},
		{wire.RepInfo, []byte("\x00\x01a")},
		{wire.RepInfo, []byte("\x00\x02first")},
		{wire.RepInfo, block[:]},
		{wire.RepAck, nil},
	}
	for what, got := range map[string][]optReply{"INFO": info, "GO": goes} {
		if len(got) != len(want) {
			t.Fatalf("%s: got %d replies, want %d", what, len(got), len(want))
		}
		for i := range want {
			if got[i].rep != want[i].rep || !bytes.Equal(got[i].data, want[i].data) {
				t.Errorf("%s, reply %d: got %s %q, want %s %q", what, i, wire.ReplyName(got[i].rep), got[i].data,
					wire.ReplyName(want[i].rep), want[i].data)
			}
		}
	}
	if !structured {
		r.inSync()
	}
}

func TestGoWithoutInfoRequestsTellsTheExport(t *testing.T) {
	_, path := serve(t, Config{Exports: threeExports()})
	r := dial(t, path).hello(bothFlags)
	r.send(option(wire.OptGo, wire.AppendInfoRequest(nil, "ro")))
	list := r.answers(wire.OptGo)
	if len(list) != 2 {
		t.Fatalf("got %d replies, want 2", len(list))
	}
	got := wire.ParseExportInfo(list[0].data)
	want := wire.ExportInfo{Size: 4096, TransmissionFlags: wire.FlagHasFlags | wire.FlagReadOnly | wire.FlagSendFlush |
		wire.FlagSendFUA | wire.FlagCanMultiConn | wire.FlagSendCache}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	r.inSync()
}

func TestList(t *testing.T) {
	e := threeExports()
	_, path := serve(t, Config{Exports: e})
	r := dial(t, path).hello(bothFlags)
	r.send(option(wire.OptList, nil))
	list := r.answers(wire.OptList)
	if len(list) != len(e.infos)+1 {
		t.Fatalf("got %d replies, want one for each of %d exports and an ACK", len(list), len(e.infos))
	}
	for i, info := range e.infos {
		name, desc, err := wire.ParseServer(list[i].data)
		if list[i].rep != wire.RepServer || name != info.Name || desc != info.Description || err != nil {
			t.Errorf("reply %d: got %s %q %q %v, want %q %q", i, wire.ReplyName(list[i].rep), name, desc, err, info.Name, info.Description)
		}
	}
	if got := e.opened(); got != 0 {
		t.Errorf("LIST opened %d exports", got)
	}
}

func TestExportName(t *testing.T) {
	_, path := serve(t, Config{Exports: threeExports()})
	for _, tc := range []struct {
		name   string
		flags  uint32
		export string
		want   int // bytes of the answer; 0: closed
	}{
		{"no zeroes", bothFlags, "a", 10},
		{"padded", wire.ClientFixedNewstyle, "a", 134},
		{"not fixed", 0, "a", 134},
		{"not fixed, no zeroes", wire.ClientNoZeroes, "a", 10},
		{"default", bothFlags, "", 10},
		{"longest (CVE-2017-15118)", bothFlags, strings.Repeat("n", 4096), 10},
		{"unknown", bothFlags, "x", 0},
		{"too long (CVE-2017-15118)", bothFlags, strings.Repeat("n", 4097), 0},
		{"NUL", bothFlags, "a\x00", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := dial(t, path).hello(tc.flags)
			r.send(option(wire.OptExportName, []byte(tc.export)))
			if tc.want == 0 {
				r.closed()
				return
			}
			b := r.recv(tc.want)
			size := uint64(1 << 20)
			if len(tc.export) > 1 {
				size = 8192
			}
			if got := binary.BigEndian.Uint64(b); got != size {
				t.Errorf("size: got %d, want %d", got, size)
			}
			if got := binary.BigEndian.Uint16(b[8:]); got != rwFlags {
				t.Errorf("flags: got %#x, want %#x", got, rwFlags)
			}
			if !bytes.Equal(b[10:], make([]byte, tc.want-10)) {
				t.Errorf("padding is not zero")
			}
			r.inSync()
		})
	}
}

// TestFatal: after these the server closes, and says nothing.
func TestFatal(t *testing.T) {
	_, path := serve(t, Config{Exports: threeExports()})
	huge := make([]byte, wire.OptionHeaderSize)
	wire.PutOption(huge, wire.OptInfo, 1<<32-1)
	magic := option(wire.OptList, nil)
	magic[3]++
	for _, tc := range []struct {
		name  string
		flags uint32
		send  []byte
	}{
		{"unknown client flag", bothFlags | 4, nil},
		{"all client flags", 1<<32 - 1, nil},
		{"wrong option magic", bothFlags, magic},
		{"option of 4 GiB (CVE-2017-15119)", bothFlags, huge},
		{"LIST without fixed newstyle", wire.ClientNoZeroes, option(wire.OptList, nil)},
		{"GO without fixed newstyle", 0, option(wire.OptGo, wire.AppendInfoRequest(nil, "a"))},
		{"too much in all", bothFlags, bytes.Repeat(option(99, make([]byte, 200<<10)), 21)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := dial(t, path).hello(tc.flags)
			go io.Copy(r.nc, bytes.NewReader(tc.send))
			if tc.name != "too much in all" {
				r.closed()
			} else if _, err := io.Copy(io.Discard, r.nc); errors.Is(err, errTimeout(err)) {
				t.Error("the connection is still open")
			}
		})
	}
}

func TestAbort(t *testing.T) {
	_, path := serve(t, Config{Exports: threeExports()})
	r := dial(t, path).hello(bothFlags)
	r.send(option(wire.OptAbort, nil))
	if got := r.final(wire.OptAbort); got != wire.RepAck {
		t.Errorf("got %s", wire.ReplyName(got))
	}
	r.closed()
}

func TestLongBadNamesAreClippedInMessages(t *testing.T) { // CVE-2020-10761
	_, path := serve(t, Config{Exports: threeExports()})
	r := dial(t, path).hello(bothFlags)
	r.send(option(wire.OptGo, wire.AppendInfoRequest(nil, strings.Repeat("\n\x1b", 2000))))
	list := r.answers(wire.OptGo)
	msg := list[0].data
	if list[0].rep != wire.RepErrUnknown || len(msg) > 2000 || bytes.ContainsAny(msg, "\n\x1b") {
		t.Errorf("got %s %q", wire.ReplyName(list[0].rep), msg)
	}
}

func TestOpenErrors(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want wire.Reply
	}{
		{ErrNoExport, wire.RepErrUnknown},
		{ErrForbidden, wire.RepErrPolicy},
		{ErrShutdown, wire.RepErrShutdown},
		{errors.New("disk on fire"), wire.RepErrPlatform},
	} {
		e := threeExports()
		e.err = tc.err
		_, path := serve(t, Config{Exports: e})
		r := dial(t, path).hello(bothFlags)
		r.send(option(wire.OptGo, wire.AppendInfoRequest(nil, "a")))
		if got := r.final(wire.OptGo); got != tc.want {
			t.Errorf("%v: got %s, want %s", tc.err, wire.ReplyName(got), wire.ReplyName(tc.want))
		}
	}
}

// TestOptionSequences: whatever came before, GO opens what it names itself
// (CVE-2019-14851, and the wrong export after a failed look-up).
func TestOptionSequences(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	e := threeExports()
	_, path := serve(t, Config{Exports: e})
	names := []string{"a", "ro", "x", ""}
	for range 100 {
		r := dial(t, path).hello(bothFlags)
		for range rnd.IntN(6) {
			opt := []wire.Option{wire.OptInfo, wire.OptList, wire.OptStructuredReply, wire.OptSetMetaContext, wire.OptStartTLS}[rnd.IntN(5)]
			data := wire.AppendInfoRequest(nil, names[rnd.IntN(len(names))])
			r.send(option(opt, data))
			r.final(opt)
		}
		r.send(option(wire.OptInfo, wire.AppendInfoRequest(nil, "a")))
		r.final(wire.OptInfo)
		r.send(option(wire.OptGo, wire.AppendInfoRequest(nil, "x")))
		if got := r.final(wire.OptGo); got != wire.RepErrUnknown {
			t.Fatalf("GO for nothing: got %s", wire.ReplyName(got))
		}
		r.send(option(wire.OptGo, wire.AppendInfoRequest(nil, "ro")))
		list := r.answers(wire.OptGo)
		if got := wire.ParseExportInfo(list[0].data); got.Size != 4096 {
			t.Fatalf("GO opened an export of %d bytes, want 4096", got.Size)
		}
		r.send(message(wire.CmdDisc, 0, 0, 0, 0))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.opens) != 1 {
		t.Errorf("opened: got %v, want only ro", e.opens)
	}
}

func TestGrownExportIsSeenByTheNextConnection(t *testing.T) {
	e := threeExports()
	_, path := serve(t, Config{Exports: e})
	old := open(t, path, "a")
	e.mu.Lock()
	big := newMemDevice(2 << 20)
	e.devs["a"], e.infos[0].Size = big, big.Size()
	e.mu.Unlock()
	old.send(message(wire.CmdRead, 0, 1, 1<<20, 1))
	old.want(1, wire.EINVAL)
	r := open(t, path, "a")
	r.send(message(wire.CmdRead, 0, 1, 1<<20, 1))
	r.wantData(1, []byte{0})
}

// TestHangupAtEachByte closes at each byte of what a client may say (CVE-2017-7539,
// CVE-2017-9524, CVE-2013-6410): a good client beside them is unharmed, and what was
// opened is closed.
func TestHangupAtEachByte(t *testing.T) {
	flags := []byte{0, 0, 0, 3}
	info := wire.AppendInfoRequest(nil, "a", 3)
	meta := wire.AppendMetaContext(nil, "a", "base:allocation", "tierd:")
	write := message(wire.CmdWrite, 0, 1, 0, 8, []byte("12345678")...)
	status := message(wire.CmdBlockStatus, 0, 2, 0, 4096)
	clientHello := append([]byte{0x16, 3, 1, 0, 100, 1, 0, 0, 96, 3, 3}, make([]byte, 60)...)
	scripts := map[string][][]byte{
		"INFO and GO": {flags, option(wire.OptInfo, info), option(wire.OptGo, info), write},
		"EXPORT_NAME": {flags, option(wire.OptExportName, []byte("a")), write},
		"padded":      {{0, 0, 0, 1}, option(wire.OptExportName, []byte("a")), write},
		"LIST and contexts": {flags, option(wire.OptList, nil), option(wire.OptStructuredReply, nil),
			option(wire.OptListMetaContext, meta), option(wire.OptSetMetaContext, meta), option(wire.OptGo, info), status},
		"a client's name": {flags, option(wire.OptClient, wire.AppendClient(nil, [16]byte{1}, 1)), option(wire.OptGo, info), write},
		"STARTTLS":        {flags, option(wire.OptStartTLS, nil), clientHello},
	}
	ca := newCA(t)
	cert := ca.server()
	for name, parts := range scripts {
		t.Run(name, func(t *testing.T) {
			d := newMemDevice(1 << 20)
			e := newMemExports().add(ExportInfo{Name: "a"}, d)
			s, path := serve(t, Config{Exports: e, TLS: TLSAllow,
				TLSConfig: func() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{cert}} }})
			good := open(t, path, "a")
			script := bytes.Join(parts, nil)
			for n := range len(script) {
				r := dial(t, path)
				r.send(script[:n])
				r.nc.Close()
				if n%16 == 0 {
					good.inSync()
				}
			}
			good.inSync()
			eventually(t, "all but one connection end", func() bool { return s.Snapshot().Open == 1 })
			if opened, closed := e.opened(), int(d.closes.Load()); closed != opened-1 {
				t.Errorf("%d of %d devices were closed, want all but one", closed, opened)
			}
		})
	}
}

// TestHandshakeTimeout: the deadline is that of the whole handshake, however the client
// spends the time.
func TestHandshakeTimeout(t *testing.T) {
	ca := newCA(t)
	cert := ca.server()
	long := option(wire.OptInfo, make([]byte, maxOptionData))
	refusals := bytes.Repeat(option(wire.OptInfo, wire.AppendInfoRequest(nil, "x")), 1000)
	for _, c := range []struct {
		name    string
		at      []byte // sent at once
		trickle []byte // then a byte at a time
	}{
		{"silent", nil, nil},
		{"within an option", append([]byte{0, 0, 0, 3}, long[:20]...), nil},
		{"a byte at a time", nil, append([]byte{0, 0, 0, 3}, long...)},
		{"one option after the other", []byte{0, 0, 0, 3}, refusals},
		{"before the ClientHello", append([]byte{0, 0, 0, 3}, option(wire.OptStartTLS, nil)...), nil},
		{"within the ClientHello", append([]byte{0, 0, 0, 3}, option(wire.OptStartTLS, nil)...), append([]byte{0x16, 3, 1, 2, 0, 1}, make([]byte, 500)...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &countingObserver{}
			s, path := serve(t, Config{Exports: threeExports(), HandshakeTimeout: 300 * time.Millisecond, Observer: o, TLS: TLSAllow,
				TLSConfig: func() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{cert}} }})
			r := dial(t, path)
			_, _ = r.nc.Write(c.at) // if it comes too late, so much the better
			over := make(chan struct{})
			go func() {
				defer close(over)
				_, _ = io.Copy(io.Discard, r.nc)
			}()
			sent := 0
			for ended := false; !ended; {
				select {
				case <-over:
					ended = true
				case <-time.After(5 * time.Millisecond):
					if sent < len(c.trickle) {
						_, _ = r.nc.Write(c.trickle[sent : sent+1])
						sent++
					}
				}
			}
			if len(c.trickle) > 0 && sent == len(c.trickle) {
				t.Errorf("all %d bytes were taken", sent)
			}
			eventually(t, "the failed handshake is counted", func() bool { return s.Snapshot().HandshakeFailed == 1 })
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.reasons[ReasonTimeout] != 1 {
				t.Errorf("reasons: got %v, want a %s", o.reasons, ReasonTimeout)
			}
		})
	}
}

func TestMaxConns(t *testing.T) {
	s, path := serve(t, Config{Exports: threeExports(), MaxConns: 2})
	one, two := dial(t, path), dial(t, path)
	one.recv(wire.GreetingSize)
	two.recv(wire.GreetingSize)
	dial(t, path).closed()
	one.nc.Close()
	eventually(t, "a place is free", func() bool { return s.Snapshot().Open == 1 })
	open(t, path, "a").inSync()
}

func TestPanickingExports(t *testing.T) {
	e := threeExports()
	s, path := serve(t, Config{Exports: e})
	good := open(t, path, "a")
	e.mu.Lock()
	e.panic = true
	e.mu.Unlock()
	r := dial(t, path).hello(bothFlags)
	r.send(option(wire.OptGo, wire.AppendInfoRequest(nil, "a")))
	r.closed()
	good.inSync()
	if got := s.Snapshot().Panics; got != 1 {
		t.Errorf("panics: got %d, want 1", got)
	}
}

// TestPipe: a connection without a file descriptor is served all the same.
func TestPipe(t *testing.T) {
	s := NewServer(Config{Exports: threeExports()})
	client, server := net.Pipe()
	s.start(server)
	r := &raw{t, client}
	r.hello(bothFlags)
	r.send(option(wire.OptGo, wire.AppendInfoRequest(nil, "a")))
	r.final(wire.OptGo)
	r.send(message(wire.CmdWrite, 0, 1, 5, 3, []byte("abc")...))
	r.want(1, wire.OK)
	r.send(message(wire.CmdRead, 0, 2, 5, 3))
	r.wantData(2, []byte("abc"))
	r.send(message(wire.CmdFlush, 0, 3, 0, 0))
	r.want(3, wire.OK)
	client.Close()
	ctx, cancel := contextWithPatience()
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}
