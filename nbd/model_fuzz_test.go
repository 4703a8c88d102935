package nbd

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tierd/nbd/wire"
)

// modelSize is the size of the modelled export: four extents and a bit.
const modelSize = 4*memExtent + 100

// A modelOp is a request of one of the clients.
type modelOp struct {
	wire.Request
	client *modelClient
	seed   byte // of the payload
}

// at is what the byte at pos is after the change.
func (o *modelOp) at(pos int) byte {
	if o.Type == wire.CmdWrite {
		return o.seed + byte(pos)*7 + byte(pos>>8)*3
	}
	return 0
}

// end is where the range of a request that succeeded ends.
func (o *modelOp) end() int { return int(o.Offset) + int(o.Length) }

func (o *modelOp) covers(pos int) bool { return int(o.Offset) <= pos && pos < o.end() }

// touches tells whether a change has to do with [from, to).
func (o *modelOp) touches(from, to int) bool { return int(o.Offset) < to && from < o.end() }

type modelClient struct {
	*raw
	structured, readOnly bool
	ids                  map[string]uint32 // of contexts
	ops                  map[uint64]*modelOp
	chunks               map[uint64][]chunk
}

// A model is what an export holds by the book, between rounds of requests that run
// at the same time.
type model struct {
	t       *testing.T
	d       *memDevice
	data    []byte     // before the round
	round   []*modelOp // in the order of each client
	bad     bool       // reads of the device fail
	changes []*modelOp // of the round, those that may take effect

	flushes, promoted, fuas, noHoles int64
}

// modelOps makes requests, valid or not, of the bytes of a fuzzer, eight for each.
func modelOps(b []byte) (rounds [][]*modelOp, knobs []byte, clients []byte) {
	cmds := []wire.Cmd{wire.CmdRead, wire.CmdRead, wire.CmdRead, wire.CmdWrite, wire.CmdWrite, wire.CmdWrite, wire.CmdTrim,
		wire.CmdWriteZeroes, wire.CmdWriteZeroes, wire.CmdFlush, wire.CmdCache, wire.CmdBlockStatus, wire.CmdBlockStatus, wire.CmdResize, 4711}
	fits := map[wire.Cmd]uint16{wire.CmdRead: wire.CmdFlagDF, wire.CmdBlockStatus: wire.CmdFlagReqOne, wire.CmdWriteZeroes: wire.CmdFlagNoHole | wire.CmdFlagFastZero}
	const clientBits, endOfRound = 3, 0x80
	fresh := true
	for i := 0; len(b) >= 8 && i < 64; i, b = i+1, b[8:] {
		if fresh {
			rounds, knobs = append(rounds, nil), append(knobs, b[7])
		}
		o := &modelOp{seed: b[7] | 1}
		o.RequestMagic, o.Type, o.Handle = wire.RequestMagic, cmds[int(b[1])%len(cmds)], (uint64(i)+1)*0x9e3779b97f4a7c15
		if b[2]&0x40 != 0 { // most requests have no flags
			o.CommandFlags = uint16(b[2]&31) | uint16(b[2]&0x80)<<8
			if b[2]&0x20 == 0 {
				o.CommandFlags &= fits[o.Type] | wire.CmdFlagFUA
			}
		}
		switch at := binary.BigEndian.Uint16(b[3:]); {
		case o.Type == wire.CmdFlush && at%8 != 0:
		case at == 1<<16-1:
			o.Offset = 1<<64 - 1
		case at == 1<<16-2:
			o.Offset = 1 << 63
		case at == 1<<16-3:
			o.Offset = modelSize
		default:
			o.Offset = uint64(at) * 9 / 2
		}
		n := uint32(binary.BigEndian.Uint16(b[5:]))
		switch low := n & (1<<14 - 1); n >> 14 {
		case 0:
			o.Length = low & 63
		case 1:
			o.Length = low
		case 2:
			o.Length = low * 17
		case 3:
			o.Length = low<<18 | low
			if o.Type == wire.CmdWrite {
				o.Length = 1<<20 + low&7
			}
		}
		if b[3] == 0xfe && o.Length < modelSize { // up to the end, or a byte further
			o.Offset = modelSize - uint64(o.Length) + uint64(b[4]&1)
		}
		if o.Type == wire.CmdFlush && o.Offset == 0 && n%8 != 0 {
			o.Length = 0
		}
		last := len(rounds) - 1
		rounds[last] = append(rounds[last], o)
		clients = append(clients, b[0]&clientBits)
		fresh = b[0]&endOfRound != 0
	}
	return rounds, knobs, clients
}

