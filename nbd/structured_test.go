package nbd

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"tierd/nbd/wire"
)

// openStructured is open for a client that takes structured replies and asks for
// contexts, whose ids it returns.
func openStructured(t testing.TB, path, name string, contexts ...string) (*raw, map[string]uint32) {
	t.Helper()
	r := dial(t, path)
	return r, r.structuredGo(name, contexts)
}

// structuredGo is the handshake of openStructured.
func (r *raw) structuredGo(name string, contexts []string) (ids map[string]uint32) {
	r.t.Helper()
	r.hello(bothFlags)
	r.send(option(wire.OptStructuredReply, nil))
	if got := r.final(wire.OptStructuredReply); got != wire.RepAck {
		r.t.Fatalf("STRUCTURED_REPLY: got %s", wire.ReplyName(got))
	}
	ids = map[string]uint32{}
	if len(contexts) > 0 {
		r.send(option(wire.OptSetMetaContext, wire.AppendMetaContext(nil, name, contexts...)))
		for _, a := range r.answers(wire.OptSetMetaContext) {
			if a.rep == wire.RepMetaContext {
				ids[string(a.data[4:])] = binary.BigEndian.Uint32(a.data)
			}
		}
	}
	r.send(option(wire.OptGo, wire.AppendInfoRequest(nil, name)))
	if got := r.final(wire.OptGo); got != wire.RepAck {
		r.t.Fatalf("GO %q: got %s", name, wire.ReplyName(got))
	}
	return ids
}

type chunk struct {
	wire.StructuredReply
	data []byte
}

// chunks receives a structured reply.
func (r *raw) chunks(cookie uint64) (list []chunk) {
	r.t.Helper()
	for {
		h := wire.ParseStructuredReply(r.recv(wire.StructuredReplySize))
		if h.ReplyMagic != wire.StructuredReplyMagic || h.Handle != cookie {
			r.t.Fatalf("got %+v, want a chunk for cookie %d", h, cookie)
		}
		list = append(list, chunk{h, r.recv(int(h.Length))})
		if h.Flags&wire.ReplyFlagDone != 0 {
			return list
		}
		if h.Flags != 0 {
			r.t.Fatalf("unknown flags: %+v", h)
		}
	}
}

// failure returns the error of a reply that is one, and where it was.
func failure(list []chunk) (errno wire.Errno, off uint64) {
	last := list[len(list)-1]
	if last.Type != wire.ChunkErrorOffset || len(last.data) < 14 {
		return wire.OK, 0
	}
	return binary.BigEndian.Uint32(last.data), binary.BigEndian.Uint64(last.data[6:])
}

// readBack puts the chunks of a READ together, and checks that they cover it once.
func readBack(t testing.TB, list []chunk, off uint64, n int) (data []byte, holes int) {
	t.Helper()
	data = make([]byte, n)
	covered := 0
	for _, c := range list {
		at := binary.BigEndian.Uint64(c.data) - off
		length := len(c.data) - 8
		switch c.Type {
		case wire.ChunkOffsetData:
			copy(data[at:], c.data[8:])
		case wire.ChunkOffsetHole:
			length = int(binary.BigEndian.Uint32(c.data[8:]))
			holes++
		default:
			t.Fatalf("a chunk of type %d in the reply to a READ", c.Type)
		}
		if int(at) != covered {
			t.Fatalf("a chunk begins at %d, want %d", at, covered)
		}
		covered += length
	}
	if covered != n {
		t.Fatalf("the chunks cover %d bytes of %d", covered, n)
	}
	return data, holes
}

// holey is a device whose odd pairs of extents are holes.
func holey(size int) *memDevice {
	d := newMemDevice(size)
	d.holes = true
	fill(d.data, 5)
	for at := 2 * memExtent; at < size; at += 4 * memExtent {
		clear(d.data[at:min(at+2*memExtent, size)])
	}
	return d
}

