package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/pojntfx/go-nbd/pkg/protocol"
)

// TestConstants pins every number to the protocol text, wherever it is defined.
func TestConstants(t *testing.T) {
	for _, tc := range []struct {
		name      string
		got, want uint64
	}{
		{"GreetingMagic", GreetingMagic, binary.BigEndian.Uint64([]byte("NBDMAGIC"))},
		{"OptionMagic", OptionMagic, binary.BigEndian.Uint64([]byte("IHAVEOPT"))},
		{"OptionReplyMagic", OptionReplyMagic, 0x3e889045565a9},
		{"OldstyleMagic", OldstyleMagic, 0x00420281861253},
		{"RequestMagic", uint64(RequestMagic), 0x25609513},
		{"SimpleReplyMagic", uint64(SimpleReplyMagic), 0x67446698},
		{"StructuredReplyMagic", uint64(StructuredReplyMagic), 0x668e33ef},
		{"HandshakeFixedNewstyle", uint64(HandshakeFixedNewstyle), 1},
		{"HandshakeNoZeroes", uint64(HandshakeNoZeroes), 2},
		{"ClientFixedNewstyle", uint64(ClientFixedNewstyle), 1},
		{"ClientNoZeroes", uint64(ClientNoZeroes), 2},
		{"OptExportName", uint64(OptExportName), 1}, {"OptAbort", uint64(OptAbort), 2},
		{"OptList", uint64(OptList), 3}, {"OptStartTLS", uint64(OptStartTLS), 5},
		{"OptInfo", uint64(OptInfo), 6}, {"OptGo", uint64(OptGo), 7},
		{"OptStructuredReply", uint64(OptStructuredReply), 8},
		{"OptListMetaContext", uint64(OptListMetaContext), 9},
		{"OptSetMetaContext", uint64(OptSetMetaContext), 10},
		{"OptExtendedHeaders", uint64(OptExtendedHeaders), 11},
		{"RepAck", uint64(RepAck), 1}, {"RepServer", uint64(RepServer), 2},
		{"RepInfo", uint64(RepInfo), 3}, {"RepMetaContext", uint64(RepMetaContext), 4},
		{"RepErrUnsup", uint64(RepErrUnsup), 0x80000001},
		{"RepErrPolicy", uint64(RepErrPolicy), 0x80000002},
		{"RepErrInvalid", uint64(RepErrInvalid), 0x80000003},
		{"RepErrPlatform", uint64(RepErrPlatform), 0x80000004},
		{"RepErrTLSReqd", uint64(RepErrTLSReqd), 0x80000005},
		{"RepErrUnknown", uint64(RepErrUnknown), 0x80000006},
		{"RepErrShutdown", uint64(RepErrShutdown), 0x80000007},
		{"RepErrBlockSizeReqd", uint64(RepErrBlockSizeReqd), 0x80000008},
		{"RepErrTooBig", uint64(RepErrTooBig), 0x80000009},
		{"RepErrExtHeaderReqd", uint64(RepErrExtHeaderReqd), 0x8000000a},
		{"InfoExport", uint64(InfoExport), 0}, {"InfoName", uint64(InfoName), 1},
		{"InfoDescription", uint64(InfoDescription), 2}, {"InfoBlockSize", uint64(InfoBlockSize), 3},
		{"FlagHasFlags", uint64(FlagHasFlags), 1}, {"FlagReadOnly", uint64(FlagReadOnly), 2},
		{"FlagSendFlush", uint64(FlagSendFlush), 4}, {"FlagSendFUA", uint64(FlagSendFUA), 8},
		{"FlagRotational", uint64(FlagRotational), 16}, {"FlagSendTrim", uint64(FlagSendTrim), 32},
		{"FlagSendWriteZeroes", uint64(FlagSendWriteZeroes), 64}, {"FlagSendDF", uint64(FlagSendDF), 128},
		{"FlagCanMultiConn", uint64(FlagCanMultiConn), 256}, {"FlagSendCache", uint64(FlagSendCache), 1024},
		{"FlagSendFastZero", uint64(FlagSendFastZero), 2048},
		{"CmdRead", uint64(CmdRead), 0}, {"CmdWrite", uint64(CmdWrite), 1}, {"CmdDisc", uint64(CmdDisc), 2},
		{"CmdFlush", uint64(CmdFlush), 3}, {"CmdTrim", uint64(CmdTrim), 4}, {"CmdCache", uint64(CmdCache), 5},
		{"CmdWriteZeroes", uint64(CmdWriteZeroes), 6}, {"CmdBlockStatus", uint64(CmdBlockStatus), 7},
		{"CmdFlagFUA", uint64(CmdFlagFUA), 1}, {"CmdFlagNoHole", uint64(CmdFlagNoHole), 2},
		{"CmdFlagDF", uint64(CmdFlagDF), 4}, {"CmdFlagReqOne", uint64(CmdFlagReqOne), 8},
		{"CmdFlagFastZero", uint64(CmdFlagFastZero), 16},
		{"EPERM", uint64(EPERM), 1}, {"EIO", uint64(EIO), 5}, {"ENOMEM", uint64(ENOMEM), 12},
		{"EINVAL", uint64(EINVAL), 22}, {"ENOSPC", uint64(ENOSPC), 28}, {"EOVERFLOW", uint64(EOVERFLOW), 75},
		{"ENOTSUP", uint64(ENOTSUP), 95}, {"ESHUTDOWN", uint64(ESHUTDOWN), 108},
		{"ChunkOffsetData", uint64(ChunkOffsetData), 1}, {"ChunkOffsetHole", uint64(ChunkOffsetHole), 2},
		{"ChunkBlockStatus", uint64(ChunkBlockStatus), 5},
		{"ChunkError", uint64(ChunkError), 0x8001}, {"ChunkErrorOffset", uint64(ChunkErrorOffset), 0x8002},
		{"ReplyFlagDone", uint64(ReplyFlagDone), 1}, {"MaxPayload", MaxPayload, 33554432},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: got %#x, want %#x", tc.name, tc.got, tc.want)
		}
	}
}

