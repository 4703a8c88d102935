package nbd

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tierd/nbd/wire"
)

// Why a leader ends a connection. Anything else is an error of the socket.
var (
	errDisconnect = errors.New("client disconnects")
	errStopping   = errors.New("connection is being stopped")
	errProtocol   = errors.New("client broke the protocol")
	errHangup     = errors.New("client has hung up")
)

// pollEvery is how often a leader that does not read its socket looks whether
// the client is still there. It looks before it begins a change, too, if the change
// may have waited for so long, here or in the socket.
const pollEvery = time.Second

// stallTime is how long a write to a client may take once the server is ending:
// one that does not read must not hold up the others' stop.
const stallTime = 5 * time.Second

// cutTime is how long Devices have to let go of connections that are cut, and clients
// to take their last replies.
const cutTime = time.Second

// A conn is one client. Its fields have three kinds of owner: whoever leads,
// the mutex, and nobody (atomic, or constant once the transmission began).
type conn struct {
	srv    *Server
	nc     net.Conn        // the socket
	rc     syscall.RawConn // nil if nc has no file descriptor
	remote string
	opened time.Time

	// Constant from the end of the handshake on.
	ctx    context.Context // ends when the client is gone
	cancel context.CancelFunc
	dev    Device
	info   ExportInfo
	size   uint64
	obs    ConnObserver

	halted chan struct{} // closed when no more requests are begun
	// Of a client that has told who it is; guarded by Server.mu.
	identity identity
	claimed  string // the export, from before it is opened on

	tls        *tls.Conn     // on nc; nil: none
	below      *tlsSocket    // of tls
	subject    string        // common name of the client's certificate; "": it has shown none
	structured bool          // replies with a payload are structured ones
	contexts   []metaContext // of BLOCK_STATUS

	// Of the leader, see leader.go.
	in, out *buffer            // nil while there is nothing in them
	stash   [partialStash]byte // the start of a request, when in is nil
	stashed int
	seq     uint64       // of the inline call
	counted bool         // that call is in inflight already
	inline  wire.Request // that call's, if it is not
	slow    int          // so many changes and misses go to workers without a try
	now     int64        // when the requests in hand were read, by clock()
	paused  bool         // nothing had been read for long before, and no change begun since
	tally   tally        // not yet published
	recv    receiver
	send    sender

	// Shared with the watchdog. seen and quiet are the watchdog's own.
	state   atomic.Uint64
	watched atomic.Bool
	seen    uint64
	quiet   int

	stopping atomic.Bool // read no more requests; answer those in flight
	ending   atomic.Bool // the server is: no write takes longer than stallTime
	finished atomic.Bool // DISC was read: nothing in flight is dropped any more
	serving  atomic.Bool // the handshake is over, and its fields are set

	requests, bytesRead, bytesWritten atomic.Uint64

	mu       sync.Mutex
	pending  pending  // requests that are not answered yet
	head     *request // replies to write
	tail     *request
	writing  bool // somebody writes to the socket and will look at head again
	werr     error
	inflight int   // requests begun and not yet written; may be -1 within a hand-off
	held     int64 // bytes charged to them
	backlog  int64 // bytes of the leader's replies in head or being written from it
	waiting  bool  // the leader waits for wakec
	wakec    chan struct{}
}

// tally is what the leader has done since it last published.
type tally struct{ requests, read, written uint64 }

// process is the origin of clock.
var process = time.Now()

// clock returns nanoseconds on a clock that is never set.
func clock() int64 { return int64(time.Since(process)) }

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{srv: s, nc: nc, opened: time.Now(), wakec: make(chan struct{}, 1), halted: make(chan struct{})}
	if a := nc.RemoteAddr(); a != nil {
		c.remote = a.String()
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if sc, ok := nc.(syscall.Conn); ok {
		if rc, err := sc.SyscallConn(); err == nil {
			c.rc = rc
			c.recv.init(c)
			c.send.init(c)
		}
	}
	return c
}

