package nbd

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"tierd/nbd/wire"
)

// A requestRow is a request and its outcome.
type requestRow struct {
	name     string
	readOnly bool
	cmd      wire.Cmd
	flags    uint16
	off      uint64
	n        uint32
	want     wire.Errno
}

const (
	requestSize = 1 << 20               // of the export in requestRows
	fatal       = wire.Errno(1<<32 - 1) // the connection ends
)

// requestRows is the conformance table of the transmission.
func requestRows() []requestRow {
	const size = requestSize
	return []requestRow{
		{"READ", false, wire.CmdRead, 0, 0, 4096, wire.OK},
		{"READ one byte at the end", false, wire.CmdRead, 0, size - 1, 1, wire.OK},
		{"READ all", false, wire.CmdRead, 0, 0, size, wire.OK},
		{"READ FUA", false, wire.CmdRead, wire.CmdFlagFUA, 0, 512, wire.OK},
		{"READ DF", false, wire.CmdRead, wire.CmdFlagDF, 0, 512, wire.EINVAL},
		{"READ unknown flag", false, wire.CmdRead, 1 << 15, 0, 512, wire.EINVAL},
		{"READ past the end", false, wire.CmdRead, 0, size - 1, 2, wire.EINVAL},
		{"READ at the end", false, wire.CmdRead, 0, size, 1, wire.EINVAL},
		{"READ wrapping", false, wire.CmdRead, 0, 1<<64 - 1, 2, wire.EINVAL},
		{"READ far out", false, wire.CmdRead, 0, 1 << 63, 512, wire.EINVAL},
		{"READ nothing", false, wire.CmdRead, 0, 0, 0, wire.EINVAL},
		{"READ over 32 MiB", false, wire.CmdRead, 0, 0, wire.MaxPayload + 1, wire.EINVAL},
		{"READ 4 GiB", false, wire.CmdRead, 0, 0, 1<<32 - 1, wire.EINVAL},
		{"READ read-only", true, wire.CmdRead, 0, 0, 4096, wire.OK},
		{"WRITE", false, wire.CmdWrite, 0, 511, 513, wire.OK},
		{"WRITE FUA", false, wire.CmdWrite, wire.CmdFlagFUA, 0, 512, wire.OK},
		{"WRITE NO_HOLE", false, wire.CmdWrite, wire.CmdFlagNoHole, 0, 512, wire.EINVAL},
		{"WRITE past the end", false, wire.CmdWrite, 0, size - 1, 2, wire.ENOSPC},
		{"WRITE wrapping", false, wire.CmdWrite, 0, 1<<64 - 256, 512, wire.ENOSPC},
		{"WRITE nothing", false, wire.CmdWrite, 0, 0, 0, wire.EINVAL},
		{"WRITE read-only", true, wire.CmdWrite, 0, 0, 4096, wire.EPERM},
		{"WRITE read-only, long", true, wire.CmdWrite, 0, 0, 300000, wire.EPERM},
		{"WRITE over 32 MiB", false, wire.CmdWrite, 0, 0, wire.MaxPayload + 1, wire.EINVAL},
		{"WRITE 4 GiB", false, wire.CmdWrite, 0, 0, 1<<32 - 1, fatal},
		{"FLUSH", false, wire.CmdFlush, 0, 0, 0, wire.OK},
		{"FLUSH FUA", false, wire.CmdFlush, wire.CmdFlagFUA, 0, 0, wire.OK},
		{"FLUSH read-only", true, wire.CmdFlush, 0, 0, 0, wire.OK},
		{"FLUSH with an offset", false, wire.CmdFlush, 0, 1, 0, wire.EINVAL},
		{"FLUSH with a length", false, wire.CmdFlush, 0, 0, 1, wire.EINVAL},
		{"FLUSH NO_HOLE", false, wire.CmdFlush, wire.CmdFlagNoHole, 0, 0, wire.EINVAL},
		{"TRIM", false, wire.CmdTrim, 0, 1, 4095, wire.OK},
		{"TRIM FUA", false, wire.CmdTrim, wire.CmdFlagFUA, 0, 4096, wire.OK},
		{"TRIM read-only", true, wire.CmdTrim, 0, 0, 4096, wire.EPERM},
		{"TRIM past the end", false, wire.CmdTrim, 0, 1, size, wire.EINVAL},
		{"TRIM 2^32-1 (CVE-2025-47712)", false, wire.CmdTrim, 0, 0, 1<<32 - 1, wire.EINVAL},
		{"TRIM 2^32-511 (CVE-2025-47712)", false, wire.CmdTrim, 0, 513, 1<<32 - 511, wire.EINVAL},
		{"TRIM 2^32-4095 (CVE-2025-47712)", false, wire.CmdTrim, 0, 4097, 1<<32 - 4095, wire.EINVAL},
		{"TRIM nothing", false, wire.CmdTrim, 0, 0, 0, wire.EINVAL},
		{"TRIM NO_HOLE", false, wire.CmdTrim, wire.CmdFlagNoHole, 0, 4096, wire.EINVAL},
		{"WRITE_ZEROES", false, wire.CmdWriteZeroes, 0, 3, 70000, wire.OK},
		{"WRITE_ZEROES FUA NO_HOLE", false, wire.CmdWriteZeroes, wire.CmdFlagFUA | wire.CmdFlagNoHole, 0, 4096, wire.OK},
		{"WRITE_ZEROES FAST_ZERO", false, wire.CmdWriteZeroes, wire.CmdFlagFastZero, 0, 4096, wire.ENOTSUP},
		{"WRITE FAST_ZERO", false, wire.CmdWrite, wire.CmdFlagFastZero, 0, 4096, wire.EINVAL},
		{"TRIM FAST_ZERO", false, wire.CmdTrim, wire.CmdFlagFastZero, 0, 4096, wire.EINVAL},
		{"WRITE_ZEROES past the end", false, wire.CmdWriteZeroes, 0, 0, size + 1, wire.ENOSPC},
		{"WRITE_ZEROES 2^32-1 (CVE-2025-47712)", false, wire.CmdWriteZeroes, 0, 511, 1<<32 - 1, wire.ENOSPC},
		{"WRITE_ZEROES read-only", true, wire.CmdWriteZeroes, 0, 0, 4096, wire.EPERM},
		{"CACHE", false, wire.CmdCache, 0, 0, 4096, wire.OK},
		{"CACHE FUA", false, wire.CmdCache, wire.CmdFlagFUA, 1, size - 1, wire.OK},
		{"CACHE read-only", true, wire.CmdCache, 0, 0, 4096, wire.OK},
		{"CACHE NO_HOLE", false, wire.CmdCache, wire.CmdFlagNoHole, 0, 4096, wire.EINVAL},
		{"CACHE past the end", false, wire.CmdCache, 0, 1, size, wire.EINVAL},
		{"CACHE 2^32-1", false, wire.CmdCache, 0, 511, 1<<32 - 1, wire.EINVAL},
		{"BLOCK_STATUS without a context", false, wire.CmdBlockStatus, 0, 0, 4096, wire.EINVAL},
		{"READ REQ_ONE", false, wire.CmdRead, wire.CmdFlagReqOne, 0, 512, wire.EINVAL},
		{"READ over 32 MiB, DF", false, wire.CmdRead, wire.CmdFlagDF, 0, wire.MaxPayload + 1, wire.EINVAL},
		{"BLOCK_STATUS 2^32-1 (CVE-2025-47711)", false, wire.CmdBlockStatus, 0, 0, 1<<32 - 1, wire.EINVAL},
		{"RESIZE", false, wire.CmdResize, 0, 0, 4096, wire.EINVAL},
		{"unknown command", false, 4711, 0, 0, 1<<32 - 1, wire.EINVAL},
	}
}

