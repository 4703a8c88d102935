package nbd

import (
	"fmt"
	"sync"

	"tierd/nbd/wire"
)

// A request is a request in flight that is not, or no longer, in the hands of
// the leader; and after that its reply, on the way to the socket. The leader
// also uses one, with cmd of no meaning, to queue a buffer of finished replies.
type request struct {
	c    *conn
	next *request // in conn.head

	head  wire.Request
	start int64    // when it was read from the socket, by clock()
	m     Mutation // of a change that has its place in line
	mem   *payload // memory that data lives in
	data  []byte   // of a write: what to write; of a read: what was read
	errno wire.Errno

	// In conn.pending.
	before, after *request
	listed, slow  bool
	seq           uint64 // of the inline call that it stands for; 0: none

	counted bool  // in conn.inflight
	charge  int64 // bytes taken from conn.held and the server's budget

	header [wire.ErrorChunkSize]byte // of a reply, or of an error chunk
	// Of a READ with a structured reply.
	chunks   []Span
	headers  [][wire.HoleChunkSize]byte
	failedAt uint64 // from the start of the range

	out *buffer // finished replies of the leader, instead of all the above
}

var requestPool = sync.Pool{New: func() any { return new(request) }}

// newRequest returns a request read from the socket at start. It touches nothing
// of the leader's.
func (c *conn) newRequest(h wire.Request, start int64) *request {
	r := requestPool.Get().(*request)
	r.c, r.head, r.start = c, h, start
	return r
}

// free gives back what r holds, r included.
func (r *request) free() {
	if r.mem != nil {
		r.mem.put()
	}
	if r.out != nil {
		outputPool.Put(r.out)
	}
	*r = request{chunks: r.chunks[:0], headers: r.headers[:0]}
	requestPool.Put(r)
}

// do runs r in a worker.
func (r *request) do() {
	r.run()
	r.c.push(r)
}

// run has the Device do what r asks and fills in the outcome.
func (r *request) run() {
	r.finish(r.c.execute(r))
}

// finish fills in the outcome and tells it.
func (r *request) finish(err error) {
	r.errno = outcome(&r.head, err)
	if r.errno != wire.OK || r.head.Type != wire.CmdRead {
		r.data = nil
	}
	r.c.account(r.head, r.start, r.errno)
}

// outcome is errnoOf, but for what the protocol allows as an answer to a fast zeroing
// alone.
func outcome(h *wire.Request, err error) wire.Errno {
	errno := errnoOf(err)
	if errno == wire.ENOTSUP && h.CommandFlags&wire.CmdFlagFastZero == 0 {
		return wire.EIO
	}
	return errno
}

// execute calls the Device. A panic there becomes errPanic.
func (c *conn) execute(r *request) (err error) {
	defer c.caught(&err)
	switch r.head.Type {
	case wire.CmdRead:
		if c.structured {
			return r.readChunks()
		}
		return c.dev.ReadAt(c.ctx, r.data, int64(r.head.Offset))
	case wire.CmdFlush:
		return c.dev.Flush(c.ctx)
	case wire.CmdCache:
		return c.dev.Promote(c.ctx, int64(r.head.Offset), int64(r.head.Length))
	}
	return r.m.Run(c.ctx, r.data, r.head.CommandFlags&wire.CmdFlagFUA != 0)
}

// tryRead is Device.TryRead; after a panic it is as if the device failed.
func (c *conn) tryRead(p []byte, off int64) (ok bool, err error) {
	defer c.caught(&err)
	return c.dev.TryRead(p, off), nil
}

// runMutation is Mutation.Run; a panic there becomes errPanic.
func (c *conn) runMutation(m Mutation, p []byte, fua bool) (err error) {
	defer c.caught(&err)
	return m.Run(c.ctx, p, fua)
}

// begin puts the change that h asks for in line.
func (c *conn) begin(h *wire.Request) (m Mutation, err error) {
	defer c.caught(&err)
	off, n := int64(h.Offset), int64(h.Length)
	switch h.Type {
	case wire.CmdWrite:
		return c.dev.BeginWrite(off, n), nil
	case wire.CmdTrim:
		return c.dev.BeginTrim(off, n), nil
	}
	return c.dev.BeginWriteZeroes(off, n, h.CommandFlags&wire.CmdFlagNoHole != 0, h.CommandFlags&wire.CmdFlagFastZero != 0), nil
}

// caught turns a panic into errPanic, and ends the connection after the replies
// that are due: what else the Device left half done, nobody knows.
func (c *conn) caught(err *error) {
	p := recover()
	if p == nil {
		return
	}
	*err = errPanic
	c.srv.panicked(fmt.Sprintf("export %q", c.info.Name), p)
	c.stop()
}

// check returns the error that a request gets before its Device is asked, or
// OK. The length of a WRITE is that of its payload whatever the outcome.
func (c *conn) check(h *wire.Request) wire.Errno {
	allowed := wire.CmdFlagFUA // once offered, it must be accepted on every command
	past := wire.EINVAL
	switch h.Type {
	case wire.CmdRead:
		if c.structured {
			allowed |= wire.CmdFlagDF
		}
		if h.Length > c.srv.cfg.MaxPayload {
			if h.CommandFlags&allowed&wire.CmdFlagDF != 0 {
				return wire.EOVERFLOW
			}
			return wire.EINVAL
		}
	case wire.CmdWrite:
		past = wire.ENOSPC
		if h.Length > c.srv.cfg.MaxPayload {
			return wire.EINVAL
		}
	case wire.CmdTrim, wire.CmdCache:
	case wire.CmdWriteZeroes:
		past = wire.ENOSPC
		allowed |= wire.CmdFlagNoHole | wire.CmdFlagFastZero
	case wire.CmdBlockStatus:
		allowed |= wire.CmdFlagReqOne
		if len(c.contexts) == 0 {
			return wire.EINVAL
		}
	case wire.CmdFlush:
		if h.CommandFlags&^allowed != 0 || h.Offset != 0 || h.Length != 0 {
			return wire.EINVAL
		}
		return wire.OK
	default:
		return wire.EINVAL
	}
	switch {
	case h.CommandFlags&^allowed != 0:
		return wire.EINVAL
	case c.info.ReadOnly && changes(h.Type):
		return wire.EPERM
	case h.Offset > c.size || uint64(h.Length) > c.size-h.Offset:
		return past
	case h.Length == 0:
		return wire.EINVAL
	}
	return wire.OK
}

// changes tells whether a command changes the Device, if it is one that is served.
func changes(cmd wire.Cmd) bool {
	return cmd == wire.CmdWrite || cmd == wire.CmdTrim || cmd == wire.CmdWriteZeroes
}
