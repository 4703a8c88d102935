package nbd

import (
	"io"
	"net"
	"syscall"
	"time"

	"tierd/nbd/wire"
)

// maxVectors is how many pieces, and those of one more reply, one system call writes;
// the kernel's limit is 1024.
const maxVectors = 256

// A sender writes to the socket of a connection. One goroutine at a time uses
// it: the one that set conn.writing.
type sender struct {
	from    []byte
	err     error
	try     func(fd uintptr) bool // made once to allocate once
	vectors net.Buffers
	eaten   net.Buffers // what is left of vectors; a field to allocate once
}

func (v *sender) init(c *conn) {
	v.try = func(fd uintptr) bool {
		for len(v.from) > 0 {
			n, err := syscall.Write(int(fd), v.from)
			if n > 0 {
				v.from = v.from[n:]
			}
			switch err {
			case nil:
				if n == 0 {
					v.err = io.ErrUnexpectedEOF
					return true
				}
			case syscall.EINTR:
			case syscall.EAGAIN:
				return false
			default:
				v.err = err
				return true
			}
		}
		return true
	}
}

// write writes p whole.
func (c *conn) write(p []byte) error {
	c.limitWrite()
	if c.tls != nil || c.rc == nil {
		_, err := c.stream().Write(p)
		return err
	}
	v := &c.send
	v.from, v.err = p, nil
	err := c.rc.Write(v.try)
	v.from = nil
	if err == nil {
		err = v.err
	}
	return err
}

// writeList writes the replies in list, many at a time.
func (c *conn) writeList(list *request) error {
	for list != nil {
		vectors := c.send.vectors[:0]
		for ; list != nil && len(vectors) < maxVectors; list = list.next {
			if list.out != nil {
				vectors = append(vectors, list.out.b[:list.out.end])
				continue
			}
			vectors = list.appendReply(vectors)
		}
		c.send.vectors = vectors
		var err error
		if len(vectors) == 1 {
			err = c.write(vectors[0])
		} else {
			c.limitWrite()
			c.send.eaten = vectors
			_, err = c.send.eaten.WriteTo(c.stream())
		}
		clear(vectors)
		if err != nil {
			return err
		}
	}
	return nil
}

// push queues the reply r and sees to it that it is written: by whoever is
// writing now, who looks at the queue again before he stops, or else by us.
func (c *conn) push(r *request) {
	head, start, errno := r.head, r.start, r.errno // r is gone when it is written
	c.mu.Lock()
	c.pending.remove(r)
	slow := r.slow
	c.appendLocked(r)
	if !c.writing {
		c.writing = true
		c.drainLocked()
	}
	c.mu.Unlock()
	if slow {
		c.srv.slow.ended(c.info.Name, head, time.Duration(clock()-start), errno)
	}
}

func (c *conn) appendLocked(r *request) {
	if c.tail == nil {
		c.head = r
	} else {
		c.tail.next = r
	}
	c.tail = r
}

// drainLocked writes the queue until it is empty. The caller has set writing;
// it is cleared under the mutex, with the queue seen empty, so that a reply
// queued at any moment has a writer. After an error replies are thrown away.
func (c *conn) drainLocked() {
	for c.head != nil {
		list := c.head
		c.head, c.tail = nil, nil
		err := c.werr
		c.mu.Unlock()

		if err == nil {
			if err = c.writeList(list); err != nil {
				c.abort()
			}
		}
		var count int
		var charge, backlog int64
		for list != nil {
			r := list
			list = r.next
			if r.counted {
				count++
			}
			charge += r.charge
			if r.out != nil {
				backlog += int64(r.out.end)
			}
			r.free()
		}

		c.mu.Lock()
		if charge > 0 {
			c.srv.budget.give(charge)
		}
		c.inflight -= count
		c.held -= charge
		c.backlog -= backlog
		if c.werr == nil {
			c.werr = err
		}
		c.signalLocked()
	}
	c.writing = false
	c.signalLocked()
}

// flush writes the leader's finished replies, or leaves them to whoever is
// writing. It waits while too much is left so.
func (c *conn) flush() error {
	out := c.out
	if out == nil || out.end == 0 {
		return nil
	}
	c.publish()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.werr != nil {
		out.end = 0
		return c.werr
	}
	if c.writing {
		r := requestPool.Get().(*request)
		r.c, r.out = c, out
		c.out = nil
		c.backlog += int64(out.end)
		c.appendLocked(r)
		for c.backlog > maxBacklog && c.brokenLocked() == nil {
			c.waitLocked()
		}
		return c.brokenLocked()
	}

	c.writing = true
	c.mu.Unlock()
	err := c.write(out.b[:out.end])
	out.end = 0
	if err != nil {
		c.abort()
	}
	c.mu.Lock()
	if c.werr == nil {
		c.werr = err
	}
	c.drainLocked()
	return c.werr
}

// room returns n bytes at the end of the output buffer, to be taken by adding
// to out.end. n is at most outputSize.
func (c *conn) room(n int) ([]byte, error) {
	if c.out != nil && c.out.end+n > len(c.out.b) {
		if err := c.flush(); err != nil {
			return nil, err
		}
	}
	if c.out == nil {
		c.out = getBuffer(&outputPool)
	}
	return c.out.b[c.out.end : c.out.end+n], nil
}

// answer appends a reply without payload to the output.
func (c *conn) answer(h *wire.Request, errno wire.Errno) error {
	b, err := c.room(wire.ErrorChunkSize)
	if err != nil {
		return err
	}
	if c.inChunks(h.Type) {
		wire.PutErrorChunk(b, h.Handle, errno, h.Offset)
		c.out.end += wire.ErrorChunkSize
	} else {
		wire.PutSimpleReply(b, errno, h.Handle)
		c.out.end += wire.SimpleReplySize
	}
	if c.out.end >= flushAt {
		return c.flush()
	}
	return nil
}
