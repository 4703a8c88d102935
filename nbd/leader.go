package nbd

import (
	"errors"
	"time"

	"tierd/nbd/wire"
)

// slowChanges is how many changes and misses go to workers untried after an
// inline call blocked: on a slow device each try would cost the connection a tick.
const slowChanges = 128

// errHanded is returned by what found that the connection has a new leader:
// the caller lets go of it at once.
var errHanded = errors.New("the connection was handed to a follower")

// A follower is a conn that is about to get a new leader.
type follower conn

// do takes over the leadership from a leader that is blocked in an inline call.
// The blocked one still uses the input buffer, so the rest of it is copied.
func (f *follower) do() {
	c := (*conn)(f)
	if !c.counted {
		r := c.newRequest(c.inline, c.now)
		c.mu.Lock()
		c.inflight++
		noted := c.pending.addBlocked(r, c.seq)
		c.mu.Unlock()
		if !noted {
			r.free()
		}
	}
	old, in := c.in, getBuffer(&inputPool)
	in.end = copy(in.b, old.b[old.pos:old.end])
	c.in = in
	unref(old)
	c.slow = c.srv.slowChanges
	c.state.Store(c.seq | stateLeading)

	if err := c.flush(); err != nil {
		c.end(err)
		return
	}
	c.lead()
}

// unref lets go of one of the two sides of an input buffer that was handed off.
func unref(b *buffer) {
	if b.refs.Add(1) == 2 {
		inputPool.Put(b)
	}
}

// enter says that a call which may block begins. All that the leader owns must
// be as a follower can take it; the leader must not touch it until leave.
// The leader's seq is returned because it, too, may be the follower's by then.
func (c *conn) enter(counted bool) (seq uint64) {
	c.counted = counted
	c.seq += stateStep
	seq = c.seq
	c.state.Store(seq | stateBusy)
	if !c.watched.Load() {
		c.srv.watchdog.watch(c)
	}
	return seq
}

// leave returns whether the caller of enter with that seq still leads.
func (c *conn) leave(seq uint64) bool {
	return c.state.CompareAndSwap(seq|stateBusy, seq|stateLeading)
}

// lead serves the requests of the client until the connection ends or is
// handed to a follower.
func (c *conn) lead() {
	var err error
	for err == nil {
		if c.in == nil || c.in.end-c.in.pos < wire.RequestSize {
			err = c.refill(wire.RequestSize)
			continue
		}
		err = c.serve(wire.ParseRequest(c.in.b[c.in.pos:]))
	}
	if !errors.Is(err, errHanded) {
		c.end(err)
	}
}

// serve serves or begins the request whose header is next in the input.
func (c *conn) serve(h wire.Request) error {
	if h.RequestMagic != wire.RequestMagic {
		return errProtocol
	}
	if h.Type == wire.CmdDisc {
		return errDisconnect
	}
	if errno := c.check(&h); errno != wire.OK {
		c.in.pos += wire.RequestSize
		return c.refuse(h, errno)
	}
	switch h.Type {
	case wire.CmdRead:
		c.in.pos += wire.RequestSize
		return c.serveRead(h)
	case wire.CmdWrite:
		return c.serveWrite(h)
	case wire.CmdFlush, wire.CmdCache:
		c.in.pos += wire.RequestSize
		return c.dispatch(h, 0)
	case wire.CmdBlockStatus:
		c.in.pos += wire.RequestSize
		return c.serveStatus(h)
	}
	c.in.pos += wire.RequestSize
	if h.Length > inlineRange || h.CommandFlags&wire.CmdFlagFUA != 0 || c.isSlow() {
		return c.dispatch(h, 0)
	}
	return c.runInline(h, nil)
}

// refuse answers a request that the Device does not get to see.
func (c *conn) refuse(h wire.Request, errno wire.Errno) error {
	if h.Type == wire.CmdWrite {
		if h.Length > 2*wire.MaxPayload {
			return errProtocol
		}
		if err := c.discard(int(h.Length)); err != nil {
			return err
		}
	}
	c.tell(&h, errno)
	return c.answer(&h, errno)
}

// tell is account for the leader.
func (c *conn) tell(h *wire.Request, errno wire.Errno) {
	c.tally.requests++
	if errno == wire.OK {
		switch h.Type {
		case wire.CmdRead:
			c.tally.read += uint64(h.Length)
		case wire.CmdWrite:
			c.tally.written += uint64(h.Length)
		}
	}
	if c.obs != nil {
		c.obs.Request(h.Type, h.Length, time.Duration(clock()-c.now), errno)
	}
}