// account tells the outcome of a request to the observer and the counters.
func (c *conn) account(h wire.Request, start int64, errno wire.Errno) {
	c.requests.Add(1)
	if errno == wire.OK {
		switch h.Type {
		case wire.CmdRead:
			c.bytesRead.Add(uint64(h.Length))
		case wire.CmdWrite:
			c.bytesWritten.Add(uint64(h.Length))
		}
	}
	if c.obs != nil {
		c.obs.Request(h.Type, h.Length, time.Duration(clock()-start), errno)
	}
}

// publish adds the leader's tally to the counters others may read.
func (c *conn) publish() {
	if c.tally.requests == 0 {
		return
	}
	c.requests.Add(c.tally.requests)
	c.bytesRead.Add(c.tally.read)
	c.bytesWritten.Add(c.tally.written)
	c.tally = tally{}
}

// stop ends the connection in good order: no more requests are read, those in
// flight are answered.
func (c *conn) stop() {
	c.stopping.Store(true)
	// A leader that waits for the socket wakes up; refill looks at stopping
	// before it waits.
	_ = c.nc.SetReadDeadline(time.Unix(1, 0))
}

// endSoon is stop for a server that is ending.
func (c *conn) endSoon() {
	c.ending.Store(true)
	c.limitWrite() // one that is under way
	c.stop()
}

// limitWrite gives the next write to the socket, or one under way, its time.
func (c *conn) limitWrite() {
	if c.ending.Load() && c.ctx.Err() == nil {
		_ = c.nc.SetWriteDeadline(time.Now().Add(c.srv.stallTime))
	}
}

// abort is for a client that is gone: no more is read or written, and changes
// that have not had their turn are dropped, unless the client said goodbye.
func (c *conn) abort() {
	c.stopping.Store(true)
	if !c.finished.Load() {
		c.cancel()
	}
	_ = c.nc.SetDeadline(time.Unix(1, 0))
	c.wake()
}

// wake has a leader that waits for room look why.
func (c *conn) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signalLocked()
}

// cut is stop for a server that can wait no longer: changes that have not had their
// turn are dropped, and the client is told, if it takes that soon.
func (c *conn) cut() {
	c.stop()
	_ = c.nc.SetWriteDeadline(time.Now().Add(cutTime))
	c.cancel()
	c.wake()
}

// kill is abort for a server that has waited for long enough.
func (c *conn) kill() {
	c.stopping.Store(true)
	c.cancel()
	_ = c.nc.Close()
}

// end is the last thing that the leader does.
func (c *conn) end(cause error) {
	close(c.halted)
	switch {
	case errors.Is(cause, errDisconnect):
		c.finished.Store(true)
		_ = c.flush()
	case errors.Is(cause, errStopping), errors.Is(cause, context.Canceled): // the latter of cut
		_ = c.flush()
	default:
		_ = c.flush()
		c.abort()
	}

	c.mu.Lock()
	for c.inflight != 0 || c.head != nil || c.writing {
		c.waitLocked()
	}
	werr := c.werr
	c.mu.Unlock()

	if c.tls != nil && werr == nil && c.ctx.Err() == nil {
		_ = c.tls.CloseWrite() // tells the client that nothing was cut off
	}
	_ = c.nc.Close()
	c.cancel()
	c.publish()
	c.dropBuffers()
	if err := c.closeDevice(); err != nil {
		c.srv.log.Warn("close export", "export", c.info.Name, "err", err)
	}
	if c.obs != nil {
		c.obs.Closed()
	}
	c.logEnd(cause, werr)
	c.srv.remove(c)
}

func (c *conn) closeDevice() (err error) {
	defer c.caught(&err)
	return c.dev.Close()
}

func (c *conn) logEnd(cause, werr error) {
	if cause == nil || errors.Is(cause, errDisconnect) || errors.Is(cause, io.EOF) {
		c.srv.log.Debug("connection closed", "remote", c.remote, "export", c.info.Name)
		return
	}
	if werr != nil {
		cause = werr
	}
	c.srv.log.Info("connection ended", "remote", c.remote, "export", c.info.Name, "cause", cause)
}