// TestRequests holds the server to the table. After each row the connection must be in
// sync, unless it ends.
func TestRequests(t *testing.T) {
	for _, tc := range requestRows() {
		t.Run(tc.name, func(t *testing.T) {
			d := newMemDevice(requestSize)
			fill(d.data, 1)
			e := newMemExports().add(ExportInfo{Name: "a", ReadOnly: tc.readOnly}, d)
			_, path := serve(t, Config{Exports: e})
			r := open(t, path, "a")
			b := message(tc.cmd, tc.flags, 77, tc.off, tc.n)
			if tc.cmd == wire.CmdWrite && tc.want != fatal {
				b = append(b, make([]byte, tc.n)...)
			}
			before := bytes.Clone(d.data)
			go r.nc.Write(b)
			if tc.want == fatal {
				r.closed()
				return
			}
			r.want(77, tc.want)
			if tc.cmd == wire.CmdRead && tc.want == wire.OK {
				if got := r.recv(int(tc.n)); !bytes.Equal(got, before[tc.off:tc.off+uint64(tc.n)]) {
					t.Error("data differ")
				}
			}
			r.inSync()
			changes := tc.want == wire.OK && (tc.cmd == wire.CmdWrite || tc.cmd == wire.CmdTrim || tc.cmd == wire.CmdWriteZeroes)
			d.mu.Lock()
			defer d.mu.Unlock()
			if changes {
				clear(before[tc.off : tc.off+uint64(tc.n)])
			}
			if !bytes.Equal(d.data, before) {
				t.Error("the device holds something else")
			}
			wantFUA := int64(0)
			if changes && tc.flags&wire.CmdFlagFUA != 0 {
				wantFUA = 1
			}
			if got := d.fuas.Load(); got != wantFUA {
				t.Errorf("changes with FUA: got %d, want %d", got, wantFUA)
			}
			if got := d.noHoles.Load(); (got == 1) != (changes && tc.flags&wire.CmdFlagNoHole != 0) {
				t.Errorf("changes with NO_HOLE: got %d", got)
			}
		})
	}
}