func TestStructuredReads(t *testing.T) {
	const size = 40 << 20
	d := holey(size)
	_, path := serveOne(t, d)
	r, _ := openStructured(t, path, "a")
	for i, tc := range []struct {
		off   uint64
		n     int
		flags uint16
		holes int
		parts int
	}{
		{0, 1, 0, 0, 1},
		{100, 2*memExtent - 100, 0, 0, 2}, // on two tiers
		{2 * memExtent, 100, 0, 1, 1},
		{2*memExtent - 1, 2, 0, 1, 2},
		{2*memExtent - 1, 2, wire.CmdFlagDF, 0, 1},
		{2 * memExtent, 2 * memExtent, wire.CmdFlagDF, 1, 1},
		{0, 256 << 10, 0, 1, 3},
		{7, 256 << 10, wire.CmdFlagDF | wire.CmdFlagFUA, 0, 1},
		{0, inlineRead + 1, 0, 1, 4},
		{1, 3<<20 + 5, 0, 12, 37},
		{0, 16 << 20, 0, 21, 64}, // the rest is one
		{0, wire.MaxPayload, 0, 21, 64},
		{0, wire.MaxPayload, wire.CmdFlagDF, 0, 1},
	} {
		for _, miss := range []bool{false, true} {
			d.miss.Store(miss)
			r.send(message(wire.CmdRead, tc.flags, uint64(i), tc.off, uint32(tc.n)))
			list := r.chunks(uint64(i))
			got, holes := readBack(t, list, tc.off, tc.n)
			if !bytes.Equal(got, d.data[tc.off:tc.off+uint64(tc.n)]) {
				t.Errorf("%d: data of %d bytes at %d differ (miss %v)", i, tc.n, tc.off, miss)
			}
			if holes != tc.holes || len(list) != tc.parts {
				t.Errorf("%d: %d bytes at %d (miss %v): got %d chunks, %d of them holes, want %d and %d", i, tc.n, tc.off, miss, len(list), holes, tc.parts, tc.holes)
			}
		}
	}
}

// TestStructuredRequests: the outcomes that differ from those of TestRequests, and
// which of them come as chunks.
func TestStructuredRequests(t *testing.T) {
	const size = 1 << 20
	d := newMemDevice(size)
	d.fastZero = true
	d.readErr = func(off int64) error {
		if off == 7777 {
			return syscall.EIO
		}
		return nil
	}
	d.runErr = func(off int64) error {
		switch off {
		case 7777:
			return syscall.ENOTSUP
		case 8888:
			return ErrNotSupported
		}
		return nil
	}
	_, path := serveOne(t, d)
	r, ids := openStructured(t, path, "a", "base:allocation")
	if len(ids) != 1 {
		t.Fatalf("contexts: %v", ids)
	}
	for _, tc := range []struct {
		name   string
		cmd    wire.Cmd
		flags  uint16
		off    uint64
		n      uint32
		want   wire.Errno
		chunks bool
	}{
		{"READ past the end", wire.CmdRead, 0, size - 1, 2, wire.EINVAL, true},
		{"READ nothing", wire.CmdRead, 0, 0, 0, wire.EINVAL, true},
		{"READ over 32 MiB", wire.CmdRead, 0, 0, wire.MaxPayload + 1, wire.EINVAL, true},
		{"READ over 32 MiB, DF", wire.CmdRead, wire.CmdFlagDF, 0, wire.MaxPayload + 1, wire.EOVERFLOW, true},
		{"READ unknown flag", wire.CmdRead, 1 << 15, 0, 512, wire.EINVAL, true},
		{"READ an error", wire.CmdRead, 0, 7777, 512, wire.EIO, true},
		{"WRITE an error", wire.CmdWrite, 0, 7777, 1, wire.EIO, false}, // ENOTSUP is for FAST_ZERO alone
		{"WRITE_ZEROES ENOTSUP", wire.CmdWriteZeroes, 0, 8888, 1, wire.EIO, false},
		{"WRITE_ZEROES FAST_ZERO ENOTSUP", wire.CmdWriteZeroes, wire.CmdFlagFastZero, 8888, 1, wire.ENOTSUP, false},
		{"WRITE_ZEROES FAST_ZERO", wire.CmdWriteZeroes, wire.CmdFlagFastZero, 0, 4096, wire.OK, false},
		{"WRITE DF", wire.CmdWrite, wire.CmdFlagDF, 0, 1, wire.EINVAL, false},
		{"FLUSH", wire.CmdFlush, 0, 0, 0, wire.OK, false},
		{"BLOCK_STATUS past the end", wire.CmdBlockStatus, 0, 0, 1<<32 - 1, wire.EINVAL, true},
		{"BLOCK_STATUS nothing", wire.CmdBlockStatus, 0, 0, 0, wire.EINVAL, true},
		{"BLOCK_STATUS NO_HOLE", wire.CmdBlockStatus, wire.CmdFlagNoHole, 0, 1, wire.EINVAL, true},
	} {
		b := message(tc.cmd, tc.flags, 9, tc.off, tc.n)
		if tc.cmd == wire.CmdWrite {
			b = append(b, make([]byte, tc.n)...)
		}
		r.send(b)
		if !tc.chunks {
			if _, errno := r.reply(); errno != tc.want {
				t.Errorf("%s: got %s, want %s", tc.name, wire.ErrnoName(errno), wire.ErrnoName(tc.want))
			}
			continue
		}
		errno, off := failure(r.chunks(9))
		if errno != tc.want || errno != wire.OK && off != tc.off {
			t.Errorf("%s: got %s at %d, want %s at %d", tc.name, wire.ErrnoName(errno), off, wire.ErrnoName(tc.want), tc.off)
		}
	}
}