func (c *conn) serveRead(h wire.Request) error {
	n := int(h.Length)
	if n > inlineRead {
		return c.dispatch(h, n)
	}
	if c.structured {
		return c.serveChunks(h)
	}
	b, err := c.room(wire.SimpleReplySize + n)
	if err != nil {
		return err
	}
	ok, err := c.tryRead(b[wire.SimpleReplySize:], int64(h.Offset))
	if err != nil {
		return c.failed(&h, err)
	}
	if !ok {
		return c.dispatch(h, n)
	}
	wire.PutSimpleReply(b, wire.OK, h.Handle)
	c.out.end += len(b)
	c.tell(&h, wire.OK)
	if c.out.end >= flushAt {
		return c.flush()
	}
	return nil
}

func (c *conn) serveWrite(h wire.Request) error {
	n := int(h.Length)
	if n > inlineWrite {
		c.in.pos += wire.RequestSize
		return c.dispatch(h, n)
	}
	if whole := wire.RequestSize + n; c.in.end-c.in.pos < whole {
		if err := c.refill(whole); err != nil {
			return err
		}
	}
	c.in.pos += wire.RequestSize
	if h.CommandFlags&wire.CmdFlagFUA != 0 || c.isSlow() {
		return c.dispatch(h, n)
	}
	data := c.in.b[c.in.pos : c.in.pos+n]
	c.in.pos += n
	return c.runInline(h, data)
}

// isSlow tells whether a change or a miss had better go to a worker.
func (c *conn) isSlow() bool {
	if c.slow == 0 {
		return false
	}
	c.slow--
	return true
}

// failed answers a request at which the Device panicked, and ends the connection.
func (c *conn) failed(h *wire.Request, err error) error {
	errno := outcome(h, err)
	c.tell(h, errno)
	if err := c.answer(h, errno); err != nil {
		return err
	}
	return errStopping
}

// runInline makes a change in the leader; data lives in the input buffer. If it
// takes long, the connection gets a new leader meanwhile, and this one ends as
// the worker of this request.
func (c *conn) runInline(h wire.Request, data []byte) error {
	if err := c.current(); err != nil {
		return err
	}
	m, err := c.begin(&h)
	if err != nil {
		return c.failed(&h, err)
	}
	in, start := c.in, c.now
	c.inline = h
	seq := c.enter(false)
	err = c.runMutation(m, data, false)
	if c.leave(seq) {
		errno := outcome(&h, err)
		c.tell(&h, errno)
		return c.answer(&h, errno)
	}

	unref(in)
	c.mu.Lock()
	blocked := c.pending.takeBlocked(seq)
	c.mu.Unlock()
	r := c.newRequest(h, start)
	if blocked != nil {
		r.slow = blocked.slow
		blocked.free()
	}
	r.counted = true
	r.finish(err)
	c.push(r)
	return errHanded
}

// dispatch has a request served by a worker. n is the length of its payload, or
// of that of its reply. A change gets its place in line here, when its payload
// is complete, so that a client that stops in the middle holds up nobody.
func (c *conn) dispatch(h wire.Request, n int) error {
	charge, err := c.admit(int64(n))
	if err != nil {
		return err
	}
	r := c.newRequest(h, c.now)
	r.counted, r.charge = true, charge
	if n > 0 {
		r.mem = getPayload(n)
		r.data = r.mem.b[:n]
	}
	if h.Type == wire.CmdWrite {
		err = c.readFull(r.data)
		r.start = c.now
	}
	if err == nil && changes(h.Type) {
		err = c.current()
	}
	if err != nil {
		r.free()
		c.unadmit(charge)
		return err
	}
	if changes(h.Type) {
		if r.m, err = c.begin(&h); err != nil {
			r.finish(err)
			c.push(r)
			return errStopping
		}
	}
	c.mu.Lock()
	c.pending.add(r)
	c.mu.Unlock()
	if h.Type == wire.CmdRead && !c.isSlow() && c.alone() {
		return c.runHere(r)
	}
	c.srv.workers.submit(r)
	return nil
}

// alone tells whether the request just admitted is the only one there is.
func (c *conn) alone() bool {
	if c.in.pos != c.in.end || c.out != nil && c.out.end != 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inflight == 1 && !c.writing
}

// runHere runs r in the leader, which has nothing else to do, and so saves the
// way to a worker and back.
func (c *conn) runHere(r *request) error {
	in := c.in
	seq := c.enter(true)
	r.run()
	lead := c.leave(seq)
	c.push(r)
	if !lead {
		unref(in)
		return errHanded
	}
	return nil
}
