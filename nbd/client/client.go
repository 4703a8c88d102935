package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	"tierd/nbd/wire"
)

var (
	// ErrDisconnected is returned once the connection is gone, for requests whose
	// answer did not come, too: the server may or may not have carried them out.
	ErrDisconnected = errors.New("NBD connection lost")
	// ErrUnsupported is returned for what the export does not offer.
	ErrUnsupported = errors.New("not offered by the export")
	// ErrRange is returned for a request that is empty where it must not be,
	// or that lies outside of the export.
	ErrRange = errors.New("range outside of the export")
)

// A Client is one connection to one export. All methods are safe for
// concurrent use.
type Client struct {
	conn net.Conn
	raw  syscall.RawConn // nil if the connection is none of the kernel's
	info exportInfo

	mu      sync.Mutex
	slots   []slot
	free    []uint32  // indexes of slots not in use
	used    int       // slots in use
	pending []byte    // what is to be sent next: headers and small payloads
	refs    []ref     // large payloads that go between the bytes of pending
	queued  uint64    // bytes appended to pending and refs so far
	cut     uint64    // of those, bytes handed to a sender
	gone    uint64    // of those, bytes that the kernel has taken
	sending bool      // someone is sending; he also sends what is queued meanwhile
	sent    sync.Cond // signalled when bytes are gone and when sending ends
	err     error     // why the connection is dead
	idle    chan struct{}

	out   outgoing // owned by whoever set sending
	tryFn func(fd uintptr) bool
	wake  chan struct{} // to sendLoop, which then owns out
	dead  chan struct{} // closed with err set
	wg    sync.WaitGroup

	calls sync.Pool // of *call
}

// A slot is where the answer with a certain cookie finds its request.
type slot struct {
	req *Request
	gen uint32
}

// Dial connects to the export at uri (see ParseURI). ctx bounds connecting and
// the handshake. A refusal by the server is an *OptionError.
func Dial(ctx context.Context, uri string) (*Client, error) {
	a, err := ParseURI(uri)
	if err != nil {
		return nil, err
	}
	socket, err := dialSocket(ctx, a)
	if err != nil {
		return nil, err
	}
	return newClient(ctx, socket, a)
}

// New does the handshake on a fresh connection and opens the export called
// name. It owns conn from then on, and closes it if it fails.
func New(ctx context.Context, conn net.Conn, name string) (*Client, error) {
	return newClient(ctx, conn, Address{Export: name})
}

func newClient(ctx context.Context, conn net.Conn, a Address) (*Client, error) {
	h, err := negotiateOn(ctx, conn, a, func(h *haggler) (err error) {
		h.info, err = h.open(a.Export)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open NBD export %q: %w", a.Export, err)
	}
	conn = h.conn
	c := &Client{
		conn: conn,
		info: h.info,
		wake: make(chan struct{}, 1),
		dead: make(chan struct{}),
		idle: make(chan struct{}, 1),
	}
	c.calls.New = func() any { return newCall() }
	c.sent.L = &c.mu
	c.tryFn = c.tryWrite
	if sc, ok := conn.(syscall.Conn); ok {
		raw, err := sc.SyscallConn()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("use NBD connection: %w", err), conn.Close())
		}
		c.raw = raw
	}
	c.wg.Add(2)
	go c.readLoop()
	go c.sendLoop()
	return c, nil
}

// Size returns the size of the export in bytes.
func (c *Client) Size() int64 { return int64(c.info.size) }

// Flags returns the transmission flags of the export (wire.Flag...).
func (c *Client) Flags() uint16 { return c.info.flags }

// Description returns what the server says of the export; often empty.
func (c *Client) Description() string { return c.info.description }

// BlockSizes returns, in bytes, the alignment of requests, the size that works
// best, and the most that one READ or WRITE may carry.
func (c *Client) BlockSizes() (minimum, preferred, maximum int) {
	b := c.info.blocks
	return int(b.MinimumBlockSize), int(b.PreferredBlockSize), int(b.MaximumBlockSize)
}

// Dead is closed when the connection is lost or closed.
func (c *Client) Dead() <-chan struct{} { return c.dead }

// Outstanding returns the number of requests that wait for their answer.
func (c *Client) Outstanding() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// Disconnect waits for the answers of all outstanding requests, tells the
// server that this was the last of it, and closes the connection. The error is
// ctx's if it ends first; the connection is closed then, too.
func (c *Client) Disconnect(ctx context.Context) error {
	err := c.drain(ctx)
	if err == nil {
		r := Request{Cmd: wire.CmdDisc}
		c.mu.Lock()
		if c.err == nil {
			c.appendLocked(&r, 0)
		}
		c.mu.Unlock()
		c.Kick()
		// The server ends the connection; one that does not is not waited for
		// longer than ctx.
		select {
		case <-c.dead:
		case <-ctx.Done():
		}
	}
	return errors.Join(err, c.Close())
}

// drain waits until nothing is outstanding or the connection is dead.
func (c *Client) drain(ctx context.Context) error {
	for {
		c.mu.Lock()
		n, err := c.used, c.err
		c.mu.Unlock()
		if n == 0 || err != nil {
			return nil
		}
		select {
		case <-c.idle:
		case <-c.dead:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close ends the connection at once; outstanding requests fail with
// ErrDisconnected. It returns after the last Done, so it must not be called
// from one.
func (c *Client) Close() error {
	c.fail(errors.New("closed by the client"))
	c.wg.Wait()
	return nil
}

// fail declares the connection dead because of cause and fails what is
// outstanding. Only the first call does anything.
func (c *Client) fail(cause error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = fmt.Errorf("%w: %w", ErrDisconnected, cause)
	var lost []*Request
	for i := range c.slots {
		if r := c.slots[i].req; r != nil {
			lost = append(lost, r)
			c.slots[i].req = nil
		}
	}
	c.used -= len(lost)
	close(c.dead)
	c.sent.Broadcast()
	c.mu.Unlock()

	// Closed before Done runs, so that whoever still sends out of a lost
	// request's buffer ends with an error; he is waited for. A request that
	// readLoop reads into is not in its slot any more, and left to readLoop.
	_ = c.conn.Close()
	c.mu.Lock()
	for c.sending {
		c.sent.Wait()
	}
	c.mu.Unlock()
	for _, r := range lost {
		r.Err = c.err
		r.Done(r)
	}
}