// TestErrorInTheMiddleOfAStructuredRead: what fails is told, with its place.
func TestErrorInTheMiddleOfAStructuredRead(t *testing.T) {
	d := holey(8 << 20)
	d.miss.Store(true)
	d.readErr = func(off int64) error {
		if off == 4*memExtent {
			return syscall.EIO
		}
		return nil
	}
	_, path := serveOne(t, d)
	r, _ := openStructured(t, path, "a")
	r.send(message(wire.CmdRead, 0, 1, 0, 6*memExtent))
	if errno, off := failure(r.chunks(1)); errno != wire.EIO || off != 4*memExtent {
		t.Errorf("got %s at %d, want EIO at %d", wire.ErrnoName(errno), off, 4*memExtent)
	}
}

// extentsOf checks the form of a reply to BLOCK_STATUS and returns its extents, by
// context.
func extentsOf(t testing.TB, list []chunk) map[uint32][][2]uint32 {
	t.Helper()
	all := map[uint32][][2]uint32{}
	for _, c := range list {
		if c.Type != wire.ChunkBlockStatus || len(c.data) < 12 || len(c.data)%8 != 4 {
			t.Fatalf("not a BLOCK_STATUS chunk: %+v, %d bytes", c.StructuredReply, len(c.data))
		}
		id := binary.BigEndian.Uint32(c.data)
		if _, twice := all[id]; twice {
			t.Fatalf("two chunks for context %d", id)
		}
		for p := c.data[4:]; len(p) > 0; p = p[8:] {
			e := [2]uint32{binary.BigEndian.Uint32(p), binary.BigEndian.Uint32(p[4:])}
			if e[0] == 0 {
				t.Fatal("an extent without length")
			}
			all[id] = append(all[id], e)
		}
	}
	return all
}

func TestBlockStatus(t *testing.T) {
	const k = memExtent
	d := holey(8*k + 100)
	_, path := serveOne(t, d)
	r, ids := openStructured(t, path, "a", "base:allocation", "tierd:tier", "base:unknown", "qemu:dirty-bitmap:x")
	if len(ids) != 2 {
		t.Fatalf("selected contexts: %v", ids)
	}
	const hole = wire.StateHole | wire.StateZero
	for _, tc := range []struct {
		off    uint64
		n      uint32
		flags  uint16
		alloc  [][2]uint32
		onTier [][2]uint32
	}{
		{0, 8*k + 100, 0, [][2]uint32{{2 * k, 0}, {2 * k, hole}, {2 * k, 0}, {2 * k, hole}, {100, 0}},
			[][2]uint32{{k, 1}, {k, 2}, {2 * k, 0}, {k, 1}, {k, 2}, {2 * k, 0}, {100, 1}}},
		{0, 8 * k, wire.CmdFlagReqOne, [][2]uint32{{2 * k, 0}}, [][2]uint32{{k, 1}}},
		{k - 1, 2, 0, [][2]uint32{{2, 0}}, [][2]uint32{{1, 1}, {1, 2}}},
		{2*k + 5, 1, wire.CmdFlagReqOne | wire.CmdFlagFUA, [][2]uint32{{1, hole}}, [][2]uint32{{1, 0}}},
	} {
		r.send(message(wire.CmdBlockStatus, tc.flags, 3, tc.off, tc.n))
		got := extentsOf(t, r.chunks(3))
		if a, b := got[ids["base:allocation"]], got[ids["tierd:tier"]]; !slices.Equal(a, tc.alloc) || !slices.Equal(b, tc.onTier) {
			t.Errorf("%d bytes at %d: got %v and %v, want %v and %v", tc.n, tc.off, a, b, tc.alloc, tc.onTier)
		}
	}
}