// allowed returns the outcomes that the protocol and doc.go allow.
func (m *model) allowed(o *modelOp) (list []wire.Errno) {
	known := wire.CmdFlagFUA
	past := wire.EINVAL
	switch o.Type {
	case wire.CmdRead:
		if o.client.structured {
			known |= wire.CmdFlagDF
		}
		if o.Length > 1<<20 {
			list = append(list, wire.EINVAL)
			if o.CommandFlags&known&wire.CmdFlagDF != 0 {
				list = append(list, wire.EOVERFLOW)
			}
		}
	case wire.CmdWrite:
		past = wire.ENOSPC
		if o.Length > 1<<20 {
			list = append(list, wire.EINVAL)
		}
	case wire.CmdWriteZeroes:
		past = wire.ENOSPC
		known |= wire.CmdFlagNoHole | wire.CmdFlagFastZero
	case wire.CmdBlockStatus:
		known |= wire.CmdFlagReqOne
		if len(o.client.ids) == 0 {
			list = append(list, wire.EINVAL)
		}
	case wire.CmdTrim, wire.CmdCache:
	case wire.CmdFlush:
		if o.CommandFlags&^known != 0 || o.Offset|uint64(o.Length) != 0 {
			return []wire.Errno{wire.EINVAL}
		}
		return []wire.Errno{wire.OK}
	default:
		return []wire.Errno{wire.EINVAL}
	}
	if o.CommandFlags&^known != 0 || o.Length == 0 {
		list = append(list, wire.EINVAL)
	}
	if o.client.readOnly && changes(o.Type) {
		list = append(list, wire.EPERM)
	}
	if o.Offset > modelSize || uint64(o.Length) > modelSize-o.Offset {
		list = append(list, past)
	}
	switch {
	case len(list) > 0:
	case o.Type == wire.CmdRead && m.bad:
		list = append(list, wire.EIO)
		if o.client.structured {
			list = append(list, wire.OK) // if it is all holes
		}
	case o.CommandFlags&wire.CmdFlagFastZero != 0 && !m.d.fastZero:
		list = append(list, wire.ENOTSUP)
	default:
		list = append(list, wire.OK)
	}
	return list
}

// run sends the requests of a round, those of each client as fast as it can, and
// checks all replies and what they leave.
func (m *model) run(clients []*modelClient) {
	m.changes = m.changes[:0]
	for _, c := range clients {
		c.ops = map[uint64]*modelOp{}
		c.chunks = map[uint64][]chunk{}
	}
	for _, o := range m.round {
		o.client.ops[o.Handle] = o
		if changes(o.Type) && slices.Equal(m.allowed(o), []wire.Errno{wire.OK}) {
			m.changes = append(m.changes, o)
		}
	}
	sent := make(chan error, len(clients))
	for _, c := range clients {
		var b []byte
		for _, o := range m.round {
			if o.client != c {
				continue
			}
			b = append(b, message(o.Type, o.CommandFlags, o.Handle, o.Offset, o.Length)...)
			if o.Type == wire.CmdWrite {
				for i := range int(o.Length) {
					b = append(b, o.at(int(o.Offset)+i))
				}
			}
		}
		go func() {
			_, err := c.nc.Write(b)
			sent <- err
		}()
	}
	for _, c := range clients {
		for len(c.ops) > 0 {
			m.receive(c)
		}
	}
	for range clients {
		if err := <-sent; err != nil {
			m.t.Fatal(err)
		}
	}
	m.settle()
}

// receive takes a simple reply, or a chunk, of any request and checks it.
func (m *model) receive(c *modelClient) {
	t := m.t
	magic := c.recv(4)
	if binary.BigEndian.Uint32(magic) == wire.SimpleReplyMagic {
		h := wire.ParseSimpleReply(append(magic, c.recv(wire.SimpleReplySize-4)...))
		o := c.ops[h.Handle]
		if o == nil || c.structured && (o.Type == wire.CmdRead || o.Type == wire.CmdBlockStatus) {
			t.Fatalf("got the simple reply %+v to %+v", h, o)
		}
		m.done(o, h.Error)
		if o.Type == wire.CmdRead && h.Error == wire.OK {
			m.checkData(o, int(o.Offset), c.recv(int(o.Length)))
		}
		return
	}
	h := wire.ParseStructuredReply(append(magic, c.recv(wire.StructuredReplySize-4)...))
	o := c.ops[h.Handle]
	if h.ReplyMagic != wire.StructuredReplyMagic || !c.structured || o == nil || o.Type != wire.CmdRead && o.Type != wire.CmdBlockStatus || h.Flags&^wire.ReplyFlagDone != 0 {
		t.Fatalf("got the chunk %+v to %+v", h, o)
	}
	list := append(c.chunks[h.Handle], chunk{h, c.recv(int(h.Length))})
	c.chunks[h.Handle] = list
	if h.Flags&wire.ReplyFlagDone == 0 {
		return
	}
	errno, off := failure(list)
	m.done(o, errno)
	if errno != wire.OK {
		if off < o.Offset || off > o.Offset && off-o.Offset >= uint64(o.Length) {
			t.Fatalf("%+v failed at %d", o.Request, off)
		}
		return
	}
	if o.Type == wire.CmdBlockStatus {
		m.checkStatus(o, list)
		return
	}
	data, holes := readBack(t, list, o.Offset, int(o.Length))
	if m.bad && holes != len(list) {
		t.Fatalf("%+v: data of a device that cannot be read", o.Request)
	}
	if o.CommandFlags&wire.CmdFlagDF != 0 && len(list) != 1 {
		t.Fatalf("%+v: %d chunks", o.Request, len(list))
	}
	m.checkData(o, int(o.Offset), data)
}

