package nbd

import "tierd/nbd/wire"

// maxChunks bounds the chunks of a reply to a READ. With as many holes as that, the
// rest comes as data.
const maxChunks = 64

// maxStatusExtents bounds the extents that a BLOCK_STATUS tells of in each context;
// the client asks again for what is left.
const maxStatusExtents = 4096

// span is Device.Span; a panic there becomes errPanic.
func (c *conn) span(off, n int64) (s Span, err error) {
	defer c.caught(&err)
	return c.dev.Span(off, n), nil
}

// chunk returns the next chunk of the reply to the READ h, of which done bytes are
// dealt with, in count chunks.
func (c *conn) chunk(h *wire.Request, done int64, count int) (Span, error) {
	left := int64(h.Length) - done
	if count == maxChunks-1 {
		return Span{Len: left}, nil
	}
	s, err := c.span(int64(h.Offset)+done, left)
	if h.CommandFlags&wire.CmdFlagDF != 0 && s.Len < left {
		s = Span{Len: left}
	}
	return s, err
}

// doneFlag is the flag of a chunk, by whether it is the last.
func doneFlag(last bool) uint16 {
	if last {
		return wire.ReplyFlagDone
	}
	return 0
}

// serveChunks is serveRead for a client that takes structured replies.
func (c *conn) serveChunks(h wire.Request) error {
	n := int64(h.Length)
	b, err := c.room(int(n) + maxChunks*wire.HoleChunkSize)
	if err != nil {
		return err
	}
	pos, done := 0, int64(0)
	for count := 0; done < n; count++ {
		s, err := c.chunk(&h, done, count)
		if err != nil {
			return c.failed(&h, err)
		}
		off, flags := h.Offset+uint64(done), doneFlag(done+s.Len == n)
		done += s.Len
		if s.Hole {
			wire.PutHoleChunk(b[pos:], flags, h.Handle, off, uint32(s.Len))
			pos += wire.HoleChunkSize
			continue
		}
		data := b[pos+wire.DataChunkSize:][:s.Len]
		ok, err := c.tryRead(data, int64(off))
		if err != nil {
			return c.failed(&h, err)
		}
		if !ok {
			return c.dispatch(h, int(n))
		}
		wire.PutDataChunk(b[pos:], flags, h.Handle, off, uint32(s.Len))
		pos += wire.DataChunkSize + int(s.Len)
	}
	c.out.end += pos
	c.tell(&h, wire.OK)
	if c.out.end >= flushAt {
		return c.flush()
	}
	return nil
}

// readChunks reads what is not a hole, in a worker, and notes the chunks of the reply.
func (r *request) readChunks() error {
	c := r.c
	r.chunks = r.chunks[:0]
	for done := int64(0); done < int64(r.head.Length); {
		s, err := c.chunk(&r.head, done, len(r.chunks))
		if err != nil {
			return err
		}
		if !s.Hole {
			if err := c.dev.ReadAt(c.ctx, r.data[done:done+s.Len], int64(r.head.Offset)+done); err != nil {
				r.failedAt = uint64(done)
				return err
			}
		}
		r.chunks = append(r.chunks, s)
		done += s.Len
	}
	return nil
}

// appendReply appends the reply to r, as it goes to the socket, to vectors.
func (r *request) appendReply(vectors [][]byte) [][]byte {
	h := &r.head
	if !r.c.inChunks(h.Type) {
		wire.PutSimpleReply(r.header[:], r.errno, h.Handle)
		vectors = append(vectors, r.header[:wire.SimpleReplySize])
		if len(r.data) > 0 {
			vectors = append(vectors, r.data)
		}
		return vectors
	}
	if r.errno != wire.OK {
		wire.PutErrorChunk(r.header[:], h.Handle, r.errno, h.Offset+r.failedAt)
		return append(vectors, r.header[:wire.ErrorChunkSize])
	}
	// The headers are all made before pieces of them are handed out.
	r.headers = r.headers[:0]
	done := int64(0)
	for _, s := range r.chunks {
		var b [wire.HoleChunkSize]byte
		flags := doneFlag(done+s.Len == int64(h.Length))
		if s.Hole {
			wire.PutHoleChunk(b[:], flags, h.Handle, h.Offset+uint64(done), uint32(s.Len))
		} else {
			wire.PutDataChunk(b[:], flags, h.Handle, h.Offset+uint64(done), uint32(s.Len))
		}
		r.headers = append(r.headers, b)
		done += s.Len
	}
	done = 0
	for i, s := range r.chunks {
		if s.Hole {
			vectors = append(vectors, r.headers[i][:])
		} else {
			vectors = append(vectors, r.headers[i][:wire.DataChunkSize], r.data[done:done+s.Len])
		}
		done += s.Len
	}
	return vectors
}

// inChunks tells whether the reply to a command must be a structured one.
func (c *conn) inChunks(cmd wire.Cmd) bool {
	return c.structured && (cmd == wire.CmdRead || cmd == wire.CmdBlockStatus)
}

// serveStatus answers a BLOCK_STATUS, with a chunk for each context.
func (c *conn) serveStatus(h wire.Request) error {
	limit := maxStatusExtents
	if h.CommandFlags&wire.CmdFlagReqOne != 0 {
		limit = 1
	}
	b, err := c.room(len(c.contexts) * (wire.StatusChunkSize + maxStatusExtents*wire.StatusExtentSize))
	if err != nil {
		return err
	}
	pos := 0
	for i, ctx := range c.contexts {
		count, err := c.putExtents(b[pos+wire.StatusChunkSize:], &h, ctx, limit)
		if err != nil {
			return c.failed(&h, err)
		}
		wire.PutStatusChunk(b[pos:], doneFlag(i == len(c.contexts)-1), h.Handle, ctx.id(), count)
		pos += wire.StatusChunkSize + count*wire.StatusExtentSize
	}
	c.out.end += pos
	c.tell(&h, wire.OK)
	if c.out.end >= flushAt {
		return c.flush()
	}
	return nil
}

// putExtents writes at most limit extents of a context, from the start of the range
// of h, to b, and returns how many.
func (c *conn) putExtents(b []byte, h *wire.Request, ctx metaContext, limit int) (count int, err error) {
	var length, state uint32 // of the extent that may still grow
	for done := int64(0); done < int64(h.Length); {
		s, err := c.span(int64(h.Offset)+done, int64(h.Length)-done)
		if err != nil {
			return 0, err
		}
		if is := ctx.state(s); length == 0 || is != state {
			if length > 0 {
				if count == limit-1 {
					break
				}
				wire.PutStatusExtent(b[count*wire.StatusExtentSize:], length, state)
				count++
			}
			length, state = 0, is
		}
		length += uint32(s.Len)
		done += s.Len
	}
	wire.PutStatusExtent(b[count*wire.StatusExtentSize:], length, state)
	return count + 1, nil
}