// sparse is a device of any size that holds nothing.
type sparse struct {
	*memDevice
	size, run int64
}

func (d *sparse) Size() int64 { return d.size }

// Span is a hole of at most run bytes, so that many make an extent.
func (d *sparse) Span(off, n int64) Span { return Span{Len: min(n, d.run), Hole: true} }

// TestCVE_2025_47711: extents near 4 GiB.
func TestCVE_2025_47711(t *testing.T) {
	for _, run := range []int64{1 << 40, 64 << 10, 3<<30 + 1} {
		_, path := serveOne(t, &sparse{newMemDevice(0), 1 << 40, run})
		r, ids := openStructured(t, path, "a", "base:allocation")
		for _, flags := range []uint16{0, wire.CmdFlagReqOne} {
			for _, n := range []uint32{1<<32 - 1, 1<<32 - 511, 1<<32 - 4095, 1 << 31} {
				for _, off := range []uint64{0, 511, 1<<32 - 1, 1<<40 - 1<<32} {
					r.send(message(wire.CmdBlockStatus, flags, 3, off, n))
					got := extentsOf(t, r.chunks(3))[ids["base:allocation"]]
					if want := [][2]uint32{{n, wire.StateHole | wire.StateZero}}; !slices.Equal(got, want) {
						t.Fatalf("%d bytes at %d: got %v, want %v", n, off, got, want)
					}
				}
			}
		}
	}
}

// stripes is a device whose state changes every 4 KiB.
type stripes struct{ *sparse }

func (d *stripes) Span(off, n int64) Span {
	return Span{Len: min(n, 4096-off%4096), Hole: off/4096%2 == 0, Tier: int(off / 4096 % 2)}
}

func TestBlockStatusIsBounded(t *testing.T) {
	_, path := serveOne(t, &stripes{&sparse{newMemDevice(0), 1 << 40, 0}})
	r, ids := openStructured(t, path, "a", "base:allocation", "tierd:tier")
	r.send(message(wire.CmdBlockStatus, 0, 3, 0, 1<<32-1))
	got := extentsOf(t, r.chunks(3))
	for name, id := range ids {
		if n := len(got[id]); n != maxStatusExtents {
			t.Errorf("%s: got %d extents, want %d", name, n, maxStatusExtents)
		}
		for _, e := range got[id] {
			if e[0] != 4096 {
				t.Fatalf("%s: an extent of %d bytes", name, e[0])
			}
		}
	}
}