// done notes the outcome of a request.
func (m *model) done(o *modelOp, errno wire.Errno) {
	delete(o.client.ops, o.Handle)
	if want := m.allowed(o); !slices.Contains(want, errno) {
		m.t.Fatalf("%+v: got %s, want one of %v", o.Request, wire.ErrnoName(errno), want)
	}
	if (errno == wire.OK || errno == wire.ENOTSUP) && o.Type == wire.CmdWriteZeroes && o.CommandFlags&wire.CmdFlagNoHole != 0 {
		m.noHoles++
	}
	switch {
	case errno == wire.ENOTSUP && o.CommandFlags&wire.CmdFlagFUA != 0:
		m.fuas++
	case errno != wire.OK:
	case o.Type == wire.CmdFlush:
		m.flushes++
	case o.Type == wire.CmdCache:
		m.promoted += int64(o.Length)
	case changes(o.Type) && o.CommandFlags&wire.CmdFlagFUA != 0:
		m.fuas++
	}
}

// checkData checks what was read: each byte is what it was before the round, or
// what a change of the round made it.
func (m *model) checkData(o *modelOp, off int, data []byte) {
	if bytes.Equal(data, m.data[off:off+len(data)]) {
		return
	}
	for i, b := range data {
		pos := off + i
		if b != m.data[pos] && !slices.ContainsFunc(m.changes, func(w *modelOp) bool { return w.covers(pos) && w.at(pos) == b }) {
			m.t.Fatalf("%+v: byte %d is %#x, want %#x", o.Request, pos, b, m.data[pos])
		}
	}
}

// checkStatus checks the extents of a BLOCK_STATUS; what changes in the same round
// may be in either state.
func (m *model) checkStatus(o *modelOp, list []chunk) {
	got := extentsOf(m.t, list)
	if len(got) != len(o.client.ids) {
		m.t.Fatalf("%+v: %d contexts, want %d", o.Request, len(got), len(o.client.ids))
	}
	for name, id := range o.client.ids {
		pos := int(o.Offset)
		for i, e := range got[id] {
			end := pos + int(e[0])
			if end > o.end() {
				m.t.Fatalf("%+v: %s tells of %d", o.Request, name, end)
			}
			if i > 0 && e[1] == got[id][i-1][1] {
				m.t.Fatalf("%+v: %s has two extents of one state at %d", o.Request, name, pos)
			}
			for ; pos < end; pos = min(end, (pos/memExtent+1)*memExtent) {
				from := pos / memExtent * memExtent
				to := min(from+memExtent, modelSize)
				if slices.ContainsFunc(m.changes, func(w *modelOp) bool { return w.touches(from, to) }) {
					continue
				}
				hole := !slices.ContainsFunc(m.data[from:to], func(b byte) bool { return b != 0 })
				want := uint32(0)
				switch {
				case name == "tierd:tier" && !hole:
					want = 1 + uint32(pos/memExtent%2)
				case name == "base:allocation" && hole:
					want = wire.StateHole | wire.StateZero
				}
				if e[1] != want {
					m.t.Fatalf("%+v: %s of %d is %d, want %d", o.Request, name, pos, e[1], want)
				}
			}
		}
		one := o.CommandFlags&wire.CmdFlagReqOne != 0
		if one && len(got[id]) != 1 || !one && pos != o.end() {
			m.t.Fatalf("%+v: %s ends at %d, in %d extents", o.Request, name, pos, len(got[id]))
		}
	}
}