func TestWrongMagicEndsTheConnection(t *testing.T) {
	_, path := serveOne(t, newMemDevice(1<<20))
	r := open(t, path, "a")
	b := message(wire.CmdRead, 0, 1, 0, 1)
	b[0]++
	r.send(b)
	r.closed()
	open(t, path, "a").inSync()
}

func TestEveryLengthAndPlace(t *testing.T) {
	const size = 40 << 20
	d := newMemDevice(size)
	_, path := serveOne(t, d)
	r := open(t, path, "a")
	for i, tc := range []struct {
		off uint64
		n   int
	}{
		{0, 1}, {1, 511}, {513, 1023}, {4095, 2}, {0, 4096}, {7, inlineWrite}, {7, inlineWrite + 1},
		{100, inputSize - wire.RequestSize}, {100, inputSize}, {9, inlineRead}, {9, inlineRead + 1},
		{1, 1 << 20}, {5, 3<<20 + 1}, {4096, wire.MaxPayload}, {size - 1, 1},
	} {
		for _, miss := range []bool{false, true} {
			d.miss.Store(miss)
			data := fill(make([]byte, tc.n), byte(i))
			r.send(message(wire.CmdWrite, 0, 1, tc.off, uint32(tc.n), data...))
			r.want(1, wire.OK)
			r.send(message(wire.CmdRead, 0, 2, tc.off, uint32(tc.n)))
			r.wantData(2, data)
			r.send(message(wire.CmdWriteZeroes, 0, 3, tc.off, uint32(tc.n)))
			r.want(3, wire.OK)
		}
	}
	if d.begun.Load() != d.run.Load() {
		t.Errorf("%d changes begun and %d run", d.begun.Load(), d.run.Load())
	}
}

// TestRequestsCutAnywhere sends requests in pieces of all sizes, so that each
// header and payload is cut at each byte.
func TestRequestsCutAnywhere(t *testing.T) {
	d := newMemDevice(1 << 20)
	s, path := serveOne(t, d)
	s.slowChanges = 0 // after a hand-off, too, replies come in the order of the requests
	r := open(t, path, "a")
	var script, want []byte
	for i := range 20 {
		data := fill(make([]byte, 1+13*i), byte(i))
		script = append(script, message(wire.CmdWrite, 0, uint64(i), 100, uint32(len(data)), data...)...)
		script = append(script, message(wire.CmdRead, 0, uint64(1000+i), 100, uint32(len(data)))...)
		var h [wire.SimpleReplySize]byte
		wire.PutSimpleReply(h[:], wire.OK, uint64(i))
		want = append(want, h[:]...)
		wire.PutSimpleReply(h[:], wire.OK, uint64(1000+i))
		want = append(append(want, h[:]...), data...)
	}
	for piece := 1; piece < 200; piece += 3 {
		before := s.Snapshot().Handoffs
		got := make(chan []byte, 1)
		go func() {
			b := make([]byte, len(want))
			_, _ = io.ReadFull(r.nc, b)
			got <- b
		}()
		for rest := script; len(rest) > 0; {
			n := min(piece, len(rest))
			r.send(rest[:n])
			rest = rest[n:]
		}
		switch same := bytes.Equal(<-got, want); {
		case same:
		case s.Snapshot().Handoffs > before: // the machine stood still, and the order was another one
			piece -= 3
		default:
			t.Fatalf("pieces of %d bytes: replies differ", piece)
		}
	}
}

