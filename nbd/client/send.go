package client

import "golang.org/x/sys/unix"

// A ref is a payload that is sent from where it is, after the first at bytes of
// the buffer it belongs to.
type ref struct {
	at int
	p  []byte
}

// maxVec is the number of pieces that one system call takes.
const maxVec = 1024

// outgoing is a batch that is being sent.
type outgoing struct {
	buf  []byte
	refs []ref
	segs [][]byte // what is left of buf and refs, in order
	n    int      // bytes that the last write sent
	err  error    // of the last write
	wait bool     // for room
}

// load cuts buf and refs into pieces.
func (o *outgoing) load() {
	o.segs = o.segs[:0]
	at := 0
	for _, r := range o.refs {
		if r.at > at {
			o.segs = append(o.segs, o.buf[at:r.at])
			at = r.at
		}
		o.segs = append(o.segs, r.p)
	}
	if at < len(o.buf) {
		o.segs = append(o.segs, o.buf[at:])
	}
}

// consume drops the first n bytes.
func (o *outgoing) consume(n int) {
	i := 0
	for i < len(o.segs) && n >= len(o.segs[i]) {
		n -= len(o.segs[i])
		i++
	}
	rest := copy(o.segs, o.segs[i:])
	clear(o.segs[rest:])
	o.segs = o.segs[:rest]
	if n > 0 {
		o.segs[0] = o.segs[0][n:]
	}
}

// Kick sends what was queued, as far as that needs no waiting.
func (c *Client) Kick() {
	c.mu.Lock()
	if c.sending || len(c.pending) == 0 || c.err != nil {
		c.mu.Unlock()
		return
	}
	c.sending = true
	c.mu.Unlock()
	c.send(false)
}

// send sends batch after batch until nothing is pending, and ends the sending.
// It is called by whoever set it. Without wait, what the socket does not take
// at once is left to sendLoop.
func (c *Client) send(wait bool) {
	for {
		for len(c.out.segs) > 0 {
			if !c.write(wait) {
				c.handOver()
				return
			}
			if c.out.err != nil {
				c.endSend()
				c.fail(c.out.err)
				return
			}
		}
		c.mu.Lock()
		if len(c.pending) == 0 || c.err != nil {
			c.endSendLocked()
			c.mu.Unlock()
			return
		}
		c.cut = c.queued
		clear(c.out.refs)
		c.out.buf, c.pending = c.pending, c.out.buf[:0]
		c.out.refs, c.refs = c.refs, c.out.refs[:0]
		c.mu.Unlock()
		c.out.load()
	}
}

func (c *Client) endSend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endSendLocked()
}

// endSendLocked lets others send, and wakes those who wait for the sender.
func (c *Client) endSendLocked() {
	c.sending = false
	c.sent.Broadcast()
}

// write sends once, and with wait waits for room in the socket before. It
// returns false if there was none; out.err tells of an error.
func (c *Client) write(wait bool) bool {
	o := &c.out
	o.n, o.err, o.wait = 0, unix.EAGAIN, wait
	if c.raw != nil {
		if err := c.raw.Write(c.tryFn); err != nil {
			o.err = err // closed
		}
	} else if wait {
		o.n, o.err = c.conn.Write(o.segs[0])
	}
	if o.err == unix.EAGAIN {
		return false
	}
	o.consume(o.n)
	c.mu.Lock()
	c.gone += uint64(o.n)
	c.sent.Broadcast()
	c.mu.Unlock()
	return true
}

// tryWrite is what write runs on the descriptor. False makes the runtime call
// it again once there is room.
func (c *Client) tryWrite(fd uintptr) bool {
	o := &c.out
	for {
		if len(o.segs) == 1 {
			o.n, o.err = unix.Write(int(fd), o.segs[0])
		} else {
			o.n, o.err = unix.Writev(int(fd), o.segs[:min(len(o.segs), maxVec)])
		}
		if o.err == unix.EINTR {
			continue
		}
		o.n = max(o.n, 0)
		return !o.wait || o.err != unix.EAGAIN
	}
}

// handOver makes sendLoop go on with the sending.
func (c *Client) handOver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		c.endSendLocked()
		return
	}
	c.wake <- struct{}{} // has room: only the one sender gets here
}

// sendLoop sends what would have had to wait.
func (c *Client) sendLoop() {
	defer c.wg.Done()
	for {
		select {
		case <-c.wake:
			c.send(true)
		case <-c.dead:
			select {
			case <-c.wake:
				c.endSend()
			default:
			}
			return
		}
	}
}