// settle checks what a round has left: each byte is as the last change of one of
// the clients made it, and what nothing changed is as it was.
func (m *model) settle() {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	want := bytes.Clone(m.data)
	for _, w := range m.changes {
		for pos := int(w.Offset); pos < w.end(); pos++ {
			b := m.d.data[pos]
			if want[pos] == b && m.data[pos] != b {
				continue // checked for an earlier change
			}
			if !slices.ContainsFunc(m.changes, func(v *modelOp) bool { return v.covers(pos) && v.at(pos) == b && m.mayBeLast(v, pos) }) {
				m.t.Fatalf("byte %d is %#x after the round, which no last change made it", pos, b)
			}
			want[pos] = b
		}
	}
	if !bytes.Equal(want, m.d.data) {
		m.t.Fatal("what nothing changed is not as it was")
	}
	m.data = want
}

// mayBeLast tells whether no later change of the same client covers pos.
func (m *model) mayBeLast(w *modelOp, pos int) bool {
	later := m.changes[slices.Index(m.changes, w)+1:]
	return !slices.ContainsFunc(later, func(v *modelOp) bool { return v.client == w.client && v.covers(pos) })
}

// socketPair returns two ends of a Unix stream socket.
func socketPair(t *testing.T) (client, server net.Conn) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return ends[0], ends[1]
}

// FuzzModel: rounds of requests, valid or not, of four clients at the same time, with
// simple or structured replies: each reply is checked for form and content against
// a model of the export.
func FuzzModel(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		b := make([]byte, 8*(1+rnd.IntN(64)))
		for j := range b {
			b[j] = byte(rnd.Uint32())
		}
		for j := 0; i%3 > 0 && j < len(b); j += 8 { // mostly valid ones
			b[j+2] &= 0x5f
			b[j+5] &= 0xbf
			if i%3 == 1 {
				b[j+3] = []byte{0xfe, b[j+3] & 0x7f}[rnd.IntN(2)]
			}
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		d := newMemDevice(modelSize)
		d.holes, d.fastZero = true, len(input) > 0 && input[0]&0x40 != 0
		fill(d.data[:2*memExtent], 5)
		var bad atomic.Bool
		d.readErr = func(int64) error {
			if bad.Load() {
				return syscall.EIO
			}
			return nil
		}
		e := newMemExports().add(ExportInfo{Name: "a"}, d).add(ExportInfo{Name: "r", ReadOnly: true}, d)
		s := NewServer(Config{Exports: e, MaxPayload: 1 << 20})
		var clients []*modelClient
		for i, name := range []string{"a", "a", "a", "r"} {
			c, server := socketPair(t)
			t.Cleanup(func() { c.Close() })
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			s.start(server)
			clients = append(clients, modelHello(&raw{t, c}, name, i))
		}

		m := &model{t: t, d: d, data: bytes.Clone(d.data)}
		rounds, knobs, who := modelOps(input)
		for i, ops := range rounds {
			for j, o := range ops {
				o.client = clients[who[j]]
			}
			who = who[len(ops):]
			d.miss.Store(knobs[i]&1 != 0)
			m.bad = knobs[i]&6 == 6
			bad.Store(m.bad)
			m.round = ops
			m.run(clients)
		}

		for _, c := range clients {
			c.send(message(wire.CmdDisc, 0, 0, 0, 0))
			if rest, err := io.ReadAll(c.nc); err != nil || len(rest) > 0 {
				t.Fatalf("after DISC: got %x and %v", rest, err)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
		snap := s.Snapshot()
		if snap.Panics != 0 || snap.BudgetFree != s.cfg.MaxTotalBytes {
			t.Errorf("%d panics, %d bytes of the budget are lost", snap.Panics, s.cfg.MaxTotalBytes-snap.BudgetFree)
		}
		if a, b := d.begun.Load(), d.run.Load(); a != b || d.closes.Load() != int64(len(clients)) {
			t.Errorf("%d changes begun and %d run, %d times closed", a, b, d.closes.Load())
		}
		got := [...]int64{d.flushes.Load(), d.promoted.Load(), d.fuas.Load(), d.noHoles.Load()}
		if want := [...]int64{m.flushes, m.promoted, m.fuas, m.noHoles}; got != want {
			t.Errorf("flushes, promoted bytes, FUA, NO_HOLE: got %d, want %d", got, want)
		}
	})
}

// modelHello takes a client to the transmission: the first with simple replies, the
// others with structured ones, the last two with contexts.
func modelHello(r *raw, name string, i int) *modelClient {
	c := &modelClient{raw: r, readOnly: name == "r", structured: i > 0}
	var contexts []string
	if i > 1 {
		contexts = []string{"base:allocation", "tierd:tier"}[:i-1]
	}
	if !c.structured {
		r.hello(bothFlags)
		r.send(option(wire.OptExportName, []byte(name)))
		r.recv(10)
		return c
	}
	c.ids = r.structuredGo(name, contexts)
	return c
}
