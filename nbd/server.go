package nbd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"tierd/nbd/wire"
)

// Config says what a Server serves and how much it may use. Only Exports is
// required; a limit of zero is its default.
type Config struct {
	Exports  Exports
	Logger   *slog.Logger // nil: nothing is logged
	Observer Observer     // nil: nobody is told

	TLS TLSMode
	// TLSConfig is asked for the configuration of each TLS session, so that
	// certificates can change; needed unless TLS is off.
	TLSConfig func() *tls.Config
	// PlaintextOnUnix lets clients on Unix sockets do without TLS though it is required.
	PlaintextOnUnix bool

	MaxConns         int           // connections at a time, in handshakes too; 4096
	HandshakeTimeout time.Duration // from accept to the choice of an export; 30 s
	MaxInFlight      int           // requests in flight of a connection; 256
	MaxInFlightBytes int64         // bytes of their payloads; 64 MiB
	MaxTotalBytes    int64         // bytes of the payloads in flight of all connections; 512 MiB
	SlowRequest      time.Duration // requests that take longer are told of; 0: none
	MaxPayload       uint32        // bytes of one READ or WRITE, 1 MiB to 32 MiB; 32 MiB
}

func (cfg *Config) setDefaults() {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxConns <= 0 {
		cfg.MaxConns = 4096
	}
	if cfg.HandshakeTimeout <= 0 {
		cfg.HandshakeTimeout = 30 * time.Second
	}
	if cfg.MaxInFlight <= 0 {
		cfg.MaxInFlight = 256
	}
	if cfg.MaxInFlightBytes <= 0 {
		cfg.MaxInFlightBytes = 64 << 20
	}
	if cfg.MaxTotalBytes <= 0 {
		cfg.MaxTotalBytes = 512 << 20
	}
	if cfg.MaxPayload == 0 || cfg.MaxPayload > wire.MaxPayload {
		cfg.MaxPayload = wire.MaxPayload
	}
	cfg.MaxPayload = max(cfg.MaxPayload, 1<<20)
	// One request of the greatest length must fit.
	cfg.MaxTotalBytes = max(cfg.MaxTotalBytes, int64(cfg.MaxPayload)+requestOverhead)
}

// A Server serves exports to NBD clients on any number of listeners.
type Server struct {
	cfg      Config
	log      *slog.Logger
	workers  *workers
	watchdog *watchdog
	slow     *slowWatch // nil: nobody looks
	budget   budget

	pollEvery   time.Duration // see the constants; tests want other values
	slowChanges int
	stallTime   time.Duration
	cutTime     time.Duration

	accepted, failed, refused, handoffs, panics atomic.Uint64

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	draining  bool
	idle      chan struct{} // closed when draining and no connection is left
	past      Traffic       // of connections that have ended
	closed    sync.Once
}

// NewServer returns a Server for cfg. It panics if cfg.Exports is nil. The
// caller ends it with Shutdown.
func NewServer(cfg Config) *Server {
	if cfg.Exports == nil {
		panic("nbd: Config without Exports")
	}
	if cfg.TLS != TLSOff && cfg.TLSConfig == nil {
		panic("nbd: TLS without TLSConfig")
	}
	cfg.setDefaults()
	s := &Server{
		cfg:         cfg,
		log:         cfg.Logger,
		workers:     newWorkers(),
		budget:      budget{free: cfg.MaxTotalBytes},
		pollEvery:   pollEvery,
		slowChanges: slowChanges,
		stallTime:   stallTime,
		cutTime:     cutTime,
		listeners:   map[net.Listener]struct{}{},
		conns:       map[*conn]struct{}{},
		idle:        make(chan struct{}),
	}
	s.watchdog = newWatchdog(s)
	go s.watchdog.loop()
	if cfg.SlowRequest > 0 {
		s.slow = newSlowWatch(s, cfg.SlowRequest)
		go s.slow.loop()
	}
	return s
}

// Serve accepts connections from l until ctx ends or Shutdown is called, and
// then returns nil, with l closed. Errors of accepting that can pass, such as
// too many open files, are waited out; any other is returned.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		_ = l.Close()
		return nil
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer func() {
		stop()
		_ = l.Close()
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()

	var pause time.Duration
	for {
		nc, err := l.Accept()
		if err == nil {
			pause = 0
			s.start(nc)
			continue
		}
		if ctx.Err() != nil || s.isDraining() {
			return nil
		}
		if !passing(err) {
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
		if pause == 0 {
			s.log.Warn("accept fails, trying again", "listener", l.Addr().String(), "err", err)
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-s.idle:
		}
		timer.Stop()
	}
}

// passing tells whether accepting may succeed later.
func passing(err error) bool {
	for _, no := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.ECONNABORTED, syscall.ECONNRESET, syscall.EINTR, syscall.EAGAIN, syscall.EPROTO} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// start serves a connection in a goroutine of its own.
func (s *Server) start(nc net.Conn) {
	s.accepted.Add(1)
	if s.cfg.Observer != nil {
		s.cfg.Observer.ConnAccepted()
	}
	if uc, ok := nc.(*net.UnixConn); ok {
		// The default holds one and a half replies of 128 KiB. TCP sizes itself.
		_ = uc.SetWriteBuffer(1 << 20)
	}
	c := newConn(s, nc)
	s.mu.Lock()
	switch {
	case s.draining:
		s.mu.Unlock()
		c.turnAway(ReasonShutdown)
		return
	case len(s.conns) >= s.cfg.MaxConns:
		s.mu.Unlock()
		s.refused.Add(1)
		s.log.Warn("too many connections", "limit", s.cfg.MaxConns, "remote", c.remote)
		c.turnAway(ReasonLimit)
		return
	}
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	go c.serveConn()
}

// turnAway closes a connection that gets no handshake.
func (c *conn) turnAway(reason string) {
	c.cancel()
	_ = c.nc.Close()
	c.srv.handshakeFailed(reason)
}

func (s *Server) handshakeFailed(reason string) {
	s.failed.Add(1)
	if s.cfg.Observer != nil {
		s.cfg.Observer.HandshakeFailed(reason)
	}
}

// serveConn is the life of a connection, or the part of it up to a hand-off.
func (c *conn) serveConn() {
	s := c.srv
	if reason, err := c.negotiate(); err != nil {
		close(c.halted)
		_ = c.nc.Close()
		c.cancel()
		s.log.Debug("handshake failed", "remote", c.remote, "reason", reason, "err", err)
		s.handshakeFailed(reason)
		s.remove(c)
		return
	}
	s.log.Debug("connection opened", "remote", c.remote, "export", c.info.Name, "size", c.size)
	if s.cfg.Observer != nil {
		c.obs = s.cfg.Observer.ConnOpened(c.info.Name, c.remote)
	}
	c.lead()
}

// remove takes a connection that has ended out of the registry.
func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.past.add(c.traffic())
	delete(s.conns, c)
	if s.draining && len(s.conns) == 0 {
		close(s.idle)
	}
}