func TestMetaContexts(t *testing.T) {
	e := newMemExports().add(ExportInfo{Name: "a"}, newMemDevice(1<<20)).add(ExportInfo{Name: "b"}, newMemDevice(1<<20))
	_, path := serve(t, Config{Exports: e})
	both := []string{"base:allocation", "tierd:tier"}
	for _, tc := range []struct {
		name string
		opt  wire.Option
		data []byte
		want []string
		rep  wire.Reply
	}{
		{"list all", wire.OptListMetaContext, wire.AppendMetaContext(nil, "a"), both, wire.RepAck},
		{"list a namespace", wire.OptListMetaContext, wire.AppendMetaContext(nil, "a", "base:"), both[:1], wire.RepAck},
		{"list ours", wire.OptListMetaContext, wire.AppendMetaContext(nil, "a", "tierd:"), both[1:], wire.RepAck},
		{"list a leaf twice", wire.OptListMetaContext, wire.AppendMetaContext(nil, "a", "base:allocation", "base:allocation"), both[:1], wire.RepAck},
		{"list what is not known", wire.OptListMetaContext, wire.AppendMetaContext(nil, "a", "base:x", "other:", "base", ""), nil, wire.RepAck},
		{"set nothing", wire.OptSetMetaContext, wire.AppendMetaContext(nil, "a"), nil, wire.RepAck},
		{"set both", wire.OptSetMetaContext, wire.AppendMetaContext(nil, "a", "tierd:tier", "base:allocation"), both, wire.RepAck},
		{"set a wildcard", wire.OptSetMetaContext, wire.AppendMetaContext(nil, "a", "base:"), nil, wire.RepAck},
		{"set what is not known", wire.OptSetMetaContext, wire.AppendMetaContext(nil, "a", "x:y", "base:allocationx"), nil, wire.RepAck},
		{"no such export", wire.OptSetMetaContext, wire.AppendMetaContext(nil, "c", "base:allocation"), nil, wire.RepErrUnknown},
		{"long name", wire.OptSetMetaContext, wire.AppendMetaContext(nil, string(make([]byte, 4097))), nil, wire.RepErrTooBig},
		{"no data", wire.OptListMetaContext, nil, nil, wire.RepErrInvalid},
		{"name cut short", wire.OptListMetaContext, []byte{0, 0, 0, 9, 'a'}, nil, wire.RepErrInvalid},
		{"name of 2^32-1", wire.OptListMetaContext, []byte{255, 255, 255, 255, 'a', 0, 0, 0, 0}, nil, wire.RepErrInvalid},
		{"no count", wire.OptListMetaContext, []byte{0, 0, 0, 1, 'a', 0, 0, 0}, nil, wire.RepErrInvalid},
		{"count too high", wire.OptListMetaContext, []byte{0, 0, 0, 1, 'a', 255, 255, 255, 255}, nil, wire.RepErrInvalid},
		{"query cut short", wire.OptListMetaContext, []byte{0, 0, 0, 1, 'a', 0, 0, 0, 1, 0, 0, 0, 9, 'b'}, nil, wire.RepErrInvalid},
		{"something behind", wire.OptListMetaContext, append(wire.AppendMetaContext(nil, "a", "base:"), 0), nil, wire.RepErrInvalid},
		{"a query with NUL", wire.OptListMetaContext, wire.AppendMetaContext(nil, "a", "base:\x00"), nil, wire.RepErrInvalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := dial(t, path).hello(bothFlags)
			r.send(option(tc.opt, tc.data))
			if got := r.final(tc.opt); got != wire.RepErrInvalid {
				t.Errorf("before STRUCTURED_REPLY: got %s", wire.ReplyName(got))
			}
			r.send(option(wire.OptStructuredReply, []byte{1}))
			if got := r.final(wire.OptStructuredReply); got != wire.RepErrInvalid {
				t.Errorf("STRUCTURED_REPLY with data: got %s", wire.ReplyName(got))
			}
			r.send(option(wire.OptStructuredReply, nil))
			r.final(wire.OptStructuredReply)
			r.send(option(tc.opt, tc.data))
			var got []string
			rep := wire.Reply(0)
			for _, a := range r.answers(tc.opt) {
				if rep = a.rep; rep == wire.RepMetaContext {
					got = append(got, string(a.data[4:]))
					if id := binary.BigEndian.Uint32(a.data); tc.opt == wire.OptListMetaContext && id != 0 {
						t.Errorf("a list gives id %d", id)
					}
				}
			}
			if rep != tc.rep || !slices.Equal(got, tc.want) {
				t.Errorf("got %v and %s, want %v and %s", got, wire.ReplyName(rep), tc.want, wire.ReplyName(tc.rep))
			}
		})
	}
}

