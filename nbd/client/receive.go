package client

import (
	"fmt"
	"io"
	"syscall"

	"tierd/nbd/wire"
)

const (
	inputSize = 256 << 10
	// directMin is the payload size from which an incomplete payload is read
	// straight into the request's buffer, in bytes.
	directMin = 64 << 10
)

// readLoop reads answers until the connection ends.
func (c *Client) readLoop() {
	defer c.wg.Done()
	buf := make([]byte, inputSize)
	have := 0
	for {
		n, err := c.conn.Read(buf[have:])
		if n == 0 && err != nil {
			c.fail(err)
			return
		}
		have += n
		used, err := c.answers(buf[:have])
		if err != nil {
			c.fail(err)
			return
		}
		have = copy(buf, buf[used:have])
		c.Kick()
	}
}

// answers treats the answers that b begins with, and returns how many bytes
// they took.
func (c *Client) answers(b []byte) (used int, err error) {
	for len(b)-used >= wire.SimpleReplySize {
		h := wire.ParseSimpleReply(b[used:])
		if h.ReplyMagic != wire.SimpleReplyMagic {
			return used, fmt.Errorf("%w: reply magic %#x", ErrProtocol, h.ReplyMagic)
		}
		body := b[used+wire.SimpleReplySize:]
		r := c.find(h.Handle)
		if r == nil {
			return used, fmt.Errorf("%w: reply to cookie %#x, which nothing waits for", ErrProtocol, h.Handle)
		}
		n := 0
		if r.Cmd == wire.CmdRead && h.Error == wire.OK {
			n = len(r.Buf)
		}
		if n > len(body) && n < directMin {
			return used, nil // the rest comes with the next read
		}
		// Someone else may have failed the request since.
		if r = c.take(h.Handle); r == nil {
			return used, ErrDisconnected
		}
		if !c.sentWhole(r) {
			err := fmt.Errorf("%w: reply to a request not sent yet", ErrProtocol)
			c.finish(r, fmt.Errorf("%w: %w", ErrDisconnected, err))
			return used, err
		}
		if got := copy(r.Buf[:n], body); got < n {
			c.Kick() // what is queued must not wait for a long payload
			if _, err := io.ReadFull(c.conn, r.Buf[got:n]); err != nil {
				c.finish(r, fmt.Errorf("%w: %w", ErrDisconnected, err))
				return used, err
			}
			c.finish(r, nil)
			return len(b), nil
		}
		used += wire.SimpleReplySize + n
		if h.Error != wire.OK {
			// The protocol's numbers are Linux's.
			c.finish(r, syscall.Errno(h.Error))
		} else {
			c.finish(r, nil)
		}
	}
	return used, nil
}