// TestHeaders holds the hand-written codecs against encoding/binary over the
// structs of the go-nbd protocol package, both ways.
func TestHeaders(t *testing.T) {
	for _, tc := range []struct {
		name string
		size int
		put  func(b []byte)
		get  func(b []byte) any
		want any
	}{
		{"greeting", GreetingSize, func(b []byte) { PutGreeting(b, 3) }, func(b []byte) any { return ParseGreeting(b) },
			protocol.NegotiationNewstyleHeader{OldstyleMagic: GreetingMagic, OptionMagic: OptionMagic, HandshakeFlags: 3}},
		{"option", OptionHeaderSize, func(b []byte) { PutOption(b, OptGo, 0x01020304) }, func(b []byte) any { return ParseOption(b) },
			protocol.NegotiationOptionHeader{OptionMagic: OptionMagic, ID: 7, Length: 0x01020304}},
		{"option reply", OptionReplySize, func(b []byte) { PutOptionReply(b, OptInfo, RepErrTooBig, 77) }, func(b []byte) any { return ParseOptionReply(b) },
			protocol.NegotiationReplyHeader{ReplyMagic: OptionReplyMagic, ID: 6, Type: 0x80000009, Length: 77}},
		{"export", InfoExportSize, func(b []byte) { PutExportInfo(b, 1<<40+7, 0x1234) }, func(b []byte) any { return ParseExportInfo(b) },
			protocol.NegotiationReplyInfo{Type: 0, Size: 1<<40 + 7, TransmissionFlags: 0x1234}},
		{"block size", InfoBlockSizeSize, func(b []byte) { PutBlockSizeInfo(b, 1, 4096, MaxPayload) }, func(b []byte) any { return ParseBlockSizeInfo(b) },
			protocol.NegotiationReplyBlockSize{Type: 3, MinimumBlockSize: 1, PreferredBlockSize: 4096, MaximumBlockSize: MaxPayload}},
		{"request", RequestSize, func(b []byte) { PutRequest(b, 5, CmdTrim, 0x1122334455667788, 1<<50+3, 0xfffffe01) }, func(b []byte) any { return ParseRequest(b) },
			protocol.TransmissionRequestHeader{RequestMagic: RequestMagic, CommandFlags: 5, Type: 4, Handle: 0x1122334455667788, Offset: 1<<50 + 3, Length: 0xfffffe01}},
		{"simple reply", SimpleReplySize, func(b []byte) { PutSimpleReply(b, ESHUTDOWN, 0x1122334455667788) }, func(b []byte) any { return ParseSimpleReply(b) },
			protocol.TransmissionReplyHeader{ReplyMagic: SimpleReplyMagic, Error: 108, Handle: 0x1122334455667788}},
		{"structured reply", StructuredReplySize, func(b []byte) { PutStructuredReply(b, ReplyFlagDone, ChunkErrorOffset, 9, 10) }, func(b []byte) any { return ParseStructuredReply(b) },
			StructuredReply{ReplyMagic: StructuredReplyMagic, Flags: 1, Type: 0x8002, Handle: 9, Length: 10}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var want bytes.Buffer
			if err := binary.Write(&want, binary.BigEndian, tc.want); err != nil {
				t.Fatal(err)
			}
			if want.Len() != tc.size {
				t.Fatalf("size: got %d, the struct has %d", tc.size, want.Len())
			}
			got := make([]byte, tc.size)
			tc.put(got)
			if !bytes.Equal(got, want.Bytes()) {
				t.Errorf("bytes: got %x, want %x", got, want.Bytes())
			}
			if h := tc.get(got); h != tc.want {
				t.Errorf("parsed: got %+v, want %+v", h, tc.want)
			}
		})
	}
}

