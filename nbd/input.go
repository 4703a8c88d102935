package nbd

import (
	"io"
	"syscall"

	"tierd/nbd/wire"
)

// partialStash is how much of an unfinished request is kept without a buffer.
const partialStash = 64

// readAhead is how many bytes are read, if they are there, when it is not known
// how many are needed: a batch of small requests. Of a long write the rest is
// read and the next header, so that the next payload begins where this one did:
// the buffer stays in the processor's cache, and little has to be moved.
const readAhead = 64 << 10

// A receiver reads from the socket of a connection. It waits for the socket to
// be ready without holding a buffer, so idle connections are small.
type receiver struct {
	into []byte // read here; nil: into the input buffer
	want int    // then at most so many bytes
	n    int
	err  error
	try  func(fd uintptr) bool // one attempt, made once to allocate once
}

func (v *receiver) init(c *conn) {
	v.try = func(fd uintptr) bool {
		p := v.into
		if p == nil {
			p = c.inputRoom(v.want)
		}
		for {
			n, err := syscall.Read(int(fd), p)
			switch err {
			case nil:
				if n == 0 {
					err = io.EOF
				}
			case syscall.EINTR:
				continue
			case syscall.EAGAIN:
				c.parkBuffers()
				return false
			}
			v.n, v.err = max(n, 0), err
			return true
		}
	}
}

// read reads once, waiting as long as it takes: into the memory given, or at
// most want bytes into the input buffer.
func (c *conn) read(into []byte, want int) (int, error) {
	if c.tls != nil && c.rc != nil {
		return c.readTLS(into, want)
	}
	if c.rc == nil {
		if into == nil {
			into = c.inputRoom(want)
		}
		return c.stream().Read(into)
	}
	v := &c.recv
	v.into, v.want, v.n, v.err = into, want, 0, nil
	if err := c.rc.Read(v.try); err != nil {
		return 0, err
	}
	return v.n, v.err
}

// inputRoom returns at most want bytes of the free end of the input buffer,
// which it takes from the pool if there is none.
func (c *conn) inputRoom(want int) []byte {
	if c.in == nil {
		c.in = getBuffer(&inputPool)
		c.in.end = copy(c.in.b, c.stash[:c.stashed])
		c.stashed = 0
	}
	return c.in.b[c.in.end:min(c.in.end+want, len(c.in.b))]
}

// parkBuffers gives back what is not needed to wait for the client.
func (c *conn) parkBuffers() {
	if c.in != nil && c.in.end-c.in.pos <= partialStash {
		c.stashed = copy(c.stash[:], c.in.b[c.in.pos:c.in.end])
		inputPool.Put(c.in)
		c.in = nil
	}
	if c.out != nil && c.out.end == 0 {
		outputPool.Put(c.out)
		c.out = nil
	}
}

// dropBuffers gives back all.
func (c *conn) dropBuffers() {
	if c.in != nil {
		inputPool.Put(c.in)
		c.in = nil
	}
	if c.out != nil {
		outputPool.Put(c.out)
		c.out = nil
	}
}

// refill reads until the input holds need bytes. Finished replies are written
// before, because the client may send nothing more until it has them.
func (c *conn) refill(need int) error {
	if err := c.flush(); err != nil {
		return err
	}
	if in := c.in; in != nil {
		if in.pos == in.end {
			in.pos, in.end = 0, 0
		} else if in.pos+need > len(in.b) || in.end-in.pos <= partialStash {
			in.end = copy(in.b, in.b[in.pos:in.end])
			in.pos = 0
		}
	}
	for {
		have := c.stashed
		if c.in != nil {
			have = c.in.end - c.in.pos
		}
		if c.in != nil && have >= need {
			break
		}
		if c.stopping.Load() {
			return errStopping
		}
		n, err := c.read(nil, max(need-have+wire.RequestSize, readAhead))
		if n > 0 {
			c.in.end += n
		}
		if err != nil {
			if c.stopping.Load() {
				return errStopping
			}
			return err
		}
	}
	c.hasRead()
	return nil
}

// readFull fills p with the next bytes from the client: those in the input
// buffer, then those in the socket.
func (c *conn) readFull(p []byte) error {
	n := copy(p, c.in.b[c.in.pos:c.in.end])
	c.in.pos += n
	if n == len(p) {
		return nil
	}
	if err := c.flush(); err != nil {
		return err
	}
	for n < len(p) {
		if c.stopping.Load() {
			return errStopping
		}
		m, err := c.read(p[n:], 0)
		n += m
		if err != nil && n < len(p) {
			if c.stopping.Load() {
				return errStopping
			}
			return err
		}
	}
	c.hasRead()
	return nil
}

// discard skips n bytes from the client.
func (c *conn) discard(n int) error {
	for {
		skip := min(n, c.in.end-c.in.pos)
		c.in.pos += skip
		if n -= skip; n == 0 {
			return nil
		}
		if err := c.refill(1); err != nil {
			return err
		}
	}
}