// waitLocked waits, with c.mu released, until a reply is written or some time
// has passed. The leader alone may wait.
func (c *conn) waitLocked() {
	c.waiting = true
	c.mu.Unlock()
	timer := time.NewTimer(c.srv.pollEvery)
	select {
	case <-c.wakec:
	case <-timer.C:
		_ = c.checkHangup()
	}
	timer.Stop()
	c.mu.Lock()
	c.waiting = false
}

// brokenLocked returns why the leader should not go on, if it should not.
func (c *conn) brokenLocked() error {
	if c.werr != nil {
		return c.werr
	}
	return c.ctx.Err()
}

// signalLocked wakes the leader if it waits.
func (c *conn) signalLocked() {
	if c.waiting {
		c.waiting = false
		select {
		case c.wakec <- struct{}{}:
		default:
		}
	}
}

// hasRead notes when something was read, and whether it may have waited in the socket:
// the leader was held up, or the process stood still, or the client was merely idle.
func (c *conn) hasRead() {
	now := clock()
	if now-c.now > int64(c.srv.pollEvery) {
		c.paused = true
	}
	c.now = now
}

// current returns an error if the change at hand may be out of date: if it may have
// waited for long and the client has hung up, it may have been sent again on another
// connection, and answered there, and something else behind it.
func (c *conn) current() error {
	if !c.paused && clock()-c.now <= int64(c.srv.pollEvery) {
		return nil
	}
	c.paused = false
	return c.checkHangup()
}

// checkHangup aborts the connection if the client has hung up.
func (c *conn) checkHangup() error {
	if c.rc == nil || c.finished.Load() {
		return nil
	}
	gone := false
	_ = c.rc.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		gone = err == nil && n > 0 && fds[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	if !gone {
		return nil
	}
	c.abort()
	return errHangup
}

// admit lets a request that needs n bytes of memory of its own in, or waits
// until it may. It returns the charge to give back with the request.
func (c *conn) admit(n int64) (charge int64, err error) {
	charge = n + requestOverhead
	cfg := &c.srv.cfg
	for waited := false; ; waited = true {
		c.mu.Lock()
		if c.inflight < cfg.MaxInFlight && (c.inflight <= 0 || c.held+charge <= cfg.MaxInFlightBytes) {
			c.inflight++
			c.held += charge
			c.mu.Unlock()
			break
		}
		if !waited {
			c.mu.Unlock()
			if err := c.flush(); err != nil {
				return 0, err
			}
			continue
		}
		c.waitLocked()
		err := c.brokenLocked()
		c.mu.Unlock()
		if err != nil {
			return 0, err
		}
	}

	if err := c.takeBudget(charge); err != nil {
		return 0, err
	}
	return charge, nil
}

// takeBudget takes the charge of a request just admitted from the server's
// budget, or waits until it can. A small request that is alone on its
// connection does not wait, so that nobody is starved by those who hold much.
func (c *conn) takeBudget(charge int64) error {
	for waited := false; ; waited = true {
		ch := c.srv.budget.take(charge)
		if ch == nil {
			return nil
		}
		err := c.ctx.Err()
		if !waited && err == nil {
			err = c.flush()
		}
		c.mu.Lock()
		if err != nil {
			c.inflight--
			c.held -= charge
			c.mu.Unlock()
			return err
		}
		if c.inflight <= 1 && charge <= smallRequest+requestOverhead {
			c.mu.Unlock()
			c.srv.budget.force(charge)
			return nil
		}
		c.waiting = true
		c.mu.Unlock()

		timer := time.NewTimer(c.srv.pollEvery)
		select {
		case <-ch:
		case <-c.wakec:
		case <-c.ctx.Done():
		case <-timer.C:
			_ = c.checkHangup()
		}
		timer.Stop()
		c.mu.Lock()
		c.waiting = false
		c.mu.Unlock()
	}
}

// unadmit takes back an admission whose request does not come to be.
func (c *conn) unadmit(charge int64) {
	c.srv.budget.give(charge)
	c.mu.Lock()
	c.inflight--
	c.held -= charge
	c.mu.Unlock()
}
