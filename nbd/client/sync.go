package client

import (
	"fmt"

	"tierd/nbd/wire"
)

// A call is a Request that someone waits for.
type call struct {
	Request
	done chan struct{}
}

func newCall() *call {
	k := &call{done: make(chan struct{}, 1)}
	k.Done = func(*Request) { k.done <- struct{}{} }
	return k
}

// do sends one request and waits for its outcome.
func (c *Client) do(cmd wire.Cmd, flags uint16, off, n int64, p []byte) error {
	k := c.calls.Get().(*call)
	k.Cmd, k.Flags, k.Offset, k.Length, k.Buf = cmd, flags, off, n, p
	err := c.Submit(&k.Request)
	if err == nil {
		<-k.done
		err = k.Err
	}
	k.Buf = nil
	c.calls.Put(k)
	if err != nil {
		return fmt.Errorf("%s at %d: %w", wire.CmdName(cmd), off, err)
	}
	return nil
}

// ReadAt fills p from off. It is cut into requests of the size that the server
// takes; so are the others. Errors wrap a syscall.Errno that the server
// answered, ErrDisconnected, ErrRange or ErrUnsupported.
func (c *Client) ReadAt(p []byte, off int64) error {
	return c.pieces(wire.CmdRead, 0, p, off)
}

// WriteAt writes p to off. With fua it is durable when WriteAt returns nil.
func (c *Client) WriteAt(p []byte, off int64, fua bool) error {
	return c.pieces(wire.CmdWrite, fuaFlag(fua), p, off)
}

func (c *Client) pieces(cmd wire.Cmd, flags uint16, p []byte, off int64) error {
	limit := int(c.info.blocks.MaximumBlockSize)
	for {
		n := min(len(p), limit)
		if err := c.do(cmd, flags, off, 0, p[:n:n]); err != nil {
			return err
		}
		if p, off = p[n:], off+int64(n); len(p) == 0 {
			return nil
		}
	}
}

// Flush returns nil once all changes answered before are durable.
func (c *Client) Flush() error { return c.do(wire.CmdFlush, 0, 0, 0, nil) }

// Trim gives up [off, off+n).
func (c *Client) Trim(off, n int64, fua bool) error {
	return c.ranges(wire.CmdTrim, fuaFlag(fua), off, n)
}

// WriteZeroes makes [off, off+n) read as zeroes; with noHole it keeps its space.
func (c *Client) WriteZeroes(off, n int64, noHole, fua bool) error {
	flags := fuaFlag(fua)
	if noHole {
		flags |= wire.CmdFlagNoHole
	}
	return c.ranges(wire.CmdWriteZeroes, flags, off, n)
}

// rangeMax is the longest range in one request, in bytes: some servers count
// in signed 32 bits.
const rangeMax = 1 << 30

func (c *Client) ranges(cmd wire.Cmd, flags uint16, off, n int64) error {
	for {
		k := min(n, rangeMax)
		if err := c.do(cmd, flags, off, k, nil); err != nil {
			return err
		}
		if off, n = off+k, n-k; n == 0 {
			return nil
		}
	}
}

func fuaFlag(fua bool) uint16 {
	if fua {
		return wire.CmdFlagFUA
	}
	return 0
}