// TestPipelined has 128 requests in flight, some served at once and some by
// workers, and checks each answer against what the order of sending allows:
// each request has a range of its own.
func TestPipelined(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const depth, block = 128, 4096
	d := newMemDevice(depth * block)
	d.readGate = nil
	_, path := serveOne(t, d)
	r := open(t, path, "a")
	oracle := make([]byte, depth*block)
	for round := range 30 {
		d.miss.Store(round%3 == 1)
		var script []byte
		kind := make([]int, depth)
		for _, i := range rnd.Perm(depth) {
			kind[i] = rnd.IntN(5)
			off := uint64(i * block)
			switch kind[i] {
			case 0, 1:
				script = append(script, message(wire.CmdRead, 0, uint64(i), off, block)...)
			case 2:
				fill(oracle[off:off+block], byte(round+i))
				flags := uint16(rnd.IntN(2)) * wire.CmdFlagFUA
				script = append(script, message(wire.CmdWrite, flags, uint64(i), off, block, oracle[off:off+block]...)...)
			case 3:
				clear(oracle[off : off+block])
				script = append(script, message(wire.CmdWriteZeroes, 0, uint64(i), off, block)...)
			case 4:
				script = append(script, message(wire.CmdFlush, 0, uint64(i), 0, 0)...)
			}
		}
		go r.nc.Write(script)
		seen := make([]bool, depth)
		for range depth {
			cookie, errno := r.reply()
			if cookie >= depth || seen[cookie] || errno != wire.OK {
				t.Fatalf("round %d: got cookie %d %s", round, cookie, wire.ErrnoName(errno))
			}
			seen[cookie] = true
			if kind[cookie] < 2 {
				if got := r.recv(block); !bytes.Equal(got, oracle[cookie*block:(cookie+1)*block]) {
					t.Fatalf("round %d: data of %d differ", round, cookie)
				}
			}
		}
	}
	if d.begun.Load() != d.run.Load() {
		t.Errorf("%d changes begun and %d run", d.begun.Load(), d.run.Load())
	}
}

// TestOverlappingChangesKeepTheirOrder: the device sees changes in the order in
// which they were sent, whoever runs them.
func TestOverlappingChangesKeepTheirOrder(t *testing.T) {
	d := newMemDevice(4 << 20)
	_, path := serveOne(t, d)
	r := open(t, path, "a")
	sizes := []int{1, 4096, inlineWrite + 1, 512}
	for round := range 50 {
		var script, last []byte
		for i := range 16 {
			last = fill(make([]byte, sizes[(round+i)%len(sizes)]), byte(i+round))
			flags := uint16(i%2) * wire.CmdFlagFUA
			script = append(script, message(wire.CmdWriteZeroes, 0, uint64(100+i), 0, 300000)...)
			script = append(script, message(wire.CmdWrite, flags, uint64(i), 0, uint32(len(last)), last...)...)
		}
		go r.nc.Write(script)
		for range 32 {
			if _, errno := r.reply(); errno != wire.OK {
				t.Fatal(wire.ErrnoName(errno))
			}
		}
		r.send(message(wire.CmdRead, 0, 1, 0, uint32(len(last))))
		r.wantData(1, last)
	}
}

