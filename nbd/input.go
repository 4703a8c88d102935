package nbd

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// lingerMillis is how long a leader waits in a system call of its own for the
// next request, before it leaves the waiting to the runtime. A busy client is
// back within that time, and a thread woken by the kernel itself is quicker than
// a goroutine found ready by a thread that has to be woken for it.
const lingerMillis = 2

// partialStash is how much of an unfinished request is kept without a buffer.
const partialStash = 64

// A receiver reads from the socket of a connection. It waits for the socket to
// be ready without holding a buffer, so idle connections are small.
type receiver struct {
	into []byte // read here; nil: into the input buffer
	n    int
	err  error
	try  func(fd uintptr) bool // one attempt, made once to allocate once
}

func (v *receiver) init(c *conn) {
	v.try = func(fd uintptr) bool {
		p := v.into
		if p == nil {
			p = c.inputRoom()
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
				if c.linger(int32(fd)) {
					continue
				}
				c.parkBuffers()
				return false
			}
			v.n, v.err = max(n, 0), err
			return true
		}
	}
}

// linger waits a little for the socket to become readable, and returns whether
// it did. It holds a thread and perhaps a P of the scheduler meanwhile, so at
// most Server.maxLinger connections do so at a time.
func (c *conn) linger(fd int32) bool {
	s := c.srv
	if s.lingering.Add(1) > s.maxLinger {
		s.lingering.Add(-1)
		return false
	}
	fds := [1]unix.PollFd{{Fd: fd, Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], lingerMillis)
	s.lingering.Add(-1)
	return n > 0 || err == unix.EINTR
}

// read reads once, waiting as long as it takes.
func (c *conn) read(into []byte) (int, error) {
	if c.rc == nil {
		if into == nil {
			into = c.inputRoom()
		}
		return c.nc.Read(into)
	}
	v := &c.recv
	v.into, v.n, v.err = into, 0, nil
	if err := c.rc.Read(v.try); err != nil {
		return 0, err
	}
	return v.n, v.err
}

// inputRoom returns the free end of the input buffer, which it takes from the
// pool if there is none.
func (c *conn) inputRoom() []byte {
	if c.in == nil {
		c.in = getBuffer(&inputPool)
		c.in.end = copy(c.in.b, c.stash[:c.stashed])
		c.stashed = 0
	}
	return c.in.b[c.in.end:]
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
		} else if in.pos+need > len(in.b) {
			in.end = copy(in.b, in.b[in.pos:in.end])
			in.pos = 0
		}
	}
	for c.in == nil || c.in.end-c.in.pos < need {
		if c.stopping.Load() {
			return errStopping
		}
		n, err := c.read(nil)
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
	c.now = clock()
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
		m, err := c.read(p[n:])
		n += m
		if err != nil && n < len(p) {
			return err
		}
	}
	c.now = clock()
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
