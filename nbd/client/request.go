package client

import (
	"fmt"
	"math"

	"tierd/nbd/wire"
)

// copyMax is the payload size up to which a WRITE is copied behind its header,
// in bytes; above it a second entry in a vectored write is cheaper than the copy.
const copyMax = 16 << 10

// A Request is one command for Queue or Submit. It and its Buf belong to the
// Client until Done is called, and can be used again from then on, in Done already.
type Request struct {
	Cmd    wire.Cmd // CmdRead, CmdWrite, CmdFlush, CmdTrim, CmdWriteZeroes or CmdCache
	Flags  uint16   // wire.CmdFlag...
	Offset int64
	// Buf is the payload of a WRITE, and where that of a READ goes.
	Buf []byte
	// Length is the length of the range in bytes for commands without a payload.
	Length int64
	// Done is called once the outcome is known, and has to return soon: as long
	// as it runs, no other answer is read. It may call Queue.
	Done func(*Request)
	// Err is the outcome: nil, a syscall.Errno answered by the server, or an
	// error that wraps ErrDisconnected.
	Err error

	end uint64 // where Buf ends in the stream of all bytes sent, if it goes by reference; else 0
}

// length returns the length field of the request's header.
func (r *Request) length() int64 {
	switch r.Cmd {
	case wire.CmdRead, wire.CmdWrite:
		return int64(len(r.Buf))
	case wire.CmdFlush, wire.CmdDisc:
		return 0
	}
	return r.Length
}

// check returns an error for a request that must not be sent.
func (c *Client) check(r *Request) error {
	need := uint16(0)
	n := r.length()
	limit := int64(math.MaxUint32)
	switch r.Cmd {
	case wire.CmdRead, wire.CmdWrite:
		limit = int64(c.info.blocks.MaximumBlockSize)
	case wire.CmdFlush:
		need = wire.FlagSendFlush
	case wire.CmdTrim:
		need = wire.FlagSendTrim
	case wire.CmdWriteZeroes:
		need = wire.FlagSendWriteZeroes
	case wire.CmdCache:
		need = wire.FlagSendCache
	default:
		return fmt.Errorf("%s: %w", wire.CmdName(r.Cmd), ErrUnsupported)
	}
	if r.Flags&wire.CmdFlagFUA != 0 {
		need |= wire.FlagSendFUA
	}
	if r.Flags&wire.CmdFlagFastZero != 0 {
		need |= wire.FlagSendFastZero
	}
	if c.info.flags&need != need {
		return fmt.Errorf("%s with flags %#x: %w", wire.CmdName(r.Cmd), r.Flags, ErrUnsupported)
	}
	if r.Cmd == wire.CmdFlush {
		return nil
	}
	if n <= 0 || n > limit || r.Offset < 0 || r.Offset > c.Size()-n {
		return fmt.Errorf("%s %d+%d of %d bytes, at most %d at once: %w", wire.CmdName(r.Cmd), r.Offset, n, c.Size(), limit, ErrRange)
	}
	return nil
}

// Queue puts r in line to be sent by the next Kick or Submit, or at the latest
// when readLoop has called Done for the answers at hand: so Done uses Queue and
// all others Submit. If it returns an error (ErrUnsupported, ErrRange or
// ErrDisconnected), r was not accepted and Done will not be called.
func (c *Client) Queue(r *Request) error {
	if err := c.check(r); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	var i uint32
	if k := len(c.free); k > 0 {
		i = c.free[k-1]
		c.free = c.free[:k-1]
	} else {
		i = uint32(len(c.slots))
		c.slots = append(c.slots, slot{})
	}
	s := &c.slots[i]
	s.req = r
	s.gen++
	c.used++
	r.Err = nil
	c.appendLocked(r, uint64(s.gen)<<32|uint64(i))
	return nil
}

// Submit is Queue and Kick.
func (c *Client) Submit(r *Request) error {
	err := c.Queue(r)
	if err == nil {
		c.Kick()
	}
	return err
}

// appendLocked appends r to what is to be sent.
func (c *Client) appendLocked(r *Request, cookie uint64) {
	at := len(c.pending)
	c.pending = append(c.pending, zeroHeader[:]...)
	off := r.Offset
	if r.Cmd == wire.CmdFlush {
		off = 0
	}
	wire.PutRequest(c.pending[at:], r.Flags, r.Cmd, cookie, uint64(off), uint32(r.length()))
	r.end = 0
	c.queued += wire.RequestSize
	if r.Cmd != wire.CmdWrite {
		return
	}
	c.queued += uint64(len(r.Buf))
	if len(r.Buf) <= copyMax {
		c.pending = append(c.pending, r.Buf...)
		return
	}
	r.end = c.queued
	c.refs = append(c.refs, ref{at: len(c.pending), p: r.Buf})
}

var zeroHeader [wire.RequestSize]byte

// find returns the request that cookie names, nil if there is none.
func (c *Client) find(cookie uint64) *Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.slotLocked(cookie); s != nil {
		return s.req
	}
	return nil
}

// take is find, and frees the slot.
func (c *Client) take(cookie uint64) *Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.slotLocked(cookie)
	if s == nil || s.req == nil {
		return nil
	}
	r := s.req
	s.req = nil
	c.free = append(c.free, uint32(cookie))
	return r
}

func (c *Client) slotLocked(cookie uint64) *slot {
	i, gen := uint32(cookie), uint32(cookie>>32)
	if uint64(i) >= uint64(len(c.slots)) || c.slots[i].gen != gen {
		return nil
	}
	return &c.slots[i]
}

// sentWhole waits until r's payload is with the kernel, so that Buf can be given
// back: the answer may be here before the sender's system call has returned. It
// returns false for an answer to what was not even begun to be sent.
func (c *Client) sentWhole(r *Request) bool {
	if r.end == 0 {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.end > c.cut {
		return false
	}
	for c.gone < r.end && c.err == nil {
		c.sent.Wait()
	}
	return true
}

// finish tells the owner of r the outcome.
func (c *Client) finish(r *Request, err error) {
	r.Err = err
	c.mu.Lock()
	c.used--
	empty := c.used == 0
	c.mu.Unlock()
	r.Done(r)
	if empty {
		select {
		case c.idle <- struct{}{}:
		default:
		}
	}
}