// TestWhichSelectionCounts: the last one alone, and for the export that it named.
func TestWhichSelectionCounts(t *testing.T) {
	e := newMemExports().add(ExportInfo{Name: "a"}, newMemDevice(1<<20)).add(ExportInfo{Name: "b"}, newMemDevice(1<<20))
	e.def = "a"
	_, path := serve(t, Config{Exports: e})
	set := func(name string, q ...string) []byte {
		return option(wire.OptSetMetaContext, wire.AppendMetaContext(nil, name, q...))
	}
	for _, tc := range []struct {
		name   string
		before []byte
		export string
		want   wire.Errno
	}{
		{"the same export", set("a", "base:allocation"), "a", wire.OK},
		{"another export", set("b", "base:allocation"), "a", wire.EINVAL},
		{"the default by another name", set("a", "base:allocation"), "", wire.EINVAL},
		{"the default", set("", "base:allocation"), "", wire.OK},
		{"then nothing", append(set("a", "base:allocation"), set("a")...), "a", wire.EINVAL},
		{"then an error", append(set("a", "base:allocation"), set("c", "base:allocation")...), "a", wire.EINVAL},
		{"then nonsense", append(set("a", "base:allocation"), option(wire.OptSetMetaContext, []byte{1})...), "a", wire.EINVAL},
		{"then a list", append(set("a", "base:allocation"), option(wire.OptListMetaContext, wire.AppendMetaContext(nil, "b"))...), "a", wire.OK},
		{"none", nil, "a", wire.EINVAL},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := dial(t, path).hello(bothFlags)
			r.send(slices.Concat(option(wire.OptStructuredReply, nil), tc.before, option(wire.OptGo, wire.AppendInfoRequest(nil, tc.export))))
			for {
				h := wire.ParseOptionReply(r.recv(wire.OptionReplySize))
				r.recv(int(h.Length))
				if h.ID == wire.OptGo && h.Type == wire.RepAck {
					break
				}
			}
			r.send(message(wire.CmdBlockStatus, 0, 1, 0, 4096))
			if got, _ := failure(r.chunks(1)); got != tc.want {
				t.Errorf("got %s, want %s", wire.ErrnoName(got), wire.ErrnoName(tc.want))
			}
		})
	}
}

func TestCachePromotes(t *testing.T) {
	d := newMemDevice(1 << 20)
	_, path := serveOne(t, d)
	r := open(t, path, "a")
	r.send(message(wire.CmdCache, 0, 1, 4096, 8192))
	r.want(1, wire.OK)
	if got := d.promoted.Load(); got != 8192 {
		t.Errorf("promoted: got %d bytes, want 8192", got)
	}
}

// TestStructuredRepliesManyAtOnce: replies of hits, misses, holes and changes, in any
// order, each whole.
func TestStructuredRepliesManyAtOnce(t *testing.T) {
	const size = 16 << 20
	d := holey(size)
	_, path := serveOne(t, d)
	r, _ := openStructured(t, path, "a")
	rnd := rand.New(rand.NewPCG(3, 4))
	type read struct{ off, n int }
	reads := map[uint64]read{}
	var b []byte
	for i := range 400 {
		n := 1 + rnd.IntN(300<<10)
		reads[uint64(i)] = read{rnd.IntN(size - n), n}
		b = append(b, message(wire.CmdRead, 0, uint64(i), uint64(reads[uint64(i)].off), uint32(n))...)
	}
	go func() {
		for at := 0; at < len(b); at += 28 * 40 {
			d.miss.Store(at/(28*40)%2 == 1)
			_, _ = r.nc.Write(b[at:min(at+28*40, len(b))])
		}
	}()
	parts := map[uint64][]chunk{}
	for open := len(reads); open > 0; {
		h := wire.ParseStructuredReply(r.recv(wire.StructuredReplySize))
		if h.ReplyMagic != wire.StructuredReplyMagic {
			t.Fatalf("out of sync: %+v", h)
		}
		parts[h.Handle] = append(parts[h.Handle], chunk{h, r.recv(int(h.Length))})
		if h.Flags&wire.ReplyFlagDone == 0 {
			continue
		}
		open--
		q, ok := reads[h.Handle]
		if !ok {
			t.Fatalf("a second reply to %d", h.Handle)
		}
		delete(reads, h.Handle)
		if got, _ := readBack(t, parts[h.Handle], uint64(q.off), q.n); !bytes.Equal(got, d.data[q.off:q.off+q.n]) {
			t.Fatalf("read %d: data differ", h.Handle)
		}
	}
}