func TestDeviceErrorsAreAnswered(t *testing.T) {
	d := newMemDevice(1 << 20)
	d.readErr = func(off int64) error {
		if off == 4096 {
			return syscall.EIO
		}
		return nil
	}
	d.runErr = func(off int64) error {
		switch off {
		case 4096:
			return ErrNoSpace
		case 8192:
			return errors.New("anything")
		}
		return nil
	}
	d.flushErr = syscall.EIO
	_, path := serveOne(t, d)
	r := open(t, path, "a")
	for _, tc := range []struct {
		b    []byte
		want wire.Errno
	}{
		{message(wire.CmdRead, 0, 1, 4096, 512), wire.EIO},
		{message(wire.CmdRead, 0, 1, 4096, 300000), wire.EIO},
		{message(wire.CmdWrite, 0, 1, 4096, 1, 0), wire.ENOSPC},
		{message(wire.CmdWrite, wire.CmdFlagFUA, 1, 8192, 1, 0), wire.EIO},
		{message(wire.CmdTrim, 0, 1, 4096, 1), wire.ENOSPC},
		{message(wire.CmdWriteZeroes, 0, 1, 8192, 1), wire.EIO},
		{message(wire.CmdFlush, 0, 1, 0, 0), wire.EIO},
	} {
		r.send(tc.b)
		r.want(1, tc.want)
		r.inSync()
	}
}

func TestPanicsInTheDevice(t *testing.T) {
	for _, tc := range []struct {
		name string
		b    []byte
		miss bool
	}{
		{"TryRead", message(wire.CmdRead, 0, 1, 4096, 512), false},
		{"ReadAt", message(wire.CmdRead, 0, 1, 4096, 300000), true},
		{"Run inline", message(wire.CmdWrite, 0, 1, 4096, 1, 0), false},
		{"Run in a worker", message(wire.CmdTrim, wire.CmdFlagFUA, 1, 4096, 1), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newMemDevice(1 << 20)
			s, path := serveOne(t, d)
			other := open(t, path, "a")
			d.panicAt = 4096
			r := open(t, path, "a")
			r.send(tc.b)
			r.want(1, wire.EIO)
			r.closed()
			if got := s.Snapshot().Panics; got != 1 {
				t.Errorf("panics: got %d, want 1", got)
			}
			other.inSync()
		})
	}
}

func TestDiscFinishesWhatIsInFlight(t *testing.T) {
	d := newMemDevice(1 << 20)
	gate := make(chan struct{})
	d.miss.Store(true)
	d.readGate = func(off int64) <-chan struct{} { return gate }
	_, path := serveOne(t, d)
	r := open(t, path, "a")
	var script []byte
	for i := range 10 {
		script = append(script, message(wire.CmdRead, 0, uint64(i), 0, 4096)...)
		script = append(script, message(wire.CmdWrite, wire.CmdFlagFUA, uint64(100+i), 0, 1, 1)...)
	}
	script = append(script, message(wire.CmdDisc, 0, 0, 0, 0)...)
	script = append(script, message(wire.CmdRead, 0, 4711, 0, 1)...) // not read any more
	r.send(script)
	eventually(t, "the changes are made", func() bool { return d.fuas.Load() == 10 })
	close(gate)
	seen := map[uint64]bool{}
	for range 20 {
		cookie, errno := r.reply()
		if errno != wire.OK || seen[cookie] || cookie == 4711 {
			t.Fatalf("got cookie %d %s", cookie, wire.ErrnoName(errno))
		}
		seen[cookie] = true
		if cookie < 100 {
			r.recv(4096)
		}
	}
	r.closed()
	eventually(t, "the device is closed", func() bool { return d.closes.Load() == 1 })
}

// TestHangupDropsWhatHasNotHadItsTurn: changes in line when the client vanishes
// are not made, and leave the line.
func TestHangupDropsWhatHasNotHadItsTurn(t *testing.T) {
	d := newMemDevice(1 << 20)
	gate := make(chan struct{})
	d.runGate = func(off int64) <-chan struct{} {
		if off == 0 {
			return gate
		}
		return nil
	}
	s, path := serveOne(t, d)
	r := open(t, path, "a")
	var script []byte
	for i := range 10 {
		script = append(script, message(wire.CmdWrite, wire.CmdFlagFUA, uint64(i), uint64(i), 1, 1)...)
	}
	r.send(script)
	eventually(t, "all are in line", func() bool { return d.begun.Load() == 10 })
	r.nc.Close()
	other := open(t, path, "a")
	other.inSync()
	eventually(t, "the hang-up is noticed", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			if c.ctx.Err() != nil {
				return true
			}
		}
		return false
	})
	close(gate)
	other.send(message(wire.CmdWrite, 0, 1, 100, 1, 9))
	other.want(1, wire.OK)
	eventually(t, "the device is closed", func() bool { return d.closes.Load() == 1 })
	if got := d.dropped.Load(); got != 10 {
		t.Errorf("dropped: got %d, want 10", got)
	}
}