func TestHotCodecsDoNotAllocate(t *testing.T) {
	var b [RequestSize]byte
	var sum uint64
	if n := testing.AllocsPerRun(100, func() {
		PutRequest(b[:], 0, CmdRead, 1, 2, 3)
		sum += ParseRequest(b[:]).Handle
		PutSimpleReply(b[:], OK, 1)
		sum += ParseSimpleReply(b[:]).Handle
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

func TestParseInfoRequest(t *testing.T) {
	long := strings.Repeat("x", MaxName)
	for _, tc := range []struct {
		name string
		data []byte
		want string
		n    int
		err  error
	}{
		{"empty name", AppendInfoRequest(nil, ""), "", 0, nil},
		{"name and infos", AppendInfoRequest(nil, "home", InfoName, InfoBlockSize), "home", 2, nil},
		{"longest name", AppendInfoRequest(nil, long), long, 0, nil},
		{"name too long", AppendInfoRequest(nil, long+"x"), "", 0, ErrNameTooLong},
		{"65535 infos", AppendInfoRequest(nil, "a", make([]Info, 65535)...), "a", 65535, nil},
		{"no data", nil, "", 0, ErrMalformed},
		{"five bytes", make([]byte, 5), "", 0, ErrMalformed},
		{"name past the end", []byte{0, 0, 0, 1, 0, 0}, "", 0, ErrMalformed},
		{"name of 4 GiB - 1", []byte{255, 255, 255, 255, 'a', 0, 0}, "", 0, ErrMalformed},
		{"name of 2 GiB", []byte{128, 0, 0, 0, 'a', 0, 0}, "", 0, ErrMalformed},
		{"one info missing", []byte{0, 0, 0, 1, 'a', 0, 1}, "", 0, ErrMalformed},
		{"half an info", []byte{0, 0, 0, 1, 'a', 0, 1, 0}, "", 0, ErrMalformed},
		{"trailing data", []byte{0, 0, 0, 1, 'a', 0, 0, 0}, "", 0, ErrMalformed},
		{"NUL in name", AppendInfoRequest(nil, "a\x00b"), "", 0, ErrMalformed},
		{"not UTF-8", AppendInfoRequest(nil, "a\xff"), "", 0, ErrMalformed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			name, infos, err := ParseInfoRequest(tc.data)
			if !errors.Is(err, tc.err) {
				t.Fatalf("error: got %v, want %v", err, tc.err)
			}
			if err == nil && (name != tc.want || len(infos) != 2*tc.n) {
				t.Errorf("got %q with %d infos, want %q with %d", name, len(infos)/2, tc.want, tc.n)
			}
		})
	}
	_, infos, _ := ParseInfoRequest(AppendInfoRequest(nil, "a", InfoName, InfoBlockSize))
	if !AsksFor(infos, InfoName) || !AsksFor(infos, InfoBlockSize) || AsksFor(infos, InfoDescription) {
		t.Errorf("AsksFor does not find what was asked for")
	}
}

func TestServerRoundTrip(t *testing.T) {
	name, desc, err := ParseServer(AppendServer(nil, "home", "a volume"))
	if name != "home" || desc != "a volume" || err != nil {
		t.Errorf("got %q, %q, %v", name, desc, err)
	}
	for _, data := range [][]byte{nil, {0, 0, 0}, {0, 0, 0, 1}, {255, 255, 255, 255, 'a'}} {
		if _, _, err := ParseServer(data); !errors.Is(err, ErrMalformed) {
			t.Errorf("%x: got %v, want ErrMalformed", data, err)
		}
	}
}

func TestNames(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{CmdName(CmdRead), "read"}, {CmdName(CmdWriteZeroes), "write_zeroes"}, {CmdName(999), "cmd_999"},
		{ErrnoName(OK), "OK"}, {ErrnoName(ENOSPC), "ENOSPC"}, {ErrnoName(3), "errno_3"},
		{ReplyName(RepErrUnsup), "ERR_UNSUP"}, {ReplyName(12), "reply_0xc"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}

func FuzzParseInfoRequest(f *testing.F) {
	f.Add(AppendInfoRequest(nil, "home", InfoBlockSize))
	f.Add([]byte{255, 255, 255, 255, 'a', 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		name, infos, err := ParseInfoRequest(data)
		if err != nil {
			return
		}
		ids := make([]Info, 0, len(infos)/2)
		for i := 0; i < len(infos); i += 2 {
			ids = append(ids, be.Uint16(infos[i:]))
		}
		if again := AppendInfoRequest(nil, name, ids...); !bytes.Equal(again, data) {
			t.Errorf("%x reads as %q with %v, which is written as %x", data, name, ids, again)
		}
	})
}