// panicked counts and logs a panic that was caught.
func (s *Server) panicked(where string, p any) {
	s.panics.Add(1)
	s.log.Error("panic", "where", where, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
}

// Shutdown ends the Server: the listeners are closed, handshakes are given up,
// no more requests are read; those in flight are run and answered, but for clients
// that do not read their replies. When ctx ends first, connections are cut and
// changes that have not had their turn are dropped. ctx's error is returned if the
// Devices do not let go even then.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if !s.draining {
		s.draining = true
		for l := range s.listeners {
			_ = l.Close()
		}
		for c := range s.conns {
			c.endSoon()
		}
		if len(s.conns) == 0 {
			close(s.idle)
		}
	}
	s.mu.Unlock()

	select {
	case <-s.idle:
		s.close()
		return nil
	case <-ctx.Done():
	}
	left := 0
	for _, end := range []func(*conn){(*conn).cut, (*conn).kill} {
		s.mu.Lock()
		left = len(s.conns)
		for c := range s.conns {
			end(c)
		}
		s.mu.Unlock()

		// Most let go at once; a Device that hangs may hold a goroutine for ever.
		timer := time.NewTimer(s.cutTime)
		select {
		case <-s.idle:
			timer.Stop()
			s.close()
			return nil
		case <-timer.C:
		}
	}
	go func() {
		<-s.idle
		s.close()
	}()
	return fmt.Errorf("drain %d connections: %w", left, ctx.Err())
}

// close ends what serves all connections, when there are none.
func (s *Server) close() {
	s.closed.Do(func() {
		if s.slow != nil {
			s.slow.close()
		}
		s.watchdog.close()
		s.workers.close()
	})
}

// Traffic counts what connections did.
type Traffic struct {
	Requests     uint64 // answered or given up
	BytesRead    uint64 // by successful READs
	BytesWritten uint64 // by successful WRITEs
}

func (t *Traffic) add(u Traffic) {
	t.Requests += u.Requests
	t.BytesRead += u.BytesRead
	t.BytesWritten += u.BytesWritten
}

// Stats are the counters of a Server since it began.
type Stats struct {
	Traffic
	Accepted        uint64 // connections
	Refused         uint64 // for Config.MaxConns
	HandshakeFailed uint64 // connections that ended without an export
	Handoffs        uint64 // inline calls that blocked, so that a follower took over
	Panics          uint64 // caught
	Open            int    // connections now
	Transmitting    int    // of these, with an export
	InFlight        int    // requests in workers or waiting to be written
	BudgetFree      int64  // of Config.MaxTotalBytes; may be negative
}

// ConnInfo describes an open connection.
type ConnInfo struct {
	Remote   string
	Export   string // "" during the handshake
	Since    time.Time
	InFlight int
	Traffic
}

func (c *conn) traffic() Traffic {
	return Traffic{Requests: c.requests.Load(), BytesRead: c.bytesRead.Load(), BytesWritten: c.bytesWritten.Load()}
}

// Snapshot returns the counters. Those of requests served at once are added
// when their replies are written, a batch at a time.
func (s *Server) Snapshot() Stats {
	s.budget.mu.Lock()
	free := s.budget.free
	s.budget.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{
		Traffic:         s.past,
		Accepted:        s.accepted.Load(),
		Refused:         s.refused.Load(),
		HandshakeFailed: s.failed.Load(),
		Handoffs:        s.handoffs.Load(),
		Panics:          s.panics.Load(),
		Open:            len(s.conns),
		BudgetFree:      free,
	}
	for c := range s.conns {
		st.Traffic.add(c.traffic())
		if c.serving.Load() {
			st.Transmitting++
			st.InFlight += c.inFlight()
		}
	}
	return st
}

func (c *conn) inFlight() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.inflight, 0)
}

// Connections returns the open connections, oldest first.
func (s *Server) Connections() []ConnInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]ConnInfo, 0, len(s.conns))
	for c := range s.conns {
		info := ConnInfo{Remote: c.remote, Since: c.opened, Traffic: c.traffic()}
		if c.serving.Load() {
			info.Export, info.InFlight = c.info.Name, c.inFlight()
		}
		list = append(list, info)
	}
	slices.SortFunc(list, func(a, b ConnInfo) int { return a.Since.Compare(b.Since) })
	return list
}