// TestHangupDuringAPause: the leader waits for room with requests in hand, and
// the client hangs up meanwhile. It may have sent them again elsewhere, so they
// are not begun any more.
func TestHangupDuringAPause(t *testing.T) {
	d := newMemDevice(1 << 20)
	gate := make(chan struct{})
	d.miss.Store(true)
	d.readGate = func(int64) <-chan struct{} { return gate }
	e := newMemExports().add(ExportInfo{Name: "a"}, d)
	s, path := serve(t, Config{Exports: e, MaxInFlight: 1})
	s.mu.Lock() // which orders this before the connections
	s.pollEvery = time.Millisecond
	s.mu.Unlock()
	r := open(t, path, "a")
	script := append(message(wire.CmdRead, 0, 1, 0, 1), message(wire.CmdRead, 0, 2, 0, 1)...)
	for i := range 10 {
		script = append(script, message(wire.CmdWrite, 0, uint64(i), 0, 1, 1)...)
	}
	r.send(script)
	eventually(t, "the first is in flight", func() bool { return s.Snapshot().InFlight == 1 })
	r.nc.Close()
	eventually(t, "the connection ends", func() bool { return d.closes.Load() == 1 })
	close(gate)
	if got := d.begun.Load(); got != 0 {
		t.Errorf("%d changes were begun after the hang-up", got)
	}
}

func TestPayloadsAreAligned(t *testing.T) {
	for n := 1; n <= wire.MaxPayload; n = n*3 + 1 {
		p := getPayload(n)
		if len(p.b) < n || uintptr(unsafe.Pointer(&p.b[0]))%4096 != 0 {
			t.Errorf("%d bytes: got %d at %p", n, len(p.b), &p.b[0])
		}
		p.put()
	}
}

func TestObserverAndCounters(t *testing.T) {
	d := newMemDevice(1 << 20)
	e := newMemExports().add(ExportInfo{Name: "a"}, d)
	o := &countingObserver{}
	s, path := serve(t, Config{Exports: e, Observer: o})
	dial(t, path).nc.Close()
	r := open(t, path, "a")
	r.send(message(wire.CmdRead, 0, 1, 0, 4096))
	r.want(1, wire.OK)
	r.recv(4096)
	d.miss.Store(true)
	r.send(message(wire.CmdRead, 0, 1, 0, 512))
	r.want(1, wire.OK)
	r.recv(512)
	r.send(message(wire.CmdWrite, 0, 1, 0, 3, 1, 2, 3))
	r.want(1, wire.OK)
	r.send(message(wire.CmdWrite, wire.CmdFlagFUA, 1, 0, 2, 1, 2))
	r.want(1, wire.OK)
	r.send(message(wire.CmdRead, 0, 1, 1<<20, 1))
	r.want(1, wire.EINVAL)
	r.send(message(wire.CmdDisc, 0, 0, 0, 0))
	r.closed()
	eventually(t, "both connections end", func() bool { return s.Snapshot().Open == 0 })
	st := s.Snapshot()
	if st.Requests != 5 || st.BytesRead != 4608 || st.BytesWritten != 5 || st.Accepted != 2 || st.HandshakeFailed != 1 {
		t.Errorf("got %+v", st)
	}
	if st.InFlight != 0 || st.BudgetFree != s.cfg.MaxTotalBytes {
		t.Errorf("something is still held: %+v", st)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.requests != 5 || o.errors != 1 || o.bytes != 4614 || o.closed != 1 || o.accepted != 2 || o.reasons[ReasonHangup] != 1 {
		t.Errorf("observer: got %+v", o)
	}
}
